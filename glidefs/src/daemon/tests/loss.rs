//! Exports that this host has lost, and the ways out.

use std::time::{Duration, Instant};

use super::host::{Host, World, name, request};
use super::sim::faults::Crash;
use crate::cache::IoError;
use crate::cache::driver::bytes_of;
use crate::properties::PropertiesChange;
use crate::router::Users;
use crate::router::tests::fake::Fault;
use crate::router::{CreateExport, ExportSize, InitialContent, RouterError, State};
use crate::store::volume::VolumeError;
use crate::units::{SECTOR_BYTES, SectorRange};

pub(super) fn blank() -> CreateExport {
    request("vm", InitialContent::Blank(ExportSize::new(256 * SECTOR_BYTES).unwrap()))
}

pub(super) fn written(number: u64) -> (SectorRange, Vec<u8>) {
    let range = SectorRange::new(8 * number, 8).unwrap();
    (range, (range.start()..range.end()).flat_map(|sector| bytes_of(number, sector)).collect())
}

pub(super) fn write(host: &mut Host, number: u64) {
    let (volume, (range, data)) = (host.volume("vm"), written(number));
    host.driver().write(&volume, range, Some(&data)).unwrap();
}

/// The writes among 1 to 4 that an export holds.
pub(super) fn held(host: &mut Host, export: &str) -> Vec<u64> {
    let volume = host.volume(export);
    let mut held = Vec::new();
    for number in 1..5 {
        let (range, data) = written(number);
        let found = host.driver().read(&volume, range).unwrap();
        assert!(found == data || found.iter().all(|byte| *byte == 0));
        held.extend((found == data).then_some(number));
    }
    held
}

/// Whether the export holds write 1. The cache has all data of write 1.
pub(super) fn has_first(host: &mut Host) -> bool {
    let (volume, (range, data)) = (host.volume("vm"), written(1));
    host.driver().read(&volume, range).unwrap() == data
}

/// A host that has lost its export `vm`: write 1 was written back, 2 is the other host's, 3 is only on this host.
pub(super) fn lost(world: &World) -> (Host, Host) {
    let mut first = Host::new(world);
    world.runtime.block_on(first.router().create(blank())).unwrap();
    write(&mut first, 1);
    world.runtime.block_on(first.router().write_back("vm")).unwrap();
    let mut other = Host::new(world);
    world.runtime.block_on(other.router().create(request("vm", InitialContent::TakeOver))).unwrap();
    write(&mut other, 2);
    world.runtime.block_on(other.router().write_back("vm")).unwrap();
    write(&mut first, 3);
    let written = world.runtime.block_on(first.router().write_back("vm"));
    assert!(matches!(written, Err(RouterError::Writeback { source: IoError::Fenced, .. })), "{written:?}");
    (first, other)
}

#[test]
fn either_side_of_a_lost_export_becomes_an_export_of_its_own() {
    for restarted in [false, true] {
        let world = World::new(11, 0);
        let (mut first, mut other) = lost(&world);
        if restarted {
            first.restart(&world);
        }
        let State::Failed { reason } = first.router().show("vm").unwrap().state else { panic!("not lost") };
        // The name of the host is not kept over a restart.
        assert_eq!(reason.contains("(host unknown, epoch 2)"), !restarted, "{reason}");
        assert!(!reason.contains("delete"), "{reason}");
        for part in
            ["another host", "4096 bytes", "export open vm --discard-local", "export fork vm NEW --local"]
        {
            assert!(reason.contains(part), "{reason}");
        }
        let router = first.router();
        let here = request("here", InitialContent::Local { of: name("vm"), manifest: None });
        world.runtime.block_on(router.create(here)).unwrap();
        let there = request("there", InitialContent::Fork { of: name("vm"), snapshot: None });
        world.runtime.block_on(router.create(there)).unwrap();
        drop(router);
        assert_eq!((held(&mut first, "here"), held(&mut first, "there")), (vec![1, 3], vec![1, 2]));
        // The lost export is unchanged.
        assert_eq!(first.volume("vm").figures().dirty_bytes, 4096);
        assert_eq!(held(&mut other, "vm"), [1, 2]);
        first.restart(&world);
        assert_eq!(held(&mut first, "here"), [1, 3]);
    }
}

