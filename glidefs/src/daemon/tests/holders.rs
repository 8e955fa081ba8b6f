//! Which host has an export: released, taken back, refused, taken over; deleted, and undeleted.

use super::host::{Host, World, name, request};
use crate::cache::driver::bytes_of;
use crate::router::Users;
use crate::router::tests::fake::Fault;
use crate::router::{CreateExport, ExportInfo, ExportSize, InitialContent, RouterError, State};
use crate::store::volume::VolumeError;
use crate::units::{SECTOR_BYTES, SectorRange};

fn create(world: &World, host: &Host, source: InitialContent) -> Result<ExportInfo, RouterError> {
    world.runtime.block_on(host.router().create(request("vm", source))).map(|created| created.info)
}

/// A host that serves a new export with one write.
fn serving(world: &World) -> Host {
    let mut host = Host::new(world);
    create(world, &host, InitialContent::Blank(ExportSize::new(64 * SECTOR_BYTES).unwrap())).unwrap();
    write(&mut host, 1);
    host
}

fn write(host: &mut Host, number: u64) {
    let (volume, range) = (host.volume("vm"), SectorRange::new(0, 8).unwrap());
    let data: Vec<u8> = (0..8).flat_map(|sector| bytes_of(number, sector)).collect();
    host.driver().write(&volume, range, Some(&data)).unwrap();
}

fn holds(host: &mut Host, number: u64) -> bool {
    let volume = host.volume("vm");
    let found = host.driver().read(&volume, SectorRange::new(0, 8).unwrap()).unwrap();
    found == (0..8).flat_map(|sector| bytes_of(number, sector)).collect::<Vec<u8>>()
}

fn is_held(opened: &Result<ExportInfo, RouterError>) -> bool {
    matches!(opened, Err(RouterError::Store { source: VolumeError::Held(_), .. }))
}

#[test]
fn an_export_that_is_served_is_opened_elsewhere_only_by_taking_it_over() {
    let world = World::new(20, 0);
    let first = serving(&world);
    world.runtime.block_on(first.router().write_back("vm")).unwrap();
    let mut other = Host::new(&world);
    let refused = create(&world, &other, InitialContent::Store);
    assert!(is_held(&refused), "{refused:?}");
    create(&world, &other, InitialContent::TakeOver).unwrap();
    assert!(holds(&mut other, 1));
}

#[test]
fn an_export_that_is_made_detached_may_be_opened_elsewhere_until_it_is_attached() {
    let world = World::new(22, 0);
    let first = Host::new(&world);
    let blank = InitialContent::Blank(ExportSize::new(64 * SECTOR_BYTES).unwrap());
    let request = CreateExport { detached: true, ..request("vm", blank) };
    let made = world.runtime.block_on(first.router().create(request)).unwrap();
    assert_eq!((made.info.state, made.info.unreleased), (State::Detached, None));
    world.runtime.block_on(first.router().attach("vm", true)).unwrap();
    let other = Host::new(&world);
    let refused = create(&world, &other, InitialContent::Store);
    assert!(is_held(&refused), "{refused:?}");
    world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
    create(&world, &other, InitialContent::Store).unwrap();
}

#[test]
fn a_detached_export_is_written_back_and_released_and_its_own_host_takes_it_back() {
    let world = World::new(21, 0);
    let mut first = serving(&world);
    let info = world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
    assert_eq!(info.unreleased, None);
    world.runtime.block_on(first.router().attach("vm", true)).unwrap();
    let mut other = Host::new(&world);
    let refused = create(&world, &other, InitialContent::Store);
    assert!(is_held(&refused), "{refused:?}");
    write(&mut first, 2);
    world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
    // No question is asked twice, and a restart changes nothing.
    world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
    first.restart(&world);
    create(&world, &other, InitialContent::Store).unwrap();
    assert!(holds(&mut other, 2));
    let lost = world.runtime.block_on(first.router().attach("vm", true));
    assert!(matches!(lost, Err(RouterError::Lost { .. })), "{lost:?}");
}

