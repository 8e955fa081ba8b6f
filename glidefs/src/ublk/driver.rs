//! The kernel's driver: where its files are, and what its answers mean.
//!
//! Does not own how the driver is asked (`control`, `many`).

use std::path::Path;

use libublk::sys;

use super::queue::Mode;
use crate::router::devices::DeviceId;

/// Path of the driver's control device.
pub const CONTROL_PATH: &str = "/dev/ublk-control";
/// The folder in which the kernel lists ublk devices.
pub const CLASS_PATH: &str = "/sys/class/ublk-char";

/// How the requests of a device with these flags travel. `None` for a device with batches (`UBLK_F_BATCH_IO`), which only older versions
/// made.
pub fn mode_of(flags: u64) -> Option<Mode> {
    let has = |flag: u32| flags & u64::from(flag) != 0;
    match (has(sys::UBLK_F_USER_COPY), has(sys::UBLK_F_BATCH_IO)) {
        (true, false) => Some(Mode::UserCopy),
        (false, false) => Some(Mode::Bounce),
        (_, true) => None,
    }
}

/// Whether the kernel can take a device with these flags back from a server, and give the requests to the next one.
fn can_be_taken_back(flags: u64) -> bool {
    let needed = sys::UBLK_F_QUIESCE | sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE;
    flags & u64::from(needed) == u64::from(needed) && mode_of(flags) == Some(Mode::UserCopy)
}

/// The kernel's answer about a device.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// One of the driver's states.
    pub state: State,
    /// The tag which the maker of the device left for itself.
    pub owner_tag: u64,
    /// The process that serves a live device.
    pub server: Server,
    /// Whether the kernel can take the device back from the server and give the requests to the next one.
    pub can_be_taken_back: bool,
}

impl Info {
    /// The meaning of the driver's answer.
    pub fn of(info: &sys::ublksrv_ctrl_dev_info) -> Self {
        let state = match u32::from(info.state) {
            sys::UBLK_S_DEV_LIVE => State::Live,
            sys::UBLK_S_DEV_QUIESCED => State::Quiesced,
            sys::UBLK_S_DEV_FAIL_IO => State::Failing,
            _ => State::Dead,
        };
        Self {
            state,
            owner_tag: info.ublksrv_flags,
            server: Server::of(info.ublksrv_pid),
            can_be_taken_back: can_be_taken_back(info.flags),
        }
    }
}

/// The process that serves a device, in the driver's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Server {
    /// There is no such process any more.
    Ended,
    /// The process with this number, which drivers also name after the end of the process.
    Process(u32),
    /// Perhaps a process without a number here.
    Unknown,
}

impl Server {
    fn of(process: i32) -> Self {
        match u32::try_from(process) {
            Ok(0) => Self::Unknown,
            Ok(process) => Self::Process(process),
            Err(_) => Self::Ended,
        }
    }
}

/// The driver's state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Added, not started; or stopped.
    Dead,
    Live,
    /// The server is gone; the device waits for the next server.
    Quiesced,
    /// The server is gone; requests fail.
    Failing,
}

/// Whether the kernel lists a device of this number, whoever serves the device.
pub fn exists(id: DeviceId) -> bool {
    Path::new(&format!("{CLASS_PATH}/ublkc{}", id.0)).exists()
}

/// Whether `code` is a kernel's answer to an unknown command: EOPNOTSUPP, ENOTSUPP (a name that only the kernel has), EINVAL.
pub fn is_unknown_command(code: i32) -> bool {
    [libc::EOPNOTSUPP, 524, libc::EINVAL].contains(&code.saturating_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_batches_has_no_mode_and_only_one_with_user_copy_can_be_taken_back() {
        let recovery = sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE;
        for (bits, mode) in [
            (sys::UBLK_F_USER_COPY, Some(Mode::UserCopy)),
            (sys::UBLK_F_USER_COPY | sys::UBLK_F_BATCH_IO, None),
            (0, Some(Mode::Bounce)),
        ] {
            let flags = u64::from(bits | recovery);
            assert_eq!(mode_of(flags), mode);
            let is_copied = mode == Some(Mode::UserCopy);
            assert_eq!(can_be_taken_back(flags | u64::from(sys::UBLK_F_QUIESCE)), is_copied, "{bits:#x}");
            assert!(!can_be_taken_back(flags), "the kernel was not told");
        }
    }
}
