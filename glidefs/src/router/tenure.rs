//! Exports that stay this host's over an upgrade, whatever the store answers.
//!
//! Owns which exports a daemon leaves to the next program, and which of them that program serves without asking first. Does not own the
//! way of this knowledge from one program to the other (`handover`), nor the questions to the store (`confirm`). Invariants: a tenure is
//! the word of a daemon that served the export until it ended, for the start that follows at once, and no other start; a tenure of
//! another epoch than the catalog's counts for nothing; an export that is inherited is one of those that the store is asked about as
//! soon as the store answers, so a takeover by another host is noticed no later than the daemon before would have noticed it.

use super::entry::{ExportEntry, HeldExport};
use super::state::State;
use super::{ExportName, Router, Tenures};

impl ExportEntry {
    /// The epoch in which this host has the volume of an export that is served, and is not known to be another host's; `None` also
    /// for a volume that may be released, as another host may open it without a takeover, and for one whose data at risk has a bound
    /// of time, as writes would go on for that time once more while the store is away.
    fn tenure(&self) -> Option<u64> {
        if self.state() != State::Serving || self.may_be_released() {
            return None;
        }
        let volume = self.export()?.volume();
        let remote = volume.remote()?;
        let is_lost = volume.lost().is_some() || remote.loss().is_some();
        // How old the data at risk is, nobody knows after a start.
        let may_wait = volume.is_bounded() && volume.at_risk().is_some();
        (!is_lost && !may_wait).then(|| remote.writer().epoch)
    }
}

impl Router {
    /// The exports that the next program may go on with as this daemon does.
    pub fn tenures(&self) -> Tenures {
        self.entries().iter().filter_map(|entry| Some((entry.id, entry.tenure()?))).collect()
    }

    /// Whether another program could go on at once with every export that is served.
    ///
    /// # Errors
    /// The name of an export whose requests would wait for the store, which is away.
    pub async fn may_hand_over(&self) -> Result<(), ExportName> {
        let would_wait = |entry: &&std::sync::Arc<ExportEntry>| {
            let goes_on = entry.tenure().is_some();
            entry.state() == State::Serving && entry.is_stored() && !entry.is_lost() && !goes_on
        };
        let entries = self.entries();
        let waiting = entries.iter().find(would_wait);
        match waiting {
            Some(entry) if !self.options.serve_unconfirmed && !self.can_ask().await => {
                Err(entry.name.clone())
            }
            _ => Ok(()),
        }
    }

    /// Whether the daemon before has served an export until this start, in the epoch of the catalog.
    pub(super) fn inherits(&self, held: &HeldExport) -> bool {
        let entry = &held.entry;
        let Some(epoch) = self.options.tenures.get(&entry.id) else { return false };
        let remote = self.open(entry).volume().remote();
        remote.is_some_and(|remote| remote.writer().epoch == *epoch)
            && !entry.may_be_released()
            && !entry.is_lost()
    }
}
