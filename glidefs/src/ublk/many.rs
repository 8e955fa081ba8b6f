//! A control command about many devices: one thread, one ring, many commands at the same time; and the command that adds a device.
//!
//! Owns the ring and the memory of answers. Does not own the choice of devices, nor what follows from an answer. Blocks, for as long as
//! the caller allows: to be run off the workers. Invariants: up to [`AT_ONCE_MAX`] commands that hang cost no other device's answer;
//! memory for an answer is freed only when the kernel has ended the command.
//!
//! libublk (`control`) carries out one command a thread, with further questions before each. Most control commands wait in the kernel,
//! which has a thread of its own for each waiting command of a ring. libublk 0.4.8 adds no device with a feature that it does not know,
//! and when the kernel refuses a number in use, it deletes the device of that number.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use libublk::sys;

use super::driver::{self, CONTROL_PATH, Info};
use crate::router::devices::DeviceId;

/// Most commands at the same time.
const AT_ONCE_MAX: u32 = 128;

/// What became of a command: the driver's code, or `None` when the command has not ended in time.
type Code = Option<i32>;

/// Commands of the ioctl encoding, or plain numbers for a driver before Linux 6.4.
#[derive(Clone, Copy, Debug)]
pub struct Encoding {
    pub is_ioctl: bool,
}

impl Encoding {
    pub fn of(self, command: u32) -> u32 {
        // The ioctl encoding has the plain number in the lowest byte.
        if self.is_ioctl { command } else { command & 0xff }
    }
}

/// Adds the device that `asked` describes, of number `u32::MAX` any one. Returns the device as the driver has made it, which may have
/// less queues. Waits for as long as the driver takes: a device that is made too late is the caller's all the same.
///
/// # Errors
/// The driver's, EEXIST for a number in use.
pub fn add(asked: sys::ublksrv_ctrl_dev_info, encoding: Encoding) -> io::Result<sys::ublksrv_ctrl_dev_info> {
    let command = encoding.of(sys::UBLK_U_CMD_ADD_DEV);
    let control = open()?;
    let mut info = Box::new(asked);
    let addr = (&raw mut *info) as u64;
    let about = sys::ublksrv_ctrl_cmd { addr, len: INFO_BYTES, ..about(DeviceId(info.dev_id)) };
    let codes = carry_out(1, FOREVER, |_| entry(&control, command, about))?;
    match codes.first().copied().flatten() {
        Some(0..) => Ok(*info),
        Some(code) => Err(io::Error::from_raw_os_error(code.saturating_abs())),
        None => {
            // The kernel may still write there.
            std::mem::forget(info);
            Err(io::ErrorKind::TimedOut.into())
        }
    }
}

/// The kernel's answer about each of `devices`: `None` for a device that is gone, an error also after `limit`.
///
/// # Errors
/// When no device can be asked.
pub fn infos(
    devices: &[DeviceId],
    encoding: Encoding,
    limit: Duration,
) -> io::Result<Vec<io::Result<Option<Info>>>> {
    let command = encoding.of(sys::UBLK_U_CMD_GET_DEV_INFO);
    let control = open()?;
    let mut answers = vec![sys::ublksrv_ctrl_dev_info::default(); devices.len()];
    let first = answers.as_mut_ptr();
    let codes = carry_out(devices.len(), limit, |number| {
        let addr = first.wrapping_add(number) as u64;
        let about = sys::ublksrv_ctrl_cmd { addr, len: INFO_BYTES, ..about(devices[number]) };
        entry(&control, command, about)
    })?;
    let infos = devices
        .iter()
        .zip(&codes)
        .zip(&answers)
        .map(|((&id, code), answer)| meaning(*code, answer, encoding, || driver::exists(id)));
    let infos = infos.collect();
    if codes.contains(&None) {
        // The kernel may still write there.
        std::mem::forget(answers);
    }
    Ok(infos)
}

