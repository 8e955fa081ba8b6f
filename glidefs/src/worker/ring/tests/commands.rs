//! Commands: tokens, memory, waits, and values which a command delivers.

use std::time::Instant;

use io_uring::{opcode, squeue, types};

use super::super::Options;
use super::*;

fn nop() -> squeue::Entry {
    opcode::Nop::new().build()
}

/// The news of commands until there are `count`.
fn outcomes(ring: &mut Ring<()>, count: usize) -> Vec<(u64, Outcome)> {
    let (mut found, begun) = (Vec::new(), Instant::now());
    while found.len() < count {
        assert!(begun.elapsed() < PATIENCE, "only {found:?}");
        for event in completed_by_now(ring) {
            let Event::Command { token, outcome } = event else { panic!("{event:?}") };
            found.push((token, outcome));
        }
    }
    found
}

/// A command which delivers what is written to `pipe`, in pieces of the buffers' size.
fn deliver(ring: &mut Ring<()>, pipe: &OwnedFd, token: u64) {
    use std::os::fd::AsRawFd;
    let group = ring.delivery_group().unwrap();
    let entry = opcode::ReadMulti::new(types::Fd(pipe.as_raw_fd()), 0, group).build();
    // SAFETY: the entry points to no memory.
    unsafe { ring.command(entry, token) }.unwrap();
}

fn write(pipe: &OwnedFd, values: &[u16]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert_eq!(nix::unistd::write(pipe, &bytes).unwrap(), bytes.len());
}

#[test]
fn commands_are_reported_with_their_tokens() {
    let mut ring: Ring<()> = ring(&Options::default());
    for token in [0, 1, (1 << 62) - 1] {
        // SAFETY: a no-op points to no memory.
        unsafe { ring.command(nop(), token) }.unwrap();
    }
    // SAFETY: as above.
    assert!(unsafe { ring.command(nop(), 1 << 62) }.is_err());
    let mut found = outcomes(&mut ring, 3);
    found.sort_unstable_by_key(|(token, _)| *token);
    assert_eq!(found, [0, 1, (1 << 62) - 1].map(|token| (token, Outcome::Ended(0))));
}

#[test]
fn the_memory_of_a_command_comes_back_with_the_completion() {
    let mut ring: Ring<()> = ring(&Options::default());
    for (token, is_prompt) in [(5, false), (6, true)] {
        // SAFETY: a no-op points to no memory.
        unsafe { ring.command_with(nop(), token, vec![token; 3], is_prompt) }.unwrap();
    }
    let mut found = outcomes(&mut ring, 2);
    found.sort_unstable_by_key(|(token, _)| *token);
    assert_eq!(found, [5, 6].map(|token| (token, Outcome::Returned(0, vec![token; 3]))));
    // SAFETY: as above.
    assert!(unsafe { ring.command_with(nop(), 1 << 62, Vec::new(), true) }.is_err());
}

#[test]
fn a_prompt_command_does_not_end_a_wait_and_any_other_completion_does() {
    let mut ring: Ring<()> = ring(&Options::default());
    for token in 0..3 {
        // SAFETY: a no-op points to no memory.
        unsafe { ring.command_with(nop(), token, Vec::new(), true) }.unwrap();
    }
    ring.submit_all().unwrap();
    assert!(!ring.lookout().has_news());
    let begun = Instant::now();
    ring.submit_and_wait(Some(Duration::from_millis(100))).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(100), "nothing else has completed");
    assert_eq!(outcomes(&mut ring, 3).len(), 3);
    for token in 0..3 {
        // SAFETY: as above.
        unsafe { ring.command_with(nop(), token, Vec::new(), true) }.unwrap();
    }
    // SAFETY: as above.
    unsafe { ring.command(nop(), 3) }.unwrap();
    ring.submit_all().unwrap();
    assert!(ring.lookout().has_news());
    ring.submit_and_wait(None).unwrap();
    assert_eq!(outcomes(&mut ring, 4).len(), 4);
    assert!(!ring.lookout().has_news());
}

