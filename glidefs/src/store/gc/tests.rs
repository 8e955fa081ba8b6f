//! Garbage collection on a store in memory, beside writers, forks and other runs.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::time::Duration;

use super::*;
use crate::store::ids::VolumeId;
use crate::store::volume::tests::support::*;
use crate::store::volume::{StatePoint, VolumeError, VolumeWriter};
use crate::units::Seq;

const SIZE: u64 = 1 << 21;
const GRACE: Duration = Duration::from_hours(24);

async fn gc(world: &World, dry_run: bool) -> GcReport {
    let options = GcOptions { grace: GRACE, dry_run, alone: false };
    collect(world.daemon(9).volumes.store(), &*world.clock, &options).await.unwrap()
}

/// Keys of the store, without the marker that tests do without.
async fn keys(world: &World) -> Vec<Key> {
    let listing = world.daemon(9).volumes.store().list(Folder::All, None).await.unwrap();
    listing.objects.into_iter().map(|object| object.key).collect()
}

async fn compacted(volume: &VolumeWriter, tag: Tag) {
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, tag)]), SIZE).await.unwrap();
    }
    volume.compact().await.unwrap().unwrap();
    // What is on its way of a volume that goes on may be named by a manifest at any time.
    volume.release().await.unwrap();
}

#[tokio::test]
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
    let before = keys(&world).await;
    assert_eq!((dry.packs_removed, dry.objects_removed, dry.would_remove.len()), (8, 9, 17));
    let report = gc(&world, false).await;
    assert_eq!(GcReport { would_remove: dry.would_remove.clone(), ..report.clone() }, dry);
    assert_eq!((report.bytes_removed > 0, report.packs_waiting), (true, 0));
    let after = keys(&world).await;
    assert!(dry.would_remove.iter().all(|key| before.contains(key) && !after.contains(key)));
    // Name, first and newest manifest, pack, and what the run saw.
    assert_eq!(after.len(), 5);
    gc(&world, false).await;
    assert_eq!(keys(&world).await.len(), 4);
    tags(&volume, range(0, 8), &[3; 8]).await;
    tags(&world.daemon(2).volumes.take_over(&name("vm")).await.unwrap(), range(0, 8), &[3; 8]).await;
}

#[tokio::test]
async fn a_deleted_volume_goes_and_its_fork_stays() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let fork = volume.fork(&name("fork")).await.unwrap();
    volume.commit(MemoryCut::new(2, &[(8, 8, 2)]), SIZE).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    volume.delete().await.unwrap();
    for _ in 0..4 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    tags(&fork, range(0, 16), &[1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]).await;
    let left = keys(&world).await;
    // The name and the manifest of the fork, and the last manifest and the pack of its origin.
    assert_eq!(left.len(), 4, "{left:?}");
    fork.delete().await.unwrap();
    for _ in 0..5 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    assert_eq!(keys(&world).await, []);
}

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
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

/// Ten runs, days apart. Packs that were removed.
async fn gc_for_days(world: &World) -> u64 {
    let mut removed = 0;
    for _ in 0..10 {
        removed += gc(world, false).await.packs_removed;
        world.advance_hours(25);
    }
    removed
}

/// The manifest of `change` stands still for days on its way into the store, while garbage is collected.
async fn delayed<T: Send + 'static>(world: &World, change: impl Future<Output = T> + Send + 'static) -> T {
    world.objects.pause_before("manifests");
    let changing = tokio::spawn(change);
    world.objects.paused().await;
    assert_eq!(gc_for_days(world).await, 0);
    world.objects.resume();
    changing.await.unwrap()
}

#[tokio::test]
async fn a_manifest_that_was_on_its_way_for_days_finds_its_packs() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 2)]), SIZE).await.unwrap();
    let committing = volume.clone();
    let commit = async move { committing.commit(MemoryCut::new(2, &[(0, 4, 4)]), SIZE).await };
    delayed(&world, commit).await.unwrap();
    assert_eq!(gc_for_days(&world).await, 0);
    tags(&volume, range(0, 8), &[4, 4, 4, 4, 2, 2, 2, 2]).await;
}

