//! The commands of devices with `UBLK_F_BATCH_IO` (Linux 7.0), which are served with USER_COPY only.
//!
//! ```text
//!  PREP_IO_CMDS    arms tags, once           memory: an element for each tag
//!  FETCH_IO_CMDS   delivers tags, multishot  the kernel fills buffers of a provided group with 16-bit tags
//!  COMMIT_IO_CMDS  answers, arms again       memory: an element for each tag, of which the kernel may take the first ones only
//! ```

use io_uring::{opcode, squeue, types};
use libublk::sys;

/// `IORING_URING_CMD_MULTISHOT`, and the places in an SQE of the flags of a `uring_cmd` and of the number of a group of buffers.
const MULTISHOT: u32 = 1 << 1;
const FLAGS_AT: usize = 28;
const GROUP_AT: usize = 40;

/// Bytes of an element, as the kernel is told.
#[expect(clippy::cast_possible_truncation, reason = "8 bytes")]
const ELEMENT_BYTES: u8 = size_of::<sys::ublk_elem_header>() as u8;

/// Bytes of a delivered tag.
const TAG_BYTES: u8 = 2;

/// A `struct ublk_elem_header { __u16 tag, buf_index; __s32 result; }` of a device without registered buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// Names the request, among those of the queue.
    pub tag: u16,
    /// Bytes moved by the tag's request, or an errno below 0.
    pub result: i32,
}

impl Element {
    /// The element as the kernel reads one, in memory of its own.
    pub fn encode(self) -> u64 {
        let ([tag0, tag1], [r0, r1, r2, r3]) = (self.tag.to_ne_bytes(), self.result.to_ne_bytes());
        u64::from_ne_bytes([tag0, tag1, 0, 0, r0, r1, r2, r3])
    }

    /// The element which [`encode`](Self::encode) made into a number.
    pub fn decode(element: u64) -> Self {
        let [tag0, tag1, _, _, r0, r1, r2, r3] = element.to_ne_bytes();
        Self { tag: u16::from_ne_bytes([tag0, tag1]), result: i32::from_ne_bytes([r0, r1, r2, r3]) }
    }
}

/// The command which arms the tags of `elements`.
pub fn prepare(fixed: u32, queue_id: u16, elements: &[u64]) -> squeue::Entry {
    with_elements(sys::UBLK_U_IO_PREP_IO_CMDS, fixed, queue_id, elements)
}

/// The command which gives the results of `elements` and arms the tags again.
pub fn commit(fixed: u32, queue_id: u16, elements: &[u64]) -> squeue::Entry {
    with_elements(sys::UBLK_U_IO_COMMIT_IO_CMDS, fixed, queue_id, elements)
}

/// The number of elements which a commit with this result has done: the kernel counts bytes.
pub fn done(result: i32) -> Result<usize, i32> {
    usize::try_from(result).map(|bytes| bytes / usize::from(ELEMENT_BYTES)).map_err(|_| result)
}

/// The command which delivers tags into buffers of `group` until [`is_over`].
pub fn fetch(fixed: u32, queue_id: u16, group: u16) -> squeue::Entry {
    let payload = header(queue_id, 0, TAG_BYTES);
    let entry =
        opcode::UringCmd16::new(types::Fixed(fixed), sys::UBLK_U_IO_FETCH_IO_CMDS).cmd(payload).build();
    multishot(entry.flags(squeue::Flags::BUFFER_SELECT), group)
}

/// Whether a fetch that ended with `result` ended for good: the kernel takes the queue back, or refuses the command. A fetch also ends
/// when there is no buffer or no memory for a delivery; the requests then wait for the next fetch.
pub fn is_over(result: i32) -> bool {
    let passing = [-libc::ENOBUFS, -libc::ENOMEM, -libc::EAGAIN, -libc::EINTR];
    result < 0 && !passing.contains(&result)
}

