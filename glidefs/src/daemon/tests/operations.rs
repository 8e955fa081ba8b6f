//! Operations on exports with a volume in the store, and interruptions of these operations.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::host::{Host, World, name, request};
use crate::cache::IoError;
use crate::cache::driver::{PATIENCE, bytes_of};
use crate::router::Users;
use crate::router::{CreateExport, ExportInfo, ExportSize, InitialContent, RouterError};
use crate::store::volume::{VOLUME_BYTES_MAX, VolumeError};
use crate::store::{Created, Key};
use crate::units::{SECTOR_BYTES, SectorRange};

const SECTORS: u64 = 256;

fn blank() -> CreateExport {
    request("vm", InitialContent::Blank(ExportSize::new(SECTORS * SECTOR_BYTES).unwrap()))
}

fn write(host: &mut Host, number: u64) {
    let (volume, range) = (host.volume("vm"), SectorRange::new(8 * number, 8).unwrap());
    let data: Vec<u8> = (range.start()..range.end()).flat_map(|sector| bytes_of(number, sector)).collect();
    host.driver().write(&volume, range, Some(&data)).unwrap();
}

/// Whether the export holds write `number`, and not zeroes instead.
fn holds(host: &mut Host, number: u64) -> bool {
    let (volume, range) = (host.volume("vm"), SectorRange::new(8 * number, 8).unwrap());
    let found = host.driver().read(&volume, range).unwrap();
    let written: Vec<u8> = (range.start()..range.end()).flat_map(|sector| bytes_of(number, sector)).collect();
    assert!(found == written || found.iter().all(|byte| *byte == 0));
    found == written
}

#[test]
fn an_export_that_was_opened_goes_on_with_the_numbers_of_its_history() {
    let world = World::new(5, 0);
    let mut first = Host::new(&world);
    world.runtime.block_on(first.router().create(blank())).unwrap();
    (1..9).for_each(|number| write(&mut first, number));
    let last = world.runtime.block_on(first.router().write_back("vm")).unwrap();

    let mut host = Host::new(&world);
    world.runtime.block_on(host.router().create(request("vm", InitialContent::TakeOver))).unwrap();
    let figures = host.volume("vm").figures();
    // A write with an older sequence number would count as written back after a restart, though nobody wrote it back.
    assert_eq!((figures.last_seq, figures.stored), (last, last));
    write(&mut host, 9);
    host.restart(&world);
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
    let mut other = Host::new(&world);
    world.runtime.block_on(other.router().create(request("vm", InitialContent::TakeOver))).unwrap();
    assert!((1..=9).all(|number| holds(&mut other, number)));
}

#[test]
fn an_export_without_a_device_is_at_rest_after_a_start_and_goes_on_with_the_numbers_of_its_history() {
    let world = World::new(7, 0);
    let mut first = Host::new(&world);
    world.runtime.block_on(first.router().create(CreateExport { detached: true, ..blank() })).unwrap();
    assert!(first.router().exports().is_empty(), "nothing needs a volume");
    (1..9).for_each(|number| write(&mut first, number));
    let last = world.runtime.block_on(first.router().write_back("vm")).unwrap();
    world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();

    // Nothing of the export is in the cache of this host.
    let mut host = Host::new(&world);
    let opened = CreateExport { detached: true, ..request("vm", InitialContent::TakeOver) };
    world.runtime.block_on(host.router().create(opened)).unwrap();
    host.restart(&world);
    assert!(host.router().exports().is_empty(), "nothing needs a volume");
    assert_eq!(world.runtime.block_on(async { host.router().show("vm") }).unwrap().damaged_bytes, Some(0));
    let figures = host.volume("vm").figures();
    assert_eq!((figures.last_seq, figures.stored), (last, last), "numbers are not given out twice");
    assert!((1..9).all(|number| holds(&mut host, number)));
    write(&mut host, 9);
    host.restart(&world);
    assert_eq!(host.router().exports().len(), 1, "the cache has data of the export");
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
    assert!((1..=9).all(|number| holds(&mut host, number)));
}

