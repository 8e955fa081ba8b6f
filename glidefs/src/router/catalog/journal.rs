//! The journals of the volumes in the store, kept in the catalog.
//!
//! Owns the journals in memory. Does not own the meaning of an entry (`store::volume`) nor the tables (`tables`). Invariant:
//! memory has no entry of a journal that is not on disk.

use std::collections::HashMap;

use super::change::Change;
use crate::store::VolumeId;
use crate::store::volume::{Intents, Loss, Past};

/// The journals on disk, in memory.
#[derive(Debug, Default)]
pub(super) struct JournalMemory {
    pub intents: Intents,
    /// Losses by volume and epoch.
    pub losses: HashMap<(VolumeId, u64), Loss>,
}

impl JournalMemory {
    /// Applies `change`, which is on disk. `forgotten` names the journal that the transaction removed together with an export.
    pub fn apply(&mut self, change: &Change, forgotten: Option<Past>) {
        match change {
            Change::Intend(volume, number, hash) => self.intents.add(*volume, *number, *hash),
            Change::Withdraw(volume, number, hash) => self.intents.withdraw(*volume, *number, hash),
            Change::Lost(volume, epoch, loss) => {
                self.losses.insert((*volume, *epoch), loss.clone());
            }
            Change::Forget(past) => self.forget(*past),
            _ => {}
        }
        if let Some(past) = forgotten {
            self.forget(past);
        }
    }

    fn forget(&mut self, past: Past) {
        self.intents.forget(past);
        self.losses.retain(|(volume, epoch), _| !past.has_loss(*volume, *epoch));
    }
}
