//! Pipes as source and target of a copy: standard input and output.
//!
//! Invariant: a source shorter than the export is followed by zeroes, and a longer source is an error.

use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use std::path::Path;

use super::ends::{BLOCK_BYTES, CopyPiece, CopySource, CopyTarget};
use super::fault::{CopyError, read_error};

/// A reader, read to the end.
#[derive(Debug)]
pub(super) struct Input<R> {
    reader: R,
    /// Bytes delivered so far.
    length_bytes: u64,
    has_ended: bool,
}

impl<R: Read> Input<R> {
    pub const fn new(reader: R) -> Self {
        Self { reader, length_bytes: 0, has_ended: false }
    }
}

impl<R: Read + Send> CopySource for Input<R> {
    fn next(&mut self, offset: u64, buffer: &mut [u8]) -> Result<CopyPiece, CopyError> {
        let bytes = if self.has_ended {
            0
        } else {
            fill(&mut self.reader, buffer).map_err(|e| read_error(offset, e))?
        };
        self.has_ended = bytes < buffer.len();
        self.length_bytes = offset + bytes as u64;
        if bytes == 0 {
            return Ok(CopyPiece::Zeroes(u64::MAX));
        }
        let padded = bytes.next_multiple_of(BLOCK_BYTES).min(buffer.len());
        buffer[bytes..padded].fill(0);
        Ok(CopyPiece::Data(padded))
    }

    fn finish(&mut self) -> Result<(), CopyError> {
        let length_bytes = self.length_bytes;
        if self.has_ended {
            return Ok(());
        }
        match fill(&mut self.reader, &mut [0]).map_err(|error| read_error(length_bytes, error))? {
            0 => Ok(()),
            _ => Err(CopyError::TooLong { length_bytes }),
        }
    }
}

/// Reads until `buffer` is full or the reader ends; returns the number of bytes.
pub(super) fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A writer of bytes in order. Of the operations of a [`CopyTarget`] only writing works.
#[derive(Debug)]
pub(super) struct Out<W>(pub W);

impl<W: Write + Send> CopyTarget for Out<W> {
    fn next_data(&mut self, _: u64, _: u64) -> io::Result<Option<u64>> {
        Err(ErrorKind::Unsupported.into())
    }

    fn read_at(&mut self, _: &mut [u8], _: u64) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn write_at(&mut self, bytes: &[u8], _: u64) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn zero(&mut self, _: Range<u64>) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// `path` in messages: `standard` for standard input or output.
pub(super) fn spoken(path: &Path, standard: &str) -> String {
    if is_standard(path) { standard.into() } else { path.display().to_string() }
}

/// Whether `path` stands for standard input or output.
pub(super) fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}
