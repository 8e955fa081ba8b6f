//! `glidefs export dump`: a file from an export.
//!
//! Invariants: the daemon is asked only after the file was found to be writable; a fork made for the dump is deleted, however the
//! dump ends.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use super::carry::{PATIENCE, Stop, carry};
use super::copy::{Before, CopyOptions, Report};
use super::device::{self, DeviceAccess};
use super::ends::{CHUNK_BYTES, CopyTarget};
use super::error::TransferError;
use super::fault::CopyError;
use super::partial::{self, Partial};
use super::raw_file::RawFile;
use super::stream::{Out, is_standard, spoken};
use super::summary::Summary;
use crate::api::wire::{Deleted, Durability, Export, ForkRequest, LimitsChange, ProblemCode};
use crate::cli::args::transfer::DumpArgs;
use crate::cli::error::CliError;
use crate::cli::print::answer;
use crate::client::{Client, ClientError, export_path};
use crate::observe::chain;
use crate::router::{ExportName, NAME_CHARS_MAX, NameError};

pub(super) async fn dump(
    client: &Client,
    args: DumpArgs,
    open: device::Open<'_>,
    stop: &mut Stop,
) -> Result<(), CliError> {
    if !client.is_local() {
        return Err(TransferError::Remote.into());
    }
    let to_stdout = is_standard(&args.file);
    if !to_stdout {
        partial::check(&args.file, args.force, args.resume)?;
    } else if std::io::stdout().is_terminal() {
        return Err(TransferError::Terminal { what: "standard output" }.into());
    }
    let name = &args.name.name;
    let dumped = match &args.snapshot {
        None => {
            let show = export_path(name, "");
            let export = stop.unless(1, client.get::<Export>(&show)).await;
            let export = export.ok_or(TransferError::StoppedBefore)??;
            dump_export(&args, name, &export, open, stop).await
        }
        Some(snapshot) => dump_snapshot(client, &args, snapshot, open, stop).await,
    };
    let summary = dumped?;
    let of = args.snapshot.as_ref().map(|snapshot| format!("snapshot {snapshot} of ")).unwrap_or_default();
    let head = format!("{} is a copy of {of}{name}", spoken(&args.file, "standard output"));
    if to_stdout {
        // Standard output carries the image, so the summary goes to standard error.
        let text =
            if args.output.json { serde_json::to_string_pretty(&summary)? } else { summary.text(&head) };
        return writeln!(std::io::stderr(), "{text}").map_err(CliError::Output);
    }
    answer(args.output.json, &summary, |summary| summary.text(&head))
}

/// Forks `snapshot`, dumps the fork and deletes the fork.
async fn dump_snapshot(
    client: &Client,
    args: &DumpArgs,
    snapshot: &ExportName,
    open: device::Open<'_>,
    stop: &mut Stop,
) -> Result<Summary, CliError> {
    let fork = fork_name(&args.name.name).map_err(TransferError::Name)?;
    let request = ForkRequest {
        local: false,
        name: fork.to_string(),
        snapshot: Some(snapshot.to_string()),
        durability: Some(Durability::Local),
        on_unreachable: None,
        // The origin's limits are for its clients, not for the dump.
        limits: LimitsChange {
            read_iops: Some(None),
            write_iops: Some(None),
            read_bytes_per_second: Some(None),
            write_bytes_per_second: Some(None),
            burst_milliseconds: None,
        },
        weight: None,
        queues: None,
        queue_depth: None,
    };
    let below = export_path(&args.name.name, "/fork");
    // One signal does not interrupt the request: a half-made fork might not be deleted.
    let dumped = match stop.unless(PATIENCE, client.make(&below, &request)).await {
        None => return Err(TransferError::ForkUnknown { name: fork }.into()),
        Some(Ok((true, export))) => dump_export(args, &fork, &export, open, stop).await,
        // The fork's name is the name of another user's export.
        Some(Ok((false, _))) => return Err(TransferError::ForkTaken { name: fork }.into()),
        Some(Err(error @ (ClientError::NotRunning { .. } | ClientError::NoPermission { .. }))) => {
            return Err(error.into());
        }
        // Another export, with other parameters, has the name.
        Some(Err(ClientError::Refused { code, .. }))
            if code == ProblemCode::ExistsWithOtherParameters.as_str() =>
        {
            return Err(TransferError::ForkTaken { name: fork }.into());
        }
        // The fork may exist in spite of the error, and is deleted below.
        Some(Err(error)) => Err(error.into()),
    };
    let below = export_path(&fork, "");
    let left = match stop.unless(PATIENCE, client.delete::<Deleted>(&below)).await {
        Some(Ok(_)) => None,
        Some(Err(source)) => Some(TransferError::ForkLeft { name: fork, source }),
        None => Some(TransferError::ForkUnknown { name: fork }),
    };
    match (dumped, left) {
        (Ok(_), Some(left)) => Err(left.into()),
        (Err(error), Some(left)) => {
            // The returned error tells why the dump failed.
            let _ = writeln!(std::io::stderr(), "glidefs: {}", chain(&left));
            Err(error)
        }
        (dumped, None) => dumped,
    }
}

