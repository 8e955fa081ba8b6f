//! The kernel's data-plane interface: commands, request descriptors, copy positions, results.
//!
//! The constants and structs come from libublk's bindings of `linux/ublk_cmd.h`; this file owns their use.

use io_uring::{opcode, squeue, types};
use libublk::sys;

use crate::worker::Failure;

/// Queues a device may have at most (`UBLK_MAX_NR_QUEUES`).
pub const QUEUES_MAX: u16 = 4096;

/// Bytes between the descriptor arrays of two queues: the array of the deepest queue there can be (`UBLK_MAX_QUEUE_DEPTH` ×
/// `sizeof(struct ublksrv_io_desc)`), which is a whole number of pages.
pub const DESCRIPTOR_STRIDE: usize = sys::UBLK_MAX_QUEUE_DEPTH as usize * size_of::<sys::ublksrv_io_desc>();

/// Result of a FETCH or COMMIT_AND_FETCH: the tag holds a request.
pub const RESULT_OK: i32 = sys::UBLK_IO_RES_OK.cast_signed();

/// Result of a FETCH or COMMIT_AND_FETCH: the kernel takes the tag back.
pub const RESULT_ABORT: i32 = sys::UBLK_IO_RES_ABORT;

/// The command that arms a tag (FETCH), or gives a tag's `result` and arms the tag again (COMMIT_AND_FETCH): a `uring_cmd` with a
/// `struct ublksrv_io_cmd { __u16 q_id, tag; __s32 result; __u64 addr; }`.
pub fn entry(command: u32, fixed: u32, queue_id: u16, tag: u16, result: i32, buffer: u64) -> squeue::Entry {
    let mut payload = [0; 16];
    payload[0..2].copy_from_slice(&queue_id.to_ne_bytes());
    payload[2..4].copy_from_slice(&tag.to_ne_bytes());
    payload[4..8].copy_from_slice(&result.to_ne_bytes());
    payload[8..16].copy_from_slice(&buffer.to_ne_bytes());
    opcode::UringCmd16::new(types::Fixed(fixed), command).cmd(payload).build()
}

const _: () = assert!(size_of::<sys::ublksrv_io_cmd>() == 16);

/// The position in the character device of byte 0 of a request's data.
pub fn copy_position(queue_id: u16, tag: u16) -> u64 {
    libublk::io::UblkIOCtx::ublk_user_copy_pos(queue_id, tag, 0)
}

/// The one place where a request's result becomes the kernel's number: the bytes moved, or a negative errno.
pub fn code_of(result: Result<u32, &Failure>) -> i32 {
    let errno = match result {
        Ok(bytes) => return i32::try_from(bytes).unwrap_or(-libc::EIO),
        Err(Failure::Refused(_)) => libc::EINVAL,
        Err(Failure::Unsupported { .. }) => libc::EOPNOTSUPP,
        Err(Failure::Full) => libc::ENOSPC,
        Err(Failure::Copy(_) | Failure::Cache(_)) => libc::EIO,
    };
    -errno
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_stride_is_what_the_kernel_uses() {
        // Read off a running kernel; see the driver's `ublk_max_cmd_buf_size`.
        assert_eq!(DESCRIPTOR_STRIDE, 98_304);
    }

    #[test]
    fn a_full_cache_is_enospc_and_what_is_not_known_better_is_eio() {
        assert_eq!(code_of(Ok(4096)), 4096);
        assert_eq!(code_of(Err(&Failure::Full)), -libc::ENOSPC);
        assert_eq!(code_of(Err(&Failure::Copy(std::io::ErrorKind::UnexpectedEof.into()))), -libc::EIO);
    }
}
