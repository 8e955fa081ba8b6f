//! Whether an export is told to be blank: a device that is formatted is not looked at any more then.

use super::host::{Host, World, name, request};
use super::sim::faults::Crash;
use crate::cache::driver::bytes_of;
use crate::router::Users;
use crate::router::{ExportSize, InitialContent};
use crate::units::{SECTOR_BYTES, SectorRange};

const SECTORS: u64 = 64;

fn sectors(start: u64) -> SectorRange {
    SectorRange::new(start, 8).unwrap()
}

fn create(world: &World, host: &Host, export: &str, content: InitialContent) {
    world.runtime.block_on(host.router().create(request(export, content))).unwrap();
}

fn blank() -> InitialContent {
    InitialContent::Blank(ExportSize::new(SECTORS * SECTOR_BYTES).unwrap())
}

fn write(host: &mut Host, export: &str) {
    let volume = host.volume(export);
    let data: Vec<u8> = (0..8).flat_map(|sector| bytes_of(1, sector)).collect();
    host.driver().write(&volume, sectors(0), Some(&data)).unwrap();
}

fn is_blank(host: &Host, export: &str) -> bool {
    host.router().show(export).unwrap().is_blank
}

#[test]
fn an_export_is_blank_until_the_first_write_and_not_after_a_discard() {
    let world = World::new(70, 0);
    let mut host = Host::new(&world);
    create(&world, &host, "vm", blank());
    assert!(is_blank(&host, "vm"));
    let volume = host.volume("vm");
    host.driver().read(&volume, sectors(0)).unwrap();
    host.driver().flush(&volume).unwrap();
    drop(volume);
    assert!(is_blank(&host, "vm"), "reads and flushes write nothing");
    for crash in [Crash::Kill, Crash::PowerCut] {
        host.crash(&world, crash);
        assert!(!is_blank(&host, "vm"), "nobody has asked the store yet");
        let volume = host.volume("vm");
        host.driver().read(&volume, sectors(0)).unwrap();
        assert!(is_blank(&host, "vm"), "{crash:?}");
    }
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
    world.runtime.block_on(host.router().snapshot("vm", &name("empty"))).unwrap();
    world.runtime.block_on(host.router().detach("vm", Users::Spare)).unwrap();
    assert!(!is_blank(&host, "vm"), "nothing is known of an export which is not in service");
    world.runtime.block_on(host.router().attach("vm", true)).unwrap();
    assert!(is_blank(&host, "vm"));

    write(&mut host, "vm");
    assert!(!is_blank(&host, "vm"));
    let volume = host.volume("vm");
    host.driver().write(&volume, sectors(0), None).unwrap();
    drop(volume);
    assert!(!is_blank(&host, "vm"), "what was written and discarded is looked at");
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
    assert!(!is_blank(&host, "vm"));
    host.crash(&world, Crash::PowerCut);
    assert!(!is_blank(&host, "vm"));
}

#[test]
fn no_copy_and_no_earlier_state_of_a_written_export_is_blank() {
    let world = World::new(71, 0);
    let mut host = Host::new(&world);
    create(&world, &host, "vm", blank());
    world.runtime.block_on(host.router().snapshot("vm", &name("empty"))).unwrap();
    write(&mut host, "vm");
    world.runtime.block_on(host.router().snapshot("vm", &name("full"))).unwrap();
    for snapshot in [None, Some(name("full"))] {
        let fork = format!("fork-{}", snapshot.is_some());
        create(&world, &host, &fork, InitialContent::Fork { of: name("vm"), snapshot });
        assert!(!is_blank(&host, &fork), "{fork}");
        host.restart(&world);
        assert!(!is_blank(&host, &fork), "{fork}");
    }
    let router = host.router();
    world.runtime.block_on(router.detach("vm", Users::Spare)).unwrap();
    world.runtime.block_on(router.rollback("vm", name("empty"))).unwrap();
    world.runtime.block_on(router.attach("vm", true)).unwrap();
    assert!(!is_blank(&host, "vm"), "an earlier life may have left anything");
    drop(router);

    let other = Host::new(&world);
    create(&world, &other, "fork-true", InitialContent::TakeOver);
    assert!(!is_blank(&other, "fork-true"));
}

#[test]
fn an_export_lost_to_another_host_is_not_told_to_be_blank() {
    let world = World::new(72, 0);
    let host = Host::new(&world);
    create(&world, &host, "vm", blank());
    let mut other = Host::new(&world);
    create(&world, &other, "vm", InitialContent::TakeOver);
    assert!(is_blank(&other, "vm"), "the store has nothing of it");
    write(&mut other, "vm");
    // The host learns of the loss from its next manifest.
    let lost = world.runtime.block_on(host.router().snapshot("vm", &name("late")));
    assert!(lost.is_err());
    assert!(!is_blank(&host, "vm"));
}

#[test]
fn an_export_without_a_store_is_blank_until_the_first_write() {
    let world = World::new(73, 0);
    let mut host = Host::without_store(&world);
    create(&world, &host, "vm", blank());
    assert!(is_blank(&host, "vm"));
    host.restart(&world);
    assert!(is_blank(&host, "vm"));
    write(&mut host, "vm");
    assert!(!is_blank(&host, "vm"));
    host.restart(&world);
    assert!(!is_blank(&host, "vm"));
}
