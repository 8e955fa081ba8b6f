//! Snapshots, rollback, forks, and the end of a volume.

use super::support::*;
use crate::store::client::Created;
use crate::store::faulty::Seeded;
use crate::store::format::{Manifest, PACK_BYTES_TARGET, PackRef, Snapshot};
use crate::store::ids::{PackId, VolumeId};
use crate::store::key::Folder;
use crate::store::volume::{GRACE_MIN, StatePoint, UPLOAD_TIME_MAX, VolumeError};
use crate::units::Seq;

const SIZE: u64 = 1 << 21;

fn newest(volume: VolumeId) -> StatePoint {
    StatePoint { volume, snapshot: None }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_keeps_the_state_and_a_rollback_goes_back_to_it() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let before = daemon.requests();
    volume.snapshot(&name("first")).await.unwrap();
    assert_eq!(daemon.since(before), [0, 1, 3, 0, 0], "snapshot");
    volume.commit(MemoryCut::new(2, &[(0, 8, 2), (100, 8, 2)]), 2 * SIZE).await.unwrap();
    let error = volume.snapshot(&name("first")).await.unwrap_err();
    assert!(matches!(error, VolumeError::SnapshotExists { .. }), "{error}");
    volume.snapshot(&name("second")).await.unwrap();
    let names = async |volume: &crate::store::volume::VolumeWriter| {
        volume.snapshots().await.unwrap().into_iter().map(|info| info.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&volume).await, [name("first"), name("second")]);
    let before = daemon.requests();
    let committed = volume.rollback(&name("first")).await.unwrap();
    assert_eq!(daemon.since(before), [1, 1, 1, 0, 0], "rollback");
    assert_eq!((committed.resume.cut, committed.resume.size_sectors), (Seq(2), SIZE));
    tags(&volume, range(0, 8), &[1; 8]).await;
    assert!(!volume.covers(range(100, 8)));
    volume.rollback(&name("second")).await.unwrap();
    tags(&volume, range(100, 8), &[2; 8]).await;
    volume.delete_snapshot(&name("second")).await.unwrap();
    volume.delete_snapshot(&name("second")).await.unwrap();
    assert_eq!(names(&volume).await, [name("first")]);
    let error = volume.rollback(&name("second")).await.unwrap_err();
    assert!(matches!(error, VolumeError::NoSuchSnapshot { .. }), "{error}");
    tags(&volume, range(100, 8), &[2; 8]).await;
    // Anybody can view the state without taking the volume over.
    let point = StatePoint { volume: volume.id(), snapshot: Some(name("first")) };
    let view = world.daemon(2).volumes.view(&point).await.unwrap();
    compare(range(0, 8), &view.read(range(0, 8)).await.unwrap(), &[1; 8]);
    volume.commit(MemoryCut::new(3, &[(0, 1, 5)]), SIZE).await.unwrap();
}

#[tokio::test]
async fn a_deletion_of_a_snapshot_that_arrives_late_takes_no_later_snapshot_with_the_same_name() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let store = world.daemon(9).volumes.store().clone();
    let keys = async || {
        let listing = store.list(Folder::Snapshots(volume.id()), None).await.unwrap();
        listing.into_iter().map(|object| object.key).collect::<Vec<_>>()
    };
    volume.snapshot(&name("s")).await.unwrap();
    let deleted = keys().await;
    volume.delete_snapshot(&name("s")).await.unwrap();
    volume.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    // The server of the store carries the first deletion out once more.
    store.delete(&deleted).await.unwrap();
    let names: Vec<_> = volume.snapshots().await.unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!((names, keys().await.len()), (vec![name("s")], 1));
    volume.rollback(&name("s")).await.unwrap();
    tags(&volume, range(0, 8), &[2; 8]).await;
}

#[tokio::test]
async fn a_snapshot_whose_name_ends_in_a_hash_is_found_also_where_an_earlier_version_made_it() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let store = world.daemon(9).volumes.store().clone();
    let names = [format!("csi.{}", PackId([0xab; 16])), format!("csi.{}", PackId([0xcd; 16]))];
    let manifest = (*volume.manifest().await.unwrap()).clone();
    let earlier = Snapshot { name: name(&names[0]), created_unix_millis: 0, manifest };
    let _: Created = store.create_snapshot(&earlier).await.unwrap();
    volume.snapshot(&name(&names[1])).await.unwrap();
    let mut found: Vec<_> = volume.snapshots().await.unwrap().into_iter().map(|info| info.name).collect();
    found.sort();
    assert_eq!(found, [name(&names[0]), name(&names[1])]);
    for snapshot in &names {
        volume.rollback(&name(snapshot)).await.unwrap();
        volume.delete_snapshot(&name(snapshot)).await.unwrap();
    }
    assert_eq!(store.list(Folder::Snapshots(volume.id()), None).await.unwrap().len(), 0);
}

