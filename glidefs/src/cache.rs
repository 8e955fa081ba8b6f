//! The local cache: one log-structured write-back cache for all exports.
//!
//! Owns everything under `cache.dir` except the catalog: the superblock, the segment files and the in-memory indexes.
//! Does not own names or life cycle of exports (`router`), devices (`ublk`), threads (`worker`, which drives a [`Shard`])
//! or the object store (`store`).
//!
//! ```text
//!   worker 0          worker 1                keeper's thread
//!  ┌─────────┐       ┌─────────┐             ┌──────────────────────────────┐
//!  │ Shard 0 │       │ Shard 1 │  full ────▶ │ seal · free · clean · prepare │
//!  └──┬───┬──┘       └──┬───┬──┘ ◀──── ready └───────┬──────────────────────┘
//!     │   └── append ───┼───┴──────────────┬─────────┘
//!     │ look up, insert │                  ▼
//!     ▼                 ▼           segments: 0 1 2 3 …      one file of `segment_bytes` each
//!  ┌─────────────────────────┐      ▲ counts extents, pins, stable frames, checksums
//!  │ Volume: index of one    ├──────┘
//!  │ export, newest seq wins │
//!  └─────────────────────────┘
//! ```
//!
//! What keeps data safe, each kept by the file named:
//!
//! * A write is acknowledged when its record is in the page cache and in the index (`shard/append`).
//! * FLUSH ends when every place its volume appended to and that is not known to be stable has been synced, by one sync
//!   for all who wait (`shard/sync`). A failed sync is final for that segment: its data moves, FLUSH fails until it has.
//! * A trailer is written only after everything else in its segment is stable (`seal`), so recovery believes it; anything
//!   without one is scanned, checked and made stable before use (`scan`, `recovery`).
//! * A segment is used again only when no index refers to it, no read is pinned to it, and what replaced its contents is
//!   stable (`keeper`). Segment ids are never repeated, so old bytes never pass for new ones.
//! * Every frame read is compared with the checksum made when it was acknowledged (`shard/read`).

mod catalog;
#[cfg(test)]
pub(crate) mod driver;
mod facade;
#[cfg(test)]
mod faulty;
mod handoff;
mod keeper;
mod log;
mod options;
mod recovery;
mod shard;
mod shared;
mod stats;
mod sync_hold;
#[cfg(test)]
mod tests;
mod volume;
mod writeback;

pub use self::catalog::{CacheCatalog, Start};
pub use self::facade::Cache;
pub use self::keeper::Keeper;
pub use self::log::directory::Directory;
pub use self::log::disk::{Clock, Disk, Lock, MonotonicClock, SegmentFile};
pub use self::log::error::CacheError;
pub use self::log::format;
pub use self::log::table::Refs;
pub use self::options::{Known, OnFull, Options, Recovered};
pub use self::shard::{Admission, Reservation, Shard, Token, Want};
pub use self::stats::{CacheStats, ShardStats};
pub use self::volume::Volume;
pub use self::volume::durability::{Bound, Durability, Pace, Triggers};
pub use self::volume::error::IoError;
pub use self::volume::extent::{Backing, Extent};
pub use self::volume::fetch::{Fill, OnUnreachable};
pub use self::volume::index::Index;
pub use self::volume::layers::SeqMarks;
pub use self::volume::linked::AtRisk;
pub use self::volume::queue::WritebackQueue;
