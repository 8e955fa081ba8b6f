//! Reading a segment back: header, trailer and footer. A structure that the disk does not read counts as damaged.
//!
//! Does not own the walk along a segment's records (`walk`). Invariant: each structure returned was checked against the checksum
//! in the structure, and belongs to the segment asked for.

use std::collections::BTreeMap;
use std::io;

use super::disk::SegmentFile;
use super::format::{
    FooterRecord, FormatError, Frame, SegmentHeader, SegmentKey, Trailer, decode_footer, decode_record,
    frame_crc, is_torn_end, sums_key,
};
use crate::units::FRAME_BYTES;

/// Most tries to read a frame, one right after the other.
const READ_TRIES_MAX: u32 = 5;
/// Frames read from the disk at once, or written again.
pub(super) const WINDOW_FRAMES: u32 = 256;

/// Place of frame number `frame` in a file, in bytes.
pub(in crate::cache) fn offset(frame: u32) -> u64 {
    u64::from(frame) * FRAME_BYTES as u64
}

pub(in crate::cache) fn read_frame(file: &dyn SegmentFile, frame: u32) -> io::Result<Box<Frame>> {
    let mut bytes = Box::new([0; FRAME_BYTES]);
    read_again(file, &mut bytes[..], offset(frame))?;
    Ok(bytes)
}

/// Fills `buffer` from `offset`, in up to [`READ_TRIES_MAX`] tries.
pub(in crate::cache) fn read_again(file: &dyn SegmentFile, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    try_again(|| file.read_at(buffer, offset))
}

/// Whether the disk says that the medium cannot be read there. Other errors are about the way to the disk, or about this host.
pub(in crate::cache) fn is_of_the_medium(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODATA | libc::EILSEQ))
}

/// Calls `read` up to [`READ_TRIES_MAX`] times: a failure that passes must not count as a loss.
pub(in crate::cache) fn try_again(mut read: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let mut tries = 1;
    loop {
        match read() {
            Err(error) if tries < READ_TRIES_MAX && error.kind() != io::ErrorKind::UnexpectedEof => {
                tries += 1;
            }
            result => return result,
        }
    }
}

/// What the two ends of a segment's file say.
#[derive(Debug)]
pub(in crate::cache) enum Identity {
    /// Nothing was ever written to the file, or nothing that was finished. `unreadable`: the disk does not read one of the first
    /// two frames or the last frame.
    Blank { unreadable: bool },
    /// A segment with a trailer; all of the segment is stable. No header when the header is damaged.
    Sealed { trailer: Trailer, header: Option<SegmentHeader> },
    /// A segment without a trailer. `bad_header`: the header in front is damaged, and `header` is the copy in the last frame.
    /// `closed`: the last frame is not the copy of the header, not the trailer of an earlier segment, and no torn write of a copy
    /// or of a vital trailer. So the segment's own trailer may have been in the last frame, or was being written.
    Unsealed { header: SegmentHeader, bad_header: bool, closed: bool },
    /// A newer glidefs wrote the segment.
    TooNew { version: u16 },
}

