//! The router's view of block devices. `ublk` implements it; `daemon` injects it.
//!
//! Owns the trait and its vocabulary, nothing else. Every call runs off the workers and returns within a time limit.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::export::Export;
use crate::units::ExportId;

/// Number N of `/dev/ublkbN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// Path of the block device.
    pub fn path(self) -> String {
        format!("/dev/ublkb{}", self.0)
    }
}

/// How a device is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Queues, each served by one worker.
    pub queues: u16,
    /// Requests in flight a queue, at most.
    pub queue_depth: u16,
}

/// A device found in the kernel that was made by this cache directory's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// Its number.
    pub id: DeviceId,
    /// Whether its queues wait for a server (its last one died or let go).
    pub quiesced: bool,
}

/// Why a device operation failed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The kernel has no ublk driver.
    #[error("this kernel has no ublk driver: run `modprobe ublk_drv` (Linux 6.0 or later)")]
    NoDriver,
    /// The caller may not use the driver.
    #[error("no permission to use /dev/ublk-control: run as root or with CAP_SYS_ADMIN")]
    NoPermission,
    /// The kernel will make no more devices.
    #[error("the kernel's limit of ublk devices is reached: raise /sys/module/ublk_drv/parameters/ublks_max")]
    LimitReached,
    /// The kernel knows no such device, or not as one of ours.
    #[error("there is no device {path}")]
    NotFound {
        /// Path of the device.
        path: String,
    },
    /// The kernel is too old for it.
    #[error("{what} needs Linux {since} or later; detach and attach the export instead")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// The first kernel that can.
        since: &'static str,
    },
    /// A kernel command did not return in time.
    #[error("{command} on {path} did not return within {seconds} s; the kernel may still carry it out")]
    TimedOut {
        /// Name of the kernel command.
        command: &'static str,
        /// Path of the device.
        path: String,
        /// The limit, seconds.
        seconds: u64,
    },
    /// A kernel command or system call failed.
    #[error("{command} on {path} failed")]
    Kernel {
        /// Name of the command or call.
        command: &'static str,
        /// Path of the device.
        path: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
}

/// Makes, finds and removes block devices.
pub trait Devices: Send + Sync + 'static {
    /// Makes a device for `export` and serves it, with number `preferred` if that is free.
    fn attach(
        &self,
        export: Arc<Export>,
        options: DeviceOptions,
        preferred: Option<DeviceId>,
    ) -> BoxFuture<'_, Result<DeviceId, DeviceError>>;

    /// Looks for a device this export had under an earlier daemon (same boot, same cache directory).
    fn find(&self, export: &Export, id: DeviceId) -> BoxFuture<'_, Result<Option<FoundDevice>, DeviceError>>;

    /// Takes over a quiesced device and serves it again; requests that waited are carried out.
    fn recover(&self, export: Arc<Export>, id: DeviceId) -> BoxFuture<'_, Result<(), DeviceError>>;

    /// Who uses device `id` in a way that its removal would harm: "mounted on /mnt", "used as swap". Programs that merely have it
    /// open do not count. The answer may take as long as the kernel takes.
    ///
    /// # Errors
    /// When the kernel does not tell, which does not mean that nobody uses the device.
    fn user(&self, _id: DeviceId) -> BoxFuture<'_, Result<Option<String>, DeviceError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Fails the requests of `export` that wait, stops serving it and removes its device. Succeeds when there is none: a device of
    /// that number that was not made for `export` is left alone.
    fn detach(&self, export: ExportId, id: DeviceId) -> BoxFuture<'_, Result<(), DeviceError>>;

    /// Tells the kernel that the export has grown to `export.size_bytes()`, if device `id` was made for the export.
    fn resize(&self, export: &Export, id: DeviceId) -> BoxFuture<'_, Result<(), DeviceError>>;

    /// Every device in the kernel that this cache directory's daemon made in this boot, with the export it was made for.
    /// The router asks once, at start, to find devices that were made just before a crash and are in no catalog entry. An
    /// implementation that cannot tell answers with none.
    fn owned(&self) -> BoxFuture<'_, Result<Vec<(ExportId, DeviceId)>, DeviceError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}
