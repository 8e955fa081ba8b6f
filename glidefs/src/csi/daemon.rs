//! The daemon, as the driver asks it.
//!
//! Owns paths and bodies of requests. Does not own the sending (`client`). Invariant: nothing is remembered between two calls, except
//! that there is a store.

use std::sync::OnceLock;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::error::CsiError;
use super::names::SnapshotId;
use super::parameters::{Fixed, Mutable};
use crate::api::wire::{
    CreateRequest, Deleted, Export, ForkRequest, OpenRequest, ResizeRequest, SetRequest, Size, Snapshot,
    SnapshotRequest, Status, Top,
};
use crate::client::{Client, export_path};
use crate::config::ByteSize;
use crate::router::ExportName;

/// Exports whose snapshots are asked for at the same time.
const LISTINGS_MAX: usize = 16;

/// The daemon of this host.
#[derive(Debug)]
pub(super) struct Daemon {
    client: Client,
    /// Set when the daemon is known to have a store. A daemon never loses its store while exports exist.
    has_store: OnceLock<()>,
}

impl Daemon {
    pub fn new(client: Client) -> Self {
        Self { client, has_store: OnceLock::new() }
    }

    /// The state of the daemon.
    pub async fn status(&self) -> Result<Status, CsiError> {
        Ok(self.client.get("/v1/status").await?)
    }

    /// Whether the daemon has a store: snapshots and copies live there.
    pub async fn has_store(&self) -> Result<bool, CsiError> {
        if self.has_store.get().is_some() {
            return Ok(true);
        }
        let top: Top = self.client.get("/v1/top").await?;
        if top.store.is_some() {
            // Another call may have set it meanwhile.
            let _ = self.has_store.set(());
        }
        Ok(top.store.is_some())
    }

    /// All exports of this host.
    pub async fn exports(&self) -> Result<Vec<Export>, CsiError> {
        Ok(self.client.get("/v1/exports").await?)
    }

    /// The export `name`, if this host has it.
    pub async fn find(&self, name: &ExportName) -> Result<Option<Export>, CsiError> {
        absent(self.client.get(&export_path(name, "")).await.map_err(CsiError::from))
    }

    /// The export of the volume `id`.
    pub async fn volume(&self, id: &str) -> Result<Export, CsiError> {
        let not_found = || CsiError::NotFound { what: format!("volume {id:?} on this host") };
        let name = ExportName::new(id).map_err(|_| not_found())?;
        self.find(&name).await?.ok_or_else(not_found)
    }

    /// Makes an empty export, or finds the one which was made before with the same parameters.
    pub async fn create(
        &self,
        name: &ExportName,
        bytes: u64,
        fixed: &Fixed,
        mutable: &Mutable,
        detached: bool,
    ) -> Result<Export, CsiError> {
        let request = CreateRequest {
            name: name.to_string(),
            size: Size(ByteSize(bytes)),
            durability: fixed.durability,
            on_unreachable: fixed.on_unreachable,
            limits: mutable.limits,
            weight: mutable.weight,
            queues: fixed.queues,
            queue_depth: fixed.queue_depth,
            detached,
        };
        Ok(self.client.post("/v1/exports", &request).await?)
    }

    /// Makes an export with the content of `of`, or of a snapshot of `of`, or finds the one which was made before. Returns whether the
    /// export is new.
    pub async fn fork(
        &self,
        name: &ExportName,
        of: &ExportName,
        snapshot: Option<&ExportName>,
        fixed: &Fixed,
        mutable: &Mutable,
    ) -> Result<(bool, Export), CsiError> {
        let request = ForkRequest {
            name: name.to_string(),
            snapshot: snapshot.map(ToString::to_string),
            local: false,
            durability: fixed.durability,
            on_unreachable: fixed.on_unreachable,
            limits: mutable.limits,
            weight: mutable.weight,
            queues: fixed.queues,
            queue_depth: fixed.queue_depth,
        };
        Ok(self.client.make(&export_path(of, "/fork"), &request).await?)
    }

    /// Opens an export of the store which no host has.
    pub async fn open(&self, name: &ExportName) -> Result<Export, CsiError> {
        Ok(self.client.post(&export_path(name, "/open"), &OpenRequest::default()).await?)
    }

    pub async fn resize(&self, name: &ExportName, bytes: u64) -> Result<Export, CsiError> {
        let request = ResizeRequest { size: Size(ByteSize(bytes)) };
        Ok(self.client.post(&export_path(name, "/resize"), &request).await?)
    }

    pub async fn set(&self, name: &ExportName, mutable: &Mutable) -> Result<Export, CsiError> {
        let request = SetRequest { limits: mutable.limits, weight: mutable.weight };
        Ok(self.client.patch(&export_path(name, ""), &request).await?)
    }

    /// Gives an export a device.
    pub async fn attach(&self, name: &ExportName) -> Result<Export, CsiError> {
        Ok(self.client.post(&export_path(name, "/attach"), &()).await?)
    }

    /// Takes the device from an export which nobody uses, and lets other hosts open the export.
    pub async fn detach(&self, name: &ExportName) -> Result<Export, CsiError> {
        Ok(self.client.post(&export_path(name, "/detach"), &()).await?)
    }

    pub async fn delete(&self, name: &ExportName) -> Result<(), CsiError> {
        let _: Deleted = self.client.delete(&export_path(name, "")).await?;
        Ok(())
    }

    /// The snapshots of the export `name`; none for an export which is not here, or not in a store.
    pub async fn snapshots(&self, name: &ExportName) -> Result<Vec<Snapshot>, CsiError> {
        let listed = self.client.get(&export_path(name, "/snapshots")).await.map_err(CsiError::from);
        Ok(absent(listed)?.unwrap_or_default())
    }

    /// The snapshots of all `exports`, some exports at a time.
    pub async fn all_snapshots(&self, exports: Vec<ExportName>) -> Result<Vec<Snapshot>, CsiError> {
        let listings = stream::iter(exports).map(async |name| self.snapshots(&name).await);
        let all: Vec<Vec<Snapshot>> = listings.buffer_unordered(LISTINGS_MAX).try_collect().await?;
        Ok(all.into_iter().flatten().collect())
    }

    pub async fn snapshot(&self, id: &SnapshotId) -> Result<Snapshot, CsiError> {
        let request = SnapshotRequest { name: id.snapshot.to_string() };
        Ok(self.client.post(&export_path(&id.export, "/snapshots"), &request).await?)
    }

    pub async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), CsiError> {
        let path = export_path(&id.export, &format!("/snapshots/{}", id.snapshot));
        let deleted: Result<Deleted, _> = self.client.delete(&path).await;
        absent(deleted.map_err(CsiError::from))?;
        Ok(())
    }
}

/// The answer, or `None` if the daemon has nothing of the name.
fn absent<T>(answer: Result<T, CsiError>) -> Result<Option<T>, CsiError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.refusal(), Some("not_found" | "not_in_store")) => Ok(None),
        Err(error) => Err(error),
    }
}
