//! The devices in the kernel, and whose they are.
//!
//! Owns the listing. Does not own the question (`many`). Invariant: a device that hangs or fails costs no other device's answer.

use std::io;
use std::time::Duration;

use crate::router::devices::{DeviceError, DeviceId};
use crate::ublk::control;
use crate::ublk::driver::Info;
use crate::ublk::many::{self, Encoding};

/// Every device with the kernel's answer, in the order of the numbers. An error about one device is logged. Blocks, for little more
/// than `limit`.
pub(super) fn owners(encoding: Encoding, limit: Duration) -> Result<Vec<(DeviceId, Info)>, DeviceError> {
    let mut devices = control::list()?;
    devices.sort_unstable_by_key(|id| id.0);
    let fail = |source| DeviceError::Kernel { command: "GET_DEV_INFO", path: "any device".into(), source };
    let infos = many::infos(&devices, encoding, limit).map_err(fail)?;
    Ok(devices.into_iter().zip(infos).filter_map(|(id, info)| Some((id, known(id, info)?))).collect())
}

fn known(id: DeviceId, info: io::Result<Option<Info>>) -> Option<Info> {
    info.unwrap_or_else(|error| {
        tracing::error!(
            device_id = id.0,
            error = &error as &dyn std::error::Error,
            "the kernel does not say whose a device is: if the device is an export's of this host, and the catalog has another number, \
             the export gets a second device"
        );
        None
    })
}
