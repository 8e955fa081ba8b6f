//! A WRITE as it enters the shard: checked, with a buffer of whole frames, and into one of the lanes.
//!
//! Does not own what a lane does with the WRITE (`append`, `through`).

use std::sync::Arc;

use super::append::{release, room_of, take};
use super::request::{Reservation, Token, WriteSums};
use super::state::{Pending, WRITE_FRAMES_MAX};
use super::{Shard, through};
use crate::cache::volume::Volume;
use crate::cache::volume::error::IoError;
use crate::units::{FRAME_BYTES, SectorRange};

impl<T: Token> Shard<T> {
    /// Takes a WRITE of `range`, 1 byte to [`crate::units::REQUEST_BYTES_MAX`], from the token's buffer, and adds
    /// the WRITE to the open batch. The bytes of the buffer after the range, up to the end of the range's last frame, are
    /// overwritten with zeroes. With `fua` the token comes back when the data survives a power cut.
    pub fn write(
        &mut self,
        volume: &Arc<Volume>,
        range: SectorRange,
        fua: bool,
        reservation: Reservation,
        token: T,
    ) {
        self.write_summed(volume, range, fua, reservation, (token, None));
    }

    /// As [`Self::write`]. Where `sums` are given, these are of the bytes in the buffer, and the bytes after the range are zeroes.
    pub fn write_summed(
        &mut self,
        volume: &Arc<Volume>,
        range: SectorRange,
        fua: bool,
        reservation: Reservation,
        (token, sums): (T, Option<WriteSums>),
    ) {
        let Some(mut token) = self.enter(volume, token) else { return self.cancel(reservation) };
        let room = reservation.room;
        let bytes = range.bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
        let frames = bytes.div_ceil(FRAME_BYTES);
        let fits = frames > 0 && frames <= WRITE_FRAMES_MAX && token.buffer().len() >= frames * FRAME_BYTES;
        if !fits || room_of(bytes).frames > room.frames {
            release(self, room);
            self.finish(token, Err(IoError::TooLarge));
            return;
        }
        let crcs = sums.and_then(|sums| sums.of(frames));
        if crcs.is_none() {
            // The checksum covers the padding, and must not depend on the former content of the buffer.
            token.buffer()[bytes..frames * FRAME_BYTES].fill(0);
        }
        let volume = Arc::clone(volume);
        let pending = Pending { token, volume, range, frames, entries: 1, crcs, fua, room };
        if let Err(pending) = through::join(self, pending) {
            take(self, pending);
        }
    }
}
