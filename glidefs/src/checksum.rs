//! CRC-32C, by the fastest of several implementations on this CPU.
//!
//! Owns the implementations' list, the measurement that chooses one, and the choice, made once in a process. Does not own which bytes
//! have a checksum, nor where the checksum is kept. Invariant: the chosen implementation equals [`portable`] on the bytes of the
//! measurement, and gives the published checksum of a known text.
//!
//! Which implementation is fastest does not follow from the CPU's features alone: carry-less multiplication of 512 bits is ahead of
//! the `crc32` instruction where the CPU has such registers, and behind where the multiplication is narrow, slow or emulated.

mod portable;
#[cfg(target_arch = "x86_64")]
mod three_way;

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::units::FRAME_BYTES;

/// A text and its CRC-32C, as published with the polynomial.
const KNOWN: (&[u8], u32) = (b"123456789", 0xE306_9283);

/// Each implementation is measured in as many rounds, and the best round counts: a pause spoils one round of one implementation.
const ROUNDS: usize = 5;
/// Checksums in one round: long against a look at the clock, and less than 0.1 ms in all.
const FRAMES_PER_ROUND: usize = 32;

/// One way to compute a CRC-32C.
#[derive(Clone, Copy, Debug)]
pub struct Implementation {
    /// The name, as logs and the status show the name.
    pub name: &'static str,
    /// Computes the CRC-32C of the bytes.
    pub run: fn(&[u8]) -> u32,
}

/// Implementations to choose from; absent where the CPU lacks something.
type Candidates = [Option<Implementation>; 2];

/// The reference, and the fallback. Not measured, and chosen only where nothing else is right. Instrumenting emulators such as
/// Valgrind run the `crc32` instruction so slowly that tables would win, and the counts would say nothing about real CPUs.
const PORTABLE: Implementation = Implementation { name: "portable", run: portable::crc32c };

/// The implementation of the process, chosen by the first use.
static CHOSEN: OnceLock<Implementation> = OnceLock::new();

/// CRC-32C of `bytes`. The first call in a process measures the implementations, which takes less than 0.1 ms.
pub fn crc32c(bytes: &[u8]) -> u32 {
    (implementation().run)(bytes)
}

/// The name of the implementation in use.
pub fn chosen() -> &'static str {
    implementation().name
}

/// All implementations that this CPU can run.
pub fn available() -> Vec<Implementation> {
    candidates().into_iter().flatten().chain([PORTABLE]).collect()
}

fn implementation() -> &'static Implementation {
    CHOSEN.get_or_init(|| choose(candidates()))
}

/// The implementations to measure, in the order of preference where equally fast. An array: the first checksum may be that of a request, and
/// requests allocate nothing.
fn candidates() -> Candidates {
    let library = Implementation { name: "library", run: crc_fast::crc32_iscsi };
    [Some(library), three_way()]
}

/// The implementation with the `crc32` instruction, if the CPU has the instruction.
#[cfg(target_arch = "x86_64")]
fn three_way() -> Option<Implementation> {
    if !std::arch::is_x86_feature_detected!("sse4.2") {
        return None;
    }
    // SAFETY: the function requires SSE 4.2, which was detected above, and nothing else.
    let run = |bytes: &[u8]| unsafe { three_way::crc32c(bytes) };
    Some(Implementation { name: "crc32-three-way", run })
}

/// Other architectures have no implementation of this kind.
#[cfg(not(target_arch = "x86_64"))]
fn three_way() -> Option<Implementation> {
    None
}

/// The fastest of the right `candidates`. [`PORTABLE`] if none is right.
fn choose(candidates: Candidates) -> Implementation {
    let frame = pattern();
    let right = portable::crc32c(&frame);
    let is_right =
        |Implementation { run, .. }: &Implementation| run(KNOWN.0) == KNOWN.1 && run(&frame) == right;
    let candidates = candidates.map(|candidate| candidate.filter(is_right));
    let mut best = (PORTABLE, Duration::MAX);
    // The rounds of the implementations take turns, so that a change of the CPU's clock meets all of them.
    for _ in 0..ROUNDS {
        for candidate in candidates.iter().flatten() {
            let time = time_of(candidate, &frame);
            if time < best.1 {
                best = (*candidate, time);
            }
        }
    }
    best.0
}

/// The time that one round of `candidate` takes.
fn time_of(candidate: &Implementation, frame: &[u8; FRAME_BYTES]) -> Duration {
    let began = Instant::now();
    for _ in 0..FRAMES_PER_ROUND {
        black_box((candidate.run)(black_box(frame)));
    }
    began.elapsed()
}

/// A frame whose bytes repeat at no length of a lane or of a word.
fn pattern() -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    let mut state = 1_u32;
    for byte in &mut frame {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = state.to_be_bytes()[0];
    }
    frame
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_implementation_equals_the_portable_one(
            bytes in proptest::collection::vec(any::<u8>(), 10_000 + 16),
            length in 0..10_000_usize,
            offset in 0..16_usize,
        ) {
            let bytes = &bytes[offset..offset + length];
            for implementation in available() {
                prop_assert_eq!((implementation.run)(bytes), portable::crc32c(bytes), "{}", implementation.name);
            }
        }
    }

    #[test]
    fn lengths_around_words_lanes_and_frames_are_right_in_every_implementation() {
        let bytes = [pattern(), pattern(), pattern()].concat();
        let lengths = [1360, 2720, 4080, 4092, 4096, 8160, 8192, 12_240];
        for length in (0..64).chain(lengths.iter().flat_map(|length| length - 9..length + 9)) {
            for implementation in available() {
                let crc = (implementation.run)(&bytes[..length]);
                assert_eq!(
                    crc,
                    portable::crc32c(&bytes[..length]),
                    "{} of {length} bytes",
                    implementation.name
                );
            }
        }
    }

    #[test]
    fn every_implementation_knows_the_published_checksums() {
        for implementation in available() {
            assert_eq!((implementation.run)(KNOWN.0), KNOWN.1, "{}", implementation.name);
            assert_eq!((implementation.run)(&[0; 32]), 0x8A91_36AA, "{}", implementation.name);
            assert_eq!((implementation.run)(&[0xff; 32]), 0x62A8_AB43, "{}", implementation.name);
            assert_eq!((implementation.run)(&[]), 0, "{}", implementation.name);
        }
    }

    #[test]
    fn the_choice_is_one_of_the_implementations_and_stays() {
        let name = chosen();
        assert!(available().iter().any(|implementation| implementation.name == name), "{name}");
        assert_eq!(crc32c(KNOWN.0), KNOWN.1);
        assert_eq!(chosen(), name);
    }

    #[test]
    fn an_implementation_with_a_wrong_result_is_not_chosen_however_fast() {
        let constant = Implementation { name: "constant", run: |_| KNOWN.1 };
        let short = Implementation {
            name: "short",
            run: |bytes| if bytes.len() > 9 { 0 } else { portable::crc32c(bytes) },
        };
        let slow = Implementation { name: "slow", run: portable::crc32c };
        assert_eq!(choose([Some(constant), Some(short)]).name, "portable");
        assert_eq!(choose([Some(constant), Some(slow)]).name, "slow");
        assert_eq!(choose([None, None]).name, "portable");
    }
}
