//! Memory that direct I/O takes: aligned to blocks. Made once a copy, and passed to and fro.

use super::ends::BLOCK_BYTES;

/// A run of bytes that begins at a multiple of [`BLOCK_BYTES`].
#[derive(Debug)]
pub(super) struct Buffer {
    memory: Box<[u8]>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// A buffer of `len` zeroes.
    pub fn new(len: usize) -> Self {
        let memory = vec![0; len + BLOCK_BYTES].into_boxed_slice();
        // Bytes can always be aligned, by less than a block; were it not so, direct I/O would be refused and nothing worse.
        let start = memory.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        Self { memory, start, len }
    }

    /// How many bytes it has.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
