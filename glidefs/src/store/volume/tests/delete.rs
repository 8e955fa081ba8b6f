//! Deletion, its undoing, and hosts that open a volume meanwhile.

use super::support::*;
use crate::store::client::Created;
use crate::store::format::NameRecord;
use crate::store::gc::{self, GcOptions};
use crate::store::volume::{StatePoint, VolumeError};

const SIZE: u64 = 1 << 16;

async fn collect(world: &World) {
    gc::collect(world.daemon(9).volumes.store(), &*world.clock, &GcOptions::default()).await.unwrap();
}

/// Every run of garbage collection that can make a difference, with time between the runs.
async fn collect_for_days(world: &World) {
    for _ in 0..6 {
        collect(world).await;
        world.advance_hours(25);
    }
}

#[tokio::test]
async fn a_deletion_that_lands_after_another_host_opened_the_volume_takes_nothing_of_that_host() {
    // The deletion has found out who has the volume, and waits before each of its creations in turn.
    for before in ["deleted", "manifests"] {
        let world = World::new();
        let first = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
        first.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
        world.objects.pause_before(before);
        let deletion = {
            let first = first.clone();
            tokio::spawn(async move { first.delete().await })
        };
        world.objects.paused().await;
        let second = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
        second.commit(MemoryCut::new(2, &[(8, 8, 2)]), SIZE).await.unwrap();
        world.objects.resume();
        let deleted = deletion.await.unwrap();
        assert!(matches!(deleted, Err(VolumeError::Fenced(_))), "{before}: {deleted:?}");
        collect_for_days(&world).await;
        tags(&second, range(0, 16), &[[1; 8], [2; 8]].concat()).await;
        second.commit(MemoryCut::new(3, &[(0, 8, 3)]), SIZE).await.unwrap();
        let third = world.daemon(3).volumes.take_over(&name("vm")).await.unwrap();
        tags(&third, range(0, 8), &[3; 8]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_deletion_and_an_opening_at_once_one_finds_the_other() {
    let (mut deletions, mut openings) = (0, 0);
    for round in 0..200 {
        let world = World::seeded(round);
        let first = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
        first.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
        // In some rounds the order is fixed; in the others either side may be ahead.
        let lead = round % 10;
        let deleting = async move {
            for _ in 0..lead {
                tokio::task::yield_now().await;
            }
            first.delete().await
        };
        let taker = world.daemon(2).volumes;
        let opening = {
            let taker = taker.clone();
            async move {
                for _ in lead..5 {
                    tokio::task::yield_now().await;
                }
                taker.take_over(&name("vm")).await
            }
        };
        let ended = match lead {
            0 => {
                let deleted = deleting.await;
                (deleted, opening.await)
            }
            9 => {
                let opened = opening.await;
                (deleting.await, opened)
            }
            _ => {
                let (deletion, opening) = (tokio::spawn(deleting), tokio::spawn(opening));
                (deletion.await.unwrap(), opening.await.unwrap())
            }
        };
        match ended {
            (Ok(()), Err(VolumeError::Deleted { .. } | VolumeError::NoSuchName { .. })) => {
                deletions += 1;
                collect_for_days(&world).await;
                assert_eq!(taker.deleted(None).await.unwrap(), []);
            }
            (Err(VolumeError::Fenced(_)), Ok(opened)) => {
                openings += 1;
                collect_for_days(&world).await;
                tags(&opened, range(0, 8), &[1; 8]).await;
                assert_eq!(taker.find(&name("vm")).await.unwrap(), Some(opened.id()));
            }
            (deleted, opened) => panic!("round {round}: {deleted:?}, {opened:?}"),
        }
    }
    assert!(deletions > 0 && openings > 0, "{deletions} {openings}");
}

#[tokio::test]
async fn a_deleted_volume_can_be_had_back_with_its_snapshots_until_the_grace_period_is_over() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    volume.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap();
    volume.delete().await.unwrap();
    assert_eq!(daemon.volumes.find(&name("vm")).await.unwrap(), None);
    for _ in 0..23 {
        collect(&world).await;
        world.advance_hours(1);
    }
    let other = world.daemon(2);
    let listed = other.volumes.deleted(None).await.unwrap();
    assert_eq!((listed.len(), &listed[0].name, listed[0].volume), (1, &name("vm"), volume.id()));
    let back = other.volumes.undelete(&name("vm"), &name("vm")).await.unwrap();
    tags(&back, range(0, 8), &[2; 8]).await;
    assert_eq!(other.volumes.deleted(None).await.unwrap(), []);
    collect_for_days(&world).await;
    back.rollback(&name("s")).await.unwrap();
    tags(&back, range(0, 8), &[1; 8]).await;
    let error = volume.commit(MemoryCut::new(3, &[(0, 8, 3)]), SIZE).await.unwrap_err();
    assert!(error.is_fatal(), "{error}");
    // Deleted again, this time for good.
    back.delete().await.unwrap();
    collect_for_days(&world).await;
    assert_eq!(other.volumes.deleted(None).await.unwrap(), []);
    let error = other.volumes.undelete(&name("vm"), &name("vm")).await.unwrap_err();
    assert!(matches!(error, VolumeError::NotDeleted { .. }), "{error}");
    assert_eq!(keys_in(other.volumes.store()).await, []);
}

#[tokio::test]
async fn a_snapshot_of_a_deleted_volume_is_not_forked() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    volume.delete().await.unwrap();
    let forker = world.daemon(2).volumes;
    let point = StatePoint { volume: volume.id(), snapshot: Some(name("s")) };
    let error = forker.fork(&point, &name("fork")).await.unwrap_err();
    assert!(matches!(error, VolumeError::Deleted { .. }), "{error}");
    let error = forker.view(&point).await.unwrap_err();
    assert!(matches!(error, VolumeError::Deleted { .. }), "{error}");
    forker.undelete(&name("vm"), &name("vm")).await.unwrap();
    let fork = forker.fork(&point, &name("fork")).await.unwrap();
    tags(&fork, range(0, 8), &[1; 8]).await;
}

#[tokio::test]
async fn a_fork_of_a_snapshot_that_was_begun_before_the_deletion_keeps_what_it_lists() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    volume.snapshot(&name("s")).await.unwrap();
    let forker = world.daemon(2).volumes;
    let point = StatePoint { volume: volume.id(), snapshot: Some(name("s")) };
    world.objects.pause_before("names/");
    let forking = tokio::spawn(async move { forker.fork(&point, &name("fork")).await });
    world.objects.paused().await;
    volume.delete().await.unwrap();
    collect(&world).await;
    world.advance_hours(2);
    collect(&world).await;
    world.objects.resume();
    let fork = forking.await.unwrap().unwrap();
    collect_for_days(&world).await;
    tags(&fork, range(0, 8), &[1; 8]).await;
}

