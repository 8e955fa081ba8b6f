//! Create, commit, open and resume; the cost of each in requests; and who may write.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::support::*;
use crate::store::backend::Backend;
use crate::store::clock::SystemClock;
use crate::store::format::PACK_BYTES_TARGET;
use crate::store::gc::{GcOptions, collect};
use crate::store::ids::WriterId;
use crate::store::key::{Folder, Key};
use crate::store::url::StoreUrl;
use crate::store::volume::{CutExtent, CutSource, Fence, Loss, TRUST_TIME_MAX, VolumeError};
use crate::units::{SECTOR_BYTES, Seq};

const SIZE: u64 = 1 << 21;

#[tokio::test]
async fn what_was_committed_is_read_and_the_rest_is_zero() {
    let daemon = World::new().daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    assert!(!volume.covers(range(0, SIZE)));
    tags(&volume, range(5, 3), &[0, 0, 0]).await;
    let committed =
        volume.commit(MemoryCut::new(3, &[(8, 8, 1), (16, 4, 2), (300, 2, 0)]), SIZE).await.unwrap();
    assert_eq!((committed.crowd.packs, committed.resume.cut, committed.resume.number), (1, Seq(3), 2));
    tags(&volume, range(6, 16), &[0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0]).await;
    volume.commit(MemoryCut::new(5, &[(9, 1, 7), (12, 6, 0)]), SIZE).await.unwrap();
    tags(&volume, range(8, 12), &[1, 7, 1, 1, 0, 0, 0, 0, 0, 0, 2, 2]).await;
    assert!(volume.covers(range(0, 9)) && !volume.covers(range(0, 8)) && !volume.covers(range(302, 9)));
    assert_eq!((volume.cut(), volume.size_sectors()), (Seq(5), SIZE));
    assert_eq!(volume.mapped(range(0, SIZE)).await.unwrap(), [range(8, 4), range(18, 2)]);
}

#[tokio::test]
async fn another_host_takes_over_and_the_first_is_fenced_for_good() {
    let world = World::new();
    let (first, second) = (world.daemon(1), world.daemon(2));
    let old = first.volumes.create(&name("vm"), SIZE).await.unwrap();
    old.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
    let new = second.volumes.take_over(&name("vm")).await.unwrap();
    assert_eq!(new.writer(), Fence { epoch: 2, writer: WriterId([2; 16]) });
    tags(&new, range(0, 8), &[1; 8]).await;
    for round in 0..3 {
        let before = first.requests();
        let error = old.commit(MemoryCut::new(2, &[(0, 8, 3)]), SIZE).await.unwrap_err();
        let VolumeError::Fenced(taker) = &error else { panic!("{error}") };
        assert_eq!((taker.fence, old.loss()), (new.writer(), Some(Loss::Fenced(taker.clone()))));
        assert!(error.to_string().contains("(host host-2, epoch 2)"), "{error}");
        assert!(error.is_fatal() && !error.is_transient() && error.to_string().contains("one host"));
        assert!(round == 0 || first.since(before) == [0; 5]);
    }
    // Reads still work.
    tags(&old, range(0, 8), &[1; 8]).await;
    new.commit(MemoryCut::new(9, &[(4, 8, 5)]), SIZE).await.unwrap();
    tags(&new, range(0, 8), &[1, 1, 1, 1, 5, 5, 5, 5]).await;
    // And back again.
    let third = first.volumes.take_over(&name("vm")).await.unwrap();
    assert_eq!(third.writer().epoch, 3);
    assert!(new.commit(MemoryCut::new(10, &[]), SIZE).await.unwrap_err().is_fatal());
}

