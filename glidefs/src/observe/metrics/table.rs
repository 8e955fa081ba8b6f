//! The table of every metric: id, name, type, unit, labels, help.
//!
//! Owns the names and descriptions of metrics. Does not own the figures (`sources`, and closures of the layers above) nor the
//! text (`encode`). Invariants: only a metric of the table can be shown, because a sample names a [`Metric`], an enum made
//! from the table; `docs/metrics.md` repeats the table row by row, as a test checks.

use crate::observe::counter::{IO_SIZE_BOUNDS_BYTES, LATENCY_BOUNDS_NANOS};

/// The type of a metric, with the bounds of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the daemon runs.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of requests by size, with the bounds [`IO_SIZE_BOUNDS_BYTES`].
    SizeHistogram,
    /// Counts of requests by duration, with the bounds [`LATENCY_BOUNDS_NANOS`].
    LatencyHistogram,
}

impl Kind {
    /// The name of the type in the text format.
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::SizeHistogram | Self::LatencyHistogram => "histogram",
        }
    }

    /// Upper bounds of the buckets, inclusive and ascending; empty for a counter or gauge.
    pub const fn bounds(self) -> &'static [u64] {
        match self {
            Self::Counter | Self::Gauge => &[],
            Self::SizeHistogram => &IO_SIZE_BOUNDS_BYTES,
            Self::LatencyHistogram => &LATENCY_BOUNDS_NANOS,
        }
    }
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Shown in bytes.
    Bytes,
    /// Shown in seconds; sources give nanoseconds.
    Seconds,
    /// A count of the things named by the metric.
    Number,
    /// The value is always 1; the labels carry the information.
    Info,
}

/// A row of the table: one metric.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// The id of the metric in the code.
    pub metric: Metric,
    /// The name of the metric on `/metrics`.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// The unit of the values shown.
    pub unit: Unit,
    /// Names of the labels. Samples give the values in the same order.
    pub labels: &'static [&'static str],
    /// The meaning of the metric, in sentences.
    pub help: &'static str,
}

