//! Files and block devices as sources and targets of a copy: holes, direct I/O, and leaving the page cache alone.
//!
//! Does not own which files may be opened: `device` and `image` do. Invariants: copied pages are dropped from the page cache; a
//! source whose length changed since opening is an error, never zeroes.

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::unistd::{Whence, lseek};

use super::aligned::AlignedBytes;
use super::ends::{BLOCK_BYTES, CHUNK_BYTES, CopyPiece, CopySource, CopyTarget, block_start};
use super::fault::{CopyError, read_error};

/// The page cache is told to forget this much at a time.
const FORGET_BYTES: u64 = 8 << 20;

/// An open file or block device.
#[derive(Debug)]
pub(super) struct RawFile {
    file: File,
    is_device: bool,
    /// The length at opening.
    length_bytes: u64,
    /// End of the data around the last piece: a hole begins here.
    data_end: u64,
    /// The page cache was told to forget everything before this offset.
    forgotten: u64,
}

impl RawFile {
    /// Takes an open file, and finds the length.
    pub fn new(file: File) -> io::Result<Self> {
        let is_device = file.metadata()?.file_type().is_block_device();
        let length_bytes = length(&file, is_device)?;
        Ok(Self { file, is_device, length_bytes, data_end: 0, forgotten: 0 })
    }

    pub const fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Reads all of `buffer` at `offset`.
    pub fn read_exact(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(|error| self.or_gone(error))
    }

    /// `error`, or `ENODEV` if the device is gone: the kernel reports length 0 for a removed device.
    fn or_gone(&self, error: io::Error) -> io::Error {
        if self.is_device && length(&self.file, true).is_ok_and(|now| now < self.length_bytes) {
            return Errno::ENODEV.into();
        }
        error
    }

    /// Where data begins, at `offset` or after; `None` without data. A file system without `SEEK_DATA` counts as data everywhere.
    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        match self.seek(offset, Whence::SeekData) {
            Err(Errno::ENXIO) => Ok(None),
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(Some(offset)),
            found => Ok(Some(found?)),
        }
    }

    /// Where the data at `offset` ends.
    fn seek_hole(&self, offset: u64) -> io::Result<u64> {
        match self.seek(offset, Whence::SeekHole) {
            Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENXIO) => Ok(self.length_bytes),
            found => Ok(found?),
        }
    }

    fn seek(&self, offset: u64, whence: Whence) -> Result<u64, Errno> {
        let offset = i64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        // Positions of files are not negative.
        lseek(&self.file, offset, whence).map(|found| u64::try_from(found).unwrap_or(0))
    }

    /// Tells the page cache to forget everything before `offset`. The kernel starts to write a dirty page at the first advice and
    /// can drop the page at the second, so each page is named twice. Failures of advice do not matter.
    fn forget_before(&mut self, offset: u64) {
        if offset >= self.forgotten.saturating_add(FORGET_BYTES) {
            let from = self.forgotten.saturating_sub(FORGET_BYTES);
            if let (Ok(from), Ok(bytes)) = (i64::try_from(from), i64::try_from(offset - from)) {
                let _ = posix_fadvise(&self.file, from, bytes, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
            }
            self.forgotten = offset;
        }
    }
}

/// How long `file` is now.
fn length(file: &File, is_device: bool) -> io::Result<u64> {
    if is_device { (&*file).seek(SeekFrom::End(0)) } else { Ok(file.metadata()?.len()) }
}

impl CopySource for RawFile {
    fn next(&mut self, offset: u64, buffer: &mut [u8]) -> Result<CopyPiece, CopyError> {
        let error = |source| read_error(offset, source);
        if offset >= self.data_end {
            let rest = (offset < self.length_bytes).then(|| self.seek_data(offset)).transpose();
            let Some(data) = rest.map_err(error)?.flatten() else { return Ok(CopyPiece::Zeroes(u64::MAX)) };
            let hole = self.seek_hole(data).map_err(error)?;
            self.data_end = hole.checked_next_multiple_of(BLOCK_BYTES as u64).unwrap_or(hole);
            let start = block_start(data);
            if start > offset {
                return Ok(CopyPiece::Zeroes(start - offset));
            }
        }
        let to_hole = usize::try_from(self.data_end - offset).unwrap_or(usize::MAX);
        let bytes = buffer.len().min(to_hole);
        // The last block of a file may be shorter than the last block of the export.
        let to_end = usize::try_from(self.length_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (there, beyond) = buffer[..bytes].split_at_mut(bytes.min(to_end));
        self.read_exact(there, offset).map_err(|source| match source.kind() {
            ErrorKind::UnexpectedEof => CopyError::Ended { offset, wanted_bytes: self.length_bytes },
            _ => error(source),
        })?;
        beyond.fill(0);
        self.forget_before(offset + bytes as u64);
        Ok(CopyPiece::Data(bytes))
    }

    fn finish(&mut self) -> Result<(), CopyError> {
        let now = length(&self.file, self.is_device).map_err(|error| read_error(self.length_bytes, error))?;
        if now != self.length_bytes {
            return Err(CopyError::Changed { was_bytes: self.length_bytes, is_bytes: now });
        }
        Ok(())
    }
}

impl CopyTarget for RawFile {
    fn next_data(&mut self, offset: u64, end: u64) -> io::Result<Option<u64>> {
        let data = if self.is_device { Some(offset) } else { self.seek_data(offset)? };
        Ok(data.filter(|&data| data < end))
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact(buffer, offset)?;
        self.forget_before(offset);
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|error| self.or_gone(error))?;
        self.forget_before(offset);
        Ok(())
    }

    fn zero(&mut self, range: Range<u64>) -> io::Result<()> {
        let beyond = |_| io::Error::from(ErrorKind::InvalidInput);
        let start = i64::try_from(range.start).map_err(beyond)?;
        let bytes = i64::try_from(range.end - range.start).map_err(beyond)?;
        let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        match fallocate(&self.file, how, start, bytes) {
            Ok(()) => Ok(()),
            // The file system or device has no holes.
            Err(Errno::EOPNOTSUPP) => self.write_zeroes(range),
            Err(error) => Err(self.or_gone(error.into())),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all().map_err(|error| self.or_gone(error))
    }
}

impl RawFile {
    /// Writes zeroes, for files and devices without holes.
    pub fn write_zeroes(&mut self, range: Range<u64>) -> io::Result<()> {
        let mut zeroes = AlignedBytes::new(CHUNK_BYTES);
        let mut offset = range.start;
        while offset < range.end {
            let rest = usize::try_from(range.end - offset).unwrap_or(usize::MAX);
            let bytes = rest.min(CHUNK_BYTES);
            self.write_at(&zeroes.bytes()[..bytes], offset)?;
            offset += bytes as u64;
        }
        Ok(())
    }
}
