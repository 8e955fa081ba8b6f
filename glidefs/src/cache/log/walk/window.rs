//! The window through which a walk reads a segment's file.
//!
//! Owns reading in large pieces, and frame by frame where the disk fails. Does not own the meaning of a frame. Invariant: a frame
//! that the disk did not read is in [`Window::bad`] and is not read again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::cache::log::disk::SegmentFile;
use crate::cache::log::format::Frame;
use crate::cache::log::scan::{offset, read_again, try_again};
use crate::units::FRAME_BYTES;

/// Frames read from the disk at once.
const WINDOW_FRAMES: u32 = 256;

/// Frames of a file in ascending order, read in large pieces, and one by one where the disk fails.
pub(super) struct Window<'a> {
    file: &'a dyn SegmentFile,
    end: u32,
    first: u32,
    bytes: Vec<u8>,
    /// Frames before this frame are read one by one, because a read of many frames failed here.
    single_to: u32,
    /// Frames that the disk did not read.
    pub bad: BTreeSet<u32>,
    /// The disk's bytes of frames of which the page cache has other bytes.
    pub wrong_copies: BTreeMap<u32, Box<Frame>>,
}

impl<'a> Window<'a> {
    pub fn new(file: &'a dyn SegmentFile, end: u32) -> Self {
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
    pub fn frame(&mut self, frame: u32) -> io::Result<Option<&[u8]>> {
        let count = u32::try_from(self.bytes.len() / FRAME_BYTES).unwrap_or(0);
        if (frame < self.first || frame >= self.first + count) && !self.fill(frame)? {
            return Ok(None);
        }
        let at = (frame - self.first) as usize * FRAME_BYTES;
        Ok(self.bytes.get(at..at + FRAME_BYTES))
    }

    /// The disk's own bytes of `frame`, read past the page cache, if the bytes satisfy `is_right`.
    pub fn reread(&mut self, frame: u32, is_right: impl Fn(&[u8]) -> bool) -> io::Result<Option<&[u8]>> {
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
