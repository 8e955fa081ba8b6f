//! Whose the devices in the kernel are.
//!
//! Owns the listing. Does not own the question (`many`). Invariant: a device that hangs or fails costs no other device's answer.

use std::io;
use std::time::Duration;

use crate::router::devices::{DeviceError, DeviceId};
use crate::ublk::control;
use crate::ublk::many::{self, Encoding};

/// Every device with its owner tag, in the order of the numbers. An error about one device is logged. Blocks, for little more than
/// `limit`.
pub(super) fn owners(encoding: Encoding, limit: Duration) -> Result<Vec<(DeviceId, u64)>, DeviceError> {
    let mut devices = control::list()?;
    devices.sort_unstable_by_key(|id| id.0);
    let fail = |source| DeviceError::Kernel { command: "GET_DEV_INFO", path: "any device".into(), source };
    let infos = many::infos(&devices, encoding, limit).map_err(fail)?;
    let tags = infos.into_iter().map(|info| info.map(|info| info.map(|info| info.owner_tag)));
    Ok(devices.into_iter().zip(tags).filter_map(|(id, tag)| Some((id, known(id, tag)?))).collect())
}

fn known(id: DeviceId, tag: io::Result<Option<u64>>) -> Option<u64> {
    tag.unwrap_or_else(|error| {
        tracing::error!(
            device_id = id.0,
            error = &error as &dyn std::error::Error,
            "the kernel does not say whose a device is: if the device is an export's of this host, and the catalog has another number, \
             the export gets a second device"
        );
        None
    })
}
