//! Walking a segment's records, one header after the other, where no footer lists the records.
//!
//! Owns telling a torn tail from damage, finding the records behind damage, and making up for a lost record header from the next
//! header. Changes nothing on disk. Invariants: every record returned was checked against the record's checksums, and belongs to
//! the segment asked for; where a record that was promised to be stable may have been, and is not found, there is a hole.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::disk::SegmentFile;
use super::format::{
    FooterRecord, Frame, Record, SegmentKey, decode_record, frame_crc, is_damaged_record, is_footer,
    newer_version,
};
use super::scan::{WINDOW_FRAMES, is_of_the_medium, offset, read_again, try_again};
use crate::units::FRAME_BYTES;

/// Frames without a record found, where records may have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) struct Hole {
    pub from: u32,
    pub to: u32,
    /// A record in the hole may be of an export that no record before the hole names, though the segment announces exports.
    pub of_anyone: bool,
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(in crate::cache) struct Walk {
    /// Records in the order of their places.
    pub records: Vec<FooterRecord>,
    /// One past the last frame of the last record.
    pub tail: u32,
    /// Frames from the segment's start that are known to have been stable.
    pub stable: u32,
    /// Records behind the tail were taken back: the data of a record, or a frame before, is torn.
    pub torn: bool,
    pub holes: Vec<Hole>,
    /// Version of a record header that a newer glidefs wrote, if there is one.
    pub newer: Option<u16>,
    /// Frames with headers of records that were dropped.
    dropped: Vec<u32>,
    /// Frames that the disk did not read.
    pub unreadable: u32,
    /// Places of records without a header of their own: the next record's header described such a record.
    made_up_for: BTreeSet<u32>,
    /// The segment announces exports before their first entry.
    pub announces: bool,
    /// The disk's bytes of frames of which the page cache has other bytes.
    pub wrong_copies: BTreeMap<u32, Box<Frame>>,
}

impl Walk {
    /// One past the last frame that says what the records are.
    ///
    /// Where the last record has no header of its own, only the header of a dropped record describes the last record: without a
    /// footer, a later walk needs that header.
    pub fn evidence_end(&self) -> u32 {
        let last = self.records.last();
        let is_made_up = last.is_some_and(|last| self.made_up_for.contains(&last.position_frames));
        // The header that describes the last record is in the frame behind the last record.
        if is_made_up { self.tail.saturating_add(1) } else { self.tail }
    }

    /// Number of records without a header of their own.
    pub fn made_up(&self) -> usize {
        self.made_up_for.len()
    }

    /// Whether records were dropped whose headers describe the records before.
    pub fn has_dropped(&self) -> bool {
        !self.dropped.is_empty()
    }

    /// Headers of dropped records that nobody needs: a walk that misses footer and trailer must not find these headers.
    pub fn headers_to_erase(&self) -> impl Iterator<Item = u32> {
        self.dropped.iter().copied().filter(|frame| *frame >= self.evidence_end())
    }
}

/// What is known of a segment before the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Span {
    /// The segment is sealed: the records end before this frame, and all records are stable.
    To(u32),
    /// The segment may have had a trailer that is damaged. The records end before this frame; if a footer is behind the records,
    /// all records are stable.
    Closed(u32),
    /// The segment was being appended to, up to this frame at most. Records not promised to be stable may be torn.
    Open(u32),
}

impl Span {
    fn end(self) -> u32 {
        match self {
            Self::To(end) | Self::Closed(end) | Self::Open(end) => end,
        }
    }
}

/// Walks segment `key`. Fails when the file is too short, and for nothing else.
pub(in crate::cache) fn walk(file: &dyn SegmentFile, key: &SegmentKey, span: Span) -> io::Result<Walk> {
    walk_again(file, key, span, 1)
}

/// Walks segment `key`; an earlier walk found out that the frames before `stable` were stable.
pub(in crate::cache) fn walk_again(
    file: &dyn SegmentFile,
    key: &SegmentKey,
    span: Span,
    stable: u32,
) -> io::Result<Walk> {
    let mut window = Window::new(file, span.end());
    let (mut walk, gaps) = find(&mut window, key, span, stable)?;
    for gap in gaps {
        // The disk reads the gap, and nobody promised that the gap is stable: a write did not reach its end.
        if gap.from >= walk.stable && !gap.unreadable {
            cut(&mut walk, gap.from);
            break;
        }
        let of_anyone = may_hide_an_export(&mut window, key, gap, &walk)?;
        walk.holes.push(Hole { from: gap.from, to: gap.to, of_anyone });
    }
    if let Some(torn) = first_torn(&mut window, &walk)? {
        cut(&mut walk, torn);
    }
    walk.unreadable = u32::try_from(window.bad.len()).unwrap_or(u32::MAX);
    walk.wrong_copies = window.wrong_copies;
    Ok(walk)
}

