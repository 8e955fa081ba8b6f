//! Questions about one device, and the list of all.
//!
//! Does not own the meaning of the answers (`driver`), nor questions about many devices at once (`many`).

use std::io;
use std::time::Duration;

use super::ring::open_as_it_is;
use crate::router::devices::{DeviceError, DeviceId};
use crate::ublk::driver::{CLASS_PATH, Info, exists, is_unknown_command};
use crate::ublk::many::{self, Encoding};
use crate::ublk::notes;

/// How long a question may take that libublk is not asked: a step has a shorter limit of its own.
const ASK_PATIENCE: Duration = Duration::from_mins(1);

/// Asks the kernel about device `id`; `None` when there is no such device.
pub fn info(id: DeviceId) -> Result<Option<Info>, DeviceError> {
    if exists(id) && !notes::is_whole(id) {
        return ask(id);
    }
    let Some(ctrl) = open_as_it_is(id)? else { return Ok(None) };
    Ok(Some(Info::of(&ctrl.dev_info())))
}

/// As [`info`], with a ring made for the question in place of libublk.
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
