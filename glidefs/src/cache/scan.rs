//! Reading a segment back: its header, its footer, or its records one by one.
//!
//! Owns telling a torn tail from damage. Does not change anything. Invariant: what is returned was checked against the
//! checksums in it, and belongs to the segment asked for.

use std::io;

use super::disk::SegmentFile;
use super::format::{
    FooterRecord, FormatError, Frame, SegmentHeader, SegmentKey, Trailer, decode_footer, decode_record,
    frame_crc,
};
use crate::units::FRAME_BYTES;

/// Frames read from the disk at once.
const WINDOW_FRAMES: u32 = 256;

/// Bytes of frame number `frame`.
pub(super) fn offset(frame: u32) -> u64 {
    u64::from(frame) * FRAME_BYTES as u64
}

pub(super) fn read_frame(file: &dyn SegmentFile, frame: u32) -> io::Result<Box<Frame>> {
    let mut bytes = Box::new([0; FRAME_BYTES]);
    file.read_at(&mut bytes[..], offset(frame))?;
    Ok(bytes)
}

/// What the first and the last frame of a slot's file say.
#[derive(Debug)]
pub(super) enum Identity {
    /// Nothing was ever written, or nothing that was finished.
    Blank,
    /// A segment with a trailer; all of it is stable. No header when that is damaged.
    Sealed { trailer: Trailer, header: Option<SegmentHeader> },
    /// A segment without one.
    Unsealed { header: SegmentHeader, bad_header: bool },
    /// A newer glidefs wrote it.
    TooNew { version: u16 },
    /// Bytes that were stable are wrong.
    Damaged { frame: u32, what: &'static str },
}

/// Reads what a slot holds. A segment has its header twice until its trailer replaces the copy in the last frame: first
/// there, then in front, each stable before the next step. So one of the two is always whole.
pub(super) fn identify(file: &dyn SegmentFile, cache_id: [u8; 16], frames: u32) -> io::Result<Identity> {
    let segment_bytes = offset(frames);
    let (first, last) = (read_frame(file, 0)?, read_frame(file, frames - 1)?);
    let ours = |header: Result<SegmentHeader, FormatError>| match header {
        Ok(header) if header.cache_id != cache_id || header.segment_bytes != segment_bytes => {
            Err(FormatError::Malformed("the segment belongs to another cache"))
        }
        header => header,
    };
    let header = ours(SegmentHeader::decode(&first[..]));
    if let Err(FormatError::Version { found }) = header {
        return Ok(Identity::TooNew { version: found });
    }
    let bad_header = header.is_err();
    let key = match &header {
        Ok(header) => Some(header.key()),
        // The trailer knows its own segment.
        Err(_) => match Trailer::decode(&last[..], &SegmentKey { cache_id, segment_id: 0 }, segment_bytes) {
            Err(FormatError::OtherSegment { found }) => Some(SegmentKey { cache_id, segment_id: found }),
            _ => None,
        },
    };
    if let Some(key) = key
        && let Ok(trailer) = Trailer::decode(&last[..], &key, segment_bytes)
    {
        return Ok(Identity::Sealed { trailer, header: header.ok() });
    }
    if let Ok(header) = header.or_else(|_| ours(SegmentHeader::decode(&last[..]))) {
        return Ok(Identity::Unsealed { header, bad_header });
    }
    let second = read_frame(file, 1)?;
    let probe = decode_record(&second[..], &SegmentKey { cache_id, segment_id: 0 }, 1);
    let holds_record = !matches!(probe, Err(FormatError::Magic | FormatError::Checksum));
    if first.iter().all(|byte| *byte == 0) && !holds_record {
        return Ok(Identity::Blank);
    }
    Ok(Identity::Damaged { frame: 0, what: "segment header" })
}

/// The records of a sealed segment, from its footer.
pub(super) fn read_footer(
    file: &dyn SegmentFile,
    trailer: &Trailer,
) -> io::Result<Result<Vec<FooterRecord>, FormatError>> {
    // The trailer's decoder checked that this lies inside the segment.
    let mut bytes = vec![0; trailer.footer_bytes as usize];
    file.read_at(&mut bytes, trailer.footer_offset_bytes())?;
    Ok(decode_footer(&bytes, trailer).map(|footer| footer.records))
}

/// What a scan found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub records: Vec<FooterRecord>,
    /// One past the last frame of the last record.
    pub tail: u32,
    /// Frames that a record says were stable when it was written.
    pub stable: u32,
    /// What follows the tail began as a record.
    pub torn: bool,
}

