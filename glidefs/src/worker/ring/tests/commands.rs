//! Commands: tokens and waits.

use std::time::Instant;

use io_uring::{opcode, squeue};

use super::super::Options;
use super::*;

fn nop() -> squeue::Entry {
    opcode::Nop::new().build()
}

/// The ends of `count` commands.
fn ends(ring: &mut Ring<()>, count: usize) -> Vec<(u64, i32)> {
    let (mut found, begun) = (Vec::new(), Instant::now());
    while found.len() < count {
        assert!(begun.elapsed() < PATIENCE, "only {found:?}");
        for event in completed_by_now(ring) {
            let Event::Command { token, result } = event else { panic!("{event:?}") };
            found.push((token, result));
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn commands_are_reported_with_their_tokens() {
    let mut ring: Ring<()> = ring(&Options::default());
    for token in [0, 1, (1 << 63) - 1] {
        // SAFETY: a no-op points to no memory.
        unsafe { ring.command(nop(), token) }.unwrap();
    }
    // SAFETY: as above.
    assert!(unsafe { ring.command(nop(), 1 << 63) }.is_err());
    assert_eq!(ends(&mut ring, 3), [0, 1, (1 << 63) - 1].map(|token| (token, 0)));
}

#[test]
fn more_commands_than_the_queue_holds_all_complete() {
    let options = Options { submissions: 4, completions: 64, ..Options::default() };
    let mut ring: Ring<()> = ring(&options);
    for token in 0..1000 {
        // SAFETY: a no-op points to no memory.
        unsafe { ring.command(nop(), token) }.unwrap();
    }
    assert_eq!(ends(&mut ring, 1000), (0..1000).map(|token| (token, 0)).collect::<Vec<_>>());
}
