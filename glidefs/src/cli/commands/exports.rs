//! `glidefs export …`, apart from `dump`.

use std::io::{IsTerminal, Write};

use serde::Serialize;

use super::bulk;
use crate::api::wire::{
    CreateRequest, Deleted, DeletedExport, Export, Flushed, ForkRequest, OpenRequest, ResizeRequest,
    StoredExport, StoredVolume, UndeleteRequest,
};
use crate::cli::args::bulk::Chosen;
use crate::cli::args::common::{Name, OutputArgs, WaitArgs};
use crate::cli::args::exports::ExportCommand;
use crate::cli::error::CliError;
use crate::cli::print::answer;
use crate::cli::wait::{DaemonWait, GOES_ON};
use crate::cli::{print, transfer};
use crate::client::{Client, export_path};
use crate::config::ByteSize;
use crate::router::ExportName;

pub(in crate::cli) async fn run(
    client: &Client,
    command: ExportCommand,
    args: WaitArgs,
) -> Result<(), CliError> {
    let is_dump = matches!(command, ExportCommand::Dump(_));
    let work = carry_out(client, command, args.output);
    if !is_dump {
        return DaemonWait::new(args).for_daemon(client, work, GOES_ON).await;
    }
    // It shows how far it is.
    if args.timeout.is_none() {
        return work.await;
    }
    Err(CliError::Usage("a dump has no time limit: end it with Ctrl-C, and go on with --resume".into()))
}

async fn carry_out(client: &Client, command: ExportCommand, output: OutputArgs) -> Result<(), CliError> {
    match command {
        ExportCommand::Create { names, count, size, detached, device } => {
            let chosen = names.choose(std::io::stdin())?.numbered(count)?;
            let size = ByteSize(size.bytes());
            let request = CreateRequest { size, detached, ..CreateRequest::default() }.with(device.choices());
            let create = async |name: ExportName| {
                let request = CreateRequest { name: name.to_string(), ..request.clone() };
                client.post::<Export>("/v1/exports", &request).await
            };
            bulk::each(&chosen, create, output, print::export, of_exports).await
        }
        ExportCommand::Open { names, take_over, discard_local, device } => {
            let chosen = names.choose(std::io::stdin())?;
            let request = OpenRequest { discard_local, take_over, ..OpenRequest::default() };
            let request = request.with(device.choices());
            let open = async |name| client.post::<Export>(&export_path(&name, "/open"), &request).await;
            bulk::each(&chosen, open, output, print::export, of_exports).await
        }
        ExportCommand::Undelete { name, new, device } => {
            let name_again = new.map(|name| name.to_string());
            let request = UndeleteRequest { name: name_again, ..UndeleteRequest::default() };
            let request = request.with(device.choices());
            change(client, &name, "/undelete", &request, output).await
        }
        ExportCommand::Fork { name, new, snapshot, local, manifest, device } => {
            let (name_of_fork, snapshot) = (new.to_string(), snapshot.map(|name| name.to_string()));
            let request =
                ForkRequest { name: name_of_fork, snapshot, local, manifest, ..ForkRequest::default() };
            change(client, &name, "/fork", &request.with(device.choices()), output).await
        }
        ExportCommand::Flush { names, no_wait } => {
            let below = if no_wait { "/flush?wait=false" } else { "/flush" };
            let flush = async |name| client.post::<Flushed>(&export_path(&name, below), &()).await;
            let lines = |all: &[&Flushed]| {
                all.iter().map(|one| print::written_back(one)).collect::<Vec<_>>().join("\n")
            };
            bulk::each(&names.choose(std::io::stdin())?, flush, output, print::written_back, lines).await
        }
        ExportCommand::Dump(args) => transfer::dump(client, *args, output).await,
        ExportCommand::List { store, deleted } => list(client, store, deleted, output).await,
        ExportCommand::Show { name } => {
            let export: Export = client.get(&export_path(&name.name, "")).await?;
            answer(output.json, &export, print::export)
        }
        ExportCommand::Resize { name, size } => {
            let request = ResizeRequest { size: ByteSize(size.bytes()) };
            change(client, &name, "/resize", &request, output).await
        }
        ExportCommand::Set { names, properties } => {
            let (chosen, request) = (names.choose(std::io::stdin())?, properties.request());
            let set = async |name| client.patch::<Export>(&export_path(&name, ""), &request).await;
            bulk::each(&chosen, set, output, print::export, of_exports).await
        }
        ExportCommand::Attach { names, unconfirmed } => {
            let below = format!("/attach?held_back=true&unconfirmed={unconfirmed}");
            let attach = async |name| client.post::<Export>(&export_path(&name, &below), &()).await;
            bulk::each(&names.choose(std::io::stdin())?, attach, output, print::export, of_exports).await
        }
        ExportCommand::Detach { names, force } => {
            let below = if force { "/detach?force=true" } else { "/detach" };
            let detach = async |name| client.post::<Export>(&export_path(&name, below), &()).await;
            bulk::each(&names.choose(std::io::stdin())?, detach, output, print::export, of_exports).await
        }
        ExportCommand::Delete { names, yes, force } => {
            delete(client, &names.choose(std::io::stdin())?, yes, force, output).await
        }
    }
}