#[tokio::test]
async fn a_writer_whose_number_was_freed_is_fenced_all_the_same() {
    for through in ["hours", "restart"] {
        let world = World::new();
        let (first, second) = (world.daemon(1), world.daemon(2));
        let old = first.volumes.create(&name("vm"), SIZE).await.unwrap();
        let new = second.volumes.take_over(&name("vm")).await.unwrap();
        new.commit(MemoryCut::new(1, &[(0, 8, 1)]), SIZE).await.unwrap();
        // As garbage collection would.
        let keys: Vec<Key> = (1..3).map(|number| Key::Manifest(new.id(), number)).collect();
        second.volumes.store().delete(&keys).await.unwrap();
        let old = if through == "hours" {
            world.clock.advance(TRUST_TIME_MAX * 2);
            old
        } else {
            world.daemon(1).volumes.resume(&old.state())
        };
        let error = old.commit(MemoryCut::new(2, &[(0, 8, 3)]), SIZE).await.unwrap_err();
        assert!(matches!(error, VolumeError::Fenced(ref taker) if taker.fence == new.writer()), "{error}");
        tags(&new, range(0, 8), &[1; 8]).await;
    }
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_adopted() {
    for restart in [false, true] {
        let world = World::new();
        let daemon = world.daemon(1);
        let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
        let before = volume.state();
        world.objects.end_after(1, true);
        volume.commit(MemoryCut::new(1, &[(0, 8, 1), (8, 8, 2)]), SIZE).await.unwrap_err();
        assert!(world.objects.go_on());
        let volume = if restart { world.daemon(1).volumes.resume(&before) } else { volume };
        assert_eq!(volume.cut(), Seq(0));
        let newer = MemoryCut::new(4, &[(0, 8, 3), (8, 8, 2), (20, 1, 1)]);
        let committed = volume.commit(newer, SIZE).await.unwrap();
        assert_eq!((committed.resume.number, committed.resume.epoch), (3, 1));
        let expected: Vec<Tag> = [vec![3; 8], vec![2; 8], vec![0; 4], vec![1]].concat();
        tags(&volume, range(0, 21), &expected).await;
        tags(&world.daemon(2).volumes.take_over(&name("vm")).await.unwrap(), range(0, 21), &expected).await;
    }
}

#[tokio::test]
async fn what_was_cut_off_is_zero_when_the_volume_grows_again() {
    let daemon = World::new().daemon(1);
    let volume = daemon.volumes.create(&name("vm"), 100).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 100, 1)]), 100).await.unwrap();
    volume.commit(MemoryCut::new(2, &[(0, 1, 2)]), 50).await.unwrap();
    volume.commit(MemoryCut::new(2, &[]), 100).await.unwrap();
    assert_eq!(volume.size_sectors(), 100);
    let expected: Vec<Tag> = [vec![2], vec![1; 49], vec![0; 50]].concat();
    tags(&volume, range(0, 100), &expected).await;
    let error = volume.commit(MemoryCut::new(3, &[(90, 20, 1)]), 100).await.unwrap_err();
    assert!(matches!(error, VolumeError::BadCut(_)), "{error}");
}

#[tokio::test]
async fn volumes_may_be_as_large_as_numbers_go() {
    let daemon = World::new().daemon(1);
    let size = 1 << 54;
    let volume = daemon.volumes.create(&name("vm"), size).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(size - 8, 8, 1)]), size).await.unwrap();
    tags(&volume, range(size - 10, 10), &[0, 0, 1, 1, 1, 1, 1, 1, 1, 1]).await;
    assert_eq!(volume.mapped(range(0, size)).await.unwrap(), [range(size - 8, 8)]);
}

#[tokio::test]
async fn a_large_cut_becomes_several_packs_side_by_side() {
    let daemon = World::new().daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let sectors = (2 * PACK_BYTES_TARGET + (5 << 20)) / SECTOR_BYTES;
    let extent = |start, count| CutExtent { range: range(start, count), seq: Seq(9), zero: false };
    let cut = Arc::new(BigCut(vec![extent(3, 5), extent(8, sectors), extent(sectors + 9, 1)]));
    let before = daemon.requests();
    let committed = volume.commit(cut, SIZE).await.unwrap();
    assert_eq!(committed.crowd.packs, 3);
    assert_eq!(daemon.since(before), [0, 4, 0, 0, 0]);
    assert_eq!(volume.crowd().map(|crowd| crowd.fan_out), Some(1));
    for start in [3, 65_530, 65_700, sectors - 100] {
        let expected: Vec<Tag> = (start..start + 100).map(|at| 2 * at + 1).collect();
        tags(&volume, range(start, 100), &expected).await;
    }
    tags(&volume, range(sectors + 7, 4), &[2 * sectors + 15, 0, 2 * sectors + 19, 0]).await;
}

#[tokio::test]
async fn a_cut_that_cannot_be_read_changes_nothing() {
    let daemon = World::new().daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let cut = MemoryCut::new(1, &[(0, 8, 1)]);
    *cut.failing.lock().unwrap() = true;
    let error = volume.commit(cut.clone(), SIZE).await.unwrap_err();
    assert!(matches!(&error, VolumeError::Cut(_)) && error.is_transient(), "{error}");
    assert_eq!(daemon.volumes.store().list(Folder::All, None).await.unwrap().len(), 2);
    *cut.failing.lock().unwrap() = false;
    volume.commit(cut, SIZE).await.unwrap();
    let overlap = MemoryCut::new(1, &[(0, 8, 1)]);
    let twice = BigCut([overlap.extents(), overlap.extents()].concat());
    assert!(matches!(volume.commit(Arc::new(twice), SIZE).await, Err(VolumeError::BadCut(_))));
}

