//! The memory of the process, as the kernel and the allocator count the memory; and how the allocator keeps memory.
//!
//! Does not own whose memory it is: each part of the daemon tells the part's own bytes. Invariant: a figure that cannot be had is
//! `None`, never 0.

mod release;

use std::{fs, io};

pub use self::release::{page_bytes, release_heap, release_program};

/// Bytes of a block of the heap besides the payload, and the unit of blocks: those of glibc on 64 bits.
const BLOCK_HEAD_BYTES: usize = 8;
const BLOCK_UNIT_BYTES: usize = 16;
const BLOCK_BYTES_MIN: usize = 32;

/// Memory of the process in RAM, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Of the heap, the stacks and files.
    pub all: u64,
    /// Pages of files: the program, its libraries, and memory shared with the kernel or other processes.
    pub files: u64,
    /// The part of `files` that is locked: segments of the log.
    pub locked: u64,
    /// Not in RAM, but in swap.
    pub swapped: u64,
}

impl Resident {
    /// The memory of this moment.
    pub fn now() -> Option<Self> {
        Self::of(&fs::read_to_string("/proc/self/status").ok()?)
    }

    /// The figures in the text of `/proc/self/status`.
    fn of(status: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(Self {
            all: bytes("VmRSS")?,
            files: bytes("RssFile")?.checked_add(bytes("RssShmem")?)?,
            locked: bytes("VmLck")?,
            swapped: bytes("VmSwap")?,
        })
    }
}

/// Memory that the allocator has from the kernel, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    /// In use by the program.
    pub used: u64,
    /// Freed by the program, and kept by the allocator.
    pub free: u64,
}

impl Heap {
    /// The heap of this moment. The allocator walks through the free blocks, under the lock of each of its arenas: not for the
    /// threads of workers, nor for every scrape.
    #[cfg(target_env = "gnu")]
    pub fn now() -> Option<Self> {
        // SAFETY: mallinfo2 takes no pointers, and glibc locks what the call reads.
        let info = unsafe { libc::mallinfo2() };
        let used = (info.uordblks as u64).checked_add(info.hblkhd as u64)?;
        Some(Self { used, free: info.fordblks as u64 })
    }

    /// Unknown: this libc does not tell.
    #[cfg(not(target_env = "gnu"))]
    pub fn now() -> Option<Self> {
        None
    }
}

/// From this size on a value has pages of its own, which go back to the kernel at once. Without a fixed size glibc learns a size from
/// what is freed, up to 32 MiB, and keeps what is smaller. Buffers of a worker's reads are smaller than this.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 1 << 20;
/// So much free memory at the end of one of glibc's arenas goes back to the kernel with the next free beside it. As glibc has it unless
/// a size is set for anything.
#[cfg(target_env = "gnu")]
const TRIMMED_BYTES: libc::c_int = 128 << 10;

/// `PR_SET_IO_FLUSHER` of `linux/prctl.h` (Linux 5.6). The libc crate has no name for the constant.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Tells the kernel that the calling thread serves block I/O, and every thread which the calling thread makes from now on:
/// allocations of these threads never wait for dirty pages to be written through the devices of this daemon. Needs
/// `CAP_SYS_RESOURCE`.
pub fn set_io_flusher() -> io::Result<()> {
    // SAFETY: PR_SET_IO_FLUSHER takes integers only and touches no memory of this process.
    match unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the allocator give memory back early, in small steps. To be called before the first thread.
///
/// glibc keeps freed blocks of up to 128 bytes apart, and joins all of them in the middle of some later call: with the index of ten
/// million extents 69 ms, while the lock of a volume was held (`scripts/bench-holds`). So no blocks are kept apart.
pub fn tune_allocator() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in
        [(libc::M_MXFAST, 0), (libc::M_MMAP_THRESHOLD, MAPPED_BYTES), (libc::M_TRIM_THRESHOLD, TRIMMED_BYTES)]
    {
        // SAFETY: mallopt takes no pointers, and no other thread allocates yet.
        if unsafe { libc::mallopt(parameter, value) } != 1 {
            tracing::debug!(parameter, value, "the allocator refuses a parameter");
        }
    }
}

/// Bytes of the heap that a value of `payload` bytes takes; 0 for an empty one, which is not on the heap.
pub const fn heap_bytes(payload: usize) -> usize {
    if payload == 0 {
        return 0;
    }
    let block = payload.saturating_add(BLOCK_HEAD_BYTES).next_multiple_of(BLOCK_UNIT_BYTES);
    if block < BLOCK_BYTES_MIN { BLOCK_BYTES_MIN } else { block }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_as_the_kernel_writes_it() {
        let status = "Name:\tglidefs\nVmLck:\t 20 kB\nVmHWM:\t 9 kB\nVmRSS:\t  100 kB\nRssAnon:\t 60 kB\nRssFile:\t 30 kB\nRssShmem:\t 10 kB\n";
        assert_eq!(Resident::of(status), None);
        let with_swap = format!("{status}VmSwap:\t 3 kB\n");
        let expected = Resident { all: 100 << 10, files: 40 << 10, locked: 20 << 10, swapped: 3 << 10 };
        assert_eq!(Resident::of(&with_swap), Some(expected));
        assert_eq!(Resident::of("VmRSS:\t 100 kB\n"), None);
        assert_eq!(Resident::of("VmRSS:\t x kB\nRssFile:\t 1 kB\nRssShmem:\t 1 kB\n"), None);
        assert!(Resident::now().is_some_and(|resident| resident.files > 0 && resident.files < resident.all));
    }

    #[test]
    fn the_heap_shows_an_allocation_while_the_allocation_lives() {
        // Longer than anything other tests may free or take meanwhile.
        const BYTES: usize = 1 << 30;
        let before = Heap::now().unwrap().used;
        let block = std::hint::black_box(Vec::<u8>::with_capacity(BYTES));
        let during = Heap::now().unwrap().used;
        drop(block);
        assert!(during - before > BYTES as u64 / 2, "{before} {during}");
        assert!(Heap::now().unwrap().used < during - BYTES as u64 / 2);
    }

    #[test]
    fn a_block_of_the_heap_has_a_head_and_is_a_multiple_of_its_unit() {
        assert_eq!([0, 1, 24, 25, 40, 41].map(heap_bytes), [0, 32, 32, 48, 48, 64]);
    }
}
