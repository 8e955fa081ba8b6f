//! `glidefs import` and `glidefs export dump`: raw images into exports and out of them, through their block devices.
//!
//! Owns the copying engine (`copy`), what it copies from and to (`disk`, `stream`), and the two commands. Does not own the export:
//! the daemon makes it, and tells where its device is.

mod buffer;
mod carry;
mod copy;
mod device;
mod disk;
mod dump;
mod ends;
pub(super) mod error;
mod fault;
mod format;
mod image;
mod import;
mod partial;
mod stream;
mod summary;
#[cfg(test)]
mod tests;

use self::carry::Stop;
use self::error::TransferError;
use super::args::transfer::{DumpArgs, ImportArgs};
use super::client::Client;
use super::error::CliError;

/// `glidefs import`
pub(super) async fn import(client: &Client, args: ImportArgs) -> Result<(), CliError> {
    let mut stop = Stop::listen().map_err(TransferError::Signals)?;
    import::import(client, args, &device::open, &mut stop).await
}

/// `glidefs export dump`
pub(super) async fn dump(client: &Client, args: DumpArgs) -> Result<(), CliError> {
    let mut stop = Stop::listen().map_err(TransferError::Signals)?;
    dump::dump(client, args, &device::open, &mut stop).await
}
