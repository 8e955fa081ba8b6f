//! The trait through which the router reaches block devices. `ublk` implements the trait; `daemon` hands the implementation to
//! the router.
//!
//! Owns the trait and the types of its calls, nothing else. Every call runs off the workers and returns within a time limit.

use std::sync::Arc;

use async_trait::async_trait;

use crate::export::Export;
use crate::units::ExportId;

/// The folder of the stable paths: `/dev/glidefs/NAME` is a symlink to the device of the export NAME.
pub const PATHS_FOLDER: &str = "/dev/glidefs";

/// Number N of `/dev/ublkbN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// Path of the block device, `/dev/ublkbN`.
    pub fn path(self) -> String {
        format!("/dev/ublkb{}", self.0)
    }
}

/// Parameters of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Queues, each served by one worker.
    pub queues: u16,
    /// Most requests in flight per queue.
    pub queue_depth: u16,
}

/// A device in the kernel that a daemon of this cache directory made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// The device's number.
    pub id: DeviceId,
    /// Whether the queues wait for a server: the last daemon died or let go.
    pub quiesced: bool,
}

/// Why a device operation failed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The kernel has no ublk driver.
    #[error(
        "this kernel has no ublk driver: run `modprobe ublk_drv` (Linux 6.1 or later; on Ubuntu the driver is in \
         linux-modules-extra-$(uname -r))"
    )]
    NoDriver,
    /// The caller may not use the driver.
    #[error("no permission to use /dev/ublk-control: run as root or with CAP_SYS_ADMIN")]
    NoPermission,
    /// The kernel's limit of devices is reached.
    #[error("the kernel's limit of ublk devices is reached: raise /sys/module/ublk_drv/parameters/ublks_max")]
    LimitReached,
    /// The driver is known to harm the host when a device is made. Nothing was done.
    #[error(
        "no new device is made, as this kernel's ublk driver is broken: {defect}; boot another kernel, best 7.1 or later, or set \
         [control] allow_broken_kernel = true"
    )]
    BrokenKernel {
        /// What the driver does wrong.
        defect: &'static str,
    },
    /// The kernel has no such device, or not one made by this daemon.
    #[error("there is no device {path}")]
    NotFound {
        /// Path of the device.
        path: String,
    },
    /// The kernel is too old for the operation.
    #[error("{what} needs Linux {since} or later; detach and attach the export instead")]
    Unsupported {
        /// The operation.
        what: &'static str,
        /// The first version of Linux with the operation.
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
    /// The making of another device does not return, or the lock for it is not given. Nothing was done.
    #[error(
        "{command} on {path} has not returned for {seconds} s, and devices are made one at a time: try again when it has returned. For \
         ADD_DEV restart this daemon; for locking look for another daemon of this host that makes a device (pgrep -a glidefs)"
    )]
    Stuck {
        /// Name of the kernel command that hangs.
        command: &'static str,
        /// Path of the other device, or of the locked file.
        path: String,
        /// How long the command has been under way, seconds.
        seconds: u64,
    },
    /// A new device could be neither started nor removed: the device may be live, or become live.
    #[error("{} could be neither started nor removed", .device.path())]
    Left {
        /// The device that the kernel still has.
        device: DeviceId,
        /// Why the device could not be started.
        #[source]
        source: Box<DeviceError>,
    },
    /// A kernel command or system call failed.
    #[error("{command} on {path} failed")]
    Kernel {
        /// Name of the command or call.
        command: &'static str,
        /// Path of the device.
        path: String,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
}

/// Makes, finds and removes block devices.
#[async_trait]
pub trait Devices: Send + Sync + 'static {
    /// Makes a device for `export` and serves the device. The device gets the number `preferred` if the number is free.
    ///
    /// # Errors
    /// [`DeviceError::Left`] when there is a device all the same. After any other error there is none, or one that nobody serves, and
    /// that [`Self::find`] removes.
    async fn attach(
        &self,
        export: Arc<Export>,
        options: DeviceOptions,
        preferred: Option<DeviceId>,
    ) -> Result<DeviceId, DeviceError>;

    /// Looks for the export's device of an earlier daemon (same boot, same cache directory).
    async fn find(&self, export: &Export, id: DeviceId) -> Result<Option<FoundDevice>, DeviceError>;

    /// Takes over a quiesced device and serves the device again; waiting requests are carried out.
    async fn recover(&self, export: Arc<Export>, id: DeviceId) -> Result<(), DeviceError>;

    /// Sees to the stable path of live device `id`: when the call returns, the path of this name leads to the device. Returns within
    /// seconds. An implementation without paths has nothing to do.
    ///
    /// # Errors
    /// Why there is no such path, as a sentence.
    async fn give_path(&self, _name: &str, _id: DeviceId) -> Result<(), String> {
        Ok(())
    }

    /// How device `id` is used, if a removal would harm its users: "mounted on /mnt", "used as swap". Programs that merely have
    /// the device open do not count. The answer may take as long as the kernel takes.
    ///
    /// # Errors
    /// When the kernel does not answer. The device may be in use or not.
    async fn user(&self, _id: DeviceId) -> Result<Option<String>, DeviceError> {
        Ok(None)
    }

    /// Fails the waiting requests of `export`, stops serving the device and removes the device. Succeeds also without a device:
    /// a device of this number that was not made for `export` is left alone.
    async fn detach(&self, export: ExportId, id: DeviceId) -> Result<(), DeviceError>;

    /// Tells the kernel the new size `export.size_bytes()`, if device `id` was made for the export.
    async fn resize(&self, export: &Export, id: DeviceId) -> Result<(), DeviceError>;

    /// Removes what devices have left that were removed while no daemon ran. The router calls once, when the start is over. An
    /// implementation that leaves nothing has nothing to do.
    async fn tidy(&self) {}

    /// Every device in the kernel made in this boot by a daemon of this cache directory, with the export of the device. A device about
    /// which the kernel does not answer is left out. The router asks once, at the start, to find devices made just before a crash and
    /// missing from the catalog. An implementation that cannot list devices answers with none.
    async fn owned(&self) -> Result<Vec<(ExportId, DeviceId)>, DeviceError> {
        Ok(Vec::new())
    }
}
