//! Commands: entries made by the owner of a device queue, of which the ring knows the token only.
//!
//! Owns the memory of commands which point to memory of the ring's own, and the number of commands for whose completion nobody
//! waits. Does not own the meaning of a command. Invariants: a command's memory is in the table from before the push until the
//! completion; a *prompt* command completes within the call that submits the command, so its completion is no reason to end a wait.

use std::io;

use io_uring::{cqueue, squeue};

use super::deliveries::{Deliveries, GROUP};
use super::{Ring, Seen};
use crate::worker::ring::under_way::{Event, Outcome, WITH_MEMORY};

/// A command under way, and the memory to which the command's entry points.
pub(super) struct WithMemory {
    token: u64,
    memory: Vec<u64>,
    is_prompt: bool,
}

impl<C> Ring<C> {
    /// Queues a ready-made `entry`, which may point to `memory`. The completion comes as [`Outcome::Returned`], with `token` and the
    /// memory. With `is_prompt` the completion does not end a wait.
    ///
    /// # Errors
    /// `InvalidInput` for a token of 2^62 or above; any error of a submit when the queue was full.
    ///
    /// # Safety
    /// The entry points to nothing but the elements of `memory`, and not beyond.
    pub unsafe fn command_with(
        &mut self,
        entry: squeue::Entry,
        token: u64,
        memory: Vec<u64>,
        is_prompt: bool,
    ) -> io::Result<()> {
        if token >= WITH_MEMORY {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The elements stay in place when the vector is moved into the table.
        let key = self.commands.insert(WithMemory { token, memory, is_prompt });
        self.prompt += usize::from(is_prompt);
        let pushed = self.push(&entry.user_data(WITH_MEMORY | key as u64));
        if pushed.is_err() {
            self.forget_command(key);
        }
        pushed
    }

    /// The group of buffers into which a command for this ring delivers values: 16-bit numbers, each of which comes as
    /// [`Outcome::Value`]. All commands of a ring share the group.
    pub fn delivery_group(&mut self) -> io::Result<u16> {
        if self.deliveries.is_none() {
            self.deliveries = Some(Deliveries::new(&self.ring.submitter())?);
        }
        Ok(GROUP)
    }

    /// The meaning of a command's completion.
    pub(super) fn command_seen(&mut self, seen: Seen, into: &mut Vec<Event<C>>) {
        let Seen { user_data, result, flags } = seen;
        if user_data >= WITH_MEMORY {
            let key = usize::try_from(user_data & !WITH_MEMORY).unwrap_or(usize::MAX);
            let Some(command) = self.forget_command(key) else {
                tracing::error!(user_data, result, "the ring completed a command that is not under way");
                return;
            };
            let outcome = Outcome::Returned(result, command.memory);
            into.push(Event::Command { token: command.token, outcome });
            return;
        }
        let token = user_data;
        if let Some((deliveries, buffer)) = self.deliveries.as_mut().zip(cqueue::buffer_select(flags)) {
            deliveries.take(buffer, result, |value| {
                into.push(Event::Command { token, outcome: Outcome::Value(value) });
            });
        }
        if !cqueue::more(flags) {
            into.push(Event::Command { token, outcome: Outcome::Ended(result) });
        }
    }

    fn forget_command(&mut self, key: usize) -> Option<WithMemory> {
        let command = self.commands.try_remove(key)?;
        self.prompt -= usize::from(command.is_prompt);
        Some(command)
    }
}