#[test]
fn what_is_on_its_way_out_of_a_lost_export_is_not_given_up_meanwhile() {
    for deletes in [false, true] {
        for point in ["manifests", "packs"] {
            let world = World::new(17, 0);
            let (mut first, _other) = lost(&world);
            world.objects.pause_before(point);
            let router = first.router();
            let rescue = world.runtime.spawn(async move {
                router
                    .create(request("here", InitialContent::Local { of: name("vm"), manifest: None }))
                    .await
                    .map(drop)
            });
            world.runtime.block_on(world.objects.paused());
            let router = first.router();
            let gives_up = world.runtime.spawn(async move {
                if deletes {
                    router.delete("vm", Users::Spare).await.map(drop)
                } else {
                    router.discard_local("vm", PropertiesChange::default()).await.map(drop)
                }
            });
            // The waiting creation is given up after a moment, and tried again.
            world.runtime.block_on(rescue).unwrap().unwrap();
            world.runtime.block_on(gives_up).unwrap().unwrap();
            assert_eq!(held(&mut first, "here"), [1, 3], "{point} {deletes}");
            assert_eq!(first.knows("vm"), !deletes);
        }
    }
}

#[test]
fn nothing_is_rescued_of_a_lost_export_whose_deletion_has_begun() {
    let world = World::new(18, 0);
    let (first, _other) = lost(&world);
    first.kernel().fault("detach", Fault::Fail);
    world.runtime.block_on(first.router().delete("vm", Users::Spare)).unwrap_err();
    let router = first.router();
    let rescued = world
        .runtime
        .block_on(router.create(request("here", InitialContent::Local { of: name("vm"), manifest: None })));
    assert!(matches!(rescued, Err(RouterError::HalfDeleted { .. })), "{rescued:?}");
}

#[test]
fn a_lost_export_goes_on_with_what_the_store_has_when_it_is_told_to() {
    let world = World::new(12, 0);
    let (mut first, mut other) = lost(&world);
    let opened = world.runtime.block_on(first.router().create(request("vm", InitialContent::TakeOver)));
    assert!(matches!(opened, Err(RouterError::Lost { .. })), "{opened:?}");
    let usual = PropertiesChange::default();
    let discarded = world.runtime.block_on(first.router().discard_local("vm", usual)).unwrap();
    assert_eq!(discarded.info.state, State::Serving);
    assert_eq!(held(&mut first, "vm"), [1, 2]);
    write(&mut first, 4);
    world.runtime.block_on(first.router().write_back("vm")).unwrap();
    first.restart(&world);
    assert_eq!(held(&mut first, "vm"), [1, 2, 4]);
    // Now the other host has lost the export.
    other.restart(&world);
    let volume = other.volume("vm");
    assert_eq!(other.driver().read(&volume, written(1).0), Err(IoError::Fenced));
}

#[test]
fn an_export_that_is_not_lost_keeps_what_is_only_here() {
    let world = World::new(13, 0);
    let mut host = Host::new(&world);
    world.runtime.block_on(host.router().create(blank())).unwrap();
    write(&mut host, 1);
    let router = host.router();
    let discarded = world.runtime.block_on(router.discard_local("vm", PropertiesChange::default()));
    assert!(matches!(discarded, Err(RouterError::NotLost { .. })), "{discarded:?}");
    let forked = world
        .runtime
        .block_on(router.create(request("here", InitialContent::Local { of: name("vm"), manifest: None })));
    assert!(matches!(forked, Err(RouterError::NotLost { .. })), "{forked:?}");
    drop(router);
    assert_eq!(held(&mut host, "vm"), [1]);
}

