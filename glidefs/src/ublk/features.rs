//! Features of the running kernel's ublk driver: asked for, and never guessed from the version.

use libublk::ctrl::UblkCtrl;
use libublk::sys;

use super::control::CONTROL_PATH;
use crate::router::devices::DeviceError;

/// Kernel releases with a driver known to be broken, and the defect.
const BROKEN: &[(&str, &str)] = &[
    ("6.18.4", "adding a device can crash the kernel"),
    ("6.18.5", "adding a device can crash the kernel"),
    ("6.18.40", "control commands can be lost"),
    ("7.0.14", "control commands can be lost"),
];

/// The first release in which a device with batches is known to come back after QUIESCE_DEV. No feature tells: before, the driver may
/// fail every request of such a device for ever.
const BATCH_QUIESCE_SINCE: (u32, u32) = (7, 3);

/// The features which matter to glidefs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    bits: u64,
    /// Whether the driver is known to be broken.
    is_broken: bool,
    /// Whether the kernel is [`BATCH_QUIESCE_SINCE`] or later.
    brings_batches_back: bool,
}

impl Features {
    /// A kernel without any feature.
    #[cfg(test)]
    pub fn none() -> Self {
        Self { bits: 0, is_broken: false, brings_batches_back: false }
    }

    /// Asks the driver. A driver too old to be asked (before Linux 6.5) has no feature.
    pub fn probe() -> Result<Self, DeviceError> {
        use std::io::ErrorKind;
        match std::fs::File::options().read(true).write(true).open(CONTROL_PATH) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(DeviceError::NoDriver),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(DeviceError::NoPermission);
            }
            Err(source) => {
                return Err(DeviceError::Kernel { command: "opening", path: CONTROL_PATH.into(), source });
            }
        }
        let release = release();
        Ok(Self {
            bits: UblkCtrl::get_features().unwrap_or(0),
            is_broken: warn_of_broken_kernel(&release),
            brings_batches_back: version(&release).is_some_and(|version| version >= BATCH_QUIESCE_SINCE),
        })
    }

    /// Whether requests' bytes can be moved with `pread` and `pwrite` on the character device (Linux 6.5).
    pub fn user_copy(self) -> bool {
        self.has(sys::UBLK_F_USER_COPY)
    }

    /// Whether a live device can change its size (Linux 6.16).
    pub fn update_size(self) -> bool {
        self.has(sys::UBLK_F_UPDATE_SIZE)
    }

    /// Whether a live device can be taken back from its server without harm. The command is there since Linux 6.16, but before 7.1 a
    /// server that dies while it takes a device over may leave a device that nobody can take over any more (CVE-2026-53124). The driver
    /// of 7.1 is the first with SHMEM_ZC. Not used on kernels that may lose the command.
    pub fn quiesce(self) -> bool {
        self.has(sys::UBLK_F_QUIESCE) && self.has(sys::UBLK_F_SHMEM_ZC) && !self.is_broken
    }

    /// Whether requests and answers can travel in batches (Linux 7.0). Not used on kernels known to be broken.
    pub fn batch(self) -> bool {
        self.has(sys::UBLK_F_BATCH_IO) && self.user_copy() && !self.is_broken
    }

    /// Whether a device with batches can be taken back from its server without harm.
    pub fn batch_quiesce(self) -> bool {
        self.batch() && self.quiesce() && self.brings_batches_back
    }

    /// Whether commands are ioctl-encoded (Linux 6.4).
    pub fn ioctl_encoded(self) -> bool {
        self.has(sys::UBLK_F_CMD_IOCTL_ENCODE)
    }

    fn has(self, bit: u32) -> bool {
        self.bits & u64::from(bit) != 0
    }
}

/// The release of the running kernel, e.g. `7.3.4+deb13-amd64`.
fn release() -> String {
    nix::sys::utsname::uname()
        .map_or_else(|_| String::new(), |it| it.release().to_string_lossy().into_owned())
}

/// The first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Whether `release` is one of [`BROKEN`].
fn warn_of_broken_kernel(release: &str) -> bool {
    let version = release.split(['-', '+']).next().unwrap_or_default();
    let known = BROKEN.iter().find(|(broken, _)| *broken == version);
    if let Some((_, what)) = known {
        tracing::warn!(kernel = %release, "this kernel's ublk driver is broken: {what}; use 7.1 or later");
    }
    known.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_used_with_quiesce_only_where_such_devices_come_back() {
        let bits = [sys::UBLK_F_BATCH_IO, sys::UBLK_F_USER_COPY, sys::UBLK_F_QUIESCE, sys::UBLK_F_SHMEM_ZC];
        let features = |release: &str| Features {
            bits: bits.into_iter().map(u64::from).sum(),
            is_broken: warn_of_broken_kernel(release),
            brings_batches_back: version(release).is_some_and(|version| version >= BATCH_QUIESCE_SINCE),
        };
        for (release, expected) in [
            ("7.0.14", (false, false)),
            ("7.1.2-1-amd64", (true, false)),
            ("7.3.4+deb13-amd64", (true, true)),
            ("7.10.0-rc1", (true, true)),
            ("8.0.0", (true, true)),
            ("unknown", (true, false)),
        ] {
            assert_eq!((features(release).batch(), features(release).batch_quiesce()), expected, "{release}");
        }
        assert!(!Features::none().batch());
    }
}
