//! Volumes with a block cache: the same contents, fewer requests.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use tempfile::TempDir;

use super::support::*;
use crate::store::block_cache::{BlockCache, BlockCacheOptions};
use crate::store::faulty::Seeded;
use crate::store::format::{BLOCK_BYTES_MAX, BLOCK_SECTORS_MAX};
use crate::store::ids::Entropy;
use crate::store::volume::VolumeWriter;

const MIB: u64 = 1 << 20;
/// Sectors of a cut of 16 MiB.
const LONG: u64 = 16 * MIB / 512;

async fn memory(mib: usize) -> BlockCache {
    let options = BlockCacheOptions { directory: None, memory_bytes_max: mib << 20, disk_bytes_max: 0 };
    BlockCache::open(options).await.unwrap()
}

async fn on_disk(directory: &Path, memory_kib: usize, disk_kib: u64) -> BlockCache {
    let options = BlockCacheOptions {
        directory: Some(directory.to_owned()),
        memory_bytes_max: memory_kib << 10,
        disk_bytes_max: disk_kib << 10,
    };
    BlockCache::open(options).await.unwrap()
}

fn file(directory: &Path) -> File {
    let path = directory.join("clean-blocks");
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// The tag of sector `at` in the volumes of this file.
fn tag(at: u64) -> Tag {
    1 + at / 8 % 1000
}

/// A volume of `sectors`, all of them written.
async fn written(world: &World, sectors: u64) {
    let volume = world.daemon(1).volumes.create(&name("vm"), sectors).await.unwrap();
    let runs: Vec<_> =
        (0..sectors.div_ceil(8)).map(|at| (at * 8, 8.min(sectors - at * 8), tag(at * 8))).collect();
    volume.commit(MemoryCut::new(1, &runs), sectors).await.unwrap();
}

/// The volume as opened by `daemon`, with its index in memory.
async fn opened(daemon: &Daemon) -> VolumeWriter {
    let volume = daemon.volumes.take_over(&name("vm")).await.unwrap();
    volume.mapped(range(0, volume.size_sectors())).await.unwrap();
    volume
}

async fn check(volume: &VolumeWriter, start: u64, count: u64) {
    let expected: Vec<Tag> = (start..start + count).map(tag).collect();
    tags(volume, range(start, count), &expected).await;
}

/// Reads at random places, in pieces of up to 128 KiB.
async fn check_at_random(volume: &VolumeWriter, entropy: &Seeded, reads: u64) {
    for _ in 0..reads {
        let size = volume.size_sectors();
        let (start, count) = (entropy.next_u64() % size, 1 + entropy.next_u64() % 256);
        check(volume, start, count.min(size - start)).await;
    }
}

/// Waits until no window is under way any more.
async fn settled(daemon: &Daemon) {
    let mut before = daemon.requests();
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = daemon.requests();
        if now == before {
            return;
        }
        before = now;
    }
}

