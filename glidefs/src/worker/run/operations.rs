//! Operations on the worker's ring: the inbox's wake-ups, and the reads, appends and syncs for which the shard asks.
//!
//! Owns the purpose of each operation under way. Does not own how operations reach the kernel (`ring`).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::Loop;
use crate::cache::Want;
use crate::worker::inbox::Message;
use crate::worker::ring::{Completion, Kind, Memory, Op, Target};

/// Bytes of an eventfd's counter.
const INBOX_COUNT_BYTES: usize = 8;

/// Why the worker started an operation. The numbers are those of the shard's [`Want`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To notice that the inbox's eventfd was written.
    Inbox,
    Append(u32),
    Sync(u32),
    Read(u32),
}

impl Loop {
    /// Has the ring read the inbox's eventfd. A failure shows in the completion.
    pub(super) fn arm_inbox(&mut self) {
        self.await_inbox(vec![0; INBOX_COUNT_BYTES]);
    }

    fn await_inbox(&mut self, count: Vec<u8>) {
        let inbox = Arc::clone(&self.inbox) as Arc<dyn AsFd>;
        self.ring.start(Op::new(Kind::Read, Target::Open(inbox), 0, Memory::Heap(count)), Purpose::Inbox);
    }

    /// Hands the completion of an operation to whoever started the operation.
    pub(super) fn complete(&mut self, completion: Completion<Purpose>) -> io::Result<()> {
        let Completion { context, result, memory } = completion;
        match (context, memory) {
            (Purpose::Inbox, Memory::Heap(count)) => {
                result?;
                self.read_messages()?;
                self.await_inbox(count);
                // The cache wakes the worker through the inbox, and in no other way, when there may be log space.
                self.ask_for_log_space()?;
            }
            (Purpose::Append(op), Memory::Slots(parts)) => {
                let wanted = parts.iter().map(|part| part.len()).sum();
                let done = all_of(wanted, result, io::ErrorKind::WriteZero);
                self.shard.append_done(op, done, parts);
            }
            (Purpose::Sync(op), _) => self.shard.sync_done(op, result.map(drop)),
            (Purpose::Read(op), Memory::Heap(buffer)) => {
                let done = all_of(buffer.len(), result, io::ErrorKind::UnexpectedEof);
                self.shard.read_done(op, done, buffer);
            }
            (purpose, _) => {
                return Err(io::Error::other(format!("{purpose:?} came back without its buffer")));
            }
        }
        Ok(())
    }

    fn read_messages(&mut self) -> io::Result<()> {
        while let Some(message) = self.inbox.take() {
            match message {
                Message::Attach { driver, armed } => {
                    drop(armed.send(self.queues.attach(&mut self.ring, driver)));
                }
                Message::EndWaits(told) => {
                    self.end_waits()?;
                    // The sender may have stopped waiting for the answer.
                    let _ = told.send(());
                }
                Message::Ping(pong) => drop(pong.send(())),
            }
        }
        Ok(())
    }

    /// Ends the turn of the shard. The record with a divided WRITE is written piece by piece, until completions have come: requests of
    /// other exports may be among these.
    pub(super) fn append(&mut self) -> io::Result<()> {
        if self.shard.has_rest() {
            self.answer_first()?;
        }
        self.shard.turn();
        self.shard.write_in_pieces(false);
        while self.shard.has_rest() && !self.ring.has_news() {
            self.shard.turn();
        }
        Ok(())
    }

    /// Starts everything for which the shard asked in this turn.
    pub(super) fn submit_wants(&mut self) {
        for want in self.shard.wants() {
            let (op, purpose) = match want {
                Want::Append { op, file, offset, parts } => {
                    let kind = if self.is_fixed { Kind::WritevFixed } else { Kind::Writev };
                    let target = Target::SegmentAppend(file);
                    (Op::new(kind, target, offset, Memory::Slots(parts)), Purpose::Append(op))
                }
                Want::Sync { op, file } => {
                    (Op::new(Kind::SyncData, Target::Segment(file), 0, Memory::None), Purpose::Sync(op))
                }
                Want::Read { op, file, offset, buffer } => {
                    let memory = Memory::Heap(buffer);
                    (Op::new(Kind::Read, Target::Segment(file), offset, memory), Purpose::Read(op))
                }
            };
            self.ring.start(op, purpose);
        }
    }
}

/// Success only for a transfer of all `wanted` bytes; a shorter one is an error of this kind.
fn all_of(wanted: usize, result: io::Result<usize>, short: io::ErrorKind) -> io::Result<()> {
    match result? {
        bytes if bytes == wanted => Ok(()),
        _ => Err(short.into()),
    }
}
