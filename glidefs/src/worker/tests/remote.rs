//! READs of data in the store.

use tokio::sync::watch;

use super::risk::Paper;
use super::*;
use crate::cache::{CacheCatalog, SeqMarks, Triggers};
use crate::store::volume::{VolumeStore, VolumeStoreOptions};
use crate::store::{Access, Backend, Store, StoreOptions, StoreUrl, WriterId};
use crate::units::Seq;

const ROUNDS: u64 = 200;

#[tokio::test(flavor = "multi_thread")]
async fn a_read_of_what_is_in_the_store_ends_when_a_write_of_the_same_turn_brings_the_data() {
    let backend = Backend::connect(&StoreUrl::Memory, &Vec::new(), false).unwrap();
    let access = Access::ReadWrite;
    let (store, _) = Store::open(backend, access, StoreOptions::default()).await.unwrap();
    let volumes = VolumeStore::new(store, VolumeStoreOptions::new(WriterId([1; 16])));
    let remote = volumes.create(&"vm".parse().unwrap(), 1 << 15).await.unwrap();
    let (never, mut stops) = (Duration::from_hours(1), Vec::new());
    let mut linked = || {
        let id = ExportId(1);
        let catalog = Arc::new(Paper::default()) as Arc<dyn CacheCatalog>;
        let marks = SeqMarks { stored: remote.cut(), evicted: Seq(0) };
        let bench = Bench::over(
            Engine::default(),
            Known { exports: vec![(id, marks)], catalog, ..Known::local(&[]) },
        );
        let queue = bench.cache.writeback_queue(tokio::runtime::Handle::current());
        let triggers = Triggers { size_bytes: 64 << 20, age: never, quiet: never };
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(bench.cache.writeback(Arc::clone(&queue), triggers).run(stopped));
        stops.push(stop);
        let export = bench.export(1);
        export.volume().link_to_store(remote.clone(), queue, 1 << 15, 1 << 15);
        (bench, export)
    };
    let (bench, export) = linked();
    let mut client = Client::attach(&bench.worker, &export).await;
    for round in 0..ROUNDS {
        assert_eq!(client.run(Operation::Write, round * 8, 8, pattern(1, 4096)).0, Ok(4096));
    }
    export.volume().written_back().await.unwrap();

    // A host without any data of the export.
    let (bench, export) = linked();
    let mut client = Client::attach(&bench.worker, &export).await;
    for round in 0..ROUNDS {
        client.start(0, Operation::Read, round * 8, 8, vec![0; 4096]);
        client.start(1, Operation::Write, round * 8, 8, pattern(2, 4096));
        let (result, data) = client.finish(0);
        assert_eq!(result, Ok(4096));
        assert!(data == pattern(1, 4096) || data == pattern(2, 4096));
        assert_eq!(client.finish(1).0, Ok(4096));
    }
}
