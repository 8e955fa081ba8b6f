//! A cut as the store reads it: its extents, and their bytes out of the segments, verified.
//!
//! Owns the reading. Does not own when a cut is made or ends. Invariant: bytes that are not here any more are an error, never zeroes.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cache::error::IoError;
use crate::cache::format::frame_crc;
use crate::cache::handle::Shared;
use crate::cache::index::{Backing, Extent, Piece};
use crate::cache::slots::frames_of;
use crate::cache::volume::Volume;
use crate::store::volume::{CutExtent, CutSource};
use crate::units::{FRAME_BYTES, FRAME_SECTORS, SECTOR_BYTES, SectorRange, Seq};

/// One cut of one volume.
#[derive(Debug)]
pub(in crate::cache) struct Cut {
    shared: Arc<Shared>,
    volume: Arc<Volume>,
    seq: Seq,
    extents: Vec<CutExtent>,
    /// Whether all that is not in the store is meant, and not what the volume's cut holds.
    all: bool,
}

impl Cut {
    /// The cut at `seq` of `volume`, which is complete and stable.
    pub fn new(shared: Arc<Shared>, volume: Arc<Volume>, seq: Seq) -> Self {
        let extents = volume.cut_extents().iter().map(described).collect();
        Self { shared, volume, seq, extents, all: false }
    }

    /// Everything of `volume` that is not in the store. Nothing may be written to the volume any more.
    pub fn all(shared: Arc<Shared>, volume: Arc<Volume>) -> Self {
        let (seq, dirty) = volume.dirty();
        Self { shared, volume, seq, extents: dirty.iter().map(described).collect(), all: true }
    }

    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Copies the bytes of `piece` to `out`, which is as long.
    fn copy(&self, piece: &Piece, out: &mut [u8]) -> Result<(), IoError> {
        let (number, sector) = match piece.backing {
            Some(Backing::Data { slot, sector }) => (slot, sector),
            Some(Backing::Damaged { .. } | Backing::Doubt { .. }) => return Err(IoError::Damaged),
            Some(Backing::Zero { .. }) => {
                out.fill(0);
                return Ok(());
            }
            // An extent of the cut has content for as long as the cut: the volume was removed, or the cut was taken back.
            None if self.volume.is_removed() => return Err(IoError::Removed(self.volume.id())),
            None => return Err(IoError::Unreadable),
        };
        let slot = self.shared.slots.get(number);
        let (first, frames) = frames_of(sector, piece.range.count());
        let mut buffer = vec![0; frames as usize * FRAME_BYTES];
        let file = slot.file().ok_or(IoError::Read)?;
        file.read_at(&mut buffer, u64::from(first) * FRAME_BYTES as u64).map_err(|error| {
            let file = self.shared.disk.segment_name(number);
            tracing::error!(file, error = &error as &dyn Error, "reading data to flush failed");
            IoError::Read
        })?;
        for (frame, bytes) in (first..).zip(buffer.chunks_exact(FRAME_BYTES)) {
            if slot.crc(frame) != Some(frame_crc(bytes)) {
                self.shared.figures.corrupt_frames.fetch_add(1, Ordering::Relaxed);
                tracing::error!(
                    export = self.volume.id().0,
                    file = self.shared.disk.segment_name(number),
                    offset_bytes = u64::from(frame) * FRAME_BYTES as u64,
                    "cached data does not match its checksum; its export is not flushed until it is written again"
                );
                return Err(IoError::Corrupt);
            }
        }
        // Less than a frame.
        let skip = usize::try_from(u64::from(sector) % FRAME_SECTORS * SECTOR_BYTES).unwrap_or(0);
        let bytes = buffer.get(skip..skip.saturating_add(out.len())).ok_or(IoError::TooLarge)?;
        out.copy_from_slice(bytes);
        Ok(())
    }
}

fn described(extent: &Extent) -> CutExtent {
    let zero = matches!(extent.backing, Backing::Zero { .. });
    CutExtent { range: extent.range, seq: extent.seq, zero }
}

impl CutSource for Cut {
    fn seq(&self) -> Seq {
        self.seq
    }

    fn extents(&self) -> &[CutExtent] {
        &self.extents
    }

    fn read(&self, range: SectorRange, buffer: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut plan = Vec::new();
        if self.all {
            self.volume.plan(&self.shared.slots, range, &mut plan);
        } else {
            self.volume.plan_cut(&self.shared.slots, range, &mut plan);
        }
        let mut outcome = Ok(());
        let mut rest = buffer;
        for piece in plan {
            if outcome.is_ok() {
                outcome = piece
                    .range
                    .bytes()
                    .and_then(|bytes| usize::try_from(bytes).ok())
                    .and_then(|bytes| std::mem::take(&mut rest).split_at_mut_checked(bytes))
                    .ok_or(IoError::TooLarge)
                    .and_then(|(out, behind)| {
                        rest = behind;
                        self.copy(&piece, out)
                    });
            }
            if let Some(Backing::Data { slot, .. }) = piece.backing {
                self.shared.slots.get(slot).unpin();
            }
        }
        Ok(outcome?)
    }
}