/// Reads which segment a file holds, and in which state. `None` where neither the header, nor the copy, nor the trailer is whole.
///
/// A segment has two headers until the trailer replaces the copy in the last frame. The copy is written first and the header in
/// front after that, each stable before the next step. So one of the two is always whole, unless the disk lost both.
pub(in crate::cache) fn identify(
    file: &dyn SegmentFile,
    cache_id: [u8; 16],
    frames: u32,
) -> io::Result<Option<Identity>> {
    let segment_bytes = offset(frames);
    let (first, last) = (readable(file, 0)?, readable(file, frames - 1)?);
    let ours = |frame: &Option<Box<Frame>>| {
        let header = SegmentHeader::decode(&frame.as_ref().ok_or(FormatError::Checksum)?[..]);
        match header {
            Ok(header) if header.cache_id != cache_id || header.segment_bytes != segment_bytes => {
                Err(FormatError::Malformed("the segment belongs to another cache"))
            }
            header => header,
        }
    };
    let trailer_of = |key: &SegmentKey| {
        Trailer::decode(&last.as_ref().ok_or(FormatError::Checksum)?[..], key, segment_bytes)
    };
    let header = ours(&first);
    if let Err(FormatError::Version { found }) = header {
        return Ok(Some(Identity::TooNew { version: found }));
    }
    let key = match &header {
        Ok(header) => Some(header.key()),
        // The trailer names its own segment.
        Err(_) => match trailer_of(&SegmentKey { cache_id, segment_id: 0 }) {
            Err(FormatError::OtherSegment { found }) => Some(SegmentKey { cache_id, segment_id: found }),
            _ => None,
        },
    };
    if let Some(key) = key
        && let Ok(trailer) = trailer_of(&key)
    {
        return Ok(Some(Identity::Sealed { trailer, header: header.ok() }));
    }
    let copy = ours(&last);
    match (header, copy) {
        (Ok(header), copy) => {
            // The trailer of an earlier segment stays in the last frame only until the copy of the header replaces that trailer.
            let earlier = matches!(trailer_of(&header.key()), Err(FormatError::OtherSegment { .. }));
            let torn = last.as_ref().is_some_and(|last| is_torn_end(&last[..]));
            let closed = copy.is_err() && !earlier && !torn;
            return Ok(Some(Identity::Unsealed { header, bad_header: false, closed }));
        }
        (Err(_), Ok(header)) => {
            return Ok(Some(Identity::Unsealed { header, bad_header: true, closed: false }));
        }
        (Err(_), Err(_)) => {}
    }
    let second = readable(file, 1)?;
    let record_key = SegmentKey { cache_id, segment_id: 0 };
    let holds_record = second.as_ref().is_none_or(|second| {
        !matches!(decode_record(&second[..], &record_key, 1), Err(FormatError::Magic | FormatError::Checksum))
    });
    let zero = |frame: &Option<Box<Frame>>| frame.as_ref().is_some_and(|frame| is_zero(&frame[..]));
    // The copy in the last frame is the first thing ever written into a file, and the last thing erased.
    let erased = second.is_none() && zero(&first) && zero(&last);
    let is_blank = erased || !holds_record && (zero(&first) || (first.is_none() && zero(&last)));
    let unreadable = first.is_none() || second.is_none() || last.is_none();
    Ok(is_blank.then_some(Identity::Blank { unreadable }))
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// The bytes of frame `frame`; `None` when the disk does not read the frame. Fails where the file ends before the frame.
fn readable(file: &dyn SegmentFile, frame: u32) -> io::Result<Option<Box<Frame>>> {
    match read_frame(file, frame) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(error),
        Err(_) => Ok(None),
    }
}

/// The newest segment whose records or sums are in a file, and whether all of the file can be read. A segment closed without
/// records has sums, maybe in front of the records of an older segment. Data of a guest may look like a record of another cache,
/// and tells nothing.
pub(in crate::cache) fn newest_segment(
    file: &dyn SegmentFile,
    cache_id: [u8; 16],
    frames: u32,
) -> io::Result<(Option<u64>, bool)> {
    let (mut newest, mut whole) = (None, true);
    for frame in 1..frames {
        match readable(file, frame)? {
            None => whole = false,
            Some(bytes) => {
                let of = |segment_id| decode_record(&bytes[..], &SegmentKey { cache_id, segment_id }, frame);
                if let Err(FormatError::OtherSegment { found }) = of(0)
                    && of(found).is_ok()
                {
                    newest = newest.max(Some(found));
                }
                let sums = sums_key(&bytes[..], frame).filter(|key| key.cache_id == cache_id);
                newest = newest.max(sums.map(|key| key.segment_id));
            }
        }
    }
    Ok((newest, whole))
}

