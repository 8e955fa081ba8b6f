//! Memory for reads of the disk: buffers on the heap, outside the worker's arena.
//!
//! Owns the bound: all buffers together, those in use and those kept for later reads, never exceed [`READ_BYTES_MAX`]. Does not own
//! the reads which wait for memory. A kept buffer is taken by a read of about the same size, so reads in a steady state allocate
//! nothing.

use crate::units::{FRAME_BYTES, REQUEST_BYTES_MAX};

/// Most memory of a worker for reads of the disk: 15 of the largest reads, or 32 of up to 64 KiB.
pub const READ_BYTES_MAX: usize = 2 << 20;
/// Sizes of buffers, frames. The largest request has a frame more than its data where the data begins inside a frame.
const SIZES_FRAMES: [usize; 5] = [1, 4, 8, 16, REQUEST_BYTES_MAX / FRAME_BYTES + 1];

const _: () = assert!(SIZES_FRAMES[4] * FRAME_BYTES <= READ_BYTES_MAX, "the largest read fits alone");

/// The buffers of one worker.
#[derive(Debug, Default)]
pub(super) struct ReadBuffers {
    /// Kept buffers of each size.
    kept: [Vec<Vec<u8>>; SIZES_FRAMES.len()],
    held_bytes: usize,
}

impl ReadBuffers {
    /// Bytes of all buffers, in use and kept.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// A buffer of `bytes` bytes, at most those of the largest size. `None` while the buffers in use leave no room.
    pub fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let size = size_for(bytes)?;
        let capacity = SIZES_FRAMES[size] * FRAME_BYTES;
        let mut buffer = match self.kept[size].pop() {
            Some(buffer) => buffer,
            None => {
                self.make_room(capacity)?;
                self.held_bytes += capacity;
                Vec::with_capacity(capacity)
            }
        };
        buffer.resize(bytes, 0);
        Some(buffer)
    }

    pub fn give(&mut self, buffer: Vec<u8>) {
        match SIZES_FRAMES.iter().position(|frames| frames * FRAME_BYTES == buffer.capacity()) {
            Some(size) => self.kept[size].push(buffer),
            None => debug_assert!(false, "a buffer of {} bytes came back", buffer.capacity()),
        }
    }

    /// Lets go of kept buffers until there is room for `bytes` bytes more, the largest buffers first.
    fn make_room(&mut self, bytes: usize) -> Option<()> {
        while self.held_bytes + bytes > READ_BYTES_MAX {
            let buffer = self.kept.iter_mut().rev().find_map(Vec::pop)?;
            self.held_bytes -= buffer.capacity();
        }
        Some(())
    }
}

/// The smallest size that holds `bytes` bytes.
fn size_for(bytes: usize) -> Option<usize> {
    SIZES_FRAMES.iter().position(|frames| bytes <= frames * FRAME_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LARGEST: usize = REQUEST_BYTES_MAX + FRAME_BYTES;

    proptest! {
        #[test]
        fn buffers_stay_within_the_bound_and_the_largest_read_always_fits_alone(
            steps in prop::collection::vec((any::<bool>(), 1..=LARGEST, any::<prop::sample::Index>()), 1..300),
        ) {
            let (mut buffers, mut in_use) = (ReadBuffers::default(), Vec::new());
            for (takes, bytes, index) in steps {
                if takes {
                    let taken = buffers.take(bytes);
                    prop_assert!(taken.is_some() || !in_use.is_empty());
                    prop_assert!(taken.as_ref().is_none_or(|buffer| buffer.len() == bytes));
                    in_use.extend(taken);
                } else if !in_use.is_empty() {
                    buffers.give(in_use.swap_remove(index.index(in_use.len())));
                }
                let used: usize = in_use.iter().map(Vec::capacity).sum();
                let kept: usize = buffers.kept.iter().flatten().map(Vec::capacity).sum();
                prop_assert_eq!(used + kept, buffers.held_bytes());
                prop_assert!(buffers.held_bytes() <= READ_BYTES_MAX);
            }
        }
    }

    #[test]
    fn a_buffer_given_back_is_taken_by_the_next_read_of_the_size() {
        let mut buffers = ReadBuffers::default();
        let first = buffers.take(3 * FRAME_BYTES).unwrap();
        let address = first.as_ptr();
        buffers.give(first);
        assert_eq!(buffers.take(4 * FRAME_BYTES).map(|buffer| buffer.as_ptr()), Some(address));
        assert!(buffers.take(LARGEST + 1).is_none());
    }
}
