//! The simulated computer of `tests/crash.rs`, with kills and power cuts: the same sources.

#![allow(dead_code, reason = "not everything that happens there happens here")]
#![allow(clippy::struct_excessive_bools, reason = "as tests/crash.rs allows")]

#[path = "../../../../tests/sim/content.rs"]
pub mod content;
#[path = "../../../../tests/sim/disk.rs"]
pub mod disk;
#[path = "../../../../tests/sim/faults.rs"]
pub mod faults;
#[path = "../../../../tests/sim/file.rs"]
pub mod file;
#[path = "../../../../tests/sim/machine.rs"]
pub mod machine;
#[path = "../../../../tests/sim/rng.rs"]
pub mod rng;
#[path = "../../../../tests/sim/structure.rs"]
pub mod structure;
#[path = "../../../../tests/sim/tally.rs"]
pub mod tally;
