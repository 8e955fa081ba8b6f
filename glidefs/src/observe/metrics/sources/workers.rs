//! Figures of workers and buffer pools.
//!
//! Does not own the list of workers, which is fixed when the daemon starts.

use std::sync::Arc;

use crate::observe::io::WorkerStats;
use crate::observe::metrics::registry::FigureSource;
use crate::observe::metrics::samples::Samples;
use crate::observe::metrics::table::Metric;

/// Shows `workers`. The label of a worker is the place in the list.
pub fn workers(workers: Vec<Arc<WorkerStats>>) -> Arc<FigureSource> {
    Arc::new(move |out: &mut Samples| {
        for (index, stats) in workers.iter().enumerate() {
            collect(&index.to_string(), stats, out);
        }
    })
}

fn collect(worker: &str, stats: &WorkerStats, out: &mut Samples) {
    out.values(
        &[worker],
        [
            (Metric::WorkerQueues, stats.queues.get()),
            (Metric::WorkerTurns, stats.turns.get()),
            (Metric::WorkerRequests, stats.requests.get()),
            (Metric::WorkerRiskWaits, stats.risk_waits.get()),
            (Metric::WorkerLogWaits, stats.log_waits.get()),
            (Metric::WorkerLogLine, stats.log_line.get()),
            (Metric::PoolWaits, stats.pool.waits.get()),
            (Metric::PoolWaitTime, stats.pool.wait_nanos.get()),
            (Metric::PoolLive, stats.pool.live_bytes.get()),
            (Metric::PoolArena, stats.pool.arena_bytes.get()),
        ],
    );
}