#[tokio::test]
async fn the_name_of_a_deleted_volume_is_free_and_the_volume_comes_back_under_another() {
    let world = World::new();
    let daemon = world.daemon(1);
    let old = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    old.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    old.delete().await.unwrap();
    world.advance_hours(1);
    let new = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    new.commit(MemoryCut::new(1, &[(0, 8, 2)]), SIZE).await.unwrap();
    let error = daemon.volumes.undelete(&name("vm"), &name("vm")).await.unwrap_err();
    assert!(matches!(error, VolumeError::NameTaken { .. }), "{error}");
    let back = daemon.volumes.undelete(&name("vm"), &name("old")).await.unwrap();
    tags(&back, range(0, 8), &[1; 8]).await;
    tags(&new, range(0, 8), &[2; 8]).await;
    // Two volumes of one name: the last deletion is undone first.
    new.delete().await.unwrap();
    world.advance_hours(1);
    let third = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    third.commit(MemoryCut::new(1, &[(0, 8, 3)]), SIZE).await.unwrap();
    third.delete().await.unwrap();
    let last = daemon.volumes.undelete(&name("vm"), &name("vm")).await.unwrap();
    assert_eq!(last.id(), third.id());
    back.delete().await.unwrap();
    let again = world.daemon(2).volumes.undelete(&name("old"), &name("older")).await.unwrap();
    tags(&again, range(0, 8), &[1; 8]).await;
}