#[test]
fn a_detach_while_the_store_is_away_succeeds_and_says_that_nothing_was_released() {
    let world = World::new(22, 0);
    let mut first = serving(&world);
    world.runtime.block_on(first.router().write_back("vm")).unwrap();
    world.objects.end_after(0, false);
    let info = world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
    assert!(info.device.is_none() && info.unreleased.is_some(), "{info:?}");
    // The export was not released, so no other host has it.
    world.runtime.block_on(first.router().attach("vm", false)).unwrap();
    assert!(holds(&mut first, 1));
    world.objects.go_on();
    let other = Host::new(&world);
    let refused = create(&world, &other, InitialContent::Store);
    assert!(is_held(&refused), "{refused:?}");
    // Detached again a while later, the export is released.
    std::thread::sleep(first.router().options.confirm_patience);
    let info = world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
    assert_eq!(info.unreleased, None);
    create(&world, &other, InitialContent::Store).unwrap();
}

#[test]
fn of_exports_detached_one_after_the_other_one_waits_for_a_store_that_is_away_and_each_says_the_truth() {
    let world = World::new(22, 0);
    let first = Host::new(&world);
    let names = ["a", "b", "c"];
    for export in names {
        let blank = InitialContent::Blank(ExportSize::new(64 * SECTOR_BYTES).unwrap());
        world.runtime.block_on(first.router().create(request(export, blank))).unwrap();
    }
    let reason = |export| {
        let info = world.runtime.block_on(first.router().detach(export, Users::Spare)).unwrap();
        assert_eq!((info.state, info.device), (State::Detached, None));
        info.unreleased
    };
    world.objects.end_after(0, false);
    let away = "the store did not answer a moment ago: detach the export again later";
    assert_ne!(reason("a").expect("a reason"), away);
    assert_eq!(reason("b").as_deref(), Some(away));
    world.objects.go_on();
    std::thread::sleep(first.router().options.confirm_patience);
    assert!(names.iter().all(|export| reason(export).is_none()));
}

#[test]
fn a_released_export_gets_no_device_while_the_store_cannot_say_whose_it_is() {
    let world = World::new(23, 0);
    let mut first = serving(&world);
    world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
    first.restart(&world);
    world.objects.end_after(0, false);
    let refused = world.runtime.block_on(first.router().attach("vm", true));
    assert!(
        matches!(refused, Err(RouterError::Released { .. } | RouterError::Unconfirmed { .. })),
        "{refused:?}"
    );
    world.objects.go_on();
    world.runtime.block_on(first.router().attach("vm", true)).unwrap();
    assert!(holds(&mut first, 1));
}

#[test]
fn an_export_that_was_opened_and_got_no_device_may_be_opened_again() {
    let world = World::new(26, 0);
    let first = serving(&world);
    world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
    let other = Host::new(&world);
    *other.kernel().limit.lock().unwrap() = Some(0);
    let refused = create(&world, &other, InitialContent::Store);
    assert!(matches!(refused, Err(RouterError::Device { .. })), "{refused:?}");
    *other.kernel().limit.lock().unwrap() = None;
    create(&world, &other, InitialContent::Store).unwrap();
}

/// Ends the daemon of a host that is to be given up: no device is left, and the exports are released.
fn leave(world: &World, host: &Host) {
    let router = host.router();
    world.runtime.block_on(async {
        router.stop().await;
        assert_eq!(router.remove_devices().await, 0);
        let drain = router.drain().await;
        assert_eq!((drain.written_back, drain.kept, drain.failed.len()), (1, 0, 0));
    });
}

/// Whether another host is refused the export that `host` serves.
fn is_held_for(world: &World, host: &Host) {
    assert_eq!(host.router().show("vm").unwrap().state, State::Serving);
    let opened = create(world, &Host::new(world), InitialContent::Store);
    assert!(is_held(&opened), "{opened:?}");
}

