//! The loop that copies an image: a chunk is read, compared with what the target holds, and what differs is written.
//!
//! Owns which blocks are written. Does not own which files may be read or written (`transfer`). Invariant: when [`copy`] returns a report, the
//! target holds the content of the source, followed by zeroes, and was synced.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::unistd::{Whence, lseek};
use serde::Serialize;

/// The unit of zeroes, of differences, and of direct I/O.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Bytes read at once. A device splits them into requests that are under way together.
const CHUNK_BYTES: usize = if cfg!(test) { 3 * BLOCK_BYTES } else { 4 << 20 };

/// Why a copy ended before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error("cannot {action} at byte {offset}")]
    Io {
        action: &'static str,
        offset: u64,
        #[source]
        source: io::Error,
    },
    /// The source ended early, or became longer.
    #[error("the source had {was_bytes} bytes and has {is_bytes} now: it was changed or taken away")]
    Changed { was_bytes: u64, is_bytes: u64 },
    /// A pipe has more bytes than the target has room for.
    #[error("standard input has more than {length_bytes} bytes: give a larger --size")]
    TooLong { length_bytes: u64 },
    #[error("it was stopped")]
    Stopped,
}

/// A file, a block device or a pipe, read from the start to the end.
#[derive(Debug)]
pub(super) struct Source {
    file: File,
    /// Length when it was opened; `None` for a pipe.
    pub length_bytes: Option<u64>,
    /// The first bytes of a pipe, which were looked at before the copy.
    pub head: Vec<u8>,
}

/// What a target holds before the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Zeroes,
    /// Anything: each chunk is read first.
    Something,
    /// It is a pipe, and gets every byte.
    Stream,
}

/// What became of the bytes of the target. The four numbers add up to its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    pub copied_bytes: u64,
    /// Zeroes left out, because the target read as zeroes.
    pub zero_bytes: u64,
    /// Other bytes left out, because the target held them already.
    pub equal_bytes: u64,
    /// Bytes that were turned into zeroes.
    pub zeroed_bytes: u64,
}

impl Source {
    pub fn of_file(mut file: File) -> io::Result<Self> {
        let length_bytes = Some(file.seek(SeekFrom::End(0))?);
        Ok(Self { file, length_bytes, head: Vec::new() })
    }

    pub const fn of_pipe(file: File) -> Self {
        Self { file, length_bytes: None, head: Vec::new() }
    }