#[tokio::test]
async fn a_manifest_of_a_process_that_ended_may_come_days_later() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 2)]), SIZE).await.unwrap();
    let before = volume.state();
    world.objects.fail_creations("manifests", 1, true);
    world.objects.refuse_to_list(Some("manifests"));
    let committing = volume.clone();
    let commit = async move { committing.commit(MemoryCut::new(2, &[(0, 4, 4)]), SIZE).await };
    delayed(&world, commit).await.unwrap_err();
    world.objects.refuse_to_list(None);
    drop(volume);
    // The next process begins days later as well, or another host.
    assert_eq!(gc_for_days(&world).await, 0);
    let volume = world.daemon(1).volumes.resume(&before);
    volume.confirm().await.unwrap();
    assert_eq!(volume.cut(), Seq(2));
    let expected = [4, 4, 4, 4, 2, 2, 2, 2];
    tags(&volume, range(0, 8), &expected).await;
    tags(&world.daemon(2).volumes.take_over(&name("vm")).await.unwrap(), range(0, 8), &expected).await;
}

#[tokio::test]
async fn a_merge_that_was_on_its_way_for_days_finds_its_packs() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(seq, 8, seq)]), SIZE).await.unwrap();
    }
    let merging = volume.clone();
    delayed(&world, async move { merging.compact().await }).await.unwrap().unwrap();
    assert_eq!(gc_for_days(&world).await, 8, "what was merged");
    tags(&volume, range(0, 16), &[0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8, 8]).await;
}

#[tokio::test]
async fn what_an_upload_that_failed_left_goes_after_a_later_manifest() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    world.objects.fail_creations("manifests", 1, false);
    volume.commit(MemoryCut::new(1, &[(0, 8, 2)]), SIZE).await.unwrap_err();
    assert_eq!(gc_for_days(&world).await, 0);
    volume.commit(MemoryCut::new(2, &[(0, 8, 4)]), SIZE).await.unwrap();
    // A writer that was paused since the upload may only now send the manifest that names that.
    assert_eq!(gc(&world, false).await.packs_removed, 0);
    assert_eq!(gc_for_days(&world).await, 1);
    tags(&volume, range(0, 8), &[4; 8]).await;
}

#[tokio::test]
async fn what_merging_left_of_the_last_hours_of_a_volume_goes_when_its_host_releases_the_volume() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, 3)]), SIZE).await.unwrap();
    }
    volume.compact().await.unwrap().unwrap();
    assert_eq!(gc_for_days(&world).await, 0);
    volume.release().await.unwrap();
    assert_eq!(gc_for_days(&world).await, 8);
    tags(&volume, range(0, 8), &[3; 8]).await;
}

#[tokio::test]
async fn a_merge_names_nothing_that_was_on_its_way_when_the_volume_was_released() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, seq)]), SIZE).await.unwrap();
    }
    world.objects.pause_before("manifests");
    let releasing = tokio::spawn({
        let volume = volume.clone();
        async move { volume.release().await }
    });
    world.objects.paused().await;
    let merging = tokio::spawn({
        let volume = volume.clone();
        async move { volume.compact().await }
    });
    let store = world.daemon(9).volumes.store().clone();
    let packs = async || store.list(Folder::Packs(volume.id()), None).await.unwrap().objects.len();
    while packs().await < 9 {
        tokio::task::yield_now().await;
    }
    world.objects.resume();
    releasing.await.unwrap().unwrap();
    merging.await.unwrap().unwrap().unwrap();
    // What the first try of the merge has made goes, with its inputs.
    assert_eq!(packs().await, 10);
    assert_eq!(gc_for_days(&world).await, 9);
    tags(&volume, range(0, 8), &[8; 8]).await;
}

#[tokio::test]
async fn a_fork_that_comes_while_a_run_looks_keeps_what_it_lists() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    // Everything that was not in use is due, and the run is between its first look and the removal.
    volume.snapshot(&name("s")).await.unwrap();
    compacted(&volume, 3).await;
    volume.delete_snapshot(&name("s")).await.unwrap();
    gc(&world, false).await;
    world.advance_hours(25);
    world.objects.pause_before("gc/");
    let store = world.daemon(9).volumes.store().clone();
    let clock = world.clock.clone();
    let run = tokio::spawn(async move { collect(&store, &*clock, &GcOptions::default()).await });
    world.objects.paused().await;
    // As if a fork that began when the packs were in use came only now.
    let old = world.daemon(2).volumes.store().manifest(volume.id(), 10).await.unwrap();
    let beginning = Manifest { volume: VolumeId([7; 16]), number: 1, cut: Seq(0), ..old.clone() };
    let _: Created = daemon.volumes.store().create_manifest(&beginning).await.unwrap();
    world.objects.resume();
    let report = run.await.unwrap().unwrap();
    assert_eq!((report.packs_removed, report.packs_in_use), (0, 10));
    let fork = daemon.volumes.acquire(beginning.volume, true).await.unwrap();
    tags(&fork, range(0, 8), &[3; 8]).await;
}

