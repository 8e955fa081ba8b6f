//! Exports which fill their shares of the log, while the store is away.

use std::pin::Pin;

use tokio::sync::watch;

use super::risk::Paper;
use super::*;
use crate::cache::{CacheCatalog, SeqMarks, Triggers};
use crate::store::faulty::{Fault, Faults, FaultyStore};
use crate::store::scripted::ScriptedStore;
use crate::store::volume::{VolumeStore, VolumeStoreOptions};
use crate::store::{Access, Backend, Store, StoreOptions, WriterId};

const LARGE: u64 = 256;
const SECTORS: u64 = 1 << 17;
/// The first sector that nobody writes before the end.
const UNWRITTEN: u64 = SECTORS - 4 * LARGE;

/// A request which waits has no answer for so long.
const PATIENCE: Duration = Duration::from_millis(100);

/// Two exports with a store that fails as told.
pub(super) struct Shared {
    pub bench: Bench,
    faults: Arc<Faults>,
    exports: Vec<Arc<Export>>,
    /// Until writeback begins.
    writeback: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    _stop_writeback: watch::Sender<bool>,
}

impl Shared {
    pub async fn new(budgets: Budgets) -> Self {
        let faults = Faults::new(1);
        let objects = Arc::new(FaultyStore::new(ScriptedStore::new(Arc::default()), Arc::clone(&faults)));
        let access = Access::ReadWrite;
        let (store, _) =
            Store::open(Backend::over(objects, true), access, StoreOptions::default()).await.unwrap();
        let volumes = VolumeStore::new(store, VolumeStoreOptions::new(WriterId([1; 16])));
        let ids = [ExportId(1), ExportId(2)];
        let known = Known {
            exports: ids.map(|id| (id, SeqMarks::default())).to_vec(),
            catalog: Arc::new(Paper::default()) as Arc<dyn CacheCatalog>,
            ..Known::local(&[])
        };
        let bench = Bench::bounded(Engine::default(), known, SLOTS, (OnFull::Wait, budgets));
        let queue = bench.cache.writeback_queue(tokio::runtime::Handle::current());
        // Nothing but the budget asks for writeback.
        let never = Duration::from_hours(1);
        let triggers = Triggers { size_bytes: u64::MAX, age: never, quiet: never };
        let (stop_writeback, stopped) = watch::channel(false);
        let writeback = bench.cache.writeback(Arc::clone(&queue), triggers).run(stopped);
        let mut exports = Vec::new();
        for id in ids {
            let name = format!("vm-{}", id.0);
            let remote = volumes.create(&name.parse().unwrap(), SECTORS).await.unwrap();
            let export = Arc::new(Export::new(id, name, SECTORS * 512, bench.cache.volume(id)));
            export.volume().link_to_store(remote, Arc::clone(&queue), SECTORS, SECTORS);
            exports.push(export);
        }
        Self { bench, faults, exports, writeback: Some(Box::pin(writeback)), _stop_writeback: stop_writeback }
    }

    pub fn begin_writeback(&mut self) {
        tokio::spawn(self.writeback.take().unwrap());
    }

    pub async fn client(&self, at: usize) -> (Client, Arc<Export>) {
        let export = Arc::clone(&self.exports[at]);
        (Client::attach(&self.bench.worker, &export).await, export)
    }
}

fn content(number: u64) -> Vec<u8> {
    pattern(number as u8, 128 << 10)
}