/// All metrics, in the order of the table.
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
        /// The id of a metric in the code.
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
        = "Time from fetching a request from the device to committing the result.";
    ExportErrors: Counter "glidefs_export_errors_total" in Number by [export, operation]
        = "Requests that failed; write includes DISCARD and WRITE_ZEROES.";
    ExportInFlight: Gauge "glidefs_export_in_flight_requests" in Number by [export]
        = "Requests fetched from the device and not yet committed.";
    ExportThrottledTime: Counter "glidefs_export_throttled_seconds_total" in Seconds by [export, limit]
        = "Time that requests waited because of a limit of the export.";
    ExportSize: Gauge "glidefs_export_size_bytes" in Bytes by [export]
        = "Size of the export.";
    ExportDirty: Gauge "glidefs_export_dirty_bytes" in Bytes by [export]
        = "Bytes at risk: the part of the export's newest data that only the local cache has.";
    ExportAtRisk: Gauge "glidefs_export_at_risk_seconds" in Seconds by [export]
        = "Time since the oldest data at risk of the export was acknowledged, or since the daemon started if the start is later; 0 when the store has all data.";
    ExportIndexHeldTime: Counter "glidefs_export_index_held_seconds_total" in Seconds by [export]
        = "Time in which writes of the export were held back because the index may not grow, summed over workers.";
    ExportLog: Gauge "glidefs_export_log_bytes" in Bytes by [export]
        = "Log space of the export's data that is not in the store, in whole frames; no sample without a store, or for an export which is not busy, unless writes of the export were held back because of the log.";
    ExportLogHeldTime: Counter "glidefs_export_log_held_seconds_total" in Seconds by [export]
        = "Time in which writes of the export were held back because the export has its share of the log, summed over workers.";
    ExportDamaged: Gauge "glidefs_export_damaged_bytes" in Bytes by [export]
        = "Bytes whose content was lost before the store had the content, as of the last writeback: reads of these bytes fail on every host until the bytes are written again or discarded.";
    ExportCut: Gauge "glidefs_export_cut_bytes" in Bytes by [export]
        = "Data in the export's cut on the way to the store; no sample without such a cut.";
    ExportCutUploaded: Gauge "glidefs_export_cut_uploaded_bytes" in Bytes by [export]
        = "The part of the export's cut already in the store; a failed try does not reset the value.";
    ExportFanOut: Gauge "glidefs_export_fan_out_packs" in Number by [export]
        = "Most packs that a READ of one sector of the export may have to ask; writes are slowed above 64, and stopped before 128, until packs were merged.";
    ExportPacks: Gauge "glidefs_export_packs" in Number by [export]
        = "Packs in the export's manifest; writes are slowed above 196608, and stopped at 245760 of the 262144 packs that a manifest can list.";
    Memory: Gauge "glidefs_memory_bytes" in Bytes by [category]
        = "Resident memory by category; the rest is other heap, heap that the allocator keeps for later, and stacks.";
    RouterExports: Gauge "glidefs_router_exports" in Number by [state]
        = "Exports by state.";
    RouterLost: Gauge "glidefs_router_lost_exports" in Number by [reason]
        = "Exports that fail all requests, by reason. fenced: another host has the volume; diverged: the store has another history; deleted: the store does not have the volume.";
    CatalogFailing: Gauge "glidefs_router_catalog_failing" in Number by []
        = "1 while the catalog cannot be written, 0 otherwise.";
    CatalogErrors: Counter "glidefs_router_catalog_errors_total" in Number by []
        = "Failed attempts to write the catalog, or to open the catalog again afterwards.";

    PoolAcquires: Counter "glidefs_ublk_buffer_pool_acquires_total" in Number by [worker]
        = "Slots handed out by the worker's buffer pool.";
    PoolWaits: Counter "glidefs_ublk_buffer_pool_backpressure_waits_total" in Number by [worker]
        = "Acquires that had to wait because the arena was exhausted.";
    PoolWaitTime: Counter "glidefs_ublk_buffer_pool_wait_seconds_total" in Seconds by [worker]
        = "Time that acquires spent waiting for a slot.";
    PoolLive: Gauge "glidefs_ublk_buffer_pool_live_bytes" in Bytes by [worker]
        = "Bytes in slots that are out.";
    PoolLiveMax: Gauge "glidefs_ublk_buffer_pool_live_bytes_max" in Bytes by [worker]
        = "Most bytes ever in slots that were out at the same time.";
    PoolArena: Gauge "glidefs_ublk_buffer_pool_arena_bytes" in Bytes by [worker]
        = "Size of the arena: the bound of the worker's memory for requests.";
    PoolWorkersInitialized: Gauge "glidefs_ublk_buffer_pool_workers_initialized" in Number by []
        = "Workers that have made an arena and touched the whole arena.";

    WorkerQueues: Gauge "glidefs_worker_queues" in Number by [worker]
        = "Device queues the worker hosts.";
    WorkerCpu: Counter "glidefs_worker_cpu_seconds_total" in Seconds by [worker]
        = "CPU time of the worker's thread, in user space and in the kernel.";
    WorkerTurns: Counter "glidefs_worker_turns_total" in Number by [worker]
        = "Turns of the worker's loop.";
    WorkerRequests: Counter "glidefs_worker_requests_total" in Number by [worker]
        = "Requests the worker fetched from devices.";
    WorkerRiskWaits: Counter "glidefs_worker_risk_waits_total" in Number by [worker]
        = "Writes held back because the export bounds the data at risk, or because the export is written faster than packs are merged.";
    WorkerLogWaits: Counter "glidefs_worker_log_waits_total" in Number by [worker]
        = "Writes held back because the export has its share of the log.";
    WorkerLogLine: Gauge "glidefs_worker_log_line_writes" in Number by [worker]
        = "Writes that wait until the cache has room, without those that are slowed down only.";

    StoreRequests: Counter "glidefs_store_requests_total" in Number by [operation]
        = "Requests sent to the object store: get, put, list, delete, head.";
    StoreBytes: Counter "glidefs_store_bytes_total" in Bytes by [operation]
        = "Payload of requests to the object store that succeeded.";
    StoreRetries: Counter "glidefs_store_retries_total" in Number by [operation]
        = "Tries of requests to the object store after the first try.";
    StoreErrors: Counter "glidefs_store_errors_total" in Number by [operation]
        = "Requests to the object store that failed in the end.";
    StoreDamaged: Counter "glidefs_store_damaged_objects_total" in Number by []
        = "Objects that were read and found damaged.";
    StoreTakenBack: Counter "glidefs_store_answers_taken_back_total" in Number by []
        = "Times that the store said for a moment that an object is missing which was there, or is there which was missing.";
    StoreHedges: Counter "glidefs_store_hedges_total" in Number by []
        = "GETs of readers that took unusually long and were sent a second time.";
    StoreHedgesWon: Counter "glidefs_store_hedges_won_total" in Number by []
        = "GETs of readers whose second request was answered first.";
    StoreReads: Gauge "glidefs_store_reads_waiting" in Number by []
        = "READs that wait for bytes from the store.";
    StoreOldestRead: Gauge "glidefs_store_oldest_read_seconds" in Seconds by []
        = "Waiting time of the READ that has waited for the store for longest; 0 when no READ waits.";
    StoreReadMemory: Gauge "glidefs_store_read_memory_bytes" in Bytes by []
        = "Memory set aside for READs: for their blocks, and then for their bytes until a worker has copied these; above 64 MiB by less than two READs need.";
    StoreRefused: Counter "glidefs_store_refused_total" in Number by []
        = "Requests that the object store refused because of credentials, permissions or a wrong place.";
    StoreUp: Gauge "glidefs_store_up" in Number by []
        = "1 while the store does what it is asked; 0 before the first answer, and while it does not answer, refuses requests other than deletions or is not at its place.";
    StoreAway: Gauge "glidefs_store_away" in Number by []
        = "1 from the first look since the start that does not find the store at its place until a look finds it, else 0: nothing is written back or fetched then.";
    GcOverdue: Gauge "glidefs_store_gc_overdue_seconds" in Seconds by []
        = "Time since the begin of the first garbage collection after the last successful one, of this host or another; 0 when the last one was successful.";
    StoreGcDamaged: Gauge "glidefs_store_gc_damaged_objects" in Number by []
        = "Manifests, snapshots and removal records that the last garbage collection of this host could not read, with every pack kept that a manifest or snapshot may list; and packs in use that are missing.";

    CleanHits: Counter "glidefs_clean_hits_total" in Number by [tier]
        = "Blocks found in the block cache: in memory, or on disk.";
    CleanMisses: Counter "glidefs_clean_misses_total" in Number by []
        = "Blocks that readers needed and the block cache did not have.";
    CleanFetched: Counter "glidefs_clean_fetched_bytes_total" in Bytes by []
        = "Bytes fetched from the store for readers, read-ahead included, in stored (compressed) form.";
    CleanErrors: Counter "glidefs_clean_errors_total" in Number by []
        = "Reads and writes of the block cache's disk that failed.";
    AheadBytes: Counter "glidefs_read_ahead_bytes_total" in Bytes by []
        = "Bytes read ahead, in stored (compressed) form.";

    CacheEngine: Gauge "glidefs_cache_engine_info" in Info by [engine]
        = "Always 1; the label engine says how workers append to the log.";
    CacheSegments: Gauge "glidefs_cache_segments" in Number by [state]
        = "Segments by state: free, open for appends, sealed, poisoned by a failed sync, or quarantined because the disk fails reads or writes of the segment.";
    CacheSize: Gauge "glidefs_cache_size_bytes" in Bytes by []
        = "Configured size of the cache.";
    CacheUsed: Gauge "glidefs_cache_used_bytes" in Bytes by []
        = "Bytes of segments that are not free.";
    CacheDirty: Gauge "glidefs_cache_dirty_bytes" in Bytes by []
        = "Bytes of data in the cache that are not in the store.";
    CacheClean: Gauge "glidefs_cache_clean_bytes" in Bytes by []
        = "Bytes of clean data in the cache: the store has the data as well, and the cache evicts the data when space is needed.";
    CacheExtents: Gauge "glidefs_cache_extents" in Number by []
        = "Extents in the indexes of all exports.";
    CacheIndex: Gauge "glidefs_cache_index_bytes" in Bytes by []
        = "Memory of the indexes of all exports as the budget counts it: extents loaded at a start count as if a write had come near.";
    CacheIndexMax: Gauge "glidefs_cache_index_max_bytes" in Bytes by []
        = "Most memory for the indexes of all exports.";
    CacheLog: Gauge "glidefs_cache_log_bytes" in Bytes by []
        = "Log space of data of all exports that is not in the store, in whole frames; no sample without a store.";
    CacheLogMax: Gauge "glidefs_cache_log_max_bytes" in Bytes by []
        = "Most log space for data of all exports that is not in the store; no sample without a store.";
    CacheCorruptFrames: Counter "glidefs_cache_corrupt_frames_total" in Number by []
        = "Frames that did not match their checksum.";
    CacheLostFrames: Counter "glidefs_cache_lost_frames_total" in Number by []
        = "Frames that the disk has lost for good; the sectors of such a frame fail until they are written again.";
    CacheDoubted: Gauge "glidefs_cache_doubted_exports" in Number by []
        = "Exports in doubt, which may have lost a record: all sectors not written since the doubt began fail, even those that the store has, until written again. The next writeback ends the doubt and notes the sectors in doubt as damaged.";
    CacheBadFooters: Counter "glidefs_cache_bad_footers_total" in Number by []
        = "Segment headers, footers and record headers that could not be used, at start or later; copies, trailers or the records serve instead, as far as possible.";
    CacheCheckpoints: Counter "glidefs_cache_checkpoints_total" in Number by []
        = "Checkpoints of the index written: the next start reads the footers of segments sealed since.";
    CacheCheckpointsRefused: Counter "glidefs_cache_checkpoints_refused_total" in Number by []
        = "Checkpoints of the index which the start did not use: the checkpoint is damaged or not of this log, or the log has a loss. The start read all of the log instead.";
    CacheCleaned: Counter "glidefs_cache_cleaned_bytes_total" in Bytes by []
        = "Bytes moved by the cleaner.";
    CacheEvicted: Counter "glidefs_cache_evicted_bytes_total" in Bytes by []
        = "Bytes of clean data evicted from the cache; the store has the data.";
    CacheChecksumsRestored: Counter "glidefs_cache_restored_checksums_total" in Number by []
        = "Times the checksums of a sealed segment came from the footer or the record headers, because those behind the footer are damaged, or an older glidefs wrote none.";
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
    CacheStableAppends: Counter "glidefs_cache_stable_appends_total" in Number by [shard]
        = "Appends that were stable when written, because a FLUSH was expected.";
    CacheReads: Counter "glidefs_cache_reads_total" in Number by [shard]
        = "READs served by the cache.";
    CacheReadsMapped: Counter "glidefs_cache_reads_mapped_total" in Number by [shard]
        = "READs served from data locked in memory, without a buffer.";
    CacheReadErrors: Counter "glidefs_cache_read_errors_total" in Number by [shard]
        = "READs that the cache failed.";
    CacheWriteDelays: Counter "glidefs_cache_write_delays_total" in Number by [shard]
        = "Times a write was delayed because the cache was filling up.";
    CacheWriteWaits: Counter "glidefs_cache_write_waits_total" in Number by [shard]
        = "Times a write had to wait until the cache had room.";

    ApiConnections: Gauge "glidefs_api_connections" in Number by [door]
        = "Connections to the API by door: over tcp, or over the socket.";
    ApiRefused: Counter "glidefs_api_refused_connections_total" in Number by [door]
        = "Connections that were closed at once because all others had requests.";
    ApiDisplaced: Counter "glidefs_api_displaced_connections_total" in Number by [door]
        = "Connections closed for a newer one at the limit: those without a request, and those slow to take an answer to a request without the token.";
    ApiAcceptErrors: Counter "glidefs_api_accept_errors_total" in Number by [door]
        = "Times a connection could not be accepted, most often for lack of descriptors.";
    ApiEncodings: Counter "glidefs_api_encodings_total" in Number by []
        = "Texts made for scrapes of /metrics; scrapes that come together share one text.";
    Trouble: Gauge "glidefs_daemon_trouble" in Number by [part]
        = "1 where this part does not work: tcp, socket, group or token of the API, disk of the cache, or configuration, of which an earlier one is used.";

    UpgradePauseMax: Gauge "glidefs_upgrade_pause_seconds_max" in Seconds by []
        = "Longest time for which requests of a device waited for this daemon to take over from the daemon before; only after an upgrade.";
    UpgradePauseMedian: Gauge "glidefs_upgrade_pause_median_seconds" in Seconds by []
        = "Median of the times for which requests of the devices waited for this daemon to take over; only after an upgrade.";
    BuildInfo: Gauge "glidefs_build_info" in Info by [version]
        = "Always 1; the label version is the version of the daemon.";
    ProcessStart: Gauge "glidefs_process_start_time_seconds" in Seconds by []
        = "When the daemon started, as time since the Unix epoch.";
    ProcessResident: Gauge "glidefs_process_resident_memory_bytes" in Bytes by []
        = "Memory of the daemon that is in RAM, arenas included.";
    ProcessOpenFds: Gauge "glidefs_process_open_fds" in Number by []
        = "File descriptors the daemon has open.";
    LogLinesLost: Counter "glidefs_log_lines_lost_total" in Number by []
        = "Lines of the log that nobody took in time: journald, or the reader of standard error, stands still.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write;

    use super::*;

    const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md"));

    const PARTS: [&str; 16] = [
        "read", "write", "export", "router", "ublk", "worker", "cache", "clean", "store", "api", "build",
        "process", "memory", "upgrade", "daemon", "log",
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
