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

use tonic::{Request, Response};

use super::Service;
use super::capacity::signed;
use super::error::CsiError;
use super::health;
use super::proto::node_server::Node;
use super::proto::node_service_capability::rpc::Type as RpcType;
use super::proto::node_service_capability::{Rpc, Type};
#[allow(clippy::wildcard_imports, reason = "a request and an answer for each call")]
use super::proto::*;
use super::tools::{self, SHORT};
use super::{Answer, Driver, answer, required};
use crate::csi::mounts::Mounts;

const CAPABILITIES: [RpcType; 6] = [
    RpcType::StageUnstageVolume,
    RpcType::GetVolumeStats,
    RpcType::ExpandVolume,
    RpcType::GetVolumeHealth,
    RpcType::GetStorageHealth,
    RpcType::SingleNodeMultiWriter,
];
/// Mounts on top of each other at one path which are taken away at once.
const STACKED_MAX: usize = 16;

#[tonic::async_trait]
impl Node for Service {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        answer!(self, request, "NodeStageVolume", stage)
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        answer!(self, request, "NodeUnstageVolume", unstage)
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        answer!(self, request, "NodePublishVolume", publish)
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        answer!(self, request, "NodeUnpublishVolume", unpublish)
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        answer!(self, request, "NodeGetVolumeStats", stats)
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Answer<NodeExpandVolumeResponse> {
        answer!(self, request, "NodeExpandVolume", expand)
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Answer<NodeGetVolumeHealthResponse> {
        answer!(self, request, "NodeGetVolumeHealth", health)
    }

    async fn node_get_storage_health(
        &self,
        _request: Request<NodeGetStorageHealthRequest>,
    ) -> Answer<NodeGetStorageHealthResponse> {
        let driver = self.0.clone();
        self.answer("NodeGetStorageHealth", async move {
            let status = driver.daemon.status().await;
            Ok(NodeGetStorageHealthResponse { backend_health: health::of_daemon(status.as_ref()) })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _request: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        let capability =
            |rpc: RpcType| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })) };
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: CAPABILITIES.map(capability).into() }))
    }

    async fn node_get_info(&self, _request: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        let driver = self.0.clone();
        self.answer("NodeGetInfo", async move {
            let max = driver.daemon.status().await?.exports.max;
            Ok(NodeGetInfoResponse {
                node_id: driver.host.node_id.clone(),
                max_volumes_per_node: signed(max),
                accessible_topology: Some(driver.host.of_node()),
            })
        })
        .await
    }
}

/// An absolute path of a request.
fn path_of(field: &'static str, path: String) -> Result<PathBuf, CsiError> {
    let path = PathBuf::from(required(field, path)?);
    if path.is_absolute() {
        return Ok(path);
    }
    Err(CsiError::Invalid { field, reason: format!("{} is no absolute path", path.display()) })
}

/// The mounts as they are now.
fn mounts() -> Result<Mounts, CsiError> {
    Mounts::read().map_err(|source| CsiError::system("read", "/proc/self/mountinfo", source))
}

/// Takes away all mounts at `path`. Nothing is done without a mount.
async fn unmount(path: &Path) -> Result<(), CsiError> {
    for _ in 0..STACKED_MAX {
        if mounts()?.at(path).is_none() {
            return Ok(());
        }
        tools::run_well("umount", [path], SHORT, &[0]).await?;
    }
    Err(CsiError::Later { reason: format!("{} is mounted again and again", path.display()) })
}
