//! The daemon, as the driver asks it.
//!
//! Owns paths and bodies of requests. Does not own the sending (`client`). Invariant: nothing is remembered between two calls, except
//! that there is a store.

use std::sync::OnceLock;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::error::CsiError;
use super::names::{SnapshotId, volume_name};
use crate::api::wire::{
    Choices, CreateRequest, Deleted, Export, ForkRequest, OpenRequest, ResizeRequest, SetRequest, Snapshot,
    SnapshotRequest, Status, StoredExport, Top,
};
use crate::client::{Client, ClientError, export_path};
use crate::config::ByteSize;
use crate::router::ExportName;

/// Exports whose snapshots are asked for at the same time.
const LISTINGS_MAX: usize = 16;

/// How long the daemon may take for an answer, and for a change, which may wait for the store. A change goes on in the daemon, and a
/// repeated call finds what became of it.
const ASK_MAX: Duration = Duration::from_secs(30);
const CHANGE_MAX: Duration = Duration::from_mins(5);

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
        within(ASK_MAX, self.client.get("/v1/status")).await
    }

    /// Whether the daemon has a store: snapshots and copies live there.
    pub async fn has_store(&self) -> Result<bool, CsiError> {
        if self.has_store.get().is_some() {
            return Ok(true);
        }
        let top: Top = within(ASK_MAX, self.client.get("/v1/top")).await?;
        if top.store.is_some() {
            // Another call may have set it meanwhile.
            let _ = self.has_store.set(());
        }
        Ok(top.store.is_some())
    }

    /// All exports of this host.
    pub async fn exports(&self) -> Result<Vec<Export>, CsiError> {
        within(ASK_MAX, self.client.get("/v1/exports")).await
    }

    /// The names of all volumes of the store, whichever host has them.
    pub async fn stored(&self) -> Result<Vec<String>, CsiError> {
        let stored: Vec<StoredExport> = within(ASK_MAX, self.client.get("/v1/store/exports")).await?;
        Ok(stored.into_iter().map(|volume| volume.name).collect())
    }

    /// The export `name`, if this host has it.
    pub async fn find(&self, name: &ExportName) -> Result<Option<Export>, CsiError> {
        absent(within(ASK_MAX, self.client.get(&export_path(name, ""))).await)
    }

    /// The export of the volume `id`.
    pub async fn volume(&self, id: &str) -> Result<Export, CsiError> {
        self.find(&volume_name(id)?).await?.ok_or_else(|| CsiError::no_volume(id))
    }

    /// Makes an empty export, or finds the one which was made before with the same parameters.
    pub async fn create(
        &self,
        name: &ExportName,
        bytes: u64,
        choices: Choices,
        detached: bool,
    ) -> Result<Export, CsiError> {
        let (name, size) = (name.to_string(), ByteSize(bytes));
        let request = CreateRequest { name, size, detached, ..CreateRequest::default() }.with(choices);
        within(CHANGE_MAX, self.client.post("/v1/exports", &request)).await
    }

    /// Makes an export with the content of `of`, or of a snapshot of `of`, or finds the one which was made before. Returns whether the
    /// export is new.
    pub async fn fork(
        &self,
        name: &ExportName,
        of: &ExportName,
        snapshot: Option<&ExportName>,
        choices: Choices,
    ) -> Result<(bool, Export), CsiError> {
        let (name, snapshot) = (name.to_string(), snapshot.map(ToString::to_string));
        let request = ForkRequest { name, snapshot, ..ForkRequest::default() }.with(choices);
        within(CHANGE_MAX, self.client.make(&export_path(of, "/fork"), &request)).await
    }

    /// Opens an export of the store which no host has, if the store has the export.
    pub async fn open(&self, name: &ExportName) -> Result<Option<Export>, CsiError> {
        absent(
            within(CHANGE_MAX, self.client.post(&export_path(name, "/open"), &OpenRequest::default())).await,
        )
    }

    pub async fn resize(&self, name: &ExportName, bytes: u64) -> Result<Export, CsiError> {
        let request = ResizeRequest { size: ByteSize(bytes) };
        within(CHANGE_MAX, self.client.post(&export_path(name, "/resize"), &request)).await
    }

    pub async fn set(&self, name: &ExportName, change: &SetRequest) -> Result<Export, CsiError> {
        within(CHANGE_MAX, self.client.patch(&export_path(name, ""), change)).await
    }

    /// Gives an export a device.
    pub async fn attach(&self, name: &ExportName) -> Result<Export, CsiError> {
        within(CHANGE_MAX, self.client.post(&export_path(name, "/attach"), &())).await
    }

    /// Takes the device from an export which nobody uses, and lets other hosts open the export.
    pub async fn detach(&self, name: &ExportName) -> Result<Export, CsiError> {
        within(CHANGE_MAX, self.client.post(&export_path(name, "/detach"), &())).await
    }

    /// As [`Self::detach`]. Refuses while the store has not everything, so that no other host can open the export.
    pub async fn release(&self, name: &ExportName) -> Result<Export, CsiError> {
        let export = self.detach(name).await?;
        match &export.unreleased {
            None => Ok(export),
            Some(reason) => Err(CsiError::later(format!(
                "volume {name} stays this host's until the store has everything: {reason}"
            ))),
        }
    }

    pub async fn delete(&self, name: &ExportName) -> Result<(), CsiError> {
        let _: Deleted = within(CHANGE_MAX, self.client.delete(&export_path(name, ""))).await?;
        Ok(())
    }

    /// The snapshots of the export `name`; none for an export which is not here, or not in a store.
    pub async fn snapshots(&self, name: &ExportName) -> Result<Vec<Snapshot>, CsiError> {
        let listed = within(ASK_MAX, self.client.get(&export_path(name, "/snapshots"))).await;
        Ok(absent(listed)?.unwrap_or_default())
    }

    /// The snapshots of all `exports`, some exports at a time. With `may_miss`, those of an export that cannot be listed now are left out.
    pub async fn all_snapshots(
        &self,
        exports: Vec<ExportName>,
        may_miss: bool,
    ) -> Result<Vec<Snapshot>, CsiError> {
        let listings = stream::iter(exports).map(async |name| match self.snapshots(&name).await {
            Err(error) if may_miss => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(volume = %name, error, "the snapshots of another volume cannot be listed");
                Ok(Vec::new())
            }
            listed => listed,
        });
        let all: Vec<Vec<Snapshot>> = listings.buffer_unordered(LISTINGS_MAX).try_collect().await?;
        Ok(all.into_iter().flatten().collect())
    }

    pub async fn snapshot(&self, id: &SnapshotId) -> Result<Snapshot, CsiError> {
        let request = SnapshotRequest { name: id.snapshot.to_string() };
        within(CHANGE_MAX, self.client.post(&export_path(&id.export, "/snapshots"), &request)).await
    }

    pub async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), CsiError> {
        let path = export_path(&id.export, &format!("/snapshots/{}", id.snapshot));
        let deleted: Result<Deleted, _> = within(CHANGE_MAX, self.client.delete(&path)).await;
        absent(deleted)?;
        Ok(())
    }
}

/// The answer of the daemon, if it comes within `limit`.
async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, CsiError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(CsiError::later(format!(
            "the glidefs daemon has not answered for {} s: see its log",
            limit.as_secs()
        ))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_takes_a_request_and_never_answers_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("glidefs.sock");
        // Nobody accepts: a connection is made all the same.
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let daemon = Daemon::new(Client::of_socket(&socket));
        let error = daemon.status().await.unwrap_err();
        assert!(matches!(error, CsiError::Refused { code: tonic::Code::Unavailable, .. }), "{error}");
        let error = daemon.detach(&ExportName::new("a").unwrap()).await.unwrap_err();
        assert!(matches!(error, CsiError::Refused { code: tonic::Code::Unavailable, .. }), "{error}");
    }
}
