//! Garbage collection on a store in memory, beside writers, forks and other runs.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod damaged;
mod graves;
mod late;
mod relied;
mod runs;
mod unsure;

use std::time::Duration;

use super::*;
use crate::store::key::Folder;
use crate::store::volume::tests::support::*;
use crate::store::volume::{Loss, StatePoint, VolumeError, VolumeWriter};

const SIZE: u64 = 1 << 21;
const GRACE: Duration = Duration::from_hours(24);

async fn gc(world: &World, dry_run: bool) -> GcReport {
    let options = GcOptions { grace: GRACE, dry_run, alone: false };
    Box::pin(collect(world.daemon(9).volumes.store(), &*world.clock, &options)).await.unwrap()
}

/// Keys of all objects; tests have no marker.
async fn all_keys(world: &World) -> Vec<Key> {
    let listing = world.daemon(9).volumes.store().list(Folder::All, None).await.unwrap();
    listing.into_iter().map(|object| object.key).collect()
}

/// Keys of all objects except the observation that every run leaves.
async fn keys(world: &World) -> Vec<Key> {
    keys_in(world.daemon(9).volumes.store()).await
}

/// The key of the one snapshot of `volume`.
async fn snapshot_key(world: &World, volume: VolumeId) -> Key {
    let listing = world.daemon(9).volumes.store().list(Folder::Snapshots(volume), None).await.unwrap();
    listing[0].key.clone()
}

async fn compacted(volume: &VolumeWriter, tag: Tag) {
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, tag)]), SIZE).await.unwrap();
    }
    volume.compact().await.unwrap().unwrap();
    // A volume not released may have a manifest with the packs under way.
    volume.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_compaction_left_goes_after_the_grace_period() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    compacted(&volume, 3).await;
    let report = gc(&world, false).await;
    assert_eq!(
        (report.volumes, report.packs_in_use, report.packs_waiting, report.packs_removed),
        (1, 1, 8, 0)
    );
    world.advance_hours(23);
    assert_eq!(gc(&world, false).await.packs_waiting, 8);
    world.advance_hours(1);
    let dry = gc(&world, true).await;
    let texts = |keys: &[Key]| keys.iter().map(Key::to_string).collect::<Vec<_>>();
    let before = texts(&keys(&world).await);
    assert_eq!((dry.packs_removed, dry.objects_removed, dry.would_remove.len()), (8, 9, 17));
    let report = gc(&world, false).await;
    assert_eq!(GcReport { dry_run: true, would_remove: dry.would_remove.clone(), ..report.clone() }, dry);
    assert_eq!((report.bytes_removed > 0, report.packs_waiting), (true, 0));
    let after = texts(&keys(&world).await);
    assert!(dry.would_remove.iter().all(|key| before.contains(key) && !after.contains(key)));
    // Name, first and newest manifest, and pack.
    assert_eq!(after.len(), 4);
    tags(&volume, range(0, 8), &[3; 8]).await;
    tags(&world.daemon(2).volumes.take_over(&name("vm")).await.unwrap(), range(0, 8), &[3; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_volume_goes_and_its_fork_stays() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let fork = volume.fork(&name("fork")).await.unwrap();
    volume.commit(MemoryCut::new(2, &[(8, 8, 2)]), SIZE).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    volume.delete().await.unwrap();
    for _ in 0..5 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    tags(&fork, range(0, 16), &[1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]).await;
    let left = keys(&world).await;
    // Name and manifest of the fork; pack of the origin.
    assert_eq!(left.len(), 3, "{left:?}");
    fork.delete().await.unwrap();
    for _ in 0..5 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    assert_eq!(keys(&world).await, []);
}

#[tokio::test(start_paused = true)]
async fn snapshots_keep_what_they_list_until_they_are_deleted() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    compacted(&volume, 3).await;
    for _ in 0..3 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    let point = StatePoint { volume: volume.id(), snapshot: Some(name("s")) };
    let view = world.daemon(2).volumes.view(&point).await.unwrap();
    compare(range(0, 8), &view.read(range(0, 8)).await.unwrap(), &[1; 8]);
    volume.delete_snapshot(&name("s")).await.unwrap();
    gc(&world, false).await;
    world.advance_hours(25);
    assert_eq!(gc(&world, false).await.packs_removed, 1);
    tags(&volume, range(0, 8), &[3; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_view_stays_readable_for_the_grace_period() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let view = volume.view().await.unwrap();
    compacted(&volume, 3).await;
    for _ in 0..23 {
        gc(&world, false).await;
        world.advance_hours(1);
    }
    gc(&world, false).await;
    compare(range(0, 8), &view.read(range(0, 8)).await.unwrap(), &[1; 8]);
}

#[tokio::test(start_paused = true)]
async fn a_commit_under_way_loses_nothing() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    world.objects.pause_before("manifests");
    let commit = {
        let volume = volume.clone();
        tokio::spawn(async move { volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await })
    };
    world.objects.paused().await;
    assert_eq!(gc(&world, false).await.packs_waiting, 1);
    world.advance_hours(2);
    world.objects.resume();
    commit.await.unwrap().unwrap();
    world.advance_hours(23);
    assert_eq!(gc(&world, false).await.packs_in_use, 1);
    tags(&volume, range(0, 8), &[1; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_saw_its_volume_deleted_by_another_host_knows_so_when_all_of_the_volume_is_collected() {
    let world = World::new();
    let (first, second) = (world.daemon(1), world.daemon(2));
    let volume = first.volumes.create(&name("vm"), SIZE).await.unwrap();
    let state = volume.state();
    second.volumes.take_over(&name("vm")).await.unwrap().delete().await.unwrap();
    let error = volume.confirm().await.unwrap_err();
    assert!(matches!(error, VolumeError::Deleted { .. }), "{error}");
    for _ in 0..5 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    assert_eq!(keys(&world).await, []);
    let again = world.daemon(1).volumes.resume(&state);
    assert!(matches!(again.loss(), Some(Loss::Fenced(_))), "{:?}", again.loss());
}

#[tokio::test(start_paused = true)]
async fn a_writer_of_a_volume_that_was_deleted_and_collected_writes_nothing_there_and_may_delete_it() {
    let world = World::new();
    let (first, second) = (world.daemon(1), world.daemon(2));
    let volume = first.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    second.volumes.take_over(&name("vm")).await.unwrap().delete().await.unwrap();
    for _ in 0..5 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    assert_eq!(keys(&world).await, []);
    // An empty store is no proof of a deletion, but a grave is.
    let error = volume.commit(MemoryCut::new(2, &[(0, 8, 1)]), SIZE).await.unwrap_err();
    assert!(matches!(error, VolumeError::Deleted { .. }), "{error}");
    volume.delete().await.unwrap();
    assert_eq!(keys(&world).await, []);
}
