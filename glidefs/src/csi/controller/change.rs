//! How a volume is changed and deleted.
//!
//! Owns the rules of deletion. Invariant: a volume is deleted only if the driver made it, nobody uses it, and it has no snapshots:
//! snapshots end with their volume, and copies do not.

use super::Visit;
use crate::api::wire::{Export, SetRequest};
use crate::csi::Driver;
use crate::csi::capabilities::{Access, Form};
use crate::csi::capacity::{SizeRange, signed};
use crate::csi::error::CsiError;
use crate::csi::names::{is_own, volume_name};
use crate::csi::parameters;
use crate::csi::proto::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerModifyVolumeRequest,
    ControllerModifyVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse,
};
use crate::csi::required;
use crate::router::ExportName;

/// Most names of snapshots in a message.
const NAMED_MAX: usize = 5;

impl Driver {
    pub(super) async fn delete_volume(
        &self,
        request: DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse, CsiError> {
        let id = required("volume_id", request.volume_id)?;
        // No export has such a name, so the volume is gone.
        let Ok(name) = ExportName::new(&id) else { return Ok(DeleteVolumeResponse {}) };
        let _controller = self.operations.hold_volume(&name)?;
        let _node = self.operations.hold_mounts(&name)?;
        if !is_own(name.as_str()) {
            if self.daemon.find(&name).await?.is_none() {
                return Ok(DeleteVolumeResponse {});
            }
            let reason = format!(
                "export {name} was not made by this driver, and stays: `glidefs export delete {name}` deletes it"
            );
            return Err(CsiError::precondition(reason));
        }
        // Where hosts share the store the volume is brought here first: only the host which has a volume deletes the volume.
        let visit = match self.visit(&name).await {
            Ok(visit) => Some(visit),
            Err(CsiError::NotFound { .. }) => return Ok(DeleteVolumeResponse {}),
            // An earlier call has begun the deletion.
            Err(error) if error.refusal() == Some("half_deleted") => None,
            Err(error) => return Err(error),
        };
        if let Err(error) = self.delete_here(&name, visit.as_ref()).await {
            if let Some(visit) = visit {
                self.give_back(&name, &visit).await?;
            }
            return Err(error);
        }
        tracing::info!(volume = %name, "volume deleted");
        Ok(DeleteVolumeResponse {})
    }

    async fn delete_here(&self, name: &ExportName, visit: Option<&Visit>) -> Result<(), CsiError> {
        if let Some(visit) = visit {
            self.refuse_if_used(&visit.export).await?;
        }
        let snapshots = self.daemon.snapshots(name).await?;
        if !snapshots.is_empty() {
            let names: Vec<&str> = snapshots.iter().map(|snapshot| snapshot.name.as_str()).collect();
            return Err(CsiError::precondition(has_snapshots(name, &names)));
        }
        self.daemon.delete(name).await
    }

    pub(super) async fn expand_volume(
        &self,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, CsiError> {
        let id = required("volume_id", request.volume_id)?;
        let range = request.capacity_range.ok_or(CsiError::missing("capacity_range"))?;
        let wanted = SizeRange::of(Some(&range))?;
        let access =
            request.volume_capability.as_ref().map(|capability| Access::of(Some(capability))).transpose()?;
        let enlarge = async |export| self.enlarge(export, wanted).await;
        let export = self.visiting(&volume_name(&id)?, enlarge).await?;
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: signed(export.size_bytes),
            // A raw device has its new size at once; a file system has to be told.
            node_expansion_required: access.is_none_or(|access| access.form != Form::Block),
        })
    }

    /// Makes an export as large as wanted, unless it is. The node may be the one who asks: where each host has a controller of its
    /// own, Kubernetes has no controller to ask.
    pub(in crate::csi) async fn enlarge(
        &self,
        export: Export,
        wanted: SizeRange,
    ) -> Result<Export, CsiError> {
        let name = ExportName::new(&export.name).map_err(|error| CsiError::invalid("volume_id", error))?;
        let _operation = self.operations.hold_volume(&name)?;
        if !wanted.is_enough(export.size_bytes) {
            let larger = self.daemon.resize(&name, wanted.new_size(0)?).await?;
            tracing::info!(volume = %name, size_bytes = larger.size_bytes, "volume expanded");
            return Ok(larger);
        }
        if wanted.fits(export.size_bytes) {
            return Ok(export);
        }
        let reason = format!(
            "volume {name} has {} bytes, and volumes do not shrink: raise the limit",
            export.size_bytes
        );
        Err(CsiError::out_of_range(reason))
    }

    pub(super) async fn modify_volume(
        &self,
        request: ControllerModifyVolumeRequest,
    ) -> Result<ControllerModifyVolumeResponse, CsiError> {
        let id = required("volume_id", request.volume_id)?;
        let change = parameters::of_change(&request.mutable_parameters)?;
        let name = volume_name(&id)?;
        let modify = async |_| {
            let _operation = self.operations.hold_volume(&name)?;
            if change != SetRequest::default() {
                self.daemon.set(&name, &change).await?;
            }
            Ok(ControllerModifyVolumeResponse {})
        };
        self.visiting(&name, modify).await
    }
}

/// Why a volume with `snapshots` is not deleted.
fn has_snapshots(name: &ExportName, snapshots: &[&str]) -> String {
    let count = match snapshots.len() {
        1 => "a snapshot".into(),
        count => format!("{count} snapshots"),
    };
    let named = snapshots.get(..NAMED_MAX).unwrap_or(snapshots).join(", ");
    let more = if snapshots.len() > NAMED_MAX { ", …" } else { "" };
    format!("volume {name} has {count}, which would end with the volume: delete {named}{more} first")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_with_snapshots_names_those_to_delete_first() {
        let name = ExportName::new("csi-a").unwrap();
        assert_eq!(
            has_snapshots(&name, &["csi-s"]),
            "volume csi-a has a snapshot, which would end with the volume: delete csi-s first"
        );
        assert_eq!(
            has_snapshots(&name, &["1", "2", "3", "4", "5", "6"]),
            "volume csi-a has 6 snapshots, which would end with the volume: delete 1, 2, 3, 4, 5, … first"
        );
    }
}
