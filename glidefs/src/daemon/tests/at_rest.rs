//! Exports at rest: creations that stopped half-way, and exports that must not rest.

use super::damaged;
use super::host::{Host, World, request};
use super::sim::faults::Crash;
use crate::cache::driver::bytes_of;
use crate::properties::Properties;
use crate::router::Users;
use crate::router::{CreateExport, ExportInfo, ExportSize, InitialContent, RouterError, State};
use crate::store::volume::VolumeError;
use crate::units::{SECTOR_BYTES, SectorRange};

const SECTORS: u64 = 256;

fn size(sectors: u64) -> ExportSize {
    ExportSize::new(sectors * SECTOR_BYTES).unwrap()
}

fn blank(sectors: u64) -> CreateExport {
    request("vm", InitialContent::Blank(size(sectors)))
}

fn create(world: &World, host: &Host, request: CreateExport) -> Result<ExportInfo, RouterError> {
    world.runtime.block_on(host.router().create(request)).map(|created| created.info)
}

fn detach(world: &World, host: &Host) {
    let info = world.runtime.block_on(host.router().detach("vm", Users::Spare)).unwrap();
    assert_eq!(info.unreleased, None);
}

fn write(host: &mut Host) {
    let (volume, range) = (host.volume("vm"), SectorRange::new(8, 8).unwrap());
    let data: Vec<u8> = (range.start()..range.end()).flat_map(|sector| bytes_of(1, sector)).collect();
    host.driver().write(&volume, range, Some(&data)).unwrap();
}

/// A host on which the creation of a detached export stopped before the record was in the catalog.
fn half_created(world: &World) -> Host {
    let host = Host::new(world);
    world
        .runtime
        .block_on(host.volumes().create_blank(&"vm".parse().unwrap(), SECTORS, Properties::default(), true))
        .unwrap();
    host
}

fn assert_is_held(world: &World) {
    let opened = create(world, &Host::new(world), request("vm", InitialContent::Store));
    assert!(matches!(opened, Err(RouterError::Store { source: VolumeError::Held(_), .. })), "{opened:?}");
}

#[test]
fn a_detached_creation_that_is_tried_again_with_another_size_gives_the_store_that_size() {
    for sectors in [SECTORS, 2 * SECTORS] {
        let world = World::new(8, 0);
        let host = half_created(&world);
        let info = create(&world, &host, CreateExport { detached: true, ..blank(sectors) }).unwrap();
        assert_eq!((info.size_bytes, info.unreleased), (size(sectors).bytes(), None));
        let other = Host::new(&world);
        let opened = create(&world, &other, request("vm", InitialContent::Store)).unwrap();
        assert_eq!(opened.size_bytes, size(sectors).bytes());
    }
}

#[test]
fn a_creation_with_a_device_takes_back_the_volume_that_an_earlier_creation_left_released() {
    let world = World::new(9, 0);
    let mut host = half_created(&world);
    assert_eq!(create(&world, &host, blank(2 * SECTORS)).unwrap().state, State::Serving);
    assert_is_held(&world);
    write(&mut host);
    detach(&world, &host);
    let opened = create(&world, &Host::new(&world), request("vm", InitialContent::Store)).unwrap();
    assert_eq!(opened.size_bytes, size(2 * SECTORS).bytes());
}

#[test]
fn a_creation_that_could_not_take_its_volume_back_succeeds_when_it_is_tried_again() {
    for arrives in [false, true] {
        for restarted in [false, true] {
            let world = World::new(10, 0);
            let mut host = half_created(&world);
            world.objects.fail_creations("manifests", 1000, arrives);
            create(&world, &host, blank(SECTORS)).unwrap_err();
            world.objects.fail_creations("manifests", 0, false);
            if restarted {
                host.restart(&world);
            }
            assert_eq!(create(&world, &host, blank(SECTORS)).unwrap().state, State::Serving);
            assert_is_held(&world);
        }
    }
}