#[test]
fn an_export_says_what_of_it_is_not_in_the_store_and_why() {
    let world = World::new(2, 0);
    let mut host = Host::new(&world);
    world.runtime.block_on(host.router().create(blank())).unwrap();
    let at_risk = |host: &Host| host.router().show("vm").unwrap().at_risk;
    assert_eq!(at_risk(&host), None);
    world.store_goes_away();
    write(&mut host, 1);
    host.router().begin_writeback("vm").unwrap();
    let deadline = Instant::now() + PATIENCE;
    let risk = loop {
        let risk = at_risk(&host).unwrap();
        if risk.reason.is_some() {
            break risk;
        }
        assert!(Instant::now() < deadline, "nobody says why");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(risk.bytes, 4096);
    assert!(risk.reason.unwrap().contains("the store does not answer"));
    world.store_comes_back();
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
    assert_eq!(at_risk(&host), None);
}

#[test]
fn a_snapshot_is_made_although_its_caller_went_away() {
    let world = World::new(3, 0);
    let mut host = Host::new(&world);
    world.runtime.block_on(host.router().create(blank())).unwrap();
    world.store_goes_away();
    write(&mut host, 1);
    let (router, snapshot) = (host.router(), name("kept"));
    world.runtime.block_on(async {
        let taken = tokio::time::timeout(Duration::from_millis(50), router.snapshot("vm", &snapshot)).await;
        assert!(taken.is_err(), "the store is away");
    });
    world.store_comes_back();
    let deadline = Instant::now() + PATIENCE;
    while world.runtime.block_on(router.snapshots("vm")).unwrap().is_empty() {
        assert!(Instant::now() < deadline, "nobody makes the snapshot");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_snapshot_that_exists_is_found_although_nothing_can_be_written_back() {
    let world = World::new(44, 0);
    let mut host = with_a_snapshot(&world);
    write(&mut host, 2);
    world.objects.pause_before("manifests");
    let router = host.router();
    let writeback = world.runtime.spawn(async move { router.write_back("vm").await });
    world.runtime.block_on(world.objects.paused());
    let (router, snapshot) = (host.router(), name("before"));
    let taken = world.runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(5), router.snapshot("vm", &snapshot)).await
    });
    let exists = |error: &RouterError| {
        matches!(error, RouterError::Store { source: VolumeError::SnapshotExists { .. }, .. })
    };
    assert!(taken.as_ref().is_ok_and(|taken| taken.as_ref().is_err_and(exists)), "{taken:?}");
    world.objects.resume();
    world.runtime.block_on(writeback).unwrap().unwrap();
}

#[test]
fn opening_an_export_twice_at_once_does_not_take_it_from_itself() {
    let world = World::new(1, 0);
    let first = Host::new(&world);
    world.runtime.block_on(first.router().create(blank())).unwrap();
    let mut host = Host::new(&world);
    for _ in 0..10 {
        let router = host.router();
        let opens = (0..4).map(|_| router.create(request("vm", InitialContent::TakeOver)));
        let opened = world.runtime.block_on(futures_util::future::join_all(opens));
        assert!(opened.iter().all(Result::is_ok), "{opened:?}");
        write(&mut host, 1);
        world.runtime.block_on(router.write_back("vm")).unwrap();
        let mut other = Host::new(&world);
        world.runtime.block_on(other.router().create(request("vm", InitialContent::TakeOver))).unwrap();
        assert!(holds(&mut other, 1));
        world.runtime.block_on(router.delete("vm", Users::Spare)).unwrap();
    }
}

#[test]
fn an_export_that_another_host_took_over_is_neither_opened_nor_attached_nor_served_with_its_old_content() {
    for through in ["open", "attach", "start"] {
        let world = World::new(8, 0);
        let mut first = Host::new(&world);
        world.runtime.block_on(first.router().create(blank())).unwrap();
        write(&mut first, 1);
        world.runtime.block_on(first.router().write_back("vm")).unwrap();
        if through == "attach" {
            world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
        }
        let mut other = Host::new(&world);
        world.runtime.block_on(other.router().create(request("vm", InitialContent::TakeOver))).unwrap();
        write(&mut other, 2);
        world.runtime.block_on(other.router().write_back("vm")).unwrap();

        let router = first.router();
        let lost = match through {
            "open" => {
                world.runtime.block_on(router.create(request("vm", InitialContent::TakeOver))).map(drop)
            }
            "attach" => world.runtime.block_on(router.attach("vm", true)).map(drop),
            _ => {
                drop(router);
                first.restart(&world);
                world.runtime.block_on(first.router().confirm());
                world
                    .runtime
                    .block_on(first.router().create(request("vm", InitialContent::TakeOver)))
                    .map(drop)
            }
        };
        assert!(matches!(lost, Err(RouterError::Lost { .. })), "{through}: {lost:?}");
        let volume = first.volume("vm");
        let range = SectorRange::new(8, 8).unwrap();
        assert_eq!(first.driver().read(&volume, range), Err(IoError::Fenced), "{through}");
        // The advice in the message works.
        world.runtime.block_on(first.router().delete("vm", Users::Spare)).unwrap();
        world.runtime.block_on(first.router().create(request("vm", InitialContent::TakeOver))).unwrap();
        assert!(holds(&mut first, 1) && holds(&mut first, 2), "{through}");
    }
}

