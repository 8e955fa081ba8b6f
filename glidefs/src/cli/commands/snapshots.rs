//! `glidefs snapshot …`

use crate::api::wire::{Deleted, Export, RollbackRequest, Snapshot, SnapshotRequest};
use crate::cli::args::exports::SnapshotCommand;
use crate::cli::error::CliError;
use crate::cli::print;
use crate::cli::print::answer;
use crate::cli::wait::{DaemonWait, GOES_ON};
use crate::client::{Client, export_path};
use crate::config::TimeSpan;

pub(in crate::cli) async fn run(
    client: &Client,
    command: SnapshotCommand,
    limit: Option<TimeSpan>,
) -> Result<(), CliError> {
    let (json, goes_on) = match &command {
        SnapshotCommand::Create { snapshot, output } => {
            let goes_on = format!(
                "the daemon goes on until the snapshot is made: `glidefs snapshot list {}` shows it then",
                snapshot.name
            );
            (output.json, goes_on)
        }
        SnapshotCommand::List { output, .. }
        | SnapshotCommand::Rollback { output, .. }
        | SnapshotCommand::Delete { output, .. } => (output.json, GOES_ON.into()),
    };
    DaemonWait::new(json, limit).for_daemon(client, carry_out(client, command), &goes_on).await
}

async fn carry_out(client: &Client, command: SnapshotCommand) -> Result<(), CliError> {
    match command {
        SnapshotCommand::Create { snapshot, output } => {
            let request = SnapshotRequest { name: snapshot.snapshot.to_string() };
            let taken: Snapshot = client.post(&export_path(&snapshot.name, "/snapshots"), &request).await?;
            answer(output.json, &taken, |taken| print::snapshots(std::slice::from_ref(taken)))
        }
        SnapshotCommand::List { name, output } => {
            let snapshots: Vec<Snapshot> = client.get(&export_path(&name.name, "/snapshots")).await?;
            answer(output.json, &snapshots, |snapshots| print::snapshots(snapshots))
        }
        SnapshotCommand::Rollback { snapshot, output } => {
            let request = RollbackRequest { snapshot: snapshot.snapshot.to_string() };
            let export: Export = client.post(&export_path(&snapshot.name, "/rollback"), &request).await?;
            answer(output.json, &export, print::export)
        }
        SnapshotCommand::Delete { snapshot, output } => {
            let below = format!("/snapshots/{}", snapshot.snapshot);
            let deleted: Deleted = client.delete(&export_path(&snapshot.name, &below)).await?;
            answer(output.json, &deleted, print::deleted)
        }
    }
}