/// A host that is down, and another host that has taken the export over meanwhile.
fn down(world: &World, crash: Crash) -> (Host, Host) {
    let mut first = Host::new(world);
    world.runtime.block_on(first.router().create(blank())).unwrap();
    write(&mut first, 1);
    world.runtime.block_on(first.router().write_back("vm")).unwrap();
    first.go_down(crash);
    let mut other = Host::new(world);
    world.runtime.block_on(other.router().create(request("vm", InitialContent::TakeOver))).unwrap();
    write(&mut other, 2);
    world.runtime.block_on(other.router().write_back("vm")).unwrap();
    (first, other)
}

#[test]
fn what_another_host_took_over_is_not_served_after_a_reboot_while_the_store_is_away() {
    for crash in [Crash::PowerCut, Crash::Kill] {
        let world = World::new(14, 0);
        let (mut first, _other) = down(&world, crash);
        world.store_goes_away();
        first.come_up(&world);
        let info = first.router().show("vm").unwrap();
        assert_eq!((info.state, first.router().unconfirmed()), (State::Waiting, 1), "{crash:?}");
        // A device that waits for a server goes on waiting, and no new device is made.
        assert!(first.kernel().devices().values().all(|device| device.quiesced), "{crash:?}");
        assert_eq!(first.kernel().devices().len(), usize::from(crash == Crash::Kill));
        let attached = world.runtime.block_on(first.router().attach("vm", true));
        assert!(matches!(attached, Err(RouterError::Unconfirmed { .. })), "{attached:?}");

        world.store_comes_back();
        world.runtime.block_on(first.router().confirm());
        let State::Failed { reason } = first.router().show("vm").unwrap().state else { panic!("{crash:?}") };
        assert!(reason.contains("another host"), "{reason}");
        let volume = first.volume("vm");
        assert_eq!(first.driver().read(&volume, written(1).0), Err(IoError::Fenced), "{crash:?}");
        assert_eq!(first.router().unconfirmed(), 0);
        // The loss is in the catalog: the next start does not have to ask.
        world.store_goes_away();
        first.restart(&world);
        let volume = first.volume("vm");
        assert_eq!(first.driver().read(&volume, written(1).0), Err(IoError::Fenced), "{crash:?}");
    }
}

#[test]
fn what_another_host_took_over_gets_no_device_when_this_host_tries_again() {
    let world = World::new(78, 0);
    let mut first = Host::new(&world);
    world.runtime.block_on(first.router().create(blank())).unwrap();
    write(&mut first, 1);
    world.runtime.block_on(first.router().write_back("vm")).unwrap();
    first.go_down(Crash::PowerCut);
    // The store says at the start that this host has the export.
    first.kernel().fault("attach", Fault::Fail);
    first.come_up(&world);
    assert!(first.router().show("vm").unwrap().state.reason().is_some());
    let other = Host::new(&world);
    world.runtime.block_on(other.router().create(request("vm", InitialContent::TakeOver))).unwrap();
    first.kernel().fault("attach", Fault::None);
    let router = first.router();
    let reason = || router.show("vm").unwrap().state.reason().map(ToString::to_string);
    let deadline = Instant::now() + Duration::from_mins(1);
    while !reason().is_some_and(|reason| reason.contains("another host")) {
        assert!(Instant::now() < deadline, "{:?}", reason());
        // A try goes on meanwhile.
        world.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(100)).await });
        assert!(first.kernel().devices().is_empty(), "two hosts serve the export");
    }
}

#[test]
fn an_export_that_waits_for_the_store_is_served_when_the_store_has_confirmed_it() {
    let world = World::new(15, 0);
    let mut host = Host::new(&world);
    world.runtime.block_on(host.router().create(blank())).unwrap();
    write(&mut host, 1);
    let volume = host.volume("vm");
    host.driver().flush(&volume).unwrap();
    drop(volume);
    for crash in [Crash::PowerCut, Crash::Kill] {
        world.store_goes_away();
        host.go_down(crash);
        host.come_up(&world);
        assert_eq!(host.router().show("vm").unwrap().state, State::Waiting);
        world.store_comes_back();
        world.runtime.block_on(host.router().confirm());
        assert_eq!(host.router().show("vm").unwrap().state, State::Serving);
        assert_eq!(held(&mut host, "vm"), [1]);
    }
    // With a reachable store nothing waits.
    host.restart(&world);
    assert_eq!(host.router().show("vm").unwrap().state, State::Serving);
}

