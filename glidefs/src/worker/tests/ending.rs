//! Waiting requests, and a device which is about to be removed.

use tokio::sync::watch;

use super::risk::Paper;
use super::*;
use crate::cache::{CacheCatalog, SeqMarks, Triggers};
use crate::properties::{Bound, Durability};
use crate::store::faulty::{Fault, Faults, FaultyStore};
use crate::store::scripted::ScriptedStore;
use crate::store::volume::{self, VolumeStore, VolumeStoreOptions};
use crate::store::{Access, Backend, Store, StoreOptions, WriterId};
use crate::units::Seq;

const LARGE: u64 = 256;
const LARGE_BYTES: usize = 128 << 10;
const SECTORS: u64 = 1 << 15;
/// Large writes which fill an export as [`Bench::export`] makes one.
const EXPORT_LARGE_WRITES: u64 = (16 << 20) / LARGE_BYTES as u64;

/// A store which fails on purpose, and one volume in the store.
pub(super) async fn remote() -> (Arc<Faults>, volume::VolumeWriter) {
    let faults = Faults::new(1);
    let objects = Arc::new(FaultyStore::new(ScriptedStore::new(Arc::default()), Arc::clone(&faults)));
    let backend = Backend::over(objects, true);
    let access = Access::ReadWrite;
    let (store, _) = Store::open(backend, access, StoreOptions::default()).await.unwrap();
    let volumes = VolumeStore::new(store, VolumeStoreOptions::new(WriterId([1; 16])));
    let remote = volumes.create(&"vm".parse().unwrap(), SECTORS).await.unwrap();
    (faults, remote)
}

/// A worker with an export linked to `remote`, without any data of the export.
pub(super) fn linked(
    remote: &volume::VolumeWriter,
    durability: Durability,
) -> (Bench, Arc<Export>, watch::Sender<bool>) {
    let (id, never) = (ExportId(1), Duration::from_hours(1));
    let catalog = Arc::new(Paper::default()) as Arc<dyn CacheCatalog>;
    let marks = SeqMarks { stored: remote.cut(), evicted: Seq(0) };
    let bench =
        Bench::over(Engine::default(), Known { exports: vec![(id, marks)], catalog, ..Known::local(&[]) });
    let queue = bench.cache.writeback_queue(tokio::runtime::Handle::current());
    let triggers = Triggers { size_bytes: 64 << 20, age: never, quiet: never };
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(bench.cache.writeback(Arc::clone(&queue), triggers).run(stopped));
    let export = bench.export(1);
    export.volume().link_to_store(remote.clone(), queue, SECTORS, SECTORS);
    export.volume().set_durability(durability);
    (bench, export, stop)
}

fn assert_ended(client: &Client, tag: u16, what: &str) {
    let error = client.finish(tag).0.expect_err(what);
    assert!(error.contains("device of the export is being removed"), "{what}: {error}");
}

