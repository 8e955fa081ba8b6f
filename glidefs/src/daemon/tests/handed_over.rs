//! Upgrades while the store is away: the next program goes on with the exports as the one before would have.

use std::time::Duration;

use super::host::{Host, World, durable, name, request};
use super::loss::{blank, has_first, held, lost, write, written};
use super::sim::faults::Crash;
use crate::cache::IoError;
use crate::properties::{Bound, Durability};
use crate::router::Users;
use crate::router::{CreateExport, InitialContent, RouterError, State};
use crate::units::ExportId;

/// A host that serves the export `vm` with write 1, which is in the store.
fn written_back(world: &World) -> Host {
    let mut host = Host::new(world);
    world.runtime.block_on(host.router().create(blank())).unwrap();
    write(&mut host, 1);
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
    host
}

/// The same while the store is away, with write 2 on this host alone.
fn serving(world: &World) -> Host {
    let mut host = written_back(world);
    world.store_goes_away();
    write(&mut host, 2);
    host
}

fn state(host: &Host) -> State {
    host.router().show("vm").unwrap().state
}

#[test]
fn the_next_program_serves_what_the_daemon_before_served_while_the_store_is_away() {
    for seed in [90, 91] {
        let world = World::new(seed, 0);
        let mut host = serving(&world);
        assert_eq!(world.runtime.block_on(host.router().may_hand_over()), Ok(()));
        // A second one follows before the store has answered.
        for write_number in [3, 4] {
            host.hand_over(&world);
            assert_eq!((state(&host), host.router().unconfirmed()), (State::Serving, 0));
            assert!(host.kernel().devices().values().all(|device| !device.quiesced));
            write(&mut host, write_number);
        }
        assert_eq!(held(&mut host, "vm"), [1, 2, 3, 4]);

        world.store_comes_back();
        world.runtime.block_on(host.router().confirm());
        world.runtime.block_on(host.router().write_back("vm")).unwrap();
        let data = world.image("vm", None).unwrap();
        for number in 1..5 {
            let (range, written) = written(number);
            let at = usize::try_from(range.start() * 512).unwrap();
            assert_eq!(data[at..at + written.len()], written[..], "{number}");
        }
    }
}

#[test]
fn an_export_with_data_at_risk_for_a_bounded_time_is_handed_over_when_the_store_is_there() {
    let world = World::new(95, 0);
    let mut host = Host::new(&world);
    let bound = Bound { max_bytes: 64 << 20, max_age: Duration::from_secs(30) };
    let request = CreateExport { properties: durable(Durability::Bounded(bound)), ..blank() };
    world.runtime.block_on(host.router().create(request)).unwrap();
    world.store_goes_away();
    assert_eq!(world.runtime.block_on(host.router().may_hand_over()), Ok(()), "nothing is at risk");
    write(&mut host, 1);
    // The next program would take the data for new, and let writes go on for as long again.
    let refused = world.runtime.block_on(host.router().may_hand_over());
    assert_eq!(refused.unwrap_err().as_str(), "vm");
    assert!(host.router().tenures().is_empty());
    world.store_comes_back();
    assert_eq!(world.runtime.block_on(host.router().may_hand_over()), Ok(()));
    host.hand_over(&world);
    assert_eq!(held(&mut host, "vm"), [1]);
}

#[test]
fn the_next_program_asks_about_what_it_serves_as_soon_as_the_store_answers() {
    let world = World::new(92, 0);
    let mut host = written_back(&world);
    let mut other = Host::new(&world);
    world.runtime.block_on(other.router().create(request("vm", InitialContent::TakeOver))).unwrap();
    write(&mut other, 3);
    world.runtime.block_on(other.router().write_back("vm")).unwrap();
    world.store_goes_away();
    write(&mut host, 2);
    // As the daemon before, which has not noticed the takeover either.
    host.hand_over(&world);
    assert_eq!(state(&host), State::Serving);
    assert!(has_first(&mut host));

    world.store_comes_back();
    world.runtime.block_on(host.router().confirm());
    let volume = host.volume("vm");
    assert_eq!(host.driver().read(&volume, written(1).0), Err(IoError::Fenced));
    let refused = world.runtime.block_on(host.router().write_back("vm"));
    assert!(matches!(refused, Err(RouterError::Writeback { source: IoError::Fenced, .. })), "{refused:?}");
    assert_eq!(held(&mut other, "vm"), [1, 3], "nothing of this host came between");
}

#[test]
fn an_export_that_was_lost_before_stays_lost_and_its_requests_fail_at_once() {
    let world = World::new(93, 0);
    let (mut first, _other) = lost(&world);
    assert!(first.router().tenures().is_empty());
    world.store_goes_away();
    assert_eq!(world.runtime.block_on(first.router().may_hand_over()), Ok(()), "no request waits");
    // Not even a wrong word of the daemon before counts.
    let epoch = first.volume("vm").remote().unwrap().writer().epoch;
    let id = first.router().show("vm").unwrap().id;
    first.hand_over_as(&world, [(id, epoch)].into());
    let volume = first.volume("vm");
    assert_eq!(first.driver().read(&volume, written(1).0), Err(IoError::Fenced));
    assert!(first.kernel().devices().values().all(|device| !device.quiesced), "requests get an error");
}

#[test]
fn a_tenure_of_another_epoch_or_export_counts_for_nothing() {
    let world = World::new(94, 0);
    let mut host = serving(&world);
    let (&id, &epoch) = host.router().tenures().iter().next().unwrap();
    for wrong in [(id, epoch + 1), (ExportId(id.0 + 1), epoch)] {
        host.hand_over_as(&world, [wrong].into());
        assert_eq!(state(&host), State::Waiting);
        assert!(host.router().tenures().is_empty(), "nobody has served the export meanwhile");
        assert!(host.kernel().devices().values().all(|device| device.quiesced));
    }
    host.restart(&world);
    assert_eq!(state(&host), State::Waiting, "a restart is no upgrade");
    world.store_comes_back();
    world.runtime.block_on(host.router().confirm());
    assert_eq!(held(&mut host, "vm"), [1, 2]);
}

#[test]
fn an_export_that_may_be_released_waits_for_the_store_and_keeps_the_daemon() {
    let world = World::new(95, 0);
    let mut host = serving(&world);
    world.store_comes_back();
    world.runtime.block_on(host.router().detach("vm", Users::Spare)).unwrap();
    world.store_goes_away();
    world.runtime.block_on(host.router().attach("vm", false)).unwrap();
    assert!(host.router().tenures().is_empty(), "another host may open the volume");
    assert_eq!(world.runtime.block_on(host.router().may_hand_over()), Err(name("vm")));
    host.hand_over(&world);
    assert_eq!(state(&host), State::Waiting);
}

#[test]
fn an_export_that_waits_is_no_export_of_the_next_program() {
    let world = World::new(97, 0);
    let mut host = serving(&world);
    host.crash(&world, Crash::Kill);
    assert_eq!(state(&host), State::Waiting);
    assert_eq!(world.runtime.block_on(host.router().may_hand_over()), Ok(()), "the export waits already");
    host.hand_over(&world);
    assert_eq!(state(&host), State::Waiting);
}