/// The meaning of a command's `code` and of what the driver wrote. A driver that does not know the ioctl encoding says so of every number,
/// also of a device that is deleted and still open, which the kernel does not list.
fn meaning(
    code: Code,
    answer: &sys::ublksrv_ctrl_dev_info,
    encoding: Encoding,
    is_listed: impl FnOnce() -> bool,
) -> io::Result<Option<Info>> {
    match code {
        Some(0..) => Ok(Some(Info::of(answer))),
        Some(code) if encoding.is_ioctl && driver::is_unknown_command(code) => {
            Err(io::Error::from_raw_os_error(code.saturating_abs()))
        }
        // The driver answers a question about an unknown number with an ordinary error.
        Some(_) if !is_listed() => Ok(None),
        Some(code) => Err(io::Error::from_raw_os_error(code.saturating_abs())),
        None => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Asks the kernel to take back `devices`, whose server has ended. Returns the devices whose command has not ended within `limit`.
///
/// # Errors
/// When no device can be asked.
pub fn quiesce(devices: &[DeviceId], encoding: Encoding, limit: Duration) -> io::Result<Vec<DeviceId>> {
    let command = encoding.of(sys::UBLK_U_CMD_QUIESCE_DEV);
    let control = open()?;
    let codes = carry_out(devices.len(), limit, |number| {
        entry(&control, command, sys::ublksrv_ctrl_cmd { data: [QUIESCE_MILLIS], ..about(devices[number]) })
    })?;
    Ok(devices.iter().zip(codes).filter(|(_, code)| code.is_none()).map(|(&id, _)| id).collect())
}

/// How long QUIESCE_DEV waits for a free tag before the commands of the server are cancelled, milliseconds. The driver counts in
/// 32 bits, of which no millisecond is left: the command ends when the device is marked, and leaves the cancelling, which stands in line
/// for the ring of the server, to the kernel's end of that ring.
const QUIESCE_MILLIS: u64 = 1 << 32;

fn open() -> io::Result<File> {
    File::options().read(true).write(true).open(CONTROL_PATH)
}

fn about(device: DeviceId) -> sys::ublksrv_ctrl_cmd {
    sys::ublksrv_ctrl_cmd { dev_id: device.0, queue_id: u16::MAX, ..Default::default() }
}

fn entry(control: &File, command: u32, about: sys::ublksrv_ctrl_cmd) -> squeue::Entry128 {
    let mut payload = [0; 80];
    payload[0..4].copy_from_slice(&about.dev_id.to_ne_bytes());
    payload[4..6].copy_from_slice(&about.queue_id.to_ne_bytes());
    payload[6..8].copy_from_slice(&about.len.to_ne_bytes());
    payload[8..16].copy_from_slice(&about.addr.to_ne_bytes());
    payload[16..24].copy_from_slice(&about.data[0].to_ne_bytes());
    opcode::UringCmd80::new(Fd(control.as_raw_fd()), command).cmd(payload).build()
}

const _: () = assert!(size_of::<sys::ublksrv_ctrl_cmd>() == 32);

/// Bytes of what the driver says of a device, and is told of a new one.
const INFO_BYTES: u16 = 64;
const _: () = assert!(size_of::<sys::ublksrv_ctrl_dev_info>() == INFO_BYTES as usize);
/// Longer than any command takes.
const FOREVER: Duration = Duration::from_hours(24 * 365);

/// Carries out `count` commands: sends for as long as `limit`, and waits `limit` for each command that was sent. Commands for which no
/// time was left are never sent, and have the code ECANCELED.
///
/// # Errors
/// When there is no ring, and nothing was sent.
fn carry_out(
    count: usize,
    limit: Duration,
    command: impl Fn(usize) -> squeue::Entry128,
) -> io::Result<Vec<Code>> {
    let send_until = Instant::now() + limit;
    let mut deadline = send_until;
    let mut ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(AT_ONCE_MAX)?;
    // The kernel's own bound is four threads a CPU. Refused by kernels before 5.15, which have no USER_RECOVERY either.
    let _ = ring.submitter().register_iowq_max_workers(&mut [AT_ONCE_MAX, 0]);
    let mut codes = vec![None; count];
    let (mut begun, mut ended) = (0, 0);
    while ended < count {
        let begun_before = begun;
        while begun < count && begun - ended < AT_ONCE_MAX as usize && Instant::now() < send_until {
            let entry = command(begun).user_data(begun as u64);
            // SAFETY: a command refers to the control device, which stays open until the ring is dropped, and to memory for the answer,
            // which the caller keeps until the command has ended.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                break;
            }
            begun += 1;
        }
        if begun == ended {
            break;
        }
        // A thread that got no CPU since must not cost the new commands their time.
        let now = Instant::now();
        if begun > begun_before {
            deadline = now + limit;
        }
        let left = deadline.saturating_duration_since(now);
        let patience = Timespec::from(left);
        let submitted = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&patience));
        for completion in ring.completion() {
            let number = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
            if let Some(code) = codes.get_mut(number) {
                *code = Some(completion.result());
                ended += 1;
            }
        }
        let passes = [libc::ETIME, libc::EINTR, libc::EAGAIN, libc::EBUSY];
        match submitted {
            Err(error) if !error.raw_os_error().is_some_and(|code| passes.contains(&code)) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the ring of control commands failed"
                );
                // The kernel has taken none of these.
                begun = begun.saturating_sub(ring.submission().len());
                break;
            }
            _ if left.is_zero() => break,
            _ => {}
        }
    }
    codes[begun..].fill(Some(-libc::ECANCELED));
    Ok(codes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command that ends at once.
    fn quick() -> squeue::Entry128 {
        squeue::Entry128::from(opcode::Nop::new().build())
    }

    #[test]
    fn a_driver_that_does_not_know_the_encoding_says_nothing_about_an_unlisted_device() {
        let answer = sys::ublksrv_ctrl_dev_info::default();
        let meaning = |code, is_ioctl, is_listed| meaning(code, &answer, Encoding { is_ioctl }, || is_listed);
        // Linux before 6.4, asked about a deleted device that is still open: the question has to be asked again.
        assert!(meaning(Some(-libc::EOPNOTSUPP), true, false).is_err());
        assert!(meaning(Some(0), false, false).unwrap().is_some());
        // A number that nobody has, in each encoding.
        assert!(meaning(Some(-libc::ENODEV), true, false).unwrap().is_none());
        assert!(meaning(Some(-libc::EINVAL), false, false).unwrap().is_none());
        assert!(meaning(Some(-libc::EIO), false, true).is_err() && meaning(None, true, true).is_err());
    }

    #[test]
    fn commands_are_ioctl_encoded_where_the_kernel_knows_it() {
        assert_eq!(Encoding { is_ioctl: false }.of(sys::UBLK_U_IO_FETCH_REQ), 0x20);
        assert_eq!(Encoding { is_ioctl: true }.of(sys::UBLK_U_IO_FETCH_REQ) & 0xff, 0x20);
        assert_ne!(Encoding { is_ioctl: true }.of(sys::UBLK_U_IO_FETCH_REQ), 0x20);
    }

    #[test]
    fn every_command_has_an_answer_however_many_there_are() {
        let codes = carry_out(1000, Duration::from_mins(1), |_| quick()).unwrap();
        assert_eq!(codes, vec![Some(0); 1000]);
        assert_eq!(carry_out(0, Duration::ZERO, |_| quick()).unwrap(), []);
    }

    #[test]
    fn a_command_that_was_sent_has_all_of_the_time_and_others_are_not_sent() {
        assert_eq!(carry_out(10, Duration::ZERO, |_| quick()).unwrap(), vec![Some(-libc::ECANCELED); 10]);
        // Far more commands than can end while any is sent, however slow the machine: each takes half of the time to send.
        let pause = Timespec::from(Duration::from_secs(1));
        let command = |_| opcode::Timeout::new(&raw const pause).build().into();
        let codes = carry_out(2000, Duration::from_secs(2), command).unwrap();
        assert!(codes.iter().all(Option::is_some), "a command that ends in time was given up");
        assert_eq!((codes[0], codes[1999]), (Some(-libc::ETIME), Some(-libc::ECANCELED)));
    }

    #[test]
    fn commands_that_hang_cost_no_answer_of_another_device() {
        let hour = Timespec::from(Duration::from_hours(1));
        let command = |number: usize| {
            if number.is_multiple_of(9) {
                opcode::Timeout::new(&raw const hour).build().into()
            } else {
                quick()
            }
        };
        let codes = carry_out(1000, Duration::from_secs(2), command).unwrap();
        for (number, code) in codes.into_iter().enumerate() {
            assert_eq!(code.is_none(), number.is_multiple_of(9), "command {number}");
        }
    }
}