#[tokio::test]
async fn contents_are_the_same_with_evictions_restarts_other_sizes_and_damage() {
    let world = World::new();
    written(&world, 12_000).await;
    for seed in 0..3 {
        let directory = TempDir::new().unwrap();
        let entropy = Seeded::new(seed);
        let (mut hits, mut bad) = (0, 0);
        // Sizes smaller and larger than the volume, with other lengths of regions, and without closing the cache properly.
        for (turn, disk_kib) in [2_200, 9_000, 2_600, 20_000, 40_000, 5_000].into_iter().enumerate() {
            let block_cache = on_disk(directory.path(), 2_400, disk_kib).await;
            let daemon = world.daemon_with_block_cache(1, &block_cache);
            let volume = opened(&daemon).await;
            check_at_random(&volume, &entropy, 150).await;
            settled(&daemon).await;
            let figures = block_cache.counters();
            assert!(block_cache.memory_bytes() <= (2_400 << 10) + 100_000, "{figures:?}");
            assert!(file(directory.path()).metadata().unwrap().len() <= disk_kib << 10);
            assert_eq!(figures.errors.get(), 0);
            hits += figures.disk_hits.get();
            bad += figures.bad_blocks.get();
            if turn % 2 == 0 {
                block_cache.close().await;
                check_at_random(&volume, &entropy, 20).await;
            }
            if turn == 3 {
                // One byte in each 16 KiB is changed behind the back of the cache.
                let file = file(directory.path());
                for offset in (0..file.metadata().unwrap().len()).step_by(16 << 10) {
                    let (mut byte, offset) = ([0], offset + entropy.next_u64() % (16 << 10));
                    if file.read_at(&mut byte, offset).unwrap() == 1 {
                        file.write_all_at(&[byte[0] ^ 1 << (entropy.next_u64() % 8)], offset).unwrap();
                    }
                }
                check_at_random(&volume, &entropy, 100).await;
                bad += block_cache.counters().bad_blocks.get();
            }
        }
        assert!(hits > 50 && bad > 0, "{hits} {bad}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_readers_at_once_read_what_was_written() {
    let world = World::new();
    written(&world, 12_000).await;
    let directory = TempDir::new().unwrap();
    let block_cache = on_disk(directory.path(), 2_400, 2_200).await;
    let daemon = world.daemon_with_block_cache(1, &block_cache);
    let volume = opened(&daemon).await;
    let readers = (0..8).map(|reader| {
        let volume = volume.clone();
        tokio::spawn(async move {
            check_at_random(&volume, &Seeded::new(reader), 60).await;
            for start in (reader * 1000..reader * 1000 + 2000).step_by(32) {
                check(&volume, start, 32).await;
            }
        })
    });
    join_all(readers).await.into_iter().for_each(|reader| reader.unwrap());
    let figures = block_cache.counters();
    assert!(
        figures.disk_hits.get() > 0 && figures.memory_hits.get() > 0 && figures.ahead_bytes.get() > 0,
        "{figures:?}"
    );
    assert_eq!((figures.bad_blocks.get(), figures.errors.get()), (0, 0));
    block_cache.close().await;
}

#[tokio::test]
async fn after_a_restart_blocks_are_found_without_a_request() {
    let world = World::new();
    written(&world, LONG).await;
    let directory = TempDir::new().unwrap();
    // Memory for a part of the blocks only.
    let block_cache = on_disk(directory.path(), 4_096, 24_000).await;
    let daemon = world.daemon_with_block_cache(1, &block_cache);
    let volume = opened(&daemon).await;
    for start in (0..LONG).step_by(256) {
        check(&volume, start, 256).await;
        settled(&daemon).await;
        while block_cache.is_busy() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    block_cache.close().await;
    drop((volume, daemon, block_cache));

    let block_cache = on_disk(directory.path(), 4_096, 24_000).await;
    let daemon = world.daemon_with_block_cache(1, &block_cache);
    let volume = opened(&daemon).await;
    let before = daemon.requests();
    for start in (0..LONG).rev().step_by(256) {
        check(&volume, start - 255, 256).await;
    }
    let figures = block_cache.counters();
    assert_eq!(daemon.since(before), [0; 5], "{figures:?}");
    assert_eq!(
        (figures.disk_hits.get(), figures.misses.get(), figures.bad_blocks.get()),
        (16 * MIB / BLOCK_BYTES_MAX as u64, 0, 0)
    );
}

#[tokio::test]
async fn readers_of_a_cold_range_share_one_request_and_later_ones_need_none() {
    let world = World::new();
    written(&world, LONG).await;
    world.objects.read_for(5);
    let block_cache = memory(64).await;
    let daemon = world.daemon_with_block_cache(1, &block_cache);
    let volume = opened(&daemon).await;
    for requests in [1, 0] {
        let before = daemon.requests();
        let readers = (0..32).map(|_| {
            let volume = volume.clone();
            tokio::spawn(async move { check(&volume, 1024, 1024).await })
        });
        join_all(readers).await.into_iter().for_each(|reader| reader.unwrap());
        assert_eq!(daemon.since(before), [requests, 0, 0, 0, 0]);
    }
    let figures = block_cache.counters();
    assert_eq!(figures.inserted_bytes.get(), 512 << 10, "once for all who waited");
    assert_eq!((figures.misses.get(), figures.memory_hits.get()), (32 * 8, 32 * 8));
    // The blocks between are in the cache, and compress so well that reading through them is shorter than another request.
    let before = daemon.requests();
    check(&volume, 512, 2048).await;
    assert_eq!(daemon.since(before), [1, 0, 0, 0, 0]);
    assert_eq!(block_cache.counters().inserted_bytes.get(), MIB, "what was here is not taken in again");
}

#[tokio::test]
async fn a_sequential_reader_costs_few_requests_and_a_random_one_no_more_than_blocks() {
    let world = World::new();
    written(&world, LONG).await;
    // So that a request takes longer than a turn of the reader.
    world.objects.read_for(2);
    let block_cache = memory(128).await;
    let daemon = world.daemon_with_block_cache(1, &block_cache);
    let volume = opened(&daemon).await;
    let before = daemon.requests();
    for start in (0..LONG).step_by(8) {
        check(&volume, start, 8).await;
    }
    let figures = block_cache.counters();
    let gets = daemon.since(before)[0];
    // One GET by the reader, windows of 256 KiB to 4 MiB, and one more GET where the pack ends.
    assert!(gets <= 10, "{gets} requests, {figures:?}");
    assert!(figures.ahead_bytes.get() > 0, "{figures:?}");
    assert_eq!(figures.inserted_bytes.get(), 16 * MIB, "every block once");

    let block_cache = memory(128).await;
    let daemon = world.daemon_with_block_cache(1, &block_cache);
    let volume = opened(&daemon).await;
    world.objects.read_for(0);
    let (before, entropy) = (daemon.requests(), Seeded::new(3));
    let mut blocks = std::collections::HashSet::new();
    for _ in 0..400 {
        let start = entropy.next_u64() % (LONG / 8) * 8;
        blocks.insert(start / BLOCK_SECTORS_MAX);
        check(&volume, start, 8).await;
    }
    assert_eq!(block_cache.counters().ahead_bytes.get(), 0);
    assert_eq!(daemon.since(before)[0], blocks.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn whoever_reads_what_is_read_ahead_waits_for_that_request() {
    let world = World::new();
    written(&world, LONG).await;
    let block_cache = memory(128).await;
    let daemon = world.daemon_with_block_cache(1, &block_cache);
    let volume = opened(&daemon).await;
    check(&volume, 0, 256).await;
    world.objects.read_for(1000);
    let before = daemon.requests();
    // The second read continues the first, the third begins a window, and the fourth needs the window.
    check(&volume, 0, 64).await;
    check(&volume, 64, 64).await;
    check(&volume, 128, 64).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(daemon.since(before), [1, 0, 0, 0, 0]);
    check(&volume, 256, 64).await;
    assert_eq!(daemon.since(before)[0], 1, "no request of its own");
    // Without a block cache, nothing is read ahead.
    let daemon = world.daemon(1);
    let volume = opened(&daemon).await;
    let before = daemon.requests();
    for start in (0..640).step_by(64) {
        check(&volume, start, 64).await;
    }
    assert_eq!(daemon.since(before)[0], 10);
}

#[tokio::test]
async fn a_store_that_fails_ahead_of_a_reader_is_nobodys_error() {
    let world = World::new();
    written(&world, LONG).await;
    let block_cache = memory(128).await;
    let daemon = world.daemon_with_block_cache(1, &block_cache);
    let volume = opened(&daemon).await;
    check(&volume, 0, 1024).await;
    let before = daemon.requests();
    world.objects.end_after(0, false);
    for start in (0..1024).step_by(64) {
        check(&volume, start, 64).await;
    }
    settled(&daemon).await;
    assert!(daemon.since(before)[0] > 0, "nothing was asked for ahead");
    world.objects.go_on();
    check(&volume, 1024, 256).await;
}

#[tokio::test]
async fn reading_ahead_stays_within_the_volume_and_needs_no_request_for_zeroes() {
    let world = World::new();
    let block_cache = memory(64).await;
    let daemon = world.daemon_with_block_cache(1, &block_cache);
    let volume = daemon.volumes.create(&name("vm"), LONG).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 512, 5), (600, 800, 0)]), LONG).await.unwrap();
    volume.mapped(range(0, LONG)).await.unwrap();
    let before = daemon.requests();
    for start in (0..512).step_by(8) {
        tags(&volume, range(start, 8), &[5; 8]).await;
    }
    settled(&daemon).await;
    assert!(daemon.since(before)[0] <= 3);
    assert_eq!(block_cache.counters().inserted_bytes.get(), 256 << 10);
}

#[tokio::test]
async fn compaction_and_uploads_leave_the_cache_alone() {
    let world = World::new();
    let block_cache = memory(64).await;
    let daemon = world.daemon_with_block_cache(1, &block_cache);
    let volume = daemon.volumes.create(&name("vm"), LONG).await.unwrap();
    for seq in 1..=9 {
        volume.commit(MemoryCut::new(seq, &[(seq * 100, 1000, seq)]), LONG).await.unwrap();
    }
    assert!(volume.compact().await.unwrap().is_some());
    let counters = block_cache.counters();
    assert_eq!(
        (counters.inserted_bytes.get(), counters.misses.get(), counters.fetched_bytes.get()),
        (0, 0, 0)
    );
    tags(&volume, range(100, 100), &[1; 100]).await;
    tags(&volume, range(900, 1000), &[9; 1000]).await;
}
