//! The registry of figure sources: a scrape collects from all of them.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::encode;
use super::error::MetricsError;
use super::samples::Samples;

/// Something that knows figures.
pub trait FigureSource: Send + Sync {
    /// Adds the figures of this moment to `out`. Each combination of metric and labels is given once.
    fn collect(&self, out: &mut Samples);
}

impl<F: Fn(&mut Samples) + Send + Sync> FigureSource for F {
    fn collect(&self, out: &mut Samples) {
        self(out);
    }
}

/// Everything `/metrics` shows.
#[derive(Default)]
pub struct Registry {
    sources: Mutex<Vec<Arc<dyn FigureSource>>>,
    /// Length of the last text, so that the next one is allocated once and not copied as it grows.
    text_bytes_last: AtomicUsize,
}

impl Registry {
    /// A registry without sources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a source, for good.
    pub fn register(&self, source: Arc<dyn FigureSource>) {
        self.lock().push(source);
    }

    /// The figures of this moment as text, in the text format of Prometheus, version 0.0.4.
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

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn FigureSource>>> {
        // A vector is whole before and after each push and clone, so a panic elsewhere does not spoil it.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("sources", &self.lock().len()).finish_non_exhaustive()
    }
}
