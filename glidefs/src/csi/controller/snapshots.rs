//! Snapshots.
//!
//! Owns ids and listings of snapshots. Does not own snapshots (the daemon does). Invariants: a name has one snapshot among all volumes of
//! this host; a snapshot is ready when it is answered.

use chrono::DateTime;
use prost_types::Timestamp;

use super::needs_store;
use crate::api::wire::Snapshot as DaemonSnapshot;
use crate::csi::Driver;
use crate::csi::capacity::signed;
use crate::csi::error::CsiError;
use crate::csi::names::{ID_CHARS_MAX, NameSuffix, SnapshotId, is_own};
use crate::csi::paging::page;
use crate::csi::parameters;
use crate::csi::proto::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse, Snapshot,
    list_snapshots_response,
};
use crate::csi::required;
use crate::router::ExportName;

impl Driver {
    pub(super) async fn create_snapshot(
        &self,
        request: CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, CsiError> {
        let suffix = NameSuffix::of(&request.name)?;
        let source = required("source_volume_id", request.source_volume_id)?;
        parameters::check_of_snapshot(&request.parameters)?;
        if !self.daemon.has_store().await? {
            return Err(CsiError::precondition(needs_store("snapshots")));
        }
        let origin = self.daemon.volume(&source).await?;
        let id = SnapshotId { export: name_of(&origin.name)?, snapshot: suffix.full_name(None)? };
        if id.to_string().len() > ID_CHARS_MAX {
            let reason = format!(
                "the id of the snapshot would have more than {ID_CHARS_MAX} characters: use a shorter name"
            );
            return Err(CsiError::invalid("source_volume_id", reason));
        }
        let _name = self.operations.hold(format!("a snapshot of the name {:?}", request.name))?;
        let _volume = self.operations.hold_volume(&id.export)?;
        if self.snapshot_of(&id).await?.is_none() {
            let exports = self.daemon.exports().await?;
            let others = exports.iter().filter(|export| export.name != origin.name);
            let others = others.map(|export| name_of(&export.name)).collect::<Result<_, _>>()?;
            let same_name = |snapshot: &DaemonSnapshot| snapshot.name == id.snapshot.as_str();
            let snapshots = self.daemon.all_snapshots(others, true).await?;
            if let Some(other) = snapshots.into_iter().find(same_name) {
                let reason = format!(
                    "volume {} has a snapshot of this name: use another name, or delete that snapshot",
                    other.export
                );
                return Err(CsiError::exists(reason));
            }
            self.sync(&origin).await;
        }
        // Asked for while nothing else of the driver changes the volume: it grows by calls of the driver.
        let size_bytes = signed(self.daemon.volume(&source).await?.size_bytes);
        let sized = |snapshot| Snapshot { size_bytes, ..snapshot };
        // Also when the snapshot is listed: only the daemon says whether the content of the snapshot is whole.
        let made = match self.daemon.snapshot(&id).await {
            // An earlier call has made the snapshot.
            Err(error) if error.refusal() == Some("snapshot_exists") => {
                let existing = self.snapshot_of(&id).await?.ok_or(error)?;
                return Ok(CreateSnapshotResponse { snapshot: Some(sized(existing)) });
            }
            made => made?,
        };
        tracing::info!(snapshot = %id, "snapshot created");
        Ok(CreateSnapshotResponse { snapshot: Some(sized(shown(&made)?)) })
    }

    pub(super) async fn delete_snapshot(
        &self,
        request: DeleteSnapshotRequest,
    ) -> Result<DeleteSnapshotResponse, CsiError> {
        let id = required("snapshot_id", request.snapshot_id)?;
        // No snapshot has such an id, so the snapshot is gone.
        let Some(id) = SnapshotId::parse(&id) else { return Ok(DeleteSnapshotResponse {}) };
        let _volume = self.operations.hold_volume(&id.export)?;
        match self.visiting(&id.export, async |_| self.delete_snapshot_here(&id).await).await {
            Err(CsiError::NotFound { .. }) => Ok(DeleteSnapshotResponse {}),
            deleted => deleted,
        }
    }

    async fn delete_snapshot_here(&self, id: &SnapshotId) -> Result<DeleteSnapshotResponse, CsiError> {
        if !is_own(id.snapshot.as_str()) {
            if self.snapshot_of(id).await?.is_none() {
                return Ok(DeleteSnapshotResponse {});
            }
            let reason = format!(
                "snapshot {id} was not made by this driver, and stays: `glidefs snapshot delete {} {}` deletes it",
                id.export, id.snapshot
            );
            return Err(CsiError::precondition(reason));
        }
        self.daemon.delete_snapshot(id).await?;
        tracing::info!(snapshot = %id, "snapshot deleted");
        Ok(DeleteSnapshotResponse {})
    }

    pub(super) async fn get_snapshot(
        &self,
        request: GetSnapshotRequest,
    ) -> Result<GetSnapshotResponse, CsiError> {
        let id = required("snapshot_id", request.snapshot_id)?;
        let snapshot = self.find_snapshot(&id).await?.ok_or_else(|| CsiError::no_snapshot(&id))?;
        Ok(GetSnapshotResponse { snapshot: Some(snapshot) })
    }

    /// The snapshots of the driver on this host. A snapshot which is named by its id may have been made by others.
    pub(super) async fn list_snapshots(
        &self,
        request: ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, CsiError> {
        let listed = if !request.snapshot_id.is_empty() {
            let found = self.find_snapshot(&request.snapshot_id).await?;
            let is_of_source = |snapshot: &Snapshot| {
                [&snapshot.source_volume_id, ""].contains(&request.source_volume_id.as_str())
            };
            found.into_iter().filter(is_of_source).collect()
        } else if request.source_volume_id.is_empty() {
            let exports = self.daemon.exports().await?;
            let names = exports.iter().map(|export| name_of(&export.name)).collect::<Result<_, _>>()?;
            own(self.daemon.all_snapshots(names, false).await?)?
        } else {
            match ExportName::new(&request.source_volume_id) {
                Ok(name) => own(self.daemon.snapshots(&name).await?)?,
                Err(_) => Vec::new(),
            }
        };
        let (listed, next_token) =
            page(listed, |snapshot| &snapshot.snapshot_id, request.max_entries, &request.starting_token)?;
        let entry = |snapshot| list_snapshots_response::Entry { snapshot: Some(snapshot) };
        Ok(ListSnapshotsResponse { entries: listed.into_iter().map(entry).collect(), next_token })
    }

    /// The snapshot with the text `id`, if there is one.
    async fn find_snapshot(&self, id: &str) -> Result<Option<Snapshot>, CsiError> {
        match SnapshotId::parse(id) {
            Some(id) => self.snapshot_of(&id).await,
            None => Ok(None),
        }
    }

    pub(super) async fn snapshot_of(&self, id: &SnapshotId) -> Result<Option<Snapshot>, CsiError> {
        let snapshots = self.daemon.snapshots(&id.export).await?;
        snapshots.iter().find(|snapshot| snapshot.name == id.snapshot.as_str()).map(shown).transpose()
    }
}

/// The snapshots which the driver made.
fn own(snapshots: Vec<DaemonSnapshot>) -> Result<Vec<Snapshot>, CsiError> {
    snapshots.iter().filter(|snapshot| is_own(&snapshot.name)).map(shown).collect()
}

fn shown(snapshot: &DaemonSnapshot) -> Result<Snapshot, CsiError> {
    let created = DateTime::parse_from_rfc3339(&snapshot.created).map_err(|_| CsiError::Broken)?;
    let id = SnapshotId { export: name_of(&snapshot.export)?, snapshot: name_of(&snapshot.name)? };
    Ok(Snapshot {
        // Not known of an older snapshot: the volume may have grown since.
        size_bytes: 0,
        snapshot_id: id.to_string(),
        source_volume_id: snapshot.export.clone(),
        creation_time: Some(Timestamp {
            seconds: created.timestamp(),
            nanos: i32::try_from(created.timestamp_subsec_nanos()).unwrap_or(0),
        }),
        ready_to_use: true,
        group_snapshot_id: String::new(),
        // An alpha field, for drivers with a capability which this one does not offer.
        accessible_topology: Vec::new(),
    })
}

/// A name in an answer of the daemon.
fn name_of(name: &str) -> Result<ExportName, CsiError> {
    ExportName::new(name).map_err(|_| CsiError::Broken)
}
