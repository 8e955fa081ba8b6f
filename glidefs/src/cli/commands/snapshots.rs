//! `glidefs snapshot …`

use crate::api::wire::{Deleted, Export, RollbackRequest, Snapshot, SnapshotRequest};
use crate::cli::args::common::{OutputArgs, WaitArgs};
use crate::cli::args::exports::SnapshotCommand;
use crate::cli::error::CliError;
use crate::cli::print;
use crate::cli::print::answer;
use crate::cli::wait::{DaemonWait, GOES_ON};
use crate::client::{Client, export_path};

pub(in crate::cli) async fn run(
    client: &Client,
    command: SnapshotCommand,
    args: WaitArgs,
) -> Result<(), CliError> {
    let goes_on = match &command {
        SnapshotCommand::Create { snapshot } => format!(
            "the daemon goes on until the snapshot is made: `glidefs snapshot list {}` shows it then",
            snapshot.name
        ),
        _ => GOES_ON.into(),
    };
    let work = carry_out(client, command, args.output);
    DaemonWait::new(args).for_daemon(client, work, &goes_on).await
}

async fn carry_out(client: &Client, command: SnapshotCommand, output: OutputArgs) -> Result<(), CliError> {
    match command {
        SnapshotCommand::Create { snapshot } => {
            let request = SnapshotRequest { name: snapshot.snapshot.to_string() };
            let taken: Snapshot = client.post(&export_path(&snapshot.name, "/snapshots"), &request).await?;
            answer(output.json, &taken, |taken| print::snapshots(std::slice::from_ref(taken)))
        }
        SnapshotCommand::List { name } => {
            let snapshots: Vec<Snapshot> = client.get(&export_path(&name.name, "/snapshots")).await?;
            answer(output.json, &snapshots, |snapshots| print::snapshots(snapshots))
        }
        SnapshotCommand::Rollback { snapshot } => {
            let request = RollbackRequest { snapshot: snapshot.snapshot.to_string() };
            let export: Export = client.post(&export_path(&snapshot.name, "/rollback"), &request).await?;
            answer(output.json, &export, print::export)
        }
        SnapshotCommand::Delete { snapshot } => {
            let below = format!("/snapshots/{}", snapshot.snapshot);
            let deleted: Deleted = client.delete(&export_path(&snapshot.name, &below)).await?;
            answer(output.json, &deleted, print::deleted)
        }
    }
}
