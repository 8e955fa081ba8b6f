//! An export with a bound on the data at risk, while the store is away.

use std::collections::HashMap;

use futures_util::future::{BoxFuture, ready};
use tokio::sync::watch;

use super::*;
use crate::cache::{CacheCatalog, SeqMarks, Triggers};
use crate::properties::{Bound, Durability};
use crate::store::faulty::{Fault, Faults, FaultyStore};
use crate::store::scripted::ScriptedStore;
use crate::store::volume::{Resume, VolumeStore, VolumeStoreOptions};
use crate::store::{Access, Backend, Store, StoreOptions, WriterId};
use crate::units::Seq;

const BOUND: Bound = Bound { max_bytes: 1 << 20, max_age: Duration::from_hours(1) };
const LARGE: u64 = 256;

#[derive(Debug, Default)]
pub(super) struct Paper(Mutex<HashMap<ExportId, Resume>>);

impl CacheCatalog for Paper {
    fn evicted(&self, _marks: &[(ExportId, Seq)]) -> io::Result<()> {
        Ok(())
    }

    fn stored(&self, export: ExportId, resume: &Resume, _evicted: Seq) -> BoxFuture<'static, io::Result<()>> {
        self.0.lock().unwrap().insert(export, resume.clone());
        Box::pin(ready(Ok(())))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_export_waits_for_the_store_at_its_bound_and_no_other_export_does() {
    let faults = Faults::new(1);
    let objects = Arc::new(FaultyStore::new(ScriptedStore::new(Arc::default()), Arc::clone(&faults)));
    let access = Access::ReadWrite;
    let backend = Backend::over(objects, true);
    let (store, _) = Store::open(backend, access, StoreOptions::default()).await.unwrap();
    let volumes = VolumeStore::new(store, VolumeStoreOptions::new(WriterId([1; 16])));
    let remote = volumes.create(&"bounded".parse().unwrap(), 1 << 15).await.unwrap();

    let (ids, paper) = ([ExportId(1), ExportId(2)], Arc::new(Paper::default()));
    let known = Known {
        exports: ids.map(|id| (id, SeqMarks::default())).to_vec(),
        catalog: Arc::clone(&paper) as Arc<dyn CacheCatalog>,
        ..Known::local(&[])
    };
    let bench = Bench::over(Engine::default(), known);
    let queue = bench.cache.writeback_queue(tokio::runtime::Handle::current());
    let triggers =
        Triggers { size_bytes: 64 << 20, age: Duration::from_hours(1), quiet: Duration::from_hours(1) };
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(bench.cache.writeback(Arc::clone(&queue), triggers).run(stopped));
    let (bounded, local) = (bench.export(1), bench.export(2));
    bounded.volume().link_to_store(remote, queue, 1 << 15, 1 << 15);
    bounded.volume().set_durability(Durability::Bounded(BOUND));
    let mut client = Client::attach(&bench.worker, &bounded).await;
    let mut other = Client::attach(&bench.worker, &local).await;

    // With a store which takes everything, more than the bound goes through, though nobody asks for writeback.
    for round in 0..24_u64 {
        assert_eq!(
            client.run(Operation::Write, round * LARGE, LARGE, pattern(round as u8, 128 << 10)).0,
            Ok(128 << 10)
        );
        assert!(bounded.volume().figures().dirty_bytes <= BOUND.max_bytes);
    }
    assert!(paper.0.lock().unwrap().contains_key(&ids[0]));

    bounded.volume().written_back().await.unwrap();
    faults.set(Fault::SlowDown, 1000);
    for round in 0..8_u64 {
        let data = pattern(round as u8 ^ 7, 128 << 10);
        assert_eq!(
            client.run(Operation::Write, round * LARGE, LARGE, data).0,
            Ok(128 << 10),
            "the bound allows it"
        );
    }
    client.start(0, Operation::Write, 8 * LARGE, LARGE, pattern(8, 128 << 10));
    client.start(1, Operation::Write, 0, 1, pattern(9, 512));
    for round in 0..50 {
        assert_eq!(
            other.run(Operation::Write, round * 8, 8, pattern(round as u8, 4096)).0,
            Ok(4096),
            "it has no bound"
        );
    }
    let deadline = std::time::Instant::now() + Duration::from_mins(2);
    while faults.fired(Fault::SlowDown) == 0 {
        assert!(std::time::Instant::now() < deadline, "nobody asked the store");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(bounded.volume().figures().dirty_bytes, BOUND.max_bytes);
    assert!(client.result_within(0, Duration::ZERO).is_none(), "it is beyond the bound");
    assert!(client.result_within(1, Duration::ZERO).is_none(), "a small write does not overtake a large one");
    assert!(bench.worker.stats.risk_waits.get() > 0);

    faults.set(Fault::SlowDown, 0);
    assert_eq!(client.finish(0).0, Ok(128 << 10), "the store is back");
    assert_eq!(client.finish(1).0, Ok(512));
    assert!(bounded.volume().figures().dirty_bytes <= BOUND.max_bytes);
    client.detach().await;
    other.detach().await;
}
