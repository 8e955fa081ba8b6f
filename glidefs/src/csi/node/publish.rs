//! Publishing: a staged volume is shown at the path of a container.
//!
//! Owns bind mounts. Invariants: only a volume which is staged is published; nothing which has content is removed at the path: an empty
//! folder, or an empty file, and only when no mount is there.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use super::device::{Device, number};
use super::{Driver, has_stopped, mounts, path_of, unmount};
use crate::csi::capabilities::{Access, Form};
use crate::csi::error::CsiError;
use crate::csi::mounts::{Mount, Mounts};
use crate::csi::proto::{
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse,
};
use crate::csi::required;

impl Driver {
    pub(super) async fn publish(
        &self,
        request: NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, CsiError> {
        let id = required("volume_id", request.volume_id)?;
        let target = path_of("target_path", request.target_path)?;
        let access = Access::of(request.volume_capability.as_ref())?;
        let is_read_only = access.check_read_only(request.readonly)?;
        if request.staging_target_path.is_empty() {
            return Err(CsiError::precondition(
                "the request has no staging_target_path: stage the volume first",
            ));
        }
        let staging = PathBuf::from(request.staging_target_path);
        let _operation = self.operations.hold_mounts(&id)?;
        let export = self.daemon.volume(&id).await?;
        let device = super::device::device(&export)?.ok_or_else(|| not_staged(&id))?;
        let now = mounts()?;
        // What is at the target already is looked at below, whoever has mounted the volume elsewhere since.
        if access.is_single
            && now.at(&target).is_none()
            && let Some(other) = elsewhere(&now, &device, &staging, &target)
        {
            let other = other.point.display();
            let reason = format!(
                "volume {id} is published at {other}, and is for one pod at a time: end the pod there first"
            );
            return Err(CsiError::precondition(reason));
        }
        match access.form {
            Form::Block => publish_device(&device, &target)?,
            Form::Mount { .. } => {
                let staged = now.at(&staging).filter(|mount| mount.device == device.number);
                let staged = staged.ok_or_else(|| not_staged(&id))?;
                if now.at(&target).is_none() && has_stopped(&now, device.number).await? {
                    return Err(CsiError::precondition(format!(
                        "the file system of volume {id} has stopped after an error: end all pods of this host that have it; \
                         then it is unmounted, and is checked when it is staged again"
                    )));
                }
                publish_mount(staged, now.at(&target), &target, is_read_only)?;
            }
        }
        tracing::info!(volume = id, target = %target.display(), is_read_only, "volume published");
        Ok(NodePublishVolumeResponse {})
    }

    pub(super) async fn unpublish(
        &self,
        request: NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, CsiError> {
        let id = required("volume_id", request.volume_id)?;
        let target = path_of("target_path", request.target_path)?;
        let _operation = self.operations.hold_mounts(&id)?;
        unmount(&target).await?;
        remove(&target)?;
        tracing::info!(volume = id, target = %target.display(), "volume unpublished");
        Ok(NodeUnpublishVolumeResponse {})
    }
}

/// A publication of the volume at another path than `target`.
fn elsewhere<'a>(mounts: &'a Mounts, device: &Device, staging: &Path, target: &Path) -> Option<&'a Mount> {
    // Folders of the volume are shown by kubelet itself (subPath), to containers of a pod which has the volume.
    let whole = mounts.of(device.number).filter(|mount| mount.is_whole());
    let mut all = whole.chain(mounts.of_node(&device.path));
    all.find(|mount| mount.point != staging && mount.point != target)
}

/// Shows the device itself at `target`.
fn publish_device(device: &Device, target: &Path) -> Result<(), CsiError> {
    let now = mounts()?;
    if now.at(target).is_some() {
        return if number(target)? == Some(device.number) { Ok(()) } else { Err(taken(target)) };
    }
    if let Some(mount) = now.of(device.number).next() {
        let point = mount.point.display();
        let reason = format!(
            "the file system of the volume is mounted at {point}: unpublish and unstage it there first"
        );
        return Err(CsiError::precondition(reason));
    }
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(|source| CsiError::system("make", folder, source))?;
    }
    // A file of an earlier call is as good.
    let file = OpenOptions::new().create(true).append(true).open(target);
    file.map_err(|source| CsiError::system("make", target, source))?;
    bind(&device.path, target, MsFlags::empty())
}

/// Shows the staged file system at `target`, where `present` is mounted.
fn publish_mount(
    staged: &Mount,
    present: Option<&Mount>,
    target: &Path,
    is_read_only: bool,
) -> Result<(), CsiError> {
    if let Some(mount) = present {
        return is_as_wanted(mount, staged, is_read_only).then_some(()).ok_or_else(|| taken(target));
    }
    fs::create_dir_all(target).map_err(|source| CsiError::system("make", target, source))?;
    let mut flags = staged.flags();
    flags.set(MsFlags::MS_RDONLY, flags.contains(MsFlags::MS_RDONLY) || is_read_only);
    bind(&staged.point, target, flags)
}

