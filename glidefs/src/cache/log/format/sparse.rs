//! The CRC-32C of a frame with zeroes in the middle, without reading the zeroes.
//!
//! Owns the arithmetic only. One more zero byte multiplies the state of a CRC by x^8, modulo the CRC's polynomial, so a run of
//! zeroes of any length costs one multiplication. Invariant: the result equals [`frame_crc`] over the same bytes.

use std::ops::Range;

use super::{CRC_AT, Frame, frame_crc};

// Polynomials are written as the state of the CRC is: the highest bit is the coefficient of x^0, the lowest bit the coefficient
// of x^31.

/// The rest of x^32 modulo the polynomial of CRC-32C.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// A run of zeroes is counted in units of this many bytes.
const UNIT_BYTES: usize = 4;
/// Entry n is the factor for n units of zeroes: x^32 to the power of n.
static POWERS: [u32; CRC_AT / UNIT_BYTES + 1] = powers();
/// Entry n is the change to a product when the four lowest bits, with the value n, are pushed out.
const PUSHED_OUT: [u32; 16] = pushed_out();

const fn times_x(state: u32) -> u32 {
    if state & 1 == 0 { state >> 1 } else { (state >> 1) ^ POLYNOMIAL }
}

const fn times_x4(state: u32) -> u32 {
    times_x(times_x(times_x(times_x(state))))
}

const fn powers() -> [u32; CRC_AT / UNIT_BYTES + 1] {
    let mut powers = [1 << 31; CRC_AT / UNIT_BYTES + 1];
    let mut at = 1;
    while at < powers.len() {
        let mut power = powers[at - 1];
        let mut step = 0;
        while step < UNIT_BYTES * 2 {
            power = times_x4(power);
            step += 1;
        }
        powers[at] = power;
        at += 1;
    }
    powers
}

const fn pushed_out() -> [u32; 16] {
    let mut table = [0; 16];
    let mut bits = 0;
    while bits < table.len() {
        // The value is at most 15.
        #[expect(clippy::cast_possible_truncation)]
        let state = bits as u32;
        table[bits] = times_x4(state);
        bits += 1;
    }
    table
}

/// The product of two polynomials, four coefficients at a time.
fn multiply(state: u32, factor: u32) -> u32 {
    let (x1, x2, x3) = (times_x(state), times_x(times_x(state)), times_x(times_x(times_x(state))));
    let mut multiples = [0; 16];
    for (bits, multiple) in multiples.iter_mut().enumerate() {
        let chosen = |bit: usize, part: u32| if bits & bit == 0 { 0 } else { part };
        *multiple = chosen(8, state) ^ chosen(4, x1) ^ chosen(2, x2) ^ chosen(1, x3);
    }
    // From the coefficients of the highest powers, in the lowest bits, to the coefficients of the lowest powers.
    (0..u32::BITS).step_by(4).fold(0_u32, |product, shift| {
        let bits = (factor >> shift) & 15;
        (product >> 4) ^ PUSHED_OUT[(product & 15) as usize] ^ multiples[bits as usize]
    })
}

/// CRC-32C of all bytes before [`CRC_AT`]. The bytes of `zeroes` are zero. `frame` is as before when this returns.
pub(super) fn crc_around(frame: &mut Frame, zeroes: Range<usize>) -> u32 {
    debug_assert!(frame[zeroes.clone()].iter().all(|byte| *byte == 0), "zeroes were announced");
    let tail_bytes = CRC_AT - zeroes.end;
    if !zeroes.len().is_multiple_of(UNIT_BYTES) || !tail_bytes.is_multiple_of(UNIT_BYTES) {
        return frame_crc(&frame[..CRC_AT]);
    }
    // A CRC is its state with all bits inverted.
    let state = multiply(!frame_crc(&frame[..zeroes.start]), POWERS[zeroes.len() / UNIT_BYTES]);
    let Some(first) = frame[zeroes.end..CRC_AT].first_chunk_mut::<UNIT_BYTES>() else { return !state };
    // To begin with this state is to begin with the usual state, all ones, and to change the first four bytes by the difference.
    let kept = *first;
    *first = (u32::from_le_bytes(kept) ^ !state).to_le_bytes();
    let crc = frame_crc(&frame[zeroes.end..CRC_AT]);
    frame[zeroes.end..zeroes.end + UNIT_BYTES].copy_from_slice(&kept);
    crc
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::FRAME_BYTES;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn leaving_zeroes_out_changes_no_checksum(
            noise in prop::collection::vec(any::<u8>(), FRAME_BYTES),
            start in 0..=CRC_AT / UNIT_BYTES,
            length in 0..=CRC_AT / UNIT_BYTES,
            odd in prop::sample::select(vec![0_usize, 0, 0, 1]),
        ) {
            let mut frame = [0; FRAME_BYTES];
            frame.copy_from_slice(&noise);
            let start = (start * UNIT_BYTES + odd).min(CRC_AT);
            let zeroes = start..(start + length * UNIT_BYTES).min(CRC_AT);
            frame[zeroes.clone()].fill(0);
            let before = frame;
            let crc = crc_around(&mut frame, zeroes);
            prop_assert_eq!(crc, frame_crc(&frame[..CRC_AT]));
            prop_assert_eq!(frame, before);
        }
    }

    #[test]
    fn a_frame_of_zeroes_has_the_checksum_of_its_zeroes() {
        let mut frame = [0; FRAME_BYTES];
        assert_eq!(crc_around(&mut frame, 0..CRC_AT), frame_crc(&[0; CRC_AT]));
    }
}
