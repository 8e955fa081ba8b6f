//! Control commands: libublk's calls as blocking steps.
//!
//! Does not own where and when the steps run (`steps`). libublk keeps one control ring a thread and panics on a thread without
//! one, so every step makes the ring first.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use io_uring::{IoUring, squeue};
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder};
use libublk::io::UblkDev;
use libublk::{UblkError, UblkFlags, sys};

use super::limit::DeviceLimit;
use super::many::{self, Encoding};
use super::notes::{self, TARGET};
use super::queue::Mode;
use crate::router::devices::{DeviceError, DeviceId};
use crate::units::REQUEST_BYTES_MAX;

/// Path of the driver's control device.
pub(super) const CONTROL_PATH: &str = "/dev/ublk-control";
/// Name of the step that keeps other daemons from making devices.
pub(super) const LOCKING: &str = "locking";
/// How long the kernel may wait for requests in the server's hands, milliseconds. The server ends none of them meanwhile.
const QUIESCE_MILLIS: u64 = 20;
/// How long a question may take that libublk is not asked: a step has a shorter limit of its own.
const ASK_PATIENCE: Duration = Duration::from_mins(1);
/// The folder in which the kernel lists ublk devices.
pub(super) const CLASS_PATH: &str = "/sys/class/ublk-char";

#[expect(clippy::cast_possible_truncation, reason = "a constant of 256")]
const REQUEST_SECTORS_MAX: u32 = (REQUEST_BYTES_MAX >> 9) as u32;

/// A device which has been added or taken over, but is not yet started.
pub struct Opened {
    ctrl: UblkCtrl,
    dev: UblkDev,
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

    /// How the device's requests travel: as the device was made. `None` for a mode which no daemon makes.
    pub fn mode(&self) -> Option<Mode> {
        mode_of(self.dev.dev_info.flags)
    }

    /// Whether the kernel can take the device back from this server and give the requests to the next one.
    pub fn can_be_moved(&self) -> bool {
        can_be_moved(self.dev.dev_info.flags)
    }

    /// A second handle on the character device, which can be opened only once.
    pub fn char_device(&self) -> io::Result<File> {
        // SAFETY: `dev` keeps this descriptor open while `dev` is borrowed.
        let fd = unsafe { BorrowedFd::borrow_raw(self.dev.tgt.fds[0]) };
        Ok(fd.try_clone_to_owned()?.into())
    }
}

fn mode_of(flags: u64) -> Option<Mode> {
    let has = |flag: u32| flags & u64::from(flag) != 0;
    match (has(sys::UBLK_F_USER_COPY), has(sys::UBLK_F_BATCH_IO)) {
        (true, false) => Some(Mode::UserCopy),
        (true, true) => Some(Mode::Batch),
        (false, false) => Some(Mode::Bounce),
        (false, true) => None,
    }
}

