//! Making room for volumes which use more than half of their share of the log or of memory for indexes: the data is written back, and
//! of a large index the clean extents are forgotten.
//!
//! Does not own the budgets (`volume/budget`), or writeback. Without a store only the client can make room. Invariant: as in cleaning,
//! before anything is forgotten the catalog notes that nothing as old may be taken from the log any more.

use std::sync::Arc;
use std::time::Duration;

use super::PATIENCE;
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::cache::volume::budget::Resource;
use crate::observe::repeat::Repeat;
use crate::units::Seq;

/// No look for so long after the catalog failed to take the notes.
const FAILED_PAUSE: Duration = Duration::from_secs(1);

/// The state between two steps.
#[derive(Debug, Default)]
pub(super) struct Relief {
    /// The last one is under way.
    evictions: Vec<Eviction>,
    /// No look at all volumes before this time.
    next_look: Duration,
    /// Holds back log lines about a failing catalog.
    failures: Repeat,
}

/// The eviction of one volume.
#[derive(Debug)]
struct Eviction {
    volume: Arc<Volume>,
    /// The catalog bars recovery from taking anything up to here from the log.
    mark: Seq,
    /// The sector to go on from.
    from: u64,
}

impl Relief {
    /// Forgets about `extents` clean extents, and returns whether there is more to do. Blocks on the catalog.
    pub fn step(&mut self, shared: &Shared, extents: usize) -> bool {
        if self.evictions.is_empty() {
            self.look(shared);
        }
        let Some(going) = self.evictions.last_mut() else { return false };
        let target = index_target(shared, &going.volume);
        let next = target.and_then(|target| {
            going.volume.evict_from(&shared.table, going.mark, (going.from, target), extents)
        });
        match next {
            Some(next) => going.from = next,
            None => drop(self.evictions.pop()),
        }
        true
    }

    /// Finds the volumes above half of a share, asks for the writeback of each, and begins the evictions in the large indexes.
    fn look(&mut self, shared: &Shared) {
        let now = shared.clock.now();
        if now < self.next_look || !shared.budget.take_asked() {
            return;
        }
        self.next_look = now.saturating_add(PATIENCE);
        let mut volumes = shared.all_volumes();
        // Writeback of a lost volume never goes on.
        volumes.retain(|volume| {
            let may_shrink = volume.store_link().is_some() && volume.lost().is_none();
            let log = || shared.budget.log.target(volume.claim(Resource::Log));
            may_shrink && (index_target(shared, volume).is_some() || log().is_some())
        });
        for volume in &volumes {
            volume.ask_writeback();
        }
        volumes.retain(|volume| index_target(shared, volume).is_some());
        let evictions = volumes.into_iter().filter_map(|volume| {
            let figures = volume.figures();
            (figures.clean_extents > 0).then_some(Eviction { volume, mark: figures.stored, from: 0 })
        });
        let evictions: Vec<_> = evictions.collect();
        let marks: Vec<_> = evictions.iter().map(|eviction| (eviction.volume.id(), eviction.mark)).collect();
        if marks.is_empty() {
            return;
        }
        match shared.catalog.evicted(&marks) {
            Ok(()) => self.evictions = evictions,
            Err(error) => {
                self.next_look = now.saturating_add(FAILED_PAUSE);
                if let Some(suppressed) = self.failures.pass() {
                    let (exports, error) = (marks.len(), &error as &dyn std::error::Error);
                    tracing::error!(
                        exports,
                        error,
                        suppressed,
                        "noting in the catalog which data leaves the cache failed"
                    );
                }
            }
        }
    }
}

/// The size to which the index of `volume` should shrink; `None` where the index may stay.
fn index_target(shared: &Shared, volume: &Volume) -> Option<u64> {
    shared.budget.index.target(volume.claim(Resource::Index))
}
