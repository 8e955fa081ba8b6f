//! Behind `glidefs bench`: what the ways of doing file I/O cost on the machine at hand.
//!
//! ```text
//!  plan.rs       what is to be measured: cases, engines, how long
//!    ▼
//!  session.rs    all runs, in their order
//!    ├─ machine.rs    what they are made on
//!    ▼
//!  target.rs     the test file, and the pattern its blocks hold
//!    ▼
//!  run.rs        one case: threads, warm-up, the clock, CPU time
//!    ├─ blocking.rs   jobs that call pread and pwrite
//!    └─ rings.rs      jobs that keep a ring full
//!    ▼
//!  figures.rs    what was measured: one run, and several runs of one case with their spread
//!    ├─ report.rs     tables of runs
//!    ├─ compare.rs    tables of differences
//!    ├─ published.rs  set-ups that others have measured, with their figures
//!    └─ plot.rs       a picture (feature `plots`)
//! ```
//!
//! Owns the measuring and the figures. Does not own arguments, terminals or how tables are drawn: `cli` does. Invariants: a
//! file that was there is not written without leave; a transfer that is not complete fails the run instead of being counted;
//! runs of two engines that are compared take turns, so that a machine that slows down slows both.

mod blocking;
pub mod compare;
mod error;
pub mod figures;
mod job;
pub mod machine;
pub mod plan;
#[cfg(feature = "plots")]
pub mod plot;
pub mod published;
pub mod report;
mod rings;
mod run;
pub mod session;
pub mod target;
#[cfg(test)]
mod tests;

pub use self::error::BenchError;