#[test]
fn a_store_that_is_not_the_one_with_the_exports_is_not_used_and_not_made_one() {
    let (world, elsewhere) = (World::new(6, 0), World::new(7, 0));
    let mut host = Host::new(&world);
    world.runtime.block_on(host.router().create(blank())).unwrap();
    write(&mut host, 1);
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
    write(&mut host, 2);
    for made in [false, true] {
        if made {
            let other = Host::new(&elsewhere);
            elsewhere.runtime.block_on(other.router().create(blank())).unwrap();
        }
        host.restart(&elsewhere);
        let more = CreateExport { name: name("more"), ..blank() };
        let refused = elsewhere.runtime.block_on(host.router().create(more)).unwrap_err();
        let cause = std::error::Error::source(&refused).map(ToString::to_string).unwrap_or_default();
        assert!(cause.contains("store.url"), "{refused:?}");
    }
    host.restart(&world);
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
    let mut other = Host::new(&world);
    world.runtime.block_on(other.router().create(request("vm", InitialContent::TakeOver))).unwrap();
    assert!(holds(&mut other, 1) && holds(&mut other, 2));
}

#[test]
fn a_waiter_for_the_writeback_of_an_export_that_is_removed_is_told() {
    let world = World::new(2, 0);
    let mut host = Host::new(&world);
    world.runtime.block_on(host.router().create(blank())).unwrap();
    world.objects.end_after(0, false);
    write(&mut host, 1);
    let volume = host.volume("vm");
    let id = volume.id();
    let waiting = world.runtime.spawn(async move { volume.written_back().await });
    let deadline = Instant::now() + PATIENCE;
    while !world.objects.has_ended() {
        assert!(Instant::now() < deadline, "the export is not being written back");
        std::thread::sleep(Duration::from_millis(1));
    }
    host.driver().cache.remove(id);
    let answer = world.runtime.block_on(async { tokio::time::timeout(PATIENCE, waiting).await });
    assert_eq!(answer.unwrap().unwrap(), Err(IoError::Removed(id)));
}

#[test]
fn an_export_from_before_there_was_a_store_is_brought_to_it_and_until_then_no_drain_says_it_is() {
    let world = World::new(3, 0);
    let mut host = Host::without_store(&world);
    world.runtime.block_on(host.router().create(blank())).unwrap();
    write(&mut host, 1);
    let failed = world.runtime.block_on(host.router().drain()).failed;
    assert!(matches!(failed[..], [RouterError::NotInStore { .. }]), "{failed:?}");

    host.restart(&world);
    let failed = world.runtime.block_on(host.router().drain()).failed;
    assert_eq!(failed.len(), 1, "it is not brought yet");
    assert_eq!(world.runtime.block_on(host.router().bring_to_store()), 0);
    write(&mut host, 2);
    let drain = world.runtime.block_on(host.router().drain());
    assert_eq!((drain.written_back, drain.kept, drain.failed.len()), (1, 1, 0));
    host.restart(&world);
    assert!(holds(&mut host, 1) && holds(&mut host, 2));

    let mut other = Host::new(&world);
    world.runtime.block_on(other.router().create(request("vm", InitialContent::TakeOver))).unwrap();
    assert!(holds(&mut other, 1) && holds(&mut other, 2));
}