#[test]
fn a_host_that_was_left_has_released_everything() {
    let world = World::new(24, 0);
    let first = serving(&world);
    leave(&world, &first);
    let mut other = Host::new(&world);
    create(&world, &other, InitialContent::Store).unwrap();
    assert!(holds(&mut other, 1));
}

#[test]
fn a_host_that_comes_back_takes_back_what_it_serves_again() {
    let world = World::new(26, 0);
    let mut first = serving(&world);
    leave(&world, &first);
    first.restart(&world);
    is_held_for(&world, &first);
    // The same with a store that is away when the daemon starts.
    leave(&world, &first);
    world.store_goes_away();
    first.restart(&world);
    assert_eq!(first.router().show("vm").unwrap().state, State::Waiting);
    world.store_comes_back();
    world.runtime.block_on(first.router().confirm());
    is_held_for(&world, &first);
    assert!(holds(&mut first, 1));
}

#[test]
fn a_host_that_comes_back_loses_what_another_one_opened_meanwhile() {
    let world = World::new(27, 0);
    let mut first = serving(&world);
    leave(&world, &first);
    let mut other = Host::new(&world);
    create(&world, &other, InitialContent::Store).unwrap();
    first.restart(&world);
    assert!(matches!(first.router().show("vm").unwrap().state, State::Failed { .. }));
    assert!(first.kernel().devices().is_empty());
    write(&mut other, 2);
    world.runtime.block_on(other.router().write_back("vm")).unwrap();
}

#[test]
fn an_export_that_is_served_stays_this_hosts_when_everything_is_drained() {
    let world = World::new(28, 0);
    let mut first = serving(&world);
    let drain = world.runtime.block_on(first.router().drain());
    assert_eq!((drain.written_back, drain.kept, drain.failed.len()), (1, 1, 0));
    assert_eq!(first.volume("vm").figures().dirty_bytes, 0);
    is_held_for(&world, &first);
    write(&mut first, 2);
    first.restart(&world);
    is_held_for(&world, &first);
}

#[test]
fn an_export_that_a_drain_released_is_taken_back_by_attaching_it() {
    let world = World::new(29, 0);
    let first = serving(&world);
    world.runtime.block_on(first.router().write_back("vm")).unwrap();
    world.objects.end_after(0, false);
    let info = world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
    assert!(info.unreleased.is_some());
    world.objects.go_on();
    let drain = world.runtime.block_on(first.router().drain());
    assert_eq!((drain.written_back, drain.kept, drain.failed.len()), (1, 0, 0));
    assert_eq!(first.router().show("vm").unwrap().unreleased, None);
    world.runtime.block_on(first.router().attach("vm", true)).unwrap();
    is_held_for(&world, &first);
}

#[test]
fn what_is_served_unconfirmed_is_taken_back_when_the_store_answers() {
    for restarted in [false, true] {
        let world = World::new(30, 0);
        let mut first = serving(&world);
        world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
        world.objects.end_after(0, false);
        world.runtime.block_on(first.router().attach("vm", false)).unwrap();
        if restarted {
            first.restart(&world);
        }
        world.objects.go_on();
        world.runtime.block_on(first.router().confirm());
        is_held_for(&world, &first);
        assert!(holds(&mut first, 1));
    }
}

#[test]
fn an_export_whose_device_failed_is_taken_back_when_it_is_created_again() {
    let world = World::new(31, 0);
    let first = serving(&world);
    world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
    world.objects.end_after(0, false);
    first.kernel().fault("attach", Fault::Fail);
    world.runtime.block_on(first.router().attach("vm", false)).unwrap_err();
    first.kernel().fault("attach", Fault::None);
    world.objects.go_on();
    create(&world, &first, InitialContent::Blank(ExportSize::new(64 * SECTOR_BYTES).unwrap())).unwrap();
    is_held_for(&world, &first);
}

