//! The order in which volumes have their packs merged.
//!
//! Owns the turns: a turn is one step of merging, and a few steps are done at the same time. Does not own the choice of packs
//! (`store::volume`). Invariant: a volume has at most one step under way, and a volume that needs many steps lets every other
//! volume wait for at most one of these steps.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::steps::{tell_if_stopped, write_down};
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::store::volume::VolumeError;
use crate::tasks;
use crate::units::{ExportId, Seq};

/// Most steps at the same time.
const STEPS_MAX: usize = 2;
/// Pause after a failed step of a volume with slowed writes, before the next try.
const RETRY_PAUSE: Duration = Duration::from_secs(30);

/// The volumes that have packs to merge.
pub(super) struct Merging {
    shared: Arc<Shared>,
    turns: Turns<Arc<Volume>>,
    steps: JoinSet<(Arc<Volume>, Stepped)>,
    pauses: JoinSet<Arc<Volume>>,
}

/// The order of turns: one `T` for each export.
#[derive(Debug)]
struct Turns<T> {
    queue: VecDeque<T>,
    /// Exports that wait for a turn, and exports with a step or a pause under way.
    known: HashSet<ExportId>,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepped {
    /// The volume needs one more step.
    More,
    Done,
    Failed,
}

impl Merging {
    pub fn new(shared: Arc<Shared>) -> Self {
        let turns = Turns { queue: VecDeque::new(), known: HashSet::new() };
        Self { shared, turns, steps: JoinSet::new(), pauses: JoinSet::new() }
    }

    /// Gives `volume` turns until no more packs are to be merged.
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
            // Slowed writes may end in no further commit, and so nobody but this pause would ask for the merge again.
            Stepped::Failed if volume.store_link().is_some_and(|link| link.crowding.is_slow()) => {
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
            self.steps.spawn(tasks::for_export(volume.id(), async move {
                let stepped = step(&shared, &volume).await;
                (volume, stepped)
            }));
        }
    }
}

impl<T> Turns<T> {
    /// Gives `id` turns; `false` when `id` has turns already.
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

    /// Gives an export another turn, behind all others.
    fn again(&mut self, item: T) {
        self.queue.push_back(item);
    }

    fn end(&mut self, id: ExportId) {
        self.known.remove(&id);
    }
}

/// Merges some packs of `volume`. Nobody waits for the result: the commit after a failure has the merge tried again.
pub(super) async fn step(shared: &Arc<Shared>, volume: &Arc<Volume>) -> Stepped {
    let Some(link) = volume.store_link().filter(|link| !volume.is_removed() && !link.is_lost()) else {
        return Stepped::Done;
    };
    let compacted = link.remote.compact().await;
    link.crowding.set_failed(compacted.is_err());
    let viewed = match compacted {
        Ok(Some(compacted)) => {
            link.crowding.set(compacted.crowd);
            let is_noted = !volume.has_noted(compacted.resume.cut)
                || write_down(shared, volume, compacted.resume, Seq(0)).await.is_ok();
            return match (is_noted, compacted.compaction_due) {
                (false, _) => Stepped::Failed,
                (true, true) => Stepped::More,
                (true, false) => Stepped::Done,
            };
        }
        // The figure of how crowded the volume is may be old, from before a rollback. While writes wait for a merge no commit is made,
        // and only a commit would correct the figure. The manifest is in memory, because the step has just read it, or is fetched once
        // more.
        Ok(None) => link.remote.view().await,
        Err(error) => Err(error),
    };
    match viewed {
        Ok(view) => {
            link.crowding.set(view.crowd());
            tell_if_stopped(volume, view.crowd());
            Stepped::Done
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
    // The store's client has logged for all volumes together that the store refuses this host, and the merge which packs it left out.
    if error.is_refused() || matches!(error, VolumeError::PacksLeftOut { .. }) {
        return;
    }
    if let Some(suppressed) = volume.bad_writebacks.pass() {
        let error = error as &dyn std::error::Error;
        tracing::warn!(export = volume.id().0, error, suppressed, "merging packs failed; trying again later");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume once kept a place for steps until no merge was due for the volume, and all other volumes waited.
    #[test]
    fn volumes_take_turns_however_many_steps_one_of_them_needs() {
        let mut turns = Turns { queue: VecDeque::new(), known: HashSet::new() };
        for id in 0..5 {
            assert!(turns.add(ExportId(id), id));
        }
        assert!(!turns.add(ExportId(3), 3), "an export has one turn at a time");
        // Two steps at once; the first two volumes need steps without end, the other volumes one step each.
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
        assert!(turns.add(ExportId(4), 4), "an export that has ended its turns may have new ones");
    }
}
