//! `/metrics`: what is shown, where it comes from, and how it becomes text.
//!
//! ```text
//!  counters of queues, pools, workers ─┐
//!  /proc/self ─────────────────────────┼─ Source::collect ─▶ Samples ─ encode ─▶ text
//!  closures of the layers above ───────┘        (by id of the table)
//! ```
//!
//! Nothing is counted here: a scrape reads the cells that the I/O path writes, so a metric costs the I/O path one load and
//! one store. Layers above this one add what they know with a closure:
//!
//! ```
//! use std::sync::Arc;
//! use glidefs::observe::metrics::{Metric, Registry, Samples};
//!
//! let registry = Registry::new();
//! registry.register(Arc::new(|out: &mut Samples| {
//!     out.value(Metric::CacheSegments, &["free"], 7);
//!     out.values(&["0"], [(Metric::CacheAppends, 3), (Metric::CacheAppended, 12_288)]);
//! }));
//! assert!(registry.encode()?.contains("glidefs_cache_segments{state=\"free\"} 7\n"));
//! # Ok::<(), glidefs::observe::metrics::MetricsError>(())
//! ```
//!
//! Does not own the counters (`counter`, `io`) nor the HTTP route (`api`). Invariant: everything shown is in the table, and
//! everything in the table is in `docs/metrics.md`.

mod encode;
mod samples;
mod sources;
mod table;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use self::samples::Samples;
pub use self::sources::{ExportFigures, exports, process, states, workers};
pub use self::table::{Definition, Kind, Metric, Unit, all};

/// Media type of what [`Registry::encode`] returns.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Why a scrape failed.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// A source gave a number for a histogram, a histogram for a number, or one with other buckets.
    #[error("a sample of {name} is not of the kind that the table of metrics says: this is a bug of glidefs")]
    Kind {
        /// The metric.
        name: &'static str,
    },
    /// A source gave too few or too many label values.
    #[error(
        "a sample of {name} has {given} labels, the table of metrics says {expected:?}: this is a bug of glidefs"
    )]
    Labels {
        /// The metric.
        name: &'static str,
        /// The labels it has.
        expected: &'static [&'static str],
        /// How many values were given.
        given: usize,
    },
    /// The text could not be written.
    #[error("{name} could not be written as text")]
    Encode {
        /// The metric.
        name: &'static str,
        /// The cause.
        #[source]
        source: prometheus::Error,
    },
}

/// Something that knows figures.
pub trait Source: Send + Sync {
    /// Adds the figures of this moment to `out`. Each combination of metric and labels is given once.
    fn collect(&self, out: &mut Samples);
}

impl<F: Fn(&mut Samples) + Send + Sync> Source for F {
    fn collect(&self, out: &mut Samples) {
        self(out);
    }
}

/// Everything `/metrics` shows.
#[derive(Default)]
pub struct Registry {
    sources: Mutex<Vec<Arc<dyn Source>>>,
    /// Length of the last text, so that the next one is allocated once and not copied as it grows.
    text_bytes_last: AtomicUsize,
}

impl Registry {
    /// A registry without sources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a source, for good.
    pub fn register(&self, source: Arc<dyn Source>) {
        self.lock().push(source);
    }

    /// The figures of this moment as text, in the format that [`CONTENT_TYPE`] names.
    ///
    /// Takes longer the more exports there are, so asynchronous callers use a thread that may block.
    pub fn encode(&self) -> Result<String, MetricsError> {
        let sources = self.lock().clone();
        let mut samples = Samples::new();
        for source in sources {
            source.collect(&mut samples);
        }
        let last = self.text_bytes_last.load(Ordering::Relaxed);
        let mut text = String::with_capacity(last.saturating_add(last / 16));
        encode::encode(samples, &mut text)?;
        self.text_bytes_last.store(text.len(), Ordering::Relaxed);
        Ok(text)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn Source>>> {
        // A vector is whole before and after each push and clone, so a panic elsewhere does not spoil it.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("sources", &self.lock().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
