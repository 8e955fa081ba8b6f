//! The controller service: volumes and snapshots as objects.
//!
//! Owns the table of calls, those which only look, and the visits of volumes where hosts share the store. Does not own the making of
//! volumes (`create`) nor snapshots (`snapshots`). Invariants: a capability is offered only if the daemon can do the work: without a store
//! there are no snapshots and no copies; nothing is made from a volume, and nothing of it deleted, unless this host has the volume; a host
//! which has a volume only for a call lets the others have it afterwards.

mod change;
mod create;
mod snapshots;

use super::Service;
use super::capabilities::Access;
use super::capacity::signed;
use super::error::CsiError;
use super::names::is_own;
use super::paging::page;
use super::parameters;
use super::proto::controller_server::Controller;
use super::proto::controller_service_capability::rpc::Type as RpcType;
use super::proto::controller_service_capability::{Rpc, Type};
#[allow(clippy::wildcard_imports, reason = "a request and an answer for each call")]
use super::proto::*;
use super::{Answer, Driver, calls, required};
use crate::api::wire::Export;
use crate::router::ExportName;

/// Services of every driver, with and without a store.
const ALWAYS: [RpcType; 5] = [
    RpcType::CreateDeleteVolume,
    RpcType::ListVolumes,
    RpcType::GetCapacity,
    RpcType::GetVolume,
    RpcType::SingleNodeMultiWriter,
];
/// Further services of a driver whose daemon has a store.
const WITH_STORE: [RpcType; 4] =
    [RpcType::CreateDeleteSnapshot, RpcType::ListSnapshots, RpcType::GetSnapshot, RpcType::CloneVolume];
/// Services which Kubernetes asks of one controller in the cluster, wherever the volume is.
const CENTRAL: [RpcType; 2] = [RpcType::ExpandVolume, RpcType::ModifyVolume];

/// A volume which is on this host.
#[derive(Debug)]
struct Visit {
    export: Export,
    /// Whether the call brought the volume here.
    is_guest: bool,
}

calls!(Controller, {
    create_volume(CreateVolumeRequest) -> CreateVolumeResponse = create_volume;
    delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse = delete_volume;
    validate_volume_capabilities(ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse = validate;
    list_volumes(ListVolumesRequest) -> ListVolumesResponse = list_volumes;
    get_capacity(GetCapacityRequest) -> GetCapacityResponse = get_capacity;
    controller_get_capabilities(ControllerGetCapabilitiesRequest) -> ControllerGetCapabilitiesResponse = controller_capabilities;
    create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse = create_snapshot;
    delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse = delete_snapshot;
    list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse = list_snapshots;
    get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse = get_snapshot;
    controller_expand_volume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse = expand_volume;
    controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse = get_volume;
    controller_modify_volume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse = modify_volume;
}, refused {
    controller_publish_volume(ControllerPublishVolumeRequest) -> ControllerPublishVolumeResponse = "a volume is attached where it is staged";
    controller_unpublish_volume(ControllerUnpublishVolumeRequest) -> ControllerUnpublishVolumeResponse = "a volume is detached where it is unstaged";
    controller_get_volume_health(ControllerGetVolumeHealthRequest) -> ControllerGetVolumeHealthResponse = "the metrics of the daemon have the health";
    controller_list_volume_health(ControllerListVolumeHealthRequest) -> ControllerListVolumeHealthResponse = "the metrics of the daemon have the health";
});

impl Driver {
    async fn controller_capabilities(
        &self,
        _: ControllerGetCapabilitiesRequest,
    ) -> Result<ControllerGetCapabilitiesResponse, CsiError> {
        let with_store: &[RpcType] = if self.daemon.has_store().await? { &WITH_STORE } else { &[] };
        let central: &[RpcType] = if self.node_deployment { &[] } else { &CENTRAL };
        let all = ALWAYS.iter().chain(with_store).chain(central);
        let capability = |&rpc: &RpcType| ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })),
        };
        Ok(ControllerGetCapabilitiesResponse { capabilities: all.map(capability).collect() })
    }

    async fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, CsiError> {
        let id = required("volume_id", request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(CsiError::missing("volume_capabilities"));
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
        let own: Vec<Export> = exports.into_iter().filter(|export| is_own(&export.name)).collect();
        let (own, next_token) =
            page(own, |export| &export.name, request.max_entries, &request.starting_token)?;
        let entry = |export: Export| list_volumes_response::Entry {
            status: Some(list_volumes_response::VolumeStatus { published_node_ids: Vec::new() }),
            volume: Some(self.volume_of(&export, None)),
        };
        Ok(ListVolumesResponse { entries: own.into_iter().map(entry).collect(), next_token })
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

    /// Does `work` with the volume on this host, or refuses when another host has it. Pods do not use the volume meanwhile.
    async fn visiting<T>(
        &self,
        name: &ExportName,
        work: impl AsyncFnOnce(Export) -> Result<T, CsiError>,
    ) -> Result<T, CsiError> {
        let _mounts = match &self.host.shared_store {
            Some(_) => Some(self.operations.hold_mounts(name)?),
            None => None,
        };
        let visit = self.visit(name).await?;
        let done = work(visit.export.clone()).await;
        self.give_back(name, &visit).await?;
        done
    }

    /// Has the volume on this host, for a call which keeps others from its mounts.
    async fn visit(&self, name: &ExportName) -> Result<Visit, CsiError> {
        let before = self.daemon.find(name).await?;
        let had_device = before.is_some_and(|export| export.device.is_some());
        let export = self.open_here(name).await?;
        Ok(Visit { export, is_guest: self.host.shared_store.is_some() && !had_device })
    }

    /// Lets other hosts have the volume again, if the call brought it here.
    async fn give_back(&self, name: &ExportName, visit: &Visit) -> Result<(), CsiError> {
        if visit.is_guest {
            self.daemon.release(name).await?;
        }
        Ok(())
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
