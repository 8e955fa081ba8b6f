//! The block cache by itself: options that are refused, wrong blocks, and broken files.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::disk::FILE_NAME;
use super::*;
use crate::units::SectorRange;

const LIMITS: BlockCacheOptions =
    BlockCacheOptions { directory: None, memory_bytes_max: 4 << 20, disk_bytes_max: 4 << 20 };

fn in_directory(directory: &Path) -> BlockCacheOptions {
    BlockCacheOptions { directory: Some(directory.to_owned()), ..LIMITS }
}

const PACK: PackId = PackId([7; 16]);

/// A block of `sectors` sectors, at sector `at` of the volume and of the pack.
fn block(at: u64, sectors: u64) -> (IndexEntry, Bytes) {
    let mut bytes = vec![0; sectors as usize * 512];
    blake3::Hasher::new().update(&at.to_le_bytes()).finalize_xof().fill(&mut bytes);
    let crc = crc32c(&bytes);
    let entry = IndexEntry {
        range: SectorRange::new(at, sectors).unwrap(),
        codec: Codec::Stored,
        offset_bytes: at * 512,
        stored_bytes: sectors as u32 * 512,
        stored_crc: crc,
        plain_crc: crc,
    };
    (entry, bytes.into())
}

fn keep(cache: &BlockCache, at: u64, sectors: u64) {
    let (entry, bytes) = block(at, sectors);
    cache.keep(PACK, &[entry], &[bytes]);
}

async fn has(cache: &BlockCache, at: u64, sectors: u64) -> bool {
    let (entry, bytes) = block(at, sectors);
    let found = cache.get(PACK, &entry).await;
    assert!(found.as_ref().is_none_or(|found| *found == bytes));
    found.is_some()
}

#[tokio::test]
async fn too_little_room_is_an_error_that_says_how_much_is_needed() {
    let directory = TempDir::new().unwrap();
    let small = BlockCacheOptions { memory_bytes_max: 1 << 20, ..in_directory(directory.path()) };
    let error = BlockCache::open(small.clone()).await.unwrap_err();
    let BlockCacheError::TooLittleMemory { needed, .. } = error else { panic!("{error}") };
    BlockCache::open(BlockCacheOptions { memory_bytes_max: needed, ..small }).await.unwrap();
    let small = BlockCacheOptions { disk_bytes_max: 1 << 20, ..in_directory(directory.path()) };
    let error = BlockCache::open(small.clone()).await.unwrap_err();
    let BlockCacheError::TooLittleDisk { needed, .. } = error else { panic!("{error}") };
    BlockCache::open(BlockCacheOptions { disk_bytes_max: needed, ..small }).await.unwrap();
    // Without a directory the size of the disk does not matter.
    BlockCache::open(BlockCacheOptions { disk_bytes_max: 0, ..LIMITS }).await.unwrap();
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_an_error_and_a_file_of_garbage_is_not() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    let error = BlockCache::open(in_directory(&directory.path().join("file"))).await.unwrap_err();
    assert!(matches!(error, BlockCacheError::Directory { .. }) && error.to_string().contains("choose one"));
    let deep = directory.path().join("a/b");
    fs::create_dir_all(&deep).unwrap();
    for garbage in [Vec::new(), vec![0xa5; 10_000_000], b"GLIDECLF".repeat(1000)] {
        fs::write(deep.join(FILE_NAME), garbage).unwrap();
        let cache = BlockCache::open(in_directory(&deep)).await.unwrap();
        assert!(!has(&cache, 0, 8).await);
        keep(&cache, 0, 8);
        cache.close().await;
        let cache = BlockCache::open(in_directory(&deep)).await.unwrap();
        assert!(has(&cache, 0, 8).await);
        assert_eq!(cache.counters().disk_hits.get(), 1);
    }
}

#[tokio::test]
async fn a_block_of_another_length_or_checksum_is_not_used() {
    let directory = TempDir::new().unwrap();
    let cache = BlockCache::open(in_directory(directory.path())).await.unwrap();
    keep(&cache, 0, 8);
    let (entry, bytes) = block(0, 8);
    for wrong in [
        IndexEntry { plain_crc: !entry.plain_crc, ..entry },
        IndexEntry { range: block(0, 9).0.range, ..entry },
    ] {
        keep(&cache, 0, 8);
        assert_eq!(cache.get(PACK, &wrong).await, None);
        assert_eq!(cache.get(PACK, &entry).await, None, "it does not stay");
    }
    assert_eq!(cache.get(PackId([8; 16]), &entry).await, None);
    keep(&cache, 0, 8);
    assert_eq!(cache.get(PACK, &entry).await, Some(bytes));
    assert_eq!(cache.counters().bad_blocks.get(), 3);
}

#[tokio::test]
async fn memory_stays_within_its_bound_and_what_leaves_it_is_found_on_disk() {
    let directory = TempDir::new().unwrap();
    let options = BlockCacheOptions { disk_bytes_max: 40 << 20, ..in_directory(directory.path()) };
    let cache = BlockCache::open(options).await.unwrap();
    for at in 0..400 {
        keep(&cache, at * 128, if at % 5 == 0 { 3 } else { 128 });
        let figures = cache.counters();
        assert!(cache.memory_bytes() <= (4 << 20) + 400 * 200, "{figures:?}");
        // As fast as the disk.
        while cache.is_busy() {
            tokio::task::yield_now().await;
        }
    }
    for at in 0..400 {
        assert!(has(&cache, at * 128, if at % 5 == 0 { 3 } else { 128 }).await, "{at}");
    }
    let figures = cache.counters();
    assert_eq!((figures.errors.get(), figures.bad_blocks.get()), (0, 0));
    assert!(figures.disk_hits.get() > 300, "{figures:?}");
}

#[tokio::test]
async fn blocks_that_stay_in_memory_are_written_again_before_their_region_is_given_up() {
    let directory = TempDir::new().unwrap();
    let options = BlockCacheOptions { memory_bytes_max: 6 << 20, ..in_directory(directory.path()) };
    let cache = BlockCache::open(options.clone()).await.unwrap();
    keep(&cache, 0, 128);
    for at in 1..400 {
        assert!(has(&cache, 0, 128).await, "it is used all the time");
        keep(&cache, at * 128, 128);
        while cache.is_busy() {
            tokio::task::yield_now().await;
        }
    }
    cache.close().await;
    let cache = BlockCache::open(options).await.unwrap();
    assert!(has(&cache, 0, 128).await);
    assert!(!has(&cache, 128, 128).await, "the disk is long full");
}