    /// Fills `buffer` from `offset` on, as far as the source goes; returns the number of bytes.
    pub fn read(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = self.head.len().min(buffer.len());
        buffer[..filled].copy_from_slice(&self.head[..filled]);
        self.head.drain(..filled);
        while filled < buffer.len() {
            let rest = &mut buffer[filled..];
            let read = match self.length_bytes {
                Some(_) => self.file.read_at(rest, offset + filled as u64),
                None => self.file.read(rest),
            };
            match read {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// Makes the first `length_bytes` of `target` equal to `source`, followed by zeroes. `show` hears how many bytes are done.
pub(super) fn copy(
    source: &mut Source,
    target: &mut File,
    length_bytes: u64,
    before: Before,
    stop: &AtomicBool,
    mut show: impl FnMut(u64),
) -> Result<Report, CopyError> {
    let mut memory = vec![0; 2 * CHUNK_BYTES + BLOCK_BYTES];
    let start = memory.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
    // `there` stays all zeroes where the target is.
    let (wanted, there) = memory[start..start + 2 * CHUNK_BYTES].split_at_mut(CHUNK_BYTES);
    let (mut report, mut offset, mut source_bytes) = (Report::default(), 0, 0);
    while offset < length_bytes {
        if stop.load(Ordering::Relaxed) {
            return Err(CopyError::Stopped);
        }
        let bytes = usize::try_from(length_bytes - offset).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        let (wanted, there, end) = (&mut wanted[..bytes], &mut there[..bytes], offset + bytes as u64);
        let is_hole = source.length_bytes.is_some() && has_hole(&source.file, offset, end);
        let at = |action| move |source| CopyError::Io { action, offset, source };
        if is_hole {
            source_bytes = end.min(source.length_bytes.unwrap_or(end));
        } else {
            let read = source.read(wanted, offset).map_err(at("read"))?;
            source_bytes += read as u64;
            wanted[read..].fill(0);
        }
        let is_same = match before {
            Before::Zeroes => is_hole,
            Before::Something => is_hole && has_hole(target, offset, end),
            Before::Stream => false,
        };
        if is_same {
            report.zero_bytes += bytes as u64;
        } else {
            if is_hole {
                wanted.fill(0);
            }
            if before == Before::Stream {
                target.write_all(wanted).map_err(at("write"))?;
                report.copied_bytes += bytes as u64;
            } else {
                if before == Before::Something {
                    target.read_exact_at(there, offset).map_err(at("read the target"))?;
                }
                write_differences(target, wanted, there, offset, &mut report)?;
            }
        }
        for file in [&source.file, &*target] {
            // So that an image does not displace everything else from the page cache. Pipes refuse, which does not matter.
            let done = i64::try_from(end).unwrap_or(i64::MAX);
            let _ = posix_fadvise(file, 0, done, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        }
        offset = end;
        show(offset);
    }
    check_end(source, source_bytes, length_bytes)?;
    if before != Before::Stream {
        target.sync_all().map_err(|source| CopyError::Io { action: "sync the copy", offset, source })?;
    }
    Ok(report)
}

/// Refuses a source that is not as long as it was, and a pipe with more bytes than `length_bytes`.
fn check_end(source: &mut Source, source_bytes: u64, length_bytes: u64) -> Result<(), CopyError> {
    let read = |source| CopyError::Io { action: "read", offset: length_bytes, source };
    let Some(was_bytes) = source.length_bytes else {
        return match source.read(&mut [0], length_bytes).map_err(read)? {
            0 => Ok(()),
            _ => Err(CopyError::TooLong { length_bytes }),
        };
    };
    let now_bytes = source.file.seek(SeekFrom::End(0)).map_err(read)?;
    match [now_bytes, source_bytes].into_iter().find(|&bytes| bytes != was_bytes) {
        Some(is_bytes) => Err(CopyError::Changed { was_bytes, is_bytes }),
        None => Ok(()),
    }
}

/// Writes the blocks of `wanted` that differ from `there`, those of zeroes as holes.
fn write_differences(
    target: &File,
    wanted: &[u8],
    there: &[u8],
    offset: u64,
    report: &mut Report,
) -> Result<(), CopyError> {
    let kind = |start: usize| {
        let block = start..wanted.len().min(start + BLOCK_BYTES);
        let is_zero = wanted[block.clone()].iter().all(|&byte| byte == 0);
        (is_zero, wanted[block.clone()] == there[block])
    };
    let mut start = 0;
    while start < wanted.len() {
        let run = kind(start);
        let mut end = start + BLOCK_BYTES;
        while end < wanted.len() && kind(end) == run {
            end += BLOCK_BYTES;
        }
        let range = start..end.min(wanted.len());
        let (from, bytes) = (offset + start as u64, range.len() as u64);
        let (count, done) = match run {
            (true, true) => (&mut report.zero_bytes, Ok(())),
            (false, true) => (&mut report.equal_bytes, Ok(())),
            (true, false) => (&mut report.zeroed_bytes, zero(target, &wanted[range], from)),
            (false, false) => (&mut report.copied_bytes, target.write_all_at(&wanted[range], from)),
        };
        done.map_err(|source| CopyError::Io { action: "write", offset: from, source })?;
        *count += bytes;
        start = end;
    }
    Ok(())
}

/// Makes `target` read as `zeroes` at `offset`, by a hole where it can have holes.
fn zero(target: &File, zeroes: &[u8], offset: u64) -> io::Result<()> {
    let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let beyond = |_| io::Error::from(ErrorKind::InvalidInput);
    let (from, bytes) =
        (i64::try_from(offset).map_err(beyond)?, i64::try_from(zeroes.len()).map_err(beyond)?);
    match fallocate(target, how, from, bytes) {
        Err(Errno::EOPNOTSUPP) => target.write_all_at(zeroes, offset),
        done => done.map_err(Into::into),
    }
}

/// Whether `file` is known to hold no data from `offset` to `end`. A shortened file is found out at the end.
pub(super) fn has_hole(file: &File, offset: u64, end: u64) -> bool {
    let Ok(from) = i64::try_from(offset) else { return false };
    match lseek(file, from, Whence::SeekData) {
        Ok(data) => u64::try_from(data).is_ok_and(|data| data >= end),
        Err(errno) => errno == Errno::ENXIO,
    }
}
