//! Staging: the device of a volume is brought to this host, and its file system mounted once.
//!
//! Owns the order of steps: device, look, make or check, mount, grow. Invariants: a volume which is staged already is the answer only
//! if the same device is mounted as wanted; a host gives a volume up only when the store has everything of it.

use std::path::Path;

use super::{Driver, has_stopped, mounts, path_of, unmount};
use crate::api::wire::Export;
use crate::csi::capabilities::{Access, FileSystem, Form};
use crate::csi::error::CsiError;
use crate::csi::file_system::{self, Plan};
use crate::csi::mounts::Mount;
use crate::csi::names::volume_name;
use crate::csi::proto::{
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};
use crate::csi::required;
use crate::csi::tools::{self, SHORT};
use crate::router::ExportName;

use super::device::Device;

/// A mount which is wanted.
struct WantedMount<'a> {
    device: &'a Device,
    point: &'a Path,
    fs: FileSystem,
    flags: &'a [String],
    is_read_only: bool,
}

impl Driver {
    pub(super) async fn stage(
        &self,
        request: NodeStageVolumeRequest,
    ) -> Result<NodeStageVolumeResponse, CsiError> {
        let id = required("volume_id", request.volume_id)?;
        let point = path_of("staging_target_path", request.staging_target_path)?;
        let access = Access::of(request.volume_capability.as_ref())?;
        let _operation = self.operations.hold_mounts(&id)?;
        let name = volume_name(&id)?;
        let export = self.open_here(&name).await?;
        let (device, _) = self.ready_device(&name, export, true).await?;
        if let Form::Mount { fs, flags } = &access.form {
            let is_read_only = access.is_read_only;
            self.mount(&name, &WantedMount { device: &device, point: &point, fs: *fs, flags, is_read_only })
                .await?;
        }
        tracing::info!(volume = id, device = %device.path.display(), "volume staged");
        Ok(NodeStageVolumeResponse {})
    }

    /// The export of a volume, opened from the store where hosts share the store.
    pub(in crate::csi) async fn open_here(&self, name: &ExportName) -> Result<Export, CsiError> {
        let is_shared = self.host.shared_store.is_some();
        let found = match self.daemon.find(name).await? {
            Some(export) if is_shared && export.device.is_none() => self.reclaim(name, &export).await?,
            found => found,
        };
        if let Some(export) = found {
            return Ok(export);
        }
        let id = name.as_str();
        if !is_shared {
            return Err(CsiError::no_volume(id));
        }
        let absent = || CsiError::NotFound { what: format!("volume {id:?} on this host or in the store") };
        self.daemon.open(name).await?.ok_or_else(absent)
    }

    /// Takes back an export which this host released. An export which another host has had since is given up here, which leaves the
    /// store alone: everything of it was in the store when this host released it. `None` then.
    async fn reclaim(&self, name: &ExportName, export: &Export) -> Result<Option<Export>, CsiError> {
        match self.daemon.attach(name).await {
            Err(error) if error.refusal() == Some("fenced") && export.at_risk.is_none() => {
                self.daemon.delete(name).await?;
                tracing::info!(volume = %name, "the volume was on another host meanwhile");
                Ok(None)
            }
            attached => attached.map(Some),
        }
    }

    async fn mount(&self, name: &ExportName, wanted: &WantedMount<'_>) -> Result<(), CsiError> {
        let WantedMount { device, point, fs, .. } = *wanted;
        let mut now = mounts()?;
        if has_stopped(&now, device.number).await? {
            if let Some(other) = now.of(device.number).find(|other| other.point != point) {
                let other = other.point.display();
                let reason = format!(
                    "the file system of volume {name} has stopped after an error, and is in use at {other}: end all pods that have it"
                );
                return Err(CsiError::precondition(reason));
            }
            tracing::warn!(volume = %name, "the file system has stopped after an error: it is unmounted and checked");
            unmount(point).await?;
            now = mounts()?;
        }
        if let Some(mount) = now.at(point) {
            is_as_wanted(mount, wanted)?;
            // An earlier call may have ended between the mount and the growth.
            return grow(wanted).await;
        }
        if let Some(mount) = now.of_node(&device.path).next() {
            let point = mount.point.display();
            let reason = format!("volume {name} is published as a raw device at {point}: unpublish it first");
            return Err(CsiError::precondition(reason));
        }
        // Asked for when blkid has looked, and when the daemon has what was written before: one of the two finds it.
        let never_written = async || Ok(self.recheck_device(name, device).await?.blank);
        let is_new = match file_system::look(&device.path, fs, never_written).await? {
            Plan::Make { was_read } => {
                let export = self.recheck_device(name, device).await?;
                if !was_read && !export.blank {
                    let reason = format!("volume {name} was written to while it was looked at");
                    return Err(CsiError::later(reason));
                }
                file_system::make(&device.path, fs).await?;
                tracing::info!(device = %device.path.display(), file_system = fs.name(), "file system made");
                true
            }
            Plan::Use => {
                if now.of(device.number).next().is_none() {
                    self.recheck_device(name, device).await?;
                    file_system::check(&device.path, fs).await?;
                }
                false
            }
        };
        std::fs::create_dir_all(point).map_err(|source| CsiError::system("make", point, source))?;
        let options = options(wanted);
        let fixed = ["-t", fs.name(), "-o", &options, "--"].map(Path::new);
        tools::run("mount", fixed.into_iter().chain([device.path.as_path(), point]), SHORT, &[0]).await?;
        let is_right = mounts()?.at(point).is_some_and(|mount| mount.device == device.number);
        if !is_right || self.recheck_device(name, device).await.is_err() {
            unmount(point).await?;
            let reason = format!("volume {name} got another device while it was mounted");
            return Err(CsiError::later(reason));
        }
        // A copy may be larger than its source.
        if is_new { Ok(()) } else { grow(wanted).await }
    }

