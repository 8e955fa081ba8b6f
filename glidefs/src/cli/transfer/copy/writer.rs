//! The writing half of a copy: finds the blocks that the target lacks, and writes these blocks.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};

use super::{Before, CopyOptions, CopyProgress, Report, STOP_CHECK_INTERVAL};
use crate::cli::transfer::aligned::AlignedBytes;
use crate::cli::transfer::ends::{BLOCK_BYTES, CopyTarget, block_start};
use crate::cli::transfer::fault::{CopyError, compare_error, reached, write_error};

static ZEROES: [u8; 32 * BLOCK_BYTES] = [0; 32 * BLOCK_BYTES];

/// From the reader to the writer.
pub(super) enum FromReader {
    Zeroes(Range<u64>),
    Data { offset: u64, bytes: usize, buffer: AlignedBytes },
    End,
    Failed(CopyError),
}

/// What to do with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Todo {
    StaysZero,
    /// Equal data in source and target.
    StaysEqual,
    Write,
    Zero,
}

pub(super) struct CopyWriter<'a> {
    target: &'a mut dyn CopyTarget,
    before: Before,
    there: AlignedBytes,
    report: Report,
}

impl<'a> CopyWriter<'a> {
    pub fn new(target: &'a mut dyn CopyTarget, options: CopyOptions) -> Self {
        let compare_bytes = if options.before == Before::Something { options.chunk_bytes } else { 0 };
        Self {
            target,
            before: options.before,
            there: AlignedBytes::new(compare_bytes),
            report: Report::default(),
        }
    }

    /// Makes the target survive loss of power.
    pub fn sync(self) -> Result<Report, CopyError> {
        self.target.sync().map_err(|error| reached(0, error).unwrap_or_else(CopyError::Sync))?;
        Ok(self.report)
    }

    pub fn run(
        &mut self,
        full: &Receiver<FromReader>,
        free: &Sender<AlignedBytes>,
        progress: &CopyProgress,
    ) -> Result<(), CopyError> {
        loop {
            check(progress)?;
            let done_bytes = match full.recv_timeout(STOP_CHECK_INTERVAL) {
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err(CopyError::ThreadEnded),
                Ok(FromReader::End) => return Ok(()),
                Ok(FromReader::Failed(error)) => return Err(error),
                Ok(FromReader::Zeroes(range)) => {
                    let end = range.end;
                    self.zeroes(range, progress)?;
                    end
                }
                Ok(FromReader::Data { offset, bytes, mut buffer }) => {
                    self.data(&buffer.bytes()[..bytes], offset)?;
                    // The reader may have ended already.
                    let _ = free.send(buffer);
                    offset + bytes as u64
                }
            };
            progress.done_bytes.store(done_bytes, Ordering::Relaxed);
        }
    }

    /// Makes `range` of the target read as zeroes.
    fn zeroes(&mut self, range: Range<u64>, progress: &CopyProgress) -> Result<(), CopyError> {
        let mut offset = range.start;
        while offset < range.end {
            check(progress)?;
            let next = match self.before {
                Before::Zeroes => None,
                Before::Something => self.next_data(offset, range.end)?,
                Before::Stream => Some(offset),
            };
            let from = next.unwrap_or(range.end);
            self.report.zero_bytes += from - offset;
            let is_stream = self.before == Before::Stream;
            let at_once_bytes = if is_stream { ZEROES.len() } else { self.there.len() };
            let bytes = usize::try_from(range.end - from).unwrap_or(usize::MAX).min(at_once_bytes);
            if is_stream {
                self.write(&ZEROES[..bytes], from)?;
            } else if bytes > 0 {
                self.compare(None, from, bytes)?;
            }
            offset = from + bytes as u64;
            progress.done_bytes.store(offset, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes the target hold `data` at `offset`.
    fn data(&mut self, data: &[u8], offset: u64) -> Result<(), CopyError> {
        match self.before {
            Before::Stream => self.write(data, offset),
            Before::Zeroes => self.each_run(Some(data), offset, data.len(), |block, _| {
                if is_zero(block) { Todo::StaysZero } else { Todo::Write }
            }),
            Before::Something => {
                let end = offset + data.len() as u64;
                if self.next_data(offset, end)?.is_some() {
                    return self.compare(Some(data), offset, data.len());
                }
                self.each_run(Some(data), offset, data.len(), |block, _| {
                    if is_zero(block) { Todo::StaysZero } else { Todo::Write }
                })
            }
        }
    }

    /// Makes `bytes` of the target at `offset` equal to `data`, or to zeroes. The target is long enough.
    fn compare(&mut self, data: Option<&[u8]>, offset: u64, bytes: usize) -> Result<(), CopyError> {
        let there = &mut self.there.bytes()[..bytes];
        self.target.read_at(there, offset).map_err(|error| compare_error(offset, error))?;
        self.each_run(data, offset, bytes, |block, there| match (is_zero(block), block == there) {
            (true, true) => Todo::StaysZero,
            (false, true) => Todo::StaysEqual,
            (true, false) => Todo::Zero,
            (false, false) => Todo::Write,
        })
    }

    /// Decides with `todo` for each block, from the wanted bytes and the target's bytes, and acts on runs of blocks with the same
    /// decision.
    fn each_run(
        &mut self,
        data: Option<&[u8]>,
        offset: u64,
        bytes: usize,
        todo: impl Fn(&[u8], &[u8]) -> Todo,
    ) -> Result<(), CopyError> {
        let todo_at = |there: &[u8], at: usize| {
            let block = at..bytes.min(at + BLOCK_BYTES);
            let wanted = data.map_or(&ZEROES[..block.len()], |data| &data[block.clone()]);
            todo(wanted, there.get(block).unwrap_or_default())
        };
        let mut start = 0;
        while start < bytes {
            let there = self.there.bytes();
            let what = todo_at(there, start);
            let mut end = start + BLOCK_BYTES;
            while end < bytes && todo_at(there, end) == what {
                end += BLOCK_BYTES;
            }
            let end = end.min(bytes);
            let count = (end - start) as u64;
            let from = offset + start as u64;
            match what {
                Todo::StaysZero => self.report.zero_bytes += count,
                Todo::StaysEqual => self.report.equal_bytes += count,
                Todo::Write => self.write(data.map_or(&[][..], |data| &data[start..end]), from)?,
                Todo::Zero => {
                    self.target.zero(from..from + count).map_err(|error| write_error(from, error))?;
                    self.report.zeroed_bytes += count;
                }
            }
            start = end;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<(), CopyError> {
        self.target.write_at(bytes, offset).map_err(|error| write_error(offset, error))?;
        self.report.copied_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Where the target may hold something, rounded down to whole blocks.
    fn next_data(&mut self, offset: u64, end: u64) -> Result<Option<u64>, CopyError> {
        let next = self.target.next_data(offset, end).map_err(|error| compare_error(offset, error))?;
        Ok(next.map(|at| block_start(at).max(offset)))
    }
}

fn is_zero(block: &[u8]) -> bool {
    block == &ZEROES[..block.len()]
}

fn check(progress: &CopyProgress) -> Result<(), CopyError> {
    if progress.stop.load(Ordering::Relaxed) { Err(CopyError::Stopped) } else { Ok(()) }
}
