//! The node service: volumes on this host.
//!
//! Owns the table of calls. Does not own the steps: `stage` mounts a device, `publish` shows the mount to a container, `usage` looks and
//! makes larger, `device` brings the device, `users` tells who
//! uses a device. Invariant: the state of a volume on this host is what the kernel's table of mounts says.

mod device;
mod publish;
mod stage;
mod usage;
mod users;

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::mount::MsFlags;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;

use super::Service;
use super::capacity::signed;
use super::error::CsiError;
use super::proto::node_server::Node;
use super::proto::node_service_capability::rpc::Type as RpcType;
use super::proto::node_service_capability::{Rpc, Type};
#[allow(clippy::wildcard_imports, reason = "a request and an answer for each call")]
use super::proto::*;
use super::tools::{self, SHORT};
use super::{Answer, Driver, calls, required};
use crate::csi::mounts::{DeviceNumber, Mount, Mounts};

const CAPABILITIES: [RpcType; 4] = [
    RpcType::StageUnstageVolume,
    RpcType::GetVolumeStats,
    RpcType::ExpandVolume,
    RpcType::SingleNodeMultiWriter,
];
/// Mounts on top of each other at one path which are taken away at once.
const STACKED_MAX: usize = 16;
/// How long a file system may take to say how it is.
const LOOK_MAX: Duration = Duration::from_secs(20);

calls!(Node, {
    node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse = stage;
    node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse = unstage;
    node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse = publish;
    node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse = unpublish;
    node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse = stats;
    node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse = expand;
    node_get_capabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse = node_capabilities;
    node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse = node_info;
}, refused {
    node_get_volume_health(NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse = "the metrics of the daemon have the health";
    node_get_storage_health(NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse = "the metrics of the daemon have the health";
});

#[allow(clippy::unused_async, reason = "every call of a table is awaited")]
impl Driver {
    async fn node_capabilities(
        &self,
        _: NodeGetCapabilitiesRequest,
    ) -> Result<NodeGetCapabilitiesResponse, CsiError> {
        let capability =
            |rpc: RpcType| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })) };
        Ok(NodeGetCapabilitiesResponse { capabilities: CAPABILITIES.map(capability).into() })
    }

    async fn node_info(&self, _: NodeGetInfoRequest) -> Result<NodeGetInfoResponse, CsiError> {
        Ok(NodeGetInfoResponse {
            node_id: self.host.node_id.clone(),
            max_volumes_per_node: signed(self.daemon.status().await?.exports.max),
            accessible_topology: Some(self.host.of_node()),
        })
    }
}

/// An absolute path of a request.
fn path_of(field: &'static str, path: String) -> Result<PathBuf, CsiError> {
    let path = PathBuf::from(required(field, path)?);
    if path.is_absolute() {
        return Ok(path);
    }
    Err(CsiError::invalid(field, format!("{} is no absolute path", path.display())))
}

/// The mounts as they are now.
fn mounts() -> Result<Mounts, CsiError> {
    Mounts::read().map_err(|source| CsiError::system("read", "/proc/self/mountinfo", source))
}

/// Whether the file system of the device, where it is mounted writable, has stopped after an error, and is of no use until it has been
/// unmounted and checked. A write is the only question that all file systems and kernels answer.
async fn has_stopped(mounts: &Mounts, device: DeviceNumber) -> Result<bool, CsiError> {
    let is_writable = |mount: &&Mount| mount.is_whole() && !mount.flags().contains(MsFlags::MS_RDONLY);
    let Some(mount) = mounts.of(device).find(is_writable) else { return Ok(false) };
    let point = mount.point.clone();
    let touch = move || {
        let (atime, mtime) = (&TimeSpec::UTIME_NOW, &TimeSpec::UTIME_OMIT);
        let touched = || utimensat(AT_FDCWD, &point, atime, mtime, UtimensatFlags::FollowSymlink);
        // An ext4 whose journal has failed learns of that by the first write, which succeeds.
        let touched = touched().and_then(|()| touched());
        Ok(matches!(touched, Err(Errno::EIO | Errno::EROFS)))
    };
    tools::within(LOOK_MAX, "look at", &mount.point, touch).await
}

/// Takes away all mounts at `path`. Nothing is done without a mount.
async fn unmount(path: &Path) -> Result<(), CsiError> {
    for _ in 0..STACKED_MAX {
        if mounts()?.at(path).is_none() {
            return Ok(());
        }
        tools::run("umount", [path], SHORT, &[0]).await?;
    }
    Err(CsiError::later(format!("{} is mounted again and again", path.display())))
}
