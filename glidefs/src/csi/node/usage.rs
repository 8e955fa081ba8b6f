//! How full a volume is, and how its file system grows.
//!
//! Owns the check that a path shows the volume. Invariant: figures and growth are of the volume which was asked for, whatever the path
//! shows.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::{Statvfs, statvfs};

use super::device::{Device, device, number, size_bytes};
use super::{Driver, LOOK_MAX, mounts};
use crate::api::wire::Export;
use crate::csi::capabilities::FileSystem;
use crate::csi::capacity::{SizeRange, signed};
use crate::csi::error::CsiError;
use crate::csi::file_system;
use crate::csi::mounts::Mount;
use crate::csi::proto::volume_usage::Unit;
use crate::csi::proto::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    VolumeUsage,
};
use crate::csi::required;
use crate::csi::tools;

impl Driver {
    pub(super) async fn stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, CsiError> {
        let id = required("volume_id", request.volume_id)?;
        let path = PathBuf::from(required("volume_path", request.volume_path)?);
        let export = self.daemon.volume(&id).await?;
        let usage = match shown(&export, &path)?.1 {
            None => {
                let total = signed(export.size_bytes);
                vec![VolumeUsage { total, unit: Unit::Bytes.into(), ..VolumeUsage::default() }]
            }
            Some(_) => {
                let asked = path.clone();
                let figures = tools::within(LOOK_MAX, "look at", &path, move || Ok(statvfs(&asked)?)).await?;
                usage(&figures)
            }
        };
        Ok(NodeGetVolumeStatsResponse { usage })
    }

    pub(super) async fn expand(
        &self,
        request: NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, CsiError> {
        let id = required("volume_id", request.volume_id)?;
        let path = PathBuf::from(required("volume_path", request.volume_path)?);
        let wanted = SizeRange::of(request.capacity_range.as_ref())?;
        let _operation = self.operations.hold_mounts(&id)?;
        let export = self.daemon.volume(&id).await?;
        let (device, mount) = shown(&export, &path)?;
        let export = self.enlarge(export, wanted).await?;
        let device_bytes = size_bytes(&device)?;
        if device_bytes < export.size_bytes {
            let reason = format!(
                "volume {id} has {} bytes, and this kernel keeps {} at {device_bytes} bytes while it is attached: end the pod, and have \
                 the export detached and attached",
                export.size_bytes,
                device.path.display()
            );
            return Err(CsiError::precondition(reason));
        }
        if let Some(mount) = mount {
            let fs = FileSystem::of(&mount.fs_type).ok_or_else(|| {
                CsiError::precondition(format!(
                    "{} is not grown by this driver: use the tool of the file system",
                    mount.fs_type
                ))
            })?;
            file_system::grow(&device.path, &mount.point, fs).await?;
        }
        tracing::info!(volume = id, size_bytes = export.size_bytes, "volume expanded on this host");
        Ok(NodeExpandVolumeResponse { capacity_bytes: signed(export.size_bytes) })
    }
}

/// Finds the device of the export, and its mount at `path`; `None` where `path` is the device itself.
fn shown(export: &Export, path: &Path) -> Result<(Device, Option<Mount>), CsiError> {
    let not_found = || CsiError::NotFound { what: format!("volume {} at {}", export.name, path.display()) };
    let device = device(export)?.ok_or_else(not_found)?;
    if let Some(mount) = mounts()?.at(path)
        && mount.device == device.number
    {
        return Ok((device, Some(mount.clone())));
    }
    if path.is_absolute() && number(path)? == Some(device.number) {
        return Ok((device, None));
    }
    Err(not_found())
}

/// Bytes and inodes of a file system.
fn usage(figures: &Statvfs) -> Vec<VolumeUsage> {
    let block = figures.fragment_size();
    let of = |total: u64, free: u64, available: u64, scale: u64, unit: Unit| VolumeUsage {
        available: signed(available.saturating_mul(scale)),
        total: signed(total.saturating_mul(scale)),
        used: signed(total.saturating_sub(free).saturating_mul(scale)),
        unit: unit.into(),
    };
    vec![
        of(figures.blocks(), figures.blocks_free(), figures.blocks_available(), block, Unit::Bytes),
        of(figures.files(), figures.files_free(), figures.files_available(), 1, Unit::Inodes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_has_bytes_and_inodes_which_add_up() {
        let usage = usage(&statvfs("/").unwrap());
        let [bytes, inodes] = &usage[..] else { panic!("two figures are wanted: {usage:?}") };
        assert_eq!((bytes.unit(), inodes.unit()), (Unit::Bytes, Unit::Inodes));
        for figure in [bytes, inodes] {
            assert!(figure.used <= figure.total && figure.available <= figure.total, "{figure:?}");
        }
    }
}
