//! The registry of figure sources: a scrape collects from every source.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::encode;
use super::samples::{ExportHistograms, Samples};

use crate::locks::MutexExt;

/// Adds figures to a scrape, on the thread of the scrape.
pub type FigureSource = dyn Fn(&mut Samples) + Send + Sync;

/// The sources of `/metrics`.
#[derive(Default)]
pub struct Registry {
    sources: Mutex<Vec<Arc<FigureSource>>>,
    /// Length of the last text. The next text is allocated once with this length, and not copied while growing.
    text_bytes_last: AtomicUsize,
}

impl Registry {
    /// A registry without sources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a source, for good.
    pub fn register(&self, source: Arc<FigureSource>) {
        self.lock().push(source);
    }

    /// The figures of this moment in the text format of Prometheus, version 0.0.4.
    ///
    /// The time grows with the number of exports, so asynchronous callers use a blocking thread.
    pub fn encode(&self, histograms: ExportHistograms) -> prometheus::Result<String> {
        let sources = self.lock().clone();
        let mut samples = Samples::new(histograms);
        for source in sources {
            source(&mut samples);
        }
        let last = self.text_bytes_last.load(Ordering::Relaxed);
        let mut text = String::with_capacity(last.saturating_add(last / 16));
        encode::encode(samples, &mut text)?;
        self.text_bytes_last.store(text.len(), Ordering::Relaxed);
        Ok(text)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<FigureSource>>> {
        // The vector is whole before and after each push and clone, so a poisoned lock holds whole data.
        self.sources.lock_whole()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("sources", &self.lock().len()).finish_non_exhaustive()
    }
}