/// Frames of a file in ascending order, read in large pieces.
struct Window<'a> {
    file: &'a dyn SegmentFile,
    end: u32,
    first: u32,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(file: &'a dyn SegmentFile, end: u32) -> Self {
        Self { file, end, first: 0, bytes: Vec::new() }
    }

    fn frame(&mut self, frame: u32) -> io::Result<&[u8]> {
        let count = u32::try_from(self.bytes.len() / FRAME_BYTES).unwrap_or(0);
        if frame < self.first || frame >= self.first + count {
            let count = WINDOW_FRAMES.min(self.end.saturating_sub(frame)).max(1);
            self.bytes.resize(count as usize * FRAME_BYTES, 0);
            self.first = frame;
            self.file.read_at(&mut self.bytes, offset(frame))?;
        }
        let at = (frame - self.first) as usize * FRAME_BYTES;
        Ok(&self.bytes[at..at + FRAME_BYTES])
    }
}

/// Walks the record headers of segment `key` from frame 1 on, as far as they go, at most up to frame `end`.
pub(super) fn walk(file: &dyn SegmentFile, key: &SegmentKey, end: u32) -> io::Result<Scan> {
    let mut window = Window::new(file, end);
    walk_in(&mut window, key)
}

fn walk_in(window: &mut Window<'_>, key: &SegmentKey) -> io::Result<Scan> {
    let mut scan = Scan { tail: 1, stable: 1, ..Scan::default() };
    while scan.tail < window.end {
        let Ok(record) = decode_record(window.frame(scan.tail)?, key, scan.tail) else { break };
        let record_end = u64::from(scan.tail) + 1 + record.crcs.len() as u64;
        let Some(record_end) = u32::try_from(record_end).ok().filter(|record_end| *record_end <= window.end)
        else {
            break;
        };
        scan.stable = scan.stable.max(record.stable_frames);
        scan.records.push(FooterRecord {
            position_frames: scan.tail,
            entries: record.entries,
            crcs: record.crcs,
        });
        scan.tail = record_end;
    }
    Ok(scan)
}

/// Scans an unsealed segment of `frames` frames: its records up to the first that is not whole. `Err` inside tells the
/// frame that was stable and is damaged.
pub(super) fn scan(file: &dyn SegmentFile, key: &SegmentKey, frames: u32) -> io::Result<Result<Scan, u32>> {
    let end = frames - 1;
    let mut window = Window::new(file, end);
    let mut scan = walk_in(&mut window, key)?;
    // Later records tell what was stable when they were written, and that the tail was not the end.
    for frame in scan.tail..end {
        if let Ok(record) = decode_record(window.frame(frame)?, key, frame) {
            scan.stable = scan.stable.max(record.stable_frames);
            scan.torn = true;
        }
    }
    if scan.stable > scan.tail {
        return Ok(Err(scan.tail));
    }
    let mut window = Window::new(file, end);
    for at in 0..scan.records.len() {
        let record = &scan.records[at];
        let first = record.position_frames + 1;
        // Cannot overflow: the walk checked where the record ends.
        let record_end = first + u32::try_from(record.crcs.len()).unwrap_or(0);
        if record_end <= scan.stable {
            continue;
        }
        for (frame, crc) in (first..record_end).zip(&record.crcs) {
            if frame_crc(window.frame(frame)?) != *crc {
                scan.tail = first - 1;
                scan.torn = true;
                scan.records.truncate(at);
                return Ok(Ok(scan));
            }
        }
    }
    Ok(Ok(scan))
}

/// Writes the bytes of frames `from..to` once more, so that the next sync covers them even if an earlier write-back of
/// them failed: the kernel reports that once, and maybe did so to a process that is gone.
pub(super) fn rewrite(file: &dyn SegmentFile, from: u32, to: u32) -> io::Result<()> {
    let mut bytes = Vec::new();
    let mut frame = from;
    while frame < to {
        let count = WINDOW_FRAMES.min(to - frame);
        bytes.resize(count as usize * FRAME_BYTES, 0);
        file.read_at(&mut bytes, offset(frame))?;
        file.write_at(&[io::IoSlice::new(&bytes)], offset(frame))?;
        frame += count;
    }
    Ok(())
}

/// As [`rewrite`], record by record up to frame `end`, where those before frame `stable` need not be written. `false` when
/// a record is not whole any more; then nothing was proved.
pub(super) fn rewrite_records(
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