#[test]
fn a_deleted_export_is_had_back_under_its_name_or_another() {
    let world = World::new(25, 0);
    let first = serving(&world);
    world.runtime.block_on(first.router().write_back("vm")).unwrap();
    world.runtime.block_on(first.router().delete("vm", Users::Spare)).unwrap();
    let mut other = Host::new(&world);
    let listed = world.runtime.block_on(other.router().deleted()).unwrap();
    assert_eq!(listed.iter().map(|deleted| deleted.name.as_str()).collect::<Vec<_>>(), ["vm"]);
    create(&world, &other, InitialContent::Deleted { of: name("vm") }).unwrap();
    assert!(holds(&mut other, 1));
    let refused = create(&world, &other, InitialContent::Deleted { of: name("vm") });
    assert!(matches!(refused, Err(RouterError::NameInUse { .. })), "{refused:?}");
    let refused = create(&world, &first, InitialContent::Deleted { of: name("vm") });
    assert!(
        matches!(refused, Err(RouterError::Store { source: VolumeError::NotDeleted { .. }, .. })),
        "{refused:?}"
    );
}

/// A host with a half deleted export "vm", because the store went away before the name was free. The host serves the
/// volume as "vm2": the volume was undeleted meanwhile.
fn half_deleted_and_had_back(world: &World) -> Host {
    let host = serving(world);
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
    world.objects.end_after(3, false);
    let half = world.runtime.block_on(host.router().delete("vm", Users::Spare));
    assert!(matches!(half, Err(RouterError::PartlyDeleted { .. })), "{half:?}");
    world.objects.go_on();
    let source = InitialContent::Deleted { of: name("vm") };
    world.runtime.block_on(host.router().create(request("vm2", source))).unwrap();
    host
}

#[test]
fn the_end_of_a_half_deleted_export_takes_nothing_of_the_one_that_has_its_volume_now() {
    let world = World::new(31, 0);
    let mut host = half_deleted_and_had_back(&world);
    // The next manifest is created, and the answer is lost: the next attempt finds the manifest, and its entry in the
    // journal.
    let before = world.manifest_number("vm2");
    world.objects.fail_creations("manifests", 1, true);
    let (volume, range) = (host.volume("vm2"), SectorRange::new(0, 8).unwrap());
    let data: Vec<u8> = (0..8).flat_map(|sector| bytes_of(2, sector)).collect();
    host.driver().write(&volume, range, Some(&data)).unwrap();
    let writeback = world.runtime.spawn({
        let router = host.router();
        async move { router.write_back("vm2").await }
    });
    while world.manifest_number("vm2") == before {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // The next attempts, with another time and so another hash, do not arrive: an outage. The half deleted export is
    // deleted again meanwhile.
    world.objects.fail_creations("manifests", u32::MAX, false);
    world.clock.advance(std::time::Duration::from_millis(5));
    let deleted = world.runtime.block_on(host.router().delete("vm", Users::Spare)).unwrap();
    world.objects.fail_creations("manifests", 0, false);
    assert!(deleted);
    assert!(world.manifest_number("vm2") > before);
    let written = world.runtime.block_on(writeback).unwrap();
    let state = world.runtime.block_on(async { host.router().show("vm2") }).unwrap().state;
    assert!(written.is_ok(), "{written:?}, {state:?}");
}

#[test]
fn a_name_that_a_half_deletion_left_opens_nothing_of_who_had_the_volume_back() {
    let world = World::new(32, 0);
    let host = half_deleted_and_had_back(&world);
    world.runtime.block_on(host.router().delete("vm", Users::Spare)).unwrap();
    // Opening, not taking over: an export that some host has is refused.
    let opened = create(&world, &host, InitialContent::Store);
    let second = host.volume("vm2");
    let confirmed = world.runtime.block_on(second.confirm(std::time::Duration::from_secs(5)));
    assert!(opened.is_err() && confirmed.is_ok(), "{opened:?}, {confirmed:?}");
}
