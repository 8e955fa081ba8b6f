//! The two ends of a copy: sources and targets.
//!
//! Does not own files, devices or pipes: `raw_file` and `stream` implement the two traits.

use std::io;
use std::ops::Range;

use super::fault::CopyError;

/// The unit of looking for zeroes and equal bytes, of holes, and of direct I/O.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Bytes of one read.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// The content of a source from some offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyPiece {
    /// This many zeroes, 1 at least. The zeroes may reach beyond the end.
    Zeroes(u64),
    /// This many bytes were read, 1 at least.
    Data(usize),
}

/// The source of a copy. The copy asks for one piece after the other, from offset 0 to the end without gaps.
pub(super) trait CopySource: Send {
    /// Returns the piece at `offset`, a multiple of [`BLOCK_BYTES`]. Data goes into `buffer`, which does not reach beyond the end.
    /// A piece that does not reach the end is a multiple of [`BLOCK_BYTES`] long.
    fn next(&mut self, offset: u64, buffer: &mut [u8]) -> Result<CopyPiece, CopyError>;

    /// Checks, after the last piece, that the source did not change its length.
    fn finish(&mut self) -> Result<(), CopyError>;
}

pub(super) trait CopyTarget: Send {
    /// The first offset, from `offset` on and before `end`, where the target may hold other bytes than zeroes.
    fn next_data(&mut self, offset: u64, end: u64) -> io::Result<Option<u64>>;

    /// Fills `buffer` with the target's bytes at `offset`.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes `range` read as zeroes, as a hole if possible.
    fn zero(&mut self, range: Range<u64>) -> io::Result<()>;

    /// Makes all writes survive loss of power.
    fn sync(&mut self) -> io::Result<()>;
}

/// The start of the block around `offset`.
pub(super) const fn block_start(offset: u64) -> u64 {
    offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
}