#[tokio::test]
async fn a_run_that_saw_a_pack_in_use_resets_its_time() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    compacted(&volume, 3).await;
    gc(&world, false).await;
    world.advance_hours(20);
    // In use again for a while.
    let old = daemon.volumes.store().manifest(volume.id(), 9).await.unwrap();
    let again = Manifest { volume: VolumeId([7; 16]), number: 1, ..old };
    let _: Created = daemon.volumes.store().create_manifest(&again).await.unwrap();
    assert_eq!(gc(&world, false).await.packs_in_use, 9);
    daemon.volumes.store().delete(&[Key::Manifest(again.volume, 1)]).await.unwrap();
    for hours in [4, 20] {
        world.advance_hours(hours);
        let report = gc(&world, false).await;
        assert_eq!((report.packs_removed, report.packs_waiting), (0, 8), "after {hours} hours");
    }
    world.advance_hours(4);
    assert_eq!(gc(&world, false).await.packs_removed, 8);
}

#[tokio::test]
async fn two_runs_at_once_remove_the_same_and_nothing_else() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for round in 0..6 {
        compacted(&volume, round * 2 + 1).await;
        for _ in 0..3 {
            tokio::join!(gc(&world, false), gc(&world, false), gc(&world, false));
            world.advance_hours(13);
        }
        tags(&volume, range(0, 8), &[round * 2 + 1; 8]).await;
    }
    for _ in 0..4 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    assert_eq!(keys(&world).await.len(), 3 + 6);
}

#[tokio::test]
async fn a_run_that_stops_anywhere_does_no_harm() {
    let mut stops = 0;
    for arrives in [false, true] {
        for requests in 0.. {
            let world = World::new();
            let daemon = world.daemon(1);
            let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
            let deleted = daemon.volumes.create(&name("deleted"), SIZE).await.unwrap();
            deleted.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
            deleted.delete().await.unwrap();
            compacted(&volume, 3).await;
            gc(&world, false).await;
            world.advance_hours(25);
            world.objects.end_after(requests, arrives);
            let options = GcOptions { grace: GRACE, ..GcOptions::default() };
            let run = collect(daemon.volumes.store(), &*world.clock, &options).await;
            if !world.objects.go_on() {
                assert_eq!(run.unwrap().packs_removed, 8);
                break;
            }
            stops += 1;
            run.unwrap_err();
            tags(&world.daemon(2).volumes.take_over(&name("vm")).await.unwrap(), range(0, 8), &[3; 8]).await;
            for _ in 0..4 {
                gc(&world, false).await;
                world.advance_hours(25);
            }
            assert_eq!(keys(&world).await.len(), 4, "stopped after {requests} requests");
        }
    }
    assert!(stops > 15, "{stops} stops");
}

#[tokio::test]
async fn what_cannot_be_read_keeps_what_it_may_list_and_observations_that_cannot_begin_anew() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    compacted(&volume, 3).await;
    gc(&world, false).await;
    world.advance_hours(25);
    let store = world.daemon(9).volumes.store().clone();
    let key = keys(&world).await.into_iter().find(|key| matches!(key, Key::Gc(_))).unwrap();
    store.delete(std::slice::from_ref(&key)).await.unwrap();
    let other = Key::Gc(name("other"));
    for key in [&key, &other] {
        let _: Created = store.create(key, &[vec![1; 50].into()]).await.unwrap();
    }
    let report = gc(&world, false).await;
    assert_eq!((report.packs_removed, report.packs_waiting), (0, 8));
    let left = keys(&world).await;
    assert!(left.contains(&other) && !left.contains(&key));
    world.advance_hours(25);
    let manifest = Key::Manifest(volume.id(), 100);
    let _: Created = store.create(&manifest, &[vec![1; 50].into()]).await.unwrap();
    let report = gc(&world, false).await;
    assert_eq!((report.packs_removed, report.packs_waiting, report.damaged), (0, 0, vec![manifest.clone()]));
    let options = GcOptions { grace: Duration::from_mins(5), ..GcOptions::default() };
    let error = collect(&store, &*world.clock, &options).await.unwrap_err();
    assert!(error.to_string().contains("stop all of them"), "{error}");
    store.delete(&[manifest]).await.unwrap();
    assert_eq!(gc(&world, false).await.packs_waiting, 8);
    world.advance_hours(1);
    let options = GcOptions { alone: true, ..options };
    assert_eq!(collect(&store, &*world.clock, &options).await.unwrap().packs_removed, 8);
}

