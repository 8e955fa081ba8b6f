//! A seeded simulation of the cache on a computer which fails.
//!
//! ```text
//! episode ── lives of one computer, one crash after the other
//!    │
//!    ├── workload ── which requests arrive
//!    ├── process ─── one life: shards, keeper, requests in flight, everything late and out of order
//!    │      │
//!    │      └── glidefs::testing::cache, on disk ── machine ── file, faults
//!    ├── shadow ──── a start with the checkpoint beside a start without
//!    └── oracle ──── which content a READ may return; content stamps each sector, so the writer of a sector is known
//!
//! calm ── a cache which does one thing after the other, for `damage`, the tests of rot
//! rig ─── a shard and the operations which the shard waits for, for `process` and `calm`; unit tests and benches have the same
//! ```
//!
//! Everything runs on one thread and draws from one seed. Two runs with the same seed differ only in the random identity which the
//! cache draws.

pub mod calm;
mod catalog;
pub mod content;
mod damage;
pub mod disk;
pub mod episode;
pub mod faults;
pub mod file;
pub mod machine;
pub mod oracle;
pub mod process;
pub mod request;
#[path = "support/rig.rs"]
pub mod rig;
pub mod rng;
mod shadow;
pub mod structure;
pub mod tally;
pub mod workload;
pub mod world;
