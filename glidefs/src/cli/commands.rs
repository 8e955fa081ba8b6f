//! What each command does.

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::path::Path;

use clap::CommandFactory;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

use super::args::{Cli, ExportCommand, Output, SnapshotCommand};
use super::client::{Client, ClientError};
use super::wait::{Wait, all_at_risk, exports_at_risk};
use super::{CliError, emit, print, transfer};
use crate::api::wire::{
    CreateRequest, Deleted, DeletedExport, Drained, Export, Flushed, ForkRequest, GcAnswer, GcRequest,
    OnUnreachable, OpenRequest, ResizeRequest, RollbackRequest, Size, Snapshot, SnapshotRequest, Status,
    StoredExport, UndeleteRequest,
};
use crate::config::keys::commented_config;
use crate::config::{ByteSize, TimeSpan};
use crate::router::ExportName;

/// Requests to the daemon under way at once.
const AT_ONCE: usize = 8;

/// Writes the configuration file, never over another unless `force` is set.
pub(super) fn init(path: &Path, force: bool) -> Result<(), CliError> {
    if path == Path::new("-") {
        return emit(commented_config().as_bytes());
    }
    let write_error = |source| CliError::Write { path: path.into(), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(write_error)?;
    }
    let mut options = OpenOptions::new();
    if force {
        options.write(true).create(true).truncate(true);
    } else {
        options.write(true).create_new(true);
    }
    let mut file = options.open(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => CliError::Exists { path: path.into() },
        _ => write_error(source),
    })?;
    file.write_all(commented_config().as_bytes()).map_err(write_error)?;
    emit(format!("wrote {}: set `[cache] dir` and `size` in it\n", path.display()).as_bytes())
}

