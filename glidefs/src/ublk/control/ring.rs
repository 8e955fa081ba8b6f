//! libublk's handles on devices, and the control ring that libublk keeps a thread.
//!
//! Invariant: a thread whose ring may get the late completion of an earlier command is given another ring.

use std::io;

use io_uring::{IoUring, squeue};
use libublk::UblkError;
use libublk::ctrl::UblkCtrl;

use crate::router::devices::{DeviceError, DeviceId};
use crate::ublk::driver::exists;
use crate::ublk::notes;

/// A handle on an existing device of this host's glidefs.
pub(super) fn open(id: DeviceId) -> Result<Option<UblkCtrl>, DeviceError> {
    ensure_ring()?;
    // The driver answers a question about an unknown number with an ordinary error; sysfs tells the two cases apart.
    if !exists(id) {
        return Ok(None);
    }
    let folder = notes::folder();
    if !notes::is_whole(&folder, id) {
        notes::leave(&folder, id);
    }
    let number = i32::try_from(id.0).map_err(|_| DeviceError::NotFound { path: id.path() })?;
    UblkCtrl::new_simple(number).map(Some).map_err(|error| kernel("GET_DEV_INFO", Some(id), error))
}

pub(super) fn ensure_ring() -> Result<(), DeviceError> {
    with_ring(Option::is_none)
}

/// Makes this thread's control ring if `is_wanted`, in place of the one that is there.
fn with_ring(is_wanted: impl FnOnce(&Option<IoUring<squeue::Entry128>>) -> bool) -> Result<(), DeviceError> {
    libublk::ublk_init_ctrl_task_ring(|ring| {
        if is_wanted(ring) {
            *ring = Some(IoUring::<squeue::Entry128>::builder().build(16)?);
        }
        Ok(())
    })
    .map_err(|error| kernel("io_uring_setup", None, error))
}

/// libublk gives EBUSY as success. With EAGAIN libublk has not waited for the command: the next command of this thread would take
/// the late completion for its own, so the thread gets another ring.
pub(super) fn accepted(result: Result<i32, UblkError>) -> Result<(), UblkError> {
    if let Err(UblkError::UringIOError(code)) = &result
        && code.saturating_abs() == libc::EAGAIN
    {
        let _ = with_ring(|_| true);
    }
    match result {
        Ok(code) if code < 0 => Err(UblkError::UringIOError(code)),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn kernel(command: &'static str, id: Option<DeviceId>, error: UblkError) -> DeviceError {
    let source = match error {
        UblkError::UringIOError(code) | UblkError::OtherError(code) => {
            io::Error::from_raw_os_error(code.saturating_abs())
        }
        UblkError::IOError(error) => error,
        other => io::Error::other(other),
    };
    DeviceError::Kernel { command, path: id.map_or_else(|| "a new device".into(), DeviceId::path), source }
}
