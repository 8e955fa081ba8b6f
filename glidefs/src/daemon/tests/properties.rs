//! The properties of a volume go with the volume: to the host that opens, undeletes or forks it, after changes, and from older manifests.

use std::time::{Duration, Instant};

use super::host::{Host, World, durable, name, request};
use crate::cache::driver::PATIENCE;
use crate::properties::limits::{Limit, SettingsChange};
use crate::properties::{Bound, Durability, OnUnreachable, Properties, PropertiesChange};
use crate::router::Users;
use crate::router::{CreateExport, ExportInfo, ExportSize, InitialContent, RouterError};
use crate::store::volume::StatePoint;
use crate::units::SECTOR_BYTES;

const SECTORS: u64 = 64;

/// An export that was asked for.
struct Made {
    info: ExportInfo,
    existed: bool,
    is_assumed: bool,
}

fn create(world: &World, host: &Host, request: CreateExport) -> Result<Made, RouterError> {
    let made = world.runtime.block_on(host.router().create(request))?;
    Ok(Made { info: made.info, existed: made.existed, is_assumed: made.is_assumed })
}

fn open(world: &World, host: &Host) -> Made {
    create(world, host, request("vm", InitialContent::Store)).unwrap()
}

fn blank() -> CreateExport {
    request("vm", InitialContent::Blank(ExportSize::new(SECTORS * SECTOR_BYTES).unwrap()))
}

fn detach(world: &World, host: &Host) {
    world.runtime.block_on(host.router().detach("vm", Users::Spare)).unwrap();
}

fn of(info: &ExportInfo) -> Properties {
    let ExportInfo { durability, on_unreachable, settings, .. } = *info;
    Properties { durability, on_unreachable, settings }
}

/// The properties of "vm" in the newest manifest in the store.
fn stored(world: &World, host: &Host) -> Properties {
    world.runtime.block_on(async {
        let volume = host.volumes().find(&"vm".parse().unwrap()).await.unwrap().unwrap();
        let view = host.volumes().view(&StatePoint { volume, snapshot: None }).await.unwrap();
        view.manifest().sections.properties
    })
}

