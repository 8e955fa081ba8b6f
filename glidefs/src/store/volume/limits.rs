//! Times, sizes and counts that bound more than one file of this folder.
//!
//! Owns the figures and why they fit each other. Does not own who heeds them. Invariant: [`UPLOAD_TIME_MAX`] and
//! [`TRUST_TIME_MAX`] together are shorter than [`GRACE_MIN`], so garbage collection leaves alone whatever a writer may still name.

use std::time::Duration;

use crate::store::format::PACKS_MAX;

/// Shortest time that garbage collection leaves alone what is not in use, or not any more.
pub const GRACE_MIN: Duration = Duration::from_hours(6);

/// Longest time between the begin of the upload of a pack and the last look at which manifest the one that names the pack follows.
pub const UPLOAD_TIME_MAX: Duration = Duration::from_hours(3);

/// How long a writer believes that its manifest is the newest without asking.
pub const TRUST_TIME_MAX: Duration = Duration::from_hours(1);

/// How often something is tried again that another writer was faster with.
pub(super) const ROUNDS_MAX: usize = 16;

/// Longest pack that merging makes, bytes: a merge has one in memory.
pub(super) const MERGED_BYTES_MAX: u64 = 128 << 20;

/// Largest volume, bytes: merged once, it takes half of what a manifest can list, and the rest is for what is yet to be merged.
pub const VOLUME_BYTES_MAX: u64 = PACKS_MAX as u64 / 2 * MERGED_BYTES_MAX;