/// Puts bytes that are nothing in the place of `key`.
async fn damage(world: &World, key: &Key) {
    let store = world.daemon(9).volumes.store().clone();
    store.delete(std::slice::from_ref(key)).await.unwrap();
    let _: Created = store.create(key, &[vec![1; 50].into()]).await.unwrap();
}

#[tokio::test]
async fn one_damaged_manifest_stops_the_collection_of_its_volume_only() {
    let world = World::new();
    let daemon = world.daemon(1);
    let origin = daemon.volumes.create(&name("origin"), SIZE).await.unwrap();
    origin.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    // The fork uses the packs that its origin compacts away.
    let fork = origin.fork(&name("fork")).await.unwrap();
    compacted(&origin, 3).await;
    compacted(&fork, 5).await;
    fork.snapshot(&name("s")).await.unwrap();
    let other = daemon.volumes.create(&name("other"), SIZE).await.unwrap();
    compacted(&other, 7).await;
    world.advance_hours(1);
    gc(&world, false).await;
    let of_fork = world.daemon(9).volumes.store().list(Folder::Volume(fork.id()), None).await.unwrap();
    let newest = Key::Manifest(fork.id(), fork.state().number);
    let intact = world.daemon(9).volumes.store().get(&newest, 1 << 20).await.unwrap();
    damage(&world, &newest).await;
    for _ in 0..3 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    let report = gc(&world, false).await;
    assert_eq!(report.damaged, std::slice::from_ref(&newest));
    let left = keys(&world).await;
    assert!(of_fork.objects.iter().all(|object| left.contains(&object.key)));
    tags(&other, range(0, 8), &[7; 8]).await;
    let packs = |id| left.iter().filter(|key| matches!(key, Key::Pack(of, _) if *of == id)).count();
    // Of the origin what it has, and the pack that the fork had from it; of the other volume what it has.
    assert_eq!((packs(other.id()), packs(origin.id())), (1, 2), "{left:?}");
    // Restored from a copy of the store, it is all there.
    let store = world.daemon(9).volumes.store().clone();
    store.delete(std::slice::from_ref(&newest)).await.unwrap();
    let _: Created = store.create(&newest, &[intact]).await.unwrap();
    tags(&world.daemon(2).volumes.take_over(&name("fork")).await.unwrap(), range(0, 8), &[5; 8]).await;
}

#[tokio::test]
async fn a_fork_whose_only_manifest_is_damaged_keeps_what_was_there_before_it() {
    let world = World::new();
    let daemon = world.daemon(1);
    let origin = daemon.volumes.create(&name("origin"), SIZE).await.unwrap();
    compacted(&origin, 1).await;
    let fork = origin.fork(&name("fork")).await.unwrap();
    damage(&world, &Key::Manifest(fork.id(), 1)).await;
    world.advance_hours(1);
    compacted(&origin, 3).await;
    for _ in 0..3 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    let left = keys(&world).await;
    let packs = left.iter().filter(|key| matches!(key, Key::Pack(of, _) if *of == origin.id())).count();
    // Nine from before the fork, and one of the nine after.
    assert_eq!(packs, 9 + 1);
}

#[tokio::test]
async fn a_damaged_snapshot_keeps_what_its_volume_has() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    compacted(&volume, 3).await;
    let snapshot = Key::Snapshot(volume.id(), name("s"));
    damage(&world, &snapshot).await;
    for _ in 0..3 {
        assert_eq!(gc(&world, false).await.damaged, std::slice::from_ref(&snapshot));
        world.advance_hours(25);
    }
    let packs = keys(&world).await.iter().filter(|key| matches!(key, Key::Pack(..))).count();
    assert_eq!(packs, 10);
}

