//! Reads fields off the front of bytes, and numbers of variable length.
//!
//! Owns bounds. Does not own the meaning of fields. Invariant: no read goes beyond the end, and every number has one encoding.

use super::error::FormatError;
use super::limits::UNIX_MILLIS_MAX;

/// The unread bytes.
#[derive(Debug)]
pub(super) struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn left(&self) -> usize {
        self.0.len()
    }

    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let short = FormatError::Length { found: self.0.len() as u64, needed: count as u64 };
        let (head, rest) = self.0.split_at_checked(count).ok_or(short)?;
        self.0 = rest;
        Ok(head)
    }

    /// All bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A date, milliseconds since 1970-01-01 UTC.
    pub fn unix_millis(&mut self) -> Result<u64, FormatError> {
        let millis = self.u64()?;
        if millis <= UNIX_MILLIS_MAX { Ok(millis) } else { Err(FormatError::Malformed("date")) }
    }

    /// Checks that bytes without a meaning are zero, so that a later version can give these bytes a meaning.
    pub fn zeroes(&mut self, count: usize) -> Result<(), FormatError> {
        if self.bytes(count)?.iter().all(|byte| *byte == 0) {
            Ok(())
        } else {
            Err(FormatError::Malformed("unused bytes are set"))
        }
    }

    /// Seven bits a byte, lowest first; the highest bit of a byte tells whether another byte follows.
    pub fn varint(&mut self) -> Result<u64, FormatError> {
        const WRONG: FormatError = FormatError::Malformed("number of variable length");
        let mut value = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            let placed = bits.checked_shl(shift).unwrap_or(0);
            if placed.checked_shr(shift) != Some(bits) || (byte == 0 && shift > 0) {
                return Err(WRONG);
            }
            value |= placed;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WRONG)
    }

    /// Checks that all bytes were read.
    pub fn end(self) -> Result<(), FormatError> {
        if self.0.is_empty() { Ok(()) } else { Err(FormatError::Malformed("bytes behind the end")) }
    }
}

/// Appends a date that [`Cursor::unix_millis`] accepts, however far ahead the clock is.
pub(super) fn put_unix_millis(bytes: &mut Vec<u8>, millis: u64) {
    bytes.extend_from_slice(&millis.min(UNIX_MILLIS_MAX).to_le_bytes());
}

/// Appends `value` in the encoding of [`Cursor::varint`].
pub(super) fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "tests panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_of_variable_length_reads_back(value: u64, shift in 0..64) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value >> shift);
            let mut cursor = Cursor::new(&bytes);
            prop_assert_eq!(cursor.varint(), Ok(value >> shift));
            prop_assert_eq!(cursor.end(), Ok(()));
        }

        #[test]
        fn every_number_has_one_encoding(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let mut cursor = Cursor::new(&bytes);
            if let Ok(value) = cursor.varint() {
                let mut again = Vec::new();
                put_varint(&mut again, value);
                prop_assert_eq!(&again, &bytes[..bytes.len() - cursor.left()]);
            }
        }
    }
}
