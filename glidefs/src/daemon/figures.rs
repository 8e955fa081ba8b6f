//! The contents of `/v1/status` and `/metrics`, gathered from the parts of the daemon.
//!
//! Owns which figure of a part goes into which wire type and metric. Does not own the figures, nor their names or encoding.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::collecting::Collections;
use crate::api::{ApiStats, AppState, Readiness, Scrapes, wire};
use crate::cache::{Cache, CacheStats, ShardStats};
use crate::config::Config;
use crate::observe::chain;
use crate::observe::counter::Counter;
use crate::observe::metrics::{self, Metric, Registry, Samples};
use crate::router::{Router, State};
use crate::store::volume::{Loss, VolumeWriter};
use crate::store::{BlockCache, BlockCacheFigures, Operation, Store};
use crate::ublk::UblkDevices;
use crate::worker::Worker;
use crate::worker::engine::probe::{Figures, Probe};

/// The parts of the daemon.
pub struct Parts {
    pub router: Arc<Router>,
    pub devices: Arc<UblkDevices>,
    pub workers: Vec<Worker>,
    pub cache: Cache,
    pub probe: Probe,
    pub store: Option<Store>,
    pub block_cache: Option<BlockCache>,
    pub collections: Arc<Collections>,
}

impl Parts {
    /// The state for the handlers of the API.
    pub fn state(&self, config: &Config, ready: Readiness) -> AppState {
        let (workers, cache, devices) = (self.workers.clone(), self.cache.clone(), Arc::clone(&self.devices));
        let dir = config.cache.dir.display().to_string();
        let probe = self.probe.clone();
        let daemon = move || wire::DaemonStatus {
            bounce_mode: devices.bounce(),
            workers: workers.iter().map(worker_status).collect(),
            cache: cache_status(&cache.stats(), &dir, &probe),
        };
        let stats = Arc::<ApiStats>::default();
        let registry = self.registry();
        let counted = Arc::clone(&stats);
        registry.register(Arc::new(move |out: &mut Samples| api_samples(&counted, out)));
        let encode = move || registry.encode().map_err(|error| chain(&error));
        AppState {
            router: Arc::clone(&self.router),
            metrics: Arc::new(Scrapes::new(encode, Arc::clone(&stats.scrapes))),
            stats,
            daemon: Arc::new(daemon),
            ready,
            started: Instant::now(),
        }
    }

    fn registry(&self) -> Registry {
        let registry = Registry::new();
        let router = Arc::clone(&self.router);
        registry.register(metrics::exports(move || {
            let figures = |export: Arc<crate::export::Export>| {
                let volume = export.volume().figures();
                let at_risk_nanos = u64::try_from(volume.at_risk_for.as_nanos()).unwrap_or(u64::MAX);
                metrics::ExportFigures {
                    name: export.name().to_owned(),
                    size_bytes: export.size_bytes(),
                    dirty_bytes: Some(volume.dirty_bytes),
                    at_risk_nanos: export.volume().remote().map(|_| at_risk_nanos),
                    damaged_bytes: export.volume().damaged_bytes(),
                    packs: export.volume().packs(),
                    cut: export.volume().upload().map(|cut| (cut.total_bytes, cut.uploaded_bytes)),
                    queues: export.all_stats(),
                }
            };
            router.exports().into_iter().map(figures).collect()
        }));
        let router = Arc::clone(&self.router);
        registry.register(metrics::states(&State::NAMES, move || {
            router.list().iter().map(|info| info.state.name()).collect()
        }));
        let router = Arc::clone(&self.router);
        registry.register(Arc::new(move |out: &mut Samples| {
            let health = router.catalog_health();
            out.value(Metric::CatalogFailing, &[], u64::from(health.failing().is_some()));
            out.value(Metric::CatalogErrors, &[], health.errors());
        }));
        registry.register(metrics::workers(
            self.workers.iter().map(|worker| Arc::clone(worker.stats())).collect(),
        ));
        let probe = self.probe.clone();
        registry.register(Arc::new(move |out: &mut Samples| engine_samples(&probe, out)));
        let cache = self.cache.clone();
        registry.register(Arc::new(move |out: &mut Samples| cache_samples(&cache.stats(), out)));
        if let Some(store) = self.store.clone() {
            registry.register(Arc::new(move |out: &mut Samples| store_samples(&store, out)));
            let collections = Arc::clone(&self.collections);
            registry.register(Arc::new(move |out: &mut Samples| collection_samples(&collections, out)));
            let router = Arc::clone(&self.router);
            registry.register(Arc::new(move |out: &mut Samples| lost_samples(&router, out)));
        }
        if let Some(block_cache) = self.block_cache.clone() {
            registry.register(Arc::new(move |out: &mut Samples| clean_samples(&block_cache.figures(), out)));
        }
        let shards: Vec<Arc<ShardStats>> =
            self.workers.iter().map(|worker| Arc::clone(worker.shard_stats())).collect();
        registry.register(Arc::new(move |out: &mut Samples| {
            for (number, shard) in shards.iter().enumerate() {
                shard_samples(&number.to_string(), shard, out);
            }
        }));
        registry.register(metrics::process());
        registry
    }
}

