//! The samples of parts of the daemon that do not grow with the number of exports.
//!
//! Owns which figure of a part goes into which metric. Does not own when samples are taken.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::api::ApiStats;
use crate::cache::{CacheStats, ShardStats};
use crate::daemon::collecting::Collections;
use crate::observe::counter::Counter;
use crate::observe::metrics::{Metric, Samples};
use crate::store::{BlockCacheCounters, Operation, Store};
use crate::units::nanos;

pub(super) fn cache_samples(stats: &CacheStats, out: &mut Samples) {
    for (state, segments) in [
        ("free", stats.segments_free),
        ("open", stats.segments_open),
        ("sealed", stats.segments_sealed),
        ("poisoned", stats.segments_poisoned),
        ("quarantined", stats.segments_quarantined),
    ] {
        out.value(Metric::CacheSegments, &[state], segments);
    }
    let plain = [
        (Metric::CacheSize, stats.limit_bytes),
        (Metric::CacheUsed, stats.used_bytes),
        (Metric::CacheDirty, stats.dirty_bytes),
        (Metric::CacheClean, stats.clean_bytes),
        (Metric::CacheExtents, stats.extents),
        (Metric::CacheIndex, stats.index_bytes),
        (Metric::CacheIndexMax, stats.index_bytes_max),
        (Metric::CacheCorruptFrames, stats.corrupt_frames),
        (Metric::CacheLostFrames, stats.lost_frames),
        (Metric::CacheDoubted, stats.doubted_exports),
        (Metric::CacheBadFooters, stats.bad_footers),
        (Metric::CacheCheckpoints, stats.checkpoints_written),
        (Metric::CacheCheckpointsRefused, stats.checkpoints_refused),
        (Metric::CacheCleaned, stats.cleaned_bytes),
        (Metric::CacheEvicted, stats.evicted_bytes),
        (Metric::CacheChecksumsRestored, stats.checksums_restored),
    ];
    out.values(&[], plain);
    if let Some(log_bytes_max) = stats.log_bytes_max {
        out.values(&[], [(Metric::CacheLog, stats.log_bytes), (Metric::CacheLogMax, log_bytes_max)]);
    }
}

pub(super) fn store_samples(store: &Store, out: &mut Samples) {
    let (stats, reads) = (store.stats(), store.reads_waiting());
    for operation in Operation::ALL {
        let of = stats.of(operation);
        let cells = [
            (Metric::StoreRequests, &of.requests),
            (Metric::StoreBytes, &of.bytes),
            (Metric::StoreRetries, &of.retries),
            (Metric::StoreErrors, &of.errors),
        ];
        out.values(&[operation.name()], cells.map(|(metric, cell)| (metric, cell.get())));
    }
    out.value(Metric::StoreDamaged, &[], stats.damaged.get());
    out.value(Metric::StoreTakenBack, &[], stats.taken_back.get());
    out.value(Metric::StoreHedges, &[], stats.hedges.get());
    out.value(Metric::StoreHedgesWon, &[], stats.hedges_won.get());
    out.value(Metric::StoreReads, &[], reads.count);
    out.value(Metric::StoreOldestRead, &[], nanos(reads.oldest));
    out.value(Metric::StoreGcDamaged, &[], stats.gc_damaged.load(Ordering::Relaxed));
    out.value(Metric::StoreRefused, &[], stats.refused.get());
    out.value(Metric::StoreAway, &[], u64::from(store.away().is_some()));
    out.value(Metric::StoreUp, &[], u64::from(store.is_up()));
}

pub(super) fn collection_samples(collections: &Collections, out: &mut Samples) {
    out.value(Metric::GcOverdue, &[], nanos(collections.overdue(Instant::now())));
}

pub(super) fn api_samples(stats: &ApiStats, out: &mut Samples) {
    let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
    for (door, stats) in [("tcp", &stats.tcp), ("socket", &stats.socket)] {
        let cells = [
            (Metric::ApiConnections, &stats.connections),
            (Metric::ApiRefused, &stats.refused),
            (Metric::ApiDisplaced, &stats.displaced),
            (Metric::ApiAcceptErrors, &stats.accept_errors),
        ];
        out.values(&[door], cells.map(|(metric, cell)| (metric, get(cell))));
    }
    out.value(Metric::ApiEncodings, &[], get(&stats.scrapes.encodings));
    for (part, is_troubled) in stats.troubles.states() {
        out.value(Metric::Trouble, &[part], u64::from(is_troubled));
    }
}

pub(super) fn clean_samples(counters: &BlockCacheCounters, out: &mut Samples) {
    out.value(Metric::CleanHits, &["memory"], counters.memory_hits.get());
    out.value(Metric::CleanHits, &["disk"], counters.disk_hits.get());
    out.values(
        &[],
        [
            (Metric::CleanMisses, counters.misses.get()),
            (Metric::CleanFetched, counters.fetched_bytes.get()),
            (Metric::CleanErrors, counters.errors.get()),
            (Metric::AheadBytes, counters.ahead_bytes.get()),
        ],
    );
}

pub(super) fn shard_samples(shard: &str, stats: &ShardStats, out: &mut Samples) {
    let cells: [(Metric, &Counter); 13] = [
        (Metric::CacheAppends, &stats.appends),
        (Metric::CacheAppendedRequests, &stats.appended_requests),
        (Metric::CacheAppended, &stats.appended_bytes),
        (Metric::CacheAppendErrors, &stats.append_errors),
        (Metric::CacheSyncs, &stats.syncs),
        (Metric::CacheSyncErrors, &stats.sync_errors),
        (Metric::CacheSyncWaiters, &stats.sync_waiters),
        (Metric::CacheStableAppends, &stats.stable_appends),
        (Metric::CacheReads, &stats.reads),
        (Metric::CacheReadsMapped, &stats.reads_mapped),
        (Metric::CacheReadErrors, &stats.read_errors),
        (Metric::CacheWriteDelays, &stats.delays),
        (Metric::CacheWriteWaits, &stats.waits),
    ];
    out.values(&[shard], cells.map(|(metric, cell)| (metric, cell.get())));
}
