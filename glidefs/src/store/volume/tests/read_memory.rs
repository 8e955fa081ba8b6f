//! The memory that READs take.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::support::*;
use crate::fair::WEIGHT_DEFAULT;
use crate::store::block_cache::{BlockCache, BlockCacheOptions};
use crate::store::ids::VolumeId;
use crate::store::turns::Reader;
use crate::store::volume::VolumeWriter;
use crate::store::volume::error::VolumeError;

/// Sectors of a READ of a block.
const BLOCK: u64 = 128;
const READ_BYTES: u64 = BLOCK * 512;
/// Memory for READs.
const BYTES_MAX: u64 = 4 << 20;

/// A volume of `blocks` blocks of data, and its writer.
async fn written(daemon: &Daemon, volume: &str, blocks: u64) -> VolumeWriter {
    let writer = daemon.volumes.create(&name(volume), blocks * BLOCK).await.unwrap();
    // Neighbours differ, so that blocks are data and not compressed to nothing.
    let runs: Vec<_> = (0..blocks * BLOCK).map(|at| (at, 1, 1 + at % 1000)).collect();
    writer.commit(MemoryCut::new(1, &runs), blocks * BLOCK).await.unwrap();
    writer
}

async fn read(volume: VolumeWriter, block: u64) -> Result<Bytes, VolumeError> {
    let at = range(block * BLOCK, BLOCK);
    volume.read_waiting(at, &[at]).await
}

