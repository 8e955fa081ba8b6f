//! The copying engine: one thread reads pieces of a source, the caller's thread writes them to a target.
//!
//! Owns what is written and what is left out. Does not own files, devices or pipes: those are [`Source`]s and [`Target`]s.
//! Invariants: when [`copy`] returns a report, the target holds what the source held, and was synced; nothing is written
//! that the target is known to hold; memory is bounded by [`BUFFERS`] chunks and one for comparing.

mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use self::writer::{Message, Writer};
use super::buffer::Buffer;
use super::ends::{Piece, Source, Target};
use super::fault::CopyError;

/// Chunks between the two threads, at most.
const BUFFERS: usize = 4;
/// How long the writer waits before it looks whether it is to stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How often and how long the end of the reader is waited for, so that it has closed what it reads. Not longer: it may be in a
/// read of a pipe that nobody feeds.
const READER_END_CHECK_INTERVAL: Duration = Duration::from_millis(2);
const READER_END_CHECKS_MAX: u32 = 500;

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
    let mut writer = Writer::new(target, options);
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
    writer.sync()
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
