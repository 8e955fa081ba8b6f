//! Whether the catalog can be written.
//!
//! Owns the last error and the count of errors, for readiness, metrics and the log.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::locks::MutexExt;

/// Pause between attempts to open a catalog that cannot be written.
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Whether the catalog can be written.
#[derive(Debug, Default)]
pub struct CatalogHealth {
    failing: Mutex<Option<String>>,
    errors: AtomicU64,
}

impl CatalogHealth {
    /// The error that keeps the catalog from being written at present.
    pub fn failing(&self) -> Option<String> {
        self.failing.lock_whole().clone()
    }

    /// Failed attempts to write or to open the catalog.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Counts an error, and logs the first one of a series.
    pub(in crate::router) fn fails(&self, error: &(dyn std::error::Error + 'static)) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        if self.set(Some(error.to_string())).is_none() {
            tracing::error!(
                error,
                "the catalog cannot be written: operations on exports fail or wait, and the progress of writeback is not recorded; make \
                 room on the disk of cache.dir; the daemon tries again every {} s",
                TRY_AGAIN.as_secs()
            );
        }
    }

    pub(super) fn works(&self) {
        if self.set(None).is_some() {
            tracing::info!("the catalog can be written again");
        }
    }

    fn set(&self, failing: Option<String>) -> Option<String> {
        std::mem::replace(&mut self.failing.lock_whole(), failing)
    }
}