/// Whether a record in `gap` may be of an export that no record before the gap names.
///
/// An export is announced in the frame before the header of the export's first record: the export is hidden only if both frames are
/// lost. In frames that the disk reads, but with wrong bytes, any number of records may be lost. Behind a frame that the disk does not
/// read are the data of the lost record, or what was in the file before; nothing tells either from wrong bytes. So such a gap hides an
/// export only if two neighbouring frames are lost, each unreadable or a damaged header, or if the header right behind the gap has wrong
/// bytes.
fn may_hide_an_export(window: &mut Window<'_>, key: &SegmentKey, gap: Gap, walk: &Walk) -> io::Result<bool> {
    if gap.to - gap.from <= 1 {
        return Ok(false);
    }
    let is_wrong_behind = walk.made_up_for.contains(&gap.to) && !window.bad.contains(&gap.to);
    if !gap.unreadable || is_wrong_behind {
        return Ok(true);
    }
    let mut was_lost = false;
    for frame in gap.from..gap.to {
        let bytes = window.frame(frame)?;
        let is_lost = bytes.is_none_or(|bytes| is_damaged_record(bytes, key, frame));
        if is_lost && was_lost {
            return Ok(true);
        }
        was_lost = is_lost;
    }
    Ok(false)
}

/// Frames that are not a record, between two records or behind the last record.
#[derive(Clone, Copy, Debug)]
struct Gap {
    from: u32,
    to: u32,
    /// The disk does not read the first frame of the gap.
    unreadable: bool,
}

/// All records of segment `key`, and the gaps between the records. The frames before `stable` are stable.
fn find(window: &mut Window<'_>, key: &SegmentKey, span: Span, stable: u32) -> io::Result<(Walk, Vec<Gap>)> {
    let mut walk = Walk { tail: 1, stable, ..Walk::default() };
    let (mut gaps, mut frame): (Vec<Gap>, _) = (Vec::new(), 1);
    let mut gap: Option<Gap> = None;
    while frame < span.end() {
        let bytes = window.frame(frame)?;
        let readable = bytes.is_some();
        let mut here = bytes.map_or(Here::Nothing, |bytes| what_is(bytes, key, frame, span.end()));
        if matches!(here, Here::Nothing) && readable && gap.is_none() {
            // A record or a footer should begin here. The page cache may have a wrong copy of the frame, so the disk is asked.
            let is_one = |bytes: &[u8]| !matches!(what_is(bytes, key, frame, span.end()), Here::Nothing);
            let found = window.reread(frame, is_one).ok().flatten();
            here = found.map_or(Here::Nothing, |bytes| what_is(bytes, key, frame, span.end()));
        }
        let footer = matches!(here, Here::Footer);
        if let Here::Newer(version) = here {
            walk.newer = walk.newer.or(Some(version));
        }
        if let Here::Record(record, end) = here {
            walk.stable = walk.stable.max(record.stable_frames);
            let is_dropped = is_dropped(window, key, frame, &record)?;
            let left =
                gap.take().and_then(|gap| make_up_for(Gap { to: frame, ..gap }, record.before, &mut walk));
            if is_dropped {
                return Ok(closed_at(frame, walk, gaps, left, span));
            }
            gaps.extend(left);
            walk.announces |= record.announces;
            let (entries, crcs) = (record.entries, record.crcs);
            walk.records.push(FooterRecord { position_frames: frame, entries, crcs });
            (walk.tail, frame) = (end, end);
            continue;
        }
        if let Here::Dropped(before) = here
            && matches!(span, Span::To(_))
        {
            let left = gap.take().and_then(|gap| make_up_for(Gap { to: frame, ..gap }, before, &mut walk));
            return Ok(closed_at(frame, walk, gaps, left, span));
        }
        if footer && !matches!(span, Span::To(_)) {
            let left = gap.map(|gap| Gap { to: frame, ..gap });
            return Ok(closed_at(frame, walk, gaps, left, span));
        }
        if gap.is_none() {
            gap = Some(Gap { from: frame, to: frame, unreadable: !readable });
        }
        frame += 1;
    }
    let sealed = matches!(span, Span::To(_));
    if sealed {
        walk.stable = span.end();
    }
    // Behind the last record: a sealed segment must have records up to the end, and behind an unreadable frame there may be
    // records.
    gaps.extend(gap.filter(|gap| sealed || gap.unreadable).map(|gap| Gap { to: span.end(), ..gap }));
    Ok((walk, gaps))
}

