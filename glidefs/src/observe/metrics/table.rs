//! The table of every metric: id, name, type, unit, labels, help.
//!
//! Owns what is shown and what it is called; does not own where figures come from (`sources`, and closures of the
//! layers above) nor how they are written (`encode`). Invariants: a metric that is not in the table cannot be shown,
//! because samples are given by [`Metric`], which is made from the table; `docs/metrics.md` repeats the table row by
//! row, which a test compares.

use crate::observe::counter::{IO_SIZE_BOUNDS_BYTES, LATENCY_BOUNDS_NANOS};

/// What kind of figure a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the daemon lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of requests by size, with the bounds [`IO_SIZE_BOUNDS_BYTES`].
    SizeHistogram,
    /// Counts of requests by duration, with the bounds [`LATENCY_BOUNDS_NANOS`].
    LatencyHistogram,
}

impl Kind {
    /// The type as the text format names it.
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::SizeHistogram | Self::LatencyHistogram => "histogram",
        }
    }

    /// Upper bounds of the buckets, inclusive and ascending; empty when the metric is not a histogram.
    pub const fn bounds(self) -> &'static [u64] {
        match self {
            Self::Counter | Self::Gauge => &[],
            Self::SizeHistogram => &IO_SIZE_BOUNDS_BYTES,
            Self::LatencyHistogram => &LATENCY_BOUNDS_NANOS,
        }
    }
}

/// What a metric is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Shown in seconds, handed over in nanoseconds.
    Seconds,
    /// A number of what the name says.
    Number,
    /// Always 1; the labels carry the information.
    Info,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// By what the code refers to it.
    pub metric: Metric,
    /// Its name on `/metrics`.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// What it is measured in.
    pub unit: Unit,
    /// Names of its labels, in the order in which samples give their values.
    pub labels: &'static [&'static str],
    /// What it tells, in a sentence.
    pub help: &'static str,
}

/// Every metric there is, in the order of the table.
pub fn all() -> impl ExactSizeIterator<Item = &'static Definition> {
    TABLE.iter()
}

impl Metric {
    /// The metric's row of the table.
    pub fn definition(self) -> &'static Definition {
        // Within bounds: the enum and the table are made from the same rows in the same order.
        &TABLE[self as usize]
    }
}

/// Makes the enum [`Metric`] and the table from rows
/// `Id: Kind "name" in Unit by [labels] = "help";`.
macro_rules! metrics {
    ($($id:ident: $kind:ident $name:literal in $unit:ident by [$($label:ident),*] = $help:literal;)*) => {
        /// Identity of a metric in the code.
        #[allow(clippy::doc_markdown, reason = "help is plain text")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Metric {
            $(#[doc = $help] $id,)*
        }

        static TABLE: &[Definition] = &[$(Definition {
            metric: Metric::$id,
            name: $name,
            kind: Kind::$kind,
            unit: Unit::$unit,
            labels: &[$(stringify!($label)),*],
            help: $help,
        },)*];
    };
}

