//! Snapshots and forks beside a store whose answers fail, and beside removal records of which nobody knows whether their runs go on.

use super::late::{gc_for_days, merged_after_a_snapshot};
use super::relied::late_snapshot;
use super::*;
use crate::store::client::Created;
use crate::store::format::{Manifest, PackRef};

/// A record that nobody can read.
async fn damaged_record(world: &World) -> Key {
    let key = Key::Gc(name("removal-00000000000000000000000000000001"));
    let store = world.daemon(9).volumes.store().clone();
    let _: Created = store.create(&key, &[b"damaged".to_vec().into()]).await.unwrap();
    key
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_whose_check_failed_stays_for_the_next_try() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    world.objects.pause_before("snapshots/");
    let keeping = tokio::spawn({
        let volume = volume.clone();
        async move { volume.snapshot(&name("s")).await }
    });
    world.objects.paused().await;
    world.objects.refuse_to_list(Some("manifests"));
    world.objects.resume();
    keeping.await.unwrap().unwrap_err();
    world.objects.refuse_to_list(None);
    assert_eq!(volume.snapshots().await.unwrap().len(), 1);
    let error = volume.snapshot(&name("s")).await.unwrap_err();
    assert!(matches!(error, VolumeError::SnapshotExists { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_fork_whose_check_failed_stays_for_the_next_try() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let origin = StatePoint { volume: volume.id(), snapshot: None };
    let forker = world.daemon(2).volumes;
    world.objects.pause_before("names/");
    let forking = tokio::spawn({
        let (forker, origin) = (forker.clone(), origin.clone());
        async move { forker.fork(&origin, &name("fork")).await }
    });
    world.objects.paused().await;
    world.objects.refuse_to_list(Some(&volume.id().to_string()));
    world.objects.resume();
    forking.await.unwrap().unwrap_err();
    world.objects.refuse_to_list(None);
    let left = forker.find(&name("fork")).await.unwrap();
    assert!(left.is_some(), "a deletion may arrive after the next try");
    let fork = forker.fork(&origin, &name("fork")).await.unwrap();
    assert_eq!(left, Some(fork.id()));
    tags(&fork, range(0, 8), &[1; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_or_fork_that_arrived_after_its_packs_were_removed_is_not_forked() {
    let world = World::new();
    let volume = late_snapshot(&world).await;
    let point = StatePoint { volume: volume.id(), snapshot: Some(name("s")) };
    let error = world.daemon(2).volumes.fork(&point, &name("fork")).await.unwrap_err();
    assert!(matches!(error, VolumeError::Gone { .. }), "{error}");
    assert_eq!(world.daemon(2).volumes.find(&name("fork")).await.unwrap(), None);

    let world = World::new();
    let volume = merged_after_a_snapshot(&world).await;
    let point = StatePoint { volume: volume.id(), snapshot: Some(name("s")) };
    let fork = world.daemon(2).volumes.fork(&point, &name("fork")).await.unwrap();
    let store = world.daemon(9).volumes.store().clone();
    let late = store.manifest(fork.id(), 1).await.unwrap();
    fork.delete().await.unwrap();
    volume.delete_snapshot(&name("s")).await.unwrap();
    volume.release().await.unwrap();
    assert_eq!(gc_for_days(&world).await, 8);
    assert_eq!(store.create_manifest(&late).await.unwrap(), Created::Created);
    let point = StatePoint { volume: fork.id(), snapshot: None };
    let error = world.daemon(3).volumes.fork(&point, &name("second")).await.unwrap_err();
    assert!(matches!(error, VolumeError::Gone { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_does_not_make_a_snapshot_broken() {
    let world = World::new();
    let volume = merged_after_a_snapshot(&world).await;
    let record = damaged_record(&world).await;
    let error = volume.snapshot(&name("s")).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains(&record.to_string()), "{error}");
    let error = volume.rollback(&name("s")).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    world.daemon(9).volumes.store().delete(&[record]).await.unwrap();
    let error = volume.snapshot(&name("s")).await.unwrap_err();
    assert!(matches!(error, VolumeError::SnapshotExists { .. }), "{error}");
    volume.rollback(&name("s")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deleted_volume_whose_packs_a_fork_keeps_asks_for_no_further_run() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let fork = volume.fork(&name("fork")).await.unwrap();
    volume.delete().await.unwrap();
    assert!(gc(&world, false).await.is_unfinished, "the deletion becomes final later");
    gc_for_days(&world).await;
    let report = gc(&world, false).await;
    assert_eq!((report.is_unfinished, report.packs_in_use), (false, 1));
    fork.delete().await.unwrap();
    assert!(gc(&world, false).await.is_unfinished);
    gc_for_days(&world).await;
    assert_eq!(keys(&world).await, []);
    assert!(!gc(&world, false).await.is_unfinished);
}

#[tokio::test(start_paused = true)]
async fn a_fork_made_while_a_run_reads_the_volumes_counts() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, seq)]), SIZE).await.unwrap();
    }
    let fork = volume.fork(&name("fork")).await.unwrap();
    volume.compact().await.unwrap().unwrap();
    // As if the listing of the volumes came before the fork, and the reading of the origin after the merge.
    world.objects.list_volumes_once_without(fork.id().to_string());
    let mut in_use = InUse::default();
    let volumes = in_use.scan(world.daemon(9).volumes.store()).await.unwrap();
    assert_eq!(volumes.len(), 2);
    let mut used = 0;
    for volume in &volumes {
        let packs = packs_of(world.daemon(9).volumes.store(), volume.id).await.unwrap();
        used += packs.iter().filter(|pack| in_use.uses(pack)).count();
    }
    assert_eq!(used, 9);
}

#[tokio::test(start_paused = true)]
async fn a_run_names_a_hundred_missing_packs_and_looks_for_no_more() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let store = world.daemon(9).volumes.store().clone();
    let newest = store.manifest(volume.id(), 2).await.unwrap();
    let lost = (0..150).map(|_| PackRef { pack: PackId::random(store.entropy()), ..newest.packs[0] });
    let manifest = Manifest { number: 3, packs: lost.chain(newest.packs.clone()).collect(), ..newest };
    assert_eq!(store.create_manifest(&manifest).await.unwrap(), Created::Created);
    let report = gc(&world, false).await;
    assert_eq!((report.damaged.len(), report.not_looked_for), (100, 50));
}
