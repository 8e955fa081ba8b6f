//! The local cache: one log-structured write-back cache for all exports.
//!
//! Owns everything under `cache.dir` except the catalog: the superblock, the segment files and the in-memory indexes.
//! Does not own names or life cycle of exports (`router`), devices (`ublk`), threads (`worker`, which drives a [`Shard`])
//! or the object store (`store`).
//!
//! ```text
//!   worker 0          worker 1                keeper's thread
//!  ┌─────────┐       ┌─────────┐             ┌───────────────────────────────┐
//!  │ Shard 0 │       │ Shard 1 │  full ────▶ │ seal · free · clean · prepare │
//!  └──┬───┬──┘       └──┬───┬──┘ ◀──── ready └───────┬───────────────────────┘
//!     │   └── append ───┼───┴──────────────┬─────────┘
//!     │ look up, insert │                  ▼
//!     ▼                 ▼           segments: 0 1 2 3 …      one file of `segment_bytes` each
//!  ┌─────────────────────────┐      ▲ counts extents, pins, stable frames, checksums
//!  │ Volume: index of one    ├──────┘
//!  │ export, newest seq wins │
//!  └─────────────────────────┘
//! ```
//!
//! Three floors; a file imports from its own floor and from the floors below:
//!
//! * `log`: the disk, the formats, the table of segments, the segments that are appended to.
//! * `volume`: the data of one export: index, sequence numbers, places that are not stable yet, the cut on its way.
//! * `shard` (requests of one worker), `keeper` (seal, free, clean, prepare), `writeback` (cuts to the store), `recovery` (a start)
//!   and [`Cache`], the facade, with the state that all of these share (`shared`).
//!
//! Rules that keep data safe, and the file that keeps each rule:
//!
//! * A write is acknowledged when the record is in the page cache and in the index (`shard/append`).
//! * FLUSH ends when every place that the volume appended to, and that is not known to be stable, has been synced; one sync
//!   serves all who wait for a file (`shard/sync`). After a failed sync the segment's data is written again, elsewhere or in
//!   place, and until then FLUSH fails (`keeper/cleaner`, `keeper/sealing`).
//! * A trailer is written only after all records of the segment are stable (`log/seal`, `keeper/sealing`), so recovery believes a
//!   trailer. A segment without a trailer is walked, checked and made stable before use (`log/walk`, `recovery`).
//! * A segment is used again only when no index refers to the segment, no read is pinned to the segment, and the data that
//!   replaced the contents is stable (`keeper`). Segment ids are never repeated, so old bytes never pass for new bytes.
//! * Every frame read is compared with the checksum made when the frame was acknowledged (`shard/read`). Few checksums are in memory;
//!   the others are beside the data, up to three times (`shard/sums`, `verify`).

mod catalog;
#[cfg(test)]
pub(crate) mod driver;
mod facade;
#[cfg(test)]
mod faulty;
mod handoff;
mod hands;
mod keeper;
mod log;
mod options;
mod recovery;
mod shard;
mod shared;
mod stats;
mod sums;
mod sync_hold;
mod testing;
#[cfg(test)]
mod tests;
mod verify;
mod volume;
mod writeback;

pub use self::catalog::{CacheCatalog, Start};
pub use self::facade::Cache;
pub use self::hands::HANDS_MAX;
pub use self::keeper::{CheckpointPace, Keeper};
pub use self::log::directory::Directory;
pub use self::log::disk::{CheckpointFile, Clock, Disk, Lock, MonotonicClock, SegmentFile};
pub use self::log::error::CacheError;
pub use self::log::format;
pub use self::log::table::Refs;
pub use self::options::{Known, OnFull, Options, Recovered};
pub use self::shard::{Admission, Reservation, Shard, Token, Want, WriteSums};
pub use self::stats::{CacheStats, ShardStats};
pub use self::volume::Volume;
pub use self::volume::budget::{Budgets, Coming, Resource};
pub use self::volume::budgeted::Content;
pub use self::volume::budgeted::UsageFigures;
pub use self::volume::cells::CellBytes;
pub use self::volume::durability::{Pace, Triggers};
pub use self::volume::error::IoError;
pub use self::volume::extent::{Backing, Extent};
pub use self::volume::fetch::Fill;
pub use self::volume::index::{Index, IndexLoader};
pub use self::volume::layers::SeqMarks;
pub use self::volume::linked::AtRisk;
pub use self::volume::queue::WritebackQueue;
