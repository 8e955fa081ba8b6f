//! Makes devices. The kernel chooses the number, or refuses one in use.

use std::fs::File;

use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder};
use libublk::io::UblkDev;
use libublk::{UblkError, UblkFlags, sys};

use super::ring::{ensure_ring, kernel};
use super::{Opened, delete};
use crate::router::devices::{DeviceError, DeviceId};
use crate::ublk::driver::{CONTROL_PATH, mode_of};
use crate::ublk::features::{Features, NO_AUTO_PART_SCAN};
use crate::ublk::limit::DeviceLimit;
use crate::ublk::many;
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
    /// The driver's: what a device can do, the kernel must know from the beginning.
    pub features: Features,
}

/// Adds a device.
pub fn add(new: NewDevice) -> Result<Opened, DeviceError> {
    ensure_ring()?;
    let mut flags =
        sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE | sys::UBLK_F_CMD_IOCTL_ENCODE;
    flags |= match new.mode {
        Mode::UserCopy => sys::UBLK_F_USER_COPY,
        Mode::Bounce => 0,
    };
    if new.features.quiesce() && new.mode == Mode::UserCopy {
        flags |= sys::UBLK_F_QUIESCE;
    }
    // What is on the disk is the business of whoever uses it: a table of partitions there would have the kernel make devices of them.
    if new.features.no_partition_scan() {
        flags |= NO_AUTO_PART_SCAN;
    }
    let asked = sys::ublksrv_ctrl_dev_info {
        nr_hw_queues: new.queues,
        queue_depth: new.depth,
        max_io_buf_bytes: REQUEST_SECTORS_MAX << 9,
        dev_id: u32::MAX,
        ublksrv_pid: std::process::id().cast_signed(),
        flags: u64::from(flags),
        ublksrv_flags: new.owner_tag,
        ..Default::default()
    };
    // When the kernel refuses a number in use, libublk, by which daemons before this version add devices, deletes the device of that
    // number: they lock this while they look and ask.
    let alone = File::open(CONTROL_PATH).and_then(|file| file.lock().map(|()| file));
    let add = |dev_id| many::add(sys::ublksrv_ctrl_dev_info { dev_id, ..asked }, new.features.encoding());
    let preferred = new.preferred.and_then(|id| add(id.0).ok());
    let added = preferred.map_or_else(|| add(u32::MAX), Ok).map_err(|source| {
        if DeviceLimit::read().is_some_and(DeviceLimit::is_reached) {
            DeviceError::LimitReached
        } else {
            DeviceError::Kernel { command: "ADD_DEV", path: "a new device".into(), source }
        }
    })?;
    drop(alone);
    let id = DeviceId(added.dev_id);
    notes::leave(&notes::folder(), id);
    let fail = |error| kernel("opening", Some(id), error);
    let opened = handle(id).map_err(fail).and_then(|ctrl| {
        let set = |dev: &mut UblkDev| {
            dev.tgt.dev_size = new.sectors << 9;
            dev.tgt.params = params(new.sectors);
            Ok(())
        };
        let dev = UblkDev::new(TARGET.into(), set, &ctrl).map_err(fail)?;
        Ok(Opened { mode: mode_of(added.flags).unwrap_or(new.mode), ctrl, dev })
    });
    if opened.is_err() {
        let _ = delete(id);
    }
    opened
}

/// libublk's handle on a device that this process serves from now on.
pub(super) fn handle(id: DeviceId) -> Result<UblkCtrl, UblkError> {
    let number = i32::try_from(id.0).map_err(|_| UblkError::InvalidVal)?;
    UblkCtrlBuilder::default().name(TARGET).id(number).dev_flags(UblkFlags::UBLK_DEV_F_RECOVER_DEV).build()
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

/// The size and the limits of a device of `sectors` sectors, as clients see them.
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