fn worker_status(worker: &Worker) -> wire::WorkerStatus {
    let stats = worker.stats();
    wire::WorkerStatus {
        cpu: stats.cpu.get(),
        queues: stats.queues.get(),
        requests: stats.requests.get(),
        arena_bytes: stats.pool.arena_bytes.get(),
        live_bytes: stats.pool.live_bytes.get(),
    }
}

fn cache_status(stats: &CacheStats, dir: &str, probe: &Probe) -> wire::CacheStatus {
    wire::CacheStatus {
        dir: dir.to_owned(),
        engine: probe.chosen.name().into(),
        probe: probe.figures.iter().map(engine_status).collect(),
        size_bytes: stats.limit_bytes,
        used_bytes: stats.used_bytes,
        dirty_bytes: stats.dirty_bytes,
        corrupt_frames: stats.corrupt_frames,
    }
}

fn engine_status(figures: &Figures) -> wire::EngineStatus {
    let (times, error) = match &figures.outcome {
        Ok(times) => (Some(*times), None),
        Err(error) => (None, Some(error.to_string())),
    };
    wire::EngineStatus {
        engine: figures.engine.name().into(),
        append_nanoseconds: times.map(|(append, _)| nanos(append)),
        synced_append_nanoseconds: times.map(|(_, synced)| nanos(synced)),
        error,
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn engine_samples(probe: &Probe, out: &mut Samples) {
    out.value(Metric::CacheEngine, &[probe.chosen.name()], 1);
    for figures in &probe.figures {
        let Ok((append, synced)) = &figures.outcome else { continue };
        let name = figures.engine.name();
        out.value(Metric::CacheProbeAppend, &[name], nanos(*append));
        out.value(Metric::CacheProbeSync, &[name], nanos(*synced));
    }
}

fn cache_samples(stats: &CacheStats, out: &mut Samples) {
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
        (Metric::CacheSizeSegments, stats.segments),
        (Metric::CacheSize, stats.limit_bytes),
        (Metric::CacheUsed, stats.used_bytes),
        (Metric::CacheDirty, stats.dirty_bytes),
        (Metric::CacheClean, stats.clean_bytes),
        (Metric::CacheExtents, stats.extents),
        (Metric::CacheCorruptFrames, stats.corrupt_frames),
        (Metric::CacheLostFrames, stats.lost_frames),
        (Metric::CacheDoubted, stats.doubted_exports),
        (Metric::CacheBadFooters, stats.bad_footers),
        (Metric::CacheCleanedSegments, stats.segments_cleaned),
        (Metric::CacheCleaned, stats.cleaned_bytes),
        (Metric::CacheEvicted, stats.evicted_bytes),
    ];
    out.values(&[], plain);
}

fn store_samples(store: &Store, out: &mut Samples) {
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
    out.value(Metric::StoreHedges, &[], stats.hedges.get());
    out.value(Metric::StoreHedgesWon, &[], stats.hedges_won.get());
    out.value(Metric::StoreReads, &[], reads.count);
    out.value(Metric::StoreOldestRead, &[], nanos(reads.oldest));
    out.value(Metric::StoreGcDamaged, &[], stats.gc_damaged.load(Ordering::Relaxed));
    out.value(Metric::StoreRefused, &[], stats.refused.get());
}

fn collection_samples(collections: &Collections, out: &mut Samples) {
    for (result, cell) in [("done", &collections.done), ("failed", &collections.failed)] {
        out.value(Metric::GcRuns, &[result], cell.load(Ordering::Relaxed));
    }
    out.value(Metric::GcOverdue, &[], nanos(collections.overdue(Instant::now())));
}

/// How many exports fail all requests because another host or history has the volume, or nobody has.
fn lost_samples(router: &Router, out: &mut Samples) {
    let (mut fenced, mut diverged, mut deleted) = (0, 0, 0);
    for export in router.exports() {
        match export.volume().remote().and_then(VolumeWriter::loss) {
            None => {}
            Some(Loss::Fenced(_)) => fenced += 1,
            Some(Loss::Diverged(_)) => diverged += 1,
            Some(Loss::Deleted) => deleted += 1,
        }
    }
    for (reason, exports) in [("fenced", fenced), ("diverged", diverged), ("deleted", deleted)] {
        out.value(Metric::RouterLost, &[reason], exports);
    }
}

fn api_samples(stats: &ApiStats, out: &mut Samples) {
    let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
    for (door, stats) in [("tcp", &stats.tcp), ("socket", &stats.socket), ("stranger", &stats.strangers)] {
        let cells = [
            (Metric::ApiConnections, &stats.connections),
            (Metric::ApiRefused, &stats.refused),
            (Metric::ApiDisplaced, &stats.displaced),
            (Metric::ApiAcceptErrors, &stats.accept_errors),
        ];
        out.values(&[door], cells.map(|(metric, cell)| (metric, get(cell))));
    }
    out.value(Metric::ApiScrapes, &[], get(&stats.scrapes.scrapes));
    out.value(Metric::ApiEncodings, &[], get(&stats.scrapes.encodings));
}

fn clean_samples(figures: &BlockCacheFigures, out: &mut Samples) {
    out.value(Metric::CleanHits, &["memory"], figures.memory_hits);
    out.value(Metric::CleanHits, &["disk"], figures.disk_hits);
    out.values(
        &[],
        [
            (Metric::CleanMisses, figures.misses),
            (Metric::CleanInserted, figures.inserted_bytes),
            (Metric::CleanFetched, figures.fetched_bytes),
            (Metric::CleanWritten, figures.written_bytes),
            (Metric::CleanUnwritten, figures.unwritten_bytes),
            (Metric::CleanBad, figures.bad_blocks),
            (Metric::CleanErrors, figures.errors),
            (Metric::CleanMemory, figures.memory_bytes),
            (Metric::CleanDisk, figures.disk_bytes),
            (Metric::AheadWindows, figures.ahead_windows),
            (Metric::AheadBytes, figures.ahead_bytes),
            (Metric::AheadErrors, figures.ahead_errors),
            (Metric::AheadSkipped, figures.ahead_skipped),
        ],
    );
}

fn shard_samples(shard: &str, stats: &ShardStats, out: &mut Samples) {
    let cells: [(Metric, &Counter); 14] = [
        (Metric::CacheAppends, &stats.appends),
        (Metric::CacheAppendedRequests, &stats.appended_requests),
        (Metric::CacheAppended, &stats.appended_bytes),
        (Metric::CacheAppendErrors, &stats.append_errors),
        (Metric::CacheSyncs, &stats.syncs),
        (Metric::CacheSyncErrors, &stats.sync_errors),
        (Metric::CacheSyncWaiters, &stats.sync_waiters),
        (Metric::CacheEmptyFlushes, &stats.empty_flushes),
        (Metric::CacheReads, &stats.reads),
        (Metric::CacheReadBuffers, &stats.read_buffer_bytes),
        (Metric::CacheReadsRemote, &stats.reads_remote),
        (Metric::CacheReadErrors, &stats.read_errors),
        (Metric::CacheWriteDelays, &stats.delays),
        (Metric::CacheWriteWaits, &stats.waits),
    ];
    out.values(&[shard], cells.map(|(metric, cell)| (metric, cell.get())));
    out.value(Metric::CacheReadPieces, &[shard, "page_cache"], stats.reads_now.get());
    out.value(Metric::CacheReadPieces, &[shard, "disk"], stats.reads_waited.get());
}
