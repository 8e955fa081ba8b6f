//! The sizes for which a pool can be asked, and the refusal of all others.

use std::io;

use thiserror::Error;

use crate::units::REQUEST_BYTES_MAX;

/// Most slots of [`REQUEST_BYTES_MAX`] bytes in one pool: an arena of 8 GiB.
pub const SLOTS_MAX: usize = 65_536;

/// Why a pool could not be made or a slot not be asked for.
#[derive(Debug, Error)]
pub enum BufferError {
    /// A pool of no slots, or of more than [`SLOTS_MAX`].
    #[error("a buffer pool cannot have {slots} slots: set slots_per_worker between 1 and {SLOTS_MAX}")]
    SlotCount {
        /// The number of slots asked for.
        slots: usize,
    },
    /// The kernel gave no memory for the arena.
    #[error(
        "cannot map {arena_bytes} bytes for a buffer pool: lower slots_per_worker or give the service more memory"
    )]
    Map {
        /// Size of the arena, bytes.
        arena_bytes: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// No class holds a slot of the length asked for.
    #[error("a buffer of {len} bytes cannot be had: the length must be between 1 and {REQUEST_BYTES_MAX}")]
    SlotLength {
        /// The length asked for, bytes.
        len: usize,
    },
}
