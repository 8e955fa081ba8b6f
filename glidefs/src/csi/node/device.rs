//! The device of a volume: there, and the right one.
//!
//! Owns the waiting. Invariant: a path is used only if the kernel's number behind it is that of the device which the daemon names, so a
//! path which is late or left over never leads to another volume.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::mounts;
use super::users::mounted;
use crate::api::wire::Export;
use crate::csi::Driver;
use crate::csi::error::CsiError;
use crate::csi::mounts::{DeviceNumber, Mounts};
use crate::csi::tools;
use crate::router::ExportName;

/// How often, and how long between, the device is looked for. The device node comes with the answer of the daemon, its stable path
/// when udev is done.
const LOOKS: u32 = 100;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// How long the writing of a file system's cached data may keep a snapshot waiting.
const SYNC_PATIENCE: Duration = Duration::from_secs(30);

/// The device of an export, in service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::csi) struct Device {
    /// The path of the device node, without symlinks.
    pub path: PathBuf,
    pub number: DeviceNumber,
}

impl Driver {
    /// Gives the export a device of the export's size, if there is none, and waits until the device can be opened. Returns the device
    /// and the export. Where a device in use cannot grow on this kernel, a call with `may_be_in_use` gets the old size: the volume was
    /// ready before.
    pub(in crate::csi) async fn ready_device(
        &self,
        name: &ExportName,
        export: Export,
        may_be_in_use: bool,
    ) -> Result<(Device, Export), CsiError> {
        let (device, export) = self.await_device(name, export).await?;
        if size_bytes(&device)? >= export.size_bytes {
            return Ok((device, export));
        }
        if may_be_in_use && mounted(&mounts()?, &device).is_some() {
            tracing::warn!(volume = %name, "the device keeps its old size while it is in use");
            return Ok((device, export));
        }
        self.refuse_if_used(&export).await?;
        self.daemon.detach(name).await?;
        let export = self.daemon.attach(name).await?;
        let (device, export) = self.await_device(name, export).await?;
        if size_bytes(&device)? < export.size_bytes {
            return Err(CsiError::later(format!("the device of volume {name} has not the volume's size")));
        }
        Ok((device, export))
    }

    /// The export as it is now. Refuses when the export has another device than `wanted` by now, or none.
    pub(super) async fn recheck_device(
        &self,
        name: &ExportName,
        wanted: &Device,
    ) -> Result<Export, CsiError> {
        if let Some(export) = self.daemon.find(name).await?
            && device(&export)?.as_ref() == Some(wanted)
        {
            return Ok(export);
        }
        let path = wanted.path.display();
        Err(CsiError::later(format!("{path} is not the device of volume {name} any more")))
    }

    async fn await_device(&self, name: &ExportName, export: Export) -> Result<(Device, Export), CsiError> {
        let export = if export.state == "serving" { export } else { self.daemon.attach(name).await? };
        if export.state != "serving" {
            return Err(CsiError::later(format!("volume {name} is {}", export.state)));
        }
        for _ in 0..LOOKS {
            if let Some(device) = device(&export)? {
                return Ok((device, export));
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        let path = export.path.or(export.device).unwrap_or_default();
        Err(CsiError::later(format!(
            "{path} has not become the device of volume {name}: is /dev that of the host?"
        )))
    }

    /// Has the kernel write what it keeps of the export's mounted file systems, so that a snapshot or copy has everything written
    /// before. The snapshot is that of a crash all the same, so a failure is only logged.
    pub(in crate::csi) async fn sync(&self, export: &Export) {
        let Ok(Some(Device { path, number })) = device(export) else { return };
        let write = move || {
            let mounts = Mounts::read()?;
            let mut points =
                mounts.of(number).filter(|mount| !mount.is_read_only()).map(|mount| &mount.point);
            points.try_for_each(|point| {
                Ok::<(), std::io::Error>(nix::unistd::syncfs(std::fs::File::open(point)?)?)
            })
        };
        if let Err(error) = tools::within(SYNC_PATIENCE, "sync", &path, write).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(export = export.name, error, "a file system was not synced before a snapshot");
        }
    }
}

/// The device of an export: where the stable path leads, if there is one, and the daemon's own path says the same. `None` until the
/// paths agree.
pub(super) fn device(export: &Export) -> Result<Option<Device>, CsiError> {
    let Some(node) = &export.device else { return Ok(None) };
    let node = Path::new(node);
    let Some(number) = number(node)? else { return Ok(None) };
    if let Some(stable) = &export.path
        && self::number(Path::new(stable))? != Some(number)
    {
        return Ok(None);
    }
    Ok(Some(Device { path: node.into(), number }))
}

/// The size of the device as the kernel has it, bytes.
pub(super) fn size_bytes(device: &Device) -> Result<u64, CsiError> {
    device.number.size_bytes().map_err(|source| CsiError::system("ask the size of", &device.path, source))
}

/// The number of the block device at `path`; `None` if there is none.
pub(super) fn number(path: &Path) -> Result<Option<DeviceNumber>, CsiError> {
    match DeviceNumber::at(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        found => found.map_err(|source| CsiError::system("look at", path, source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(device: Option<&str>, path: Option<&str>) -> Export {
        let text = serde_json::json!({
            "name": "csi-a", "id": 1, "size_bytes": 4096, "device": device, "path": path, "state": "serving", "reason": null,
            "queues": 1, "queue_depth": 1, "created": "1970-01-01T00:00:00Z",
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_path_that_is_no_block_device_is_no_device() {
        assert_eq!(device(&export(None, None)).unwrap(), None);
        assert_eq!(device(&export(Some("/nonexistent/ublkb0"), None)).unwrap(), None);
        assert_eq!(device(&export(Some("/dev/null"), Some("/dev/null"))).unwrap(), None);
    }
}
