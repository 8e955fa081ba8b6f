//! Objects that the store has and does not find for a while, or refuses to create although they are not there.

use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStoreExt;
use object_store::path::Path;
use tokio::time::sleep;

use super::divergence::{SIZE, commit};
use super::support::*;
use crate::store::backend::Backend;
use crate::store::faulty::{Fault, Faults, FaultyStore};
use crate::store::key::Key;
use crate::store::volume::{Loss, Notes, VolumeError, VolumeWriter};

/// A new process of a daemon whose requests meet the faults.
fn faulty(world: &World) -> (Daemon, Arc<Faults>) {
    let faults = Faults::new(1);
    let objects = FaultyStore::new(world.objects.clone(), faults.clone());
    (world.daemon_over(1, Backend::over(Arc::new(objects), true), 64 << 20), faults)
}

/// The result of `work`, with `fault` in each request at first.
async fn despite<T>(faults: &Faults, fault: Fault, work: impl Future<Output = T>) -> T {
    let before = faults.fired(fault);
    faults.set(fault, 1000);
    let pass = async {
        sleep(Duration::from_secs(5)).await;
        faults.set(fault, 0);
    };
    let (result, ()) = tokio::join!(work, pass);
    assert!(faults.fired(fault) > before, "the fault was not met");
    result
}

#[tokio::test(start_paused = true)]
async fn a_creation_refused_while_nothing_is_in_its_way_neither_ends_the_export_nor_fails() {
    let world = World::new();
    let (daemon, faults) = faulty(&world);
    let name = name("vm");
    let volume = despite(&faults, Fault::Conflict, daemon.volumes.create(&name, SIZE)).await.unwrap();
    let committed = despite(&faults, Fault::Conflict, commit(&volume, 1, 1)).await.unwrap();
    assert_eq!((committed.number, volume.loss()), (2, None));
    tags(&volume, range(0, 8), &[1; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_read_waits_for_a_pack_or_a_manifest_that_is_missing_for_a_moment() {
    let world = World::new();
    let (daemon, faults) = faulty(&world);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let state = commit(&volume, 1, 1).await.unwrap();
    despite(&faults, Fault::Missing, tags(&volume, range(0, 8), &[1; 8])).await;
    let (daemon, faults) = faulty(&world);
    let again = daemon.volumes.resume(&state);
    despite(&faults, Fault::Missing, tags(&again, range(0, 8), &[1; 8])).await;
}

#[tokio::test(start_paused = true)]
async fn a_pack_that_stays_away_fails_the_read_after_a_time() {
    let world = World::new();
    let (daemon, faults) = faulty(&world);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    commit(&volume, 1, 1).await.unwrap();
    faults.set(Fault::Missing, 1000);
    let begun = tokio::time::Instant::now();
    let error = volume.read(range(0, 8)).await.unwrap_err();
    assert!(error.is_missing() && begun.elapsed() >= Duration::from_secs(30), "{error}");
    assert_eq!(volume.loss(), None);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_is_not_given_up_for_a_snapshot_that_is_missing_for_a_moment() {
    let world = World::new();
    let (daemon, faults) = faulty(&world);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    commit(&volume, 1, 1).await.unwrap();
    volume.snapshot(&name("before")).await.unwrap();
    commit(&volume, 2, 2).await.unwrap();
    despite(&faults, Fault::Missing, volume.rollback(&name("before"))).await.unwrap();
    tags(&volume, range(0, 8), &[1; 8]).await;
    volume.delete_snapshot(&name("before")).await.unwrap();
    let error = volume.rollback(&name("before")).await.unwrap_err();
    assert!(matches!(error, VolumeError::NoSuchSnapshot { .. }), "{error}");
}

/// A writer in a new process, whose newest manifest the store neither lists nor finds at first.
async fn without_its_manifest(world: &World) -> (VolumeWriter, Arc<Faults>) {
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let state = commit(&volume, 1, 1).await.unwrap();
    let (daemon, faults) = faulty(world);
    world.objects.list_without(Some("manifests/"));
    faults.set(Fault::Missing, 1000);
    (daemon.volumes.resume(&state), faults)
}

#[tokio::test]
async fn an_export_whose_newest_manifest_is_missing_for_a_while_goes_on() {
    let world = World::new();
    let (volume, faults) = without_its_manifest(&world).await;
    for _ in 0..3 {
        let error = volume.confirm().await.unwrap_err();
        assert!(error.is_missing() && !error.is_fatal(), "{error}");
        // However long: a store in which nothing is found says nothing.
        world.clock.advance(Duration::from_secs(31));
    }
    faults.set(Fault::Missing, 0);
    volume.confirm().await.unwrap();
    world.objects.list_without(None);
    assert_eq!((commit(&volume, 2, 2).await.unwrap().number, volume.loss()), (3, None));
    assert!(world.notes_of(1).unwrap().loss(volume.id(), 1).is_none());
}

#[tokio::test]
async fn an_export_that_a_version_before_took_for_deleted_goes_on_if_its_manifest_is_there() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let state = commit(&volume, 1, 1).await.unwrap();
    world.notes_of(1).unwrap().lose(volume.id(), state.epoch, &Loss::Deleted).await.unwrap();
    let daemon = world.daemon(1);
    assert!(!daemon.volumes.is_lost(&state));
    let again = daemon.volumes.resume(&state);
    again.confirm().await.unwrap();
    assert_eq!((commit(&again, 2, 2).await.unwrap().number, again.loss()), (3, None));
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_is_missing_for_two_moments_long_apart_does_not_end_the_export() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let state = commit(&volume, 1, 1).await.unwrap();
    let newest = Key::Manifest(volume.id(), state.number);
    let path = Path::from(newest.to_string());
    let bytes = world.objects.get(&path).await.unwrap().bytes().await.unwrap();
    let again = world.daemon(1).volumes.resume(&state);
    volume.host.store.delete(std::slice::from_ref(&newest)).await.unwrap();
    let comes_back = async {
        sleep(Duration::from_secs(5)).await;
        world.objects.put(&path, bytes.into()).await.unwrap();
    };
    tokio::join!(tags(&again, range(0, 8), &[1; 8]), comes_back);
    world.advance_hours(24);
    volume.host.store.delete(std::slice::from_ref(&newest)).await.unwrap();
    assert!(again.confirm().await.unwrap_err().is_missing());
}

#[tokio::test(start_paused = true)]
async fn packs_that_are_missing_for_a_moment_are_not_taken_for_gone() {
    let world = World::new();
    let (daemon, faults) = faulty(&world);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    commit(&volume, 1, 1).await.unwrap();
    let packs = volume.view().await.unwrap().manifest().packs.clone();
    let stay = volume.host.will_stay(volume.id(), packs);
    despite(&faults, Fault::Missing, stay).await.unwrap();
}

#[tokio::test]
async fn an_archived_pack_is_an_error_of_its_sectors_and_no_refusal_of_the_host() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(2, &[(8, 8, 2)]), SIZE).await.unwrap();
    let daemon = world.daemon(1);
    let newest = daemon.volumes.store().latest_manifest(volume.id(), None).await.unwrap().unwrap();
    world.objects.archive(newest.packs[1].pack.to_string());
    let again = daemon.volumes.resume(&volume.state());
    let failed = again.read_waiting(range(0, 8), &[range(0, 8)]).await.unwrap_err();
    let text = crate::observe::chain(&failed);
    assert!(text.contains("is in an archive of the store") && text.contains("InvalidObjectState"), "{text}");
    assert_eq!((failed.is_refused(), daemon.stats.refused.get()), (false, 0));
    tags(&again, range(8, 8), &[2; 8]).await;
}