#[test]
fn whoever_waits_for_the_store_may_be_attached_unconfirmed_detached_or_deleted() {
    let world = World::new(16, 0);
    let mut host = Host::new(&world);
    world.runtime.block_on(host.router().create(blank())).unwrap();
    write(&mut host, 1);
    world.store_goes_away();
    host.restart(&world);
    let info = world.runtime.block_on(host.router().attach("vm", false)).unwrap();
    assert_eq!(info.state, State::Serving);
    assert!(has_first(&mut host));
    host.restart(&world);
    assert_eq!(
        world.runtime.block_on(host.router().detach("vm", Users::Spare)).unwrap().state,
        State::Detached
    );
    world.store_comes_back();
    world.runtime.block_on(host.router().confirm());
    assert_eq!(host.router().show("vm").unwrap().state, State::Detached, "nobody wants a device");
    world.runtime.block_on(host.router().attach("vm", true)).unwrap();
    world.store_goes_away();
    host.restart(&world);
    host.router().show("vm").unwrap();
    world.store_comes_back();
    world.runtime.block_on(host.router().delete("vm", Users::Spare)).unwrap();
    assert!(host.kernel().devices().is_empty());
}

#[test]
fn where_the_user_wants_that_exports_are_served_before_the_store_has_confirmed_them() {
    for serves in [true, false] {
        for crash in [Crash::PowerCut, Crash::Kill] {
            let mut world = World::new(19, 0);
            world.serves_unconfirmed = serves;
            let mut host = Host::new(&world);
            world.runtime.block_on(host.router().create(blank())).unwrap();
            write(&mut host, 1);
            let volume = host.volume("vm");
            host.driver().flush(&volume).unwrap();
            drop(volume);
            world.store_goes_away();
            host.crash(&world, crash);
            let state = host.router().show("vm").unwrap().state;
            let served: Vec<_> = host.kernel().devices().values().map(|device| !device.quiesced).collect();
            if serves {
                assert_eq!((state, host.router().unconfirmed()), (State::Serving, 0), "{crash:?}");
                assert_eq!(served, [true], "{crash:?}");
                assert!(has_first(&mut host), "{crash:?}");
            } else {
                assert_eq!((state, host.router().unconfirmed()), (State::Waiting, 1), "{crash:?}");
                // The device of the killed daemon is left alone.
                assert_eq!(served, vec![false; usize::from(crash == Crash::Kill)]);
                let router = host.router();
                let attached = world.runtime.block_on(router.attach("vm", true));
                assert!(matches!(attached, Err(RouterError::Unconfirmed { .. })), "{attached:?}");
                let info = world.runtime.block_on(router.attach("vm", false)).unwrap();
                assert_eq!((info.state, router.unconfirmed()), (State::Serving, 0), "{crash:?}");
                assert!(host.kernel().devices().values().all(|device| !device.quiesced), "{crash:?}");
            }
            world.store_comes_back();
            world.runtime.block_on(host.router().confirm());
            assert_eq!(held(&mut host, "vm"), [1]);

            // The same for a device made while the daemon runs.
            world.runtime.block_on(host.router().detach("vm", Users::Spare)).unwrap();
            world.store_goes_away();
            let attached = world.runtime.block_on(host.router().attach("vm", true));
            assert_eq!(attached.is_ok(), serves, "{attached:?}");
            assert_eq!(host.kernel().devices().len(), usize::from(serves));
        }
    }
}

