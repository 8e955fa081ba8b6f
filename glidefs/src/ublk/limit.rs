//! The kernel's limit on the number of ublk devices, `ublks_max`.
//!
//! Owns how the limit and the number of devices are read. Does not own which kernels count all devices (`doctor`), nor the error of a
//! device too many (`control`).

use std::path::Path;

use super::driver::CLASS_PATH;

/// Where the kernel shows the limit.
const LIMIT_PATH: &str = "/sys/module/ublk_drv/parameters/ublks_max";

/// The kernel's limit of devices, and the number of devices. Kernels before 6.2, and kernels which limit only unprivileged devices
/// (6.15), refuse no device because of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimit {
    pub devices_max: usize,
    pub devices: usize,
}

impl DeviceLimit {
    /// The limit of the running kernel; `None` for a driver without one.
    pub fn read() -> Option<Self> {
        Self::read_at(LIMIT_PATH.as_ref(), CLASS_PATH.as_ref())
    }

    fn read_at(limit: &Path, devices: &Path) -> Option<Self> {
        let devices_max = std::fs::read_to_string(limit).ok()?.trim().parse().ok()?;
        Some(Self { devices_max, devices: std::fs::read_dir(devices).ok()?.count() })
    }

    /// Whether there are as many devices as the limit says.
    pub fn is_reached(self) -> bool {
        self.devices >= self.devices_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_devices_is_reached_with_as_many_as_it_says() {
        let folder = tempfile::tempdir().unwrap();
        let (limit, devices) = (folder.path().join("ublks_max"), folder.path().join("ublk-char"));
        let is_reached = || DeviceLimit::read_at(&limit, &devices).is_some_and(DeviceLimit::is_reached);
        std::fs::create_dir(&devices).unwrap();
        std::fs::write(&limit, "2\n").unwrap();
        for name in ["ublkc0", "ublkc1"] {
            assert!(!is_reached());
            std::fs::write(devices.join(name), "").unwrap();
        }
        assert!(is_reached());
        assert_eq!(DeviceLimit::read_at(&folder.path().join("none"), &devices), None, "a driver without one");
    }
}