/// Whether the request of tag 0 ends. A cache at rest ends no request.
fn is_served(client: &Client, bench: &Bench) -> bool {
    let (mut last, mut rests) = (None, 0);
    while rests < 10 {
        if client.result_within(0, Duration::from_millis(200)).is_some() {
            return true;
        }
        let stats = Some(bench.cache.stats());
        rests = if stats == last { rests + 1 } else { 0 };
        last = stats;
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_the_export_that_fills_the_cache_fails_its_writes_and_makes_room_for_the_others() {
    let bench = Bench::new();
    let exports: Vec<_> = (1..=5).map(|id| bench.export(id)).collect();
    let mut clients = Vec::new();
    for export in &exports {
        clients.push(Client::attach(&bench.worker, export).await);
    }
    // 64 MiB of cache, and four exports of 16 MiB which no store takes.
    let mut full = None;
    'filling: for at in 0..EXPORT_LARGE_WRITES {
        for (number, client) in clients.iter_mut().take(4).enumerate() {
            client.start(0, Operation::Write, at * LARGE, LARGE, pattern(at as u8, LARGE_BYTES));
            if !is_served(client, &bench) {
                full = Some(number);
                break 'filling;
            }
        }
    }
    let full = full.expect("the cache never was full");
    let other = 4;
    clients[other].start(1, Operation::Write, 0, LARGE, pattern(1, LARGE_BYTES));
    clients[full].start(2, Operation::Write, 0, LARGE, pattern(2, LARGE_BYTES));
    clients[full].start(3, Operation::Discard, 0, 8, Vec::new());

    exports[full].volume().end_waits();
    bench.worker.end_waits().await.unwrap();
    for tag in [0, 2, 3] {
        assert_ended(&clients[full], tag, "a write that waits for log space");
    }
    clients[full].start(0, Operation::Write, 0, LARGE, pattern(3, LARGE_BYTES));
    assert_ended(&clients[full], 0, "a write that came later");
    clients[full].start(0, Operation::Read, 0, 8, vec![0; 4096]);
    assert_eq!(clients[full].finish(0).0, Ok(4096), "a read that need not wait");
    assert!(clients[other].result_within(1, Duration::ZERO).is_none(), "nobody else's write fails");

    clients.remove(full).detach().await;
    bench.cache.remove(exports[full].id());
    assert_eq!(clients[other - 1].finish(1).0, Ok(LARGE_BYTES as u32), "there is room now");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_waits_for_the_store_fails_when_its_device_is_removed() {
    let (faults, remote) = remote().await;
    let (bench, export, _stop) = linked(&remote, Durability::Local);
    let mut client = Client::attach(&bench.worker, &export).await;
    assert_eq!(client.run(Operation::Write, 0, 8, pattern(1, 4096)).0, Ok(4096));
    export.volume().written_back().await.unwrap();

    let (bench, export, _stop) = linked(&remote, Durability::Local);
    let mut client = Client::attach(&bench.worker, &export).await;
    faults.set(Fault::Stall, 1000);
    client.start(0, Operation::Read, 0, 8, vec![0; 4096]);
    while faults.fired(Fault::Stall) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    export.volume().end_waits();
    bench.worker.end_waits().await.unwrap();
    assert_ended(&client, 0, "a read that waits");
    client.start(0, Operation::Read, 0, 8, vec![0; 4096]);
    assert_ended(&client, 0, "a read that would have to wait");

    client.detach().await;
    faults.set(Fault::Stall, 0);
    export.volume().allow_waits();
    let mut client = Client::attach(&bench.worker, &export).await;
    let (result, data) = client.run(Operation::Read, 0, 8, vec![0; 4096]);
    assert_eq!((result, data == pattern(1, 4096)), (Ok(4096), true), "attached again, it waits again");
    client.detach().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_that_waits_for_the_store_fails_when_its_device_is_removed() {
    let (faults, remote) = remote().await;
    let (bench, export, _stop) = linked(&remote, Durability::Store);
    let mut client = Client::attach(&bench.worker, &export).await;
    assert_eq!(client.run(Operation::Write, 0, 8, pattern(1, 4096)).0, Ok(4096));
    faults.set(Fault::SlowDown, 1000);
    client.start(0, Operation::Flush, 0, 0, Vec::new());
    while faults.fired(Fault::SlowDown) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(client.result_within(0, Duration::ZERO).is_none(), "the store does not have it");
    export.volume().end_waits();
    bench.worker.end_waits().await.unwrap();
    assert_ended(&client, 0, "a FLUSH that waits");
    client.start(0, Operation::Flush, 0, 0, Vec::new());
    assert_ended(&client, 0, "a FLUSH that would have to wait");
    client.detach().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_are_held_back_fail_when_their_device_is_removed() {
    let (faults, remote) = remote().await;
    let bound = Bound { max_bytes: 1 << 20, max_age: Duration::from_hours(1) };
    let (bench, export, _stop) = linked(&remote, Durability::Bounded(bound));
    let mut client = Client::attach(&bench.worker, &export).await;
    faults.set(Fault::SlowDown, 1000);
    for at in 0..8 {
        let data = pattern(at as u8, LARGE_BYTES);
        assert_eq!(client.run(Operation::Write, at * LARGE, LARGE, data).0, Ok(LARGE_BYTES as u32));
    }
    client.start(0, Operation::Write, 8 * LARGE, LARGE, pattern(8, LARGE_BYTES));
    client.start(1, Operation::Write, 0, 1, pattern(9, 512));
    while bench.worker.stats.risk_waits.get() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    export.volume().end_waits();
    bench.worker.end_waits().await.unwrap();
    assert_ended(&client, 0, "a write beyond the bound");
    assert_ended(&client, 1, "a write behind it");
    client.start(0, Operation::Write, 8 * LARGE, LARGE, pattern(8, LARGE_BYTES));
    assert_ended(&client, 0, "a write that would have to wait");
    client.detach().await;
}
