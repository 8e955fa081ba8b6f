//! The store stops at each request of a change, once before and once after the request has its effect.
//!
//! Then another host opens the state before or after the change, and the stopped daemon can make the change again.

use super::super::compact::plan::MergeLimits;
use super::support::*;
use crate::store::volume::{Resume, StatePoint, VolumeError, VolumeWriter};

const SIZE: u64 = 1 << 21;
const BEFORE: [Tag; 4] = [1, 2, 3, 0];
const AFTER: [Tag; 4] = [1, 5, 3, 7];

fn cut() -> std::sync::Arc<MemoryCut> {
    MemoryCut::new(20, &[(1, 1, 5), (3, 1, 7)])
}

/// A volume with content [`BEFORE`], a step of compaction due, and a snapshot with content [`AFTER`].
async fn volume(daemon: &Daemon) -> VolumeWriter {
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    volume.commit(MemoryCut::new(1, &[(0, 1, 1), (1, 1, 5), (2, 1, 3), (3, 1, 7)]), SIZE).await.unwrap();
    volume.snapshot(&name("after")).await.unwrap();
    for seq in 2..10 {
        volume
            .commit(MemoryCut::new(seq, &[(0, 1, 1), (1, 1, 2), (2, 1, 3), (3, 1, 0)]), SIZE)
            .await
            .unwrap();
    }
    volume
}

async fn reads_as(volume: &VolumeWriter, tags: &[Tag; 4]) -> bool {
    is(&volume.read(range(0, 4)).await.unwrap(), tags)
}

fn is(bytes: &[u8], tags: &[Tag; 4]) -> bool {
    bytes.chunks(512).zip(tags).all(|(found, tag)| found == sector(*tag))
}

/// Runs `change` with a stop at each request. Then `again` makes the change once more, and the volume has the content `after`.
async fn at_each_request(
    resumed: bool,
    after: &[Tag; 4],
    change: impl AsyncFn(&Daemon, &VolumeWriter) -> Result<(), VolumeError>,
) -> u64 {
    for arrives in [false, true] {
        for requests in 0.. {
            let world = World::new();
            let daemon = world.daemon(1);
            let mut volume = volume(&daemon).await;
            let mut state = volume.state();
            if resumed {
                state = Resume { manifest: None, ..state };
                volume = world.daemon(1).volumes.resume(&state);
            }
            world.objects.end_after(requests, arrives);
            let result = change(&daemon, &volume).await;
            let stopped = world.objects.go_on();
            if !stopped {
                result.unwrap();
                assert!(reads_as(&volume, after).await);
                if arrives {
                    return requests;
                }
                break;
            }
            // A restart of the same daemon, with the state its disk had before.
            let daemon = world.daemon(1);
            let again = daemon.volumes.resume(&state);
            assert!(reads_as(&again, &BEFORE).await);
            change(&daemon, &again).await.unwrap_or_else(|error| {
                panic!("stopped after {requests} requests (arrives: {arrives}), again: {error}")
            });
            assert!(reads_as(&again, after).await);
            // Another host opens the volume.
            let opened = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
            assert!(reads_as(&opened, after).await);
            let fenced = again.commit(cut(), SIZE).await;
            assert!(matches!(fenced, Err(VolumeError::Fenced(_))));
        }
    }
    unreachable!("some number of requests is enough")
}

