//! The sources of figures from the layers below and from the process.
//!
//! Owns the way from counters to samples: the queues of an export are summed, workers get a label each. Does not own the
//! counters (`observe::io`), nor the lists of exports and workers: the layers above hand the lists in.

mod exports;
mod process;
mod workers;

pub use self::exports::{ExportFigures, LogFigures, Packs, export, states};
pub use self::process::process;
pub use self::workers::workers;
