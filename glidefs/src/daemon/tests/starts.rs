//! Starts with stores that answer slowly, or not for every export; and ends of daemons with waiting exports.

use std::sync::Arc;
use std::time::Duration;

use super::host::{Host, World, request};
use super::sim::faults::Crash;
use crate::router::Users;
use crate::router::{ExportSize, InitialContent, State};
use crate::units::SECTOR_BYTES;

fn name(number: usize) -> String {
    format!("vm{number}")
}

/// A host with so many new exports, all served, and a dead daemon.
fn down(world: &World, exports: usize) -> Host {
    let mut host = Host::new(world);
    for number in 0..exports {
        let blank = InitialContent::Blank(ExportSize::new(64 * SECTOR_BYTES).unwrap());
        let request = request(&name(number), blank);
        world.runtime.block_on(host.router().create(request)).unwrap();
    }
    host.go_down(Crash::Kill);
    host
}

/// How many exports are in the state of this name.
fn count(host: &Host, state: &str) -> usize {
    host.router().list().iter().filter(|info| info.state.name() == state).count()
}

/// The part of the store's keys that belongs to this one export.
fn key_of(host: &Host, export: &str) -> String {
    host.volume(export).remote().unwrap().id().to_string()
}

#[test]
fn a_store_with_too_many_names_to_list_keeps_no_export_from_being_served() {
    let world = World::new(50, 0);
    let mut host = down(&world, 3);
    world.objects.never_list(Some("names"));
    host.come_up(&world);
    assert_eq!(count(&host, "serving"), 3);
    world
        .runtime
        .block_on(async { tokio::time::timeout(Duration::from_mins(1), host.router().confirm()).await })
        .unwrap();
}

#[test]
fn an_export_that_the_store_says_nothing_of_makes_no_other_one_wait() {
    let world = World::new(51, 0);
    let mut host = down(&world, 10);
    host.come_up(&world);
    let refused = key_of(&host, "vm0");
    host.go_down(Crash::Kill);
    world.objects.refuse_to_list(Some(&refused));
    host.come_up(&world);
    assert_eq!((count(&host, "serving"), count(&host, "waiting")), (9, 1));
    assert_eq!(host.router().unconfirmed(), 0, "the store is there: the host is ready");
    assert_eq!(host.router().show("vm0").unwrap().state, State::Waiting);
    world.objects.refuse_to_list(None);
    world.runtime.block_on(host.router().confirm());
    assert_eq!(count(&host, "serving"), 10);
}

#[test]
fn a_start_asks_once_for_every_export_with_a_device_and_for_no_other() {
    let world = World::new(52, 0);
    let mut host = down(&world, 8);
    host.come_up(&world);
    world.runtime.block_on(host.router().detach("vm7", Users::Spare)).unwrap();
    host.go_down(Crash::Kill);
    host.come_up(&world);
    let before = world.objects.requests();
    world.runtime.block_on(host.router().confirm());
    assert_eq!(world.objects.requests() - before, 0, "an export without a device costs no request");
    world.runtime.block_on(host.router().attach("vm7", true)).unwrap();
    assert!(world.objects.requests() > before, "the store is asked before the export gets a device");
}

#[test]
fn a_daemon_that_removes_its_devices_leaves_none_of_an_export_that_waits() {
    let world = World::new(53, 0);
    let mut host = down(&world, 2);
    world.store_goes_away();
    host.come_up(&world);
    assert_eq!((count(&host, "waiting"), host.kernel().devices().len()), (2, 2));
    let router = host.router();
    world.runtime.block_on(async {
        router.stop().await;
        assert_eq!(router.remove_devices().await, 0);
    });
    assert!(host.kernel().devices().is_empty());
    drop(router);
    world.store_comes_back();
    host.restart(&world);
    assert_eq!(count(&host, "serving"), 2, "they are attached at the next start");
}

#[test]
fn a_device_that_is_being_made_when_the_daemon_stops_is_finished() {
    let world = World::new(54, 0);
    let mut host = down(&world, 1);
    world.store_goes_away();
    host.come_up(&world);
    host.kernel().take_log();
    *host.kernel().delay.lock().unwrap() = Duration::from_millis(300);
    world.store_comes_back();
    let router = host.router();
    let confirming = Arc::clone(&router);
    let confirming = world.runtime.spawn(async move { confirming.confirm().await });
    while !host.kernel().log.lock().unwrap().iter().any(|call| call.starts_with("recover")) {
        std::thread::sleep(Duration::from_millis(1));
    }
    confirming.abort();
    world.runtime.block_on(router.stop());
    assert_eq!(router.show("vm0").unwrap().state, State::Serving);
}
