//! The contents of `/v1/status` and `/metrics`, gathered from the parts of the daemon.
//!
//! Owns which figure of a part goes into which wire type and metric. Does not own the figures, nor their names or encoding.

mod samples;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use self::samples::{
    api_samples, cache_samples, clean_samples, collection_samples, shard_samples, store_samples,
};
use super::collecting::Collections;
use super::memory::Holders;
use super::top::warnings;
use super::upgrading::{Upgrading, longest_and_median};
use crate::api::{ApiStats, AppState, OffThread, Readiness, Selection, SharedTexts, wire};
use crate::cache::{Cache, CacheStats, Resource, UsageFigures};
use crate::config::{Config, OnStop};
use crate::export::Throttle;
use crate::observe::chain;
use crate::observe::metrics::{self, ExportFigures, ExportHistograms, Metric, Packs, Samples};
use crate::observe::troubles::Troubles;
use crate::router::{Glance, Router, State};
use crate::store::volume::{Loss, VolumeStore};
use crate::store::{BlockCache, Store};
use crate::ublk::UblkDevices;
use crate::units::nanos;
use crate::worker::Worker;
use crate::worker::cpus::node_of;
use crate::worker::engine::Engine;

/// The parts of the daemon.
pub struct Parts {
    pub router: Arc<Router>,
    pub devices: Arc<UblkDevices>,
    pub workers: Vec<Worker>,
    pub cache: Cache,
    pub engine: Engine,
    pub store: Option<Store>,
    pub block_cache: Option<BlockCache>,
    pub volumes: Option<VolumeStore>,
    pub collections: Arc<Collections>,
    pub troubles: Arc<Troubles>,
}

impl Parts {
    /// The state for the handlers of the API.
    pub fn state(self: &Arc<Self>, config: &Config, ready: Readiness, upgrades: Arc<Upgrading>) -> AppState {
        let dir = config.cache.dir.display().to_string();
        let on_stop = match config.control.on_stop {
            OnStop::Keep => "keep",
            OnStop::Remove => "remove",
        };
        let started = Instant::now();
        let (parts, is_ready, instance) = (Arc::clone(self), ready.clone(), uuid::Uuid::new_v4().to_string());
        let top = move |_: &Selection| {
            serde_json::to_string(&parts.top(&instance, started, is_ready.get()))
                .map_err(|error| error.to_string())
        };
        let parts = Arc::clone(self);
        let daemon = move || wire::DaemonStatus {
            bounce_mode: parts.devices.bounce(),
            on_stop: Some(on_stop.into()),
            workers: parts.workers.iter().map(worker_status).collect(),
            cache: cache_status(&parts.cache.stats(), &dir, parts.engine),
            store: parts.store.as_ref().map(Store::state),
            store_away: parts.store.as_ref().and_then(Store::away),
            warnings: warnings(&parts),
        };
        let store = self.store.clone();
        let troubles = Arc::clone(&self.troubles);
        let stats = Arc::new(ApiStats { troubles, ..ApiStats::default() });
        let holders = self.holders(&stats);
        let (parts, shown, start) = (Arc::clone(self), holders.clone(), SystemTime::now());
        let encode = move |selection: &Selection| {
            let text = metrics::encode(selection.histograms, |out| match &selection.export {
                Some(name) => parts.router.visit_one(name, |export| export_samples(&export, out)),
                None => parts.all_samples(&shown, start, out),
            });
            text.map_err(|error| chain(&error))
        };
        AppState {
            router: Arc::clone(&self.router),
            metrics: Arc::new(SharedTexts::new(encode, Arc::clone(&stats.scrapes))),
            export_histograms: config.api.export_histograms,
            daemon: Arc::new(daemon),
            store: Arc::new(move || store.as_ref().map(Store::state)),
            top: Arc::new(SharedTexts::new(top, Arc::clone(&stats.tops))),
            traces: self.workers.first().map(|worker| Arc::clone(&worker.traces)).unwrap_or_default(),
            memory: Arc::new(move || holders.measure()),
            off_thread: OffThread::default(),
            upgrades: Some(upgrades),
            ready,
            started,
            stats,
        }
    }

    fn holders(&self, api: &Arc<ApiStats>) -> Holders {
        Holders {
            workers: self.workers.iter().map(|worker| Arc::clone(&worker.stats)).collect(),
            shards: self.workers.iter().map(|worker| Arc::clone(&worker.shard_stats)).collect(),
            cache: self.cache.clone(),
            router: Arc::clone(&self.router),
            block_cache: self.block_cache.clone(),
            volumes: self.volumes.clone(),
            api: Arc::clone(api),
        }
    }

    /// The samples of everything. The daemon began at `start`.
    fn all_samples(&self, holders: &Holders, start: SystemTime, out: &mut Samples) {
        of_exports_and_cache(holders, self.store.is_some(), out);
        metrics::workers(&holders.workers, out);
        self.samples(out);
        api_samples(&holders.api, out);
        metrics::process(start, out);
    }