/// Prints the manual page, or writes those of all commands into `dir`.
pub(super) fn man(dir: Option<&Path>) -> Result<(), CliError> {
    if let Some(dir) = dir {
        return clap_mangen::generate_to(Cli::command(), dir)
            .map_err(|source| CliError::Write { path: dir.into(), source });
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(CliError::Output)?;
    emit(&page)
}

/// `glidefs status`
pub(super) async fn status(client: &Client, json: bool) -> Result<(), CliError> {
    let status: Status = client.get("/v1/status").await?;
    answer(json, &status, print::status)
}

/// `glidefs export …`
pub(super) async fn export(client: &Client, command: ExportCommand) -> Result<(), CliError> {
    match command {
        ExportCommand::Create { names, size, detached, device, output } => {
            let create = |name: ExportName| async move {
                let request = CreateRequest {
                    name: name.to_string(),
                    size: Size(ByteSize(size.bytes())),
                    durability: device.durability,
                    on_unreachable: device.on_unreachable.map(OnUnreachable),
                    queues: device.queues.map(Into::into),
                    queue_depth: device.queue_depth.map(Into::into),
                    detached,
                };
                client.post("/v1/exports", &request).await
            };
            let exports: Vec<Export> = for_each(names.names, create).await?;
            answer_each(output.json, &exports, print::export, print::exports)
        }
        ExportCommand::Open { names, take_over, discard_local, device, output } => {
            let request = OpenRequest {
                take_over,
                discard_local,
                durability: device.durability,
                on_unreachable: device.on_unreachable.map(OnUnreachable),
                queues: device.queues.map(Into::into),
                queue_depth: device.queue_depth.map(Into::into),
            };
            let open = |name: ExportName| {
                let request = &request;
                async move { client.post(&path(&name, "/open"), request).await }
            };
            let exports: Vec<Export> = for_each(names.names, open).await?;
            answer_each(output.json, &exports, print::export, print::exports)
        }
        ExportCommand::Undelete { name, new, device, output } => {
            let request = UndeleteRequest {
                name: new.map(|name| name.to_string()),
                durability: device.durability,
                on_unreachable: device.on_unreachable.map(OnUnreachable),
                queues: device.queues.map(Into::into),
                queue_depth: device.queue_depth.map(Into::into),
            };
            let export: Export = client.post(&path(&name.name, "/undelete"), &request).await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Fork { name, new, snapshot, local, device, output } => {
            let request = ForkRequest {
                name: new.to_string(),
                snapshot: snapshot.map(|name| name.to_string()),
                local,
                durability: device.durability,
                on_unreachable: device.on_unreachable.map(OnUnreachable),
                queues: device.queues.map(Into::into),
                queue_depth: device.queue_depth.map(Into::into),
            };
            let fork_path = path(&name.name, "/fork");
            let fork = client.post(&fork_path, &request);
            let origin = [name.name.clone()];
            let look = async || exports_at_risk(client, &origin).await;
            let export: Export = Wait::new(output.json, None).until(fork, look, "").await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Flush { names, wait: _, no_wait, limit, output } => {
            let below = if no_wait { "/flush?wait=false" } else { "/flush" };
            let flush = |name: ExportName| async move { client.post(&path(&name, below), &()).await };
            let work = for_each(names.names.clone(), flush);
            let look = async || exports_at_risk(client, &names.names).await;
            let flushed: Vec<Flushed> = Wait::new(output.json, limit.timeout)
                .until(work, look, "flushing goes on: the same command waits again")
                .await?;
            let lines =
                |flushed: &[Flushed]| flushed.iter().map(print::flushed).collect::<Vec<_>>().join("\n");
            answer_each(output.json, &flushed, print::flushed, lines)
        }
        ExportCommand::Dump(args) => transfer::dump(client, *args).await,
        ExportCommand::List { deleted: true, output, .. } => {
            let deleted: Vec<DeletedExport> = client.get("/v1/store/deleted").await?;
            answer(output.json, &deleted, |deleted| print::deleted_exports(deleted))
        }
        ExportCommand::List { store: true, output, .. } => {
            let stored: Vec<StoredExport> = client.get("/v1/store/exports").await?;
            answer(output.json, &stored, |stored| print::stored(stored))
        }
        ExportCommand::List { output, .. } => {
            let exports: Vec<Export> = client.get("/v1/exports").await?;
            answer(output.json, &exports, |exports| print::exports(exports))
        }
        ExportCommand::Show { name, output } => {
            let export: Export = client.get(&path(&name.name, "")).await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Resize { name, size, output } => {
            let request = ResizeRequest { size: Size(ByteSize(size.bytes())) };
            let export: Export = client.post(&path(&name.name, "/resize"), &request).await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Attach { name, unconfirmed, output } => {
            let below = if unconfirmed { "/attach?unconfirmed=true" } else { "/attach" };
            let export: Export = client.post(&path(&name.name, below), &()).await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Detach { name, force, output } => {
            let below = if force { "/detach?force=true" } else { "/detach" };
            let export: Export = client.post(&path(&name.name, below), &()).await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Delete { names, yes, force, output } => {
            if !yes && std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
                names.names.iter().try_for_each(confirm)?;
            }
            let below = if force { "?force=true" } else { "" };
            let delete = |name: ExportName| async move { client.delete(&path(&name, below)).await };
            let deleted: Vec<Deleted> = for_each(names.names, delete).await?;
            let lines =
                |deleted: &[Deleted]| deleted.iter().map(print::deleted).collect::<Vec<_>>().join("\n");
            answer_each(output.json, &deleted, print::deleted, lines)
        }
    }
}

/// `glidefs snapshot …`
pub(super) async fn snapshot(client: &Client, command: SnapshotCommand) -> Result<(), CliError> {
    match command {
        SnapshotCommand::Create { snapshot, limit, output } => {
            let request = SnapshotRequest { name: snapshot.snapshot.to_string() };
            let create_path = path(&snapshot.name, "/snapshots");
            let create = client.post(&create_path, &request);
            let names = [snapshot.name.clone()];
            let look = async || exports_at_risk(client, &names).await;
            let goes_on = format!(
                "the daemon goes on until the snapshot is made: `glidefs snapshot list {}` shows it then",
                snapshot.name
            );
            let taken: Snapshot = Wait::new(output.json, limit.timeout).until(create, look, &goes_on).await?;
            answer(output.json, &taken, |taken| print::snapshots(std::slice::from_ref(taken)))
        }
        SnapshotCommand::List { name, output } => {
            let snapshots: Vec<Snapshot> = client.get(&path(&name.name, "/snapshots")).await?;
            answer(output.json, &snapshots, |snapshots| print::snapshots(snapshots))
        }
        SnapshotCommand::Rollback { snapshot, output } => {
            let request = RollbackRequest { snapshot: snapshot.snapshot.to_string() };
            let rollback_path = path(&snapshot.name, "/rollback");
            let rollback = client.post(&rollback_path, &request);
            let names = [snapshot.name.clone()];
            let look = async || exports_at_risk(client, &names).await;
            let export: Export = Wait::new(output.json, None).until(rollback, look, "").await?;
            answer(output.json, &export, print::export)
        }
        SnapshotCommand::Delete { snapshot, output } => {
            let below = format!("/snapshots/{}", snapshot.snapshot);
            let deleted: Deleted = client.delete(&path(&snapshot.name, &below)).await?;
            answer(output.json, &deleted, print::deleted)
        }
    }
}

/// `glidefs drain`
pub(super) async fn drain(client: &Client, limit: Option<TimeSpan>, output: Output) -> Result<(), CliError> {
    let look = async || all_at_risk(client).await;
    let drained: Drained = Wait::new(output.json, limit)
        .until(client.post("/v1/drain", &()), look, "draining goes on: the same command waits again")
        .await?;
    answer(output.json, &drained, print::drained)?;
    if drained.failed.is_empty() {
        Ok(())
    } else {
        Err(CliError::NotDrained { exports: drained.failed.len() })
    }
}

/// `glidefs gc`
pub(super) async fn gc(
    client: &Client,
    dry_run: bool,
    grace: Option<TimeSpan>,
    output: Output,
) -> Result<(), CliError> {
    let request = GcRequest { dry_run, grace_seconds: grace.map(|grace| grace.0.as_secs()) };
    let look = async || Some("the store is looked through".into());
    let done: GcAnswer =
        Wait::new(output.json, None).until(client.post("/v1/gc", &request), look, "").await?;
    answer(output.json, &done, print::gc)
}

/// Does `operation` for each of `names`, several at a time, and gives the answers in their order. The first failure ends it.
async fn for_each<T, F: Future<Output = Result<T, ClientError>>>(
    names: Vec<ExportName>,
    operation: impl Fn(ExportName) -> F,
) -> Result<Vec<T>, CliError> {
    Ok(stream::iter(names.into_iter().map(operation)).buffered(AT_ONCE).try_collect().await?)
}

/// Prints one answer as itself and several as an array.
fn answer_each<T: Serialize>(
    json: bool,
    values: &[T],
    one: impl FnOnce(&T) -> String,
    several: impl FnOnce(&[T]) -> String,
) -> Result<(), CliError> {
    match values {
        [value] => answer(json, value, one),
        values => answer(json, &values, |values| several(values)),
    }
}

/// Path of an export; its name needs no escaping.
pub(super) fn path(name: &ExportName, operation: &str) -> String {
    format!("/v1/exports/{name}{operation}")
}

pub(super) fn answer<T: Serialize>(
    json: bool,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), CliError> {
    let mut text = if json { serde_json::to_string_pretty(value)? } else { text(value) };
    text.push('\n');
    emit(text.as_bytes())
}

fn confirm(name: &ExportName) -> Result<(), CliError> {
    let mut err = std::io::stderr();
    let asked = write!(err, "Delete export {name} and all of its data? [y/N] ").and_then(|()| err.flush());
    let mut line = String::new();
    asked.and_then(|()| std::io::stdin().read_line(&mut line)).map_err(CliError::Output)?;
    if matches!(line.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(CliError::Declined) }
}