#[tokio::test]
async fn of_snapshots_with_one_name_the_latest_state_counts_and_a_deletion_takes_all_of_them() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let store = world.daemon(9).volumes.store().clone();
    let kept = async |key: &str| {
        let manifest = (*volume.manifest().await.unwrap()).clone();
        Snapshot { name: name(key), created_unix_millis: 0, manifest }
    };
    let failed = kept(&format!("s..{}", PackId([0xab; 16]))).await;
    world.advance_hours(1);
    volume.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap();
    // A creation that failed arrives before the next one, whose key is the name, as an earlier version made it.
    let _: Created = store.create_snapshot(&failed).await.unwrap();
    let _: Created = store.create_snapshot(&kept("s").await).await.unwrap();
    let error = volume.snapshot(&name("s")).await.unwrap_err();
    assert!(matches!(error, VolumeError::SnapshotExists { .. }), "{error}");
    assert_eq!(volume.snapshots().await.unwrap().len(), 1);
    volume.rollback(&name("s")).await.unwrap();
    tags(&volume, range(0, 8), &[2; 8]).await;
    volume.delete_snapshot(&name("s")).await.unwrap();
    assert_eq!(store.list(Folder::Snapshots(volume.id()), None).await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_fork_begins_with_what_its_origin_had_and_goes_its_own_way() {
    let world = World::new();
    let daemon = world.daemon(1);
    let origin = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..40 {
        origin.commit(MemoryCut::new(seq, &[(seq * 8, 8, seq), (0, 4, seq)]), SIZE).await.unwrap();
    }
    origin.snapshot(&name("s")).await.unwrap();
    origin.commit(MemoryCut::new(40, &[(0, 4, 40)]), SIZE).await.unwrap();
    let before = daemon.requests();
    let fork = origin.fork(&name("fork")).await.unwrap();
    let requests: u64 = daemon.since(before).iter().sum();
    assert!(requests < 10, "{requests} requests");
    let other = world.daemon(2);
    let point = StatePoint { volume: origin.id(), snapshot: Some(name("s")) };
    let of_snapshot = other.volumes.fork(&point, &name("old")).await.unwrap();
    let requests: u64 = other.requests().iter().sum();
    assert!(requests < 10, "{requests} requests");
    let second = fork.fork(&name("fork-of-fork")).await.unwrap();
    fork.commit(MemoryCut::new(1, &[(0, 1, 77)]), SIZE).await.unwrap();
    origin.commit(MemoryCut::new(41, &[(1, 1, 88)]), SIZE).await.unwrap();
    tags(&origin, range(0, 9), &[40, 88, 40, 40, 0, 0, 0, 0, 1]).await;
    tags(&fork, range(0, 9), &[77, 40, 40, 40, 0, 0, 0, 0, 1]).await;
    tags(&second, range(0, 9), &[40, 40, 40, 40, 0, 0, 0, 0, 1]).await;
    tags(&of_snapshot, range(0, 9), &[39, 39, 39, 39, 0, 0, 0, 0, 1]).await;
    let error = daemon.volumes.fork(&newest(origin.id()), &name("old")).await.unwrap_err();
    assert!(matches!(error, VolumeError::NameTaken { .. }), "{error}");
    // The origin may go; its packs belong to the forks as well.
    origin.delete().await.unwrap();
    let reopened = other.volumes.take_over(&name("fork")).await.unwrap();
    tags(&reopened, range(0, 9), &[77, 40, 40, 40, 0, 0, 0, 0, 1]).await;
}

#[tokio::test]
async fn a_fork_of_a_tebibyte_with_a_hundred_gibibytes_of_data_costs_fewer_than_ten_requests() {
    const SECTORS: u64 = 1 << 31;
    const PACKS: u64 = 3200;
    let world = World::new();
    let daemon = world.daemon(1);
    let origin = daemon.volumes.create(&name("vm"), SECTORS).await.unwrap();
    origin.commit(MemoryCut::new(1, &[(0, 8, 1)]), SECTORS).await.unwrap();
    // Nobody reads the packs, so the manifest may list many that do not exist.
    let manifest = origin.manifest().await.unwrap();
    let (first, apart) = (manifest.packs[0], SECTORS / PACKS);
    let data_bytes = PACK_BYTES_TARGET;
    let stored_bytes = data_bytes / 2;
    let pack = |number: u64| PackRef {
        pack: PackId::random(&Seeded::new(number)),
        total_bytes: first.total_bytes + stored_bytes,
        index_offset_bytes: first.index_offset_bytes + stored_bytes,
        lowest_sector: number * apart,
        highest_sector: (number + 1) * apart - 1,
        data_bytes,
        entries: 512,
        index_plain_bytes: 512 * 12,
        ..first
    };
    let manifest = Manifest {
        number: manifest.number + 1,
        packs: (0..PACKS).map(pack).collect(),
        ..(*manifest).clone()
    };
    assert_eq!(manifest.packs.iter().map(|pack| pack.data_bytes).sum::<u64>(), 100 << 30);
    assert_eq!(daemon.volumes.store().create_manifest(&manifest).await.unwrap(), Created::Created);

    let other = world.daemon(2);
    let fork = other.volumes.fork(&newest(origin.id()), &name("fork")).await.unwrap();
    let requests: u64 = other.requests().iter().sum();
    assert!(requests < 10, "{requests} requests");
    assert_eq!(fork.manifest().await.unwrap().packs, manifest.packs);
}

#[tokio::test]
async fn a_deleted_volume_is_gone_for_everybody_and_its_name_is_free() {
    let world = World::new();
    let (daemon, other) = (world.daemon(1), world.daemon(2));
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.delete().await.unwrap();
    volume.delete().await.unwrap();
    let error = volume.commit(MemoryCut::new(2, &[(0, 8, 1)]), SIZE).await.unwrap_err();
    assert!(matches!(error, VolumeError::Deleted { .. }) && error.is_fatal(), "{error}");
    let error = other.volumes.take_over(&name("vm")).await.unwrap_err();
    assert!(matches!(error, VolumeError::NoSuchName { .. }), "{error}");
    let error = other.volumes.acquire(volume.id(), true).await.unwrap_err();
    assert!(matches!(error, VolumeError::Deleted { .. }), "{error}");
    let error = other.volumes.fork(&newest(volume.id()), &name("f")).await.unwrap_err();
    assert!(matches!(error, VolumeError::Deleted { .. }), "{error}");
    let again = other.volumes.create(&name("vm"), SIZE).await.unwrap();
    assert_ne!(again.id(), volume.id());
    // A late deletion does not take the name from its new owner.
    world.daemon(1).volumes.resume(&volume.state()).delete().await.unwrap();
    assert_eq!(other.volumes.find(&name("vm")).await.unwrap(), Some(again.id()));
}

#[tokio::test]
async fn a_volume_that_another_host_took_over_is_not_its_old_writers_to_delete() {
    let world = World::new();
    let (daemon, other) = (world.daemon(1), world.daemon(2));
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let taken = other.volumes.take_over(&name("vm")).await.unwrap();
    let error = volume.delete().await.unwrap_err();
    assert!(matches!(error, VolumeError::Fenced(_)), "{error}");
    taken.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap();
    assert_eq!(other.volumes.find(&name("vm")).await.unwrap(), Some(taken.id()));
}

#[tokio::test]
async fn a_deletion_that_did_not_arrive_does_not_delete_what_another_host_took_over_since() {
    let world = World::new();
    let (daemon, other) = (world.daemon(1), world.daemon(2));
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    world.objects.end_after(1, false);
    let _ = volume.delete().await.unwrap_err();
    world.objects.go_on();
    let taken = other.volumes.take_over(&name("vm")).await.unwrap();
    let error = volume.delete().await.unwrap_err();
    assert!(matches!(error, VolumeError::Fenced(_)), "{error}");
    taken.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    assert_eq!(other.volumes.find(&name("vm")).await.unwrap(), Some(taken.id()));
}

#[tokio::test]
async fn a_deletion_that_stopped_half_way_is_finished_by_the_next_that_wants_the_name() {
    for (requests, deleter) in [(3, 1), (3, 2), (4, 1), (4, 2)] {
        let world = World::new();
        let daemon = world.daemon(1);
        let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
        world.objects.end_after(requests - 1, true);
        let _ = volume.delete().await.unwrap_err();
        world.objects.go_on();
        if deleter == 1 {
            volume.delete().await.unwrap();
        }
        let again = world.daemon(2).volumes.create(&name("vm"), SIZE).await.unwrap();
        assert_ne!(again.id(), volume.id());
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_finds_an_earlier_try_in_the_store_frees_the_name() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    world.objects.delay_every(Some("manifests"));
    volume.delete().await.unwrap_err();
    world.objects.delay_every(None);
    // The first manifest arrives while the second is under way.
    world.objects.pause_before("manifests");
    let deleting = tokio::spawn({
        let volume = volume.clone();
        async move { volume.delete().await }
    });
    world.objects.paused().await;
    assert!(world.objects.arrive().await > 0);
    world.objects.resume();
    deleting.await.unwrap().unwrap();
    assert_eq!(daemon.volumes.find(&name("vm")).await.unwrap(), None);
}

#[tokio::test]
async fn what_took_too_long_is_taken_back() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    // The clock jumps while packs are being uploaded.
    let slow = SlowCut::new(&world, UPLOAD_TIME_MAX * 2, 2);
    let error = volume.commit(slow, SIZE).await.unwrap_err();
    assert!(matches!(error, VolumeError::TooSlow { .. }) && error.is_transient(), "{error}");
    tags(&volume, range(0, 8), &[1; 8]).await;
    assert_eq!(volume.state().number, 2);
    volume.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap();
    tags(&volume, range(0, 8), &[2; 8]).await;
    assert!(UPLOAD_TIME_MAX < GRACE_MIN);
}
