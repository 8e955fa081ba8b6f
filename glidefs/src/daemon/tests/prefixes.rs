//! A host lost at any request of its writeback leaves a volume in the state of a cut, no older than the last answered
//! writeback.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::host::{Host, World, request};
use crate::cache::driver::{PATIENCE, bytes_of, number_of};
use crate::router::{ExportSize, InitialContent};
use crate::units::{SECTOR_BYTES, SectorRange};

const SECTORS: u64 = 512;
const ROUNDS: u64 = 4;
const WRITES: u64 = 6;

/// Overlapping writes: the sectors that each write, numbered from 1, covers.
fn range_of(number: u64) -> SectorRange {
    SectorRange::new(number * 37 % (SECTORS - 48), 8 + number * 11 % 40).unwrap()
}

/// The content of the volume after the writes up to `number`.
fn state_after(number: u64) -> Vec<u64> {
    let mut content = vec![0; SECTORS as usize];
    for number in 1..=number {
        content[range_of(number).start() as usize..range_of(number).end() as usize].fill(number);
    }
    content
}

fn content(host: &mut Host) -> Vec<u64> {
    let volume = host.volume("vm");
    let read = |start: u64| {
        let bytes = host.driver().read(&volume, SectorRange::new(start, 256).unwrap()).unwrap();
        let sectors = bytes.chunks_exact(SECTOR_BYTES as usize);
        (start..).zip(sectors).map(|(sector, bytes)| number_of(bytes, sector).unwrap()).collect::<Vec<_>>()
    };
    (0..SECTORS).step_by(256).flat_map(read).collect()
}

/// The history of a host that is lost after so many requests, or with the request after these. Returns how many writes
/// the last answered writeback covers, and whether the host was lost at all.
fn history(world: &World, host: &mut Host, requests: u64, arrives: bool) -> (u64, bool) {
    let (router, volume) = (host.router(), host.volume("vm"));
    world.objects.end_after(requests, arrives);
    let mut answered = 0;
    for round in 0..ROUNDS {
        for number in round * WRITES + 1..=(round + 1) * WRITES {
            let range = range_of(number);
            let data: Vec<u8> = (range.start()..range.end()).flat_map(|at| bytes_of(number, at)).collect();
            host.driver().write(&volume, range, Some(&data)).unwrap();
            if number % WRITES == 4 {
                // A cut may be made here.
                host.driver().flush(&volume).unwrap();
            }
        }
        let writeback = world.runtime.spawn({
            let router = router.clone();
            async move { router.write_back("vm").await }
        });
        let deadline = Instant::now() + PATIENCE;
        while !writeback.is_finished() && !world.objects.has_ended() {
            assert!(Instant::now() < deadline, "neither written back nor lost");
            std::thread::sleep(Duration::from_millis(1));
        }
        if !writeback.is_finished() {
            writeback.abort();
            let _ = world.runtime.block_on(writeback);
            return (answered, true);
        }
        world.runtime.block_on(writeback).unwrap().unwrap();
        answered = (round + 1) * WRITES;
    }
    (answered, false)
}

#[test]
fn a_host_that_is_lost_at_any_request_leaves_a_state_at_a_cut() {
    let (mut seen, mut ended) = (BTreeSet::new(), false);
    for requests in 0.. {
        for arrives in [false, true] {
            let world = World::new(requests, 0);
            let mut host = Host::new(&world);
            let blank = InitialContent::Blank(ExportSize::new(SECTORS * SECTOR_BYTES).unwrap());
            world.runtime.block_on(host.router().create(request("vm", blank))).unwrap();
            let (answered, lost) = history(&world, &mut host, requests, arrives);
            host.lose();
            world.objects.go_on();
            ended = !lost;

            let mut other = Host::new(&world);
            world.runtime.block_on(other.router().create(request("vm", InitialContent::TakeOver))).unwrap();
            let found = content(&mut other);
            let state = (answered..=ROUNDS * WRITES).find(|number| state_after(*number) == found);
            let state = state.unwrap_or_else(|| {
                panic!("lost after {requests} requests: not a state from write {answered} on: {found:?}")
            });
            seen.insert(state);
        }
        if ended {
            assert!(requests >= 2 * ROUNDS, "a writeback has a pack and a manifest: {requests} requests");
            break;
        }
    }
    assert!(seen.len() as u64 > ROUNDS, "states found: {seen:?}");
}
