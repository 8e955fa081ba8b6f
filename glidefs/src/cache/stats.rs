//! Counters and figures of the cache. Encoding and metric names live in `observe`.

use crate::observe::counter::Counter;

/// Counters of one shard; written by the shard's worker.
#[derive(Debug, Default)]
pub struct ShardStats {
    /// Records appended.
    pub appends: Counter,
    /// Requests in the appended records.
    pub appended_requests: Counter,
    /// Bytes appended, headers and padding included.
    pub appended_bytes: Counter,
    /// Failed appends.
    pub append_errors: Counter,
    /// Syncs asked for.
    pub syncs: Counter,
    /// Failed syncs.
    pub sync_errors: Counter,
    /// FLUSH requests and FUA writes waiting for a sync.
    pub sync_waiters: Counter,
    /// Records that were stable as soon as they were written.
    pub stable_appends: Counter,
    /// FLUSH requests with nothing to sync.
    pub empty_flushes: Counter,
    /// READs.
    pub reads: Counter,
    /// READs served from locked stretches of mapped segments, without a buffer.
    pub reads_mapped: Counter,
    /// Pieces of READs which waited for the disk.
    pub reads_waited: Counter,
    /// Reads of checksums from the disk, beside reads of data.
    pub sums_read: Counter,
    /// Memory on the heap for reads of the disk, bytes (a gauge).
    pub read_buffer_bytes: Counter,
    /// Failed READs.
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
    /// Segments with no data needed by anybody.
    pub segments_free: u64,
    /// Segments being appended to, or ready to be.
    pub segments_open: u64,
    /// Full segments with data in use.
    pub segments_sealed: u64,
    /// Segments which the disk failed to make stable.
    pub segments_poisoned: u64,
    /// Segments in quarantine: the disk fails reads or writes of their files.
    pub segments_quarantined: u64,
    /// Bytes the configured size allows.
    pub limit_bytes: u64,
    /// Bytes of segments not free.
    pub used_bytes: u64,
    /// Bytes of data not in the store.
    pub dirty_bytes: u64,
    /// Bytes of data in the store, and here as well.
    pub clean_bytes: u64,
    /// Extents in all indexes.
    pub extents: u64,
    /// Memory of all indexes, with the room kept for more extents, as the budget counts it: bytes, as if nothing were packed.
    pub index_bytes: u64,
    /// The part of `index_bytes` that packed leaves do not take.
    pub index_saved_bytes: u64,
    /// Most memory for all indexes.
    pub index_bytes_max: u64,
    /// Log space for data not in the store of all exports, in whole frames, bytes.
    pub log_bytes: u64,
    /// Most log space for data not in the store of all exports, bytes; `None` without a store.
    pub log_bytes_max: Option<u64>,
    /// Memory of the table of segments, without checksums.
    pub table_bytes: u64,
    /// Frames found with a wrong checksum since the cache was opened.
    pub corrupt_frames: u64,
    /// Frames given up since the cache was opened: the sectors fail until they are written again.
    pub lost_frames: u64,
    /// Exports with a doubt: a record may be lost.
    pub doubted_exports: u64,
    /// Footers unusable for recovery, and made up for by a scan.
    pub bad_footers: u64,
    /// Checkpoints of the index written since the cache was opened.
    pub checkpoints_written: u64,
    /// Checkpoints not used by the start because of damage, of the checkpoint or of the log.
    pub checkpoints_refused: u64,
    /// Segments cleaned: live data was moved to free the segment's space.
    pub segments_cleaned: u64,
    /// Bytes moved by cleaning.
    pub cleaned_bytes: u64,
    /// Memory taken by checksums of data in the cache.
    pub checksum_bytes: u64,
    /// Segments whose checksums came from the footer or the record headers, since the sums could not be used.
    pub checksums_restored: u64,
    /// Bytes forgotten because the store has the data.
    pub evicted_bytes: u64,
}
