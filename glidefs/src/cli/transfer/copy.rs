//! The copying engine: one thread reads pieces of a source, the caller's thread writes them to a target.
//!
//! Owns what is written and what is left out. Does not own files, devices or pipes: those are [`Source`]s and [`Target`]s.
//! Invariants: when [`copy`] returns a report, the target holds what the source held, and was synced; nothing is written
//! that the target is known to hold; memory is bounded by [`BUFFERS`] chunks and one for comparing.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::buffer::Buffer;
use super::fault::{CopyError, compare_error, reached, write_error};

/// Zeroes and equal bytes are looked for in blocks of this many bytes; it is also the unit of holes and of direct I/O.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Bytes that are read at once.
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// Chunks between the two threads, at most.
const BUFFERS: usize = 4;
/// How long the writer waits before it looks whether it is to stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How often and how long the end of the reader is waited for, so that it has closed what it reads. Not longer: it may be in a
/// read of a pipe that nobody feeds.
const READER_END_CHECK_INTERVAL: Duration = Duration::from_millis(2);
const READER_END_CHECKS_MAX: u32 = 500;

static ZEROES: [u8; 32 * BLOCK_BYTES] = [0; 32 * BLOCK_BYTES];

/// What a source holds from some offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// This many zeroes, 1 at least; they may reach beyond the end.
    Zeroes(u64),
    /// This many bytes were read, 1 at least.
    Data(usize),
}

/// What is copied. It is asked for one piece after the other, from offset 0 to its length without gaps.
pub(super) trait Source: Send {
    /// Tells what is at `offset`, a multiple of [`BLOCK_BYTES`]: data goes into `buffer`, which does not reach beyond the end.
    /// A piece that does not reach the end is a multiple of [`BLOCK_BYTES`] long.
    fn next(&mut self, offset: u64, buffer: &mut [u8]) -> Result<Piece, CopyError>;

    /// Checks, after the last piece, that the source is still what it was.
    fn finish(&mut self) -> Result<(), CopyError>;
}

/// Where to.
pub(super) trait Target: Send {
    /// The first offset, not before `offset`, where there may be something else than zeroes; none before `end` otherwise.
    fn next_data(&mut self, offset: u64, end: u64) -> io::Result<Option<u64>>;

    /// Fills `buffer` with what is there.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes`.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes `range` read as zeroes, and takes no space for it if it can.
    fn zero(&mut self, range: Range<u64>) -> io::Result<()>;

    /// Makes all of it survive loss of power.
    fn sync(&mut self) -> io::Result<()>;
}

/// What a target holds before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Nothing but zeroes: zeroes are not written.
    Zeroes,
    /// Something: it is read, and what is equal is not written.
    Something,
    /// It is a stream: everything is written, in order.
    Stream,
}

/// How to copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Length of source and target.
    pub length_bytes: u64,
    /// Bytes that are read at once, a multiple of [`BLOCK_BYTES`].
    pub chunk_bytes: usize,
    /// What the target holds.
    pub before: Before,
}

/// What was done; the parts add up to the length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    /// Bytes that were written.
    pub copied_bytes: u64,
    /// Zeroes that were not written, because the target read as zeroes.
    pub zero_bytes: u64,
    /// Bytes besides zeroes that were not written, because the target held them.
    pub equal_bytes: u64,
    /// Bytes of the target that were made zeroes.
    pub zeroed_bytes: u64,
}

/// How far a copy is, and whether it is to stop.
#[derive(Debug, Default)]
pub(super) struct Watch {
    done_bytes: AtomicU64,
    stop: AtomicBool,
}

