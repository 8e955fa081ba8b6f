//! The end of waits in a worker's loop, for exports whose device is being removed.
//!
//! The kernel removes a device when the last of the device's requests has ended, so no request may wait for an event which may
//! never come. Owns the order in which the waiting places are emptied. Does not own the rule (`waits::stop`). Invariant: when
//! [`Loop::end_waits`] has returned, no waiting place of this worker but `ready`, which every turn takes from, has a request of such
//! an export; tasks of the executor and the shard let go of theirs in the same turn.

use std::io;

use super::Loop;
use crate::cache::{Coming, Pace};
use crate::worker::driver::Failure;
use crate::worker::requests::TagRequest;
use crate::worker::waits::ready::Stage;
use crate::worker::waits::{held, stop};

const STOPPED: Failure = Failure::Cache(stop::STOPPED);

impl Loop {
    /// Fails every waiting request of exports whose waits are ended. Requests over a limit go on instead: the limit ends with
    /// the device. They become ready: turns of bounded length take them, beside requests of other exports.
    pub(super) fn end_waits(&mut self) -> io::Result<()> {
        let held = self.held.stop();
        let in_line = self.log_line.stop(&self.queues);
        let stopped = held.len() + in_line.len();
        for request in held {
            self.refuse_write(request)?;
        }
        for request in in_line {
            self.fail_waiting(request)?;
        }
        for request in self.limited.stop() {
            self.ready.add(request, Stage::Allowed);
        }
        self.shard.end_waits();
        if stopped > 0 {
            tracing::info!(
                requests = stopped,
                "writes that waited have failed, as their device is being removed"
            );
        }
        Ok(())
    }

    /// Starts a write of an export whose waits are ended. The write fails where a write of another export would wait.
    pub(super) fn write_at_once(&mut self, mut request: TagRequest) -> io::Result<()> {
        if held::ask(self.queues.volume(request.tag), &mut request, true, Coming::default()).0 != Pace::Go {
            return self.refuse_write(request);
        }
        self.enter_log(request)
    }

    /// Fails a request which waited, or would have to wait.
    pub(super) fn fail_waiting(&mut self, request: TagRequest) -> io::Result<()> {
        self.finish(request.without_buffer(), Err(STOPPED))
    }

    /// Fails a write which `Volume::pace` has not let go on: nothing was promised for the write, so nothing is settled.
    fn refuse_write(&mut self, request: TagRequest) -> io::Result<()> {
        self.queues.refuse(&mut self.ring, request.tag, Some(&request), &STOPPED)
    }
}
