//! The notes of the store's writers, kept in the catalog.
//!
//! Owns the way there, what of the notes is in memory, and how a loss is encoded. Does not own what a note means
//! (`store::volume`). Invariant: memory never has a note that is not on disk.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::catalog::{Change, Message, Waiting};
use super::record::{DecodeError, decode_json, encode_json};
use crate::store::VolumeId;
use crate::store::volume::{Divergence, Fence, Intents, Loss, ManifestHash, Notes, Past, Resume};
use crate::units::Seq;

/// Notes in the catalog.
#[derive(Clone, Debug)]
pub(super) struct CatalogNotes {
    changes: mpsc::Sender<Message>,
    memory: Arc<Mutex<Memory>>,
}

/// What is on disk.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub intents: Intents,
    /// By volume and epoch.
    pub losses: HashMap<(VolumeId, u64), Loss>,
}

impl Memory {
    /// Takes over what `change` has written; `forgotten` is what notes went with an entry on.
    pub fn follow(&mut self, change: &Change, forgotten: Option<Past>) {
        match change {
            Change::Intend(volume, number, hash) => self.intents.add(*volume, *number, *hash),
            Change::Withdraw(volume, number, hash) => self.intents.withdraw(*volume, *number, hash),
            Change::Lost(volume, epoch, loss) => drop(self.losses.insert((*volume, *epoch), loss.clone())),
            Change::Flushed(_, Resume { volume, .. }, _) | Change::EndAllowance(volume) => {
                self.intents.end_allowance(*volume);
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

/// Locks `memory`, of which the maps are whole between their own calls.
pub(super) fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CatalogNotes {
    pub fn new(changes: mpsc::Sender<Message>, memory: Arc<Mutex<Memory>>) -> Self {
        Self { changes, memory }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        lock(&self.memory)
    }

    /// Whether there is no note at all.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let memory = self.lock();
        memory.intents.is_empty() && memory.losses.is_empty()
    }

    /// Has `change` written, and waits for that. The writer of the catalog tells memory.
    fn write(&self, change: Change) -> BoxFuture<'static, io::Result<()>> {
        let changes = self.changes.clone();
        async move {
            let closed = || io::Error::other("the catalog is closed: the daemon is stopping");
            let (done, answer) = oneshot::channel();
            changes.send(Message::Change(Box::new(Waiting { change, done }))).map_err(|_| closed())?;
            answer.await.map_err(|_| closed())?.map_err(io::Error::other)
        }
        .boxed()
    }

    /// Has `change` written, which nothing depends on.
    fn write_later(&self, change: Change) {
        let (done, _) = oneshot::channel();
        // A catalog that is closed takes nothing more.
        let _ = self.changes.send(Message::Change(Box::new(Waiting { change, done })));
    }
}

impl Notes for CatalogNotes {
    fn intend(
        &self,
        volume: VolumeId,
        number: u64,
        hash: ManifestHash,
    ) -> BoxFuture<'static, io::Result<()>> {
        self.write(Change::Intend(volume, number, hash))
    }

    fn intended(&self, volume: VolumeId, number: u64, hash: &ManifestHash) -> Option<bool> {
        self.lock().intents.find(volume, number, hash)
    }

    fn highest(&self, volume: VolumeId) -> Option<u64> {
        self.lock().intents.highest(volume)
    }

    fn is_current(&self, volume: VolumeId) {
        if self.lock().intents.end_allowance(volume) {
            self.write_later(Change::EndAllowance(volume));
        }
    }

    fn withdraw(&self, volume: VolumeId, number: u64, hash: ManifestHash) {
        self.write_later(Change::Withdraw(volume, number, hash));
    }

    fn forget(&self, past: Past) {
        self.write_later(Change::Forget(past));
    }

    fn lose(&self, volume: VolumeId, epoch: u64, loss: &Loss) -> BoxFuture<'static, io::Result<()>> {
        self.write(Change::Lost(volume, epoch, loss.clone()))
    }

    fn loss(&self, volume: VolumeId, epoch: u64) -> Option<Loss> {
        self.lock().losses.get(&(volume, epoch)).cloned()
    }
}

/// A loss as it is in the catalog.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum LossRecord {
    Fenced {
        epoch: u64,
        writer: String,
    },
    Deleted,
    Diverged {
        number: u64,
        cut: u64,
        found_number: u64,
        found_cut: u64,
        found_unix_millis: u64,
        found_epoch: u64,
        found_writer: String,
    },
}

/// The bytes of a loss.
pub(super) fn encode_loss(loss: &Loss) -> Result<Vec<u8>, serde_json::Error> {
    encode_json(&match loss {
        Loss::Fenced(Fence { epoch, writer }) => {
            LossRecord::Fenced { epoch: *epoch, writer: writer.to_string() }
        }
        Loss::Deleted => LossRecord::Deleted,
        Loss::Diverged(divergence) => {
            let Divergence { number, cut, found_number, found_cut, found_unix_millis, found } = **divergence;
            LossRecord::Diverged {
                number,
                cut: cut.0,
                found_number,
                found_cut: found_cut.0,
                found_unix_millis,
                found_epoch: found.epoch,
                found_writer: found.writer.to_string(),
            }
        }
    })
}

/// Reads what [`encode_loss`] wrote.
pub(super) fn decode_loss(bytes: &[u8]) -> Result<Loss, DecodeError> {
    Ok(match decode_json(bytes)? {
        LossRecord::Fenced { epoch, writer } => Loss::Fenced(Fence { epoch, writer: writer.parse()? }),
        LossRecord::Deleted => Loss::Deleted,
        LossRecord::Diverged {
            number,
            cut,
            found_number,
            found_cut,
            found_unix_millis,
            found_epoch,
            found_writer,
        } => Loss::Diverged(Box::new(Divergence {
            number,
            cut: Seq(cut),
            found_number,
            found_cut: Seq(found_cut),
            found_unix_millis,
            found: Fence { epoch: found_epoch, writer: found_writer.parse()? },
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::WriterId;

    #[test]
    fn a_loss_reads_back_as_it_was_written() {
        let found = Fence { epoch: 3, writer: WriterId([9; 16]) };
        let divergence = Divergence {
            number: 7,
            cut: Seq(70),
            found_number: 12,
            found_cut: Seq(99),
            found_unix_millis: 1_700_000_000_000,
            found,
        };
        for loss in [Loss::Fenced(found), Loss::Deleted, Loss::Diverged(Box::new(divergence))] {
            let bytes = encode_loss(&loss).unwrap();
            assert_eq!(decode_loss(&bytes).unwrap(), loss);
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 4;
                assert!(decode_loss(&changed).is_err());
            }
        }
    }
}
