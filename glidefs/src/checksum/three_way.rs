//! CRC-32C by the `crc32` instruction of x86-64, on three lanes at once.
//!
//! Owns lanes and their combination. Does not own the choice, nor the check that the CPU has the instruction. The instruction's
//! result takes three cycles, and one instruction can start in each cycle; so three lanes, independent of one another, take the time
//! of one.
//!
//! ```text
//!  0            1360         2720         4080
//!  ├─ lane 0 ───┼─ lane 1 ───┼─ lane 2 ───┤  next block, or the rest, one word after another
//!  remainder      0            0             = behind(behind(lane 0) ⊕ lane 1) ⊕ lane 2
//! ```

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

use super::portable::zero_byte;

const WORD_BYTES: usize = 8;
/// Words in a lane: three lanes are the most that fits in a frame of 4 KiB.
const LANE_WORDS: usize = 170;
const LANE_BYTES: usize = LANE_WORDS * WORD_BYTES;
/// Bytes of the three lanes together.
const BLOCK_BYTES: usize = 3 * LANE_BYTES;
/// Words of each lane in one step of the loop, a divisor of [`LANE_WORDS`].
const STEP_WORDS: usize = 10;

/// `BEHIND[n][byte]` is the remainder that `byte`, as byte `n` of a remainder, leaves behind after a lane of zeroes.
static BEHIND: [[u32; 256]; 4] = tables();

#[expect(clippy::cast_possible_truncation, reason = "the index of a table fits in 32 bits")]
const fn tables() -> [[u32; 256]; 4] {
    // Remainders add up, so each of the 32 bits can be shifted by itself.
    let mut of_bit = [0; 32];
    let mut bit = 0;
    while bit < 32 {
        let mut remainder = 1 << bit;
        let mut zeroes = 0;
        while zeroes < LANE_BYTES {
            remainder = zero_byte(remainder);
            zeroes += 1;
        }
        of_bit[bit] = remainder;
        bit += 1;
    }
    let mut tables = [[0; 256]; 4];
    let mut place = 0;
    while place < 4 {
        let mut byte = 0;
        while byte < 256 {
            let mut bit = 0;
            while bit < 8 {
                if (byte as u32 >> bit) & 1 == 1 {
                    tables[place][byte] ^= of_bit[8 * place + bit];
                }
                bit += 1;
            }
            byte += 1;
        }
        place += 1;
    }
    tables
}

/// The remainder of `remainder` after a lane of zeroes.
#[inline]
fn behind(remainder: u32) -> u32 {
    let mut sum = 0;
    for (byte, table) in remainder.to_le_bytes().iter().zip(&BEHIND) {
        sum ^= table[usize::from(*byte)];
    }
    sum
}

/// CRC-32C of `bytes`, block by block.
#[target_feature(enable = "sse4.2")]
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    let mut remainder = !0;
    for block in blocks {
        remainder = lanes(remainder, block);
    }
    !serial(remainder, rest)
}

/// The remainder of `block` behind `remainder`, by three lanes.
#[inline]
#[target_feature(enable = "sse4.2")]
fn lanes(remainder: u32, block: &[u8; BLOCK_BYTES]) -> u32 {
    let (words, _) = block.as_chunks::<WORD_BYTES>();
    let (first, others) = words.split_at(LANE_WORDS);
    let (second, third) = others.split_at(LANE_WORDS);
    let steps = first.as_chunks::<STEP_WORDS>().0.iter();
    let steps = steps.zip(second.as_chunks::<STEP_WORDS>().0).zip(third.as_chunks::<STEP_WORDS>().0);
    let (mut a, mut b, mut c) = (u64::from(remainder), 0, 0);
    for ((first, second), third) in steps {
        for ((first, second), third) in first.iter().zip(second).zip(third) {
            a = _mm_crc32_u64(a, u64::from_le_bytes(*first));
            b = _mm_crc32_u64(b, u64::from_le_bytes(*second));
            c = _mm_crc32_u64(c, u64::from_le_bytes(*third));
        }
    }
    behind(behind(low(a)) ^ low(b)) ^ low(c)
}

/// The remainder of `bytes` behind `remainder`, one word after another.
#[inline]
#[target_feature(enable = "sse4.2")]
fn serial(remainder: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<WORD_BYTES>();
    let mut wide = u64::from(remainder);
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    let mut remainder = low(wide);
    for byte in rest {
        remainder = _mm_crc32_u8(remainder, *byte);
    }
    remainder
}

/// The result of the instruction for words: the upper half is zero.
#[expect(clippy::cast_possible_truncation, reason = "the instruction leaves zeroes in the upper half")]
fn low(wide: u64) -> u32 {
    wide as u32
}
