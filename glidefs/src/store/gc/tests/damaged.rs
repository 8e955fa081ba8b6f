//! Unreadable objects: every pack possibly listed there is kept.

use super::*;
use crate::store::client::Created;

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_keeps_what_it_may_list_and_observations_that_cannot_begin_anew() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    compacted(&volume, 3).await;
    gc(&world, false).await;
    world.advance_hours(25);
    let store = world.daemon(9).volumes.store().clone();
    let key = all_keys(&world).await.into_iter().rfind(|key| matches!(key, Key::Gc(_))).unwrap();
    store.delete(std::slice::from_ref(&key)).await.unwrap();
    let other = Key::Gc(name("other"));
    for key in [&key, &other] {
        let _: Created = store.create(key, &[vec![1; 50].into()]).await.unwrap();
    }
    let report = gc(&world, false).await;
    assert_eq!((report.packs_removed, report.packs_waiting), (0, 8));
    let left = all_keys(&world).await;
    assert!(left.contains(&other) && !left.contains(&key));
    world.advance_hours(25);
    let manifest = Key::Manifest(volume.id(), 100);
    let _: Created = store.create(&manifest, &[vec![1; 50].into()]).await.unwrap();
    let report = gc(&world, false).await;
    assert_eq!(
        (report.packs_removed, report.packs_waiting, report.damaged),
        (0, 0, vec![manifest.to_string()])
    );
    let options = GcOptions { grace: Duration::from_mins(5), ..GcOptions::default() };
    let error = collect(&store, &*world.clock, &options).await.unwrap_err();
    assert!(error.to_string().contains("may take 21600 s; give at least that"), "{error}");
    store.delete(&[manifest]).await.unwrap();
    assert_eq!(gc(&world, false).await.packs_waiting, 8);
    world.advance_hours(1);
    let options = GcOptions { alone: true, ..options };
    assert_eq!(collect(&store, &*world.clock, &options).await.unwrap().packs_removed, 8);
}

/// Replaces the object at `key` by meaningless bytes.
async fn damage(world: &World, key: &Key) {
    let store = world.daemon(9).volumes.store().clone();
    store.delete(std::slice::from_ref(key)).await.unwrap();
    let _: Created = store.create(key, &[vec![1; 50].into()]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_damaged_manifest_stops_the_collection_of_its_volume_only() {
    let world = World::new();
    let daemon = world.daemon(1);
    let origin = daemon.volumes.create(&name("origin"), SIZE).await.unwrap();
    origin.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    // The fork uses packs compacted away by the origin.
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
    assert_eq!(report.damaged, [newest.to_string()]);
    let left = keys(&world).await;
    assert!(of_fork.iter().all(|object| left.contains(&object.key)));
    tags(&other, range(0, 8), &[7; 8]).await;
    let packs = |id| left.iter().filter(|key| matches!(key, Key::Pack(of, _) if *of == id)).count();
    // Of the origin: own packs, and the pack of the fork. Of the other volume: own packs.
    assert_eq!((packs(other.id()), packs(origin.id())), (1, 2), "{left:?}");
    // A copy of the store is restored: everything exists.
    let store = world.daemon(9).volumes.store().clone();
    store.delete(std::slice::from_ref(&newest)).await.unwrap();
    let _: Created = store.create(&newest, &[intact]).await.unwrap();
    tags(&world.daemon(2).volumes.take_over(&name("fork")).await.unwrap(), range(0, 8), &[5; 8]).await;
}

#[tokio::test(start_paused = true)]
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
    // Nine packs from before the fork, and one of the nine after.
    assert_eq!(packs, 9 + 1);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_can_be_forked_though_the_newest_manifest_of_the_volume_is_damaged() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    compacted(&volume, 3).await;
    damage(&world, &Key::Manifest(volume.id(), volume.state().number)).await;
    let point = StatePoint { volume: volume.id(), snapshot: Some(name("s")) };
    let fork = world.daemon(2).volumes.fork(&point, &name("fork")).await.unwrap();
    for _ in 0..3 {
        gc(&world, false).await;
        world.advance_hours(25);
    }
    tags(&fork, range(0, 8), &[1; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_damaged_snapshot_keeps_what_its_volume_has() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    compacted(&volume, 3).await;
    let snapshot = snapshot_key(&world, volume.id()).await;
    damage(&world, &snapshot).await;
    for _ in 0..3 {
        assert_eq!(gc(&world, false).await.damaged, [snapshot.to_string()]);
        world.advance_hours(25);
    }
    let packs = keys(&world).await.iter().filter(|key| matches!(key, Key::Pack(..))).count();
    assert_eq!(packs, 10);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_name_record_is_not_the_name_of_a_volume_that_is_gone_and_stops_no_collection() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.delete().await.unwrap();
    let second = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    second.commit(MemoryCut::new(1, &[(0, 8, 2)]), SIZE).await.unwrap();
    let record = Key::Name(name("vm"));
    damage(&world, &record).await;
    let mut reported = false;
    for _ in 0..5 {
        reported |= gc(&world, false).await.damaged == [record.to_string()];
        world.advance_hours(25);
    }
    let left = keys(&world).await;
    assert!(reported && left.contains(&record));
    assert!(!left.iter().any(|key| matches!(key, Key::Pack(of, _) if *of == volume.id())), "{left:?}");
    tags(&second, range(0, 8), &[2; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_damaged_snapshot_does_not_keep_a_deletion_from_becoming_final() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    compacted(&volume, 3).await;
    let snapshot = snapshot_key(&world, volume.id()).await;
    damage(&world, &snapshot).await;
    volume.delete().await.unwrap();
    assert_eq!(gc(&world, false).await.damaged, [snapshot.to_string()]);
    // Until then the deletion can be undone, and the snapshot may be restored from a copy.
    assert_eq!(keys(&world).await.iter().filter(|key| matches!(key, Key::Pack(..))).count(), 10);
    for _ in 0..5 {
        world.advance_hours(25);
        gc(&world, false).await;
    }
    assert_eq!(keys(&world).await, []);
}
