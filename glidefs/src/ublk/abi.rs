//! The kernel's data-plane interface: command encoding, request descriptors, copy positions.
//!
//! The constants and structs come from libublk's bindings of `linux/ublk_cmd.h`; this file owns their use.

use io_uring::{opcode, squeue, types};
use libublk::sys;

use super::many::Encoding;

/// Queues a device may have at most (`UBLK_MAX_NR_QUEUES`).
pub const QUEUES_MAX: u16 = 4096;

/// Bytes between the descriptor arrays of two queues: the array of the deepest queue there can be (`UBLK_MAX_QUEUE_DEPTH` ×
/// `sizeof(struct ublksrv_io_desc)`), which is a whole number of pages.
pub const DESCRIPTOR_STRIDE: usize = sys::UBLK_MAX_QUEUE_DEPTH as usize * size_of::<sys::ublksrv_io_desc>();

/// Result of a FETCH or COMMIT_AND_FETCH: the tag holds a request.
pub const RESULT_OK: i32 = sys::UBLK_IO_RES_OK.cast_signed();

/// Result of a FETCH or COMMIT_AND_FETCH: the kernel takes the tag back.
pub const RESULT_ABORT: i32 = sys::UBLK_IO_RES_ABORT;

/// The two data-plane commands, in the encoding the kernel knows.
#[derive(Clone, Copy, Debug)]
pub struct Commands {
    fetch: u32,
    commit_and_fetch: u32,
}

impl Commands {
    pub const fn new(encoding: Encoding) -> Self {
        Self {
            fetch: encoding.of(sys::UBLK_U_IO_FETCH_REQ),
            commit_and_fetch: encoding.of(sys::UBLK_U_IO_COMMIT_AND_FETCH_REQ),
        }
    }

    /// The command which arms a tag.
    pub fn fetch(self, fixed: u32, queue_id: u16, tag: u16, buffer: u64) -> squeue::Entry {
        entry(self.fetch, fixed, queue_id, tag, 0, buffer)
    }

    /// The command which gives a tag's result and arms the tag again.
    pub fn commit_and_fetch(
        self,
        fixed: u32,
        queue_id: u16,
        tag: u16,
        result: i32,
        buffer: u64,
    ) -> squeue::Entry {
        entry(self.commit_and_fetch, fixed, queue_id, tag, result, buffer)
    }
}

/// A `uring_cmd` with a `struct ublksrv_io_cmd { __u16 q_id, tag; __s32 result; __u64 addr; }`.
fn entry(command: u32, fixed: u32, queue_id: u16, tag: u16, result: i32, buffer: u64) -> squeue::Entry {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_stride_is_what_the_kernel_uses() {
        // Read off a running kernel; see the driver's `ublk_max_cmd_buf_size`.
        assert_eq!(DESCRIPTOR_STRIDE, 98_304);
    }

    #[test]
    fn commands_are_ioctl_encoded_where_the_kernel_knows_it() {
        assert_eq!(Commands::new(Encoding { is_ioctl: false }).fetch, 0x20);
        assert_eq!(Commands::new(Encoding { is_ioctl: true }).fetch & 0xff, 0x20);
        assert_ne!(Commands::new(Encoding { is_ioctl: true }).fetch, 0x20);
    }
}
