//! `glidefs export …`

use std::io::{IsTerminal, Write};

use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::api::wire::{
    CreateRequest, Deleted, DeletedExport, Export, Flushed, ForkRequest, OnUnreachable, OpenRequest,
    ResizeRequest, Size, StoredExport, UndeleteRequest,
};
use crate::cli::args::exports::ExportCommand;
use crate::cli::client::{Client, ClientError, export_path};
use crate::cli::error::CliError;
use crate::cli::output::{answer, answer_each};
use crate::cli::wait::{Wait, exports_at_risk};
use crate::cli::{print, transfer};
use crate::config::ByteSize;
use crate::router::ExportName;

/// Requests to the daemon under way at once.
const AT_ONCE: usize = 8;

/// `glidefs export …`
pub(in crate::cli) async fn run(client: &Client, command: ExportCommand) -> Result<(), CliError> {
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
                async move { client.post(&export_path(&name, "/open"), request).await }
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
            let export: Export = client.post(&export_path(&name.name, "/undelete"), &request).await?;
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
            let fork_path = export_path(&name.name, "/fork");
            let fork = client.post(&fork_path, &request);
            let origin = [name.name.clone()];
            let look = async || exports_at_risk(client, &origin).await;
            let export: Export = Wait::new(output.json, None).until(fork, look, "").await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Flush { names, wait: _, no_wait, limit, output } => {
            let below = if no_wait { "/flush?wait=false" } else { "/flush" };
            let flush = |name: ExportName| async move { client.post(&export_path(&name, below), &()).await };
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
            let export: Export = client.get(&export_path(&name.name, "")).await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Resize { name, size, output } => {
            let request = ResizeRequest { size: Size(ByteSize(size.bytes())) };
            let export: Export = client.post(&export_path(&name.name, "/resize"), &request).await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Attach { name, unconfirmed, output } => {
            let below = if unconfirmed { "/attach?unconfirmed=true" } else { "/attach" };
            let export: Export = client.post(&export_path(&name.name, below), &()).await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Detach { name, force, output } => {
            let below = if force { "/detach?force=true" } else { "/detach" };
            let export: Export = client.post(&export_path(&name.name, below), &()).await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Delete { names, yes, force, output } => {
            if !yes && std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
                names.names.iter().try_for_each(confirm)?;
            }
            let below = if force { "?force=true" } else { "" };
            let delete = |name: ExportName| async move { client.delete(&export_path(&name, below)).await };
            let deleted: Vec<Deleted> = for_each(names.names, delete).await?;
            let lines =
                |deleted: &[Deleted]| deleted.iter().map(print::deleted).collect::<Vec<_>>().join("\n");
            answer_each(output.json, &deleted, print::deleted, lines)
        }
    }
}

/// Does `operation` for each of `names`, several at a time, and gives the answers in their order. The first failure ends it.
async fn for_each<T, F: Future<Output = Result<T, ClientError>>>(
    names: Vec<ExportName>,
    operation: impl Fn(ExportName) -> F,
) -> Result<Vec<T>, CliError> {
    Ok(stream::iter(names.into_iter().map(operation)).buffered(AT_ONCE).try_collect().await?)
}

fn confirm(name: &ExportName) -> Result<(), CliError> {
    let mut err = std::io::stderr();
    let asked = write!(err, "Delete export {name} and all of its data? [y/N] ").and_then(|()| err.flush());
    let mut line = String::new();
    asked.and_then(|()| std::io::stdin().read_line(&mut line)).map_err(CliError::Output)?;
    if matches!(line.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(CliError::Declined) }
}
