//! Behind `glidefs bench`: the cost of different ways of file I/O on this machine.
//!
//! ```text
//!  plan.rs       the measurements to make: cases, engines, durations
//!    ▼
//!  session.rs    all runs, in order
//!    ├─ machine.rs    the machine the runs are made on
//!    ▼
//!  test_file.rs  the test file, and the pattern in each block
//!    ▼
//!  run.rs        one case: threads, warm-up, the clock, CPU time
//!    ├─ blocking.rs   jobs that call pread and pwrite
//!    ├─ rings.rs      jobs that keep a ring full
//!    └─ job.rs        what both kinds of job are given and count
//!    ▼
//!  figures.rs    results: one run, and several runs of one case with the spread
//!    ├─ report.rs     tables of runs
//!    ├─ compare.rs    tables of differences
//!    ├─ published.rs  set-ups that others have measured, with the published figures
//!    └─ plot.rs       a picture (feature `plots`)
//! ```
//!
//! Owns the measuring and the figures. Does not own arguments, terminals or the drawing of tables: `cli` does. Invariants: a file
//! that existed is not written without leave; an incomplete transfer fails the run instead of being counted; runs of two compared
//! engines take turns, so a machine that slows down slows both engines.

mod blocking;
pub(crate) mod compare;
mod error;
pub(crate) mod figures;
mod job;
pub(crate) mod machine;
pub(crate) mod plan;
#[cfg(feature = "plots")]
pub(crate) mod plot;
pub(crate) mod published;
pub(crate) mod report;
mod rings;
mod run;
pub(crate) mod session;
pub(crate) mod test_file;
#[cfg(test)]
mod tests;

pub(crate) use self::error::BenchError;
