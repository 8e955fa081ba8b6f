//! Snapshots and forks beside a store whose answers fail, and beside removal records of which nobody knows whether their runs go on.

use super::late::{gc_for_days, merged_after_a_snapshot};
use super::relied::late_snapshot;
use super::*;
use crate::store::client::Created;

/// A record that nobody can read.
async fn damaged_record(world: &World) -> Key {
    let key = Key::Gc(name("removal-00000000000000000000000000000001"));
    let store = world.daemon(9).volumes.store().clone();
    let _: Created = store.create(&key, &[b"damaged".to_vec().into()]).await.unwrap();
    key
}

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
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
