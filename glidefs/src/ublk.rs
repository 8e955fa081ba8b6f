//! Real block devices: all knowledge of the kernel's ublk driver.
//!
//! [`control`] sends the control commands through libublk, off the workers and under a time limit. [`queue`] is a data plane of
//! glidefs' own: libublk serves one queue a thread, a worker serves thousands from one ring. [`devices`] joins the two for the
//! router. Does not own exports, names, or the meaning of a request.

mod abi;
mod control;
mod devices;
mod errno;
mod features;
mod in_use;
mod placement;
mod queue;
mod steps;

pub use devices::{Settings, UblkDevices};
pub use features::Features;
