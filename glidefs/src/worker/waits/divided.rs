//! A large WRITE while its data is taken in pieces, so that other exports need not wait for all of the data.
//!
//! Owns how far the data of one WRITE has come: copied from the client, with checksums. Does not own whether a WRITE is divided
//! (`worker/company`), nor when the next piece is taken (`ready`). Invariants: the cache learns of the WRITE when all of the data is
//! there, so nothing of a divided WRITE can be seen before; the WRITE has log space and a buffer, and waits for nothing but this
//! worker.

use std::io;

use crate::cache::{Reservation, WriteSums};
use crate::units::{FRAME_BYTES, PIECE_BYTES};
use crate::worker::queues::Queues;
use crate::worker::requests::{RequestBuffer, TagRequest};

/// A WRITE with data to be taken.
pub struct Divided {
    pub reservation: Reservation,
    pub buffer: RequestBuffer,
    pub sums: WriteSums,
    /// Number of bytes taken so far.
    taken: usize,
}

impl Divided {
    pub fn new(reservation: Reservation, buffer: RequestBuffer) -> Self {
        Self { reservation, buffer, sums: WriteSums::default(), taken: 0 }
    }

    /// Takes the next piece of the data of `request`. Returns whether all of the data is there.
    pub fn take_piece(&mut self, queues: &Queues, request: &TagRequest) -> io::Result<bool> {
        let bytes = request.data_bytes();
        let end = bytes.min(self.taken + PIECE_BYTES);
        copy_in(queues, request, &mut self.buffer, self.taken, end)?;
        let frames_end = end.next_multiple_of(FRAME_BYTES);
        let piece = &mut self.buffer.bytes()[self.taken..frames_end];
        piece[end - self.taken..].fill(0);
        self.sums.add(piece);
        self.taken = end;
        Ok(end == bytes)
    }
}

/// Copies the bytes `start..end` of a WRITE to the request's slot. A tag's own buffer has the data already.
pub fn copy_in(
    queues: &Queues,
    request: &TagRequest,
    buffer: &mut RequestBuffer,
    start: usize,
    end: usize,
) -> io::Result<()> {
    let RequestBuffer::Slot(slot) = buffer else { return Ok(()) };
    let tag = request.tag;
    let (driver, piece) = (&queues.of(tag).driver, &mut slot[start..end]);
    match driver.stable_buffer(tag.tag) {
        Some(stable) => {
            piece.copy_from_slice(&RequestBuffer::Stable(stable).bytes()[start..end]);
            Ok(())
        }
        None => driver.copy_in(tag.tag, start, piece),
    }
}
