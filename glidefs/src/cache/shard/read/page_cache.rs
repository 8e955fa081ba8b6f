//! Bytes of segments that the page cache has, mapped or not, and the comparison of bytes with their checksums.
//!
//! Does not own the checksums (`sums`). Invariant: bytes without their checksum at hand are not used.

use std::io;
use std::sync::atomic::Ordering;

use super::state::SegmentBytes;
use crate::cache::log::format::Frame;
use crate::cache::log::scan::offset;
use crate::cache::log::sums::Verdict;
use crate::cache::log::sums::pages::Pages;
use crate::cache::shard::sums::Segment;
use crate::cache::shared::Shared;
use crate::cache::volume::error::IoError;
use crate::units::FRAME_BYTES;

/// Fills `part` with the bytes of `source` where the page cache has all of them, and the checksums are at hand; `false` where not.
pub(super) fn read_now(
    shared: &Shared,
    source: &SegmentBytes,
    part: &mut [u8],
    ends: &mut [Frame; 2],
    pages: &mut Pages,
) -> Result<bool, IoError> {
    if part.len() != source.disk_bytes() {
        return read_parts(shared, source, part, ends, pages);
    }
    if !frames_now(shared, source, source.first, part)? {
        return Ok(false);
    }
    verify(shared, source, source.first, part, pages).map_or(Ok(false), |verified| verified.map(|()| true))
}

/// As [`read_now`], for a first or a last frame of which only a part is wanted. No frame is verified before all bytes and checksums are
/// there: where some are not, all bytes are read from the disk, and verified then.
fn read_parts(
    shared: &Shared,
    source: &SegmentBytes,
    part: &mut [u8],
    ends: &mut [Frame; 2],
    pages: &mut Pages,
) -> Result<bool, IoError> {
    let head = if source.skip == 0 { 0 } else { (FRAME_BYTES - source.skip).min(part.len()) };
    let (head, rest) = part.split_at_mut(head);
    let (whole, tail) = rest.split_at_mut(rest.len() / FRAME_BYTES * FRAME_BYTES);
    let first_whole = source.first + u32::from(!head.is_empty());
    // A part has fewer frames than 2^32.
    let last = first_whole + u32::try_from(whole.len() / FRAME_BYTES).unwrap_or(0);
    if !whole.is_empty() && !frames_now(shared, source, first_whole, whole)? {
        return Ok(false);
    }
    let parts = [(source.first, source.skip, head), (last, 0, tail)];
    for ((frame, _, bytes), end) in parts.iter().zip(&mut *ends) {
        if !bytes.is_empty() && !frames_now(shared, source, *frame, end)? {
            return Ok(false);
        }
    }
    if !Segment::of(shared, source.number).are_known(shared, pages, source.first, source.frames) {
        return Ok(false);
    }
    let mut verified = verify(shared, source, first_whole, whole, pages);
    for ((frame, skip, bytes), end) in parts.into_iter().zip(&*ends) {
        if !bytes.is_empty() && verified == Some(Ok(())) {
            verified = verify(shared, source, frame, end, pages);
            if verified == Some(Ok(())) {
                bytes.copy_from_slice(&end[skip..skip + bytes.len()]);
            }
        }
    }
    verified.map_or(Ok(false), |verified| verified.map(|()| true))
}

/// Fills `buffer` with whole frames, the first of which is `first`; `false` where the page cache does not have all. The caller has pinned
/// the segment.
fn frames_now(
    shared: &Shared,
    source: &SegmentBytes,
    first: u32,
    buffer: &mut [u8],
) -> Result<bool, IoError> {
    let info = shared.table.get(source.number);
    let frames = u32::try_from(buffer.len() / FRAME_BYTES).map_err(|_| IoError::TooLarge)?;
    if shared.has_mapped() {
        let found = info.mapping();
        // SAFETY: the segment is pinned, and an index has places of appended records only.
        let found = found.as_ref().and_then(|mapping| unsafe { mapping.frames(first, frames) });
        if let Some(bytes) = found.filter(|bytes| bytes.len() == buffer.len()) {
            buffer.copy_from_slice(bytes);
            return Ok(true);
        }
    }
    let Some(file) = info.file() else { return Err(IoError::Read) };
    let is_read = file.read_now(buffer, offset(first)).map_err(|error| {
        report(shared, source, first, &error);
        IoError::Read
    })?;
    if is_read {
        shared.heat.count(source.number, first, frames);
    }
    Ok(is_read)
}

/// Compares `buffer`, the frames from `first` on, with their checksums; `None` while the checksums are not at hand.
pub(super) fn verify(
    shared: &Shared,
    source: &SegmentBytes,
    first: u32,
    buffer: &[u8],
    pages: &mut Pages,
) -> Option<Result<(), IoError>> {
    match Segment::of(shared, source.number).compare(shared, pages, first, buffer)? {
        Verdict::Right => Some(Ok(())),
        Verdict::Wrong(frame) => {
            shared.figures.corrupt_frames.fetch_add(1, Ordering::Relaxed);
            // A locked page would stay, though the disk may have other bytes.
            shared.table.get(source.number).mapping().as_ref().inspect(|mapping| mapping.give_up());
            let Some(suppressed) = passes(shared, source) else { return Some(Err(IoError::Corrupt)) };
            tracing::error!(
                export = source.export.0,
                file = shared.disk.segment_name(source.number),
                offset_bytes = offset(frame),
                suppressed,
                "cached data does not match the checksum; reads of the data fail until the data is written again"
            );
            Some(Err(IoError::Corrupt))
        }
        Verdict::Missing(frame) => {
            report(shared, source, frame, &io::Error::other("the checksum of the data cannot be read"));
            Some(Err(IoError::Read))
        }
    }
}

/// Whether a line about data of `source` is logged now; if so, how many lines were held back before. An export without a volume
/// was removed, and has no reader.
fn passes(shared: &Shared, source: &SegmentBytes) -> Option<u64> {
    shared.find_volume(source.export)?.bad_reads.pass()
}

pub(super) fn report(shared: &Shared, source: &SegmentBytes, first: u32, error: &io::Error) {
    let Some(suppressed) = passes(shared, source) else { return };
    tracing::error!(
        export = source.export.0,
        file = shared.disk.segment_name(source.number),
        offset_bytes = offset(first),
        error = error as &dyn std::error::Error,
        suppressed,
        "reading from the cache disk failed"
    );
}
