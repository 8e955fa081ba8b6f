//! The buffers into which commands deliver values.
//!
//! ```text
//!  one mapping:  │ ring of BUFFERS descriptors, shared with the kernel │ buffer 0 │ buffer 1 │ …
//! ```
//!
//! A command which was pushed once delivers again and again: the kernel takes a buffer of the group for each completion. Owns the
//! buffers of one ring, for all commands. Does not own the meaning of a value. Invariants: a buffer is the kernel's from
//! [`Deliveries::publish`] until the completion which names the buffer; values are read before the buffer is given back; what the
//! kernel says of a buffer is checked. When no buffer is left the kernel ends the command, and the owner pushes the command anew.

use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The number of the one group of a ring.
pub(super) const GROUP: u16 = 0;
/// Buffers in the group, a power of two. A queue with requests takes one for each time that the kernel delivers.
const BUFFERS: u16 = 1024;
/// A buffer holds the tags of a queue of usual depth. More come in the next buffer.
const BUFFER_BYTES: u32 = 128;
const VALUES: usize = BUFFER_BYTES as usize / size_of::<u16>();
const RING_BYTES: usize = BUFFERS as usize * size_of::<BufRingEntry>();
const BYTES: NonZeroUsize = match NonZeroUsize::new(RING_BYTES + BUFFERS as usize * BUFFER_BYTES as usize) {
    Some(bytes) => bytes,
    None => unreachable!(),
};

/// The buffers of one ring. The ring must be closed, or the group unregistered, before the value is dropped.
pub(super) struct Deliveries {
    start: NonNull<u8>,
    /// Buffers given to the kernel so far, modulo 2^16.
    tail: u16,
}

impl Deliveries {
    /// Makes the buffers and registers the group.
    pub fn new(submitter: &Submitter<'_>) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            mmap_anonymous(None, BYTES, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE)?
        };
        let mut this = Self { start: start.cast(), tail: 0 };
        for buffer in 0..BUFFERS {
            this.give(buffer);
        }
        this.publish();
        // SAFETY: the mapping begins with a ring of BUFFERS descriptors, all of which name memory of the mapping. The mapping is
        // unmapped only when the value is dropped: see there.
        unsafe {
            submitter.register_buf_ring_with_flags(this.start.as_ptr() as u64, BUFFERS, GROUP, 0)?;
        }
        Ok(this)
    }

    /// Shows each value of a delivery of `bytes` bytes to `visit`, and gives the buffer back with the next
    /// [`publish`](Self::publish). A delivery which cannot be is no delivery.
    pub fn take(&mut self, buffer: u16, bytes: i32, mut visit: impl FnMut(u16)) {
        if buffer >= BUFFERS {
            tracing::error!(buffer, bytes, "the kernel delivered into a buffer that does not exist");
            return;
        }
        let values = usize::try_from(bytes).unwrap_or(0) / size_of::<u16>();
        if values > VALUES {
            tracing::error!(buffer, bytes, "the kernel delivered more than a buffer holds");
        }
        let start = self.buffer(buffer).cast::<u16>();
        for at in 0..values.min(VALUES) {
            // SAFETY: `start` is the begin of one of the mapping's buffers, aligned for u16, and `at` lies within the buffer.
            // Volatile, because the compiler knows nothing of the kernel's writes.
            visit(unsafe { start.add(at).read_volatile() });
        }
        self.give(buffer);
    }

    /// Lets the kernel have the buffers given back.
    pub fn publish(&mut self) {
        // SAFETY: the mapping begins with a descriptor, whose spare field is the tail of the ring by the kernel's interface. The
        // field is aligned for u16, and only this thread writes the field; the kernel reads the field atomically.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.start.cast().as_ptr()).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// The begin of buffer `buffer`, which must be below [`BUFFERS`].
    fn buffer(&self, buffer: u16) -> NonNull<u8> {
        assert!(buffer < BUFFERS, "buffer {buffer} of {BUFFERS}");
        // SAFETY: the mapping has BUFFERS buffers behind the ring, and `buffer` is below BUFFERS.
        unsafe { self.start.add(RING_BYTES + usize::from(buffer) * BUFFER_BYTES as usize) }
    }

    fn give(&mut self, buffer: u16) {
        let address = self.buffer(buffer).as_ptr() as u64;
        let place = usize::from(self.tail % BUFFERS);
        // SAFETY: the mapping begins with BUFFERS descriptors, aligned as a page, and `place` is below BUFFERS. The kernel only reads
        // descriptors, and none from the tail on.
        let descriptor = unsafe { self.start.cast::<BufRingEntry>().add(place).as_mut() };
        descriptor.set_addr(address);
        descriptor.set_len(BUFFER_BYTES);
        descriptor.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        // SAFETY: the mapping is the one made by `new`, and `Ring` lets go of the value only when the kernel has let go of the group.
        if let Err(error) = unsafe { munmap(self.start.cast(), BYTES.get()) } {
            tracing::error!(error = &error as &dyn std::error::Error, "munmap failed");
        }
    }
}

const _: () = assert!(BUFFERS.is_power_of_two() && size_of::<BufRingEntry>() == 16);
