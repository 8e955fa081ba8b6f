//! The properties of a volume go with the volume: to the host that opens, undeletes or forks it, after changes, and from older manifests.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::host::{Host, World, durable, name, request};
use super::loss::lost;
use crate::cache::driver::PATIENCE;
use crate::properties::limits::{Limit, Limits, LimitsChange, Settings};
use crate::properties::{Bound, Durability, OnUnreachable, Properties, PropertiesChange};
use crate::router::Users;
use crate::router::{CreateExport, ExportInfo, ExportSize, InitialContent, RouterError};
use crate::store::format::{Holder, Manifest, Sections};
use crate::store::volume::StatePoint;
use crate::units::{ByteSize, SECTOR_BYTES, SectorRange, millis};

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
    info.properties
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
        limits: LimitsChange {
            read_iops: Some(Some(9)),
            write_iops: Some(Some(500)),
            read_bytes_per_second: None,
            write_bytes_per_second: Some(Some(ByteSize(1 << 20))),
            burst_milliseconds: Some(2000),
        },
        weight: Some(7),
    }
}

fn change(write_iops: u64) -> PropertiesChange {
    let limits = LimitsChange { write_iops: Some(Some(write_iops)), ..LimitsChange::default() };
    PropertiesChange { limits, ..PropertiesChange::default() }
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
    assert_eq!(info.properties.settings.limits.rate(Limit::WriteIops), Some(77));
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

/// Waits until the export of `host` has `expected`.
fn becomes(host: &Host, expected: &Properties) {
    let deadline = Instant::now() + PATIENCE;
    while of(&host.router().show("vm").unwrap()) != *expected {
        assert!(Instant::now() < deadline, "the change does not count");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_durability_of_more_than_this_host_is_acknowledged_when_the_store_has_it_and_everything_before() {
    let world = World::new(58, 0);
    let mut host = Host::new(&world);
    create(&world, &host, blank()).unwrap();
    let volume = host.volume("vm");
    host.driver().write(&volume, SectorRange::new(0, 8).unwrap(), Some(&[7; 4096])).unwrap();
    let last = volume.figures().last_seq;
    let set = world.runtime.block_on(host.router().set("vm", unusual())).unwrap();
    assert_eq!(of(&set), unusual().applied_to(&Properties::default()));
    assert_eq!(stored(&world, &host), of(&set), "before the answer");
    assert!(volume.figures().stored >= last, "what a FLUSH acknowledged before is there as well");
    let weaker = durable(Durability::Local);
    let set = world.runtime.block_on(host.router().set("vm", weaker)).unwrap();
    assert_eq!(set.properties.durability, Durability::Local);
    becomes_stored(&world, &host, &of(&set));
}

/// The answer would be a promise that the next host does not keep.
#[test]
fn a_durability_that_the_store_did_not_take_counts_here_and_is_acknowledged_only_when_it_did() {
    let world = World::new(59, 0);
    let mut host = Host::new(&world);
    create(&world, &host, blank()).unwrap();
    let promised = unusual().applied_to(&Properties::default());
    world.store_goes_away();
    let router = host.router();
    let set = world.runtime.spawn(async move { router.set("vm", unusual()).await });
    becomes(&host, &promised);
    assert!(!set.is_finished(), "the store is away");
    world.runtime.block_on(host.router().stop());
    let ended = world.runtime.block_on(set).unwrap();
    assert!(matches!(ended, Err(RouterError::Stopping)), "{ended:?}");
    // The next daemon has nothing else to write back.
    host.restart(&world);
    assert_eq!(of(&host.router().show("vm").unwrap()), promised);
    world.store_comes_back();
    world.runtime.block_on(host.router().set("vm", unusual())).unwrap();
    assert_eq!(stored(&world, &host), promised, "asked again, before the answer");
}

#[test]
fn a_durability_is_set_where_the_export_is_and_nowhere_else() {
    let world = World::new(60, 0);
    let local = Host::without_store(&world);
    create(&world, &local, blank()).unwrap();
    let set = world.runtime.block_on(local.router().set("vm", unusual()));
    assert!(matches!(set, Err(RouterError::NotInStore { .. })), "{set:?}");
    assert_eq!(of(&local.router().show("vm").unwrap()), Properties::default());
    let (first, other) = lost(&world);
    let set = world.runtime.block_on(first.router().set("vm", unusual()));
    assert!(matches!(set, Err(RouterError::Writeback { .. })), "{set:?}");
    assert_eq!(stored(&world, &other), Properties::default());
}

#[test]
fn of_two_hosts_the_one_without_the_volume_is_told_so_and_not_to_change_or_delete_anything() {
    let world = World::new(61, 0);
    let first = Host::new(&world);
    create(&world, &first, CreateExport { properties: unusual(), ..blank() }).unwrap();
    detach(&world, &first);
    let other = Host::new(&world);
    open(&world, &other);
    let size = ExportSize::new(2 * SECTORS * SECTOR_BYTES).unwrap();
    let named =
        CreateExport { properties: durable(Durability::Local), ..request("vm", InitialContent::Store) };
    for request in [named, request("vm", InitialContent::Blank(size))] {
        let refused = create(&world, &first, request).err().unwrap();
        assert!(matches!(refused, RouterError::Lost { .. }), "{refused}");
        assert!(!crate::observe::chain(&refused).contains("delete"), "{refused}");
    }
}

#[test]
fn what_is_given_up_here_takes_the_properties_that_the_other_host_gave_the_volume() {
    for named in [None, Some(Durability::Local)] {
        let world = World::new(62, 0);
        let (first, other) = lost(&world);
        let given = world.runtime.block_on(other.router().set("vm", unusual())).unwrap();
        let change = PropertiesChange { durability: named, ..PropertiesChange::default() };
        let discarded = world.runtime.block_on(first.router().discard_local("vm", change)).unwrap();
        assert_eq!(of(&discarded.info), change.applied_to(&of(&given)));
        assert_eq!(stored(&world, &first), of(&discarded.info), "before the answer");
        assert!(!discarded.is_assumed);
    }
}

#[test]
fn a_host_without_the_volume_finds_its_host_and_its_properties_in_the_store() {
    let world = World::new(64, 0);
    let (first, other) = (Host::new(&world), Host::new(&world));
    create(&world, &first, CreateExport { properties: unusual(), ..blank() }).unwrap();
    let look = || world.runtime.block_on(other.router().stored(&name("vm"))).unwrap();
    let Manifest { size_sectors, sections: Sections { holder, properties, .. }, .. } = look();
    let Holder { host, released } = holder.unwrap();
    assert_eq!((size_sectors, host.as_str(), released), (SECTORS, "unknown", false));
    assert_eq!(properties, unusual().applied_to(&Properties::default()));
    let taken = crate::observe::chain(&create(&world, &other, blank()).err().unwrap());
    assert!(taken.contains("host unknown has vm") && !taken.contains("delete"), "{taken}");
    detach(&world, &first);
    assert!(look().sections.holder.unwrap().released);
    let taken = crate::observe::chain(&create(&world, &other, blank()).err().unwrap());
    assert!(taken.contains("glidefs export open vm") && !taken.contains("delete"), "{taken}");
    assert!(world.runtime.block_on(other.router().stored(&name("none"))).is_err());
}

fn any_properties() -> impl Strategy<Value = Properties> {
    let bound = (1_u64 << 20..1 << 40, 1_u64..100_000)
        .prop_map(|(max_bytes, millis)| Bound { max_bytes, max_age: Duration::from_millis(1000 + millis) });
    let durability =
        prop_oneof![Just(Durability::Local), Just(Durability::Store), bound.prop_map(Durability::Bounded)];
    let on_unreachable = proptest::option::of(1000_u64..1_000_000).prop_map(|millis| {
        millis.map_or(OnUnreachable::Wait, |millis| OnUnreachable::FailAfter(Duration::from_millis(millis)))
    });
    let rates = proptest::array::uniform4(proptest::option::of(1_u64 << 20..1 << 23));
    let settings = (rates, 10_u64..3_600_000, 1_u16..=1000).prop_map(|(rates, burst, weight)| {
        let mut limits = Limits::unlimited(Duration::from_millis(burst));
        Limit::ALL.into_iter().zip(rates).for_each(|(limit, rate)| limits.set_rate(limit, rate));
        Settings { limits, weight }
    });
    (durability, on_unreachable, settings).prop_map(|(durability, on_unreachable, settings)| Properties {
        durability,
        on_unreachable,
        settings,
    })
}

/// The change that makes any properties `properties`.
fn all_of(properties: &Properties) -> PropertiesChange {
    let Properties { durability, on_unreachable, settings: Settings { limits, weight } } = *properties;
    let limits = LimitsChange {
        read_iops: Some(limits.rate(Limit::ReadIops)),
        write_iops: Some(limits.rate(Limit::WriteIops)),
        read_bytes_per_second: Some(limits.rate(Limit::ReadBytes).map(ByteSize)),
        write_bytes_per_second: Some(limits.rate(Limit::WriteBytes).map(ByteSize)),
        burst_milliseconds: Some(millis(limits.burst)),
    };
    let (durability, on_unreachable) = (Some(durability), Some(on_unreachable));
    PropertiesChange { durability, on_unreachable, limits, weight: Some(weight.into()) }
}

/// The ways in which a volume gets properties. Afterwards `vm` is an export of the host with these properties, with or without a device.
#[derive(Clone, Copy, Debug)]
enum Way {
    Create,
    Set,
    SetDetached,
    Open,
    Fork,
    Undelete,
    DiscardLocal,
}

impl Way {
    const ALL: [Self; 7] = [
        Self::Create,
        Self::Set,
        Self::SetDetached,
        Self::Open,
        Self::Fork,
        Self::Undelete,
        Self::DiscardLocal,
    ];

    fn go(self, world: &World, change: PropertiesChange) -> Host {
        let with = |content| CreateExport { properties: change, ..request("vm", content) };
        let made = |host: &Host, request| drop(create(world, host, request).unwrap());
        let host = Host::new(world);
        let other = |name: &str| CreateExport { name: self::name(name), ..blank() };
        match self {
            Self::Create => made(&host, CreateExport { properties: change, ..blank() }),
            Self::Set | Self::SetDetached => {
                made(&host, blank());
                if matches!(self, Self::SetDetached) {
                    detach(world, &host);
                }
                world.runtime.block_on(host.router().set("vm", change)).unwrap();
            }
            Self::Open => {
                let before = Host::new(world);
                made(&before, blank());
                detach(world, &before);
                made(&host, with(InitialContent::Store));
            }
            Self::Fork => {
                made(&host, other("origin"));
                made(&host, with(InitialContent::Fork { of: name("origin"), snapshot: None }));
            }
            Self::Undelete => {
                made(&host, other("old"));
                world.runtime.block_on(host.router().delete("old", Users::Spare)).unwrap();
                made(&host, with(InitialContent::Deleted { of: name("old") }));
            }
            Self::DiscardLocal => {
                let (first, _other) = lost(world);
                world.runtime.block_on(first.router().discard_local("vm", change)).unwrap();
                return first;
            }
        }
        host
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(14))]
    #[test]
    fn a_set_of_properties_goes_in_by_each_way_and_comes_out_by_each_way(
        way in proptest::sample::select(&Way::ALL[..]), properties in any_properties(),
    ) {
        let world = World::new(63, 0);
        let block_on = |host: &Host, request| of(&create(&world, host, request).unwrap().info);
        let mut host = way.go(&world, all_of(&properties));
        becomes_stored(&world, &host, &properties);
        prop_assert_eq!(of(&host.router().show("vm").unwrap()), properties);
        host.restart(&world);
        prop_assert_eq!(of(&host.router().show("vm").unwrap()), properties, "after a restart");
        world.runtime.block_on(host.router().snapshot("vm", &name("monday"))).unwrap();
        for (fork, snapshot) in [("fork", None), ("old-state", Some(name("monday")))] {
            let content = InitialContent::Fork { of: name("vm"), snapshot };
            prop_assert_eq!(block_on(&host, request(fork, content)), properties, "{}", fork);
        }
        let other = Host::new(&world);
        prop_assert_eq!(block_on(&other, request("vm", InitialContent::TakeOver)), properties, "taken over");
        // The first host learns that it has lost the volume, and makes another one of what it has.
        prop_assert!(create(&world, &host, request("vm", InitialContent::Store)).is_err());
        let local = request("local", InitialContent::Local { of: name("vm"), manifest: None });
        prop_assert_eq!(block_on(&host, local), properties, "rescued");
        let usual = PropertiesChange::default();
        let regained = world.runtime.block_on(host.router().discard_local("vm", usual)).unwrap();
        prop_assert_eq!(of(&regained.info), properties, "local data given up");
        detach(&world, &host);
        world.runtime.block_on(host.router().rollback("vm", name("monday"))).unwrap();
        prop_assert_eq!(of(&host.router().show("vm").unwrap()), properties, "rolled back");
        world.runtime.block_on(host.router().attach("vm", true)).unwrap();
        detach(&world, &host);
        let third = Host::new(&world);
        prop_assert_eq!(block_on(&third, request("vm", InitialContent::Store)), properties, "opened");
        world.runtime.block_on(third.router().delete("vm", Users::Spare)).unwrap();
        let undeleted = request("vm", InitialContent::Deleted { of: name("vm") });
        prop_assert_eq!(block_on(&Host::new(&world), undeleted), properties, "undeleted");
        prop_assert_eq!(stored(&world, &third), properties);
    }
}