/// Whether the mount which is there shows the staged volume as wanted.
fn is_as_wanted(mount: &Mount, staged: &Mount, is_read_only: bool) -> bool {
    mount.device == staged.device && mount.is_read_only() == (is_read_only || staged.is_read_only())
}

/// Shows `source` at `target`, with `flags` where these are not empty. Nothing is left at `target` after a failure.
fn bind(source: &Path, target: &Path, flags: MsFlags) -> Result<(), CsiError> {
    let none: Option<&str> = None;
    let failed = |errno: nix::Error| CsiError::system("mount on", target, io::Error::from(errno));
    mount(Some(source), target, none, MsFlags::MS_BIND, none).map_err(failed)?;
    if flags.is_empty() {
        return Ok(());
    }
    let changed = mount(none, target, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | flags, none);
    changed.map_err(|errno| {
        // A mount which is writable against the wish must not stay; the error of the change is the one to tell.
        let _ = nix::mount::umount2(target, nix::mount::MntFlags::MNT_DETACH);
        failed(errno)
    })
}

/// Removes the empty folder or file of a publication. Nothing is done without one.
fn remove(target: &Path) -> Result<(), CsiError> {
    let removed = match fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(target),
        Ok(metadata) if metadata.is_file() && metadata.len() == 0 => fs::remove_file(target),
        Ok(_) => Err(io::Error::other("it is neither an empty folder nor an empty file")),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(CsiError::system("remove", target, error))
        }
        _ => Ok(()),
    }
}

fn not_staged(id: &str) -> CsiError {
    CsiError::precondition(format!(
        "volume {id} is not staged on this host at staging_target_path: stage the volume first"
    ))
}

fn taken(target: &Path) -> CsiError {
    let target = target.display();
    CsiError::exists(format!("{target} has another mount, or the volume in another mode: unpublish it first"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publication_counts_only_in_the_mode_that_is_wanted() {
        let text = "22 1 259:3 / /staged rw - ext4 /dev/ublkb3 rw\n\
                    23 1 259:3 / /read ro - ext4 /dev/ublkb3 rw\n\
                    24 1 259:4 / /other rw - ext4 /dev/ublkb4 rw\n";
        let mounts = Mounts::parse(text.as_bytes());
        let at = |path: &str| mounts.at(Path::new(path)).unwrap();
        assert!(is_as_wanted(at("/staged"), at("/staged"), false));
        assert!(!is_as_wanted(at("/staged"), at("/staged"), true));
        assert!(is_as_wanted(at("/read"), at("/staged"), true));
        assert!(!is_as_wanted(at("/read"), at("/staged"), false));
        assert!(!is_as_wanted(at("/other"), at("/staged"), false));
        // All of the volume is read-only.
        assert!(is_as_wanted(at("/read"), at("/read"), false));
    }

    #[test]
    fn a_publication_elsewhere_is_found_of_a_file_system_and_of_a_device() {
        let text =
            "22 1 259:3 / /staged rw - ext4 /dev/ublkb3 rw\n23 1 259:3 / /pod rw - ext4 /dev/ublkb3 rw\n";
        let mounts = Mounts::parse(text.as_bytes());
        let number = mounts.at(Path::new("/pod")).unwrap().device;
        let device = Device { path: "/dev/ublkb3".into(), number };
        let found = |mounts, target: &str| {
            elsewhere(mounts, &device, Path::new("/staged"), Path::new(target)).is_some()
        };
        assert!(!found(&mounts, "/pod"));
        assert!(found(&mounts, "/other"));
        // A part of the volume, which kubelet shows to a container by itself.
        let part = Mounts::parse(b"24 1 259:3 /sub /pods/subpath rw - ext4 /dev/ublkb3 rw\n");
        assert!(!found(&part, "/pod"));
        let raw = Mounts::parse(b"23 1 0:5 /ublkb3 /pod rw - devtmpfs udev rw\n");
        assert!(!found(&raw, "/pod"));
        assert!(found(&raw, "/other"));
    }

    #[test]
    fn only_what_is_empty_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("empty")).unwrap();
        fs::write(path("file"), "").unwrap();
        fs::create_dir(path("full")).unwrap();
        fs::write(path("full/data"), "x").unwrap();
        fs::write(path("data"), "x").unwrap();
        for name in ["empty", "file", "absent", "empty"] {
            remove(&path(name)).unwrap();
            assert!(!path(name).exists(), "{name}");
        }
        for name in ["full", "data"] {
            assert!(remove(&path(name)).is_err());
            assert!(path(name).exists(), "{name}");
        }
    }
}
