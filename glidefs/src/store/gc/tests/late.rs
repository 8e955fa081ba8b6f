//! Manifests under way for days, while garbage is collected.

use std::sync::Arc;

use super::*;
use crate::store::client::Created;
use crate::store::scripted::ManualClock;
use crate::units::Seq;

/// Ten runs, days apart. Returns the number of removed packs.
pub(super) async fn gc_for_days(world: &World) -> u64 {
    let mut removed = 0;
    for _ in 0..10 {
        removed += gc(world, false).await.packs_removed;
        world.advance_hours(25);
    }
    removed
}

/// The manifest of `change` is under way for days, while garbage is collected.
async fn delayed<T: Send + 'static>(world: &World, change: impl Future<Output = T> + Send + 'static) -> T {
    world.objects.pause_before("manifests");
    let changing = tokio::spawn(change);
    world.objects.paused().await;
    assert_eq!(gc_for_days(world).await, 0);
    world.objects.resume();
    changing.await.unwrap()
}

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
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
    // The next process begins days later as well, or another host does.
    assert_eq!(gc_for_days(&world).await, 0);
    let volume = world.daemon(1).volumes.resume(&before);
    volume.confirm().await.unwrap();
    assert_eq!(volume.cut(), Seq(2));
    let expected = [4, 4, 4, 4, 2, 2, 2, 2];
    tags(&volume, range(0, 8), &expected).await;
    tags(&world.daemon(2).volumes.take_over(&name("vm")).await.unwrap(), range(0, 8), &expected).await;
}

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
async fn a_late_manifest_with_a_number_that_was_freed_does_not_say_that_no_manifest_is_on_its_way() {
    let world = World::new();
    let store = world.daemon(9).volumes.store().clone();
    world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let volume = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    for seq in 1..=2 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, seq)]), SIZE).await.unwrap();
    }
    // Stands for the manifest of another writer, which wanted the same number and is under way for days.
    let late = store.manifest(volume.id(), 3).await.unwrap();
    world.advance_hours(25);
    assert_eq!(gc(&world, false).await.objects_removed, 1);
    volume.confirm().await.unwrap();
    world.objects.pause_before("manifests");
    let committing = tokio::spawn({
        let volume = volume.clone();
        async move { volume.commit(MemoryCut::new(3, &[(0, 8, 3)]), SIZE).await }
    });
    world.objects.paused().await;
    world.advance_hours(5);
    assert_eq!(store.create_manifest(&late).await.unwrap(), Created::Created);
    assert_eq!(gc_for_days(&world).await, 0);
    world.objects.resume();
    committing.await.unwrap().unwrap();
    tags(&volume, range(0, 8), &[3; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_stood_still_with_its_clock_commits_nothing_onto_a_number_that_was_freed() {
    let world = World::new();
    let daemon = world.daemon_with_clock(1, Arc::<ManualClock>::default());
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    world.objects.pause_before("manifests");
    let committing = tokio::spawn({
        let volume = volume.clone();
        async move { volume.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await }
    });
    world.objects.paused().await;
    let taken = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    for seq in 3..=5 {
        taken.commit(MemoryCut::new(seq, &[(0, 8, seq)]), SIZE).await.unwrap();
    }
    gc_for_days(&world).await;
    world.objects.resume();
    let committed = committing.await.unwrap();
    assert!(matches!(committed, Err(VolumeError::Fenced(_))), "{committed:?}");
    tags(&taken, range(0, 8), &[5; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn an_opening_that_stood_still_does_not_go_on_from_a_number_that_was_freed() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    world.objects.pause_before("fences");
    let opener = world.daemon(2).volumes;
    let opening = tokio::spawn(async move { opener.take_over(&name("vm")).await });
    world.objects.paused().await;
    for seq in 2..=3 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, seq)]), SIZE).await.unwrap();
    }
    world.advance_hours(25);
    assert_eq!(gc(&world, false).await.objects_removed, 2);
    world.objects.resume();
    let opened = opening.await.unwrap().unwrap();
    tags(&opened, range(0, 8), &[3; 8]).await;
    opened.commit(MemoryCut::new(4, &[(0, 4, 4)]), SIZE).await.unwrap();
    tags(
        &world.daemon(3).volumes.take_over(&name("vm")).await.unwrap(),
        range(0, 8),
        &[4, 4, 4, 4, 3, 3, 3, 3],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_opening_that_stood_still_does_not_begin_a_volume_that_is_gone_anew() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    world.objects.pause_before("manifests");
    let opener = world.daemon(2).volumes;
    let opening = tokio::spawn(async move { opener.take_over(&name("vm")).await });
    world.objects.paused().await;
    volume.delete().await.unwrap();
    gc_for_days(&world).await;
    assert_eq!(keys(&world).await, []);
    world.objects.resume();
    let error = opening.await.unwrap().unwrap_err();
    assert!(matches!(error, VolumeError::Deleted { .. }), "{error}");
    assert_eq!(keys(&world).await, []);
}