#[test]
fn an_export_brought_to_a_volume_that_a_creation_left_released_is_this_hosts() {
    let world = World::new(11, 0);
    let mut host = Host::without_store(&world);
    create(&world, &host, blank(SECTORS)).unwrap();
    host.restart(&world);
    let left = world.runtime.block_on(host.volumes().create_blank(
        &"vm".parse().unwrap(),
        SECTORS,
        Properties::default(),
        true,
    ));
    assert!(left.unwrap().is_released);
    assert_eq!(world.runtime.block_on(host.router().bring_to_store()), 0);
    assert_is_held(&world);
}

#[test]
fn a_loss_that_only_the_drain_noticed_is_in_the_scrape() {
    let world = World::new(12, 0);
    let mut first = Host::new(&world);
    create(&world, &first, blank(SECTORS)).unwrap();
    write(&mut first);
    detach(&world, &first);
    create(&world, &Host::new(&world), request("vm", InitialContent::Store)).unwrap();
    let drain = world.runtime.block_on(first.router().drain());
    assert_eq!(drain.failed.len(), 1);
    assert!(first.scrape().contains("glidefs_router_lost_exports{reason=\"fenced\"} 1"));
}

/// A host without data of the released export `vm`, which the host has without a device.
fn at_rest(world: &World) -> Host {
    let mut host = Host::new(world);
    create(world, &host, CreateExport { detached: true, ..request("vm", InitialContent::Store) }).unwrap();
    host.restart(world);
    host
}

#[test]
fn an_export_with_damage_in_the_store_shows_the_damage_after_a_start() {
    let world = World::new(13, 0);
    let first = damaged::lost(&world);
    world.runtime.block_on(first.router().write_back("vm")).unwrap();
    detach(&world, &first);
    let host = at_rest(&world);
    assert_eq!(host.router().show("vm").unwrap().damaged_bytes, Some(4096));
    assert!(host.scrape().contains("glidefs_export_damaged_bytes{export=\"vm\"} 4096"));
}

#[test]
fn a_size_that_the_store_was_not_told_is_told_after_a_start() {
    let world = World::new(14, 0);
    let first = Host::new(&world);
    create(&world, &first, CreateExport { detached: true, ..blank(SECTORS) }).unwrap();
    let mut host = at_rest(&world);
    assert!(host.router().exports().is_empty());
    world.store_goes_away();
    world.runtime.block_on(host.router().resize("vm", size(2 * SECTORS))).unwrap();
    host.go_down(Crash::Kill);
    world.store_comes_back();
    host.come_up(&world);
    assert_eq!(
        host.router().exports().len(),
        1,
        "nobody else would tell the store before the next operation"
    );
    assert_eq!(host.router().show("vm").unwrap().size_bytes, size(2 * SECTORS).bytes());
    assert!(host.scrape().contains("glidefs_export_size_bytes{export=\"vm\"} 262144"));
    assert_eq!(world.runtime.block_on(host.router().drain()).failed.len(), 0);
    let opened = create(&world, &Host::new(&world), request("vm", InitialContent::Store)).unwrap();
    assert_eq!(opened.size_bytes, size(2 * SECTORS).bytes());
}

#[test]
fn an_export_that_was_lost_is_shown_as_lost_after_a_start() {
    let world = World::new(15, 0);
    let first = Host::new(&world);
    create(&world, &first, CreateExport { detached: true, ..blank(SECTORS) }).unwrap();
    let mut host = at_rest(&world);
    create(&world, &Host::new(&world), request("vm", InitialContent::TakeOver)).unwrap();
    let attached = world.runtime.block_on(host.router().attach("vm", true));
    assert!(matches!(attached, Err(RouterError::Lost { .. })), "{attached:?}");
    host.restart(&world);
    let state = host.router().show("vm").unwrap().state;
    assert!(matches!(state, State::Failed { .. }), "{state:?}");
    assert!(host.scrape().contains("glidefs_router_lost_exports{reason=\"fenced\"} 1"));
}