#[tokio::test]
async fn a_name_is_given_once_and_one_of_an_unfinished_volume_is_used() {
    let world = World::new();
    let daemon = world.daemon(1);
    world.objects.end_after(1, false);
    daemon.volumes.create(&name("vm"), SIZE).await.unwrap_err();
    world.objects.go_on();
    let error = daemon.volumes.take_over(&name("vm")).await.unwrap_err();
    assert!(matches!(error, VolumeError::NoSuchVolume { .. }), "{error}");
    let volume = world.daemon(2).volumes.create(&name("vm"), SIZE).await.unwrap();
    assert_eq!(daemon.volumes.find(&name("vm")).await.unwrap(), Some(volume.id()));
    let error = daemon.volumes.create(&name("vm"), SIZE).await.unwrap_err();
    assert!(matches!(error, VolumeError::NameTaken { .. }), "{error}");
    let error = daemon.volumes.take_over(&name("other")).await.unwrap_err();
    assert!(matches!(error, VolumeError::NoSuchName { .. }), "{error}");
    assert_eq!(daemon.volumes.names().await.unwrap(), [name("vm")]);
}

#[tokio::test]
async fn a_directory_is_a_store_as_well() {
    let directory = tempfile::TempDir::new().unwrap();
    let world = World::new();
    let daemon = |writer| {
        let url = StoreUrl::File(directory.path().into());
        world.daemon_over(writer, Backend::connect(&url, &Vec::new(), false).unwrap(), 1 << 20)
    };
    let first = daemon(1);
    let volume = first.volumes.create(&name("vm"), SIZE).await.unwrap();
    for seq in 1..=8 {
        volume.commit(MemoryCut::new(seq, &[(seq * 50, 60, seq)]), SIZE).await.unwrap();
    }
    volume.compact().await.unwrap().unwrap();
    let fork = volume.fork(&name("fork")).await.unwrap();
    volume.delete().await.unwrap();
    let options = GcOptions { grace: Duration::ZERO, alone: true, dry_run: false };
    for _ in 0..4 {
        collect(first.volumes.store(), &SystemClock, &options).await.unwrap();
    }
    tags(&fork, range(100, 50), &[2; 50]).await;
    let again = daemon(2);
    let reopened = again.volumes.take_over(&name("fork")).await.unwrap();
    assert!(fork.commit(MemoryCut::new(1, &[]), SIZE).await.unwrap_err().is_fatal());
    tags(&reopened, range(400, 60), &[8; 60]).await;
    reopened.delete().await.unwrap();
    for _ in 0..4 {
        collect(again.volumes.store(), &SystemClock, &options).await.unwrap();
    }
    assert_eq!(keys_in(again.volumes.store()).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_volumes_cost_little_and_are_committed_together() {
    assert!(
        size_of::<super::super::writer::state::WriterState>() <= 400,
        "{}",
        size_of::<super::super::writer::state::WriterState>()
    );
    let world = World::new();
    let daemon = world.daemon(1);
    let mut volumes = Vec::new();
    for number in 0..1000 {
        volumes.push(daemon.volumes.create(&name(&format!("vm{number}")), SIZE).await.unwrap());
    }
    let commits = volumes.iter().zip(1..).map(|(volume, tag)| {
        let volume = volume.clone();
        tokio::spawn(async move { volume.commit(MemoryCut::new(1, &[(0, 8, tag)]), SIZE).await })
    });
    for commit in join_all(commits).await {
        commit.unwrap().unwrap();
    }
    for (volume, tag) in volumes.iter().zip(1..) {
        tags(volume, range(0, 8), &[tag; 8]).await;
    }
}

/// A check at compile time only.
#[test]
fn volumes_are_used_from_any_thread() {
    fn any<T: Send + Sync>() {}
    fn send<T: Send>(_: impl FnOnce(super::super::VolumeWriter) -> T) {}
    any::<super::super::VolumeWriter>();
    any::<super::super::VolumeStore>();
    send(|volume| async move { volume.commit(MemoryCut::new(1, &[]), 1).await });
    send(|volume| async move { volume.read(range(0, 1)).await });
    send(|volume| async move { volume.mapped(range(0, 1)).await });
    send(|volume| async move { volume.snapshot(&name("s")).await });
    send(|volume| async move { volume.rollback(&name("s")).await });
    send(|volume| async move { volume.fork(&name("s")).await });
    send(|volume| async move { volume.delete().await });
}