/// Whether a footer is in the place of the first data of `record`, whose header is in frame `at`. Then an earlier recovery
/// dropped the record, and kept the header for the description of the record before.
fn is_dropped(window: &mut Window<'_>, key: &SegmentKey, at: u32, record: &Record) -> io::Result<bool> {
    let Some(crc) = record.crcs.first() else { return Ok(false) };
    let data = window.frame(at + 1)?;
    Ok(data.is_some_and(|data| is_footer(data, key) && frame_crc(data) != *crc))
}

/// The end of a walk where a footer says that the segment has no record from frame `at` on. `left` is the gap before frame `at`.
fn closed_at(at: u32, mut walk: Walk, mut gaps: Vec<Gap>, left: Option<Gap>, span: Span) -> (Walk, Vec<Gap>) {
    walk.tail = walk.records.last().map_or(1, end_of);
    match span {
        // Everything before a footer was stable, found or not.
        Span::Closed(_) | Span::To(_) => {
            walk.stable = walk.stable.max(at);
            gaps.extend(left);
        }
        // The footer was written before the records were synced, so a readable gap behind the stable frames may be torn. A record
        // behind the footer failed and was given up.
        Span::Open(_) => {
            let stable = walk.stable;
            gaps.extend(left.filter(|gap| gap.unreadable || gap.from < stable));
        }
    }
    (walk, gaps)
}

/// A frame's meaning for a walk.
enum Here {
    /// The header of a record, and one past the record's last frame.
    Record(Record, u32),
    /// The header of a dropped record, whose data would be behind the end, with the header's description of the record before.
    Dropped(Option<FooterRecord>),
    Footer,
    /// The header of a record, written by a newer glidefs, with the version.
    Newer(u16),
    /// None of the segment's structures.
    Nothing,
}

/// The meaning of frame `at` of segment `key`. `bytes` are the frame's bytes, and records end before frame `limit`.
fn what_is(bytes: &[u8], key: &SegmentKey, at: u32, limit: u32) -> Here {
    if is_footer(bytes, key) {
        return Here::Footer;
    }
    if let Some(version) = newer_version(bytes, key) {
        return Here::Newer(version);
    }
    let Ok(record) = decode_record(bytes, key, at) else { return Here::Nothing };
    match end_of_record(&record, at) {
        Some(end) if end <= limit => Here::Record(record, end),
        _ if at.checked_add(1) == Some(limit) => Here::Dropped(record.before),
        _ => Here::Nothing,
    }
}

/// Adds the last record in `gap` to `walk`, if `before` describes a record that ends where `gap` ends. `before` comes from the
/// header behind `gap`. Returns the rest of the gap.
fn make_up_for(gap: Gap, before: Option<FooterRecord>, walk: &mut Walk) -> Option<Gap> {
    let fits = |record: &FooterRecord| record.position_frames >= gap.from && end_of(record) == gap.to;
    let Some(record) = before.filter(fits) else { return Some(gap) };
    let to = record.position_frames;
    walk.records.push(record);
    walk.made_up_for.insert(to);
    (gap.from < to).then_some(Gap { to, ..gap })
}

/// One past the last frame of `record`, which begins at frame `at`.
fn end_of_record(record: &Record, at: u32) -> Option<u32> {
    u32::try_from(record.crcs.len()).ok()?.checked_add(at)?.checked_add(1)
}

