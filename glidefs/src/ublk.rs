//! Real block devices: all knowledge of the kernel's ublk driver.
//!
//! [`control`] sends the control commands through libublk, off the workers and under a time limit. [`queue`] is a data plane of
//! glidefs' own: libublk serves one queue a thread, a worker serves thousands from one ring. [`devices`] joins the two for the
//! router. Does not own exports, names, or the meaning of a request.

mod abandoned;
mod abi;
mod control;
mod devices;
mod driver;
mod features;
mod in_use;
mod limit;
mod many;
mod names;
mod notes;
mod placement;
mod queue;
mod steps;
mod survey;

pub use abandoned::mark_abandoned;
pub use devices::UblkDevices;
pub use driver::State as DeviceState;
#[cfg(test)]
pub use features::bits as feature_bits;
pub use features::{Features, defect_of};
pub use limit::DeviceLimit;
pub use survey::{Survey, Surveyed, survey};