#[test]
fn news_that_comes_during_a_watch_is_seen() {
    use std::os::fd::AsRawFd;
    let mut ring: Ring<()> = ring(&Options::default());
    assert!(ring.can_be_watched());
    let (read, write_end) = pipe();
    let entry = opcode::PollAdd::new(types::Fd(read.as_raw_fd()), libc::POLLIN as u32).build();
    // SAFETY: the entry points to no memory.
    unsafe { ring.command(entry, 9) }.unwrap();
    ring.submit().unwrap();
    let lookout = ring.lookout();
    assert!(!lookout.has_news());
    let writer = std::thread::spawn(move || write(&write_end, &[1]));
    let begun = Instant::now();
    while !lookout.has_news() {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    drop(lookout);
    assert_eq!(outcomes(&mut ring, 1), [(9, Outcome::Ended(libc::POLLIN.into()))]);
    writer.join().unwrap();
}

#[test]
fn entries_and_completions_without_room_are_news() {
    let options = Options { submissions: 64, completions: 64, ..Options::default() };
    let mut ring: Ring<()> = ring(&options);
    for token in 0..64 {
        // SAFETY: a no-op points to no memory.
        unsafe { ring.command_with(nop(), token, Vec::new(), true) }.unwrap();
        assert!(ring.lookout().has_news(), "not submitted");
    }
    ring.submit().unwrap();
    assert!(!ring.lookout().has_news());
    // SAFETY: as above.
    unsafe { ring.command_with(nop(), 64, Vec::new(), true) }.unwrap();
    ring.submit().unwrap();
    assert!(ring.lookout().has_news(), "more completions than the queue holds");
    assert_eq!(outcomes(&mut ring, 65).len(), 65);
}

#[test]
fn more_commands_than_the_queue_holds_all_complete() {
    let options = Options { submissions: 4, completions: 64, ..Options::default() };
    let mut ring: Ring<()> = ring(&options);
    for token in 0..1000 {
        // SAFETY: a no-op points to no memory.
        unsafe { ring.command_with(nop(), token, vec![token], true) }.unwrap();
    }
    for (token, outcome) in outcomes(&mut ring, 1000) {
        assert_eq!(outcome, Outcome::Returned(0, vec![token]));
    }
    // SAFETY: as above.
    unsafe { ring.command(nop(), 3) }.unwrap();
    ring.submit_and_wait(None).unwrap();
    assert_eq!(outcomes(&mut ring, 1), [(3, Outcome::Ended(0))], "a wait ends with one completion again");
}

#[test]
fn a_command_delivers_values_until_the_command_ends() {
    let mut ring: Ring<()> = ring(&Options::default());
    let (first, write_first) = pipe();
    let (second, write_second) = pipe();
    deliver(&mut ring, &first, 1);
    deliver(&mut ring, &second, 2);
    for round in 0..3000_u16 {
        write(&write_first, &[round, u16::MAX]);
        assert_eq!(
            outcomes(&mut ring, 2),
            [(1, Outcome::Value(round)), (1, Outcome::Value(u16::MAX))],
            "each buffer is used again and again"
        );
    }
    let many: Vec<u16> = (0..150).collect();
    write(&write_second, &many);
    let found = outcomes(&mut ring, many.len());
    assert!(found.iter().all(|(token, _)| *token == 2));
    assert_eq!(
        found.into_iter().map(|(_, value)| value).collect::<Vec<_>>(),
        many.iter().map(|&it| Outcome::Value(it)).collect::<Vec<_>>()
    );
    drop(write_first);
    assert_eq!(outcomes(&mut ring, 1), [(1, Outcome::Ended(0))]);
    write(&write_second, &[7]);
    assert_eq!(outcomes(&mut ring, 1), [(2, Outcome::Value(7))], "the other command goes on");
}

#[test]
fn a_command_without_a_buffer_ends_and_goes_on_when_pushed_anew() {
    let mut ring: Ring<()> = ring(&Options::default());
    let (read, write_end) = pipe();
    deliver(&mut ring, &read, 1);
    ring.submit().unwrap();
    // More deliveries than buffers, none of which is given back before the first drain.
    let expected: Vec<u16> = (0..1100).collect();
    for &value in &expected {
        write(&write_end, &[value]);
        ring.submit_and_wait(Some(Duration::ZERO)).unwrap();
    }
    let (mut values, mut ends) = (Vec::new(), 0);
    while values.len() < expected.len() {
        for (_, outcome) in outcomes(&mut ring, 1) {
            match outcome {
                Outcome::Value(value) => values.push(value),
                Outcome::Ended(result) => {
                    assert_eq!(result, -libc::ENOBUFS);
                    ends += 1;
                    deliver(&mut ring, &read, 1);
                }
                returned @ Outcome::Returned(..) => panic!("{returned:?}"),
            }
        }
    }
    assert_eq!(ends, 1);
    assert_eq!(values, expected, "nothing is lost, and nothing comes twice");
}
