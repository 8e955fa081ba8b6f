//! Runs beside changes of volumes, beside other runs, and runs stopped half-way.

use super::*;
use crate::store::client::Created;
use crate::store::format::{Manifest, NameRecord, PackRef};
use crate::store::ids::VolumeId;
use crate::units::Seq;

#[tokio::test(start_paused = true)]
async fn a_fork_that_comes_while_a_run_looks_keeps_what_it_lists() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    // Everything unused is due, and the run is between its first scan and its last one.
    volume.snapshot(&name("s")).await.unwrap();
    compacted(&volume, 3).await;
    volume.delete_snapshot(&name("s")).await.unwrap();
    gc(&world, false).await;
    world.advance_hours(25);
    world.objects.pause_before("gc/removal-");
    let store = world.daemon(9).volumes.store().clone();
    let clock = world.clock.clone();
    let run = tokio::spawn(async move { collect(&store, &*clock, &GcOptions::default()).await });
    world.objects.paused().await;
    // As if a fork, begun when the packs were in use, arrived only now.
    let old = world.daemon(2).volumes.store().manifest(volume.id(), 10).await.unwrap();
    let beginning = Manifest { volume: VolumeId([7; 16]), number: 1, cut: Seq(0), ..old.clone() };
    let _: Created = daemon.volumes.store().create_manifest(&beginning).await.unwrap();
    world.objects.resume();
    let report = run.await.unwrap().unwrap();
    assert_eq!((report.packs_removed, report.packs_in_use), (0, 10));
    let fork = daemon.volumes.acquire(beginning.volume, true).await.unwrap();
    tags(&fork, range(0, 8), &[3; 8]).await;
}

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
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
            // Name, first manifest, newest manifest with its fence, and pack.
            assert_eq!(keys(&world).await.len(), 5, "stopped after {requests} requests");
        }
    }
    assert!(stops > 15, "{stops} stops");
}

/// A run paused between the scan and the listing of the objects below `deleted/`, before it creates the last part of its observation.
async fn paused_run(world: &World) -> tokio::task::JoinHandle<Result<GcReport, GcError>> {
    world.objects.pause_before("-2-2");
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
    // A run has found the leftover name, and is still ending another deletion.
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

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
async fn a_name_that_a_run_takes_from_a_volume_that_is_gone_stays_with_the_next_volume() {
    let mut removals = 0;
    for reads_before in 0..16 {
        let world = World::new();
        let daemon = world.daemon(1);
        let first = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
        let gone = first.id();
        first.delete().await.unwrap();
        world.advance_hours(25);
        gc(&world, false).await;
        // As after a deletion that stopped before the name was removed.
        let left = NameRecord { volume: gone, created_unix_millis: 0 };
        let _: Created = daemon.volumes.store().create_name(&name("vm"), &left).await.unwrap();
        // The run is slow to read, and the daemon of the run gives the name to a new volume meanwhile.
        let mut reads = vec![0; reads_before];
        reads.push(10_000);
        world.objects.next_reads_for(&reads);
        let (store, clock) = (daemon.volumes.store().clone(), world.clock.clone());
        let run = tokio::spawn(async move { collect(&store, &*clock, &GcOptions::default()).await });
        tokio::time::sleep(Duration::from_millis(1)).await;
        let second = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
        removals += run.await.unwrap().unwrap().objects_removed;
        let found = world.daemon(2).volumes.find(&name("vm")).await.unwrap();
        assert_eq!(found, Some(second.id()), "a volume that nobody can name, after {reads_before} reads");
    }
    assert!(removals > 0, "no run removed the name");
}

#[tokio::test(start_paused = true)]
async fn a_run_says_whether_a_later_run_has_something_to_do() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    assert!(!gc(&world, false).await.is_unfinished);
    compacted(&volume, 3).await;
    daemon.volumes.create(&name("deleted"), SIZE).await.unwrap().delete().await.unwrap();
    let mut runs = Vec::new();
    for _ in 0..6 {
        let report = gc(&world, false).await;
        runs.push((report.packs_waiting, report.is_unfinished));
        world.advance_hours(25);
    }
    // The deletion becomes final in the second run, and what is left of the deleted volume goes in the third run.
    assert_eq!(runs, [(8, true), (0, true), (0, true), (0, false), (0, false), (0, false)]);
    // What waits for the next manifest waits for a change.
    for seq in 9..=16 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, seq)]), SIZE).await.unwrap();
    }
    volume.compact().await.unwrap().unwrap();
    assert!(gc(&world, false).await.is_unfinished, "manifests go later");
    world.advance_hours(25);
    let report = gc(&world, false).await;
    assert_eq!((report.packs_waiting, report.is_unfinished), (8, false));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_stood_still_for_days_can_be_undone() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    world.objects.pause_before("manifests");
    let deleting = tokio::spawn(async move { volume.delete().await });
    world.objects.paused().await;
    world.advance_hours(25);
    assert_eq!(gc(&world, false).await.objects_removed, 1, "the way to the deleted volume");
    world.objects.resume();
    deleting.await.unwrap().unwrap();
    let back = world.daemon(2).volumes.undelete(&name("vm"), &name("vm")).await.unwrap();
    tags(&back, range(0, 8), &[1; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn an_observation_that_arrives_days_late_is_not_believed_alone() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, seq)]), SIZE).await.unwrap();
    }
    let packs = volume.view().await.unwrap().manifest().packs.clone();
    // A run that ended then had seen the packs unused.
    world.advance_hours(1);
    let since_unix_millis = world.clock.unix_millis();
    let candidate = |pack: &PackRef| Candidate { volume: volume.id(), pack: pack.pack, since_unix_millis };
    let late = Candidates(packs.iter().map(candidate).collect());
    world.advance_hours(25);
    assert_eq!(gc(&world, false).await.packs_in_use, 8);
    let key = Key::Gc(name("candidates-00000000000000000000000000000001-1-1"));
    let _: Created = world.daemon(9).volumes.store().create(&key, &[late.encode().into()]).await.unwrap();
    volume.compact().await.unwrap().unwrap();
    volume.release().await.unwrap();
    let report = gc(&world, false).await;
    assert_eq!((report.packs_removed, report.packs_waiting), (0, 8));
}

