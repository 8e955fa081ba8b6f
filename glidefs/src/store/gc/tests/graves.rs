//! What comes back of volumes that are gone, and what live volumes have lost.

use super::late::gc_for_days;
use super::*;
use crate::store::client::Created;
use crate::store::format::NameRecord;

/// A volume that was deleted and collected, and some objects that it had.
async fn gone(world: &World) -> (VolumeId, Vec<(Key, Vec<u8>)>) {
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    let taken = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    let store = world.daemon(9).volumes.store().clone();
    let mut had = Vec::new();
    for key in keys(world).await {
        let bytes = store.get(&key, 1 << 20).await.unwrap();
        had.push((key, bytes.to_vec()));
    }
    taken.delete().await.unwrap();
    gc_for_days(world).await;
    assert_eq!(keys(world).await, []);
    assert_eq!(all_keys(world).await.last(), Some(&Key::Grave(volume.id())));
    (volume.id(), had)
}

#[tokio::test(start_paused = true)]
async fn whatever_arrives_late_of_a_volume_that_is_gone_goes_again() {
    let world = World::new();
    let (_, had) = gone(&world).await;
    let store = world.daemon(9).volumes.store().clone();
    let all = had.len();
    // Each object alone, and all at once.
    for (from, to) in (0..all).map(|at| (at, at + 1)).chain([(0, all)]) {
        for (key, bytes) in &had[from..to] {
            assert_eq!(store.create(key, &[bytes.clone().into()]).await.unwrap(), Created::Created);
        }
        gc_for_days(&world).await;
        // A name alone leads nowhere, and is free for the next volume.
        let left = keys(&world).await;
        assert!(left.iter().all(|key| matches!(key, Key::Name(_))), "{left:?}");
        store.delete(&left).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_is_not_used_again_because_the_creation_of_its_name_arrives_late() {
    let world = World::new();
    let (volume, _) = gone(&world).await;
    let store = world.daemon(9).volumes.store().clone();
    let late = NameRecord { volume, created_unix_millis: 0 };
    assert_eq!(store.create_name(&name("vm"), &late).await.unwrap(), Created::Created);
    let other = world.daemon(3).volumes.create(&name("vm"), SIZE).await.unwrap();
    assert_ne!(other.id(), volume);
    assert_eq!(world.daemon(4).volumes.find(&name("vm")).await.unwrap(), Some(other.id()));
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_stood_still_does_not_begin_a_volume_that_is_gone_anew() {
    let world = World::new();
    let first = world.daemon(1).volumes;
    world.objects.pause_before("manifests");
    let creating = tokio::spawn(async move { first.create(&name("vm"), SIZE).await });
    world.objects.paused().await;
    // Another host goes on where the creation stopped.
    let volume = world.daemon(2).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.delete().await.unwrap();
    gc_for_days(&world).await;
    world.objects.resume();
    let created = creating.await.unwrap();
    assert!(matches!(created, Err(VolumeError::Deleted { .. })), "{created:?}");
    assert_eq!(keys(&world).await, []);
    assert_ne!(world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap().id(), volume.id());
}

#[tokio::test(start_paused = true)]
async fn an_undeletion_that_ended_half_way_leaves_no_name_that_revives_the_volume() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("a"), SIZE).await.unwrap();
    volume.delete().await.unwrap();
    world.objects.fail_creations("manifests", 9, false);
    world.daemon(1).volumes.undelete(&name("a"), &name("b")).await.unwrap_err();
    world.objects.fail_creations("manifests", 0, false);
    gc_for_days(&world).await;
    let other = world.daemon(2).volumes.create(&name("b"), SIZE).await.unwrap();
    assert_ne!(other.id(), volume.id());
}

#[tokio::test(start_paused = true)]
async fn a_live_volume_that_lost_its_name_has_it_back_after_a_collection() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let store = world.daemon(9).volumes.store().clone();
    store.delete(&[Key::Name(name("vm"))]).await.unwrap();
    gc(&world, true).await;
    assert_eq!(world.daemon(2).volumes.find(&name("vm")).await.unwrap(), None, "a dry run changes nothing");
    gc(&world, false).await;
    assert_eq!(world.daemon(2).volumes.find(&name("vm")).await.unwrap(), Some(volume.id()));
    // A name that another volume has by now stays there.
    store.delete(&[Key::Name(name("vm"))]).await.unwrap();
    let other = world.daemon(2).volumes.create(&name("vm"), SIZE).await.unwrap();
    gc(&world, false).await;
    assert_eq!(world.daemon(3).volumes.find(&name("vm")).await.unwrap(), Some(other.id()));
    // A deleted volume has no name.
    other.delete().await.unwrap();
    volume.delete().await.unwrap();
    gc(&world, false).await;
    assert_eq!(world.daemon(3).volumes.find(&name("vm")).await.unwrap(), None);
}
