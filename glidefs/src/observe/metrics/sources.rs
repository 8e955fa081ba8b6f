//! Where figures of the layers below and of the process come from.
//!
//! Owns how counters become samples: queues of an export are summed, workers are told apart. Does not own the counters
//! (`observe::io`), nor which exports and workers exist: those are handed in, because they live in layers above.

mod exports;
mod process;
mod workers;

pub use self::exports::{ExportFigures, exports, states};
pub use self::process::process;
pub use self::workers::workers;
