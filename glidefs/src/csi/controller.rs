//! The controller service: volumes and snapshots as objects.
//!
//! Owns the table of calls, and those which only look. Does not own the making of volumes (`create`) nor snapshots (`snapshots`)
//! nor work on a volume which another host has had (`visit`).
//! Invariant: a capability is offered only if the daemon can do the work: without a store there are no snapshots and no copies.

mod change;
mod create;
mod snapshots;
mod visit;

use tonic::{Request, Status};

use super::Service;
use super::capabilities::Access;
use super::capacity::signed;
use super::error::CsiError;
use super::health;
use super::names::is_own;
use super::paging::page;
use super::parameters;
use super::proto::controller_server::Controller;
use super::proto::controller_service_capability::rpc::Type as RpcType;
use super::proto::controller_service_capability::{Rpc, Type};
#[allow(clippy::wildcard_imports, reason = "a request and an answer for each call")]
use super::proto::*;
use super::{Answer, Driver, answer, required};
use crate::api::wire::Export;

/// Services of every driver, with and without a store.
const ALWAYS: [RpcType; 7] = [
    RpcType::CreateDeleteVolume,
    RpcType::ListVolumes,
    RpcType::GetCapacity,
    RpcType::GetVolume,
    RpcType::GetVolumeHealth,
    RpcType::ListVolumeHealth,
    RpcType::SingleNodeMultiWriter,
];
/// Further services of a driver whose daemon has a store.
const WITH_STORE: [RpcType; 4] =
    [RpcType::CreateDeleteSnapshot, RpcType::ListSnapshots, RpcType::GetSnapshot, RpcType::CloneVolume];
/// Services which Kubernetes asks of one controller in the cluster, wherever the volume is.
const CENTRAL: [RpcType; 2] = [RpcType::ExpandVolume, RpcType::ModifyVolume];

