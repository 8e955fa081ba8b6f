//! The memory of a daemon by category beside the memory that the kernel counts.
//!
//! One test in a process of its own: the memory of another test would count.
#![allow(clippy::unwrap_used, reason = "tests may")]

#[path = "../benches/support/data_path.rs"]
mod data_path;
#[path = "../benches/support/host.rs"]
mod host;

use std::collections::BTreeMap;
use std::sync::Arc;

use data_path::DataPath;
use glidefs::testing::cache::Volume;
use glidefs::testing::cache::index::{Backing, Extent, Index, IndexLoader};
use glidefs::testing::daemon::MemoryHolders;
use glidefs::testing::observe::{Resident, release_heap, release_program};
use glidefs::testing::units::{SectorRange, Seq};

const EXPORTS: u32 = 2000;
const ATTACHED: u32 = 1500;
/// WRITEs, each torn into an extent for every sector.
const WRITES: u64 = 1600;
const WRITE_BYTES: usize = 128 << 10;
const SECTOR_BYTES: usize = 512;
const EXTENTS: u64 = WRITES * (WRITE_BYTES / SECTOR_BYTES) as u64;

/// Makes every other sector of the writes zero.
fn tear(path: &mut DataPath) {
    for number in 0..WRITES {
        let start = number * WRITE_BYTES as u64;
        path.write(start, WRITE_BYTES);
        path.turn();
        for offset in (0..WRITE_BYTES).step_by(2 * SECTOR_BYTES) {
            path.zero(start + offset as u64, SECTOR_BYTES);
        }
        path.turn();
    }
    path.settle();
}

/// An index as a start leaves it: packed.
fn loaded() -> Index {
    let mut loader = IndexLoader::default();
    for at in 0..EXTENTS {
        let range = SectorRange::new(at * 9, 8).unwrap();
        let sector = u32::try_from(at * 8).unwrap();
        let extent = Extent { range, seq: Seq(at + 1), backing: Backing::Data { number: 3, sector } };
        assert!(loader.push(&extent, &mut |_| ()), "extents ascend");
    }
    loader.finish(&mut |_| ())
}

fn free_heap_goes_back_to_the_kernel() {
    let mut blocks: Vec<Vec<u8>> = (0..512).map(|_| vec![1; 64 << 10]).collect();
    // The last block keeps the others from the end of the heap.
    drop(blocks.drain(..511));
    let before = Resident::now().unwrap().all;
    release_heap();
    let after = Resident::now().unwrap().all;
    assert!(before - after > 16 << 20, "{before} {after}");
    drop(blocks);
}

fn pages_of_the_program_go_back_and_the_program_goes_on() {
    let before = Resident::now().unwrap().files;
    release_program();
    let after = Resident::now().unwrap().files;
    assert!(after < before, "{before} {after}");
}

/// Resident memory, and the categories.
fn measure(holders: &MemoryHolders) -> (u64, BTreeMap<String, u64>) {
    let memory = holders.measure().unwrap();
    let named = memory.categories.into_iter().map(|category| (category.category, category.bytes));
    (memory.resident_bytes, named.collect())
}

/// Whether the two differ by a tenth of the first at most.
fn agree(first: u64, second: u64) -> bool {
    first.abs_diff(second) <= first / 10
}

#[test]
fn the_categories_add_up_to_the_resident_memory_and_the_index_is_as_large_as_the_index_says() {
    let log = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let catalog = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut path = DataPath::new(log.path(), 8);
    let volumes = |id| Arc::new(Volume::new(id));
    let (worker, shard) = path.worker_stats();
    let holders = MemoryHolders {
        workers: vec![worker],
        shards: vec![shard],
        cache: path.cache().clone(),
        router: host::router(catalog.path(), EXPORTS, ATTACHED, Box::new(volumes)),
        block_cache: None,
        volumes: None,
        api: Arc::default(),
    };
    let (resident_before, before) = measure(&holders);
    tear(&mut path);
    let (resident, after) = measure(&holders);
    let index = after["index"] - before["index"];
    assert_eq!(path.cache().stats().extents, EXTENTS);
    println!("{resident_before} {before:?}\n{resident} {after:?}");
    assert!(after["exports"] > u64::from(EXPORTS) * 500, "{after:?}");
    assert!(after["arenas"] >= 32 << 20, "{after:?}");
    for (resident, categories) in [(resident_before, &before), (resident, &after)] {
        let sum = categories.values().sum();
        assert!(
            agree(resident, sum),
            "{resident} bytes are resident, the categories have {sum}: {categories:?}"
        );
    }
    // Only the allocator knows the memory in use: free memory and other categories do not hide a wrong figure of the index.
    let used = |categories: &BTreeMap<String, u64>| -> u64 {
        let others = ["arenas", "program", "heap_free", "segments"];
        categories.iter().filter(|(name, _)| !others.contains(&name.as_str())).map(|(_, bytes)| bytes).sum()
    };
    let grown = used(&after) - used(&before);
    assert!(agree(grown, index), "the heap grew by {grown} bytes, and the index by {index}");
    let loaded = loaded();
    let (_, with_loaded) = measure(&holders);
    let grown = used(&with_loaded) - used(&after);
    let packed = loaded.bytes() - loaded.saved_bytes();
    assert!(agree(grown, packed), "the heap grew by {grown} bytes, and the packed index by {packed}");
    assert!(packed < loaded.bytes() / 2, "{packed} {}", loaded.bytes());
    free_heap_goes_back_to_the_kernel();
    pages_of_the_program_go_back_and_the_program_goes_on();
}
