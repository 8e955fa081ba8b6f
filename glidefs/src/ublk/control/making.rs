//! Makes devices.
//!
//! Invariant: libublk is never asked for a number in use, and no two daemons look and ask at the same time: when the kernel refuses a
//! number in use, libublk 0.4.8 deletes the device of that number, which is somebody else's.

use std::fs::File;

use libublk::ctrl::UblkCtrlBuilder;
use libublk::io::UblkDev;
use libublk::{UblkError, UblkFlags, sys};

use super::info::is_taken;
use super::ring::kernel;
use super::{LOCKING, Opened, delete};
use crate::router::devices::{DeviceError, DeviceId};
use crate::ublk::driver::{CONTROL_PATH, mode_of};
use crate::ublk::limit::DeviceLimit;
use crate::ublk::notes::{self, TARGET};
use crate::ublk::queue::Mode;
use crate::units::REQUEST_BYTES_MAX;

#[expect(clippy::cast_possible_truncation, reason = "a constant of 256")]
const REQUEST_SECTORS_MAX: u32 = (REQUEST_BYTES_MAX >> 9) as u32;

/// Everything needed to add a device.
#[derive(Clone, Copy, Debug)]
pub struct NewDevice {
    /// The device number to ask for.
    pub preferred: Option<DeviceId>,
    pub queues: u16,
    /// Requests in flight a queue.
    pub depth: u16,
    pub mode: Mode,
    /// Left in the kernel to recognise the device by.
    pub owner_tag: u64,
    pub sectors: u64,
    /// Whether the device can be taken back from a server later, which the kernel must know from the beginning.
    pub quiesce: bool,
}

/// Returns when no other daemon makes a device, as long as the file is open.
pub fn lock() -> Result<File, DeviceError> {
    let locked = File::open(CONTROL_PATH).and_then(|file| file.lock().map(|()| file));
    locked.map_err(|source| DeviceError::Kernel { command: LOCKING, path: CONTROL_PATH.into(), source })
}

/// Adds a device. No other daemon makes one as long as `alone` is open.
pub fn add(alone: File, new: NewDevice) -> Result<Opened, DeviceError> {
    let mut flags =
        sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE | sys::UBLK_F_CMD_IOCTL_ENCODE;
    flags |= match new.mode {
        Mode::UserCopy => sys::UBLK_F_USER_COPY,
        Mode::Bounce => 0,
    };
    if new.quiesce {
        flags |= sys::UBLK_F_QUIESCE;
    }
    let build = |id: i32| {
        UblkCtrlBuilder::default()
            .name(TARGET)
            .id(id)
            .nr_queues(new.queues)
            .depth(new.depth)
            .io_buf_bytes(REQUEST_SECTORS_MAX << 9)
            .ctrl_flags(u64::from(flags))
            .ctrl_target_flags(new.owner_tag)
            .dev_flags(UblkFlags::UBLK_DEV_F_ADD_DEV)
            .build()
    };
    let free = new.preferred.filter(|id| !is_taken(*id));
    let preferred = free.and_then(|id| i32::try_from(id.0).ok()).and_then(|id| build(id).ok());
    let ctrl = match preferred {
        Some(ctrl) => ctrl,
        None => build(-1).map_err(|error| {
            if DeviceLimit::read().is_some_and(DeviceLimit::is_reached) {
                DeviceError::LimitReached
            } else {
                kernel("ADD_DEV", None, error)
            }
        })?,
    };
    drop(alone);
    // From here on the device stays until deleted by number: dropping `ctrl` must not delete the device.
    ctrl.disown();
    let id = DeviceId(ctrl.dev_info().dev_id);
    notes::leave(id);
    match UblkDev::new(TARGET.into(), with_params(new.sectors), &ctrl) {
        Ok(dev) => {
            let mode = mode_of(ctrl.dev_info().flags).unwrap_or(new.mode);
            Ok(Opened { ctrl, dev, mode })
        }
        Err(error) => {
            let _ = ctrl.del_dev();
            Err(kernel("opening", Some(id), error))
        }
    }
}

/// Deletes a device which was added for a caller who has given up.
pub fn take_back(opened: Opened) {
    let id = opened.id();
    drop(opened);
    if let Err(error) = delete(id) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(device_id = id.0, error, "a device that was added too late stays");
    }
}

/// Sets the size and the limits of a device of `sectors` sectors, as clients see them.
fn with_params(sectors: u64) -> impl FnOnce(&mut UblkDev) -> Result<(), UblkError> {
    move |dev| {
        dev.tgt.dev_size = sectors << 9;
        dev.tgt.params = params(sectors);
        Ok(())
    }
}

fn params(sectors: u64) -> sys::ublk_params {
    sys::ublk_params {
        types: sys::UBLK_PARAM_TYPE_BASIC | sys::UBLK_PARAM_TYPE_DISCARD,
        basic: sys::ublk_param_basic {
            attrs: sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA,
            logical_bs_shift: 9,
            physical_bs_shift: 12,
            io_min_shift: 12,
            io_opt_shift: 17,
            max_sectors: REQUEST_SECTORS_MAX,
            dev_sectors: sectors,
            ..Default::default()
        },
        discard: sys::ublk_param_discard {
            // The size kept cheaply by the index. The kernel still passes on shorter discards, down to one sector, and discarded
            // sectors read as zeroes all the same.
            discard_granularity: 4096,
            max_discard_sectors: u32::MAX >> 9,
            max_write_zeroes_sectors: u32::MAX >> 9,
            max_discard_segments: 1,
            ..Default::default()
        },
        ..Default::default()
    }
}
