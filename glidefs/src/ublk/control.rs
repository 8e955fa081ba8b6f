//! Control commands: libublk's calls as blocking steps.
//!
//! Does not own where and when the steps run (`steps`), nor what the driver's answers mean (`driver`). libublk keeps one control ring a thread and panics on a thread without
//! one, so every step makes the ring first.

mod info;
mod making;
mod ring;

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

use libublk::UblkError;
use libublk::ctrl::UblkCtrl;
use libublk::io::UblkDev;

use self::info::ask;
pub use self::info::{all, info, is_taken, list};
use self::making::handle;
pub use self::making::{NewDevice, add, take_back};
use self::ring::{accepted, ensure_ring, kernel, open};
use super::driver::{is_unknown_command, mode_of};
use super::notes::{self, TARGET};
use super::queue::Mode;
use crate::router::devices::{DeviceError, DeviceId};

/// A device which has been added or taken over, but is not yet started.
pub struct Opened {
    ctrl: UblkCtrl,
    dev: UblkDev,
    /// How the device's requests travel: as the device was made.
    pub mode: Mode,
}

impl Opened {
    pub fn id(&self) -> DeviceId {
        DeviceId(self.dev.dev_info.dev_id)
    }

    /// Number of queues, as the kernel clamped the number.
    pub fn queues(&self) -> u16 {
        self.dev.dev_info.nr_hw_queues
    }

    /// Requests in flight a queue.
    pub fn depth(&self) -> u16 {
        self.dev.dev_info.queue_depth
    }

    /// A second handle on the character device, which can be opened only once.
    pub fn char_device(&self) -> io::Result<File> {
        // SAFETY: `dev` keeps this descriptor open while `dev` is borrowed.
        let fd = unsafe { BorrowedFd::borrow_raw(self.dev.tgt.fds[0]) };
        Ok(fd.try_clone_to_owned()?.into())
    }
}

/// Takes over a quiesced device with `owner_tag`, and opens it. A device of the same number made by somebody else meanwhile is left alone.
pub fn start_recovery(id: DeviceId, owner_tag: u64) -> Result<Opened, DeviceError> {
    let fail = |command| move |error| kernel(command, Some(id), error);
    if !notes::is_whole(&notes::folder(), id) {
        if ask(id)?.is_none_or(|info| info.owner_tag != owner_tag) {
            return Err(DeviceError::NotFound { path: id.path() });
        }
        notes::leave(&notes::folder(), id);
    }
    let ctrl = handle(id).map_err(fail("GET_DEV_INFO"))?;
    if ctrl.dev_info().ublksrv_flags != owner_tag {
        return Err(DeviceError::NotFound { path: id.path() });
    }
    // Before START_USER_RECOVERY, so that an older version can still take the device over.
    let mode = mode_of(ctrl.dev_info().flags).ok_or_else(|| DeviceError::Kernel {
        command: "taking over",
        path: id.path(),
        source: io::Error::other(
            "an older version made the device with batches ([workers] batch = true), which this version does not serve: detach and \
             attach the export, and the requests that wait fail; or go back to the older version, and detach the export there",
        ),
    })?;
    accepted(ctrl.start_user_recover()).map_err(fail("START_USER_RECOVERY"))?;
    let dev = UblkDev::new(TARGET.into(), |_| Ok(()), &ctrl).map_err(fail("opening"))?;
    Ok(Opened { ctrl, dev, mode })
}

/// Starts a device whose queues are all armed; ends the recovery of a device which was taken over.
pub fn start(opened: &Opened) -> Result<(), DeviceError> {
    ensure_ring()?;
    for _ in 0..opened.queues() {
        // libublk waits for this in bounce mode; the queues hand their buffers over with each command.
        opened.dev.notify_buffer_registration_complete(false);
    }
    accepted(opened.ctrl.start_dev(&opened.dev))
        .map_err(|error| kernel("START_DEV", Some(opened.id()), error))
}

/// Stops device `id`: the block device goes away and the tags come back. True when there was such a device.
pub fn stop(id: DeviceId) -> Result<bool, DeviceError> {
    let Some(ctrl) = open(id)? else { return Ok(false) };
    accepted(ctrl.stop_dev()).map_err(|error| kernel("STOP_DEV", Some(id), error))?;
    Ok(true)
}

/// Deletes device `id`, to which no worker may refer any more. The kernel frees the number when nobody has the block device
/// open: see [`is_taken`].
pub fn delete(id: DeviceId) -> Result<(), DeviceError> {
    let Some(ctrl) = open(id)? else { return Ok(()) };
    let deleted = match accepted(ctrl.del_dev_async()) {
        // Linux before 6.9. This command waits until nobody has the device open.
        Err(UblkError::UringIOError(code)) if is_unknown_command(code) => accepted(ctrl.del_dev()),
        deleted => deleted,
    };
    deleted.map_err(|error| kernel("DEL_DEV", Some(id), error))
}

/// Sets the size of live device `id`.
pub fn resize(id: DeviceId, size_bytes: u64) -> Result<(), DeviceError> {
    let ctrl = open(id)?.ok_or_else(|| DeviceError::NotFound { path: id.path() })?;
    accepted(ctrl.update_size(size_bytes)).map_err(|error| kernel("UPDATE_SIZE", Some(id), error))
}
