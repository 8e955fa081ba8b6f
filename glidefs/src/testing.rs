//! The parts of the crate that tests, benches and fuzz targets outside of the crate use.
//!
//! Owns the list. Not an interface for other programs: everything here may change with every version.

/// The service over HTTP.
pub mod api {
    pub use crate::api::{
        Access, ApiStats, AppState, Listeners, OffThread, Readiness, SharedTexts, serve, wire,
    };
}

/// Bounce memory.
pub mod buffer {
    pub use crate::buffer::{Acquire, Pool, Slot};
}

/// The log, volumes, and the state machines on both.
pub mod cache {
    pub use crate::cache::{
        Admission, Budgets, Cache, CacheCatalog, CacheError, CheckpointFile, CheckpointPace, Clock,
        Directory, Disk, HANDS_MAX, IoError, Keeper, Known, Lock, MonotonicClock, OnFull, Options, Recovered,
        Reservation, SegmentFile, SeqMarks, Shard, ShardStats, Start, Token, Triggers, Volume, Want,
    };
    pub use crate::properties::Durability;

    /// Structures of the log on disk.
    pub mod format {
        #[cfg(fuzzing)]
        pub use crate::cache::format::fuzzing;
        pub use crate::cache::format::{
            CoveredSegment, EntryKind, ExtentRows, Head, Kept, KeptExtent, PageChain, PageKind, Record,
            SegmentHeader, SegmentKey, Trailer, decode_record, encode_end, encode_rows, frame_crc,
        };
    }

    /// The index of one layer.
    pub mod index {
        pub use crate::cache::{Backing, Extent, Index, IndexLoader, Refs};
    }
}

/// The command line.
pub mod cli {
    pub use crate::cli::testing::{listing, refusal};
}

/// Keys of the configuration.
pub mod config {
    pub use crate::config::keys;
}

/// The daemon as a whole.
pub mod daemon {
    pub use crate::api::ApiStats;
    pub use crate::daemon::{DaemonStorage, MemoryHolders, StoreSide, measured_figures};
}

/// A disk, and requests to it.
pub mod export {
    pub use crate::export::{Export, Operation, Request};
}

/// Counters.
pub mod observe {
    pub use crate::observe::memory::{Resident, release_heap, release_program, tune_allocator};
    pub use crate::observe::metrics::{ExportHistograms, encode};
    pub use crate::observe::{counter, io};
}

/// The life cycle of exports.
pub mod router {
    pub use crate::properties::{Properties, PropertiesChange};
    pub use crate::router::{
        Begun, Catalog, CreateExport, DeviceError, DeviceId, DeviceOptions, Devices, ExportName, ExportSize,
        FoundDevice, InitialContent, Router, RouterOptions, Storage,
    };
}

/// The object store.
pub mod store {
    #[cfg(fuzzing)]
    pub use crate::store::block_cache_fuzzing;
    pub use crate::store::{
        Access, Backend, BlockCache, BlockCacheOptions, BoxError, Bucket, Created, Entropy, Folder, Key,
        Operation, PackId, RetryPolicy, Store, StoreError, StoreName, StoreOptions, StoreUrl, SystemClock,
        SystemEntropy, TrialSize, Variables, VolumeId, WriterId, gc, process_variables, volume,
    };

    /// Structures of objects.
    pub mod format {
        #[cfg(fuzzing)]
        pub use crate::store::format::fuzzing;
        pub use crate::store::format::{EncodedPack, PackBuilder, PackOptions};
    }
}

/// A worker, and what a device in the place of the kernel's needs.
pub mod worker {
    pub use crate::worker::cpus::{allowed, pin};
    pub use crate::worker::driver::{Failure, QueueDriver, QueueGone, TagEvent};
    pub use crate::worker::engine::Engine;
    pub use crate::worker::load::cpu_clock;
    pub use crate::worker::{Worker, WorkerOptions, start};
}

/// The implementations of CRC-32C, and the choice.
pub mod checksum {
    pub use crate::checksum::*;
}

/// Sectors, ids and sequence numbers.
pub mod units {
    pub use crate::units::*;
}
