//! Volumes in the store: what an export's content is when it is not in the cache.
//!
//! Owns how a volume is created, opened, written, read, named, forked, deleted and compacted, and that two writers never
//! mix. Does not own when any of this happens, exports, or caches of data. Invariant: the newest manifest of a volume is a
//! state it had at a cut, and everything that manifest lists is there.
//!
//! ```text
//! Volumes ──┬─ Volume ─┬─ commit    cut ─> packs ─> manifest, by one writer   (land: who that is)
//!           │          │            (packing: how; upload: what is there already)
//!  (shared) │          ├─ history   snapshot, rollback, fork
//!           │          ├─ hold      which host has it: open, take over, release
//!           │          ├─ end       delete, undelete
//!           │          └─ compact   fewer packs, the same content     (choose: which packs; merge: packing anew)
//!           ├─ View       what one manifest says: packs ─> index ─> blocks    (fetch: one GET for all that wait)
//!           ├─ recent     packs as they were uploaded, for merging
//!           ├─ ahead      what sequential readers want next, into the clean cache
//!           └─ metadata   manifests and indexes in memory, bounded
//! ```
//!
//! **Who writes.** Every change is manifest *n* + 1, created only if it is absent. A writer knows its newest manifest *n*; when
//! another one has created *n* + 1, it is fenced. Garbage collection frees the numbers of old manifests, but only
//! [`GRACE_MIN`] after their creation: a writer that has not heard from the store for [`TRUST_TIME_MAX`] lists what is behind
//! its own manifest first.
//!
//! **What is remembered.** A manifest of which the answer was lost is told from one of a copy of this host by a note on the
//! hash of each manifest, taken before the store is asked to create the manifest. Anything else that is newer under the name of
//! this writer, or a store that has gone back, is a second history: the volume stops.
//!
//! **What may be collected.** A pack is in use from its upload on, but only a manifest says so. Whoever uploads packs, or
//! lists those of another volume, sends a manifest that names them within [`UPLOAD_TIME_MAX`], or gives up. While a cut
//! is uploaded for long, manifests of the same content keep its packs: they name them as uploaded, and none as content.
//! A manifest may be on its way for any time after that: garbage collection takes no pack that such a manifest may be the first to
//! name before another manifest has the number of that manifest.

mod ahead;
mod choose;
mod commit;
mod compact;
mod crowd;
mod cut;
mod damage;
mod end;
mod error;
mod fetch;
mod history;
mod hold;
mod host;
mod land;
mod merge;
mod metadata;
mod notes;
mod packing;
mod recent;
mod upload;
mod view;
mod writer;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

pub use self::crowd::{Crowd, FAN_OUT_MAX, VOLUME_BYTES_MAX, check_size};
pub use self::cut::{CutExtent, CutSource};
pub use self::end::DeletedVolume;
pub use self::error::{Held, VolumeError};
pub use self::host::{Volumes, VolumesOptions};
pub use self::notes::{Divergence, Intents, Loss, ManifestHash, Notes, NotesInMemory, Past};
pub use self::upload::{Upload, UploadProgress};
pub use self::view::View;
pub use self::writer::Volume;
use super::ids::{StoreName, VolumeId, WriterId};
use crate::units::{SectorRange, Seq};

/// Shortest time that garbage collection leaves alone what is not in use, or not any more.
pub const GRACE_MIN: Duration = Duration::from_hours(6);
/// Longest time between the begin of the upload of a pack and the last look at which manifest the one that names the pack follows.
pub const UPLOAD_TIME_MAX: Duration = Duration::from_hours(3);
/// How long a writer believes that its manifest is the newest without asking.
pub const TRUST_TIME_MAX: Duration = Duration::from_hours(1);

/// Who writes a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// How often the volume was taken over.
    pub epoch: u64,
    /// By whom.
    pub writer: WriterId,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "writer {}, epoch {}", self.writer, self.epoch)
    }
}

/// What a daemon remembers of a volume, so that it can go on with it after a restart without a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Which volume.
    pub volume: VolumeId,
    /// Who writes it.
    pub writer: WriterId,
    /// How often it was taken over, by this writer the last time.
    pub epoch: u64,
    /// Number of the newest manifest.
    pub number: u64,
    /// Size that manifest says, sectors.
    pub size_sectors: u64,
    /// Everything up to here is in the store.
    pub cut: Seq,
    /// How many sectors that manifest lists as damaged.
    pub damaged_sectors: u64,
    /// That manifest as bytes. `None`: it is fetched when it is needed.
    pub manifest: Option<Bytes>,
}

/// A change that is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// What to remember.
    pub resume: Resume,
    /// Packs that were uploaded for it.
    pub packs: usize,
    /// Their length, bytes.
    pub pack_bytes: u64,
    /// Whether [`Volume::compact`] has something to do.
    pub compaction_due: bool,
    /// How crowded the volume is.
    pub crowd: Crowd,
}

/// A part of what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadExtent {
    /// Which sectors. Not empty.
    pub range: SectorRange,
    /// Their bytes; `None` when all of them are zero. May keep the block of up to 64 KiB alive that they are a part of.
    pub data: Option<Bytes>,
}

/// A state of a volume in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePoint {
    /// Of which volume.
    pub volume: VolumeId,
    /// What a snapshot keeps; `None`: the newest state.
    pub snapshot: Option<StoreName>,
}

/// A snapshot, as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: StoreName,
    /// When it was made by the clock of the store, milliseconds since 1970-01-01 UTC.
    pub created_unix_millis: u64,
}

/// One step of a compaction that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// What to remember.
    pub resume: Resume,
    /// Packs that the manifest lists no more.
    pub packs_before: usize,
    /// Packs that it lists in their place.
    pub packs_after: usize,
    /// Length of those that were made for it, bytes.
    pub pack_bytes: u64,
    /// Whether another step is due.
    pub compaction_due: bool,
    /// How crowded the volume is.
    pub crowd: Crowd,
}

#[cfg(test)]
pub(in crate::store) mod tests;
