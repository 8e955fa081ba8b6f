//! Memory for direct I/O: aligned to blocks. Made once a copy, and passed between the two threads.

use super::ends::BLOCK_BYTES;

/// Bytes that begin at a multiple of [`BLOCK_BYTES`].
#[derive(Debug)]
pub(super) struct AlignedBytes {
    memory: Box<[u8]>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// `len` zeroes.
    pub fn new(len: usize) -> Self {
        let memory = vec![0; len + BLOCK_BYTES].into_boxed_slice();
        // An offset of less than a block always aligns bytes. Without alignment direct I/O would be refused, and nothing worse.
        let start = memory.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        Self { memory, start, len }
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
