//! The arguments of `glidefs import` and `glidefs export dump`.

use std::path::PathBuf;

use clap::Args;

use super::common::{DeviceArgs, Name, OutputArgs, size};
use crate::router::{ExportName, ExportSize};

/// Arguments of `glidefs import`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ImportArgs {
    /// Raw image of a disk, or a block device; `-` is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Name of the export
    #[arg(long, value_parser = ExportName::new)]
    pub name: ExportName,
    /// Size of the export, if larger than FILE: bytes, or with KiB, MiB, GiB or TiB
    #[arg(long, value_parser = size, required_if_eq("file", "-"))]
    pub size: Option<ExportSize>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Go on with an existing export: write only blocks that differ from FILE
    #[arg(long)]
    pub resume: bool,
    /// Then write back, and wait until everything is in the store
    #[arg(long)]
    pub flush: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Arguments of `glidefs export dump`.
#[derive(Debug, Args)]
pub(in crate::cli) struct DumpArgs {
    #[command(flatten)]
    pub name: Name,
    /// File to write; `-` is standard output
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Dump this snapshot, by way of a temporary fork
    #[arg(long, value_name = "SNAPSHOT", value_parser = ExportName::new)]
    pub snapshot: Option<ExportName>,
    /// Go on with FILE.partial: write only blocks that differ
    #[arg(long)]
    pub resume: bool,
    /// Replace an existing FILE, and start FILE.partial anew
    #[arg(long)]
    pub force: bool,
}
