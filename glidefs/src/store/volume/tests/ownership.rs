//! Which host has a volume: refusals, releases, and taking back.

use std::sync::Arc;

use super::support::*;
use crate::properties::{Durability, Properties};
use crate::store::ids::HostName;
use crate::store::volume::{NotesInMemory, VolumeError, VolumeWriter};

const SIZE: u64 = 1 << 16;

/// The host that has the volume, by the error of `opened`, and when that host was last heard of, milliseconds since 1970-01-01
/// UTC.
fn held(opened: Result<VolumeWriter, VolumeError>) -> (Option<HostName>, u64) {
    match opened {
        Err(VolumeError::Held(held)) => {
            let text = VolumeError::Held(held.clone()).to_string();
            assert!(text.contains("--take-over") && text.contains("last heard of at 2026-01-01T"), "{text}");
            (held.host, held.heard_unix_millis)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_volume_that_was_not_released_is_opened_only_by_taking_it_over() {
    let world = World::new();
    let first = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    first.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    world.advance_hours(3);
    first.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap();
    let (host, heard) = held(world.daemon(2).volumes.open(&name("vm")).await);
    // Each creation takes the clock a moment.
    let hours = (heard - 1_767_225_600_000) / 3_600_000;
    assert_eq!((host, hours), (Some(HostName::nearest("host-1")), 3));
    first.commit(MemoryCut::new(3, &[(0, 8, 3)]), SIZE).await.unwrap();
    let second = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
    tags(&second, range(0, 8), &[3; 8]).await;
    assert_eq!(held(world.daemon(1).volumes.open(&name("vm")).await).0, Some(HostName::nearest("host-2")));
}

#[tokio::test]
async fn a_released_volume_is_anybodys_until_somebody_opens_it() {
    let world = World::new();
    let first = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    first.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    first.release().await.unwrap();
    let second = world.daemon(2).volumes.open(&name("vm")).await.unwrap();
    tags(&second, range(0, 8), &[1; 8]).await;
    held(world.daemon(3).volumes.open(&name("vm")).await);
    let taken_back = first.hold().await;
    assert!(matches!(taken_back, Err(VolumeError::Fenced(_))), "{taken_back:?}");
}

#[tokio::test]
async fn a_copy_of_a_host_opens_nothing_that_the_host_has_without_taking_it_over() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    // Both machines were made of one image, with one cache directory.
    let copy = world.copy(1, Arc::new(NotesInMemory::default()));
    held(copy.volumes.open(&name("vm")).await);
    volume.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap();
    // Of two that open a released volume, one has it.
    volume.release().await.unwrap();
    let opened = copy.volumes.open(&name("vm")).await.unwrap();
    held(world.daemon(1).volumes.open(&name("vm")).await);
    opened.commit(MemoryCut::new(3, &[(0, 8, 3)]), SIZE).await.unwrap();
    tags(&world.daemon(1).volumes.take_over(&name("vm")).await.unwrap(), range(0, 8), &[3; 8]).await;
}

#[tokio::test]
async fn a_volume_created_as_released_is_anybodys_and_is_taken_back_by_its_host() {
    let world = World::new();
    let daemon = world.daemon(1);
    let usual = Properties::default();
    let blank = daemon.volumes.create_blank(&name("vm"), SIZE, usual, true).await.unwrap();
    assert!(blank.is_released);
    let again = daemon.volumes.create_blank(&name("vm"), SIZE, usual, true).await.unwrap();
    assert_eq!(again, blank, "asked twice");
    let volume = daemon.volumes.resume(&blank.resume);
    volume.confirm().await.unwrap();
    volume.hold().await.unwrap();
    held(world.daemon(2).volumes.open(&name("vm")).await);
    volume.release().await.unwrap();
    world.daemon(2).volumes.open(&name("vm")).await.unwrap();
    assert!(matches!(volume.hold().await, Err(VolumeError::Fenced(_))));
}

#[tokio::test]
async fn creations_that_stop_one_after_the_other_leave_the_volume_as_the_first_made_the_volume() {
    let world = World::new();
    let daemon = world.daemon(1);
    let usual = Properties::default();
    for (vm, first) in [("released", true), ("held", false)] {
        let left = daemon.volumes.create_blank(&name(vm), SIZE, usual, first).await.unwrap();
        assert_eq!(left.is_released, first);
        for next in [false, false, true, true] {
            assert_eq!(daemon.volumes.create_blank(&name(vm), SIZE, usual, next).await.unwrap(), left);
        }
        let volume = daemon.volumes.resume(&left.resume);
        volume.hold().await.unwrap();
        held(world.daemon(2).volumes.open(&name(vm)).await);
        volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    }
}

#[tokio::test]
async fn the_host_that_released_a_volume_takes_it_back_by_asking_or_by_writing() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.release().await.unwrap();
    let number = volume.state().number;
    assert_eq!(volume.release().await.unwrap().number, number, "released twice");
    volume.hold().await.unwrap();
    held(world.daemon(2).volumes.open(&name("vm")).await);
    volume.hold().await.unwrap();
    volume.release().await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    held(world.daemon(2).volumes.open(&name("vm")).await);
    // The next process of the same daemon.
    world.daemon(1).volumes.open(&name("vm")).await.unwrap();
}

#[tokio::test]
async fn compaction_does_not_take_a_released_volume_back() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(0, 8, seq)]), SIZE).await.unwrap();
    }
    volume.release().await.unwrap();
    volume.compact().await.unwrap().unwrap();
    let second = world.daemon(2).volumes.open(&name("vm")).await.unwrap();
    tags(&second, range(0, 8), &[8; 8]).await;
}

