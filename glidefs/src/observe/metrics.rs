//! `/metrics`: figures of the layers below, the table of metrics, and the encoder.
//!
//! ```text
//!  counters of queues, pools, workers ─┐
//!  /proc/self ─────────────────────────┼─ functions ────────────▶ Samples ─ encode ─▶ text
//!  functions of the layers above ──────┘        (by id of the table)
//! ```
//!
//! This module counts nothing: a scrape reads the cells that the I/O path writes, so a metric costs the I/O path one load and
//! one store. A layer above adds its own:
//!
//! ```text
//! encode(ExportHistograms::Busy, |out| {
//!     out.value(Metric::CacheSegments, &["free"], 7);       glidefs_cache_segments{state="free"} 7
//!     out.values(&["0"], [(Metric::CacheAppends, 3), (Metric::CacheAppended, 12_288)]);
//! })
//! ```
//!
//! Does not own the counters (`counter`, `io`) nor the HTTP route (`api`). Invariant: every metric shown is in the table, and
//! every metric in the table is in `docs/metrics.md`.

mod encode;
mod samples;
mod sources;
mod table;
#[cfg(test)]
mod tests;

pub use self::encode::encode;
pub use self::samples::{ExportHistograms, Samples};
pub use self::sources::{ExportFigures, LogFigures, Packs, export, process, states, workers};
pub use self::table::Metric;