fn of_exports(exports: &[&Export]) -> String {
    let table = print::exports(&exports.iter().map(|export| (*export).clone()).collect::<Vec<_>>());
    let assumed =
        exports.iter().filter_map(|export| Some(format!("{}: {}", export.name, export.assumed.as_ref()?)));
    [table].into_iter().chain(assumed).collect::<Vec<_>>().join("\n")
}

/// Sends `request` to `operation` of one export, and prints the state of the export in the answer.
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

async fn list(client: &Client, store: bool, deleted: bool, output: OutputArgs) -> Result<(), CliError> {
    if deleted {
        let deleted: Vec<DeletedExport> = client.get("/v1/store/deleted").await?;
        return answer(output.json, &deleted, |deleted| print::deleted_exports(deleted));
    }
    if store {
        let stored: Vec<StoredExport> = client.get("/v1/store/exports").await?;
        if stored.is_empty() {
            return answer(output.json, &stored, |_| "nothing in the store".into());
        }
        let names: Vec<_> = stored.iter().filter_map(|export| ExportName::new(&export.name).ok()).collect();
        let look =
            async |name: ExportName| client.get::<StoredVolume>(&format!("/v1/store/exports/{name}")).await;
        return bulk::requests(&names, look).await.print(output, print::stored);
    }
    let exports: Vec<Export> = client.get("/v1/exports").await?;
    answer(output.json, &exports, |exports| print::exports(exports))
}

async fn delete(
    client: &Client,
    chosen: &Chosen,
    yes: bool,
    force: bool,
    output: OutputArgs,
) -> Result<(), CliError> {
    if !yes && std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
        chosen.names.iter().try_for_each(confirm)?;
    }
    let below = if force { "?force=true" } else { "" };
    let delete = async |name| client.delete::<Deleted>(&export_path(&name, below)).await;
    let lines = |all: &[&Deleted]| all.iter().map(|one| print::deleted(one)).collect::<Vec<_>>().join("\n");
    bulk::each(chosen, delete, output, print::deleted, lines).await
}

fn confirm(name: &ExportName) -> Result<(), CliError> {
    let mut err = std::io::stderr();
    let asked = write!(err, "Delete export {name} and all of its data? [y/N] ").and_then(|()| err.flush());
    let mut line = String::new();
    asked.and_then(|()| std::io::stdin().read_line(&mut line)).map_err(CliError::Output)?;
    if matches!(line.trim(), "y" | "Y" | "yes") {
        Ok(())
    } else {
        Err(CliError::Refused("nothing was deleted".into()))
    }
}