/// Writes until the export has its share of the log, and once more, with tag 0. Returns the number of the last write.
fn fill(client: &mut Client, export: &Export) -> u64 {
    for number in 0..UNWRITTEN / LARGE {
        let is_full = export.volume().usage(Resource::Log).is_full;
        client.start(0, Operation::Write, number * LARGE, LARGE, content(number));
        if is_full {
            return number;
        }
        assert_eq!(client.finish(0).0, Ok(128 << 10));
    }
    panic!("the log takes everything");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_fills_its_share_of_the_log_waits_alone_and_goes_on_when_the_store_is_back() {
    let mut shared = Shared::new(Budgets::default()).await;
    shared.begin_writeback();
    let (mut client, hog) = shared.client(0).await;
    let (mut neighbour, other) = shared.client(1).await;
    shared.faults.set(Fault::SlowDown, 1000);
    let last = fill(&mut client, &hog);
    let stats = shared.bench.cache.stats();
    let (used, max) = (hog.volume().usage(Resource::Log).bytes, stats.log_bytes_max.unwrap());
    assert!(used.abs_diff(max / 4 * 3) < 1 << 20, "{used} of {max}");
    assert!(stats.segments_free > 8, "the log has room for others: {stats:?}");

    for number in 0..40 {
        let data = content(number + 7);
        assert_eq!(
            neighbour.run(Operation::Write, number * LARGE, LARGE, data).0,
            Ok(128 << 10),
            "it has little in the log"
        );
    }
    for (operation, count) in [(Operation::Discard, 8), (Operation::WriteZeroes, 16), (Operation::Flush, 0)] {
        client.start(1, operation, UNWRITTEN + LARGE, count, Vec::new());
        assert_eq!(client.finish(1).0, Ok(0), "{operation:?} needs no room");
    }
    assert!(client.result_within(0, Duration::ZERO).is_none(), "the store has nothing");
    assert_eq!((hog.volume().waits_for(), other.volume().waits_for()), (Some(Resource::Log), None));
    let held = |export: &Export| export.volume().usage(Resource::Log).held;
    assert!(held(&hog) > 0 && held(&other) == 0);
    assert!(shared.bench.worker.stats.log_waits.get() > 0);

    let deadline = std::time::Instant::now() + Duration::from_mins(2);
    while shared.faults.fired(Fault::SlowDown) == 0 {
        assert!(std::time::Instant::now() < deadline, "nobody asks the store for the export that waits");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    shared.faults.set(Fault::SlowDown, 0);
    assert_eq!(client.finish(0).0, Ok(128 << 10), "the store is back");
    for number in 0..=last {
        let (result, read) = client.run(Operation::Read, number * LARGE, LARGE, Vec::new());
        assert_eq!((result, read == content(number)), (Ok(128 << 10), true), "write {number}");
    }
    client.detach().await;
    neighbour.detach().await;
}

/// Zeroes within a frame free nothing, and make two extents with data in the frame out of one.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_tears_its_frames_with_short_zeroes_waits_alone() {
    // Writeback, for which half of the share asks, would begin with a cut, and zeroes tear nothing that is in a cut.
    let mut shared = Shared::new(Budgets::default()).await;
    let (mut client, hog) = shared.client(0).await;
    let (mut neighbour, _) = shared.client(1).await;
    let max = shared.bench.cache.stats().log_bytes_max.unwrap();
    let last = max / 2 / (128 << 10);
    for number in 0..=last {
        assert_eq!(client.run(Operation::Write, number * LARGE, LARGE, content(number)).0, Ok(128 << 10));
    }
    let mut waiting: Vec<u16> = Vec::new();
    let torn: Vec<u64> =
        (0..last * LARGE).step_by(8).flat_map(|frame| [1, 3, 5].map(|sector| frame + sector)).collect();
    // Several at a time, so that the records are few.
    for sectors in torn.chunks(usize::from(DEPTH)) {
        let tags = || (0..).zip(sectors);
        tags().for_each(|(tag, sector)| client.start(tag, Operation::WriteZeroes, *sector, 1, Vec::new()));
        // A machine that stands still for a moment holds nothing back.
        let deadline = std::time::Instant::now() + Duration::from_mins(2);
        let is_held = |tag: u16| loop {
            if client.result_within(tag, PATIENCE).is_some() {
                return false;
            }
            if hog.volume().usage(Resource::Log).held > 0 {
                return true;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "request {tag} has no answer, and does not wait for the log"
            );
        };
        waiting = tags().map(|(tag, _)| tag).filter(|tag| is_held(*tag)).collect();
        if !waiting.is_empty() {
            break;
        }
        assert!(shared.bench.cache.stats().log_bytes < max, "nothing is left to the neighbour");
    }
    neighbour.start(0, Operation::Write, 0, LARGE, content(1));
    let (result, _) = neighbour.result_within(0, Duration::from_secs(20)).expect("the log has room");
    assert_eq!(result, Ok(128 << 10));
    assert!(hog.volume().usage(Resource::Log).held > 0);
    shared.begin_writeback();
    for tag in waiting {
        assert_eq!(client.finish(tag).0, Ok(0), "the data is written back");
    }
    client.detach().await;
    neighbour.detach().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_at_its_own_bound_of_the_log_goes_on_as_fast_as_the_store_takes_the_data() {
    const MAX: u64 = 2 << 20;
    let budgets = Budgets { log_bytes_max_per_export: MAX, ..Budgets::default() };
    let mut shared = Shared::new(budgets).await;
    shared.begin_writeback();
    let (mut client, export) = shared.client(0).await;
    // Four times the bound goes through, though nothing but the bound asks for writeback.
    for number in 0..4 * MAX / (128 << 10) {
        assert_eq!(client.run(Operation::Write, number * LARGE, LARGE, content(number)).0, Ok(128 << 10));
        assert!(export.volume().usage(Resource::Log).bytes <= MAX);
    }
    client.detach().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_waits_for_a_share_of_the_log_fails_when_the_device_is_removed() {
    let budgets = Budgets { log_bytes_max_per_export: 2 << 20, ..Budgets::default() };
    let mut shared = Shared::new(budgets).await;
    shared.begin_writeback();
    let (mut client, export) = shared.client(0).await;
    shared.faults.set(Fault::SlowDown, 1000);
    fill(&mut client, &export);
    while export.volume().usage(Resource::Log).held == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(client.result_within(0, Duration::ZERO).is_none());
    export.volume().end_waits();
    shared.bench.worker.end_waits().await.unwrap();
    assert!(client.finish(0).0.is_err());
    client.detach().await;
}
