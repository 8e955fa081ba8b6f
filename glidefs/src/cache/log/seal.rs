//! The writes that begin and end a segment on disk: the header, and the footer with the sums and the trailer.
//!
//! Owns the order of those writes. Invariants: the header is stable before anything is appended; the trailer is written only
//! after all records of the segment are stable, so a trailer on the disk proves that the records are stable.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};

use super::disk::SegmentFile;
use super::format::{
    FooterRecord, PAGE_SUMS, SegmentHeader, Trailer, decode_footer, encode_sums, sums_pages,
};
use super::scan::offset;
use super::segment::SegmentWriter;
use super::sums::crcs_in;
use crate::units::FRAME_BYTES;

/// Writes the header of a segment of `frames` frames over the old contents of the file.
///
/// The copy in the last frame goes first. The copy replaces an old trailer; the old segment, which nobody needs, then has no
/// trailer until the header in front is replaced too. A crash at any point leaves one header whole. When an earlier call failed
/// at the front, `front_unsure` says so, and then the front goes first, because only the copy can be relied on.
pub(in crate::cache) fn write_header(
    file: &dyn SegmentFile,
    header: &SegmentHeader,
    frames: u32,
    front_unsure: &AtomicBool,
) -> io::Result<()> {
    let bytes = header.encode();
    let order = if front_unsure.load(Ordering::Relaxed) { [0, frames - 1] } else { [frames - 1, 0] };
    for frame in order {
        if frame == 0 {
            front_unsure.store(true, Ordering::Relaxed);
        }
        file.write_at(&[IoSlice::new(&bytes)], offset(frame))?;
        file.sync()?;
        if frame == 0 {
            front_unsure.store(false, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Writes the header in front once more, for recovery: the last process may have died, or the disk may have failed, before the
/// header was stable. The header must be synced before the last frame changes to anything that does not name the segment.
pub(in crate::cache) fn rewrite_front(file: &dyn SegmentFile, header: &SegmentHeader) -> io::Result<()> {
    file.write_at(&[IoSlice::new(&header.encode())], 0)
}

/// Writes zeroes over the frames that name a segment of `frames` frames, so that no recovery looks at the rest, which nobody
/// needs.
pub(in crate::cache) fn erase(file: &dyn SegmentFile, frames: u32) -> io::Result<()> {
    let zeroes = [0; FRAME_BYTES];
    // The trailer goes last, since the trailer's footer says what was in between. The trailer goes even if the disk does not take
    // the zeroes in front: a trailer would bring the segment back at every start.
    let front = file.write_at(&[IoSlice::new(&zeroes), IoSlice::new(&zeroes)], 0).and_then(|()| file.sync());
    file.write_at(&[IoSlice::new(&zeroes)], offset(frames - 1))?;
    file.sync()?;
    front
}

/// Makes the records of a segment of `frames` frames stable, and writes footer and trailer. A segment whose trailer is vital gets
/// the trailer first, and the headers in the frames `erased` are cleared.
pub(in crate::cache) fn close(
    segment: &SegmentWriter,
    frames: u32,
    erased: impl Iterator<Item = u32>,
) -> io::Result<Trailer> {
    if segment.vital {
        segment.file.sync()?;
        return close_trailer_first(segment, frames, erased);
    }
    let trailer = write_footer(segment, frames)?;
    segment.file.sync()?;
    write_trailer(&*segment.file, &trailer, frames)?;
    Ok(trailer)
}

/// Writes the footer behind the last record, and the sums behind the footer, in a segment of `frames` frames. Records and footer
/// must be synced before [`write_trailer`].
pub(in crate::cache) fn write_footer(segment: &SegmentWriter, frames: u32) -> io::Result<Trailer> {
    let (trailer, footer) = encode_footer(segment)?;
    write_behind(segment, frames, &trailer, &footer)?;
    Ok(trailer)
}

fn encode_footer(segment: &SegmentWriter) -> io::Result<(Trailer, Vec<u8>)> {
    let footer = segment.footer.encode(&segment.key);
    let trailer = Trailer::of(segment.key, segment.position, &footer)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the footer would have 4 GiB or more"))?;
    Ok((trailer, footer))
}

/// Writes `footer`, and the sums if there is room.
fn write_behind(segment: &SegmentWriter, frames: u32, trailer: &Trailer, footer: &[u8]) -> io::Result<()> {
    let records = decode_footer(footer, trailer).ok();
    let sums = records.and_then(|records| encode(trailer, frames, &records)).unwrap_or_default();
    segment.file.write_at(&[IoSlice::new(footer), IoSlice::new(&sums)], trailer.footer_offset_bytes())
}

/// The sums of a segment of `frames` frames with this `trailer` and these `records`; `None` where there is no room.
fn encode(trailer: &Trailer, frames: u32, records: &[FooterRecord]) -> Option<Vec<u8>> {
    let first = trailer.sums_frame(frames)?;
    let crcs = crcs_in(records, trailer.footer_frame);
    let crcs: Vec<u32> = crcs.into_iter().map(Option::unwrap_or_default).collect();
    let mut sums = Vec::with_capacity(sums_pages(trailer.footer_frame) as usize * FRAME_BYTES);
    for (page, crcs) in (0u32..).zip(crcs.chunks(PAGE_SUMS as usize)) {
        sums.extend_from_slice(&encode_sums(&trailer.key, first.checked_add(page)?, page, crcs));
    }
    Some(sums)
}

/// Writes the sums of a sealed segment of `frames` frames again, from the `records` of the footer. The sums need not be stable: each
/// page proves that the page is whole. Without room for the sums nothing is written.
pub(in crate::cache) fn write_sums(
    file: &dyn SegmentFile,
    trailer: &Trailer,
    frames: u32,
    records: &[FooterRecord],
) -> io::Result<()> {
    match trailer.sums_frame(frames).zip(encode(trailer, frames, records)) {
        Some((first, sums)) => file.write_at(&[IoSlice::new(&sums)], offset(first)),
        None => Ok(()),
    }
}

/// Writes the trailer. A trailer that is not vital need not be synced: without a trailer recovery scans the segment.
pub(in crate::cache) fn write_trailer(
    file: &dyn SegmentFile,
    trailer: &Trailer,
    frames: u32,
) -> io::Result<()> {
    file.write_at(&[IoSlice::new(&trailer.encode())], offset(frames - 1))
}

/// Writes first the trailer and then the footer of a segment whose records are all stable, but which a walk would misjudge.
///
/// The trailer is stable before the footer is written: the footer may overwrite headers that say which frames were stable, and
/// until the trailer is stable nothing else says so. The frames of `erased`, headers of dropped records, are cleared together
/// with the footer.
pub(in crate::cache) fn close_trailer_first(
    segment: &SegmentWriter,
    frames: u32,
    erased: impl Iterator<Item = u32>,
) -> io::Result<Trailer> {
    let (trailer, footer) = encode_footer(segment)?;
    let file = &*segment.file;
    write_trailer(file, &Trailer { vital: true, ..trailer }, frames)?;
    file.sync()?;
    for frame in erased {
        file.write_at(&[IoSlice::new(&[0; FRAME_BYTES])], offset(frame))?;
    }
    write_behind(segment, frames, &trailer, &footer)?;
    file.sync()?;
    Ok(trailer)
}
