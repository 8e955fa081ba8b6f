//! Objects that list packs which may have been unused for a time: rescues, forks, snapshots and rollbacks, sent or taken up late.

use std::sync::Arc;

use super::late::{gc_for_days, merged_after_a_snapshot};
use super::*;
use crate::store::client::Created;
use crate::store::scripted::ManualClock;

#[tokio::test(start_paused = true)]
async fn a_rescue_beside_a_run_that_stands_still_before_its_removals_is_refused_or_finds_its_packs() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, seq)]), SIZE).await.unwrap();
    }
    // A run creates the last manifest of this volume between the last look at uses and the removals.
    world.daemon(3).volumes.create(&name("other"), SIZE).await.unwrap().delete().await.unwrap();
    let other = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    other.compact().await.unwrap().unwrap();
    other.release().await.unwrap();
    assert_eq!(gc(&world, false).await.packs_waiting, 8);
    world.advance_hours(25);
    world.objects.pause_before("manifests/");
    let (store, clock) = (world.daemon(9).volumes.store().clone(), world.clock.clone());
    let run = tokio::spawn(async move { collect(&store, &*clock, &GcOptions::default()).await });
    world.objects.paused().await;
    let rescued = volume.fork_known(&name("known"), None).await;
    world.objects.resume();
    assert_eq!(run.await.unwrap().unwrap().packs_removed, 8);
    match rescued {
        Ok(fork) => tags(&fork, range(0, 8), &[8; 8]).await,
        Err(error) => {
            assert!(matches!(error, VolumeError::MayGo { .. }), "{error}");
            let error = volume.fork_known(&name("known"), None).await.unwrap_err();
            assert!(matches!(error, VolumeError::Gone { .. }), "{error}");
        }
    }
    assert_eq!(world.daemon(2).volumes.find(&name("known")).await.unwrap(), None);
    assert!(!keys(&world).await.iter().any(|key| key.to_string().contains("removal-")));
}

/// Snapshot `s`, made at first, arrives again when its packs have been removed.
pub(super) async fn late_snapshot(world: &World) -> VolumeWriter {
    let volume = merged_after_a_snapshot(world).await;
    let store = world.daemon(9).volumes.store().clone();
    let Key::Snapshot(_, key) = snapshot_key(world, volume.id()).await else { unreachable!() };
    let kept = store.snapshot(volume.id(), &key).await.unwrap();
    volume.delete_snapshot(&name("s")).await.unwrap();
    volume.release().await.unwrap();
    assert_eq!(gc_for_days(world).await, 8);
    assert_eq!(store.create_snapshot(&kept).await.unwrap(), Created::Created);
    volume
}

