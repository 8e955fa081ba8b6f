//! The object store: keys, formats of objects, and access.
//!
//! Owns the layout of a store, the formats of objects (`docs/format.md` shows every byte), requests with retries and counters,
//! the checks on all data that is read, volumes in the store, garbage collection, and the block cache. Does not own when data is
//! written back, compacted or collected, nor the log. Invariant: objects are immutable; an object is created if absent, read, and
//! deleted, never replaced. No other folder names the `object_store` crate.
//!
//! ```text
//!                     volume      cuts in, ranges out         gc   deletes objects that nothing refers to
//!                       │
//! StoreUrl ─> Backend ─> Store ──┬─ objects   manifests, packs, names: encoded, decoded, checked
//!              │                 ├─ client    keys and bytes: get, create, list, delete
//!             aws                ├─ retry     pauses, time limits, shutdown   (classify: the meaning of an error)
//!                                ├─ transfer  whether bytes move, and how many go up
//!                                ├─ turns     which GET or pack is next; hedge: a second request for a late GET
//!                                ├─ health    what the store does, since when, and why not
//!                                ├─ outage    READs that wait until the store answers again
//!                                └─ the object_store crate
//! ```

mod aws;
mod backend;
mod block_cache;
mod classify;
mod client;
mod clock;
mod error;
#[cfg(test)]
pub mod faulty;
pub mod format;
pub mod gc;
mod health;
mod hedge;
mod http;
pub mod ids;
pub mod key;
mod objects;
mod outage;
mod removals;
mod retry;
#[cfg(test)]
pub mod scripted;
mod stats;
mod testing;
mod transfer;
mod turns;
mod url;
pub mod volume;

pub use self::backend::{Backend, Variables, process_variables};
#[cfg(fuzzing)]
pub use self::block_cache::fuzzing as block_cache_fuzzing;
pub use self::block_cache::{BlockCache, BlockCacheCounters, BlockCacheError, BlockCacheOptions};
pub use self::client::{Created, Store, StoreOptions, Trial, TrialSize};
pub use self::clock::SystemClock;
pub use self::error::{BoxError, StoreError};
pub use self::health::{Condition, StoreState};
pub use self::ids::{Entropy, HostName, NameError, PackId, StoreName, SystemEntropy, VolumeId, WriterId};
pub use self::key::{Folder, Key};
pub use self::objects::Access;
pub use self::retry::RetryPolicy;
pub use self::stats::{Operation, StoreStats};
pub use self::transfer::{Hours, UploadLimit};
pub use self::url::{Bucket, StoreUrl};
