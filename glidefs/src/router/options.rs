//! Limits and defaults of the router.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::deaths::Deaths;
use crate::units::ExportId;

/// Most queues of a device.
pub const QUEUES_MAX: u16 = 128;
/// Most requests in flight per queue: the kernel's limit.
pub const QUEUE_DEPTH_MAX: u16 = 4096;

/// Exports, each with the epoch in which this host has the volume.
pub type Tenures = HashMap<ExportId, u64>;

/// Limits and defaults of the router.
#[derive(Clone, Debug)]
pub struct RouterOptions {
    /// Most exports at the same time.
    pub exports_max: usize,
    /// Queue depth of a new export whose creation names no depth.
    pub queue_depth_default: u16,
    /// Devices that are recovered at the start, or removed at the end, at the same time.
    pub parallel_max: usize,
    /// How long an answer of the store to the question whose an export is, is waited for.
    pub confirm_patience: Duration,
    /// Whether exports are served at the start although the store cannot be asked whose they are.
    pub serve_unconfirmed: bool,
    /// When the requests of devices began to wait for a start by an upgrade; `None` for any other start.
    pub waiting_since: Option<Instant>,
    /// The exports that the program before served until the upgrade; none for any other start.
    pub tenures: Tenures,
    /// The exports of which daemons before have died.
    pub deaths: Arc<Deaths>,
    /// Identity of this boot of the kernel: devices end with the boot. See [`kernel_boot_id`].
    pub boot_id: String,
}

/// Identity of this boot of the kernel.
pub fn kernel_boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