async fn in_memory(mib: usize) -> BlockCache {
    let options = BlockCacheOptions { directory: None, memory_bytes_max: mib << 20, disk_bytes_max: 0 };
    BlockCache::open(options).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn reads_whose_bytes_nobody_takes_keep_other_reads_waiting_within_the_bound() {
    let daemon = World::new().daemon_with_read_memory(1, BYTES_MAX, None);
    let (a, b) = (written(&daemon, "a", 64).await, written(&daemon, "b", 64).await);
    let volumes = [a, b];
    let mut reads: FuturesUnordered<_> =
        (0..1000).map(|number| read(volumes[number as usize % 2].clone(), number % 64)).collect();
    let mut kept = Vec::new();
    let mut most = 0;
    loop {
        most = most.max(daemon.volumes.read_bytes());
        match tokio::time::timeout(Duration::from_mins(1), reads.next()).await {
            Ok(Some(bytes)) => kept.push(bytes.unwrap()),
            Ok(None) => break,
            Err(_) => {
                assert!(kept.len() > 10, "{} READs have ended", kept.len());
                kept.clear();
            }
        }
    }
    // Two blocks' worth is what the READ took which came last.
    assert!(most < BYTES_MAX + 2 * READ_BYTES, "{most}");
    drop(kept);
    assert_eq!(daemon.volumes.read_bytes(), 0);
}

/// GETs from now on get an answer after so long that nothing else waits for one.
fn answer_no_get(world: &World) {
    world.objects.read_for(3_600_000);
}

/// What is done while GETs get no answer takes less time than the pause in which READs would give memory back.
async fn is_stuck(read: impl Future) -> bool {
    tokio::time::timeout(Duration::from_millis(10), read).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn indexes_on_their_way_take_turns_at_a_bounded_memory() {
    let world = World::new();
    let state = written(&world.daemon(1), "own", 4).await.state();
    let daemon = world.daemon_with_read_memory(1, BYTES_MAX, None);
    let volume = daemon.volumes.resume(&state);
    let other = Reader { volume: VolumeId([7; 16]), weight: WEIGHT_DEFAULT };
    let taken = volume.host.reader.read_memory.indexes.take(other, BYTES_MAX).await;
    let before = daemon.requests();
    assert!(is_stuck(read(volume.clone(), 0)).await);
    assert_eq!(daemon.since(before)[0], 0, "no index is fetched");
    drop(taken);
    read(volume.clone(), 0).await.unwrap();
    assert_eq!(daemon.since(before)[0], 2, "index and block");
    // An index longer than all of the memory has its turn as well.
    drop(volume.host.reader.read_memory.indexes.take(other, 2 * BYTES_MAX).await);
}

#[tokio::test(start_paused = true)]
async fn a_read_of_blocks_here_does_not_wait_for_reads_without_an_answer() {
    let world = World::new();
    let daemon = world.daemon_with_read_memory(1, BYTES_MAX, Some(in_memory(16).await));
    let (own, other) = (written(&daemon, "own", 64).await, written(&daemon, "other", 64).await);
    for volume in [&own, &other] {
        drop(read(volume.clone(), 7).await.unwrap());
    }
    answer_no_get(&world);
    let mut stuck: FuturesUnordered<_> = (0..1000).map(|number| read(own.clone(), 8 + number % 56)).collect();
    assert!(is_stuck(stuck.next()).await);
    assert!(daemon.volumes.read_bytes() > BYTES_MAX / 2, "{} bytes", daemon.volumes.read_bytes());
    for volume in [&own, &other] {
        assert!(read(volume.clone(), 7).now_or_never().is_some(), "served by what is here");
    }
}

#[tokio::test(start_paused = true)]
async fn the_reads_of_a_volume_without_an_answer_leave_memory_to_other_volumes() {
    // Reads of 17 sectors from as many packs take a MiB each.
    const PACKS: u64 = 17;
    let world = World::new();
    let daemon = world.daemon_with_read_memory(1, BYTES_MAX, None);
    let other = written(&daemon, "other", 64).await;
    let stuck = daemon.volumes.create(&name("stuck"), 64 * BLOCK).await.unwrap();
    for pack in 0..PACKS {
        let runs: Vec<_> = (pack..pack + BLOCK).map(|at| (at, 1, 1 + (at * 7 + pack) % 1000)).collect();
        stuck.commit(MemoryCut::new(pack + 1, &runs), 64 * BLOCK).await.unwrap();
    }
    let at = range(0, PACKS);
    drop(stuck.read_waiting(at, &[at]).await.unwrap());
    drop(read(other.clone(), 0).await.unwrap());
    answer_no_get(&world);
    let dear = |stuck: VolumeWriter| async move { stuck.read_waiting(at, &[at]).await };
    let mut reads: FuturesUnordered<_> = (0..1000).map(|_| dear(stuck.clone())).collect();
    assert!(is_stuck(reads.next()).await);
    let before = daemon.volumes.read_bytes();
    assert!(before > 1 << 20, "{before} bytes");
    let mut one = read(other, 7).boxed();
    assert!(is_stuck(&mut one).await);
    assert!(daemon.volumes.read_bytes() > before, "the other volume got no memory, {before} taken");
}

#[tokio::test(start_paused = true)]
async fn reads_without_an_answer_have_a_bounded_number_of_places() {
    let world = World::new();
    let daemon = world.daemon_with_read_memory(1, 1 << 30, None);
    let volumes = [written(&daemon, "a", 64).await, written(&daemon, "b", 64).await];
    answer_no_get(&world);
    let mut reads: FuturesUnordered<_> =
        (0..2000).map(|number| read(volumes[number as usize % 2].clone(), number % 64)).collect();
    assert!(is_stuck(reads.next()).await);
    // Of 256 places, each of two volumes has three times what is left.
    assert_eq!(daemon.volumes.places_taken(), 219);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_waits_for_local_memory_holds_no_index() {
    let daemon = World::new().daemon_with_read_memory(1, BYTES_MAX, Some(in_memory(16).await));
    let own = written(&daemon, "own", 64).await;
    drop(read(own.clone(), 7).await.unwrap());
    let view = own.view().await.unwrap();
    let mut reads: FuturesUnordered<_> = (0..1000).map(|_| read(own.clone(), 7)).collect();
    let mut kept = Vec::new();
    while let Ok(Some(bytes)) = tokio::time::timeout(Duration::from_mins(1), reads.next()).await {
        kept.push(bytes.unwrap());
    }
    assert!(reads.len() > 900, "{} wait", reads.len());
    assert_eq!(view.index_holders(range(7 * BLOCK, BLOCK)), 0);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_waits_for_memory_for_blocks_of_the_store_holds_no_index() {
    let daemon = World::new().daemon_with_read_memory(1, BYTES_MAX, None);
    let own = written(&daemon, "own", 64).await;
    let view = own.view().await.unwrap();
    let mut reads: FuturesUnordered<_> = (0..1000).map(|number| read(own.clone(), number % 64)).collect();
    let mut kept = Vec::new();
    while let Ok(Some(bytes)) = tokio::time::timeout(Duration::from_mins(1), reads.next()).await {
        kept.push(bytes.unwrap());
    }
    assert!(reads.len() > 900 && daemon.volumes.places_taken() > 100, "{} wait", reads.len());
    assert_eq!(view.index_holders(range(7 * BLOCK, BLOCK)), 0);
    // Each goes on with the same blocks when memory is there.
    while !reads.is_empty() {
        kept.clear();
        while let Ok(Some(bytes)) = tokio::time::timeout(Duration::from_mins(1), reads.next()).await {
            kept.push(bytes.unwrap());
        }
        assert!(!kept.is_empty(), "{} wait", reads.len());
    }
}

#[tokio::test]
async fn reads_of_lost_blocks_without_an_answer_do_not_delay_reads_of_blocks_here() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = BlockCacheOptions {
        directory: Some(directory.path().to_owned()),
        memory_bytes_max: 64 << 20,
        disk_bytes_max: 64 << 20,
    };
    let (world, cache) = (World::new(), BlockCache::open(options).await.unwrap());
    let daemon = world.daemon_with_read_memory(1, BYTES_MAX, Some(cache.clone()));
    let own = written(&daemon, "own", 64).await;
    for block in 0..64 {
        drop(read(own.clone(), block).await.unwrap());
    }
    // From now on blocks are on the disk only, and then lost, but for one.
    cache.close().await;
    drop(read(own.clone(), 7).await.unwrap());
    for file in std::fs::read_dir(directory.path()).unwrap() {
        std::fs::OpenOptions::new().write(true).open(file.unwrap().path()).unwrap().set_len(0).unwrap();
    }
    answer_no_get(&world);
    let mut stuck: FuturesUnordered<_> = (8..64).map(|block| read(own.clone(), block)).collect();
    // Until all have found that their block is lost, some have the memory for what is here.
    let deadline = std::time::Instant::now() + Duration::from_mins(1);
    loop {
        assert!(tokio::time::timeout(Duration::from_millis(10), stuck.next()).await.is_err());
        if read(own.clone(), 7).now_or_never().is_some() {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "READs of lost blocks keep what is here waiting");
    }
}

#[tokio::test]
async fn packs_uploaded_last_leave_memory_to_packs_being_made() {
    // A short pack takes 2 MiB while it is made and uploaded, and so does the look for a next one meanwhile.
    const MIB: u64 = 1 << 20;
    let recent = |daemon: &Daemon| daemon.volumes.memory_bytes() - daemon.volumes.metadata_bytes() as u64;
    for (pack_bytes_max, are_kept) in [(6 * MIB, true), (2 * MIB, false)] {
        let daemon = World::new().daemon_with_pack_memory(1, pack_bytes_max);
        written(&daemon, "vm", 2).await;
        assert_eq!(daemon.volumes.upload_bytes(), 0);
        assert_eq!(recent(&daemon) > 0, are_kept, "{pack_bytes_max}");
        let permit = daemon.volumes.set_upload_memory_aside(6 * MIB).await;
        assert_eq!(recent(&daemon), 0);
        assert_eq!(daemon.volumes.upload_bytes(), 8 * MIB);
        drop(permit);
    }
}

#[tokio::test]
async fn a_read_that_waits_is_small() {
    let daemon = World::new().daemon(1);
    let volume = written(&daemon, "vm", 1).await;
    let bytes = size_of_val(&read(volume, 0));
    assert!(bytes <= 1280, "{bytes} bytes");
}
