//! CRC-32C by tables, on any CPU: the fallback, and the reference for the other implementations.
//!
//! Owns the tables. Does not own the choice. Eight bytes are taken at a time, each with a table of its own: the table says which
//! remainder the byte leaves behind when the bytes after it are shifted in.

/// The polynomial of CRC-32C, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// Bytes taken at a time, and tables.
const WORD_BYTES: usize = 8;

/// `TABLES[n][byte]` is the remainder of `byte` with `n` zero bytes behind.
static TABLES: [[u32; 256]; WORD_BYTES] = tables();

#[expect(clippy::cast_possible_truncation, reason = "the index of a table fits in 32 bits")]
const fn tables() -> [[u32; 256]; WORD_BYTES] {
    let mut tables = [[0; 256]; WORD_BYTES];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut zeroes = 0;
        while zeroes < WORD_BYTES {
            remainder = zero_byte(remainder);
            tables[zeroes][byte] = remainder;
            zeroes += 1;
        }
        byte += 1;
    }
    tables
}

/// The remainder of `remainder` after one more byte of zeroes.
pub(super) const fn zero_byte(mut remainder: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        let carry = if remainder & 1 == 1 { POLYNOMIAL } else { 0 };
        remainder = (remainder >> 1) ^ carry;
        bit += 1;
    }
    remainder
}

/// CRC-32C of `bytes`, by the tables.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<WORD_BYTES>();
    let mut remainder = !0;
    for word in words {
        let bytes = (u64::from_le_bytes(*word) ^ u64::from(remainder)).to_le_bytes();
        remainder = 0;
        for (byte, table) in bytes.iter().zip(TABLES.iter().rev()) {
            remainder ^= table[usize::from(*byte)];
        }
    }
    for byte in rest {
        let [lowest, ..] = remainder.to_le_bytes();
        remainder = (remainder >> 8) ^ TABLES[0][usize::from(lowest ^ byte)];
    }
    !remainder
}