#[tokio::test]
async fn a_volume_of_a_version_that_named_no_holder_is_taken_over_on_purpose() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    let store = world.daemon(9).volumes.store().clone();
    let newest = store.latest_manifest(volume.id(), None).await.unwrap().unwrap();
    let plain = crate::store::format::Manifest {
        number: 2,
        sections: crate::store::format::Sections::default(),
        ..newest
    };
    let _: crate::store::Created = store.create_manifest(&plain).await.unwrap();
    assert_eq!(held(world.daemon(2).volumes.open(&name("vm")).await).0, None);
    world.daemon(1).volumes.open(&name("vm")).await.unwrap();
    world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_that_arrives_after_the_volume_was_taken_back_gives_nothing_up() {
    let world = World::new();
    let volume = world.daemon(1).volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    // The export is detached, and the release is given up while under way, as `RELEASE_PATIENCE` of the router does.
    world.objects.delay_every(Some("manifests"));
    let released = tokio::time::timeout(std::time::Duration::from_secs(10), volume.release()).await;
    assert!(!matches!(released, Ok(Ok(_))), "{released:?}");
    world.objects.delay_every(None);
    // The export is attached again: a release may be under way, so the router takes the volume back before the export gets a
    // device.
    volume.hold().await.unwrap();
    assert_eq!(world.objects.arrive().await, 0, "the release comes too late");
    // This host serves the export, and other hosts are refused.
    held(world.daemon(2).volumes.open(&name("vm")).await);
    volume.commit(MemoryCut::new(2, &[(0, 8, 2)]), SIZE).await.unwrap();
}

#[tokio::test]
async fn the_properties_given_to_a_writer_are_in_the_next_manifest_of_any_kind() {
    let unusual = Properties { durability: Durability::Store, ..Properties::default() };
    for step in 0..5 {
        let world = World::new();
        let daemon = world.daemon(1);
        // As an older version made it.
        let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
        if step == 4 {
            volume.release().await.unwrap();
        }
        assert!(!volume.set_properties(unusual), "the first properties are no change");
        match step {
            0 => drop(volume.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap()),
            1 => drop(volume.commit(MemoryCut::new(0, &[]), SIZE).await.unwrap()),
            2 => drop(volume.hold().await.unwrap()),
            _ => drop(volume.release().await.unwrap()),
        }
        assert_eq!(volume.properties().await.unwrap(), unusual, "step {step}");
        assert!(!volume.set_properties(unusual) && volume.set_properties(Properties::default()));
        let taken = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
        assert_eq!(taken.properties().await.unwrap(), unusual, "of the manifest before");
    }
}