#[tokio::test(start_paused = true)]
async fn an_undeletion_that_stood_still_does_not_go_on_from_a_number_that_was_freed() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.delete().await.unwrap();
    world.objects.pause_before("manifests");
    let first = world.daemon(2).volumes;
    let undeleting = tokio::spawn(async move { first.undelete(&name("vm"), &name("late")).await });
    world.objects.paused().await;
    let back = world.daemon(1).volumes.undelete(&name("vm"), &name("vm")).await.unwrap();
    back.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap();
    world.advance_hours(25);
    // The number has a fence, and stays.
    assert_eq!(gc(&world, false).await.objects_removed, 2);
    world.objects.resume();
    let error = undeleting.await.unwrap().unwrap_err();
    assert!(matches!(error, VolumeError::NotDeleted { .. }), "{error}");
    back.confirm().await.unwrap();
    tags(&back, range(0, 8), &[2; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_upload_that_failed_left_goes_after_a_later_manifest() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    world.objects.fail_creations("manifests", 1, false);
    volume.commit(MemoryCut::new(1, &[(0, 8, 2)]), SIZE).await.unwrap_err();
    assert_eq!(gc_for_days(&world).await, 0);
    volume.commit(MemoryCut::new(2, &[(0, 8, 4)]), SIZE).await.unwrap();
    // A writer paused since the upload may only now send the manifest that names the pack.
    assert_eq!(gc(&world, false).await.packs_removed, 0);
    assert_eq!(gc_for_days(&world).await, 1);
    tags(&volume, range(0, 8), &[4; 8]).await;
}

#[tokio::test(start_paused = true)]
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

/// A volume of eight packs merged since, with a snapshot from before the merge.
pub(super) async fn merged_after_a_snapshot(world: &World) -> VolumeWriter {
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(seq, 8, seq)]), SIZE).await.unwrap();
    }
    volume.snapshot(&name("s")).await.unwrap();
    world.advance_hours(5);
    volume.compact().await.unwrap().unwrap();
    volume.commit(MemoryCut::new(9, &[(0, 16, 9)]), SIZE).await.unwrap();
    volume
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_was_on_its_way_for_days_lists_no_pack_that_is_gone() {
    let world = World::new();
    let volume = merged_after_a_snapshot(&world).await;
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
    assert!(matches!(error, VolumeError::TooSlow { .. }), "{error}");
    let error = volume.rollback(&name("s")).await.unwrap_err();
    assert!(matches!(error, VolumeError::NoSuchSnapshot { .. }), "{error}");
    for volume in [&volume, &world.daemon(2).volumes.take_over(&name("vm")).await.unwrap()] {
        tags(volume, range(0, 16), &[9; 16]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_rollback_whose_packs_a_manifest_keeps_may_come_days_later() {
    let world = World::new();
    let volume = merged_after_a_snapshot(&world).await;
    world.objects.pause_before("manifests");
    let rolling_back = tokio::spawn({
        let volume = volume.clone();
        async move { volume.rollback(&name("s")).await }
    });
    world.objects.paused().await;
    world.objects.pause_before("manifests");
    world.objects.resume();
    world.objects.paused().await;
    world.daemon(2).volumes.delete_snapshot(volume.id(), &name("s")).await.unwrap();
    assert_eq!(gc_for_days(&world).await, 0);
    world.objects.resume();
    rolling_back.await.unwrap().unwrap();
    let expected = [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8, 8];
    tags(&volume, range(0, 16), &expected).await;
    assert_eq!(volume.view().await.unwrap().manifest().sections.uploaded, []);
    assert_eq!(gc_for_days(&world).await, 2, "what came after the snapshot");
    tags(&world.daemon(2).volumes.take_over(&name("vm")).await.unwrap(), range(0, 16), &expected).await;
}

/// A volume with eight packs that are merged once `fork` has read the manifest with these packs; then garbage is collected, and
/// the manifest of the fork arrives.
async fn merge_while_a_fork_is_on_its_way(world: &World, volume: &VolumeWriter) {
    let origin = StatePoint { volume: volume.id(), snapshot: None };
    let forker = world.daemon(2).volumes;
    world.objects.pause_before("names/");
    let forking = tokio::spawn(async move { forker.fork(&origin, &name("fork")).await });
    world.objects.paused().await;
    volume.compact().await.unwrap().unwrap();
    let report = gc(world, false).await;
    world.objects.resume();
    let fork = forking.await.unwrap().unwrap();
    let expected = [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8, 8];
    tags(&fork, range(1, 15), &expected).await;
    tags(volume, range(1, 15), &expected).await;
    assert_eq!((report.packs_removed, report.packs_in_use, report.packs_waiting), (0, 1, 8));
}

#[tokio::test(start_paused = true)]
async fn a_pack_that_a_run_saw_before_its_manifest_came_waits_anew_when_it_goes_out_of_use() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    world.objects.pause_before("manifests");
    let committing = tokio::spawn({
        let volume = volume.clone();
        async move { volume.commit(MemoryCut::new(1, &[(1, 8, 1)]), SIZE).await }
    });
    world.objects.paused().await;
    assert_eq!(gc(&world, false).await.packs_waiting, 1);
    world.objects.resume();
    committing.await.unwrap().unwrap();
    world.advance_hours(5);
    for seq in 2..=8 {
        volume.commit(MemoryCut::new(seq, &[(seq, 8, seq)]), SIZE).await.unwrap();
    }
    world.advance_hours(25);
    merge_while_a_fork_is_on_its_way(&world, &volume).await;
}

#[tokio::test(start_paused = true)]
async fn a_pack_that_a_run_saw_while_its_volume_was_deleted_waits_anew_when_it_goes_out_of_use() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(seq, 8, seq)]), SIZE).await.unwrap();
    }
    world.advance_hours(5);
    volume.delete().await.unwrap();
    assert_eq!(gc(&world, false).await.packs_waiting, 8);
    let back = world.daemon(1).volumes.undelete(&name("vm"), &name("vm")).await.unwrap();
    world.advance_hours(25);
    merge_while_a_fork_is_on_its_way(&world, &back).await;
}