/// An unused name for a fork of `name`: the last 8 digits are random.
fn fork_name(name: &ExportName) -> Result<ExportName, NameError> {
    let tail = format!("-dump-{:08x}", rand::random::<u32>());
    // Names are ASCII.
    let head = &name.as_str()[..name.as_str().len().min(NAME_CHARS_MAX - tail.len())];
    ExportName::new(&format!("{head}{tail}"))
}

/// Dumps the device of `export`, which has the name `name`.
async fn dump_export(
    args: &DumpArgs,
    name: &ExportName,
    export: &Export,
    open: device::Open<'_>,
    stop: &mut Stop,
) -> Result<Summary, CliError> {
    let (source, device) = device::open_export(name, export, DeviceAccess::Read, open)?;
    let started = Instant::now();
    let work = OpenDump { args, device: &device, source, length_bytes: export.size_bytes };
    let report =
        if is_standard(&args.file) { work.into_stdout(stop).await? } else { work.into_file(stop).await? };
    Ok(Summary {
        export: args.name.name.to_string(),
        snapshot: args.snapshot.as_ref().map(ToString::to_string),
        device: device.display().to_string(),
        file: args.file.display().to_string(),
        size_bytes: export.size_bytes,
        report,
        seconds: started.elapsed().as_secs_f64(),
        flushed_sequence_number: None,
    })
}

/// A dump with an open device.
struct OpenDump<'a> {
    args: &'a DumpArgs,
    device: &'a Path,
    source: RawFile,
    length_bytes: u64,
}

impl OpenDump<'_> {
    async fn into_file(self, stop: &mut Stop) -> Result<Report, TransferError> {
        let args = self.args;
        let (partial, disk, before) = Partial::open(&args.file, self.length_bytes, args.force, args.resume)?;
        let hint = " (the same command with --resume goes on)";
        let report = self.run(Box::new(disk), before, hint, stop).await?;
        partial.complete()?;
        Ok(report)
    }

    async fn into_stdout(self, stop: &mut Stop) -> Result<Report, TransferError> {
        let stdout = std::io::stdout().as_fd().try_clone_to_owned();
        let path = self.args.file.clone();
        let stdout = stdout.map_err(|source| TransferError::File { action: "open", path, source })?;
        self.run(Box::new(Out(File::from(stdout))), Before::Stream, "", stop).await
    }

    async fn run(
        self,
        target: Box<dyn CopyTarget>,
        before: Before,
        hint: &'static str,
        stop: &mut Stop,
    ) -> Result<Report, TransferError> {
        let (length_bytes, is_quiet) = (self.length_bytes, self.args.output.json);
        let options = CopyOptions { length_bytes, chunk_bytes: CHUNK_BYTES, before };
        let copied = carry(Box::new(self.source), target, options, is_quiet, stop).await;
        copied.map_err(|source: CopyError| TransferError::Copy {
            from: self.device.display().to_string(),
            to: spoken(&self.args.file, "standard output"),
            hint,
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_has_a_name_of_its_own_however_long_that_of_the_export_is() {
        for length in [1, 100, NAME_CHARS_MAX] {
            let name = ExportName::new(&"x".repeat(length)).unwrap();
            let (one, other) = (fork_name(&name).unwrap(), fork_name(&name).unwrap());
            assert!(one != other && one != name, "{one}");
            let (head, tail) = one.as_str().rsplit_once("-dump-").unwrap();
            assert!(name.as_str().starts_with(head) && tail.len() == 8, "{one}");
        }
    }
}
