//! Sizes of exports: which are allowed.
//!
//! Owns the rule. Invariant: an [`ExportSize`] is a whole number of sectors that the kernel can address.

use crate::units::SECTOR_BYTES;

/// Largest size: the kernel counts a device's bytes in a signed 64-bit number, and a device has whole sectors.
pub const EXPORT_BYTES_MAX: u64 = i64::MAX as u64 / SECTOR_BYTES * SECTOR_BYTES;

/// A size that an export may have, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExportSize(u64);

/// Why a size was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Zero bytes.
    #[error("an export cannot have a size of 0: give it at least {SECTOR_BYTES} bytes")]
    Zero,
    /// Not whole sectors.
    #[error("a size of {bytes} bytes is not a multiple of {SECTOR_BYTES}: use {below} or {above}")]
    NotWholeSectors {
        /// The size asked for.
        bytes: u64,
        /// The nearest allowed smaller size.
        below: u64,
        /// The nearest allowed larger size.
        above: u64,
    },
    /// More than the kernel can address.
    #[error("a size of {bytes} bytes is too large: {EXPORT_BYTES_MAX} is the most a block device can have")]
    TooLarge {
        /// The size asked for.
        bytes: u64,
    },
}

impl ExportSize {
    /// Checks `bytes` against the rule.
    pub fn new(bytes: u64) -> Result<Self, SizeError> {
        if bytes == 0 {
            return Err(SizeError::Zero);
        }
        if bytes > EXPORT_BYTES_MAX {
            return Err(SizeError::TooLarge { bytes });
        }
        let below = bytes / SECTOR_BYTES * SECTOR_BYTES;
        if below != bytes {
            // Cannot overflow: `below` is less than `EXPORT_BYTES_MAX`.
            let above = below + SECTOR_BYTES;
            return Err(SizeError::NotWholeSectors { bytes, below: below.max(SECTOR_BYTES), above });
        }
        Ok(Self(bytes))
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_edges_are_refused_with_a_sentence() {
        for (bytes, says) in [
            (0, "size of 0"),
            (511, "not a multiple of 512"),
            (513, "use 512 or 1024"),
            (1 << 63, "too large"),
            (u64::MAX, "too large"),
            (i64::MAX as u64, "too large"),
        ] {
            let message = ExportSize::new(bytes).unwrap_err().to_string();
            assert!(message.contains(says), "{bytes}: {message}");
        }
        assert_eq!(ExportSize::new(512).unwrap().bytes(), 512);
        assert_eq!(ExportSize::new(EXPORT_BYTES_MAX).unwrap().bytes(), (1 << 63) - 512);
    }

    proptest! {
        #[test]
        fn exactly_whole_sectors_within_the_limit_are_taken(bytes in any::<u64>(), whole in any::<bool>()) {
            let bytes = if whole { bytes & !511 } else { bytes };
            prop_assert_eq!(ExportSize::new(bytes).is_ok(), bytes > 0 && bytes % 512 == 0 && bytes <= EXPORT_BYTES_MAX);
        }
    }
}
