//! Volumes in the store: what an export's content is when it is not in the cache.
//!
//! Owns how a volume is created, opened, written, read, named, forked, deleted and compacted, and that two writers never
//! mix. Does not own when any of this happens, exports, or caches of data. Invariant: the newest manifest of a volume is a
//! state it had at a cut, and everything that manifest lists is there.
//!
//! ```text
//!  operations     create   ownership   delete   snapshots   commit                        compact
//!                          open,                fork,       content: extents of a cut     plan: which packs
//!                          take over,           rollback    packing: extents to packs     merge: packed anew
//!                          release                          upload: packs in the store
//!                     │
//!  handles        VolumeStore (volume_store)     VolumeWriter (writer)
//!                     │                          newest: the manifest to go on from    loss: giving up
//!                     │                          publish: the next manifest            new_packs, pack
//!                     │                          read: views, reading ahead            state: shared by handles
//!                     │
//!  one process    Host (host)     names, holder: what names and manifests say of who has a volume
//!                     │
//!  one manifest   View (view)     loaded, rows: packs of a range     resolve: the pack that counts for a sector
//!                                 pack_reader: indexes and blocks, from metadata, recent, the block cache or fetch
//!                                 readahead: sequential readers
//!
//!  words          types, limits, ranges, cut, damage, crowd, notes, error, blocking
//! ```
//!
//! A file uses files of its own line and of the lines below, never of a line above. `Host` keeps the states of writers, so that
//! all handles of a volume find the same one; those states (`writer/state`) use nothing of a writer.
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

mod blocking;
mod commit;
mod compact;
mod create;
mod crowd;
mod cut;
mod damage;
mod delete;
mod error;
mod host;
mod limits;
mod notes;
mod ownership;
mod ranges;
mod snapshots;
mod types;
mod view;
mod volume_store;
mod writer;

pub use self::commit::Committed;
pub use self::commit::upload::{Upload, UploadProgress};
pub use self::compact::Compacted;
pub use self::crowd::{Crowd, FAN_OUT_MAX, check_size};
pub use self::cut::{CutExtent, CutSource};
pub use self::delete::DeletedVolume;
pub use self::error::{Held, VolumeError};
pub use self::host::VolumeStoreOptions;
pub use self::limits::{GRACE_MIN, TRUST_TIME_MAX, UPLOAD_TIME_MAX, VOLUME_BYTES_MAX};
pub use self::notes::{Divergence, Intents, Loss, ManifestHash, Notes, NotesInMemory, Past};
pub use self::types::{Fence, ReadExtent, Resume, SnapshotInfo, StatePoint};
pub use self::view::View;
pub use self::volume_store::VolumeStore;
pub use self::writer::VolumeWriter;

#[cfg(test)]
pub(in crate::store) mod tests;
