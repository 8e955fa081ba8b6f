//! What a copy reads from and writes to.
//!
//! Does not own files, devices or pipes: `disk` and `stream` implement the two traits.

use std::io;
use std::ops::Range;

use super::fault::CopyError;

/// Zeroes and equal bytes are looked for in blocks of this many bytes; it is also the unit of holes and of direct I/O.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Bytes that are read at once.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// What a source holds from some offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// This many zeroes, 1 at least; they may reach beyond the end.
    Zeroes(u64),
    /// This many bytes were read, 1 at least.
    Data(usize),
}

/// What is copied. It is asked for one piece after the other, from offset 0 to its length without gaps.
pub(super) trait Source: Send {
    /// Tells what is at `offset`, a multiple of [`BLOCK_BYTES`]: data goes into `buffer`, which does not reach beyond the end.
    /// A piece that does not reach the end is a multiple of [`BLOCK_BYTES`] long.
    fn next(&mut self, offset: u64, buffer: &mut [u8]) -> Result<Piece, CopyError>;

    /// Checks, after the last piece, that the source is still what it was.
    fn finish(&mut self) -> Result<(), CopyError>;
}

/// Where to.
pub(super) trait Target: Send {
    /// The first offset, not before `offset`, where there may be something else than zeroes; none before `end` otherwise.
    fn next_data(&mut self, offset: u64, end: u64) -> io::Result<Option<u64>>;

    /// Fills `buffer` with what is there.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes`.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes `range` read as zeroes, and takes no space for it if it can.
    fn zero(&mut self, range: Range<u64>) -> io::Result<()>;

    /// Makes all of it survive loss of power.
    fn sync(&mut self) -> io::Result<()>;
}

/// The start of the block that `offset` is in.
pub(super) const fn block_start(offset: u64) -> u64 {
    offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
}
