//! How a writer gives its volume up.
//!
//! Owns the error of a lost volume, and the note on the loss. Does not own how a loss is noticed (`newest`). Invariant: a writer
//! that lost its volume never writes the volume again in the same epoch of the same process.

use super::VolumeWriter;
use crate::store::format::Manifest;
use crate::store::volume::error::VolumeError;
use crate::store::volume::notes::{Divergence, Loss};
use crate::store::volume::types::{Fence, Taker};

impl VolumeWriter {
    /// An error when this writer knows that the volume is lost.
    pub(in crate::store::volume) fn writable(&self) -> Result<(), VolumeError> {
        self.loss().map_or(Ok(()), |loss| Err(self.lost(loss)))
    }

    fn lost(&self, loss: Loss) -> VolumeError {
        match loss {
            Loss::Fenced(taker) => VolumeError::Fenced(taker),
            Loss::Deleted => VolumeError::Deleted { volume: self.shared.id },
            Loss::Diverged(divergence) => VolumeError::Diverged { volume: self.shared.id, divergence },
        }
    }

    /// Gives the volume up for good and notes the loss: after a restart, this host must not take its local data for the newest.
    pub(super) async fn lose(&self, loss: Loss) -> VolumeError {
        self.head().lost = Some(loss.clone());
        tracing::warn!(volume = %self.shared.id, own = %self.head().own, loss = ?loss, "a volume is not this writer's any more");
        self.note_loss(&loss).await;
        self.lost(loss)
    }

    /// Notes a loss for the next process.
    pub(super) async fn note_loss(&self, loss: &Loss) {
        let epoch = self.head().own.epoch;
        if let Err(error) = self.host.options.notes.lose(self.shared.id, epoch, loss).await {
            let error = &error as &dyn std::error::Error;
            tracing::error!(volume = %self.shared.id, error, "the loss of a volume could not be noted; the next start finds the loss again");
        }
    }

    /// Gives the volume up in this process only. The volume is deleted, which may be undone, or the store is behind this host's
    /// knowledge: this may be another store, or an old copy of the store. The next process asks again.
    pub(in crate::store::volume) fn stop_until_restart(&self, loss: Loss) -> VolumeError {
        tracing::warn!(volume = %self.shared.id, loss = ?loss, "a volume is deleted from the store, or the store is behind what this host knows");
        self.head().lost = Some(loss.clone());
        self.lost(loss)
    }

    /// The loss that `found` proves: a manifest in the store that this host did not create.
    pub(super) fn foreign(&self, found: &Manifest) -> Loss {
        let head = self.head();
        if found.epoch > head.own.epoch {
            return Loss::Fenced(Taker::of(found));
        }
        Loss::Diverged(Box::new(Divergence {
            number: head.number,
            cut: head.cut,
            found_number: found.number,
            found_cut: found.cut,
            found_unix_millis: found.created_unix_millis,
            found: Fence { epoch: found.epoch, writer: found.writer },
        }))
    }

    /// Gives up a volume of which the store has another manifest `number` than this host created.
    pub(super) async fn lose_to(&self, number: u64) -> VolumeError {
        match self.host.store.manifest_hashed(self.shared.id, number).await {
            Ok((found, _)) => self.lose(self.foreign(&found)).await,
            Err(error) => error.into(),
        }
    }
}