    /// The samples that are few, however many exports there are.
    fn samples(&self, out: &mut Samples) {
        let health = self.router.catalog_health();
        out.value(Metric::CatalogFailing, &[], u64::from(health.failing().is_some()));
        out.value(Metric::CatalogErrors, &[], health.errors());
        if self.router.options.waiting_since.is_some() {
            let (longest, median) = longest_and_median(self.router.pauses());
            out.value(Metric::UpgradePauseMax, &[], nanos(longest));
            out.value(Metric::UpgradePauseMedian, &[], nanos(median));
        }
        out.value(Metric::CacheEngine, &[self.engine.name()], 1);
        if let Some(store) = &self.store {
            store_samples(store, out);
            collection_samples(&self.collections, out);
        }
        if let Some(volumes) = &self.volumes {
            out.value(Metric::StoreReadMemory, &[], volumes.read_bytes());
        }
        if let Some(block_cache) = &self.block_cache {
            clean_samples(block_cache.counters(), out);
        }
        for (number, worker) in self.workers.iter().enumerate() {
            let number = number.to_string();
            shard_samples(&number, &worker.shard_stats, out);
            out.value(Metric::WorkerCpu, &[&number], nanos(worker.load.cpu_time()));
        }
    }
}

/// Exports counted while their figures are gathered.
#[derive(Default)]
struct Counts {
    states: [u64; State::NAMES.len()],
    fenced: u64,
    diverged: u64,
    deleted: u64,
    memory_bytes: u64,
}

impl Counts {
    fn add(&mut self, export: &Glance<'_>) {
        if let Some(place) = State::NAMES.iter().position(|name| *name == export.state) {
            self.states[place] += 1;
        }
        match export.loss {
            None => {}
            Some(Loss::Fenced(_)) => self.fenced += 1,
            Some(Loss::Diverged(_)) => self.diverged += 1,
            Some(Loss::Deleted) => self.deleted += 1,
        }
        self.memory_bytes = self.memory_bytes.saturating_add(export.memory_bytes);
    }

    /// How many exports fail all requests because another host or history has the volume, or nobody has.
    fn lost_samples(&self, out: &mut Samples) {
        let lost = [("fenced", self.fenced), ("diverged", self.diverged), ("deleted", self.deleted)];
        for (reason, exports) in lost {
            out.value(Metric::RouterLost, &[reason], exports);
        }
    }
}

/// The figures whose cost grows with the number of exports, of cache and segments: of all exports, of the cache, and the memory by
/// category. One walk over the exports tells the figures of each, the counts, and the memory.
pub fn of_exports_and_cache(holders: &Holders, has_store: bool, out: &mut Samples) {
    let mut counts = Counts::default();
    holders.router.visit(|export| {
        counts.add(&export);
        export_samples(&export, out);
    });
    metrics::states(&State::NAMES, &counts.states, out);
    if has_store {
        counts.lost_samples(out);
    }
    let stats = holders.cache.stats();
    cache_samples(&stats, out);
    holders.samples(&stats, counts.memory_bytes, out);
}

fn export_samples(glance: &Glance<'_>, out: &mut Samples) {
    // An export at rest has all data in the store, and has had no request.
    let at_rest = ExportFigures {
        name: glance.name,
        size_bytes: glance.size_bytes,
        dirty_bytes: Some(0),
        at_risk_nanos: glance.is_stored.then_some(0),
        damaged_bytes: glance.is_stored.then_some(0),
        packs: None,
        cut: None,
        index_held_nanos: 0,
        log: glance.is_stored.then(metrics::LogFigures::default),
        limits: &[],
        is_used: false,
        io: None,
    };
    let Some(export) = glance.export else {
        return metrics::export(&at_rest, out);
    };
    let volume = export.volume();
    let figures = volume.figures();
    let limits = export.throttle().into_iter().flat_map(Throttle::figures);
    let limits: Vec<_> = limits.map(|used| (used.limit.name(), used.waited_nanos)).collect();
    let is_used = glance.may_have_device && export.is_used();
    let packs = |(fan_out, count)| Packs { fan_out, count, slows_writes: volume.is_crowded() };
    metrics::export(
        &ExportFigures {
            dirty_bytes: Some(figures.dirty_bytes),
            at_risk_nanos: volume.remote().map(|_| nanos(figures.at_risk_for)),
            damaged_bytes: volume.damaged_bytes(),
            packs: volume.packs().map(packs),
            cut: volume.upload().map(|cut| (cut.total_bytes, cut.uploaded_bytes)),
            index_held_nanos: volume.usage(Resource::Index).held_nanos,
            log: volume.remote().map(|_| {
                let UsageFigures { bytes, held_nanos, .. } = volume.usage(Resource::Log);
                metrics::LogFigures { bytes, held_nanos }
            }),
            limits: &limits,
            is_used,
            io: (is_used || out.histograms == ExportHistograms::All).then(|| export.io_totals()).as_ref(),
            ..at_rest
        },
        out,
    );
}

/// The state of one worker.
pub(super) fn worker_status(worker: &Worker) -> wire::WorkerStatus {
    let stats = &worker.stats;
    let cpu = stats.cpu.get();
    wire::WorkerStatus {
        cpu,
        node: usize::try_from(cpu).ok().and_then(node_of),
        busy_percent: worker.load.busy_percent(),
        queues: stats.queues.get(),
        requests: stats.requests.get(),
        arena_bytes: stats.pool.arena_bytes.get(),
        live_bytes: stats.pool.live_bytes.get(),
    }
}

fn cache_status(stats: &CacheStats, dir: &str, engine: Engine) -> wire::CacheStatus {
    wire::CacheStatus {
        dir: dir.to_owned(),
        engine: engine.name().into(),
        size_bytes: stats.limit_bytes,
        used_bytes: stats.used_bytes,
        dirty_bytes: stats.dirty_bytes,
        corrupt_frames: stats.corrupt_frames,
    }
}
