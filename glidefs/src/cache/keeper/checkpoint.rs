//! When a checkpoint of the index is written: as the log grows, and at an orderly stop.
//!
//! Owns the times. Does not own the steps of a checkpoint (`work`). Invariant: an orderly stop spends no more than [`STOP_TIME`], and
//! one step more, on a checkpoint.

mod work;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use self::work::{Halt, Progress, Work};
use crate::cache::log::life::State;
use crate::cache::shared::Shared;
use crate::cache::volume::hold::EXTENTS_MAX;

/// Part of the cache to be sealed since the last checkpoint before the next one.
const PART: u32 = 16;
/// Longest time that an orderly stop spends on the last checkpoint: devices wait for the next daemon.
const STOP_TIME: Duration = Duration::from_secs(1);
/// Pause between two looks for the end of another holder's sync, at a stop.
const SYNC_PAUSE: Duration = Duration::from_millis(1);
/// Pause after a checkpoint that was given up.
const PAUSE: Duration = Duration::from_secs(10);

/// How much of a checkpoint is made in one step.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointPace {
    /// Most segments looked at while the covered ones are chosen.
    pub segments: usize,
    /// Slices of volumes gathered, with `extents` extents each at most.
    pub slices: usize,
    /// Extents looked at in a slice, under one hold of a volume's lock.
    pub extents: usize,
}

impl Default for CheckpointPace {
    fn default() -> Self {
        Self { segments: 1024, slices: 8, extents: EXTENTS_MAX }
    }
}

#[derive(Debug, Default)]
pub(super) struct Checkpointer {
    /// Segments sealed since the last checkpoint was begun.
    pub sealed: u32,
    pub pace: CheckpointPace,
    work: Option<Box<Work>>,
    /// The part of `sealed` that the checkpoint under way was begun for.
    taken: u32,
    /// No checkpoint is begun before this time, except at a stop.
    pub again_at: Duration,
    /// The disk did not take the last checkpoint.
    failing: bool,
}

impl Checkpointer {
    /// A writer of checkpoints for a cache with `segments` segments with records, all of which are in no checkpoint.
    pub fn new(segments: u32) -> Self {
        Self { sealed: segments, ..Self::default() }
    }

    /// Does a part of the checkpoint that is due, and returns whether there was any.
    pub fn step(&mut self, shared: &Shared) -> bool {
        let is_due =
            || self.sealed >= (shared.table.limit() / PART).max(1) && shared.clock.now() >= self.again_at;
        (self.work.is_some() || is_due()) && self.advance(shared) == Progress::Made
    }

    /// Gives the checkpoint under way up: the disk gave no segment, and the file may take the room.
    pub fn give_way(&mut self, shared: &Shared) {
        if self.work.take().is_some() {
            self.give_up(&Halt::Disk(io::ErrorKind::StorageFull.into()), shared);
        }
    }

    /// Takes the checkpoint away, and gives the one under way up, before a file with a segment listed is put out of use: a start takes such
    /// a segment for lost. `false` when the disk does not take the checkpoint away.
    pub fn withdraw(&mut self, shared: &Shared) -> bool {
        if self.work.take().is_some() {
            self.give_up(&Halt::Loss, shared);
        }
        // All of these are in no checkpoint now.
        self.sealed = self.sealed.max(shared.table.count(State::Sealed));
        match shared.disk.remove_checkpoint() {
            Ok(()) => true,
            Err(error) => {
                self.give_up(&Halt::Disk(error), shared);
                false
            }
        }
    }

    /// Completes the checkpoint under way, or else one of everything sealed if anything was sealed since the last one. For an orderly
    /// stop.
    pub fn complete(&mut self, shared: &Shared) {
        if self.work.is_none() && self.sealed == 0 {
            return;
        }
        let deadline = shared.clock.now().saturating_add(STOP_TIME);
        loop {
            match self.advance(shared) {
                Progress::Done => return,
                Progress::Made => {}
                // Nobody else but the clock tells a stop that the sync goes on for ever.
                Progress::Waits => shared.clock.sleep(SYNC_PAUSE),
            }
            if shared.clock.now() >= deadline {
                return;
            }
        }
    }

    /// Whether a checkpoint is under way.
    #[cfg(test)]
    pub fn is_busy(&self) -> bool {
        self.work.is_some()
    }

    fn advance(&mut self, shared: &Shared) -> Progress {
        let advanced = match self.work.take() {
            None => {
                self.taken = std::mem::take(&mut self.sealed);
                Work::begin(shared).map(|work| (Some(work), Progress::Made))
            }
            Some(mut work) => work.advance(shared, self.pace).and_then(|progress| match progress {
                Progress::Done => (*work).finish().map(|()| (None, Progress::Done)),
                progress => Ok((Some(work), progress)),
            }),
        };
        match advanced {
            Ok((work, progress)) => {
                if work.is_none() {
                    self.failing = false;
                    shared.figures.checkpoints_written.fetch_add(1, Ordering::Relaxed);
                }
                self.work = work;
                progress
            }
            Err(halt) => {
                self.give_up(&halt, shared);
                Progress::Done
            }
        }
    }

    fn give_up(&mut self, halt: &Halt, shared: &Shared) {
        self.sealed = self.sealed.saturating_add(std::mem::take(&mut self.taken));
        self.again_at = shared.clock.now().saturating_add(PAUSE);
        let Halt::Disk(error) = halt else { return };
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "writing a checkpoint of the index failed: the next start takes longer"
            );
        }
    }
}