    pub(super) async fn unstage(
        &self,
        request: NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, CsiError> {
        let id = required("volume_id", request.volume_id)?;
        let point = path_of("staging_target_path", request.staging_target_path)?;
        let _operation = self.operations.hold_mounts(&id)?;
        unmount(&point).await?;
        if self.host.shared_store.is_some()
            && let Ok(name) = ExportName::new(&id)
            && let Some(export) = self.daemon.find(&name).await?
        {
            self.refuse_if_used(&export).await?;
            self.daemon.release(&name).await?;
        }
        tracing::info!(volume = id, "volume unstaged");
        Ok(NodeUnstageVolumeResponse {})
    }
}

/// Makes the mounted file system as large as its device.
async fn grow(wanted: &WantedMount<'_>) -> Result<(), CsiError> {
    if wanted.is_read_only {
        return Ok(());
    }
    file_system::grow(&wanted.device.path, wanted.point, wanted.fs).await
}

/// Checks that the mount is the wanted one.
fn is_as_wanted(mount: &Mount, wanted: &WantedMount<'_>) -> Result<(), CsiError> {
    let point = wanted.point.display();
    let difference = if mount.device != wanted.device.number {
        "something else than the volume".into()
    } else if mount.fs_type != wanted.fs.name() {
        format!("{} in place of {}", mount.fs_type, wanted.fs.name())
    } else if mount.is_read_only() != wanted.is_read_only {
        "the volume, and not writable or read-only as wanted".into()
    } else {
        return Ok(());
    };
    Err(CsiError::exists(format!("{point} has {difference}: unmount it first")))
}

/// The options of the mount, as mount(8) takes them.
fn options(wanted: &WantedMount<'_>) -> String {
    let mut options = vec![if wanted.is_read_only { "ro" } else { "rw" }];
    // A copy has the UUID of its source, and both may be mounted on one host.
    if wanted.fs == FileSystem::Xfs {
        options.push("nouuid");
    }
    options.extend(wanted.flags.iter().map(String::as_str));
    options.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::mounts::Mounts;

    #[test]
    fn a_copy_of_xfs_may_be_mounted_beside_its_source() {
        let device = Device { path: "/dev/ublkb1".into(), number: number() };
        let flags = ["noatime".to_owned()];
        let point = Path::new("/x");
        let mut wanted =
            WantedMount { device: &device, point, fs: FileSystem::Xfs, flags: &flags, is_read_only: false };
        assert_eq!(options(&wanted), "rw,nouuid,noatime");
        wanted.fs = FileSystem::Ext4;
        wanted.is_read_only = true;
        assert_eq!(options(&wanted), "ro,noatime");
    }

    #[test]
    fn a_mount_counts_as_staged_only_if_device_file_system_and_mode_are_those_wanted() {
        let text = "22 1 259:3 / /x rw - xfs /dev/ublkb3 rw\n23 1 259:4 / /y ro - xfs /dev/ublkb4 rw\n";
        let mounts = Mounts::parse(text.as_bytes());
        let device = Device { path: "/dev/ublkb3".into(), number: number() };
        let wanted = |fs, is_read_only| WantedMount {
            device: &device,
            point: Path::new("/x"),
            fs,
            flags: &[],
            is_read_only,
        };
        let staged = mounts.at(Path::new("/x")).unwrap();
        is_as_wanted(staged, &wanted(FileSystem::Xfs, false)).unwrap();
        assert!(is_as_wanted(staged, &wanted(FileSystem::Ext4, false)).is_err());
        assert!(is_as_wanted(staged, &wanted(FileSystem::Xfs, true)).is_err());
        let other = mounts.at(Path::new("/y")).unwrap();
        assert!(is_as_wanted(other, &wanted(FileSystem::Xfs, true)).is_err());
    }

    fn number() -> crate::csi::mounts::DeviceNumber {
        let mounts = Mounts::parse(b"22 1 259:3 / /x rw - xfs /dev/ublkb3 rw\n");
        mounts.at(Path::new("/x")).unwrap().device
    }
}