metrics! {
    ReadIoSize: SizeHistogram "glidefs_read_io_size_bytes" in Bytes by [export]
        = "Sizes of completed READs.";
    WriteIoSize: SizeHistogram "glidefs_write_io_size_bytes" in Bytes by [export]
        = "Sizes of completed WRITEs.";
    ExportOperations: Counter "glidefs_export_operations_total" in Number by [export, operation]
        = "Requests completed without error; zero is DISCARD and WRITE_ZEROES.";
    ExportBytes: Counter "glidefs_export_bytes_total" in Bytes by [export, operation]
        = "Bytes read, written or zeroed by completed requests.";
    ExportLatency: LatencyHistogram "glidefs_export_latency_seconds" in Seconds by [export, operation]
        = "Time from fetching a request from its device to committing its result.";
    ExportErrors: Counter "glidefs_export_errors_total" in Number by [export, operation]
        = "Requests that failed; write includes DISCARD and WRITE_ZEROES.";
    ExportInFlight: Gauge "glidefs_export_in_flight_requests" in Number by [export]
        = "Requests fetched from the device and not yet committed.";
    ExportSize: Gauge "glidefs_export_size_bytes" in Bytes by [export]
        = "Size of the export.";
    ExportDirty: Gauge "glidefs_export_dirty_bytes" in Bytes by [export]
        = "Bytes of the export's newest data that only the local cache holds.";
    ExportAtRisk: Gauge "glidefs_export_at_risk_seconds" in Seconds by [export]
        = "Time since the oldest of the export's data that is not in the store was acknowledged, or since the daemon started if that is later; 0 when the store has all.";
    ExportDamaged: Gauge "glidefs_export_damaged_bytes" in Bytes by [export]
        = "Bytes whose content was lost before the store had it, as of the last flush: they fail on every host until they are written again or discarded.";
    ExportCut: Gauge "glidefs_export_cut_bytes" in Bytes by [export]
        = "Data in the export's cut that is on its way to the store; without a sample when none is.";
    ExportCutUploaded: Gauge "glidefs_export_cut_uploaded_bytes" in Bytes by [export]
        = "How much of the export's cut that is on its way is in the store, kept over tries.";
    ExportFanOut: Gauge "glidefs_export_fan_out_packs" in Number by [export]
        = "Packs of the store that a read of one sector of the export may have to ask, at most; writes are slowed above 64, and stopped before 128, until packs were merged.";
    ExportPacks: Gauge "glidefs_export_packs" in Number by [export]
        = "Packs in the store that the export's manifest lists; writes are slowed above 196608, and stopped at 245760 of the 262144 that it can list.";
    RouterExports: Gauge "glidefs_router_exports" in Number by [state]
        = "Exports by the state they are in.";
    RouterLost: Gauge "glidefs_router_lost_exports" in Number by [reason]
        = "Exports that fail all requests because another host has their volume: fenced, or the store has another history: diverged, or not the volume: deleted.";
    CatalogFailing: Gauge "glidefs_router_catalog_failing" in Number by []
        = "1 while the catalog cannot be written, 0 otherwise.";
    CatalogErrors: Counter "glidefs_router_catalog_errors_total" in Number by []
        = "Attempts to write the catalog, or to open it again after that, that failed.";

    PoolAcquires: Counter "glidefs_ublk_buffer_pool_acquires_total" in Number by [worker]
        = "Slots handed out by the worker's buffer pool.";
    PoolWaits: Counter "glidefs_ublk_buffer_pool_backpressure_waits_total" in Number by [worker]
        = "Acquires that had to wait because the arena was exhausted.";
    PoolWaitTime: Counter "glidefs_ublk_buffer_pool_wait_seconds_total" in Seconds by [worker]
        = "Time that acquires spent waiting for a slot.";
    PoolLive: Gauge "glidefs_ublk_buffer_pool_live_bytes" in Bytes by [worker]
        = "Bytes in slots that are out.";
    PoolLiveMax: Gauge "glidefs_ublk_buffer_pool_live_bytes_max" in Bytes by [worker]
        = "Most bytes that were ever in slots that are out.";
    PoolArena: Gauge "glidefs_ublk_buffer_pool_arena_bytes" in Bytes by [worker]
        = "Size of the arena: the bound of the worker's bounce memory.";
    PoolWorkersInitialized: Gauge "glidefs_ublk_buffer_pool_workers_initialized" in Number by []
        = "Workers that have made their arena and touched all of it.";

    WorkerInfo: Gauge "glidefs_worker_info" in Info by [worker, cpu]
        = "Always 1; tells which CPU the worker is pinned to.";
    WorkerQueues: Gauge "glidefs_worker_queues" in Number by [worker]
        = "Device queues the worker hosts.";
    WorkerTurns: Counter "glidefs_worker_turns_total" in Number by [worker]
        = "Turns of the worker's loop.";
    WorkerRequests: Counter "glidefs_worker_requests_total" in Number by [worker]
        = "Requests the worker fetched from devices.";
    WorkerRiskWaits: Counter "glidefs_worker_risk_waits_total" in Number by [worker]
        = "Writes held back because their export bounds what is at risk, or its packs are merged more slowly than it writes.";

    StoreRequests: Counter "glidefs_store_requests_total" in Number by [operation]
        = "Requests sent to the object store: get, put, list, delete, head.";
    StoreBytes: Counter "glidefs_store_bytes_total" in Bytes by [operation]
        = "Payload of requests to the object store that succeeded.";
    StoreRetries: Counter "glidefs_store_retries_total" in Number by [operation]
        = "Requests to the object store that were tries after the first.";
    StoreErrors: Counter "glidefs_store_errors_total" in Number by [operation]
        = "Requests to the object store that failed in the end.";
    StoreDamaged: Counter "glidefs_store_damaged_objects_total" in Number by []
        = "Objects that were read and were not what they should be.";
    StoreHedges: Counter "glidefs_store_hedges_total" in Number by []
        = "GETs of readers that took unusually long and were sent a second time.";
    StoreHedgesWon: Counter "glidefs_store_hedges_won_total" in Number by []
        = "GETs of readers whose second request was answered first.";
    StoreReads: Gauge "glidefs_store_reads_waiting" in Number by []
        = "READs that wait for bytes from the store.";
    StoreOldestRead: Gauge "glidefs_store_oldest_read_seconds" in Seconds by []
        = "Time that the oldest of the READs that wait for the store has waited; 0 when none does.";
    StoreRefused: Counter "glidefs_store_refused_total" in Number by []
        = "Requests that the object store refused because of who asked: credentials, permissions, a wrong place.";
    GcRuns: Counter "glidefs_store_gc_runs_total" in Number by [result]
        = "Garbage collections of the store by this host that ended well: done, or did not: failed.";
    GcOverdue: Gauge "glidefs_store_gc_overdue_seconds" in Seconds by []
        = "Time since the first collection began that none has ended well since; 0 when the last one did.";
    StoreGcDamaged: Gauge "glidefs_store_gc_damaged_objects" in Number by []
        = "Manifests and snapshots that the last garbage collection of this host could not read: what they may list is kept.";

    CleanHits: Counter "glidefs_clean_hits_total" in Number by [tier]
        = "Blocks of the store that were found in the clean cache: in memory, or on disk.";
    CleanMisses: Counter "glidefs_clean_misses_total" in Number by []
        = "Blocks of the store that readers needed and that were not in the clean cache.";
    CleanInserted: Counter "glidefs_clean_inserted_bytes_total" in Bytes by []
        = "Data taken into the clean cache.";
    CleanFetched: Counter "glidefs_clean_fetched_bytes_total" in Bytes by []
        = "Bytes read from the store for readers, ahead of them as well, as they are stored.";
    CleanWritten: Counter "glidefs_clean_written_bytes_total" in Bytes by []
        = "Bytes the clean cache wrote to its disk.";
    CleanUnwritten: Counter "glidefs_clean_unwritten_bytes_total" in Bytes by []
        = "Bytes that left the clean cache's memory and were not written because its disk was busy.";
    CleanBad: Counter "glidefs_clean_bad_blocks_total" in Number by []
        = "Blocks of the clean cache that were not what they should be and were fetched again.";
    CleanErrors: Counter "glidefs_clean_errors_total" in Number by []
        = "Reads and writes of the clean cache's disk that failed.";
    CleanMemory: Gauge "glidefs_clean_memory_bytes" in Bytes by []
        = "Memory the clean cache uses.";
    CleanDisk: Gauge "glidefs_clean_disk_bytes" in Bytes by []
        = "Disk space the clean cache uses.";
    AheadWindows: Counter "glidefs_read_ahead_windows_total" in Number by []
        = "Windows that were read ahead of sequential readers.";
    AheadBytes: Counter "glidefs_read_ahead_bytes_total" in Bytes by []
        = "Bytes that were read ahead, as they are stored.";
    AheadErrors: Counter "glidefs_read_ahead_errors_total" in Number by []
        = "Windows that were not read ahead, or only in part, because the store failed.";
    AheadSkipped: Counter "glidefs_read_ahead_skipped_total" in Number by []
        = "Windows that were not read ahead because too much was on its way.";

    CacheEngine: Gauge "glidefs_cache_engine_info" in Info by [engine]
        = "How the cache appends to its files; always 1.";
    CacheProbeAppend: Gauge "glidefs_cache_probe_append_seconds" in Seconds by [engine]
        = "Median time of an append of 36 KiB until it may be acknowledged, measured at start.";
    CacheProbeSync: Gauge "glidefs_cache_probe_synced_append_seconds" in Seconds by [engine]
        = "Median time of an append of 36 KiB with a sync behind it, measured at start.";
    CacheSizeSegments: Gauge "glidefs_cache_size_segments" in Number by []
        = "Segments that the configured size of the cache allows.";
    CacheSegments: Gauge "glidefs_cache_segments" in Number by [state]
        = "Segments by state: free, open for appends, sealed, poisoned by a disk that failed to sync, or quarantined because the disk does not read them or does not take what is written.";
    CacheSize: Gauge "glidefs_cache_size_bytes" in Bytes by []
        = "Configured size of the cache.";
    CacheUsed: Gauge "glidefs_cache_used_bytes" in Bytes by []
        = "Bytes of segments that are not free.";
    CacheDirty: Gauge "glidefs_cache_dirty_bytes" in Bytes by []
        = "Bytes of data in the cache that are not in the store.";
    CacheClean: Gauge "glidefs_cache_clean_bytes" in Bytes by []
        = "Bytes of data in the cache that are in the store as well, and are forgotten when their space is needed.";
    CacheExtents: Gauge "glidefs_cache_extents" in Number by []
        = "Extents in the indexes of all exports.";
    CacheCorruptFrames: Counter "glidefs_cache_corrupt_frames_total" in Number by []
        = "Frames that did not match their checksum.";
    CacheLostFrames: Counter "glidefs_cache_lost_frames_total" in Number by []
        = "Frames that were given up because the disk lost them: their sectors fail until they are written again.";
    CacheDoubted: Gauge "glidefs_cache_doubted_exports" in Number by []
        = "Exports that may have lost a record: all of them that was not written since fails, what the store has too, until it is written again. The next flush to the store ends the doubt and notes what was in doubt as damaged.";
    CacheBadFooters: Counter "glidefs_cache_bad_footers_total" in Number by []
        = "Segment headers, footers and record headers that could not be used, at start or while cleaning: copies, trailers or the records themselves serve instead, as far as they can.";
    CacheCleanedSegments: Counter "glidefs_cache_cleaned_segments_total" in Number by []
        = "Segments whose live data was moved so that their space could be used again.";
    CacheCleaned: Counter "glidefs_cache_cleaned_bytes_total" in Bytes by []
        = "Bytes moved by cleaning.";
    CacheEvicted: Counter "glidefs_cache_evicted_bytes_total" in Bytes by []
        = "Bytes that cleaning forgot because the store has them.";
    CacheAppends: Counter "glidefs_cache_appends_total" in Number by [shard]
        = "Records appended to the log.";
    CacheAppendedRequests: Counter "glidefs_cache_appended_requests_total" in Number by [shard]
        = "Requests in the appended records.";
    CacheAppended: Counter "glidefs_cache_appended_bytes_total" in Bytes by [shard]
        = "Bytes appended to the log, headers and padding included.";
    CacheAppendErrors: Counter "glidefs_cache_append_errors_total" in Number by [shard]
        = "Appends that failed.";
    CacheSyncs: Counter "glidefs_cache_syncs_total" in Number by [shard]
        = "Syncs asked of the disk.";
    CacheSyncErrors: Counter "glidefs_cache_sync_errors_total" in Number by [shard]
        = "Syncs that failed.";
    CacheSyncWaiters: Counter "glidefs_cache_sync_waiters_total" in Number by [shard]
        = "FLUSHes and FUA writes that waited for a sync.";
    CacheEmptyFlushes: Counter "glidefs_cache_empty_flushes_total" in Number by [shard]
        = "FLUSHes that found everything stable.";
    CacheReads: Counter "glidefs_cache_reads_total" in Number by [shard]
        = "READs served by the cache.";
    CacheReadPieces: Counter "glidefs_cache_read_pieces_total" in Number by [shard, source]
        = "Pieces of READs, by whether they came from the page_cache or waited for the disk.";
    CacheReadsRemote: Counter "glidefs_cache_reads_remote_total" in Number by [shard]
        = "READs that needed something that only the store has.";
    CacheReadErrors: Counter "glidefs_cache_read_errors_total" in Number by [shard]
        = "READs that the cache failed.";
    CacheWriteDelays: Counter "glidefs_cache_write_delays_total" in Number by [shard]
        = "Times a write was delayed because the cache was filling up.";
    CacheWriteWaits: Counter "glidefs_cache_write_waits_total" in Number by [shard]
        = "Times a write had to wait until the cache had room.";

    ApiConnections: Gauge "glidefs_api_connections" in Number by [door]
        = "Connections to the API: over tcp, over the socket, and those of a stranger, who may not use the socket.";
    ApiRefused: Counter "glidefs_api_refused_connections_total" in Number by [door]
        = "Connections that were closed at once because all others had requests.";
    ApiDisplaced: Counter "glidefs_api_displaced_connections_total" in Number by [door]
        = "Connections without a request, or slow to take an answer for which no token was needed, that were closed for a newer one because there were as many as may be.";
    ApiAcceptErrors: Counter "glidefs_api_accept_errors_total" in Number by [door]
        = "Times a connection could not be accepted, most often for lack of descriptors.";
    ApiScrapes: Counter "glidefs_api_scrapes_total" in Number by []
        = "Scrapes of /metrics that were asked for.";
    ApiEncodings: Counter "glidefs_api_encodings_total" in Number by []
        = "Texts that were made for them; scrapes that come together share one.";

    BuildInfo: Gauge "glidefs_build_info" in Info by [version]
        = "Always 1; tells the version of the daemon.";
    ProcessStart: Gauge "glidefs_process_start_time_seconds" in Seconds by []
        = "When the daemon started, as time since the Unix epoch.";
    ProcessResident: Gauge "glidefs_process_resident_memory_bytes" in Bytes by []
        = "Memory of the daemon that is in RAM, arenas included.";
    ProcessOpenFds: Gauge "glidefs_process_open_fds" in Number by []
        = "File descriptors the daemon has open.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write;

    use super::*;

    const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md"));

    const PARTS: [&str; 12] = [
        "read", "write", "export", "router", "ublk", "worker", "cache", "clean", "store", "api", "build",
        "process",
    ];

    #[test]
    fn names_are_prefix_part_what_and_unit_with_total_on_counters_only() {
        for Definition { name, kind, unit, .. } in all() {
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(!name.contains("__"), "{name}");
            let part =
                name.strip_prefix("glidefs_").and_then(|rest| rest.split('_').next()).unwrap_or_default();
            assert!(PARTS.contains(&part), "{name} begins with none of {PARTS:?}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            let stem = name.trim_end_matches("_total").trim_end_matches("_max");
            for (candidate, suffix) in
                [(Unit::Bytes, "_bytes"), (Unit::Seconds, "_seconds"), (Unit::Info, "_info")]
            {
                assert_eq!(stem.ends_with(suffix), *unit == candidate, "{name}");
            }
            // The text format gives these endings to the series of a histogram.
            for reserved in ["_bucket", "_sum", "_count"] {
                assert!(!name.ends_with(reserved), "{name}");
            }
        }
    }

    #[test]
    fn names_are_unique_and_every_id_finds_its_own_row() {
        let names: BTreeSet<_> = all().map(|definition| definition.name).collect();
        assert_eq!(names.len(), all().len());
        for definition in all() {
            assert_eq!(definition.metric.definition().name, definition.name);
        }
    }

    #[test]
    fn histograms_measure_what_their_bounds_measure() {
        for Definition { name, kind, unit, .. } in all() {
            match kind {
                Kind::SizeHistogram => assert_eq!(*unit, Unit::Bytes, "{name}"),
                Kind::LatencyHistogram => assert_eq!(*unit, Unit::Seconds, "{name}"),
                Kind::Counter | Kind::Gauge => assert!(kind.bounds().is_empty(), "{name}"),
            }
            assert!(kind.bounds().is_sorted(), "{name}");
        }
    }

    #[test]
    fn help_is_a_sentence_that_fits_a_row_and_labels_are_not_reserved() {
        for Definition { name, help, labels, .. } in all() {
            assert!(help.ends_with('.') && !help.contains(['\n', '|', '\\']), "{name}: {help}");
            assert!(!labels.iter().any(|label| ["le", "quantile"].contains(label)), "{name}: {labels:?}");
        }
    }

    #[test]
    fn the_document_lists_every_metric_as_the_table_has_it_and_no_other() {
        let mut missing = String::new();
        for Definition { name, kind, labels, help, .. } in all() {
            let labels = match labels {
                [] => "–".to_owned(),
                labels => labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", "),
            };
            let row = format!("| `{name}` | {} | {labels} | {help} |", kind.type_name());
            if !DOCUMENT.lines().any(|line| line == row) {
                writeln!(missing, "{row}").unwrap();
            }
        }
        assert_eq!(missing, "", "docs/metrics.md lacks the rows above");
        let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `glidefs_")).count();
        assert_eq!(rows, all().len(), "docs/metrics.md lists a metric that does not exist, or one twice");
    }
}
