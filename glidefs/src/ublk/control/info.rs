//! Questions about one device, and the list of all.
//!
//! Does not own the meaning of the answers (`driver`), nor questions about many devices at once (`many`).

use std::io;
use std::time::Duration;

use crate::router::devices::{DeviceError, DeviceId};
use crate::ublk::driver::{CLASS_PATH, Info, exists, is_unknown_command};
use crate::ublk::many::{self, Encoding};

/// How long a question may take that libublk is not asked: a step has a shorter limit of its own.
const ASK_PATIENCE: Duration = Duration::from_mins(1);

/// Asks the kernel about device `id`; `None` when there is no such device.
pub fn info(id: DeviceId) -> Result<Option<Info>, DeviceError> {
    if exists(id) { ask(id) } else { Ok(None) }
}

/// Asks the driver about number `id`, also where the device is deleted and still open. By a ring made for the question: libublk complains
/// about a device without a whole note.
pub(super) fn ask(id: DeviceId) -> Result<Option<Info>, DeviceError> {
    let fail = |source| DeviceError::Kernel { command: "GET_DEV_INFO", path: id.path(), source };
    let question = |is_ioctl| {
        let answers = many::infos(&[id], Encoding { is_ioctl }, ASK_PATIENCE).map_err(fail)?;
        Ok(answers.into_iter().next().unwrap_or(Ok(None)))
    };
    // A driver before Linux 6.4 knows the plain numbers only.
    let answer = match question(true)? {
        Err(error) if error.raw_os_error().is_some_and(is_unknown_command) => question(false)?,
        answer => answer,
    };
    answer.map_err(fail)
}

/// A device and the kernel's answer about it: `None` for one that is gone.
pub type Answer = (DeviceId, io::Result<Option<Info>>);

/// Every ublk device in the kernel with the answer about it, in the order of the numbers: a device that hangs or fails costs no other
/// device's answer. Blocks, for little more than `limit`.
pub fn all(encoding: Encoding, limit: Duration) -> Result<Vec<Answer>, DeviceError> {
    let mut devices = list()?;
    devices.sort_unstable_by_key(|id| id.0);
    let fail = |source| DeviceError::Kernel { command: "GET_DEV_INFO", path: "any device".into(), source };
    let infos = many::infos(&devices, encoding, limit).map_err(fail)?;
    Ok(devices.into_iter().zip(infos).collect())
}

/// Every ublk device in the kernel.
pub fn list() -> Result<Vec<DeviceId>, DeviceError> {
    let entries = match std::fs::read_dir(CLASS_PATH) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(DeviceError::Kernel { command: "listing", path: CLASS_PATH.into(), source });
        }
    };
    let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix("ublkc")?.parse().ok().map(DeviceId);
    Ok(entries.filter_map(|entry| number(entry.ok()?.file_name())).collect())
}

/// Whether number `id` cannot be given to a new device: a device has the number, or somebody still has a deleted device of that
/// number open.
pub fn is_taken(id: DeviceId) -> bool {
    // The driver does not list deleted devices, but still knows them.
    exists(id) || matches!(ask(id), Ok(Some(_)))
}