#[test]
fn a_rollback_that_the_store_did_not_take_is_finished_before_the_export_has_a_device_again() {
    for requests in 0.. {
        let world = World::new(4 + requests, 0);
        let mut host = Host::new(&world);
        let router = host.router();
        world.runtime.block_on(router.create(blank())).unwrap();
        write(&mut host, 1);
        world.runtime.block_on(router.snapshot("vm", &name("before"))).unwrap();
        write(&mut host, 2);
        world.runtime.block_on(router.detach("vm", Users::Spare)).unwrap();
        world.objects.end_after(requests, requests % 2 == 1);
        let rollback = world.runtime.spawn({
            let router = router.clone();
            async move { router.rollback("vm", name("before")).await }
        });
        let deadline = Instant::now() + PATIENCE;
        while !rollback.is_finished() && !world.objects.has_ended() {
            assert!(Instant::now() < deadline, "neither done nor lost");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The end of the daemon ends the wait for the store.
        world.runtime.block_on(router.stop());
        let done = world.runtime.block_on(rollback).unwrap().is_ok();
        drop(router);
        world.objects.go_on();
        host.restart(&world);

        let router = host.router();
        let pending = world.runtime.block_on(router.delete_snapshot("vm", &name("before")));
        if let Err(RouterError::SnapshotNeeded { .. }) = pending {
            assert!(!done);
            let refused = world.runtime.block_on(router.resize("vm", ExportSize::new(1 << 30).unwrap()));
            assert!(matches!(refused, Err(RouterError::HalfRolledBack { .. })), "{refused:?}");
            world.runtime.block_on(router.attach("vm", true)).unwrap();
            assert!(holds(&mut host, 1) && !holds(&mut host, 2), "lost after {requests} requests");
        } else {
            pending.unwrap();
            world.runtime.block_on(router.attach("vm", true)).unwrap();
            assert!(holds(&mut host, 1), "lost after {requests} requests");
            assert_eq!(holds(&mut host, 2), !done, "it went back, or it did not begin to");
        }
        if done {
            assert!(requests >= 3, "a listing, a snapshot, and a manifest");
            break;
        }
    }
}

#[test]
fn an_export_that_cannot_fit_its_manifest_is_neither_made_nor_grown_and_told_the_largest_size() {
    let world = World::new(6, 0);
    let host = Host::new(&world);
    let router = host.router();
    let sized = |bytes| request("vm", InitialContent::Blank(ExportSize::new(bytes).unwrap()));
    let refused = |error: RouterError| {
        let text = crate::observe::chain(&error);
        assert!(text.contains(&format!("{VOLUME_BYTES_MAX} bytes (16 TiB) is the most")), "{text}");
        assert!(matches!(error, RouterError::Store { source: VolumeError::TooLarge { .. }, .. }));
    };
    refused(world.runtime.block_on(router.create(sized(VOLUME_BYTES_MAX + SECTOR_BYTES))).unwrap_err());
    assert!(router.list().is_empty());
    world.runtime.block_on(router.create(blank())).unwrap();
    let resize = |bytes| world.runtime.block_on(router.resize("vm", ExportSize::new(bytes).unwrap()));
    refused(resize(VOLUME_BYTES_MAX + SECTOR_BYTES).unwrap_err());
    assert_eq!(router.list()[0].size_bytes, SECTORS * SECTOR_BYTES);
    assert_eq!(resize(VOLUME_BYTES_MAX).unwrap().size_bytes, VOLUME_BYTES_MAX);
}

/// A rollback that has found its snapshot, and waits for the writeback.
fn rollback_in_writeback(world: &World, host: &mut Host) -> JoinHandle<Result<ExportInfo, RouterError>> {
    world.objects.pause_before("manifests");
    write(host, 2);
    let router = host.router();
    let rollback = world.runtime.spawn(async move { router.rollback("vm", name("before")).await });
    world.runtime.block_on(world.objects.paused());
    rollback
}

#[test]
fn an_export_whose_snapshot_is_deleted_while_it_begins_to_go_back_can_be_attached_again() {
    let world = World::new(41, 0);
    let mut host = with_a_snapshot(&world);
    let router = host.router();
    let rollback = rollback_in_writeback(&world, &mut host);
    // Somebody deletes old snapshots meanwhile. Nothing shows that this snapshot is needed.
    assert!(world.runtime.block_on(router.delete_snapshot("vm", &name("before"))).unwrap());
    world.objects.resume();
    let rolled_back = world.runtime.block_on(rollback).unwrap();
    assert!(matches!(rolled_back, Err(RouterError::SnapshotGone { .. })), "{rolled_back:?}");
    world.runtime.block_on(router.attach("vm", true)).unwrap();
    drop(router);
    assert!(holds(&mut host, 1) && holds(&mut host, 2), "nothing was given up");
    // The same for the next daemon.
    write(&mut host, 3);
    host.restart(&world);
    assert!((1..4).all(|number| holds(&mut host, number)));
}

#[test]
fn an_export_that_went_back_without_an_answer_to_a_snapshot_that_is_gone_is_what_the_store_has() {
    let world = World::new(42, 0);
    let mut host = with_a_snapshot(&world);
    let router = host.router();
    write(&mut host, 2);
    let size = ExportSize::new(2 * SECTORS * SECTOR_BYTES).unwrap();
    world.runtime.block_on(router.resize("vm", size)).unwrap();
    world.runtime.block_on(router.write_back("vm")).unwrap();
    world.objects.fail_creations("manifests", 1, true);
    let rolled_back = world.runtime.block_on(router.rollback("vm", name("before")));
    assert!(matches!(rolled_back, Err(RouterError::Store { .. })), "{rolled_back:?}");
    // The deletion of the snapshot was in flight before the rollback began.
    let remote = host.volume("vm").remote().unwrap().clone();
    world.runtime.block_on(remote.delete_snapshot(&"before".parse().unwrap())).unwrap();
    let attached = world.runtime.block_on(router.attach("vm", true));
    assert!(matches!(attached, Err(RouterError::SnapshotGone { .. })), "{attached:?}");
    let info = world.runtime.block_on(router.attach("vm", true)).unwrap();
    assert_eq!(info.size_bytes, SECTORS * SECTOR_BYTES);
    drop(router);
    assert!(holds(&mut host, 1) && !holds(&mut host, 2));
    write(&mut host, 3);
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
}

#[test]
fn an_export_that_goes_back_while_everything_is_drained_is_released_as_well() {
    let world = World::new(43, 0);
    let mut host = with_a_snapshot(&world);
    let router = host.router();
    let rollback = rollback_in_writeback(&world, &mut host);
    // The drain writes the old export back, and waits with the release for the rollback.
    let drain = world.runtime.spawn({
        let router = router.clone();
        async move { router.drain().await }
    });
    world.runtime.block_on(async {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    });
    world.objects.resume();
    world.runtime.block_on(rollback).unwrap().unwrap();
    let drain = world.runtime.block_on(drain).unwrap();
    assert_eq!((drain.written_back, drain.kept, drain.failed.len()), (1, 0, 0));
    let mut other = Host::new(&world);
    world.runtime.block_on(other.router().create(request("vm", InitialContent::Store))).unwrap();
    assert!(holds(&mut other, 1) && !holds(&mut other, 2));
}

#[test]
fn a_fork_is_of_the_volume_that_its_origin_has_here_whatever_the_name_means_in_the_store() {
    for snapshot in [None, Some(name("before"))] {
        let world = World::new(45, 0);
        let mut host = with_a_snapshot(&world);
        world.runtime.block_on(host.router().write_back("vm")).unwrap();
        // Another host moves the volume to another name, and makes a volume with the first one.
        let other = Host::new(&world);
        let store = host.volumes().store().clone();
        let (from, to) = ("vm".parse().unwrap(), "moved".parse().unwrap());
        world.runtime.block_on(async {
            let record = store.name(&from).await.unwrap().unwrap();
            let _: Created = store.create_name(&to, &record).await.unwrap();
            store.delete(&[Key::Name(from)]).await.unwrap();
            other.router().create(blank()).await.unwrap();
        });
        let fork = request("fork", InitialContent::Fork { of: name("vm"), snapshot });
        world.runtime.block_on(host.router().create(fork)).unwrap();
        let (volume, range) = (host.volume("fork"), SectorRange::new(8, 8).unwrap());
        let written: Vec<u8> = (range.start()..range.end()).flat_map(|at| bytes_of(1, at)).collect();
        assert!(host.driver().read(&volume, range).unwrap() == written);
    }
}

/// A host with a detached export that holds write 1, and a snapshot "before" with the same content.
fn with_a_snapshot(world: &World) -> Host {
    let mut host = Host::new(world);
    let detached = CreateExport { detached: true, ..blank() };
    world.runtime.block_on(host.router().create(detached)).unwrap();
    write(&mut host, 1);
    world.runtime.block_on(host.router().snapshot("vm", &name("before"))).unwrap();
    host
}
