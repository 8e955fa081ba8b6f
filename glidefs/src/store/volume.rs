//! Volumes in the store: the data of exports as manifests and packs.
//!
//! Owns how a volume is created, opened, written, read, named, forked, deleted and compacted, and that two writers never mix.
//! Does not own when any of this happens, exports, or the cache. Invariant: the newest manifest of a volume is a state of the
//! volume at a cut, and every pack of that manifest is in the store.
//!
//! ```text
//!  operations     delete   snapshots   commit                                 compact
//!                          fork,       packing: a cut to packs                plan: which packs
//!                          rollback    upload: packs in the store             merge: packed anew
//!                     │
//!  handles        VolumeStore (volume_store)     VolumeWriter (writer)
//!                     create, open, take over      newest: the manifest to go on from, and giving up
//!                     │                            publish: the next manifest            new_packs
//!                     │                            read: views, reading ahead            state: shared by handles
//!                     │
//!  one process    Host (host)     what names and manifests say of who has a volume
//!                     │
//!  one manifest   View (view)     rows: packs of a range     resolve: the pack that counts for a sector
//!                                 pack_reader: indexes and blocks, from metadata, recent, the block cache or fetch
//!                                 readahead: sequential readers     read_memory: of READs
//!
//!  words          types, limits, cut, damage, crowd, notes, error
//! ```
//!
//! A file uses files of its own line and of the lines below, never of a line above. `Host` keeps the states of writers, so that
//! all handles of a volume find the same state; these states (`writer/state`) use nothing of a writer.
//!
//! **Who writes.** Every change is manifest *n* + 1, created only if absent. A writer knows the newest manifest *n*; a writer
//! that finds *n* + 1 created by another one is fenced. Garbage collection frees the numbers of old manifests, but never one with
//! which a host took the volume: a fence keeps it. A copy of the writer, which writes in the same epoch, has no fences. So a
//! writer without an answer from the store for [`TRUST_TIME_MAX`] lists the manifests after *n* before creating another.
//! `tests/store_protocol.rs` is an exhaustive model of all this.
//!
//! **Notes.** Before asking the store to create a manifest, a writer notes the hash of the manifest. If the answer is lost, the
//! note tells this host's manifest from the manifest of a copy of this host. Any other newer manifest under the name of this
//! writer, or a store that went back, is a second history: the volume stops.
//!
//! **Garbage collection.** A pack is in use from its upload on, but only a manifest says so. Whoever uploads packs, or lists
//! packs of another volume, creates a manifest with these packs within [`UPLOAD_TIME_MAX`], or gives up. During a long upload of
//! a cut, manifests of unchanged content keep the packs uploaded so far, by listing them as uploaded, not as content. Such a
//! manifest may be under way for any time: garbage collection removes no pack that a manifest may be the first to name, before
//! another manifest has the same number. The manifest of a rollback is not the first to name its packs: the manifest before has
//! to keep the packs.

mod commit;
mod compact;
mod crowd;
mod cut;
mod damage;
mod delete;
mod error;
mod host;
mod limits;
mod notes;
mod snapshots;
mod testing;
mod types;
mod view;
mod volume_store;
mod writer;

pub use self::commit::Committed;
pub use self::commit::upload::{Upload, UploadProgress};
pub use self::crowd::{Crowd, FAN_OUT_MAX, check_size};
pub use self::cut::{CutExtent, CutSource};
pub use self::delete::DeletedVolume;
pub use self::error::{Held, VolumeError};
pub use self::host::VolumeStoreOptions;
pub use self::limits::{GRACE_MIN, TRUST_TIME_MAX, UPLOAD_TIME_MAX, VOLUME_BYTES_MAX};
pub use self::notes::{Divergence, Intents, Loss, ManifestHash, Notes, Past};
pub use self::types::{Fence, ReadExtent, Resume, SnapshotInfo, StatePoint, Taker};
pub use self::view::View;
pub use self::volume_store::{Begun, VolumeStore};
pub use self::writer::VolumeWriter;

#[cfg(test)]
pub use self::testing::NotesInMemory;
#[cfg(test)]
pub(in crate::store) mod tests;
