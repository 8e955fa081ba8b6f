//! The end of waits: what becomes of the requests of an export whose device is being removed.
//!
//! The kernel removes a device when the last of its requests has ended, so none may wait for something that may never come.
//! Owns which of the worker's lists are looked through. Does not own the signal (`cache::Volume::end_waits`). Invariant: when
//! [`Loop::end_waits`] has returned, no request of such an export is in a list of this worker; those in tasks of the executor
//! and in the shard end in the same turn.

use std::io;

use super::{Buffer, Failure, Fetched, InFlight, Loop, Operation};
use crate::cache::{Admission, IoError, Pace};

/// Why they fail.
const DETACHED: Failure = Failure::Cache(IoError::Detached);

impl Loop {
    /// Fails every request that waits although requests of its export may not wait any more.
    pub(super) fn end_waits(&mut self) -> io::Result<()> {
        let mut ended = 0_usize;
        for fetched in self.held.end_waits() {
            self.refuse(fetched)?;
            ended += 1;
        }
        for _ in 0..self.stalled.len() {
            let Some(fetched) = self.stalled.pop_front() else { break };
            if self.may_wait(fetched) {
                self.stalled.push_back(fetched);
            } else {
                self.fail_waiting(fetched)?;
                ended += 1;
            }
        }
        self.shard.end_waits();
        // The cache was not asked for who is first in line now.
        self.ask_again = None;
        if ended > 0 {
            tracing::info!(
                requests = ended,
                "writes that waited have failed, as their device is being removed"
            );
        }
        Ok(())
    }

    /// Starts a write that may not wait: fails it where it would have to.
    pub(super) fn write_at_once(&mut self, fetched: Fetched) -> io::Result<()> {
        let volume = self.queues[fetched.slot as usize].export.volume();
        if volume.pace(fetched.data_bytes() as u64, true) != Pace::Go {
            return self.refuse(fetched);
        }
        if !self.stalled.is_empty() {
            return self.fail_waiting(fetched);
        }
        match self.shard.admit(fetched.data_bytes()) {
            Admission::Accept(reservation) => self.reserved(fetched, reservation),
            Admission::Delay(_) | Admission::Wait | Admission::Full => self.fail_waiting(fetched),
        }
    }

    fn may_wait(&self, fetched: Fetched) -> bool {
        !self.queues[fetched.slot as usize].export.volume().are_waits_ended()
    }

    /// Fails a request that waited, or would have to.
    pub(super) fn fail_waiting(&mut self, fetched: Fetched) -> io::Result<()> {
        self.finish(InFlight { fetched, buffer: Buffer::None }, Err(DETACHED))
    }

    /// Fails a write that its export's bound on what is at risk has not let go on, so that nothing is promised for it.
    fn refuse(&mut self, Fetched { slot, tag, .. }: Fetched) -> io::Result<()> {
        self.report(slot, tag, Some(Operation::Write), &DETACHED);
        self.commit(slot, tag, Err(&DETACHED))
    }
}
