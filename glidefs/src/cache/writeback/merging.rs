//! Whose packs are merged next.
//!
//! Owns the turns: a step each, on a few places. Does not own which packs a step merges (`store::volume`). Invariant: a volume is at
//! its step once at most, and one that needs many steps keeps no other volume waiting for more than one of them.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::steps::{tell_if_stopped, write_down};
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::store::volume::{Resume, VolumeError};
use crate::units::{ExportId, Seq};

/// Steps at the same time, at most.
const STEPS_MAX: usize = 2;
/// Pause before a volume whose writes are slowed is tried again after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(30);

/// The volumes that have packs to merge.
pub(super) struct Merging {
    shared: Arc<Shared>,
    turns: Turns<Arc<Volume>>,
    steps: JoinSet<(Arc<Volume>, Stepped)>,
    pauses: JoinSet<Arc<Volume>>,
}

/// Who is next: `T` each, for an export.
#[derive(Debug)]
struct Turns<T> {
    queue: VecDeque<T>,
    /// Those in the queue, and those that had a turn and may have another.
    known: HashSet<ExportId>,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stepped {
    /// Another one is due.
    More,
    Done,
    Failed,
}

impl Merging {
    pub fn new(shared: Arc<Shared>) -> Self {
        let turns = Turns { queue: VecDeque::new(), known: HashSet::new() };
        Self { shared, turns, steps: JoinSet::new(), pauses: JoinSet::new() }
    }

    /// Gives `volume` turns until nothing is due.
    pub fn add(&mut self, volume: Arc<Volume>) {
        if self.turns.add(volume.id(), volume) {
            self.begin();
        }
    }

    /// Returns when a step or a pause has ended; `None` when there is neither.
    pub async fn ended(&mut self) -> Option<()> {
        // Panics abort the process, and nobody aborts these tasks.
        tokio::select! {
            Some(Ok((volume, stepped))) = self.steps.join_next() => self.stepped(volume, stepped),
            Some(Ok(volume)) = self.pauses.join_next() => self.turns.again(volume),
            else => return None,
        }
        self.begin();
        Some(())
    }

    fn stepped(&mut self, volume: Arc<Volume>, stepped: Stepped) {
        match stepped {
            Stepped::More => self.turns.again(volume),
            // No flush may come before some packs were merged.
            Stepped::Failed if volume.store_link().is_some_and(|link| link.crowding().is_slow()) => {
                self.pauses.spawn(async move {
                    tokio::time::sleep(RETRY_PAUSE).await;
                    volume
                });
            }
            Stepped::Failed | Stepped::Done => self.turns.end(volume.id()),
        }
    }

    fn begin(&mut self) {
        while self.steps.len() < STEPS_MAX
            && let Some(volume) = self.turns.next()
        {
            let shared = Arc::clone(&self.shared);
            self.steps.spawn(async move {
                let stepped = step(&shared, &volume).await;
                (volume, stepped)
            });
        }
    }
}

impl<T> Turns<T> {
    /// Gives `id` turns; `false` when it has them already.
    fn add(&mut self, id: ExportId, item: T) -> bool {
        let is_new = self.known.insert(id);
        if is_new {
            self.queue.push_back(item);
        }
        is_new
    }

    fn next(&mut self) -> Option<T> {
        self.queue.pop_front()
    }

    /// Gives one that had its turn another, behind all others.
    fn again(&mut self, item: T) {
        self.queue.push_back(item);
    }

    fn end(&mut self, id: ExportId) {
        self.known.remove(&id);
    }
}

/// Merges some packs of `volume`. Nothing depends on it: after a failure, the next flush has it tried again.
async fn step(shared: &Arc<Shared>, volume: &Arc<Volume>) -> Stepped {
    let Some(link) = volume.store_link().filter(|link| !volume.is_removed() && !link.is_fenced()) else {
        return Stepped::Done;
    };
    let compacted = link.remote().compact().await;
    link.crowding().set_failed(compacted.is_err());
    match compacted {
        Ok(Some(compacted)) => {
            link.crowding().set(compacted.crowd);
            // The store may have a cut that is still to be noted here, with all that must be noted of it.
            let resume =
                Resume { cut: compacted.resume.cut.min(volume.figures().stored), ..compacted.resume };
            let written = write_down(shared, volume, resume, Seq(0)).await;
            match (written.is_err(), compacted.compaction_due) {
                (true, _) => Stepped::Failed,
                (false, true) => Stepped::More,
                (false, false) => Stepped::Done,
            }
        }
        Ok(None) => {
            // Writes that wait for a merge make no commit, and only a commit would correct an older figure. The manifest is in
            // memory, as the step has just looked at it, or is fetched once more.
            match link.remote().view().await {
                Ok(view) => {
                    link.crowding().set(view.crowd());
                    tell_if_stopped(volume, view.crowd());
                    Stepped::Done
                }
                Err(error) => {
                    failed(shared, volume, &error);
                    Stepped::Failed
                }
            }
        }
        Err(error) => {
            failed(shared, volume, &error);
            Stepped::Failed
        }
    }
}

fn failed(shared: &Shared, volume: &Volume, error: &VolumeError) {
    if let Some(link) = volume.store_link().filter(|_| error.is_fatal()) {
        link.fence();
        shared.writeback_ended();
    }
    // Where the store does not let this host, that has been logged for all volumes.
    if error.is_refused() {
        return;
    }
    if let Some(suppressed) = volume.bad_writebacks().pass() {
        let error = error as &dyn std::error::Error;
        tracing::warn!(export = volume.id().0, error, suppressed, "compaction failed; it is tried again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_take_turns_however_many_steps_one_of_them_needs() {
        let mut turns = Turns { queue: VecDeque::new(), known: HashSet::new() };
        for id in 0..5 {
            assert!(turns.add(ExportId(id), id));
        }
        assert!(!turns.add(ExportId(3), 3), "one turn at a time");
        // Two at once; the first volumes need steps without end, the others one.
        let (mut working, mut began) = (VecDeque::new(), Vec::new());
        for _ in 0..8 {
            while working.len() < STEPS_MAX
                && let Some(id) = turns.next()
            {
                began.push(id);
                working.push_back(id);
            }
            match working.pop_front() {
                Some(id) if id < 2 => turns.again(id),
                Some(id) => turns.end(ExportId(id)),
                None => unreachable!("two need steps without end"),
            }
        }
        assert_eq!(began, [0, 1, 2, 3, 4, 0, 1, 0, 1]);
        assert!(turns.add(ExportId(4), 4), "again, when it is due again");
    }
}
