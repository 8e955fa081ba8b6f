//! The engine that carries cuts to the store.
//!
//! Owns when each volume's next cut is made and the steps of a cut under way. Invariants: one cut a volume at a time; a cut
//! that could not be carried is tried again, the same cut, until the store has it; content that was lost here keeps nothing
//! else from the store; nothing here runs on a worker. A host whose volumes have nothing to flush does nothing at all.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::carry::{Carried, Permits, carry};
use super::due::{Due, Watch};
use super::merging::Merging;
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::cache::volume::cuts::CutState;
use crate::cache::volume::durability::Triggers;
use crate::cache::volume::queue::WritebackQueue;
use crate::units::ExportId;

/// How often volumes that have something to flush are looked at.
const TICK: Duration = Duration::from_millis(50);

/// Carries cuts to the store until it is told to stop. One a cache.
#[derive(Debug)]
pub struct Writeback {
    shared: Arc<Shared>,
    queue: Arc<WritebackQueue>,
    triggers: Triggers,
}

/// A volume that has something to flush.
#[derive(Debug)]
struct Watched {
    volume: Arc<Volume>,
    watch: Watch,
    /// Somebody waits for all that was written before.
    asked: bool,
    /// A cut is on its way.
    busy: bool,
}

impl Writeback {
    pub(in crate::cache) fn new(shared: Arc<Shared>, queue: Arc<WritebackQueue>, triggers: Triggers) -> Self {
        Self { shared, queue, triggers }
    }

    /// Works until `stop` is true. Cuts under way are dropped then; the next daemon makes them again.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut watched: HashMap<ExportId, Watched> = HashMap::new();
        let mut uploads = JoinSet::new();
        let mut merging = Merging::new(Arc::clone(&self.shared));
        let permits = Arc::<Permits>::default();
        loop {
            let idle = watched.values().all(|watched| watched.busy);
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = self.queue.changed() => {}
                () = tokio::time::sleep(TICK), if !idle => {}
                Some(ended) = uploads.join_next() => {
                    if let Some(volume) = self.ended(&mut watched, ended) {
                        merging.add(volume);
                    }
                }
                Some(()) = merging.ended() => {}
            }
            for volume in self.queue.take_crowded().into_iter().filter_map(|id| self.shared.find_volume(id)) {
                merging.add(volume);
            }
            let now = self.shared.clock.now();
            for (id, asked) in self.queue.take() {
                let Some(volume) = self.shared.find_volume(id) else { continue };
                let entry = watched.entry(id).or_insert_with(|| Watched {
                    volume,
                    watch: Watch::new(now),
                    asked: false,
                    busy: false,
                });
                entry.asked |= asked;
            }
            let full = self.shared.pressure.wants_writeback();
            for (id, watched) in watched.iter_mut().filter(|(_, watched)| !watched.busy) {
                let figures = watched.volume.figures();
                let triggers = watched.volume.triggers(&self.triggers);
                match watched.watch.look(now, &figures, &triggers, watched.asked || full) {
                    Due::Later => {}
                    Due::AtFlush => watched.volume.cut_at_flush(),
                    Due::Now => watched.volume.cut_now(),
                }
                if watched.volume.cut_state() != CutState::None || watched.asked {
                    watched.busy = true;
                    watched.asked = false;
                    let (shared, volume) = (Arc::clone(&self.shared), Arc::clone(&watched.volume));
                    let (id, permits) = (*id, Arc::clone(&permits));
                    uploads.spawn(async move { (id, carry(&shared, &volume, &permits).await) });
                }
            }
            watched.retain(|_, watched| watched.busy || watched.volume.needs_writeback());
        }
    }

    /// Takes note of a cut that is no longer under way; returns a volume that is to be compacted.
    fn ended(
        &self,
        watched: &mut HashMap<ExportId, Watched>,
        ended: Result<(ExportId, Carried), tokio::task::JoinError>,
    ) -> Option<Arc<Volume>> {
        let (id, carried) = match ended {
            Ok(ended) => ended,
            // Panics abort the process, and nobody aborts these tasks.
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a flush ended without a result");
                return None;
            }
        };
        if matches!(carried, Carried::Fenced | Carried::Removed) {
            watched.remove(&id);
            return None;
        }
        let watched = watched.get_mut(&id)?;
        watched.busy = false;
        watched.watch = Watch::new(self.shared.clock.now());
        (carried == Carried::Done { compact: true }).then(|| Arc::clone(&watched.volume))
    }
}