fn becomes_stored(world: &World, host: &Host, expected: &Properties) {
    let deadline = Instant::now() + PATIENCE;
    while stored(world, host) != *expected {
        assert!(Instant::now() < deadline, "the store still has {:?}", stored(world, host));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every property other than usual.
fn unusual() -> PropertiesChange {
    PropertiesChange {
        durability: Some(Durability::Store),
        on_unreachable: Some(OnUnreachable::FailAfter(Duration::from_secs(30))),
        settings: SettingsChange {
            rates: [Some(Some(9)), Some(Some(500)), None, Some(Some(1 << 20))],
            burst: Some(Duration::from_secs(2)),
            weight: Some(7),
        },
    }
}

fn change(write_iops: u64) -> SettingsChange {
    SettingsChange { rates: [None, Some(Some(write_iops)), None, None], ..SettingsChange::default() }
}

#[test]
fn a_host_that_opens_undeletes_or_forks_a_volume_keeps_its_promises() {
    let world = World::new(50, 0);
    let first = Host::new(&world);
    let promised = unusual().applied_to(&Properties::default());
    let made = create(&world, &first, CreateExport { properties: unusual(), ..blank() }).unwrap();
    assert_eq!(of(&made.info), promised);
    world.runtime.block_on(first.router().snapshot("vm", &name("monday"))).unwrap();
    detach(&world, &first);
    let other = Host::new(&world);
    for _ in 0..2 {
        let opened = open(&world, &other);
        assert_eq!((of(&opened.info), opened.is_assumed), (promised, false), "opened, and opened again");
    }
    for (fork, snapshot) in [("fork", None), ("old", Some(name("monday")))] {
        let content = InitialContent::Fork { of: name("vm"), snapshot };
        let forked = create(&world, &first, request(fork, content)).unwrap();
        assert_eq!((of(&forked.info), forked.is_assumed), (promised, false), "{fork}");
    }
    detach(&world, &other);
    world.runtime.block_on(other.router().rollback("vm", name("monday"))).unwrap();
    assert_eq!((of(&other.router().show("vm").unwrap()), stored(&world, &other)), (promised, promised));
    world.runtime.block_on(other.router().delete("vm", Users::Spare)).unwrap();
    let content = InitialContent::Deleted { of: name("vm") };
    let undeleted = create(&world, &Host::new(&world), request("vm", content)).unwrap();
    assert_eq!((of(&undeleted.info), undeleted.is_assumed), (promised, false), "undeleted");
}

#[test]
fn a_host_that_takes_a_volume_over_has_the_limits_as_they_were_changed_last() {
    let world = World::new(51, 0);
    let mut first = Host::new(&world);
    let made = create(&world, &first, CreateExport { properties: unusual(), ..blank() }).unwrap();
    let info = world.runtime.block_on(first.router().set("vm", change(77))).unwrap();
    assert_eq!(info.settings.limits.rate(Limit::WriteIops), Some(77));
    becomes_stored(&world, &first, &of(&info));
    // The store is away, and the change is accepted all the same.
    world.store_goes_away();
    let info = world.runtime.block_on(first.router().set("vm", change(78))).unwrap();
    world.store_comes_back();
    becomes_stored(&world, &first, &of(&info));
    first.lose();
    let taken = create(&world, &Host::new(&world), request("vm", InitialContent::TakeOver)).unwrap();
    assert_eq!(of(&taken.info), of(&info));
    assert_ne!(of(&taken.info), of(&made.info));
}

#[test]
fn limits_of_a_detached_export_are_changed_for_the_host_that_opens_it_next() {
    let world = World::new(52, 0);
    let mut first = Host::new(&world);
    create(&world, &first, blank()).unwrap();
    detach(&world, &first);
    first.restart(&world);
    assert!(first.router().exports().is_empty(), "at rest");
    let info = world.runtime.block_on(first.router().set("vm", change(77))).unwrap();
    assert_eq!(info.unreleased, None);
    assert_eq!(of(&open(&world, &Host::new(&world)).info), of(&info));
}

#[test]
fn a_property_named_by_the_host_that_opens_is_the_volumes_from_then_on() {
    let world = World::new(53, 0);
    let first = Host::new(&world);
    create(&world, &first, CreateExport { properties: unusual(), ..blank() }).unwrap();
    detach(&world, &first);
    let other = Host::new(&world);
    let bound = Bound { max_bytes: 64 << 20, max_age: Duration::from_secs(30) };
    let bounded = durable(Durability::Bounded(bound));
    let content = || request("vm", InitialContent::Store);
    let opened = create(&world, &other, CreateExport { properties: bounded, ..content() }).unwrap();
    let promised = bounded.applied_to(&unusual().applied_to(&Properties::default()));
    assert_eq!(of(&opened.info), promised);
    assert_eq!(stored(&world, &other), promised, "before the answer");
    assert!(open(&world, &other).existed, "whoever names nothing takes what is there");
    let stronger = CreateExport { properties: durable(Durability::Store), ..content() };
    let refused = create(&world, &other, stronger);
    assert!(matches!(refused, Err(RouterError::OtherProperty { .. })));
}

#[test]
fn a_creation_that_stopped_leaves_no_weaker_promise_in_the_store() {
    for detached in [false, true] {
        let world = World::new(54, 0);
        let host = Host::new(&world);
        let (vm, usual) = ("vm".parse().unwrap(), Properties::default());
        let left = host.volumes().create_blank(&vm, SECTORS, usual, detached);
        world.runtime.block_on(left).unwrap();
        let made = CreateExport { properties: unusual(), detached, ..blank() };
        let made = create(&world, &host, made).unwrap();
        assert_eq!((stored(&world, &host), made.is_assumed), (of(&made.info), false), "before the answer");
    }
}

#[test]
fn defaults_are_assumed_for_a_manifest_without_properties_and_the_answer_says_so() {
    let world = World::new(55, 0);
    let first = Host::new(&world);
    create(&world, &first, blank()).unwrap();
    detach(&world, &first);
    let other = Host::new(&world);
    let opened = open(&world, &other);
    assert_eq!((of(&opened.info), opened.is_assumed), (Properties::default(), true));
    assert!(!open(&world, &other).is_assumed, "nothing was decided");
    detach(&world, &other);
    let third = Host::new(&world);
    let named =
        CreateExport { properties: durable(Durability::Local), ..request("vm", InitialContent::Store) };
    assert!(!create(&world, &third, named).unwrap().is_assumed, "the request says so");
}

#[test]
fn an_export_made_before_there_was_a_store_has_its_properties_there() {
    let world = World::new(57, 0);
    let mut host = Host::without_store(&world);
    let properties = PropertiesChange { durability: None, ..unusual() };
    let made = create(&world, &host, CreateExport { properties, ..blank() }).unwrap();
    host.restart(&world);
    assert_eq!(world.runtime.block_on(host.router().bring_to_store()), 0);
    assert_eq!(stored(&world, &host), of(&made.info));
}