#[test]
fn what_is_served_unconfirmed_stops_when_the_store_says_that_another_host_has_it() {
    for crash in [Crash::PowerCut, Crash::Kill] {
        let mut world = World::new(20, 0);
        let (mut first, _other) = down(&world, crash);
        world.serves_unconfirmed = true;
        world.store_goes_away();
        first.come_up(&world);
        // The data is old, as the user was warned.
        assert_eq!(first.router().show("vm").unwrap().state, State::Serving);
        assert!(has_first(&mut first), "{crash:?}");

        world.store_comes_back();
        world.runtime.block_on(first.router().confirm());
        let volume = first.volume("vm");
        assert_eq!(first.driver().read(&volume, written(1).0), Err(IoError::Fenced), "{crash:?}");
        let lost = world.runtime.block_on(first.router().write_back("vm"));
        assert!(matches!(lost, Err(RouterError::Writeback { source: IoError::Fenced, .. })), "{lost:?}");
    }
}

#[test]
fn giving_up_what_is_here_takes_no_other_volume_that_has_the_name_now() {
    let world = World::new(77, 0);
    let (first, mut other) = lost(&world);
    // The host with the volume deletes the export, and creates another one of the same name.
    world.runtime.block_on(other.router().delete("vm", Users::Spare)).unwrap();
    world.runtime.block_on(other.router().create(blank())).unwrap();
    write(&mut other, 4);
    let discarded = world.runtime.block_on(first.router().discard_local("vm", PropertiesChange::default()));
    assert!(matches!(discarded, Err(RouterError::Replaced { .. })), "{discarded:?}");
    world.runtime.block_on(other.router().write_back("vm")).unwrap();
    // The advice in the refusal works.
    world.runtime.block_on(first.router().delete("vm", Users::Spare)).unwrap();
    let opened = world.runtime.block_on(first.router().create(request("vm", InitialContent::Store)));
    assert!(opened.is_err(), "the other host has it: {opened:?}");
    world.runtime.block_on(other.router().write_back("vm")).unwrap();
}

#[test]
fn what_is_only_here_of_an_export_with_a_damaged_manifest_goes_on_from_an_older_one() {
    let world = World::new(19, 0);
    let mut host = Host::new(&world);
    world.runtime.block_on(host.router().create(blank())).unwrap();
    for number in [1, 2] {
        write(&mut host, number);
        world.runtime.block_on(host.router().write_back("vm")).unwrap();
    }
    let newest = world.runtime.block_on(world.objects.damage_last("/manifests/"));
    host.restart(&world);
    // It is never written back: each try needs the manifest.
    write(&mut host, 3);
    let older = newest.rsplit('/').next().unwrap().parse::<u64>().unwrap() - 1;
    let rescue = |host: &Host, manifest| {
        let content = InitialContent::Local { of: name("vm"), manifest };
        world.runtime.block_on(host.router().create(request("here", content))).map(drop)
    };
    assert!(matches!(rescue(&host, None), Err(RouterError::NotLost { .. })));
    assert!(matches!(rescue(&host, Some(older)), Err(RouterError::NotDetached { .. })));
    world.runtime.block_on(host.router().detach("vm", Users::Spare)).unwrap();
    assert!(rescue(&host, Some(older + 1)).is_err(), "it is damaged");
    rescue(&host, Some(older)).unwrap();
    assert_eq!(held(&mut host, "here"), [1, 3]);
    // It is written back as any other.
    world.runtime.block_on(host.router().write_back("here")).unwrap();
    host.restart(&world);
    assert_eq!(held(&mut host, "here"), [1, 3]);
}

#[test]
fn another_hosts_manifest_is_no_ground_for_what_is_only_here() {
    let world = World::new(20, 0);
    let (first, _other) = lost(&world);
    let keys = world.runtime.block_on(world.objects.keys());
    let newest = keys.iter().rfind(|key| key.contains("/manifests/")).unwrap();
    let manifest = newest.rsplit('/').next().unwrap().parse().ok();
    let content = InitialContent::Local { of: name("vm"), manifest };
    let rescued = world.runtime.block_on(first.router().create(request("here", content)));
    assert!(matches!(rescued, Err(RouterError::Store { source: VolumeError::Fenced(_), .. })), "{rescued:?}");
}