#[tokio::test(start_paused = true)]
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
    let packs = async || store.list(Folder::Packs(volume.id()), None).await.unwrap().len();
    while packs().await < 9 {
        tokio::task::yield_now().await;
    }
    world.objects.resume();
    releasing.await.unwrap().unwrap();
    merging.await.unwrap().unwrap().unwrap();
    // The pack made by the first try of the merge is removed, and the eight inputs.
    assert_eq!(packs().await, 10);
    assert_eq!(gc_for_days(&world).await, 9);
    tags(&volume, range(0, 8), &[8; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_commit_names_nothing_that_was_uploaded_before_a_release_arrived() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    world.objects.delay_every(Some("manifests"));
    volume.release().await.unwrap_err();
    world.objects.delay_every(None);
    world.objects.pause_before("manifests");
    let mut committing = tokio::spawn({
        let volume = volume.clone();
        async move { volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await }
    });
    world.objects.paused().await;
    assert!(world.objects.arrive().await > 0);
    world.objects.pause_before("manifests");
    world.objects.resume();
    let committed = tokio::select! {
        committed = &mut committing => committed.unwrap(),
        () = world.objects.paused() => {
            assert_eq!(gc_for_days(&world).await, 0);
            world.objects.resume();
            committing.await.unwrap()
        }
    };
    let error = committed.unwrap_err();
    assert!(error.is_transient(), "{error}");
    // The next try uploads the pack again.
    world.objects.pause_before("manifests");
    let committing = tokio::spawn({
        let volume = volume.clone();
        async move { volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await }
    });
    world.objects.paused().await;
    assert_eq!(gc_for_days(&world).await, 1, "the pack of the first try");
    world.objects.resume();
    committing.await.unwrap().unwrap();
    tags(&volume, range(0, 8), &[1; 8]).await;
    tags(&world.daemon(2).volumes.take_over(&name("vm")).await.unwrap(), range(0, 8), &[1; 8]).await;
}
