//! `glidefs import` and `glidefs export dump`: raw images into exports and out of exports, through the exports' block devices.
//!
//! Owns the copying engine (`copy`), the sources and targets of a copy (`raw_file`, `stream`), and the two commands. Does not own
//! the export: the daemon makes the export, and tells the path of the device.

mod aligned;
mod carry;
mod copy;
mod device;
mod dump;
mod ends;
pub(super) mod error;
mod fault;
mod format;
mod image;
mod import;
mod partial;
mod raw_file;
mod stream;
mod summary;
#[cfg(test)]
mod tests;

use self::carry::Stop;
use self::error::TransferError;
use super::args::transfer::{DumpArgs, ImportArgs};
use super::error::CliError;
use crate::client::Client;

pub(super) async fn import(client: &Client, args: ImportArgs) -> Result<(), CliError> {
    let mut stop = Stop::listen().map_err(TransferError::Signals)?;
    import::import(client, args, &device::open, &mut stop).await
}

pub(super) async fn dump(client: &Client, args: DumpArgs) -> Result<(), CliError> {
    let mut stop = Stop::listen().map_err(TransferError::Signals)?;
    dump::dump(client, args, &device::open, &mut stop).await
}
