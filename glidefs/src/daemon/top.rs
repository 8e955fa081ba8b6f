//! The content of `/v1/top`, gathered from the parts of the daemon.
//!
//! Owns which figure of a part goes into which field. Does not own the figures, nor the conditions of alerts (`alerts`). Invariant: an
//! export costs one look at its state and, once used, one read of its counters; nothing here runs on a worker, or waits for I/O.

#![allow(clippy::cast_precision_loss, reason = "figures for people, not for arithmetic that must be exact")]

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::alerts::{self, AlertFigures, ExportAlertFigures};
use super::collecting::Collections;
use super::figures::worker_status;
use super::nodes::Nodes;
use crate::api::Readiness;
use crate::api::wire::{
    ExportCounts, Top, TopCache, TopExport, TopIo, TopRequests, TopRisk, TopStore, TopStoreOperation,
};
use crate::cache::{Cache, Resource};
use crate::export::{Export, LimitUse};
use crate::observe::counter::{HistogramSnapshot, LATENCY_BOUNDS_NANOS};
use crate::router::{Glance, Router, State};
use crate::store::{BlockCache, Operation, Store};
use crate::worker::Worker;

/// The parts with figures for the answer.
pub(super) struct TopParts {
    pub router: Arc<Router>,
    pub workers: Vec<Worker>,
    pub cache: Cache,
    pub store: Option<Store>,
    pub block_cache: Option<BlockCache>,
    pub collections: Arc<Collections>,
    pub nodes: Arc<Nodes>,
    pub ready: Readiness,
    /// The `instance` of all answers.
    pub instance: String,
    /// When the daemon started, the moment from which the time in answers counts.
    pub started: Instant,
}

impl TopParts {
    /// The figures of this moment as JSON, or why there is none.
    pub fn encode(&self) -> Result<String, String> {
        serde_json::to_string(&self.measure()).map_err(|error| error.to_string())
    }

    /// The figures of this moment, those of all exports included.
    fn measure(&self) -> Top {
        // Read before the counters: each counter is read at a moment between here and the answer.
        let uptime = self.started.elapsed().as_nanos();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let mut figures = AlertFigures::default();
        let mut top = Top {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            instance: self.instance.clone(),
            ready: self.ready.get(),
            uptime_nanoseconds: u64::try_from(uptime).unwrap_or(u64::MAX),
            unix_milliseconds: u64::try_from(wall).unwrap_or(u64::MAX),
            counts: ExportCounts { max: self.router.options().exports_max as u64, ..ExportCounts::default() },
            store: self.store.as_ref().map(|store| self.of_store(store)),
            workers: self.workers.iter().map(|worker| worker_status(worker, &self.nodes)).collect(),
            alerts_not_judged: alerts::not_judged(),
            latency_bounds_nanoseconds: LATENCY_BOUNDS_NANOS.to_vec(),
            ..Top::default()
        };
        self.router.visit(|glance| {
            let (export, judged) = look(&glance);
            figures.note(&export.name, &judged);
            count(&mut top.counts, &mut top.at_risk, &glance, &export);
            top.exports.push(export);
        });
        let stats = self.cache.stats();
        let waiting_writes = self.workers.iter().map(|worker| worker.stats().log_line.get()).sum();
        top.cache = TopCache {
            size_bytes: stats.limit_bytes,
            used_bytes: stats.used_bytes,
            dirty_bytes: stats.dirty_bytes,
            clean_bytes: stats.clean_bytes,
            waiting_writes,
        };
        let share = |bytes: u64| bytes as f64 / stats.limit_bytes.max(1) as f64;
        figures.risk_share = share(top.at_risk.bytes);
        figures.dirty_share = share(stats.dirty_bytes);
        figures.damaged_frames =
            stats.corrupt_frames.saturating_add(stats.lost_frames).saturating_add(stats.doubted_exports);
        figures.bad_segments = stats.segments_poisoned.saturating_add(stats.segments_quarantined);
        figures.waiting_writes = waiting_writes;
        figures.is_catalog_failing = self.router.catalog_health().failing().is_some();
        if let Some(store) = &self.store {
            figures.is_store_away = store.away().is_some();
            figures.oldest_read_seconds = store.reads_waiting().oldest.as_secs_f64();
            figures.collection_overdue_seconds = self.collections.overdue(Instant::now()).as_secs_f64();
        }
        top.alerts = figures.alerts();
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
        let blocks = self.block_cache.as_ref().map(BlockCache::figures).unwrap_or_default();
        TopStore {
            operations: Operation::ALL.into_iter().map(operation).collect(),
            waiting_reads: reads.count,
            oldest_read_seconds: reads.oldest.as_secs(),
            block_cache_hits: blocks.memory_hits.saturating_add(blocks.disk_hits),
            block_cache_misses: blocks.misses,
        }
    }
}

