//! `glidefs snapshot …`

use crate::api::wire::{Deleted, Export, RollbackRequest, Snapshot, SnapshotRequest};
use crate::cli::args::exports::SnapshotCommand;
use crate::cli::error::CliError;
use crate::cli::print;
use crate::cli::print::answer;
use crate::cli::wait::{DaemonWait, exports_at_risk};
use crate::client::{Client, export_path};

pub(in crate::cli) async fn run(client: &Client, command: SnapshotCommand) -> Result<(), CliError> {
    match command {
        SnapshotCommand::Create { snapshot, limit, output } => {
            let request = SnapshotRequest { name: snapshot.snapshot.to_string() };
            let create_path = export_path(&snapshot.name, "/snapshots");
            let create = client.post(&create_path, &request);
            let names = [snapshot.name.clone()];
            let look = async || exports_at_risk(client, &names).await;
            let goes_on = format!(
                "the daemon goes on until the snapshot is made: `glidefs snapshot list {}` shows it then",
                snapshot.name
            );
            let taken: Snapshot =
                DaemonWait::new(output.json, limit.timeout).until(create, look, &goes_on).await?;
            answer(output.json, &taken, |taken| print::snapshots(std::slice::from_ref(taken)))
        }
        SnapshotCommand::List { name, output } => {
            let snapshots: Vec<Snapshot> = client.get(&export_path(&name.name, "/snapshots")).await?;
            answer(output.json, &snapshots, |snapshots| print::snapshots(snapshots))
        }
        SnapshotCommand::Rollback { snapshot, output } => {
            let request = RollbackRequest { snapshot: snapshot.snapshot.to_string() };
            let rollback_path = export_path(&snapshot.name, "/rollback");
            let rollback = client.post(&rollback_path, &request);
            let names = [snapshot.name.clone()];
            let look = async || exports_at_risk(client, &names).await;
            let export: Export = DaemonWait::new(output.json, None).until(rollback, look, "").await?;
            answer(output.json, &export, print::export)
        }
        SnapshotCommand::Delete { snapshot, output } => {
            let below = format!("/snapshots/{}", snapshot.snapshot);
            let deleted: Deleted = client.delete(&export_path(&snapshot.name, &below)).await?;
            answer(output.json, &deleted, print::deleted)
        }
    }
}