/// Why a structure on the disk is not used.
#[derive(Debug, thiserror::Error)]
pub(in crate::cache) enum Unusable {
    /// The disk does not read the structure.
    #[error("the disk does not read these bytes")]
    Unreadable(#[source] io::Error),
    /// The bytes are not the bytes that were written.
    #[error(transparent)]
    Damaged(FormatError),
}

/// The records of a sealed segment, from its footer.
pub(in crate::cache) fn read_footer(
    file: &dyn SegmentFile,
    trailer: &Trailer,
) -> Result<Vec<FooterRecord>, Unusable> {
    // The trailer's decoder checked that the footer lies inside the segment.
    let mut bytes = vec![0; trailer.footer_bytes as usize];
    file.read_at(&mut bytes, trailer.footer_offset_bytes()).map_err(Unusable::Unreadable)?;
    decode_footer(&bytes, trailer).map_err(Unusable::Damaged)
}

/// Writes `frames`, by frame number, over wrong copies in the page cache. The disk already has these bytes.
pub(in crate::cache) fn put_back(
    file: &dyn SegmentFile,
    frames: &BTreeMap<u32, Box<Frame>>,
) -> io::Result<()> {
    frames
        .iter()
        .try_for_each(|(frame, bytes)| file.write_at(&[io::IoSlice::new(&bytes[..])], offset(*frame)))
}

/// Writes the bytes of frames `from..to` once more, so that the next sync covers the frames even if the kernel failed to write
/// the same pages earlier: the kernel reports such a failure once, and maybe did so to a process that is gone. Frames that the
/// disk does not read stay as before.
pub(in crate::cache) fn rewrite(file: &dyn SegmentFile, from: u32, to: u32) -> io::Result<()> {
    let mut bytes = Vec::new();
    let mut frame = from;
    while frame < to {
        let mut count = WINDOW_FRAMES.min(to - frame);
        bytes.resize(count as usize * FRAME_BYTES, 0);
        let mut read = file.read_at(&mut bytes, offset(frame));
        if read.is_err() && count > 1 {
            count = 1;
            bytes.resize(FRAME_BYTES, 0);
            read = file.read_at(&mut bytes, offset(frame));
        }
        if read.is_ok() {
            file.write_at(&[io::IoSlice::new(&bytes)], offset(frame))?;
        }
        frame += count;
    }
    Ok(())
}

/// As [`rewrite`], but record by record up to frame `end`; records that end at or before frame `stable` are not written. `false`
/// when a record is not whole any more: then nothing was proved.
pub(in crate::cache) fn rewrite_records(
    file: &dyn SegmentFile,
    key: &SegmentKey,
    stable: u32,
    end: u32,
) -> io::Result<bool> {
    let mut at = 1;
    while at < end {
        let Ok(header) = decode_record(&read_frame(file, at)?[..], key, at) else { return Ok(false) };
        let frames = 1 + u32::try_from(header.crcs.len()).unwrap_or(u32::MAX);
        let Some(next) = at.checked_add(frames).filter(|next| *next <= end) else { return Ok(false) };
        if next > stable {
            let mut bytes = vec![0; frames as usize * FRAME_BYTES];
            file.read_at(&mut bytes, offset(at))?;
            let data = bytes[FRAME_BYTES..].chunks_exact(FRAME_BYTES).map(frame_crc);
            if decode_record(&bytes[..FRAME_BYTES], key, at).as_ref() != Ok(&header) || !data.eq(header.crcs)
            {
                return Ok(false);
            }
            file.write_at(&[io::IoSlice::new(&bytes)], offset(at))?;
        }
        at = next;
    }
    Ok(true)
}

/// As [`rewrite`], up to frame `end`, but only intact frames: record headers of segment `key`, and data frames that match the CRC
/// that `crc` gives.
pub(in crate::cache) fn rewrite_intact(
    file: &dyn SegmentFile,
    key: &SegmentKey,
    end: u32,
    crc: impl Fn(u32) -> Option<u32>,
) -> io::Result<()> {
    for frame in 1..end {
        let Ok(bytes) = read_frame(file, frame) else { continue };
        if crc(frame) == Some(frame_crc(&bytes[..])) || decode_record(&bytes[..], key, frame).is_ok() {
            file.write_at(&[io::IoSlice::new(&bytes[..])], offset(frame))?;
        }
    }
    Ok(())
}
