//! What the cache counts. Encoding and metric names live in `observe`.

use crate::observe::counter::Counter;

/// Counters of one shard; written by the worker that owns it.
#[derive(Debug, Default)]
pub struct ShardStats {
    /// Records appended.
    pub appends: Counter,
    /// Requests in those records.
    pub appended_requests: Counter,
    /// Bytes appended, headers and padding included.
    pub appended_bytes: Counter,
    /// Appends that failed.
    pub append_errors: Counter,
    /// Syncs asked for.
    pub syncs: Counter,
    /// Syncs that failed.
    pub sync_errors: Counter,
    /// FLUSH requests and FUA writes that waited for a sync.
    pub sync_waiters: Counter,
    /// FLUSH requests that found nothing unsynced.
    pub empty_flushes: Counter,
    /// READs.
    pub reads: Counter,
    /// Pieces of READs that were in the page cache.
    pub reads_now: Counter,
    /// Pieces of READs that waited for the disk.
    pub reads_waited: Counter,
    /// READs that needed something of the store.
    pub reads_remote: Counter,
    /// READs that failed.
    pub read_errors: Counter,
    /// Times a write was told to wait for a moment because the cache fills up.
    pub delays: Counter,
    /// Times a write was told to wait until there is room.
    pub waits: Counter,
}

/// Figures of the whole cache at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Segments the configured size allows.
    pub segments: u64,
    /// Segments that hold nothing anybody needs.
    pub segments_free: u64,
    /// Segments being appended to, or ready to be.
    pub segments_open: u64,
    /// Segments that are full and still hold data.
    pub segments_sealed: u64,
    /// Segments whose disk failed to make them stable.
    pub segments_poisoned: u64,
    /// Segments whose files cannot be read and are not used.
    pub segments_quarantined: u64,
    /// Bytes the configured size allows.
    pub limit_bytes: u64,
    /// Bytes of segments that are not free.
    pub used_bytes: u64,
    /// Bytes of data that are not in the store.
    pub dirty_bytes: u64,
    /// Bytes of data that are in the store, and here as well.
    pub clean_bytes: u64,
    /// Extents in all indexes.
    pub extents: u64,
    /// Frames that did not match their checksum since the cache was opened.
    pub corrupt_frames: u64,
    /// Frames that were given up since the cache was opened: their sectors fail until they are written again.
    pub lost_frames: u64,
    /// Exports that may have lost a record.
    pub doubted_exports: u64,
    /// Footers that recovery could not use and made up for by a scan.
    pub bad_footers: u64,
    /// Segments cleaned: their live data moved so that their space could be used again.
    pub segments_cleaned: u64,
    /// Bytes moved by cleaning.
    pub cleaned_bytes: u64,
    /// Bytes forgotten because the store has them.
    pub evicted_bytes: u64,
}
