//! The content of `/v1/top`, gathered from the parts of the daemon.
//!
//! Owns which figure of a part goes into which field, and the warnings. Does not own the figures, nor alerts: those are for Prometheus. Invariant: an
//! export costs one look at its state and, once used, one read of its counters; nothing here runs on a worker, or waits for I/O.

use std::time::{Duration, Instant};

use super::figures::{Parts, worker_status};
use crate::api::wire::{
    ExportCounts, Top, TopCache, TopExport, TopIo, TopRequests, TopRisk, TopStore, TopStoreOperation,
};
use crate::cache::Resource;
use crate::export::{Export, Throttle};
use crate::observe::counter::{Histogram, LATENCY_BOUNDS_NANOS};
use crate::router::Glance;
use crate::store::{BlockCache, BlockCacheCounters, Operation, Store};
use crate::units::{nanos, unix_millis};

/// A READ that waits longer for the store is worth a warning.
const READ_WAIT_LONG: Duration = Duration::from_mins(1);

impl Parts {
    /// The figures of this moment, those of all exports included.
    /// `instance` is that of all answers, and time counts from `started`.
    pub(super) fn top(&self, instance: &str, started: Instant, is_ready: bool) -> Top {
        // Read before the counters: each counter is read at a moment between here and the answer.
        let uptime = nanos(started.elapsed());
        let mut top = Top {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            instance: instance.into(),
            ready: is_ready,
            uptime_nanoseconds: uptime,
            unix_milliseconds: unix_millis(),
            counts: ExportCounts { max: self.router.options.exports_max as u64, ..ExportCounts::default() },
            store: self.store.as_ref().map(|store| self.of_store(store)),
            workers: self.workers.iter().map(worker_status).collect(),
            latency_bounds_nanoseconds: LATENCY_BOUNDS_NANOS.to_vec(),
            ..Top::default()
        };
        self.router.visit(|glance| {
            let export = look(&glance);
            count(&mut top.counts, &mut top.at_risk, &glance, &export);
            top.exports.push(export);
        });
        let stats = self.cache.stats();
        let waiting_writes = self.workers.iter().map(|worker| worker.stats.log_line.get()).sum();
        top.cache = TopCache {
            size_bytes: stats.limit_bytes,
            used_bytes: stats.used_bytes,
            dirty_bytes: stats.dirty_bytes,
            clean_bytes: stats.clean_bytes,
            waiting_writes,
        };
        top.warnings = warnings(self);
        top
    }

    fn of_store(&self, store: &Store) -> TopStore {
        let (stats, reads) = (store.stats(), store.reads_waiting());
        let operation = |operation: Operation| {
            let of = stats.of(operation);
            TopStoreOperation {
                operation: operation.name().into(),
                requests: of.requests.get(),
                bytes: of.bytes.get(),
                errors: of.errors.get(),
            }
        };
        let blocks = self.block_cache.as_ref().map(BlockCache::counters);
        let hits = |of: &BlockCacheCounters| of.memory_hits.get().saturating_add(of.disk_hits.get());
        TopStore {
            status: store.state(),
            operations: Operation::ALL.into_iter().map(operation).collect(),
            waiting_reads: reads.count,
            oldest_read_seconds: reads.oldest.as_secs(),
            block_cache_hits: blocks.map_or(0, hits),
            block_cache_misses: blocks.map_or(0, |of| of.misses.get()),
        }
    }
}

/// What somebody has to do something about now, a sentence each.
pub(super) fn warnings(parts: &Parts) -> Vec<String> {
    let (stats, store) = (parts.cache.stats(), parts.store.as_ref());
    let damaged = stats.corrupt_frames + stats.lost_frames + stats.doubted_exports;
    let waiting_writes: u64 = parts.workers.iter().map(|worker| worker.stats.log_line.get()).sum();
    let reads = store.map(Store::reads_waiting).filter(|reads| reads.oldest > READ_WAIT_LONG);
    let some = |holds: bool, text: &str| holds.then(|| text.to_owned());
    let warnings = [
        some(
            damaged > 0,
            "data in the cache is damaged, and reads of it fail until it is written again: see *a damaged segment* in docs/operations.md",
        ),
        some(
            stats.segments_poisoned + stats.segments_quarantined > 0,
            "the disk under the cache has failed to write, read or sync segments: replace the disk",
        ),
        parts.router.catalog_health().failing().map(|reason| {
            format!("the catalog cannot be written: {reason}: make room on the disk of cache.dir")
        }),
        Some(parts.router.held_back().join(", ")).filter(|names| !names.is_empty()).map(|names| {
            format!("the daemon died twice of these exports, and does not serve them: {names}: glidefs export show NAME")
        }),
        store.and_then(|store| store.state().error).map(|error| format!("the store cannot be used: {error}")),
        reads.map(|reads| format!("reads wait for the store, the oldest for {} s", reads.oldest.as_secs())),
        some(
            waiting_writes > 0,
            "writes wait because the cache is full: is the store reachable and fast enough, or the cache too small?",
        ),
    ];
    warnings.into_iter().flatten().chain(parts.troubles.sentences()).collect()
}