#[tokio::test(start_paused = true)]
async fn a_rollback_to_a_snapshot_that_arrived_after_its_packs_were_removed_changes_nothing() {
    let world = World::new();
    let volume = late_snapshot(&world).await;
    for _ in 0..2 {
        let error = volume.rollback(&name("s")).await.unwrap_err();
        assert!(matches!(error, VolumeError::Gone { .. }), "{error}");
        tags(&volume, range(0, 16), &[9; 16]).await;
    }
    tags(&world.daemon(2).volumes.take_over(&name("vm")).await.unwrap(), range(0, 16), &[9; 16]).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_whose_name_has_a_snapshot_without_its_packs_is_not_taken_for_made() {
    let world = World::new();
    let volume = late_snapshot(&world).await;
    let error = volume.snapshot(&name("s")).await.unwrap_err();
    assert!(matches!(error, VolumeError::SnapshotBroken { .. }), "{error}");
    volume.delete_snapshot(&name("s")).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    let error = volume.snapshot(&name("s")).await.unwrap_err();
    assert!(matches!(error, VolumeError::SnapshotExists { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_run_reports_packs_that_are_listed_and_gone() {
    let world = World::new();
    let volume = late_snapshot(&world).await;
    let damaged = gc(&world, false).await.damaged;
    let is_own = |key: &String| matches!(Key::parse(key), Some(Key::Pack(of, _)) if of == volume.id());
    assert!(damaged.iter().all(is_own), "{damaged:?}");
    assert_eq!(damaged.len(), 8);
    volume.delete_snapshot(&name("s")).await.unwrap();
    assert_eq!(gc(&world, false).await.damaged, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_fork_by_a_host_whose_clock_stood_still_lists_no_pack_that_is_gone() {
    for from in [None, Some(name("s"))] {
        let world = World::new();
        let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
        for seq in 1..=8 {
            volume.commit(MemoryCut::new(seq, &[(0, 8, seq)]), SIZE).await.unwrap();
        }
        volume.snapshot(&name("s")).await.unwrap();
        let origin = StatePoint { volume: volume.id(), snapshot: from };
        let frozen = Arc::<ManualClock>::default();
        let forker = world.daemon_with_clock(2, frozen).volumes;
        world.objects.pause_before("names/");
        let forking = tokio::spawn(async move { forker.fork(&origin, &name("fork")).await });
        world.objects.paused().await;
        volume.compact().await.unwrap().unwrap();
        volume.delete_snapshot(&name("s")).await.unwrap();
        volume.release().await.unwrap();
        assert_eq!(gc_for_days(&world).await, 8);
        world.objects.resume();
        let error = forking.await.unwrap().unwrap_err();
        assert!(matches!(error, VolumeError::Gone { .. }), "{error}");
        assert_eq!(world.daemon(3).volumes.find(&name("fork")).await.unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fork_of_a_state_that_is_not_the_newest_any_more_is_made_while_its_packs_are_there() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let origin = StatePoint { volume: volume.id(), snapshot: None };
    let forker = world.daemon(2).volumes;
    world.objects.pause_before("names/");
    let forking = tokio::spawn(async move { forker.fork(&origin, &name("fork")).await });
    world.objects.paused().await;
    volume.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap();
    world.objects.resume();
    tags(&forking.await.unwrap().unwrap(), range(0, 8), &[1; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_by_a_host_whose_clock_stood_still_lists_no_pack_that_is_gone() {
    let world = World::new();
    let frozen = world.daemon_with_clock(1, Arc::default());
    let volume = frozen.volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, seq)]), SIZE).await.unwrap();
    }
    world.objects.pause_before("snapshots/");
    let keeping = tokio::spawn({
        let volume = volume.clone();
        async move { volume.snapshot(&name("s")).await }
    });
    world.objects.paused().await;
    let other = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    world.advance_hours(5);
    other.compact().await.unwrap().unwrap();
    other.release().await.unwrap();
    assert_eq!(gc_for_days(&world).await, 8);
    world.objects.resume();
    let error = keeping.await.unwrap().unwrap_err();
    assert!(matches!(error, VolumeError::Fenced(_)), "{error}");
    assert_eq!(other.snapshots().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_by_a_host_whose_clock_stood_still_lists_no_pack_that_is_gone() {
    let world = World::new();
    drop(merged_after_a_snapshot(&world).await);
    let volume = world.daemon_with_clock(1, Arc::default()).volumes.take_over(&name("vm")).await.unwrap();
    world.objects.pause_before("manifests");
    let rolling_back = tokio::spawn({
        let volume = volume.clone();
        async move { volume.rollback(&name("s")).await }
    });
    world.objects.paused().await;
    world.daemon(2).volumes.delete_snapshot(volume.id(), &name("s")).await.unwrap();
    assert_eq!(gc_for_days(&world).await, 8);
    world.objects.resume();
    let error = rolling_back.await.unwrap().unwrap_err();
    assert!(matches!(error, VolumeError::Gone { .. }), "{error}");
    tags(&volume, range(0, 16), &[9; 16]).await;
}

#[tokio::test(start_paused = true)]
async fn a_fork_that_arrived_after_its_packs_were_removed_is_not_opened() {
    let world = World::new();
    let volume = merged_after_a_snapshot(&world).await;
    let point = StatePoint { volume: volume.id(), snapshot: Some(name("s")) };
    let fork = world.daemon(2).volumes.fork(&point, &name("fork")).await.unwrap();
    let store = world.daemon(9).volumes.store().clone();
    let late = store.manifest(fork.id(), 1).await.unwrap();
    tags(&world.daemon(3).volumes.take_over(&name("fork")).await.unwrap(), range(0, 2), &[0, 1]).await;
    world.daemon(3).volumes.take_over(&name("fork")).await.unwrap().delete().await.unwrap();
    volume.delete_snapshot(&name("s")).await.unwrap();
    volume.release().await.unwrap();
    assert_eq!(gc_for_days(&world).await, 8);
    assert_eq!(store.create_manifest(&late).await.unwrap(), Created::Created);
    let error = world.daemon(3).volumes.acquire(fork.id(), true).await.unwrap_err();
    assert!(matches!(error, VolumeError::Gone { .. }), "{error}");
}

/// Bytes of a removal record of `packs`.
fn record_of(volume: VolumeId, packs: &[PackId]) -> Vec<u8> {
    let candidate = |pack: &PackId| Candidate { volume, pack: *pack, since_unix_millis: 1 };
    Candidates(packs.iter().map(candidate).collect()).encode()
}

#[tokio::test(start_paused = true)]
async fn a_record_of_a_run_that_ended_stays_as_long_as_its_packs_and_refuses_those_who_would_rely_on_them() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let pack = volume.view().await.unwrap().manifest().packs[0].pack;
    let store = world.daemon(9).volumes.store().clone();
    let key = Key::Gc(name("removal-00000000000000000000000000000001"));
    let record = record_of(volume.id(), &[pack]);
    let _: Created = store.create(&key, &[record.into()]).await.unwrap();
    assert_eq!(gc_for_days(&world).await, 0, "a record alone removes nothing");
    for _ in 0..2 {
        let error = volume.fork_known(&name("known"), None).await.unwrap_err();
        assert!(matches!(error, VolumeError::MayGo { .. }), "{error}");
    }
    let report = gc(&world, false).await;
    assert_eq!((report.stale_records, report.damaged), (vec![key.to_string()], vec![]));
    tags(&volume, range(0, 8), &[1; 8]).await;
    // The fork stays for another try. Stands for a rescue whose host ended before the fork.
    let known = world.daemon(1).volumes.find(&name("known")).await.unwrap().unwrap();
    store.delete(&[Key::Manifest(known, 1), Key::Name(name("known"))]).await.unwrap();
    volume.delete().await.unwrap();
    for _ in 0..5 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    assert_eq!(keys(&world).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_removes_nothing_and_lets_nobody_rely_on_a_pack() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let pack = volume.view().await.unwrap().manifest().packs[0].pack;
    let store = world.daemon(9).volumes.store().clone();
    let intact = record_of(volume.id(), &[pack]);
    for round in 0..24 {
        let mut bytes = intact.clone();
        match round % 3 {
            0 => bytes[round * 3] ^= 1 << (round % 8),
            1 => bytes.truncate(bytes.len() * round / 24),
            _ => bytes.extend(vec![0; round]),
        }
        let key = Key::Gc(name("removal-00000000000000000000000000000001"));
        let _: Created = store.create(&key, &[bytes.into()]).await.unwrap();
        let report = gc(&world, false).await;
        world.advance_hours(25);
        assert_eq!((report.packs_removed, report.damaged), (0, vec![key.to_string()]), "round {round}");
        let error = volume.fork_known(&name("known"), None).await.unwrap_err();
        assert!(matches!(error, VolumeError::MayGo { .. }), "{error}");
        store.delete(&[key]).await.unwrap();
    }
    assert_eq!(gc(&world, false).await.damaged, [""; 0]);
    tags(&volume.fork_known(&name("known"), None).await.unwrap(), range(0, 8), &[1; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pack_that_a_rescue_used_between_two_runs_waits_anew_when_it_goes_out_of_use() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(seq, 8, seq)]), SIZE).await.unwrap();
    }
    let other = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    other.compact().await.unwrap().unwrap();
    other.release().await.unwrap();
    assert_eq!(gc(&world, false).await.packs_waiting, 8);
    world.advance_hours(25);
    let known = volume.fork_known(&name("known"), None).await.unwrap();
    let origin = StatePoint { volume: known.id(), snapshot: None };
    let forker = world.daemon(3).volumes;
    world.objects.pause_before("names/");
    let forking = tokio::spawn(async move { forker.fork(&origin, &name("fork")).await });
    world.objects.paused().await;
    known.compact().await.unwrap().unwrap();
    assert_eq!(gc(&world, false).await.packs_removed, 0);
    world.objects.resume();
    let expected = [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8, 8];
    tags(&forking.await.unwrap().unwrap(), range(1, 15), &expected).await;
    world.daemon(3).volumes.take_over(&name("fork")).await.unwrap().delete().await.unwrap();
    known.release().await.unwrap();
    assert_eq!(gc_for_days(&world).await, 8, "the packs wait once more, not for ever");
}