/// One export, and what alerts ask of the export.
fn look(glance: &Glance<'_>) -> (TopExport, ExportAlertFigures) {
    let mut shown = TopExport {
        name: glance.name.into(),
        state: glance.state.into(),
        size_bytes: glance.size_bytes,
        ..TopExport::default()
    };
    let mut judged = ExportAlertFigures {
        is_failed: glance.state == State::FAILED,
        is_lost: glance.loss.is_some(),
        ..ExportAlertFigures::default()
    };
    let Some(export) = glance.export else { return (shown, judged) };
    let volume = export.volume();
    let figures = volume.figures();
    shown.dirty_bytes = figures.dirty_bytes;
    shown.at_risk_seconds = figures.at_risk_for.as_secs();
    shown.damaged_bytes = volume.damaged_bytes().unwrap_or(0);
    shown.waiting_for = volume.waits_for().map(|resource| resource.name().into());
    shown.io = (glance.may_have_device && export.is_used()).then(|| requests(export));
    judged.at_risk_seconds = shown.at_risk_seconds;
    judged.damaged_bytes = shown.damaged_bytes;
    (judged.fan_out, judged.packs) = volume.packs().unwrap_or_default();
    (shown, judged)
}

/// Adds an export to the sums of all exports.
fn count(counts: &mut ExportCounts, at_risk: &mut TopRisk, glance: &Glance<'_>, export: &TopExport) {
    counts.total += 1;
    *match glance.state {
        "serving" => &mut counts.serving,
        "detached" => &mut counts.detached,
        State::FAILED => &mut counts.failed,
        _ => &mut counts.changing,
    } += 1;
    if glance.is_stored && (export.dirty_bytes > 0 || export.at_risk_seconds > 0) {
        at_risk.exports += 1;
        at_risk.bytes = at_risk.bytes.saturating_add(export.dirty_bytes);
        at_risk.seconds = at_risk.seconds.max(export.at_risk_seconds);
    }
}

fn requests(export: &Export) -> TopIo {
    let io = export.io_totals();
    let volume = export.volume();
    let waited = |LimitUse { waited_nanos, .. }: LimitUse| waited_nanos;
    TopIo {
        id: export.id().0,
        read: TopRequests {
            operations: io.read_size.count(),
            bytes: io.read_size.sum,
            errors: io.read_errors,
            ..timed(&io.read_latency)
        },
        write: TopRequests {
            operations: io.write_size.count(),
            bytes: io.write_size.sum,
            errors: io.write_errors,
            ..timed(&io.write_latency)
        },
        flush: TopRequests { operations: io.flushes, errors: io.flush_errors, ..timed(&io.flush_latency) },
        zero: TopRequests { operations: io.zeroes, bytes: io.zero_bytes, ..TopRequests::default() },
        in_flight: io.in_flight,
        limit_wait_nanoseconds: export.throttle().map_or(0, |throttle| throttle.figures().map(waited).sum()),
        index_wait_nanoseconds: volume.usage(Resource::Index).held_nanos,
        log_wait_nanoseconds: volume.usage(Resource::Log).held_nanos,
    }
}

/// The latency of requests, without their number.
fn timed<const N: usize>(latency: &HistogramSnapshot<N>) -> TopRequests {
    let mut buckets: Vec<u64> = latency.buckets.iter().copied().chain([latency.above]).collect();
    let used = buckets.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
    buckets.truncate(used);
    TopRequests { latency_nanoseconds: latency.sum, latency: buckets, ..TopRequests::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::counter::Histogram;

    #[test]
    fn buckets_behind_the_last_used_one_are_left_out_and_what_took_longest_is_not() {
        let latency = Histogram::new(&LATENCY_BOUNDS_NANOS);
        assert_eq!(timed(&latency.snapshot()), TopRequests::default());
        latency.record(20_000);
        assert_eq!(timed(&latency.snapshot()).latency, [0, 1]);
        latency.record(2_000_000_000);
        let shown = timed(&latency.snapshot());
        assert_eq!((shown.latency.len(), shown.latency[12]), (LATENCY_BOUNDS_NANOS.len() + 1, 1));
        assert_eq!(shown.latency_nanoseconds, 2_000_020_000);
    }
}
