//! Real block devices: everything that knows the kernel's ublk driver.
//!
//! [`control`] sends the control commands through libublk, off the workers and under a time limit. [`queue`] is our own
//! data plane: libublk serves one queue a thread, a worker serves thousands from one ring. [`devices`] joins the two into
//! what the router asks for. Does not own exports, names or what a request does.

mod abi;
mod control;
mod devices;
mod errno;
mod features;
mod in_use;
mod queue;
mod steps;

pub use devices::UblkDevices;
pub use features::Features;