#[tokio::test]
async fn garbage_collection_and_a_volume_that_is_had_back_at_once_agree() {
    let (mut gone, mut back) = (0, 0);
    for before in ["-2-2", "manifests", "names/"] {
        let world = World::new();
        let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
        volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
        volume.delete().await.unwrap();
        collect(&world).await;
        world.advance_hours(25);
        // Either of the two waits.
        world.objects.pause_before(before);
        let collecting = async {
            collect(&world).await;
        };
        let volumes = world.daemon(2).volumes;
        let undeleted = if before == "names/" {
            let undeleting = tokio::spawn(async move { volumes.undelete(&name("vm"), &name("vm")).await });
            world.objects.paused().await;
            collecting.await;
            world.objects.resume();
            undeleting.await.unwrap()
        } else {
            let other = async {
                world.objects.paused().await;
                let undeleted = volumes.undelete(&name("vm"), &name("vm")).await;
                world.objects.resume();
                undeleted
            };
            tokio::join!(collecting, other).1
        };
        collect_for_days(&world).await;
        match undeleted {
            Ok(volume) => {
                back += 1;
                tags(&volume, range(0, 8), &[1; 8]).await;
            }
            Err(VolumeError::NotDeleted { .. }) => {
                gone += 1;
                assert_eq!(world.daemon(3).volumes.find(&name("vm")).await.unwrap(), None);
            }
            Err(error) => panic!("{before}: {error}"),
        }
    }
    assert!(gone > 0 && back > 0, "{gone} {back}");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_deletion_does_not_take_the_notes_of_who_had_the_volume_back_meanwhile() {
    let world = World::new();
    let daemon = world.daemon(1);
    let first = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    first.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    // The deletion is in the store; removing the name is slow.
    world.objects.next_reads_for(&[10_000]);
    let deletion = {
        let first = first.clone();
        tokio::spawn(async move { first.delete().await })
    };
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    assert!(!deletion.is_finished());
    // Meanwhile the same daemon undoes the deletion, as export "vm2".
    let second = daemon.volumes.undelete(&name("vm"), &name("vm2")).await.unwrap();
    second.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap();
    // A manifest of the volume arrives, and the answer is lost: the note on the manifest is for this case.
    world.objects.fail_creations("manifests", 1, true);
    second.commit(MemoryCut::new(3, &[(0, 8, 3)]), SIZE).await.unwrap_err();
    // The deletion ends.
    deletion.await.unwrap().unwrap();
    let committed = second.commit(MemoryCut::new(4, &[(0, 8, 4)]), SIZE).await;
    assert!(committed.is_ok(), "{:?}", committed.map(drop));
    assert_eq!(second.loss(), None);
    tags(&second, range(0, 8), &[4; 8]).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_had_back_under_its_name_before_the_deletion_ends_keeps_the_name() {
    let world = World::new();
    let first = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    first.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    world.objects.next_reads_for(&[10_000]);
    let deletion = tokio::spawn(async move { first.delete().await });
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    // The deletion is in the store. Another host undoes the deletion.
    let second = world.daemon(2).volumes.undelete(&name("vm"), &name("vm")).await.unwrap();
    let _: Result<(), VolumeError> = deletion.await.unwrap();
    let found = world.daemon(3).volumes.find(&name("vm")).await.unwrap();
    assert_eq!(found, Some(second.id()), "a volume that nobody can name");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_two_take_from_a_deleted_volume_stays_with_the_next_volume() {
    for reads in [&[10_000][..], &[0, 10_000]] {
        let world = World::new();
        let daemon = world.daemon(1);
        let host = daemon.volumes.host.clone();
        let first = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
        let deleted = first.id();
        first.delete().await.unwrap();
        // As after a deletion that stopped before the name was removed.
        let left = NameRecord { volume: deleted, created_unix_millis: 0 };
        let created = daemon.volumes.store().create_name(&name("vm"), &left).await.unwrap();
        assert_eq!(created, Created::Created);
        // One is slow to read the name, or to remove the name after that.
        world.objects.next_reads_for(reads);
        let slow = tokio::spawn({
            let host = host.clone();
            async move { host.remove_name(&name("vm"), deleted, true).await }
        });
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        assert!(!slow.is_finished());
        // Another removes the name, and gives the name to a new volume.
        let second = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
        slow.await.unwrap().unwrap();
        assert_ne!(second.id(), deleted);
        let found = world.daemon(2).volumes.find(&name("vm")).await.unwrap();
        assert_eq!(found, Some(second.id()), "a volume that nobody can name");
    }
}

#[tokio::test]
async fn an_undoing_that_was_overtaken_leaves_no_second_name() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.delete().await.unwrap();
    world.objects.pause_before("manifests");
    let slow = world.daemon(2).volumes;
    let undeleting = tokio::spawn(async move { slow.undelete(&name("vm"), &name("late")).await });
    world.objects.paused().await;
    let back = world.daemon(1).volumes.undelete(&name("vm"), &name("vm")).await.unwrap();
    world.objects.resume();
    let error = undeleting.await.unwrap().unwrap_err();
    assert!(matches!(error, VolumeError::NotDeleted { .. }), "{error}");
    assert_eq!(world.daemon(3).volumes.find(&name("late")).await.unwrap(), None);
    assert_eq!(world.daemon(3).volumes.find(&name("vm")).await.unwrap(), Some(back.id()));
}