/// A `uring_cmd` for `elements`, which stay in place until the completion.
fn with_elements(command: u32, fixed: u32, queue_id: u16, elements: &[u64]) -> squeue::Entry {
    // A queue has 4096 tags at most.
    let count = u16::try_from(elements.len()).unwrap_or(u16::MAX);
    opcode::UringCmd16::new(types::Fixed(fixed), command)
        .cmd(header(queue_id, count, ELEMENT_BYTES))
        .addr(Some(elements.as_ptr() as u64))
        .build()
}

/// A `struct ublk_batch_io { __u16 q_id, flags, nr_elem; __u8 elem_bytes, reserved; __u64 reserved2; }`.
fn header(queue_id: u16, count: u16, element_bytes: u8) -> [u8; 16] {
    let mut payload = [0; 16];
    payload[0..2].copy_from_slice(&queue_id.to_ne_bytes());
    payload[4..6].copy_from_slice(&count.to_ne_bytes());
    payload[6] = element_bytes;
    payload
}

/// The same `uring_cmd`, which completes again and again, each time with a buffer of `group`.
fn multishot(entry: squeue::Entry, group: u16) -> squeue::Entry {
    // SAFETY: an entry is the kernel's `struct io_uring_sqe` (`repr(C)`, of 64 bytes without padding), integers only.
    let mut bytes = unsafe { std::mem::transmute::<squeue::Entry, [u8; 64]>(entry) };
    bytes[FLAGS_AT..FLAGS_AT + 4].copy_from_slice(&MULTISHOT.to_ne_bytes());
    bytes[GROUP_AT..GROUP_AT + 2].copy_from_slice(&group.to_ne_bytes());
    // SAFETY: as above; any bytes are integers.
    unsafe { std::mem::transmute::<[u8; 64], squeue::Entry>(bytes) }
}

const _: () = assert!(size_of::<sys::ublk_batch_io>() == 16 && size_of::<sys::ublk_elem_header>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_as_the_kernel_reads_them() {
        for (tag, result) in [(0, 0), (4095, 131_072), (7, -libc::EIO)] {
            let element = Element { tag, result };
            assert_eq!(Element::decode(element.encode()), element);
            let header = sys::ublk_elem_header { tag, buf_index: 0, result };
            // SAFETY: both are 8 bytes without padding.
            let bytes = unsafe { std::mem::transmute::<sys::ublk_elem_header, [u8; 8]>(header) };
            assert_eq!(element.encode().to_ne_bytes(), bytes);
        }
    }

    #[test]
    fn commands_are_as_the_kernel_reads_them() {
        let bytes = |entry| {
            // SAFETY: see `multishot`.
            unsafe { std::mem::transmute::<squeue::Entry, [u8; 64]>(entry) }
        };
        let elements = [1, 2, 3];
        let commit = bytes(commit(9, 5, &elements));
        assert_eq!(commit[4..8], 9_u32.to_ne_bytes());
        assert_eq!(commit[16..24], (elements.as_ptr() as u64).to_ne_bytes());
        assert_eq!(commit[48..56], [5, 0, 0, 0, 3, 0, 8, 0]);
        let fetch = bytes(fetch(9, 5, 3));
        assert_eq!((fetch[0], fetch[28..32] == 2_u32.to_ne_bytes()), (46, true), "a uring_cmd, multishot");
        assert_eq!(fetch[1], (squeue::Flags::FIXED_FILE | squeue::Flags::BUFFER_SELECT).bits());
        assert_eq!((&fetch[40..42], &fetch[48..56]), (&[3, 0][..], &[5, 0, 0, 0, 0, 0, 2, 0][..]));
    }

    #[test]
    fn a_commit_counts_bytes_and_a_fetch_ends_for_good_only_when_refused() {
        assert_eq!((done(0), done(24), done(-libc::EBUSY)), (Ok(0), Ok(3), Err(-libc::EBUSY)));
        assert!([sys::UBLK_IO_RES_ABORT, -libc::EINVAL, i32::MIN].into_iter().all(is_over));
        assert!(![0, 64, -libc::ENOBUFS, -libc::ENOMEM].into_iter().any(is_over));
    }
}
