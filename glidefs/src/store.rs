//! The object store: keys, what objects look like inside, and access to them.
//!
//! Owns the layout of a store, the formats of its objects (`docs/format.md` shows them byte by byte), requests with
//! retries and counters, the checks on everything that is read, and what volumes are made of. Does not own when data is
//! flushed, compacted or collected, or any cache of data. Invariant: objects are immutable; they are created when absent,
//! read, and deleted, never replaced. No other folder names the `object_store` crate.
//!
//! ```text
//!                 VolumeStore ─> VolumeWriter, View   cuts in, ranges out     gc   what nothing refers to goes
//!                                │
//! StoreUrl ─> Backend ─> Store ──┬─ objects   manifests, packs, names: encoded, decoded, checked
//!                                ├─ client    keys and bytes: get, create, list, delete
//!                                ├─ retry     pauses, time limits, shutdown   (classify: what an error means)
//!                                ├─ turns     whose GET is next; hedge: a second request for one that is late
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
#[cfg(any(test, feature = "faults"))]
pub mod faulty;
pub mod format;
pub mod gc;
mod hedge;
pub mod ids;
pub mod key;
mod later;
mod objects;
mod outage;
mod retry;
#[cfg(any(test, feature = "faults"))]
pub mod scripted;
mod stats;
mod turns;
mod url;
pub mod volume;

pub use self::backend::{Backend, Variables, process_variables};
pub use self::block_cache::fuzzing as block_cache_fuzzing;
pub use self::block_cache::{BlockCache, BlockCacheError, BlockCacheFigures, BlockCacheOptions};
pub use self::client::{Created, Listing, ObjectInfo, Store, StoreOptions};
pub use self::clock::{StoreClock, SystemClock};
pub use self::error::{BoxError, StoreError};
pub use self::ids::{Entropy, HostName, NameError, PackId, StoreName, SystemEntropy, VolumeId, WriterId};
pub use self::key::{Folder, Key};
pub use self::objects::Access;
pub use self::outage::ReadsWaiting;
pub use self::retry::RetryPolicy;
pub use self::stats::{Count, Operation, OperationStats, StoreStats};
pub use self::url::{Bucket, StoreUrl, UrlError};
