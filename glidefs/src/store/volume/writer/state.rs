//! What a process knows of one volume as the volume's writer.
//!
//! Owns the locks under which the state changes. Does not own what changes the state.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::store::format::Manifest;
use crate::store::ids::VolumeId;
use crate::store::volume::damage;
use crate::store::volume::notes::Loss;
use crate::store::volume::types::Fence;
use crate::store::volume::view::loaded::LoadedManifest;
use crate::store::volume::view::readahead::Streams;
use crate::units::Seq;

#[derive(Debug)]
pub(in crate::store::volume) struct WriterState {
    pub id: VolumeId,
    /// Held while the next manifest is made.
    pub change: tokio::sync::Mutex<()>,
    /// Held during a step of compaction. How much data of the oldest packs was discarded, as far as steps have met it, bytes.
    pub compaction: tokio::sync::Mutex<u64>,
    /// Who reads it one sector after the other.
    pub streams: Mutex<Streams>,
    head: Mutex<Head>,
    /// The newest manifest, for as long as it is in memory.
    pub here: Mutex<Weak<LoadedManifest>>,
}

impl WriterState {
    pub fn new(id: VolumeId, head: Head) -> Self {
        Self {
            id,
            change: tokio::sync::Mutex::default(),
            compaction: tokio::sync::Mutex::default(),
            streams: Mutex::default(),
            head: Mutex::new(head),
            here: Mutex::default(),
        }
    }

    pub fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a writer knows of its volume. Its manifest is with the metadata of all volumes.
#[derive(Clone, Debug)]
pub(in crate::store::volume) struct Head {
    /// This writer, in this epoch.
    pub own: Fence,
    pub number: u64,
    pub size_sectors: u64,
    pub cut: Seq,
    /// When the manifest of that number was the newest for sure. `None`: in an earlier life of this process.
    pub known: Option<Duration>,
    /// Why the volume cannot be written any more.
    pub lost: Option<Loss>,
    /// How many sectors of the volume are damaged.
    pub damaged_sectors: u64,
}

impl Head {
    /// Goes on with `manifest`.
    pub fn follow(&mut self, manifest: &Manifest, known: Option<Duration>) {
        self.number = manifest.number;
        self.size_sectors = manifest.size_sectors;
        self.cut = manifest.cut;
        self.known = known;
        self.damaged_sectors = damage::sectors(&manifest.sections.damaged);
    }
}
