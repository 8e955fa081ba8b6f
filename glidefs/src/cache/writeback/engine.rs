//! The engine that carries cuts to the store.
//!
//! Owns when each volume's next cut is made, and the tasks that carry cuts. Does not own the order of the looks at volumes (`dirty`).
//! Invariants: at most one cut of a volume is carried at a time; a cut that failed to get to the store is tried again, the same cut,
//! until the store has the cut; content lost on this host keeps no other content from the store; nothing here runs on a worker; a volume
//! that is held back is written back only when asked for. A step looks at volumes with news and at those which are due, however many have
//! data to write back. While no volume has such data, the engine only waits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::carry::{Carried, Permits, carry};
use super::dirty::Dirty;
use super::due::{Due, Watch};
use super::merging::Merging;
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::cache::volume::cuts::CutState;
use crate::cache::volume::durability::Triggers;
use crate::cache::volume::queue::WritebackQueue;
use crate::tasks::for_export;
use crate::units::{ExportId, Seq};

/// How long the engine waits at most, while a volume has data to write back, before the engine asks whether the cache is full.
const TICK: Duration = Duration::from_millis(50);

/// Carries cuts to the store until the daemon stops. One for each cache.
#[derive(Debug)]
pub struct Writeback {
    shared: Arc<Shared>,
    queue: Arc<WritebackQueue>,
    triggers: Triggers,
}

/// The tasks that carry cuts.
type Uploads = JoinSet<(ExportId, Carried)>;

impl Writeback {
    pub(in crate::cache) fn new(shared: Arc<Shared>, queue: Arc<WritebackQueue>, triggers: Triggers) -> Self {
        Self { shared, queue, triggers }
    }

    /// Works until `stop` is true. Cuts under way are dropped then; the next daemon makes new ones.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let (mut dirty, mut uploads) = (Dirty::default(), Uploads::new());
        let mut merging = Merging::new(Arc::clone(&self.shared));
        let permits = Arc::<Permits>::default();
        loop {
            let due = dirty.next_due().map(|due| due.saturating_sub(self.shared.clock.now()).min(TICK));
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = self.queue.changed() => {}
                () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {}
                // Panics abort the process, and nobody aborts these tasks.
                Some(Ok((id, carried))) = uploads.join_next() => {
                    if let Some(volume) = self.ended(&mut dirty, id, carried) {
                        merging.add(volume);
                    }
                }
                Some(()) = merging.ended() => {}
            }
            let crowded = self.queue.take_crowded().into_iter().filter_map(|id| self.shared.find_volume(id));
            for volume in crowded.filter(|volume| !volume.is_held_back()) {
                merging.add(volume);
            }
            let now = self.shared.clock.now();
            for (id, asked) in self.queue.take() {
                if let Some(volume) = self.shared.find_volume(id) {
                    dirty.has_news(volume, asked, now);
                }
            }
            let full = self.shared.pressure.wants_writeback();
            for id in dirty.take_due(now, full) {
                self.look(&mut dirty, id, (now, full), &permits, &mut uploads);
            }
        }
    }

    /// Looks at a volume without a cut on the way. Either a cut is on the way afterwards, or the volume has a time for the next look,
    /// or the volume has nothing to write back.
    fn look(
        &self,
        dirty: &mut Dirty,
        id: ExportId,
        (now, full): (Duration, bool),
        permits: &Arc<Permits>,
        uploads: &mut Uploads,
    ) {
        let Some(watched) = dirty.get_mut(id) else { return };
        let volume = Arc::clone(&watched.volume);
        // What the operator waits for is tried all the same.
        if volume.is_held_back() && watched.asked.is_none_or(|seq| seq == Seq(0)) {
            return dirty.remove(id);
        }
        let figures = volume.figures();
        let triggers = volume.triggers(&self.triggers);
        // The cut before may have had everything that somebody waits for.
        let asked = watched.asked.take().is_some_and(|seq| seq > figures.stored) || volume.has_news();
        let due = watched.watch.look(now, &figures, &triggers, asked || full);
        match due {
            Due::Later => {}
            Due::AtFlush => volume.cut_at_flush(),
            Due::Now => volume.cut_now(),
        }
        if volume.cut_state() != CutState::None || asked {
            watched.busy = true;
            let (shared, permits) = (Arc::clone(&self.shared), Arc::clone(permits));
            uploads.spawn(for_export(id, async move { (id, carry(&shared, &volume, &permits).await) }));
        } else if volume.needs_writeback() {
            let is_large = due == Due::Later && volume.tell_when_dirty(triggers.size_bytes);
            let next = if is_large { now } else { watched.watch.next(now, &triggers) };
            dirty.set_due(id, next);
        } else {
            dirty.remove(id);
        }
    }

    /// Takes the result of a cut; returns the volume when the volume has packs to merge.
    fn ended(&self, dirty: &mut Dirty, id: ExportId, carried: Carried) -> Option<Arc<Volume>> {
        if carried == Carried::Lost {
            dirty.remove(id);
            return None;
        }
        let now = self.shared.clock.now();
        let watched = dirty.get_mut(id)?;
        watched.busy = false;
        watched.watch = Watch::new(now);
        let volume = Arc::clone(&watched.volume);
        dirty.set_due(id, Duration::ZERO);
        (carried == Carried::Done { compact: true }).then_some(volume)
    }
}
