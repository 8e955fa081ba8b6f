//! `glidefs import`: an export from an image.
//!
//! Owns the order of steps: look at the image, make the export, write the device, write back. Invariant: an existing export is
//! written only with `--resume`.

use std::time::Instant;

use super::carry::{Stop, carry};
use super::copy::{Before, CopyOptions};
use super::device::{self, DeviceAccess};
use super::ends::CHUNK_BYTES;
use super::error::TransferError;
use super::image::Image;
use super::stream::{is_standard, spoken};
use super::summary::Summary;
use crate::api::wire::{CreateRequest, Deleted, Export, Flushed, ProblemCode};
use crate::cli::args::transfer::ImportArgs;
use crate::cli::error::CliError;
use crate::cli::print::answer;
use crate::cli::wait::{DaemonWait, exports_at_risk};
use crate::client::{Client, ClientError, export_path};
use crate::config::ByteSize;
use crate::router::ExportSize;
use crate::units::SECTOR_BYTES;

/// The daemon's code for refusing to create an export that exists with other parameters.
const EXISTS_OTHERWISE: &str = ProblemCode::ExistsWithOtherParameters.as_str();

pub(super) async fn import(
    client: &Client,
    args: ImportArgs,
    open: device::Open<'_>,
    stop: &mut Stop,
) -> Result<(), CliError> {
    if !client.is_local() {
        return Err(TransferError::Remote.into());
    }
    let image = if is_standard(&args.file) {
        Image::standard_input(args.force_raw)?
    } else {
        Image::open(&args.file, args.force_raw)?
    };
    let size = export_size(&args, image.length_bytes)?;
    let made = stop.unless(1, make(client, &args, size)).await;
    let (export, before) = made.ok_or_else(|| TransferError::StoppedMaking { name: args.name.clone() })??;
    let opened = device::open_export(&args.name, &export, DeviceAccess::Write, open);
    let (target, device) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            if before == Before::Zeroes {
                // The same command has to work once the reason is gone. If the deletion fails, the next command says that the
                // export exists.
                let _: Result<Deleted, _> = client.delete(&export_path(&args.name, "")).await;
            }
            return Err(error.into());
        }
    };
    let started = Instant::now();
    let options = CopyOptions { length_bytes: size.bytes(), chunk_bytes: CHUNK_BYTES, before };
    let copied = carry(image.source, Box::new(target), options, args.output.json, stop).await;
    let report = copied.map_err(|source| TransferError::Copy {
        from: spoken(&args.file, "standard input"),
        to: device.display().to_string(),
        hint: " (the same command with --resume goes on)",
        source,
    })?;
    let mut flushed_sequence_number = None;
    if args.flush {
        let flushed_path = export_path(&args.name, "/flush");
        let (wait, names) = (DaemonWait::new(args.output.json, None), [args.name.clone()]);
        let look = async || exports_at_risk(client, &names).await;
        let writeback = wait.until(client.post::<Flushed>(&flushed_path, &()), look, "");
        let flushed = stop.unless(1, writeback).await;
        let flushed = flushed.ok_or(TransferError::StoppedWriteback)??;
        flushed_sequence_number = Some(flushed.sequence_number);
    }
    let summary = Summary {
        export: args.name.to_string(),
        snapshot: None,
        device: device.display().to_string(),
        file: args.file.display().to_string(),
        size_bytes: size.bytes(),
        report,
        seconds: started.elapsed().as_secs_f64(),
        flushed_sequence_number,
    };
    let head =
        format!("{} is export {}, {}", spoken(&args.file, "standard input"), summary.export, summary.device);
    answer(args.output.json, &summary, |summary| summary.text(&head))
}

/// The size of the export.
fn export_size(args: &ImportArgs, length_bytes: Option<u64>) -> Result<ExportSize, TransferError> {
    let path = || args.file.clone();
    let Some(file_bytes) = length_bytes else { return args.size.ok_or(TransferError::NoSize) };
    match args.size {
        Some(size) if size.bytes() < file_bytes => {
            Err(TransferError::LargerThanSize { path: path(), file_bytes, size_bytes: size.bytes() })
        }
        Some(size) => Ok(size),
        None => {
            let whole = file_bytes.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX);
            ExportSize::new(whole).map_err(|source| TransferError::Size { path: path(), source })
        }
    }
}

/// Makes the export, or takes the existing export with `--resume`.
async fn make(client: &Client, args: &ImportArgs, size: ExportSize) -> Result<(Export, Before), CliError> {
    let name = &args.name;
    let request = CreateRequest {
        name: name.to_string(),
        size: ByteSize(size.bytes()),
        durability: args.device.durability.unwrap_or_default(),
        on_unreachable: args.device.on_unreachable,
        limits: args.device.settings.limits(),
        weight: args.device.settings.weight.map(Into::into),
        queues: args.device.queues.map(Into::into),
        queue_depth: args.device.queue_depth.map(Into::into),
        detached: false,
    };
    match client.make("/v1/exports", &request).await {
        Ok((true, export)) => Ok((export, Before::Zeroes)),
        Ok((false, export)) if args.resume => Ok((export, Before::Something)),
        Ok((false, _)) => Err(TransferError::ExportExists { name: name.clone() }.into()),
        Err(ClientError::Refused { code, .. }) if code == EXISTS_OTHERWISE && !args.resume => {
            Err(TransferError::ExportExists { name: name.clone() }.into())
        }
        Err(refusal @ ClientError::Refused { .. }) => Err(other_size(client, args, size, refusal).await),
        Err(error) => Err(error.into()),
    }
}

/// The error for an export that cannot be resumed: the two sizes if the sizes differ, else `refusal`.
async fn other_size(client: &Client, args: &ImportArgs, size: ExportSize, refusal: ClientError) -> CliError {
    let ClientError::Refused { code, .. } = &refusal else { return refusal.into() };
    if code != EXISTS_OTHERWISE {
        return refusal.into();
    }
    let existing: Result<Export, _> = client.get(&export_path(&args.name, "")).await;
    let (name, wanted_bytes) = (args.name.clone(), size.bytes());
    match existing.map(|export| export.size_bytes) {
        Ok(export_bytes) if export_bytes < wanted_bytes => {
            TransferError::ExportSmaller { name, export_bytes, wanted_bytes }.into()
        }
        Ok(export_bytes) if export_bytes > wanted_bytes => {
            TransferError::ExportLarger { name, export_bytes, wanted_bytes }.into()
        }
        _ => refusal.into(),
    }
}
