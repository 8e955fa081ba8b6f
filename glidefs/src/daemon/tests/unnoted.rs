//! Cuts that reached the store while the catalog did not get the note, from the view of the router.

use super::host::{Host, World, request};
use super::sim::faults::{Crash, Faults};
use crate::cache::IoError;
use crate::cache::driver::{bytes_of, number_of};
use crate::router::Users;
use crate::router::{ExportSize, InitialContent};
use crate::units::{SECTOR_BYTES, SectorRange};

/// Worlds tried at most. A test needs a failed write with all of the record on the disk, which is left to chance.
const WORLDS_MAX: u64 = 200;

fn range() -> SectorRange {
    SectorRange::new(0, 8).unwrap()
}

/// Write `number`; number 0 is a DISCARD.
fn write(host: &mut Host, number: u64) -> Result<(), IoError> {
    let volume = host.volume("vm");
    let data: Vec<u8> = (0..8).flat_map(|sector| bytes_of(number, sector)).collect();
    host.driver().write(&volume, range(), (number > 0).then_some(&data[..]))
}

/// The number of the write that a reader of the host finds.
fn held(host: &mut Host) -> Option<u64> {
    let volume = host.volume("vm");
    number_of(&host.driver().read(&volume, range()).unwrap()[..512], 0)
}

/// The number of the write in the store when everything is written back.
fn stored(world: &World, host: &Host) -> Option<u64> {
    world.objects.fail_creations("packs", 0, false);
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
    number_of(&world.image("vm", None).unwrap()[..512], 0)
}

/// A host that died with write 2 in a cut which the store has and the catalog does not, while the export may have been released.
/// Write `failed`, of the same sectors, failed before the cut. The record of this write may be on the disk.
fn killed(world: &World, failed: u64) -> Host {
    let mut host = Host::new(world);
    let blank = InitialContent::Blank(ExportSize::new(64 * SECTOR_BYTES).unwrap());
    world.runtime.block_on(host.router().create(request("vm", blank))).unwrap();
    write(&mut host, 1).unwrap();
    world.runtime.block_on(host.router().detach("vm", Users::Spare)).unwrap();
    world.objects.end_after(0, false);
    world.runtime.block_on(host.router().attach("vm", false)).unwrap();
    write(&mut host, 2).unwrap();
    host.machine().faults = Faults { write: 1000, ..Faults::default() };
    assert_eq!(write(&mut host, failed), Err(IoError::Write));
    world.objects.delay_every(Some("manifests"));
    world.objects.go_on();
    host.router().begin_writeback("vm").unwrap();
    while world.runtime.block_on(world.objects.arrive()) == 0 {
        std::thread::yield_now();
    }
    host.go_down(Crash::Kill);
    world.objects.delay_every(None);
    host
}

/// A host of [`killed`] with the record of the failed write on the disk. A second daemon has taken the export back, and died before
/// anything was written back. A third one runs, and nothing can be written back before [`stored`].
fn taken_back(failed: u64) -> (World, Host) {
    for seed in 0..WORLDS_MAX {
        let world = World::new(2 * (70 + seed), 0);
        let mut host = killed(&world, failed);
        world.objects.fail_creations("packs", u32::MAX, false);
        let manifest = world.manifest_number("vm");
        host.come_up(&world);
        world.runtime.block_on(host.router().confirm());
        if held(&mut host) != Some(failed) {
            continue;
        }
        assert!(world.manifest_number("vm") > manifest, "the export was taken back");
        host.restart(&world);
        assert_eq!(held(&mut host), Some(failed));
        return (world, host);
    }
    panic!("no failed write left the whole record on the disk");
}

/// Taking an export back once noted the newest manifest's cut in the catalog, and not the failed writes of the cut. If the daemon
/// died then, the next start took the record of a failed write for content in the store: readers found the content until the
/// cache forgot the record, and the store never got the content.
#[test]
fn a_failed_write_is_the_same_on_host_and_store_after_the_export_was_taken_back() {
    let (world, host) = taken_back(3);
    assert_eq!(stored(&world, &host), Some(3));
}

/// As above. The guest zeroed the sectors once more, and the zeroes were acknowledged without a record, since the sectors read as
/// zeroes. So the store kept the content from before the zeroes, and readers found this content in the end.
#[test]
fn zeroes_in_the_place_of_a_failed_discards_zeroes_reach_the_store_after_the_export_was_taken_back() {
    let (world, mut host) = taken_back(0);
    write(&mut host, 0).unwrap();
    assert_eq!(stored(&world, &host), Some(0));
}