/// A volume with `count` packs that no manifest names.
async fn with_garbage(world: &World, count: u64) -> VolumeWriter {
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    for number in 0..count {
        let pack = Key::Pack(volume.id(), PackId((u128::from(number)).to_be_bytes()));
        let _: Created = daemon.volumes.store().create(&pack, &["garbage".into()]).await.unwrap();
    }
    volume.release().await.unwrap();
    volume
}

#[tokio::test(start_paused = true)]
async fn any_number_of_packs_goes_in_one_run() {
    let world = World::new();
    let count = DUE_MAX as u64 + 100;
    with_garbage(&world, count).await;
    assert_eq!(gc(&world, false).await.packs_waiting, count);
    world.advance_hours(25);
    let dry = gc(&world, true).await;
    assert_eq!((dry.packs_removed, dry.packs_waiting), (count, 0));
    let report = gc(&world, false).await;
    assert_eq!((report.packs_removed, report.packs_waiting), (count, 0));
    let left = all_keys(&world).await;
    assert!(!left.iter().any(|key| matches!(key, Key::Pack(..))), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn an_observation_with_a_part_missing_says_nothing_and_one_with_a_damaged_part_nothing_of_its_packs() {
    let world = World::new();
    with_garbage(&world, 50).await;
    let store = world.daemon(9).volumes.store().clone();
    gc(&world, false).await;
    world.advance_hours(25);
    let parts = observations(&store).await.unwrap();
    // The first part is empty, and the last one has two packs.
    assert_eq!(parts.len(), 5);
    store.delete(&parts[..1]).await.unwrap();
    let report = gc(&world, false).await;
    assert_eq!((report.packs_removed, report.packs_waiting), (0, 50));
    let parts = observations(&store).await.unwrap();
    store.delete(&parts[1..2]).await.unwrap();
    let _: Created = store.create(&parts[1], &["damaged".into()]).await.unwrap();
    world.advance_hours(25);
    let report = gc(&world, false).await;
    assert_eq!((report.packs_removed, report.packs_waiting), (34, 16));
    world.advance_hours(25);
    assert_eq!(gc(&world, false).await.packs_removed, 16);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ended_half_way_through_its_look_begins_no_time_anew_and_its_parts_go_after_a_day() {
    let world = World::new();
    with_garbage(&world, 50).await;
    let store = world.daemon(9).volumes.store().clone();
    gc(&world, false).await;
    let whole = observations(&store).await.unwrap();
    world.advance_hours(13);
    // Three parts, of which the first one is empty, arrive; the fourth one does not.
    let parts_of_gc = || async {
        let objects = store.list(Folder::Gc, None).await.unwrap();
        objects.into_iter().map(|object| object.key).filter(|key| !whole.contains(key)).collect::<Vec<_>>()
    };
    world.objects.pause_before("-4-0");
    let (other, clock) = (store.clone(), world.clock.clone());
    let run = tokio::spawn(async move { collect(&other, &*clock, &GcOptions::default()).await });
    world.objects.paused().await;
    run.abort();
    run.await.unwrap_err();
    world.objects.resume();
    assert_eq!(parts_of_gc().await.len(), 3);
    assert_eq!(observations(&store).await.unwrap(), whole);
    world.advance_hours(11);
    let report = gc(&world, false).await;
    assert_eq!((report.packs_removed, report.packs_waiting), (50, 0));
    // The run may still have been under way.
    let dead = |keys: &[Key]| keys.iter().filter(|key| key.to_string().ends_with("-0")).count();
    assert_eq!(dead(&parts_of_gc().await), 3 + 4);
    world.advance_hours(24);
    gc(&world, false).await;
    assert_eq!(dead(&parts_of_gc().await), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_observations_another_run_removes_meanwhile_begins_anew() {
    let world = World::new();
    let daemon = world.daemon(1);
    with_garbage(&world, 50).await;
    gc(&world, false).await;
    world.advance_hours(25);
    let store = daemon.volumes.store().clone();
    world.objects.pause_before("-1-0");
    let clock = world.clock.clone();
    let run = tokio::spawn(async move { collect(&store, &*clock, &GcOptions::default()).await });
    world.objects.paused().await;
    assert_eq!(gc(&world, false).await.packs_removed, 50);
    world.objects.resume();
    let report = run.await.unwrap().unwrap();
    assert_eq!((report.packs_removed, report.packs_waiting), (0, 0));
}
