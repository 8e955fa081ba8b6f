//! Making indexes smaller that use most of their budget: what the store has is forgotten, and the rest written back.
//!
//! Does not own the budget (`volume/budget`). Without a store only the client can make an index smaller. Invariant: as in cleaning,
//! the catalog notes that nothing as old may be taken from the log any more before anything is forgotten.

use std::sync::Arc;
use std::time::Duration;

use super::PATIENCE;
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::units::Seq;

/// The state between two steps.
#[derive(Debug, Default)]
pub(super) struct Relief {
    /// Volumes to make smaller.
    waiting: Vec<Arc<Volume>>,
    going: Option<Eviction>,
    /// No look at all volumes before this time.
    next_look: Duration,
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
    /// Forgets about `extents` extents, and returns whether there is more to do. Blocks on the catalog.
    pub fn step(&mut self, shared: &Shared, extents: usize) -> bool {
        if self.going.is_none() && self.waiting.is_empty() {
            self.look(shared);
        }
        let Some(mut going) = self.going.take().or_else(|| self.begin(shared)) else {
            return !self.waiting.is_empty();
        };
        let target = shared.budget.target(going.volume.claim());
        let next = target.and_then(|target| {
            going.volume.evict_from(&shared.table, going.mark, (going.from, target), extents)
        });
        if let Some(next) = next {
            going.from = next;
            self.going = Some(going);
        }
        true
    }

    /// Finds the volumes to make smaller. Their data not in the store is written back.
    fn look(&mut self, shared: &Shared) {
        let now = shared.clock.now();
        if now < self.next_look || !shared.budget.take_asked() {
            return;
        }
        self.next_look = now.saturating_add(PATIENCE);
        self.waiting = shared.all_volumes();
        self.waiting
            .retain(|volume| volume.store_link().is_some() && shared.budget.target(volume.claim()).is_some());
        for volume in &self.waiting {
            volume.ask_writeback();
        }
    }

    fn begin(&mut self, shared: &Shared) -> Option<Eviction> {
        let volume = self.waiting.pop()?;
        let figures = volume.figures();
        if figures.clean_extents == 0 {
            return None;
        }
        if let Err(error) = shared.catalog.evicted(&[(volume.id(), figures.stored)]) {
            tracing::error!(
                export = volume.id().0,
                error = &error as &dyn std::error::Error,
                "noting in the catalog which data leaves the cache failed"
            );
            return None;
        }
        Some(Eviction { volume, mark: figures.stored, from: 0 })
    }
}
