//! Hosts with a store other than the one with their exports, and with a directory from before an export was deleted.

use std::time::Duration;

use super::host::{Host, World, request};
use super::sim::faults::Crash;
use crate::cache::IoError;
use crate::cache::driver::bytes_of;
use crate::router::Users;
use crate::router::{ExportSize, InitialContent, RouterError};
use crate::store::volume::VolumeError;
use crate::units::{SECTOR_BYTES, SectorRange};

/// Long enough for several attempts to write a cut back.
const WAIT: Duration = Duration::from_millis(700);

fn create(world: &World, host: &Host, source: InitialContent) {
    world.runtime.block_on(host.router().create(request("vm", source))).unwrap();
}

fn blank() -> InitialContent {
    InitialContent::Blank(ExportSize::new(256 * SECTOR_BYTES).unwrap())
}

fn written(number: u64) -> (SectorRange, Vec<u8>) {
    let range = SectorRange::new(8 * number, 8).unwrap();
    (range, (range.start()..range.end()).flat_map(|sector| bytes_of(number, sector)).collect())
}

fn write(host: &mut Host, number: u64) {
    let (volume, (range, data)) = (host.volume("vm"), written(number));
    host.driver().write(&volume, range, Some(&data)).unwrap();
}

fn holds(host: &mut Host, number: u64) -> bool {
    let (volume, (range, data)) = (host.volume("vm"), written(number));
    host.driver().read(&volume, range).unwrap() == data
}

/// The content of the place that is not the store with the exports.
#[derive(Clone, Copy, Debug)]
enum Place {
    Nothing,
    AnotherStore,
    /// Another store with copies of the exports, one of them taken over.
    TakenOver,
    /// As `TakenOver`, and deleted.
    Deleted,
}

fn fill(world: &World, elsewhere: &World, place: Place) {
    match place {
        Place::Nothing => {}
        Place::AnotherStore => create(elsewhere, &Host::new(elsewhere), blank()),
        Place::TakenOver | Place::Deleted => {
            let other = Host::new(elsewhere);
            // No store is made around volumes that are there already.
            elsewhere.runtime.block_on(other.router().create(request("other", blank()))).unwrap();
            let copied = world.objects.copy_to(&elsewhere.objects, "glidefs.json");
            elsewhere.runtime.block_on(copied).unwrap();
            create(elsewhere, &other, InitialContent::TakeOver);
            if matches!(place, Place::Deleted) {
                elsewhere.runtime.block_on(other.router().delete("vm", Users::Spare)).unwrap();
            }
        }
    }
}

#[test]
fn from_a_store_without_the_exports_nothing_is_concluded_and_nothing_is_written_to_it() {
    for place in [Place::Nothing, Place::AnotherStore, Place::TakenOver, Place::Deleted] {
        let (world, mut elsewhere) = (World::new(6, 0), World::new(7, 0));
        let mut host = Host::new(&world);
        create(&world, &host, blank());
        write(&mut host, 1);
        world.runtime.block_on(host.router().write_back("vm")).unwrap();
        // This write is not written back yet.
        world.store_goes_away();
        write(&mut host, 2);
        fill(&world, &elsewhere, place);
        // However long the host waits, the place does not become the store.
        elsewhere.time_budget = Duration::from_millis(300);
        let before = elsewhere.runtime.block_on(elsewhere.objects.keys());

        host.restart(&elsewhere);
        let (volume, router) = (host.volume("vm"), host.router());
        let remote = volume.remote().unwrap();
        elsewhere.runtime.block_on(async {
            let asked = [
                remote.confirm().await,
                remote.read(SectorRange::new(0, 8).unwrap()).await.map(drop),
                remote.snapshot(&"s".parse().unwrap()).await.map(drop),
                remote.delete().await,
            ];
            for answer in asked {
                assert!(
                    matches!(&answer, Err(error @ VolumeError::Store(_)) if error.is_unreachable()),
                    "{place:?}: {answer:?}"
                );
            }
            let written = tokio::time::timeout(WAIT, router.write_back("vm")).await;
            assert!(written.is_err(), "{place:?}: {written:?}");
        });
        assert_eq!(remote.loss(), None, "{place:?}");
        assert_eq!(elsewhere.runtime.block_on(elsewhere.objects.keys()), before, "{place:?}");
        drop((volume, router));

        world.store_comes_back();
        host.restart(&world);
        world.runtime.block_on(host.router().write_back("vm")).unwrap();
        let mut other = Host::new(&world);
        create(&world, &other, InitialContent::TakeOver);
        assert!(holds(&mut other, 1) && holds(&mut other, 2), "{place:?}");
    }
}

#[test]
fn a_directory_from_before_an_export_was_deleted_does_not_write_to_what_was_deleted() {
    let world = World::new(9, 0);
    let mut host = Host::new(&world);
    create(&world, &host, blank());
    write(&mut host, 1);
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
    host.go_down(Crash::Kill);
    let backup = host.copy();
    host.come_up(&world);
    world.runtime.block_on(host.router().delete("vm", Users::Spare)).unwrap();
    host.go_down(Crash::Kill);
    host.put(&backup);
    host.come_up(&world);
    let refused = world.runtime.block_on(host.router().write_back("vm"));
    assert!(matches!(refused, Err(RouterError::Writeback { source: IoError::Fenced, .. })), "{refused:?}");
    let volume = host.volume("vm");
    let read = host.driver().read(&volume, written(1).0);
    assert_eq!(read, Err(IoError::Fenced));
    // The name is free, on this host and in the store.
    world.runtime.block_on(host.router().delete("vm", Users::Spare)).unwrap();
    create(&world, &host, blank());
    assert!(!holds(&mut host, 1));
}
