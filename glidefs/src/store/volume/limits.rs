//! Times, sizes and counts that bound more than one file of this folder.
//!
//! Owns the figures and their relation. Does not own who heeds the figures. Invariant: [`UPLOAD_TIME_MAX`] and [`TRUST_TIME_MAX`]
//! are shorter than [`GRACE_MIN`]: an upload that is young enough to be named, and a number that a writer believes in without
//! asking, are younger than anything garbage collection removes.

use std::time::Duration;

use crate::store::format::PACKS_MAX;

/// Shortest time for which garbage collection keeps an object that nothing uses.
pub const GRACE_MIN: Duration = Duration::from_hours(6);

/// Longest time from the start of a pack's upload to the choice of the base of the manifest that names the pack.
pub const UPLOAD_TIME_MAX: Duration = Duration::from_hours(3);

/// Longest time for which a writer believes, without asking, that its manifest is the newest.
pub const TRUST_TIME_MAX: Duration = Duration::from_hours(1);

/// Number of tries when another writer was faster each time.
pub(super) const ROUNDS_MAX: usize = 16;

/// Longest pack that a merge makes, bytes: a merge has one such pack in memory.
pub(super) const MERGED_BYTES_MAX: u64 = 128 << 20;

/// Largest volume, bytes: merged once, such a volume takes half of the places of a manifest; the other half is for packs that
/// wait to be merged.
pub const VOLUME_BYTES_MAX: u64 = PACKS_MAX as u64 / 2 * MERGED_BYTES_MAX;
