//! Notes that a writer takes outside the store, so that a restart does not make the writer forget.
//!
//! Owns which manifests this host meant to create, and why a volume was lost. Does not own where notes are kept (the catalog, in
//! the daemon). Invariant: a manifest is noted before the store is asked to create the manifest. So a manifest in the store under
//! the name of this writer, without a note, was made by a copy of this host.

use std::collections::HashMap;
use std::fmt;
use std::io;

use futures_util::future::BoxFuture;

use super::error::date;
use super::types::{Fence, Taker};
use crate::store::ids::VolumeId;
use crate::units::Seq;

/// BLAKE3 hash of a manifest as stored.
pub type ManifestHash = [u8; 32];

/// Why this writer cannot write the volume any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Another writer has the volume.
    Fenced(Taker),
    /// The volume was deleted from the store.
    Deleted,
    /// The store has another history of the volume than this host.
    Diverged(Box<Divergence>),
}

/// The two histories of one volume: this host's and the store's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Number of the newest manifest this host knows.
    pub number: u64,
    /// Sequence number up to which that manifest has every write.
    pub cut: Seq,
    /// Number of the newest manifest in the store.
    pub found_number: u64,
    /// Sequence number up to which the newest manifest in the store has every write.
    pub found_cut: Seq,
    /// Creation time of the newest manifest in the store, by the writer's clock, milliseconds since 1970-01-01 UTC.
    pub found_unix_millis: u64,
    /// Writer of the newest manifest in the store.
    pub found: Fence,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, cut, found_number, found_cut, found_unix_millis, found } = self;
        let made = date(*found_unix_millis);
        write!(
            f,
            "this host goes on from manifest {number} with sequence numbers up to {}; the newest manifest in the store is \
             {found_number} with sequence numbers up to {}, made {made} by {found}",
            cut.0, found_cut.0
        )
    }
}

/// A place for notes. A returned future ends when the note is on disk.
pub trait Notes: Send + Sync + fmt::Debug {
    /// Notes that the store is about to be asked to create manifest `number` with this hash. Notes on numbers below `number - 1`
    /// may be dropped.
    fn intend(&self, volume: VolumeId, number: u64, hash: ManifestHash)
    -> BoxFuture<'static, io::Result<()>>;

    /// Whether manifest `number` with this hash was noted; `None` when no manifest of this number was noted.
    fn intended(&self, volume: VolumeId, number: u64, hash: &ManifestHash) -> Option<bool>;

    /// The highest manifest number noted.
    fn highest(&self, volume: VolumeId) -> Option<u64>;

    /// Takes back the note on a manifest that the store does not have and can never get. Returns before the change is on disk.
    fn withdraw(&self, _volume: VolumeId, _number: u64, _hash: ManifestHash) {}

    /// Drops the notes on a volume that was deleted. Returns before the change is on disk.
    fn forget(&self, _past: Past) {}

    /// Notes why this writer lost a volume in `epoch`.
    fn lose(&self, volume: VolumeId, epoch: u64, loss: &Loss) -> BoxFuture<'static, io::Result<()>>;

    /// Why this writer lost a volume in `epoch`, if a loss was noted.
    fn loss(&self, volume: VolumeId, epoch: u64) -> Option<Loss>;
}

/// Notes of no more use, because the volume was deleted. The volume may go on in a later epoch: another export of this host may
/// undo the deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// The deleted volume, by identity.
    pub volume: VolumeId,
    /// Notes on manifests up to this number are in the past.
    pub number: u64,
    /// Losses up to this epoch are in the past.
    pub epoch: u64,
}

impl Past {
    /// Whether `past` covers the loss of `volume` in `epoch`.
    pub fn has_loss(&self, volume: VolumeId, epoch: u64) -> bool {
        volume == self.volume && epoch <= self.epoch
    }
}

/// Notes on manifests, in memory.
#[derive(Debug, Default)]
pub struct Intents(HashMap<VolumeId, Vec<(u64, ManifestHash)>>);

impl Intents {
    /// Adds a note, and drops the notes that no restart can need: those on numbers below `number - 1`.
    pub fn add(&mut self, volume: VolumeId, number: u64, hash: ManifestHash) {
        let noted = self.0.entry(volume).or_default();
        noted
            .retain(|(other, known)| other.saturating_add(1) >= number && (*other, *known) != (number, hash));
        // A volume at rest has one note, and a catalog has thousands of volumes.
        noted.reserve_exact(1);
        noted.push((number, hash));
    }

    /// Takes back the note on one manifest.
    pub fn withdraw(&mut self, volume: VolumeId, number: u64, hash: &ManifestHash) {
        if let Some(noted) = self.0.get_mut(&volume) {
            noted.retain(|(other, known)| (*other, known) != (number, hash));
        }
        self.drop_if_empty(volume);
    }

    fn drop_if_empty(&mut self, volume: VolumeId) {
        if self.0.get(&volume).is_some_and(Vec::is_empty) {
            self.0.remove(&volume);
        }
    }

    /// Drops the notes of the past.
    pub fn forget(&mut self, past: Past) {
        if let Some(noted) = self.0.get_mut(&past.volume) {
            noted.retain(|(number, _)| *number > past.number);
        }
        self.drop_if_empty(past.volume);
    }

    /// Whether no volume has a note.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The answer to [`Notes::intended`] by these notes.
    pub fn find(&self, volume: VolumeId, number: u64, hash: &ManifestHash) -> Option<bool> {
        let noted = self.0.get(&volume)?;
        let mut of_number = noted.iter().filter(|(other, _)| *other == number).peekable();
        of_number.peek()?;
        Some(of_number.any(|(_, known)| known == hash))
    }

    /// The answer to [`Notes::highest`] by these notes.
    pub fn highest(&self, volume: VolumeId) -> Option<u64> {
        self.0.get(&volume)?.iter().map(|(number, _)| *number).max()
    }
}
