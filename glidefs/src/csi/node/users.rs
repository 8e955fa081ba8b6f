//! Who uses a device: mounts, and programs which have the device open.
//!
//! Owns the question that is asked before a device goes. Does not own the daemon's own check, which sees exclusive users alone: neither a
//! device node which is shown to a container nor a plain open counts there. Invariant: a device which a mount shows, as a file system or
//! as a node, does not go; its number would lead to another volume soon.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::device::{Device, number};
use super::{Driver, mounts};
use crate::api::wire::Export;
use crate::csi::error::CsiError;
use crate::csi::mounts::{DeviceNumber, Mount, Mounts};

/// How often, and how long between, programs that have the device open are looked for: udev opens a device for a moment whenever
/// somebody has written.
const LOOKS: u32 = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

impl Driver {
    /// Refuses when the export's device is in use: mounted, shown to a container, or opened by a program of which this process knows.
    pub(in crate::csi) async fn refuse_if_used(&self, export: &Export) -> Result<(), CsiError> {
        let Some(node) = export.device.as_deref().map(Path::new) else { return Ok(()) };
        let Some(number) = number(node)? else { return Ok(()) };
        let device = Device { path: node.into(), number };
        let name = &export.name;
        for _ in 0..LOOKS {
            if let Some(mount) = mounted(&mounts()?, &device) {
                let reason =
                    format!("volume {name} is in use at {}: unpublish it first", mount.point.display());
                return Err(CsiError::precondition(reason));
            }
            let opened = tokio::task::spawn_blocking(move || opened(number)).await;
            if opened.map_err(|_| CsiError::Broken)?.is_none() {
                return Ok(());
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Err(CsiError::precondition(format!(
            "volume {name} is in use, as a program has {} open: end that program first",
            node.display()
        )))
    }
}

/// A mount of the device's file system, or of the device node.
pub(super) fn mounted<'a>(mounts: &'a Mounts, device: &Device) -> Option<&'a Mount> {
    mounts.of(device.number).chain(mounts.of_node(&device.path)).next()
}

/// A process which has the device open. Processes of other PID namespaces are not seen, nor those which end meanwhile.
fn opened(number: DeviceNumber) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| DeviceNumber::at(&file.path()).is_ok_and(|found| found == Some(number)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_in_use_where_its_file_system_or_its_node_is_mounted() {
        let staged = Mounts::parse(b"22 1 259:3 / /staged rw - ext4 /dev/ublkb3 rw\n");
        let number = staged.at(Path::new("/staged")).unwrap().device;
        let device = Device { path: "/dev/ublkb3".into(), number };
        assert!(mounted(&staged, &device).is_some());
        let node = Mounts::parse(b"23 1 0:5 /ublkb3 /pods/block rw - devtmpfs udev rw\n");
        assert_eq!(mounted(&node, &device).unwrap().point, Path::new("/pods/block"));
        let others = b"22 1 259:4 / /staged rw - ext4 /dev/ublkb4 rw\n23 1 0:5 /ublkb4 /pods/block rw - devtmpfs udev rw\n";
        assert!(mounted(&Mounts::parse(others), &device).is_none());
    }
}