/// As [`at_each_request`], but nobody makes the change again.
async fn and_another_host_opens_it(
    after: &[Tag; 4],
    change: impl AsyncFn(&VolumeWriter) -> Result<(), VolumeError>,
) {
    for arrives in [false, true] {
        for requests in 0.. {
            let world = World::new();
            let daemon = world.daemon(1);
            let volume = volume(&daemon).await;
            world.objects.end_after(requests, arrives);
            let result = change(&volume).await;
            let stopped = world.objects.go_on();
            let opened = world.daemon(2).volumes.take_over(&name("vm")).await.unwrap();
            let before = reads_as(&opened, &BEFORE).await;
            assert!(before || reads_as(&opened, after).await);
            assert!(!before || BEFORE == *after || result.is_err());
            if !stopped {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_commit_is_there_or_not() {
    let commit = async |volume: &VolumeWriter| volume.commit(cut(), SIZE).await.map(drop);
    and_another_host_opens_it(&AFTER, commit).await;
    // A new process asks for the newest number, and for the newest manifest.
    for (resumed, requests) in [(false, 2), (true, 4)] {
        let commit = async |_: &Daemon, volume: &VolumeWriter| volume.commit(cut(), SIZE).await.map(drop);
        assert_eq!(at_each_request(resumed, &AFTER, commit).await, requests);
    }
}

#[tokio::test]
async fn a_rollback_is_there_or_not() {
    let rollback = async |volume: &VolumeWriter| volume.rollback(&name("after")).await.map(drop);
    and_another_host_opens_it(&AFTER, rollback).await;
    let rollback = async |_: &Daemon, volume: &VolumeWriter| volume.rollback(&name("after")).await.map(drop);
    assert_eq!(at_each_request(false, &AFTER, rollback).await, 3);
}

#[tokio::test]
async fn a_rollback_to_packs_that_were_merged_since_is_there_or_not() {
    let rollback = async |_: &Daemon, volume: &VolumeWriter| {
        while volume.compact().await?.is_some() {}
        volume.rollback(&name("after")).await.map(drop)
    };
    at_each_request(false, &AFTER, &rollback).await;
    let daemon = World::new().daemon(1);
    let volume = volume(&daemon).await;
    while volume.compact().await.unwrap().is_some() {}
    let before = volume.state().number;
    rollback(&daemon, &volume).await.unwrap();
    assert_eq!(volume.state().number, before + 2, "a manifest that keeps the packs, and the rollback");
}

#[tokio::test]
async fn compaction_changes_no_content_wherever_it_stops() {
    let compact = async |volume: &VolumeWriter| volume.compact_within(&MergeLimits::USUAL).await.map(drop);
    and_another_host_opens_it(&BEFORE, compact).await;
    let compact = async |_: &Daemon, volume: &VolumeWriter| volume.compact().await.map(drop);
    assert!(at_each_request(false, &BEFORE, compact).await > 10);
}

#[tokio::test]
async fn a_fork_that_stopped_can_be_made_again_under_its_name() {
    let fork = async |_: &Daemon, volume: &VolumeWriter| {
        let fork = match volume.fork(&name("fork")).await {
            // The answer to the first manifest was lost: the volume exists.
            Err(VolumeError::NameTaken { .. }) => {
                let volumes = super::super::VolumeStore { host: volume.host.clone() };
                volumes.take_over(&name("fork")).await?
            }
            fork => fork?,
        };
        assert!(is(&fork.read(range(0, 4)).await?, &BEFORE));
        Ok(())
    };
    assert!(at_each_request(false, &BEFORE, fork).await < 20);
}

#[tokio::test]
async fn a_snapshot_that_stopped_is_there_or_can_be_made_again() {
    let snapshot = async |daemon: &Daemon, volume: &VolumeWriter| {
        match volume.snapshot(&name("s")).await {
            Err(VolumeError::SnapshotExists { .. }) => {}
            result => drop(result?),
        }
        let point = StatePoint { volume: volume.id(), snapshot: Some(name("s")) };
        let view = daemon.volumes.view(&point).await?;
        compare(range(0, 4), &view.read(range(0, 4)).await?, &BEFORE);
        Ok(())
    };
    at_each_request(false, &BEFORE, snapshot).await;
}

#[tokio::test]
async fn a_deletion_that_stopped_can_be_made_again() {
    for arrives in [false, true] {
        for requests in 0.. {
            let world = World::new();
            let daemon = world.daemon(1);
            let volume = volume(&daemon).await;
            let state = volume.state();
            world.objects.end_after(requests, arrives);
            let result = volume.delete().await;
            if !world.objects.go_on() {
                result.unwrap();
                assert_eq!(requests, 9);
                break;
            }
            world.daemon(1).volumes.resume(&state).delete().await.unwrap();
            assert!(matches!(
                world.daemon(2).volumes.take_over(&name("vm")).await,
                Err(VolumeError::NoSuchName { .. })
            ));
        }
    }
}
