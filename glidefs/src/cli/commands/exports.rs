//! `glidefs export …`, apart from `dump`.

use std::io::{IsTerminal, Write};

use serde::Serialize;

use super::bulk::{self, Operation};
use crate::api::wire::{
    CreateRequest, Deleted, DeletedExport, Export, Flushed, ForkRequest, OnUnreachable, OpenRequest,
    ResizeRequest, SetRequest, Size, StoredExport, UndeleteRequest,
};
use crate::cli::args::bulk::Chosen;
use crate::cli::args::common::{DeviceArgs, Limit, Name, OutputArgs};
use crate::cli::args::exports::ExportCommand;
use crate::cli::args::settings::SettingsArgs;
use crate::cli::error::CliError;
use crate::cli::output::answer;
use crate::cli::wait::{DaemonWait, exports_at_risk};
use crate::cli::{print, transfer};
use crate::client::{Client, export_path};
use crate::config::ByteSize;
use crate::router::{ExportName, ExportSize};

pub(in crate::cli) async fn run(client: &Client, command: ExportCommand) -> Result<(), CliError> {
    match command {
        ExportCommand::Create { names, count, size, detached, device, output } => {
            let chosen = count.of(names.choose(std::io::stdin())?)?;
            create(client, chosen, size, detached, device, output).await
        }
        ExportCommand::Open { names, take_over, discard_local, device, output } => {
            let chosen = names.choose(std::io::stdin())?;
            open(client, chosen, take_over, discard_local, device, output).await
        }
        ExportCommand::Undelete { name, new, device, output } => {
            let request = UndeleteRequest {
                name: new.map(|name| name.to_string()),
                durability: device.durability,
                on_unreachable: device.on_unreachable.map(OnUnreachable),
                limits: device.settings.limits(),
                weight: device.settings.weight.map(Into::into),
                queues: device.queues.map(Into::into),
                queue_depth: device.queue_depth.map(Into::into),
            };
            change(client, &name, "/undelete", &request, output).await
        }
        ExportCommand::Fork { name, new, snapshot, local, device, output } => {
            let request = ForkRequest {
                name: new.to_string(),
                snapshot: snapshot.map(|name| name.to_string()),
                local,
                durability: device.durability,
                on_unreachable: device.on_unreachable.map(OnUnreachable),
                limits: device.settings.limits(),
                weight: device.settings.weight.map(Into::into),
                queues: device.queues.map(Into::into),
                queue_depth: device.queue_depth.map(Into::into),
            };
            fork(client, name.name, &request, output).await
        }
        ExportCommand::Flush { names, wait: _, no_wait, limit, output } => {
            write_back(client, names.choose(std::io::stdin())?, no_wait, limit, output).await
        }
        ExportCommand::Dump(args) => transfer::dump(client, *args).await,
        ExportCommand::List { store, deleted, output } => list(client, store, deleted, output).await,
        ExportCommand::Show { name, output } => {
            let export: Export = client.get(&export_path(&name.name, "")).await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Resize { name, size, output } => {
            let request = ResizeRequest { size: Size(ByteSize(size.bytes())) };
            change(client, &name, "/resize", &request, output).await
        }
        ExportCommand::Set { names, settings, output } => {
            set(client, names.choose(std::io::stdin())?, settings, output).await
        }
        ExportCommand::Attach { names, unconfirmed, output } => match names.choose(std::io::stdin())? {
            Chosen::One(name) => {
                let below = if unconfirmed { "/attach?unconfirmed=true" } else { "/attach" };
                change(client, &Name { name }, below, &(), output).await
            }
            Chosen::Many(names) => bulk::run(client, Operation::Attach { unconfirmed }, &names, output).await,
        },
        ExportCommand::Detach { names, force, output } => match names.choose(std::io::stdin())? {
            Chosen::One(name) => {
                let below = if force { "/detach?force=true" } else { "/detach" };
                change(client, &Name { name }, below, &(), output).await
            }
            Chosen::Many(names) => bulk::run(client, Operation::Detach { force }, &names, output).await,
        },
        ExportCommand::Delete { names, yes, force, output } => {
            delete(client, names.choose(std::io::stdin())?, yes, force, output).await
        }
    }
}

async fn create(
    client: &Client,
    chosen: Chosen,
    size: ExportSize,
    detached: bool,
    device: DeviceArgs,
    output: OutputArgs,
) -> Result<(), CliError> {
    let request = CreateRequest {
        name: String::new(),
        size: Size(ByteSize(size.bytes())),
        durability: device.durability.unwrap_or_default(),
        on_unreachable: device.on_unreachable.map(OnUnreachable),
        limits: device.settings.limits(),
        weight: device.settings.weight.map(Into::into),
        queues: device.queues.map(Into::into),
        queue_depth: device.queue_depth.map(Into::into),
        detached,
    };
    match chosen {
        Chosen::One(name) => {
            let request = CreateRequest { name: name.to_string(), ..request };
            let export: Export = client.post("/v1/exports", &request).await?;
            answer(output.json, &export, print::export)
        }
        Chosen::Many(names) => bulk::run(client, Operation::Create(&request), &names, output).await,
    }
}

async fn open(
    client: &Client,
    chosen: Chosen,
    take_over: bool,
    discard_local: bool,
    device: DeviceArgs,
    output: OutputArgs,
) -> Result<(), CliError> {
    let request = OpenRequest {
        take_over,
        discard_local,
        durability: device.durability,
        on_unreachable: device.on_unreachable.map(OnUnreachable),
        limits: device.settings.limits(),
        weight: device.settings.weight.map(Into::into),
        queues: device.queues.map(Into::into),
        queue_depth: device.queue_depth.map(Into::into),
    };
    let open = |name: ExportName| {
        let request = &request;
        async move { client.post::<Export>(&export_path(&name, "/open"), request).await }
    };
    let results = bulk::requests(chosen.names(), open).await;
    bulk::print_chosen(&chosen, results, output, print::export, of_exports)
}

async fn set(
    client: &Client,
    chosen: Chosen,
    settings: SettingsArgs,
    output: OutputArgs,
) -> Result<(), CliError> {
    let request = SetRequest { limits: settings.limits(), weight: settings.weight.map(Into::into) };
    let set = |name: ExportName| {
        let request = &request;
        async move { client.patch::<Export>(&export_path(&name, ""), request).await }
    };
    let results = bulk::requests(chosen.names(), set).await;
    bulk::print_chosen(&chosen, results, output, print::export, of_exports)
}

fn of_exports(exports: &[&Export]) -> String {
    let table = print::exports(&exports.iter().map(|export| (*export).clone()).collect::<Vec<_>>());
    let assumed =
        exports.iter().filter_map(|export| Some(format!("{}: {}", export.name, export.assumed.as_ref()?)));
    [table].into_iter().chain(assumed).collect::<Vec<_>>().join("\n")
}

/// Sends `request` to `operation` of one export, and prints the new state of the export.
async fn change(
    client: &Client,
    name: &Name,
    operation: &str,
    request: &impl Serialize,
    output: OutputArgs,
) -> Result<(), CliError> {
    let export: Export = client.post(&export_path(&name.name, operation), request).await?;
    answer(output.json, &export, print::export)
}

async fn fork(
    client: &Client,
    origin: ExportName,
    request: &ForkRequest,
    output: OutputArgs,
) -> Result<(), CliError> {
    let fork_path = export_path(&origin, "/fork");
    let fork = client.post(&fork_path, request);
    let origin = [origin];
    let look = async || exports_at_risk(client, &origin).await;
    let export: Export = DaemonWait::new(output.json, None).until(fork, look, "").await?;
    answer(output.json, &export, print::export)
}

async fn write_back(
    client: &Client,
    chosen: Chosen,
    no_wait: bool,
    limit: Limit,
    output: OutputArgs,
) -> Result<(), CliError> {
    let below = if no_wait { "/flush?wait=false" } else { "/flush" };
    let flush =
        |name: ExportName| async move { client.post::<Flushed>(&export_path(&name, below), &()).await };
    let work = async { Ok::<_, CliError>(bulk::requests(chosen.names(), flush).await) };
    let look = async || exports_at_risk(client, chosen.names()).await;
    let results = DaemonWait::new(output.json, limit.timeout)
        .until(work, look, "the daemon goes on writing back: the same command waits again")
        .await?;
    let lines =
        |all: &[&Flushed]| all.iter().map(|one| print::written_back(one)).collect::<Vec<_>>().join("\n");
    bulk::print_chosen(&chosen, results, output, print::written_back, lines)
}

async fn list(client: &Client, store: bool, deleted: bool, output: OutputArgs) -> Result<(), CliError> {
    if deleted {
        let deleted: Vec<DeletedExport> = client.get("/v1/store/deleted").await?;
        return answer(output.json, &deleted, |deleted| print::deleted_exports(deleted));
    }
    if store {
        let stored: Vec<StoredExport> = client.get("/v1/store/exports").await?;
        return answer(output.json, &stored, |stored| print::stored(stored));
    }
    let exports: Vec<Export> = client.get("/v1/exports").await?;
    answer(output.json, &exports, |exports| print::exports(exports))
}

async fn delete(
    client: &Client,
    chosen: Chosen,
    yes: bool,
    force: bool,
    output: OutputArgs,
) -> Result<(), CliError> {
    let asks = !yes && std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    match chosen {
        Chosen::One(name) => {
            if asks {
                confirm(&name)?;
            }
            let below = if force { "?force=true" } else { "" };
            let deleted: Deleted = client.delete(&export_path(&name, below)).await?;
            answer(output.json, &deleted, print::deleted)
        }
        Chosen::Many(names) => {
            if asks {
                names.iter().try_for_each(confirm)?;
            }
            bulk::run(client, Operation::Delete { force }, &names, output).await
        }
    }
}

fn confirm(name: &ExportName) -> Result<(), CliError> {
    let mut err = std::io::stderr();
    let asked = write!(err, "Delete export {name} and all of its data? [y/N] ").and_then(|()| err.flush());
    let mut line = String::new();
    asked.and_then(|()| std::io::stdin().read_line(&mut line)).map_err(CliError::Output)?;
    if matches!(line.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(CliError::Declined) }
}
