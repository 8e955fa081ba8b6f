//! Features of the running kernel's ublk driver: the driver is asked. The version only tells which drivers are known to be broken.

use libublk::ctrl::UblkCtrl;
use libublk::sys;

use super::driver::CONTROL_PATH;
use super::many::Encoding;
use crate::router::devices::DeviceError;

/// The defect for which no new device is made.
const CRASHES: &str = "adding a device can crash the kernel";
/// Defects, and the kernels whose driver has the defect: versions, and releases of distributions that took over a faulty change.
const BROKEN: &[(&str, &[&str])] = &[
    (
        CRASHES,
        &[
            "6.18.4",
            "6.18.5",
            "6.17.0-1015-aws",
            "6.17.0-1016-aws",
            "6.17.0-1017-aws",
            "6.17.0-1018-aws",
            "6.17.0-1015-azure",
            "6.17.0-1016-azure",
            "6.17.0-1017-azure",
            "6.17.0-1018-azure",
        ],
    ),
    ("control commands can be lost", &["6.18.40", "7.0.14", "7.0.0-28-generic"]),
];

/// The driver looks for no partitions when a device is started: `UBLK_F_NO_AUTO_PART_SCAN` of `linux/ublk_cmd.h`.
pub const NO_AUTO_PART_SCAN: u32 = 1 << 18;

/// The features which matter to glidefs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    bits: u64,
    /// The known defect of the driver.
    defect: Option<&'static str>,
}

/// The driver's bits of features, for tests of other layers.
#[cfg(test)]
pub mod bits {
    pub use libublk::sys::{UBLK_F_UPDATE_SIZE as UPDATE_SIZE, UBLK_F_USER_COPY as USER_COPY};
}

impl Features {
    /// A kernel with these features.
    #[cfg(test)]
    pub fn of(bits: &[u32]) -> Self {
        Self { bits: bits.iter().copied().map(u64::from).sum(), defect: None }
    }

    /// The same with a driver that is known to be broken.
    #[cfg(test)]
    pub fn broken(self) -> Self {
        Self { defect: Some(CRASHES), ..self }
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
        Ok(Self { bits: UblkCtrl::get_features().unwrap_or(0), defect: warn_of_defect() })
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
        self.has(sys::UBLK_F_QUIESCE) && self.has(sys::UBLK_F_SHMEM_ZC) && self.defect.is_none()
    }

    /// Whether the kernel can be told not to look for partitions on a new device (Linux 7.0).
    pub fn no_partition_scan(self) -> bool {
        self.has(NO_AUTO_PART_SCAN)
    }

    /// The encoding of commands (ioctl since Linux 6.4).
    pub fn encoding(self) -> Encoding {
        Encoding { is_ioctl: self.has(sys::UBLK_F_CMD_IOCTL_ENCODE) }
    }

    /// The known defect of the driver for which no new device should be made.
    pub fn danger(self) -> Option<&'static str> {
        self.defect.filter(|defect| *defect == CRASHES)
    }

    fn has(self, bit: u32) -> bool {
        self.bits & u64::from(bit) != 0
    }
}

/// The defect of the driver of kernel `release`, if one is known.
pub fn defect_of(release: &str) -> Option<&'static str> {
    let is_meant = |broken: &&str| {
        release.strip_prefix(*broken).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '+']))
    };
    BROKEN.iter().find(|(_, kernels)| kernels.iter().any(is_meant)).map(|(defect, _)| *defect)
}

/// The known defect of the running kernel's driver.
fn warn_of_defect() -> Option<&'static str> {
    let uname = nix::sys::utsname::uname().ok()?;
    let release = uname.release().to_string_lossy();
    let defect = defect_of(&release)?;
    tracing::warn!(kernel = %release, "this kernel's ublk driver is broken: {defect}; boot another kernel, best 7.1 or later");
    Some(defect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_is_known_by_the_version_and_not_by_its_beginning() {
        assert!(defect_of("6.18.4+deb13-amd64").is_some() && defect_of("6.18.40").is_some());
        assert_eq!(["6.18.41-1", "6.18", "7.3.4"].map(defect_of), [None; 3]);
    }

    #[test]
    fn a_distribution_that_took_a_faulty_change_over_is_known_by_its_release() {
        for release in ["6.17.0-1015-azure", "6.17.0-1017-aws", "6.17.0-1018-aws-64k", "7.0.0-28-generic"] {
            assert!(defect_of(release).is_some(), "{release}");
        }
        for release in ["6.17.0-1014-azure", "6.17.0-1019-aws", "6.17.0-1017-gcp", "7.0.0-1011-azure"] {
            assert_eq!(defect_of(release), None, "{release}");
        }
    }
}
