//! Data that a host's disk lost before the store had the data, from the operator's view.

use super::host::{Host, World, name, request};
use super::sim::faults::Crash;
use crate::cache::IoError;
use crate::cache::driver::bytes_of;
use crate::router::Users;
use crate::router::{ExportInfo, ExportSize, InitialContent};
use crate::units::{FRAME_BYTES, SECTOR_BYTES, SectorRange};

const FRAMES: u64 = 6;
/// The lost frame.
const LOST: u64 = 2;

fn create(world: &World, host: &Host, export: &str, source: InitialContent) -> ExportInfo {
    world.runtime.block_on(host.router().create(request(export, source))).unwrap().info
}

fn frame(frame: u64) -> SectorRange {
    SectorRange::new(frame * 8, 8).unwrap()
}

fn data(generation: u64, at: u64) -> Vec<u8> {
    (frame(at).start()..frame(at).end()).flat_map(|sector| bytes_of(generation, sector)).collect()
}

fn write(host: &mut Host, generation: u64, at: u64) {
    let volume = host.volume("vm");
    host.driver().write(&volume, frame(at), Some(&data(generation, at))).unwrap();
}

/// The generation of each frame of an export; `None` for a frame that fails.
fn held(host: &mut Host, export: &str) -> Vec<Option<u64>> {
    let volume = host.volume(export);
    let mut read = |at| match host.driver().read(&volume, frame(at)) {
        Ok(found) => Some((0..4).find(|generation| found == data(*generation, at)).expect("a generation")),
        Err(IoError::Damaged | IoError::Corrupt) => None,
        Err(error) => panic!("frame {at}: {error}"),
    };
    (0..FRAMES).map(&mut read).collect()
}

fn damaged_bytes(host: &Host, export: &str) -> Option<u64> {
    host.router().show(export).unwrap().damaged_bytes
}

/// A host that wrote the first generation back, and lost a frame of the second generation before its writeback.
pub(super) fn lost(world: &World) -> Host {
    let mut host = Host::new(world);
    let size = ExportSize::new(FRAMES * 8 * SECTOR_BYTES).unwrap();
    create(world, &host, "vm", InitialContent::Blank(size));
    (0..FRAMES).for_each(|at| write(&mut host, 1, at));
    world.runtime.block_on(host.router().write_back("vm")).unwrap();
    world.runtime.block_on(host.router().snapshot("vm", &name("before"))).unwrap();
    world.store_goes_away();
    (0..FRAMES - 1).for_each(|at| write(&mut host, 2, at));
    let volume = host.volume("vm");
    host.driver().flush(&volume).unwrap();
    drop(volume);
    // The next record says that the earlier records are stable.
    write(&mut host, 2, FRAMES - 1);
    host.go_down(Crash::Kill);
    let wanted = data(2, LOST);
    let mut machine = host.machine();
    let find = |number| {
        let mut frames = machine.bytes_of(number)?.chunks_exact(FRAME_BYTES);
        Some((number, frames.position(|bytes| bytes == wanted)? * FRAME_BYTES))
    };
    let (number, at) = (0..8).find_map(find).unwrap();
    machine.rot(number, |bytes| bytes[at] ^= 1);
    drop(machine);
    world.store_comes_back();
    host.come_up(world);
    host
}

#[test]
fn an_export_that_lost_a_frame_is_written_back_released_and_opened_elsewhere_with_everything_else() {
    let world = World::new(60, 0);
    let mut first = lost(&world);
    let expected: Vec<Option<u64>> = (0..FRAMES).map(|at| (at != LOST).then_some(2)).collect();
    assert_eq!(held(&mut first, "vm"), expected);
    world.runtime.block_on(first.router().write_back("vm")).unwrap();
    assert_eq!((held(&mut first, "vm"), damaged_bytes(&first, "vm")), (expected.clone(), Some(4096)));
    first.crash(&world, Crash::PowerCut);
    assert_eq!((held(&mut first, "vm"), damaged_bytes(&first, "vm")), (expected.clone(), Some(4096)));
    world.runtime.block_on(first.router().snapshot("vm", &name("after"))).unwrap();
    let info = world.runtime.block_on(first.router().detach("vm", Users::Spare)).unwrap();
    assert_eq!(info.unreleased, None);

    let mut other = Host::new(&world);
    create(&world, &other, "vm", InitialContent::Store);
    assert_eq!((held(&mut other, "vm"), damaged_bytes(&other, "vm")), (expected.clone(), Some(4096)));
    create(&world, &other, "fork", InitialContent::Fork { of: name("vm"), snapshot: Some(name("after")) });
    write(&mut other, 3, LOST);
    let healed: Vec<_> = expected.iter().map(|generation| generation.or(Some(3))).collect();
    assert_eq!(held(&mut other, "vm"), healed);
    world.runtime.block_on(other.router().write_back("vm")).unwrap();
    other.restart(&world);
    assert_eq!((held(&mut other, "vm"), damaged_bytes(&other, "vm")), (healed, Some(0)));
    assert_eq!((held(&mut other, "fork"), damaged_bytes(&other, "fork")), (expected.clone(), Some(4096)));

    let router = other.router();
    world.runtime.block_on(router.detach("vm", Users::Spare)).unwrap();
    world.runtime.block_on(router.rollback("vm", name("after"))).unwrap();
    assert_eq!((held(&mut other, "vm"), damaged_bytes(&other, "vm")), (expected, Some(4096)));
    world.runtime.block_on(router.rollback("vm", name("before"))).unwrap();
    assert_eq!((held(&mut other, "vm"), damaged_bytes(&other, "vm")), (vec![Some(1); 6], Some(0)));
}
