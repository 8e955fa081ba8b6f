//! `/metrics`: the sources of figures, the table of metrics, and the encoder.
//!
//! ```text
//!  counters of queues, pools, workers ─┐
//!  /proc/self ─────────────────────────┼─ FigureSource ─────────▶ Samples ─ encode ─▶ text
//!  closures of the layers above ───────┘        (by id of the table)
//! ```
//!
//! This module counts nothing: a scrape reads the cells that the I/O path writes, so a metric costs the I/O path one load and
//! one store. A layer above adds figures with a closure:
//!
//! ```text
//! let registry = Registry::new();
//! registry.register(Arc::new(|out: &mut Samples| {
//!     out.value(Metric::CacheSegments, &["free"], 7);
//!     out.values(&["0"], [(Metric::CacheAppends, 3), (Metric::CacheAppended, 12_288)]);
//! }));
//! registry.encode(ExportHistograms::Busy)      glidefs_cache_segments{state="free"} 7 …
//! ```
//!
//! Does not own the counters (`counter`, `io`) nor the HTTP route (`api`). Invariant: every metric shown is in the table, and
//! every metric in the table is in `docs/metrics.md`.

mod encode;
mod registry;
mod samples;
mod sources;
mod table;
#[cfg(test)]
mod tests;

pub use self::registry::Registry;
pub use self::samples::{ExportHistograms, Samples};
pub use self::sources::{ExportFigures, LogFigures, Packs, export, process, states, workers};
pub use self::table::Metric;