/// Whether a device with these flags can go to other workers. One in bounce mode stays; so does one with batches: the driver fails the
/// requests of such a device from QUIESCE_DEV until the next server has armed the tags (seen on Linux 7.3.4).
fn can_be_moved(flags: u64) -> bool {
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
    pub(super) fn of(info: &sys::ublksrv_ctrl_dev_info) -> Self {
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
            can_be_taken_back: can_be_moved(info.flags),
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

/// Whether the kernel lists a device of this number, whoever serves the device.
pub(super) fn exists(id: DeviceId) -> bool {
    Path::new(&format!("{CLASS_PATH}/ublkc{}", id.0)).exists()
}

/// Returns when no other daemon makes a device, as long as the file is open.
///
/// When the kernel refuses a number in use, libublk 0.4.8 deletes the device of that number, which is somebody else's. So libublk is
/// never asked for a number in use, and no two daemons look and ask at the same time.
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
        Mode::Batch => sys::UBLK_F_USER_COPY | sys::UBLK_F_BATCH_IO,
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
        Ok(dev) => Ok(Opened { ctrl, dev }),
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

/// Takes over a quiesced device with `owner_tag`, and opens it. A device of the same number made by somebody else meanwhile is left alone.
pub fn start_recovery(id: DeviceId, owner_tag: u64) -> Result<Opened, DeviceError> {
    let fail = |command| move |error| kernel(command, Some(id), error);
    let number = i32::try_from(id.0).map_err(|_| DeviceError::NotFound { path: id.path() })?;
    if !notes::is_whole(id) {
        if ask(id)?.is_none_or(|info| info.owner_tag != owner_tag) {
            return Err(DeviceError::NotFound { path: id.path() });
        }
        notes::leave(id);
    }
    let ctrl = UblkCtrlBuilder::default()
        .name(TARGET)
        .id(number)
        .dev_flags(UblkFlags::UBLK_DEV_F_RECOVER_DEV)
        .build()
        .map_err(fail("GET_DEV_INFO"))?;
    if ctrl.dev_info().ublksrv_flags != owner_tag {
        return Err(DeviceError::NotFound { path: id.path() });
    }
    accepted(ctrl.start_user_recover()).map_err(fail("START_USER_RECOVERY"))?;
    let dev = UblkDev::new(TARGET.into(), |_| Ok(()), &ctrl).map_err(fail("opening"))?;
    Ok(Opened { ctrl, dev })
}

/// Asks the kernel to take live device `id` back from this server: the device waits for the next server as soon as nothing here
/// refers to the character device.
///
/// # Errors
/// When the kernel has certainly refused, and nothing has changed. After any other failure the device may be marked: the kernel has
/// given up to wait for requests of ours (EBUSY), was disturbed (EINTR), or goes on unobserved (EAGAIN).
pub fn quiesce(id: DeviceId) -> Result<(), DeviceError> {
    let ctrl = open(id)?.ok_or_else(|| DeviceError::NotFound { path: id.path() })?;
    match accepted(ctrl.quiesce_dev(QUIESCE_MILLIS)) {
        Err(UblkError::UringIOError(code)) if is_refusal(code) => {
            Err(kernel("QUIESCE_DEV", Some(id), UblkError::UringIOError(code)))
        }
        Err(error) => {
            tracing::debug!(
                device_id = id.0,
                error = &error as &dyn std::error::Error,
                "QUIESCE_DEV ended early"
            );
            Ok(())
        }
        Ok(()) => Ok(()),
    }
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

/// Asks the kernel about device `id`; `None` when there is no such device.
pub fn info(id: DeviceId) -> Result<Option<Info>, DeviceError> {
    if exists(id) && !notes::is_whole(id) {
        return ask(id);
    }
    let Some(ctrl) = open_as_it_is(id)? else { return Ok(None) };
    Ok(Some(Info::of(&ctrl.dev_info())))
}

/// As [`info`], with a ring made for the question in place of libublk.
fn ask(id: DeviceId) -> Result<Option<Info>, DeviceError> {
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

/// Whether number `id` cannot be given to a new device: a device has the number, or somebody still has a deleted device of that
/// number open.
pub fn is_taken(id: DeviceId) -> bool {
    // The driver does not list deleted devices, but still knows them.
    exists(id) || matches!(ask(id), Ok(Some(_)))
}

/// Whether `code` is a kernel's answer to an unknown command: EOPNOTSUPP, ENOTSUPP (a name that only the kernel has), EINVAL.
pub(super) fn is_unknown_command(code: i32) -> bool {
    [libc::EOPNOTSUPP, 524, libc::EINVAL].contains(&code.saturating_abs())
}

/// Whether `code` says that a command was not carried out.
fn is_refusal(code: i32) -> bool {
    is_unknown_command(code) || code.saturating_abs() == libc::ENODEV
}

/// Sets the size of live device `id`.
pub fn resize(id: DeviceId, size_bytes: u64) -> Result<(), DeviceError> {
    let ctrl = open(id)?.ok_or_else(|| DeviceError::NotFound { path: id.path() })?;
    accepted(ctrl.update_size(size_bytes)).map_err(|error| kernel("UPDATE_SIZE", Some(id), error))
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

/// A handle on an existing device of this host's glidefs.
fn open(id: DeviceId) -> Result<Option<UblkCtrl>, DeviceError> {
    if exists(id) {
        notes::leave_if_missing(id);
    }
    open_as_it_is(id)
}

/// A handle on an existing device, whosever the device is.
fn open_as_it_is(id: DeviceId) -> Result<Option<UblkCtrl>, DeviceError> {
    ensure_ring()?;
    // The driver answers a question about an unknown number with an ordinary error; sysfs tells the two cases apart.
    if !exists(id) {
        return Ok(None);
    }
    let number = i32::try_from(id.0).map_err(|_| DeviceError::NotFound { path: id.path() })?;
    UblkCtrl::new_simple(number).map(Some).map_err(|error| kernel("GET_DEV_INFO", Some(id), error))
}

fn ensure_ring() -> Result<(), DeviceError> {
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
fn accepted(result: Result<i32, UblkError>) -> Result<(), UblkError> {
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

fn kernel(command: &'static str, id: Option<DeviceId>, error: UblkError) -> DeviceError {
    let source = match error {
        UblkError::UringIOError(code) | UblkError::OtherError(code) => {
            io::Error::from_raw_os_error(code.saturating_abs())
        }
        UblkError::IOError(error) => error,
        other => io::Error::other(other),
    };
    DeviceError::Kernel { command, path: id.map_or_else(|| "a new device".into(), DeviceId::path), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_definite_refusal_leaves_a_device_where_it_is() {
        let refusals = [libc::EOPNOTSUPP, libc::EINVAL, libc::ENODEV];
        let unclear = [libc::EAGAIN, libc::EINTR, libc::EBUSY, libc::ETIME, libc::EIO];
        assert!(refusals.iter().all(|&code| is_refusal(-code)));
        assert!(!unclear.iter().any(|&code| is_refusal(-code)));
    }

    #[test]
    fn only_a_device_with_a_command_for_each_tag_can_be_moved() {
        let recovery = sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE;
        for (mode, movable) in [
            (sys::UBLK_F_USER_COPY, true),
            (sys::UBLK_F_USER_COPY | sys::UBLK_F_BATCH_IO, false),
            (sys::UBLK_F_BATCH_IO, false),
            (0, false),
        ] {
            let flags = mode | recovery;
            assert_eq!(can_be_moved(u64::from(flags | sys::UBLK_F_QUIESCE)), movable, "{mode:#x}");
            assert!(!can_be_moved(u64::from(flags)), "the kernel was not told");
        }
    }
}