#[tonic::async_trait]
impl Controller for Service {
    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        answer!(self, request, "CreateVolume", create_volume)
    }

    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        answer!(self, request, "DeleteVolume", delete_volume)
    }

    async fn controller_publish_volume(
        &self,
        _request: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        Err(Status::unimplemented("a volume is attached where it is staged"))
    }

    async fn controller_unpublish_volume(
        &self,
        _request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        Err(Status::unimplemented("a volume is detached where it is unstaged"))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        answer!(self, request, "ValidateVolumeCapabilities", validate)
    }

    async fn list_volumes(&self, request: Request<ListVolumesRequest>) -> Answer<ListVolumesResponse> {
        answer!(self, request, "ListVolumes", list_volumes)
    }

    async fn get_capacity(&self, request: Request<GetCapacityRequest>) -> Answer<GetCapacityResponse> {
        answer!(self, request, "GetCapacity", get_capacity)
    }

    async fn controller_get_capabilities(
        &self,
        _request: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        let driver = self.0.clone();
        self.answer("ControllerGetCapabilities", async move {
            let with_store: &[RpcType] = if driver.daemon.has_store().await? { &WITH_STORE } else { &[] };
            let central: &[RpcType] = if driver.node_deployment { &[] } else { &CENTRAL };
            let all = ALWAYS.iter().chain(with_store).chain(central);
            let capability = |&rpc: &RpcType| ControllerServiceCapability {
                r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })),
            };
            Ok(ControllerGetCapabilitiesResponse { capabilities: all.map(capability).collect() })
        })
        .await
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Answer<CreateSnapshotResponse> {
        answer!(self, request, "CreateSnapshot", create_snapshot)
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Answer<DeleteSnapshotResponse> {
        answer!(self, request, "DeleteSnapshot", delete_snapshot)
    }

    async fn list_snapshots(&self, request: Request<ListSnapshotsRequest>) -> Answer<ListSnapshotsResponse> {
        answer!(self, request, "ListSnapshots", list_snapshots)
    }

    async fn get_snapshot(&self, request: Request<GetSnapshotRequest>) -> Answer<GetSnapshotResponse> {
        answer!(self, request, "GetSnapshot", get_snapshot)
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Answer<ControllerExpandVolumeResponse> {
        answer!(self, request, "ControllerExpandVolume", expand_volume)
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Answer<ControllerGetVolumeResponse> {
        answer!(self, request, "ControllerGetVolume", get_volume)
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<ControllerGetVolumeHealthRequest>,
    ) -> Answer<ControllerGetVolumeHealthResponse> {
        answer!(self, request, "ControllerGetVolumeHealth", get_health)
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<ControllerListVolumeHealthRequest>,
    ) -> Answer<ControllerListVolumeHealthResponse> {
        answer!(self, request, "ControllerListVolumeHealth", list_health)
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Answer<ControllerModifyVolumeResponse> {
        answer!(self, request, "ControllerModifyVolume", modify_volume)
    }
}

impl Driver {
    async fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, CsiError> {
        let id = required("volume_id", request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(CsiError::Missing { field: "volume_capabilities" });
        }
        self.daemon.volume(&id).await?;
        let checked = Access::all(&request.volume_capabilities)
            .and_then(|_| parameters::of_volume(&request.parameters, &request.mutable_parameters));
        Ok(match checked {
            Ok(_) => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(validate_volume_capabilities_response::Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    mutable_parameters: request.mutable_parameters,
                }),
                message: String::new(),
            },
            Err(error) => ValidateVolumeCapabilitiesResponse { confirmed: None, message: error.to_string() },
        })
    }

    /// The volumes which the driver made on this host.
    async fn list_volumes(&self, request: ListVolumesRequest) -> Result<ListVolumesResponse, CsiError> {
        let exports = self.daemon.exports().await?;
        let own = exports.into_iter().filter(|export| is_own(&export.name));
        let own = own.map(|export| (export.name.clone(), export)).collect();
        let page = page(own, request.max_entries, &request.starting_token)?;
        let entry = |export: Export| list_volumes_response::Entry {
            status: Some(list_volumes_response::VolumeStatus { published_node_ids: Vec::new() }),
            volume: Some(self.volume_of(&export, None)),
        };
        let entries = page.entries.into_iter().map(entry).collect();
        Ok(ListVolumesResponse { entries, next_token: page.next_token })
    }

    async fn get_volume(
        &self,
        request: ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, CsiError> {
        let export = self.daemon.volume(&required("volume_id", request.volume_id)?).await?;
        Ok(ControllerGetVolumeResponse {
            status: Some(controller_get_volume_response::VolumeStatus { published_node_ids: Vec::new() }),
            volume: Some(self.volume_of(&export, None)),
        })
    }

    async fn get_health(
        &self,
        request: ControllerGetVolumeHealthRequest,
    ) -> Result<ControllerGetVolumeHealthResponse, CsiError> {
        let export = self.daemon.volume(&required("volume_id", request.volume_id)?).await?;
        Ok(ControllerGetVolumeHealthResponse { volume_health: Some(health::of_volume(&export)) })
    }

    /// The volumes with an adverse condition.
    async fn list_health(
        &self,
        request: ControllerListVolumeHealthRequest,
    ) -> Result<ControllerListVolumeHealthResponse, CsiError> {
        let exports = self.daemon.exports().await?;
        let all = exports.iter().filter(|export| is_own(&export.name)).map(health::of_volume);
        let adverse = all.filter(|health| !health.health_statuses.is_empty());
        let adverse = adverse.map(|health| (health.volume_id.clone(), health)).collect();
        let page = page(adverse, request.max_entries, &request.starting_token)?;
        Ok(ControllerListVolumeHealthResponse { entries: page.entries, next_token: page.next_token })
    }

    /// The room for new volumes. Volumes take room when they are written, so only where data stays on this host the cache bounds
    /// their sizes; a store has no bound which the driver knows.
    async fn get_capacity(&self, request: GetCapacityRequest) -> Result<GetCapacityResponse, CsiError> {
        let is_elsewhere =
            request.accessible_topology.as_ref().is_some_and(|topology| !self.host.reaches(topology));
        let is_possible =
            request.volume_capabilities.is_empty() || Access::all(&request.volume_capabilities).is_ok();
        if is_elsewhere || !is_possible {
            return Ok(GetCapacityResponse::default());
        }
        let status = self.daemon.status().await?;
        let bytes = if status.exports.total >= status.exports.max {
            0
        } else if self.daemon.has_store().await? {
            u64::MAX
        } else {
            status.daemon.cache.size_bytes.saturating_sub(status.daemon.cache.used_bytes)
        };
        Ok(GetCapacityResponse { available_capacity: signed(bytes), ..GetCapacityResponse::default() })
    }

    /// An export as the interface has it.
    fn volume_of(&self, export: &Export, content_source: Option<VolumeContentSource>) -> Volume {
        Volume {
            capacity_bytes: signed(export.size_bytes),
            volume_id: export.name.clone(),
            volume_context: std::collections::HashMap::new(),
            content_source,
            accessible_topology: vec![self.host.of_volume()],
        }
    }
}

/// Why `what` is refused where the daemon has no store.
fn needs_store(what: &str) -> String {
    format!("{what} need a store: set `[store] url` in the daemon's configuration and restart the daemon")
}