fn look(glance: &Glance<'_>) -> TopExport {
    let mut shown = TopExport {
        name: glance.name.into(),
        state: glance.state.into(),
        size_bytes: glance.size_bytes,
        ..TopExport::default()
    };
    let Some(export) = glance.export else { return shown };
    let volume = export.volume();
    let figures = volume.figures();
    shown.dirty_bytes = figures.dirty_bytes;
    shown.at_risk_seconds = figures.at_risk_for.as_secs();
    shown.damaged_bytes = volume.damaged_bytes().unwrap_or(0);
    shown.waiting_for = volume.waits_for().map(|resource| resource.name().into());
    shown.io = (glance.may_have_device && export.is_used()).then(|| requests(export));
    shown
}

/// Adds an export to the sums of all exports.
fn count(counts: &mut ExportCounts, at_risk: &mut TopRisk, glance: &Glance<'_>, export: &TopExport) {
    counts.add(glance.state);
    if glance.is_stored && (export.dirty_bytes > 0 || export.at_risk_seconds > 0) {
        at_risk.exports += 1;
        at_risk.bytes = at_risk.bytes.saturating_add(export.dirty_bytes);
        at_risk.seconds = at_risk.seconds.max(export.at_risk_seconds);
    }
}

fn requests(export: &Export) -> TopIo {
    let io = export.io_totals();
    let volume = export.volume();
    let limits = export.throttle().into_iter().flat_map(Throttle::figures);
    TopIo {
        id: export.id().0,
        read: TopRequests {
            operations: io.read_size.count(),
            bytes: io.read_size.sum(),
            errors: io.read_errors.get(),
            ..timed(&io.read_latency)
        },
        write: TopRequests {
            operations: io.write_size.count(),
            bytes: io.write_size.sum(),
            errors: io.write_errors.get(),
            ..timed(&io.write_latency)
        },
        flush: TopRequests {
            operations: io.flushes.get(),
            errors: io.flush_errors.get(),
            ..timed(&io.flush_latency)
        },
        zero: TopRequests {
            operations: io.zeroes.get(),
            bytes: io.zero_bytes.get(),
            ..TopRequests::default()
        },
        in_flight: io.in_flight.get(),
        limit_wait_nanoseconds: limits.map(|used| used.waited_nanos).sum(),
        index_wait_nanoseconds: volume.usage(Resource::Index).held_nanos,
        log_wait_nanoseconds: volume.usage(Resource::Log).held_nanos,
    }
}

/// The latency of requests, without their number.
fn timed<const N: usize>(latency: &Histogram<N>) -> TopRequests {
    let mut buckets: Vec<u64> = latency.counts().collect();
    let used = buckets.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
    buckets.truncate(used);
    TopRequests { latency_nanoseconds: latency.sum(), latency: buckets, ..TopRequests::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_behind_the_last_used_one_are_left_out_and_what_took_longest_is_not() {
        let latency = Histogram::new(&LATENCY_BOUNDS_NANOS);
        assert_eq!(timed(&latency), TopRequests::default());
        latency.record(20_000);
        assert_eq!(timed(&latency).latency, [0, 1]);
        latency.record(2_000_000_000);
        let shown = timed(&latency);
        assert_eq!((shown.latency.len(), shown.latency[12]), (LATENCY_BOUNDS_NANOS.len() + 1, 1));
        assert_eq!(shown.latency_nanoseconds, 2_000_020_000);
    }
}
