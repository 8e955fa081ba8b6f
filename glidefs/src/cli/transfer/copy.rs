//! The copying engine: one thread reads pieces of a source, the caller's thread writes the pieces to a target.
//!
//! Owns the choice of blocks to write. Does not own files, devices or pipes: those are [`CopySource`]s and [`CopyTarget`]s.
//! Invariants: when [`copy`] returns a report, the target holds the content of the source, and was synced; nothing is written that
//! the target is known to hold; memory is bounded by [`BUFFERS`] chunks and one for comparing.

mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use self::writer::{CopyWriter, FromReader};
use super::aligned::AlignedBytes;
use super::ends::{CopyPiece, CopySource, CopyTarget};
use super::fault::CopyError;

/// Chunks between the two threads, at most.
const BUFFERS: usize = 4;
/// How long the writer waits for the reader before the writer checks for a request to stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How often and how long `copy` waits for the end of the reader, so that the reader has closed the source. No longer, because the
/// reader may hang in a read of a pipe that nobody feeds.
const READER_END_CHECK_INTERVAL: Duration = Duration::from_millis(2);
const READER_END_CHECKS_MAX: u32 = 500;

/// The content of a target before the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Nothing but zeroes: zeroes are not written.
    Zeroes,
    /// Anything: blocks are read first, and equal blocks are not written.
    Something,
    /// The target is a stream: everything is written, in order.
    Stream,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CopyOptions {
    /// Length of source and target.
    pub length_bytes: u64,
    /// Bytes of one read, a multiple of [`BLOCK_BYTES`](super::ends::BLOCK_BYTES).
    pub chunk_bytes: usize,
    pub before: Before,
}

/// The work of a copy. The four parts add up to the length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    pub copied_bytes: u64,
    /// Zeroes left out, because the target read as zeroes.
    pub zero_bytes: u64,
    /// Bytes other than zeroes left out, because the target held equal bytes.
    pub equal_bytes: u64,
    /// Bytes of the target turned into zeroes.
    pub zeroed_bytes: u64,
}

/// The progress of a copy, and the request to stop.
#[derive(Debug, Default)]
pub(super) struct CopyProgress {
    done_bytes: AtomicU64,
    stop: AtomicBool,
}

impl CopyProgress {
    /// Bytes from the start that are copied or left out.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// Asks the copy to stop soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Copies `source` to `target` and syncs the target.
pub(super) fn copy(
    source: Box<dyn CopySource>,
    target: &mut dyn CopyTarget,
    options: CopyOptions,
    progress: &Arc<CopyProgress>,
) -> Result<Report, CopyError> {
    let (full_tx, full) = sync_channel(BUFFERS);
    let (free, free_rx) = channel();
    for _ in 0..BUFFERS {
        // The receiver lives in this function, so sending works.
        let _ = free.send(AlignedBytes::new(options.chunk_bytes));
    }
    let reader = thread::Builder::new()
        .name("copy-read".into())
        .spawn(move || read(source, options, &free_rx, &full_tx))
        .map_err(CopyError::Thread)?;
    let mut writer = CopyWriter::new(target, options);
    let copied = writer.run(&full, &free, progress);
    // The reader ends when the channels close.
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
fn read(
    mut source: Box<dyn CopySource>,
    options: CopyOptions,
    free: &Receiver<AlignedBytes>,
    full: &SyncSender<FromReader>,
) {
    let mut offset = 0;
    let mut spare = None;
    while offset < options.length_bytes {
        // When the writer is gone, the writer's error says why.
        let Some(mut buffer) = spare.take().or_else(|| free.recv().ok()) else { return };
        let rest_bytes = options.length_bytes - offset;
        let bytes = usize::try_from(rest_bytes).unwrap_or(usize::MAX).min(options.chunk_bytes);
        let message = match source.next(offset, &mut buffer.bytes()[..bytes]) {
            Ok(CopyPiece::Zeroes(count)) => {
                let start = offset;
                offset += count.min(rest_bytes);
                spare = Some(buffer);
                FromReader::Zeroes(start..offset)
            }
            Ok(CopyPiece::Data(count)) => {
                let start = offset;
                offset += count as u64;
                FromReader::Data { offset: start, bytes: count, buffer }
            }
            Err(error) => FromReader::Failed(error),
        };
        let is_last = matches!(message, FromReader::Failed(_));
        if full.send(message).is_err() || is_last {
            return;
        }
    }
    let last = source.finish().map_or_else(FromReader::Failed, |()| FromReader::End);
    let _ = full.send(last);
}