/// Where the first record with wrong data begins, among the records not known to be stable.
fn first_torn(window: &mut Window<'_>, walk: &Walk) -> io::Result<Option<u32>> {
    for record in &walk.records {
        let first = record.position_frames + 1;
        let frames = first..first.saturating_add(u32::try_from(record.crcs.len()).unwrap_or(u32::MAX));
        if frames.end <= walk.stable {
            continue;
        }
        for (frame, crc) in frames.zip(&record.crcs) {
            let is_right = |bytes: &[u8]| frame_crc(bytes) == *crc;
            // An unreadable frame is lost, and not torn: whoever reads the sectors gets an error.
            if window.frame(frame)?.is_none_or(is_right) {
                continue;
            }
            match window.reread(frame, is_right) {
                Ok(Some(_)) => {}
                Err(error) if is_of_the_medium(&error) => _ = window.bad.insert(frame),
                Ok(None) | Err(_) => return Ok(Some(record.position_frames)),
            }
        }
    }
    Ok(None)
}

/// Takes back everything from frame `from` on.
fn cut(walk: &mut Walk, from: u32) {
    let is_header = |position: &u32| *position >= from && !walk.made_up_for.contains(position);
    let dropped = walk.records.iter().map(|record| record.position_frames).filter(is_header);
    walk.dropped = dropped.chain(std::mem::take(&mut walk.dropped)).collect();
    walk.torn = walk.records.iter().any(|record| record.position_frames >= from);
    walk.records.retain(|record| record.position_frames < from);
    walk.holes.retain(|hole| hole.from < from);
    walk.tail = walk.records.last().map_or(1, end_of);
}

/// One past the last frame of `record`.
fn end_of(record: &FooterRecord) -> u32 {
    record
        .position_frames
        .saturating_add(1)
        .saturating_add(u32::try_from(record.crcs.len()).unwrap_or(u32::MAX))
}

/// Frames of a file in ascending order, read in large pieces, and one by one where the disk fails. A frame that the disk did not read is
/// in [`Self::bad`] and is not read again.
struct Window<'a> {
    file: &'a dyn SegmentFile,
    end: u32,
    first: u32,
    bytes: Vec<u8>,
    /// Frames before this frame are read one by one, because a read of many frames failed here.
    single_to: u32,
    /// Frames that the disk did not read.
    bad: BTreeSet<u32>,
    /// The disk's bytes of frames of which the page cache has other bytes.
    wrong_copies: BTreeMap<u32, Box<Frame>>,
}

impl<'a> Window<'a> {
    fn new(file: &'a dyn SegmentFile, end: u32) -> Self {
        Self {
            file,
            end,
            first: 0,
            bytes: Vec::new(),
            single_to: 0,
            bad: BTreeSet::new(),
            wrong_copies: BTreeMap::new(),
        }
    }

    /// The bytes of `frame`; `None` when the disk does not read the frame.
    fn frame(&mut self, frame: u32) -> io::Result<Option<&[u8]>> {
        let count = u32::try_from(self.bytes.len() / FRAME_BYTES).unwrap_or(0);
        if (frame < self.first || frame >= self.first + count) && !self.fill(frame)? {
            return Ok(None);
        }
        let at = (frame - self.first) as usize * FRAME_BYTES;
        Ok(self.bytes.get(at..at + FRAME_BYTES))
    }

    /// The disk's own bytes of `frame`, read past the page cache, if the bytes satisfy `is_right`.
    fn reread(&mut self, frame: u32, is_right: impl Fn(&[u8]) -> bool) -> io::Result<Option<&[u8]>> {
        let mut bytes = Box::new([0; FRAME_BYTES]);
        try_again(|| self.file.read_from_disk(&mut bytes[..], offset(frame)))?;
        if !is_right(&bytes[..]) {
            return Ok(None);
        }
        Ok(Some(&self.wrong_copies.entry(frame).or_insert(bytes)[..]))
    }

    /// Reads `frame` and the frames behind into the window. `false` when the disk does not read `frame`.
    fn fill(&mut self, frame: u32) -> io::Result<bool> {
        if self.bad.contains(&frame) {
            return Ok(false);
        }
        let whole = WINDOW_FRAMES.min(self.end.saturating_sub(frame)).max(1);
        let mut count = if frame < self.single_to { 1 } else { whole };
        loop {
            self.bytes.resize(count as usize * FRAME_BYTES, 0);
            self.first = frame;
            let read = match count {
                1 => read_again(self.file, &mut self.bytes, offset(frame)),
                _ => self.file.read_at(&mut self.bytes, offset(frame)),
            };
            match read {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(error),
                Err(_) if count > 1 => {
                    self.single_to = frame.saturating_add(count);
                    count = 1;
                }
                Err(_) => {
                    self.bytes.clear();
                    self.bad.insert(frame);
                    return Ok(false);
                }
            }
        }
    }
}