impl Watch {
    /// Bytes from the start that have been seen to.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// Asks the copy to stop soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What goes from the reader to the writer.
enum Message {
    Zeroes(Range<u64>),
    Data { offset: u64, bytes: usize, buffer: Buffer },
    End,
    Failed(CopyError),
}

/// Copies `source` to `target` and syncs it.
pub(super) fn copy(
    source: Box<dyn Source>,
    target: &mut dyn Target,
    options: Options,
    watch: &Arc<Watch>,
) -> Result<Report, CopyError> {
    let (full_tx, full) = sync_channel(BUFFERS);
    let (free, free_rx) = channel();
    for _ in 0..BUFFERS {
        // The receiver is held here.
        let _ = free.send(Buffer::new(options.chunk_bytes));
    }
    let reader = thread::Builder::new()
        .name("copy-read".into())
        .spawn(move || read(source, options, &free_rx, &full_tx))
        .map_err(CopyError::Thread)?;
    let compare_bytes = if options.before == Before::Something { options.chunk_bytes } else { 0 };
    let mut writer = Writer {
        target,
        before: options.before,
        there: Buffer::new(compare_bytes),
        report: Report::default(),
    };
    let copied = writer.run(&full, &free, watch);
    // The reader ends when its channels do.
    drop((full, free));
    for _ in 0..READER_END_CHECKS_MAX {
        if reader.is_finished() {
            break;
        }
        thread::sleep(READER_END_CHECK_INTERVAL);
    }
    copied?;
    writer.target.sync().map_err(|error| reached(0, error).unwrap_or_else(CopyError::Sync))?;
    Ok(writer.report)
}

/// Reads all of `source`, as fast as buffers come back.
fn read(mut source: Box<dyn Source>, options: Options, free: &Receiver<Buffer>, full: &SyncSender<Message>) {
    let mut offset = 0;
    let mut spare = None;
    while offset < options.length_bytes {
        // A writer that is gone has failed, and said why.
        let Some(mut buffer) = spare.take().or_else(|| free.recv().ok()) else { return };
        let rest_bytes = options.length_bytes - offset;
        let bytes = usize::try_from(rest_bytes).unwrap_or(usize::MAX).min(options.chunk_bytes);
        let message = match source.next(offset, &mut buffer.bytes()[..bytes]) {
            Ok(Piece::Zeroes(count)) => {
                let start = offset;
                offset += count.min(rest_bytes);
                spare = Some(buffer);
                Message::Zeroes(start..offset)
            }
            Ok(Piece::Data(count)) => {
                let start = offset;
                offset += count as u64;
                Message::Data { offset: start, bytes: count, buffer }
            }
            Err(error) => Message::Failed(error),
        };
        let is_last = matches!(message, Message::Failed(_));
        if full.send(message).is_err() || is_last {
            return;
        }
    }
    let last = source.finish().map_or_else(Message::Failed, |()| Message::End);
    let _ = full.send(last);
}

/// What is to be done with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Todo {
    /// Zeroes in both.
    StaysZero,
    /// The same data in both.
    StaysEqual,
    Write,
    Zero,
}

struct Writer<'a> {
    target: &'a mut dyn Target,
    before: Before,
    /// What the target holds.
    there: Buffer,
    report: Report,
}

impl Writer<'_> {
    fn run(
        &mut self,
        full: &Receiver<Message>,
        free: &Sender<Buffer>,
        watch: &Watch,
    ) -> Result<(), CopyError> {
        loop {
            check(watch)?;
            let done_bytes = match full.recv_timeout(STOP_CHECK_INTERVAL) {
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err(CopyError::ThreadEnded),
                Ok(Message::End) => return Ok(()),
                Ok(Message::Failed(error)) => return Err(error),
                Ok(Message::Zeroes(range)) => {
                    let end = range.end;
                    self.zeroes(range, watch)?;
                    end
                }
                Ok(Message::Data { offset, bytes, mut buffer }) => {
                    self.data(&buffer.bytes()[..bytes], offset)?;
                    // The reader may have ended already.
                    let _ = free.send(buffer);
                    offset + bytes as u64
                }
            };
            watch.done_bytes.store(done_bytes, Ordering::Relaxed);
        }
    }

    /// Sees to it that `range` reads as zeroes.
    fn zeroes(&mut self, range: Range<u64>, watch: &Watch) -> Result<(), CopyError> {
        let mut offset = range.start;
        while offset < range.end {
            check(watch)?;
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
            watch.done_bytes.store(offset, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sees to it that `data` is at `offset`.
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

    /// Makes `bytes` of the target at `offset`, which it holds in full, equal to `data`, or to zeroes.
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

    /// Asks for each block what is to be done, given what it shall be and what is there, and does it for runs of blocks.
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

/// The start of the block that `offset` is in.
pub(super) const fn block_start(offset: u64) -> u64 {
    offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
}

fn is_zero(block: &[u8]) -> bool {
    block == &ZEROES[..block.len()]
}

fn check(watch: &Watch) -> Result<(), CopyError> {
    if watch.stop.load(Ordering::Relaxed) { Err(CopyError::Stopped) } else { Ok(()) }
}
