//! The sizes and numbers of segments, from the options and from the disk.
//!
//! Owns the limits. Does not own the content of a segment file.

use std::io;

use crate::cache::log::disk::Disk;
use crate::cache::log::error::CacheError;
use crate::cache::log::pressure::RESERVE;
use crate::cache::log::superblock::Superblock;
use crate::cache::options::Options;
use crate::units::FRAME_BYTES;

/// Smallest segment: room for a few of the largest WRITEs.
const SEGMENT_BYTES_MIN: u64 = 256 * 1024;
/// Largest segment: the sectors of a segment are counted in 32 bits.
const SEGMENT_BYTES_MAX: u64 = 1 << 40;

/// The superblock of the cache on `disk`; `None` in a new cache.
pub(in crate::cache) fn read_superblock(disk: &dyn Disk) -> Result<Option<Superblock>, CacheError> {
    let directory = disk.location();
    let bytes = at(disk.read_superblock(), "reading", || format!("{directory}/cache.meta"))?;
    bytes.map(|bytes| Superblock::decode(&bytes, &directory)).transpose()
}

/// The numbers of the segment files on `disk`, ascending, and the number of segments in a table for them, `limit` at least.
pub(super) fn segments_in(disk: &dyn Disk, limit: u32) -> Result<(Vec<u32>, u32), CacheError> {
    let mut present = at(disk.segments(), "listing", || disk.location())?;
    present.sort_unstable();
    // A segment number has at most eight digits, so adding one cannot overflow.
    let count = present.last().map_or(0, |last| last + 1).max(limit);
    Ok((present, count))
}

/// The error of an operation of the disk on a file.
pub(super) fn at<R>(
    result: io::Result<R>,
    operation: &'static str,
    file: impl FnOnce() -> String,
) -> Result<R, CacheError> {
    result.map_err(|source| CacheError::Disk { operation, file: file(), source })
}

/// Frames of a segment of so many bytes; fails for a size that no segment has.
pub(super) fn segment_frames(segment_bytes: u64) -> Result<u32, CacheError> {
    let fits = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes);
    match u32::try_from(segment_bytes / FRAME_BYTES as u64) {
        Ok(frames) if fits && segment_bytes.is_multiple_of(FRAME_BYTES as u64) => Ok(frames),
        _ => Err(CacheError::BadOptions(format!(
            "segments of {segment_bytes} bytes: must be a multiple of {FRAME_BYTES}, from {SEGMENT_BYTES_MIN} to \
             {SEGMENT_BYTES_MAX}"
        ))),
    }
}

/// How many segments the options allow; fails when the shards need more.
pub(super) fn segment_limit(options: &Options, segment_bytes: u64) -> Result<u32, CacheError> {
    // The name of a segment file has eight digits.
    const LIMIT_MAX: u64 = 100_000_000;
    let shards = options.shards as u64;
    let limit_min = shards.saturating_mul(2).saturating_add(u64::from(RESERVE) + 1);
    let limit = (options.size_bytes / segment_bytes).min(LIMIT_MAX);
    if shards == 0 {
        return Err(CacheError::BadOptions("a cache needs at least one shard".into()));
    }
    match u32::try_from(limit) {
        Ok(limit) if u64::from(limit) >= limit_min => Ok(limit),
        _ => Err(CacheError::BadOptions(format!(
            "cache.size of {} bytes is too small for {shards} workers: set it to at least {} bytes, or lower workers.count",
            options.size_bytes,
            limit_min.saturating_mul(segment_bytes),
        ))),
    }
}