#[tokio::test]
async fn a_writer_of_a_volume_that_was_deleted_and_collected_notices() {
    let world = World::new();
    let (first, second) = (world.daemon(1), world.daemon(2));
    let volume = first.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    second.volumes.take_over(&name("vm")).await.unwrap().delete().await.unwrap();
    for _ in 0..4 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    assert_eq!(keys(&world).await, []);
    let error = volume.read(range(0, 8)).await.unwrap_err();
    assert!(matches!(error, VolumeError::Deleted { .. }), "{error}");
    let error = volume.commit(MemoryCut::new(2, &[(0, 8, 1)]), SIZE).await.unwrap_err();
    assert!(matches!(error, VolumeError::Deleted { .. }), "{error}");
    assert_eq!(keys(&world).await, []);
}

/// A run that is between its look at what is there and the listing of the ways to deleted volumes.
async fn paused_run(world: &World) -> tokio::task::JoinHandle<Result<GcReport, GcError>> {
    world.objects.pause_before("gc/");
    let (store, clock) = (world.daemon(9).volumes.store().clone(), world.clock.clone());
    let run = tokio::spawn(async move { collect(&store, &*clock, &GcOptions::default()).await });
    world.objects.paused().await;
    run
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_given_to_another_volume_during_a_run_stays() {
    let world = World::new();
    let daemon = world.daemon(1);
    // The deletion stops before the name is free.
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    world.objects.end_after(3, false);
    volume.delete().await.unwrap_err();
    assert!(world.objects.go_on());
    assert_eq!(daemon.volumes.find(&name("vm")).await.unwrap(), Some(volume.id()));
    world.advance_hours(25);
    gc(&world, false).await;
    daemon.volumes.create(&name("other"), SIZE).await.unwrap().delete().await.unwrap();
    world.advance_hours(25);
    // A run has found the name that is left, and still ends another deletion.
    world.objects.pause_before("manifests/");
    let (store, clock) = (world.daemon(9).volumes.store().clone(), world.clock.clone());
    let run = tokio::spawn(async move { collect(&store, &*clock, &GcOptions::default()).await });
    world.objects.paused().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let next = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    world.objects.resume();
    run.await.unwrap().unwrap();
    assert_eq!(daemon.volumes.find(&name("vm")).await.unwrap(), Some(next.id()));
}

#[tokio::test]
async fn a_volume_that_was_made_and_deleted_during_a_run_can_be_had_back() {
    let world = World::new();
    let daemon = world.daemon(1);
    let run = paused_run(&world).await;
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.delete().await.unwrap();
    world.objects.resume();
    run.await.unwrap().unwrap();
    assert_eq!(daemon.volumes.deleted(None).await.unwrap().len(), 1);
    let back = daemon.volumes.undelete(&name("vm"), &name("back")).await.unwrap();
    tags(&back, range(0, 8), &[1; 8]).await;
    back.delete().await.unwrap();
    for _ in 0..5 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    assert_eq!(keys(&world).await, [], "a way to nowhere goes");
}

#[tokio::test]
async fn a_damaged_manifest_beside_a_void_mark_of_deletion_keeps_its_volume() {
    let world = World::new();
    let first = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    first.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let second = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    let mark = crate::store::format::Tombstone {
        volume: second.id(),
        deleted_unix_millis: 1,
        writer: crate::store::WriterId([1; 16]),
    };
    let store = world.daemon(9).volumes.store().clone();
    let _: Created = store.create(&Key::Tombstone(second.id()), &[mark.encode().into()]).await.unwrap();
    let newest = Key::Manifest(second.id(), second.state().number);
    let intact = store.get(&newest, 1 << 20).await.unwrap();
    damage(&world, &newest).await;
    let before = keys(&world).await;
    for _ in 0..4 {
        let report = gc(&world, false).await;
        assert_eq!((report.damaged, report.packs_removed), (vec![newest.clone()], 0));
        world.advance_hours(25);
    }
    assert_eq!(keys(&world).await, before);
    store.delete(std::slice::from_ref(&newest)).await.unwrap();
    let _: Created = store.create(&newest, &[intact]).await.unwrap();
    tags(&world.daemon(3).volumes.take_over(&name("vm")).await.unwrap(), range(0, 8), &[1; 8]).await;
}
