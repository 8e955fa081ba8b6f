//! A cut as the store reads it: its extents, their bytes out of the segments, verified, and which sectors have none any more.
//!
//! Owns the reading, and when an unreadable frame counts as lost. Does not own when a cut is made or ends. Invariants: bytes that
//! are not here any more are an error or damage, never zeroes; a sector of which the newest content is lost is damaged in the
//! store as well, and nothing older takes its place.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cache::log::format::frame_crc;
use crate::cache::log::scan::{is_of_the_medium, offset, read_again};
use crate::cache::log::table::frames_of;
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Extent, Piece};
use crate::store::volume::{CutExtent, CutSource};
use crate::units::{FRAME_BYTES, FRAME_SECTORS, SECTOR_BYTES, SectorRange, Seq};

/// What becomes of a frame that the disk does not read. A frame that does not match its checksum is lost either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnUnread {
    /// The cut fails: the disk may read the frame later.
    Fail,
    /// The frame is lost.
    GiveUp,
}

/// One cut of one volume.
#[derive(Debug)]
pub(in crate::cache) struct Cut {
    shared: Arc<Shared>,
    volume: Arc<Volume>,
    seq: Seq,
    extents: Vec<CutExtent>,
    /// Whether all that is not in the store is meant, and not what the volume's cut holds.
    all: bool,
    on_unread: OnUnread,
    /// Sectors whose content is lost: how many from which on.
    lost: Mutex<BTreeMap<u64, u64>>,
    /// Segments and frames that were given up because the disk did not read them.
    unread: Mutex<Vec<(u32, u32)>>,
}

impl Cut {
    /// The cut at `seq` of `volume`, which is complete and stable.
    pub(super) fn new(shared: Arc<Shared>, volume: Arc<Volume>, seq: Seq, on_unread: OnUnread) -> Self {
        let found = volume.cut_extents();
        Self { on_unread, ..Self::of(shared, volume, seq, &found) }
    }

    /// A cut at `seq` of `volume` that changes nothing.
    pub(super) fn empty(shared: Arc<Shared>, volume: Arc<Volume>, seq: Seq) -> Self {
        Self::of(shared, volume, seq, &[])
    }

    /// Everything of `volume` that is not in the store. Nothing may be written to the volume any more. What the disk does not read
    /// is given up in the copy only: the volume keeps it.
    pub fn all(shared: Arc<Shared>, volume: Arc<Volume>) -> Self {
        let (seq, dirty) = volume.dirty();
        Self { all: true, ..Self::of(shared, volume, seq, &dirty) }
    }

    fn of(shared: Arc<Shared>, volume: Arc<Volume>, seq: Seq, found: &[Extent]) -> Self {
        // A doubt is ended by a cut that goes as far, which has all that is newer.
        let doubt = volume.doubt().filter(|(doubt, _)| *doubt <= seq);
        let lost = known_losses(found, doubt);
        let whole = found.iter().filter(|extent| is_whole(extent, doubt.map(|(seq, _)| seq)));
        let extents = whole.map(described).collect();
        let on_unread = OnUnread::GiveUp;
        Self {
            shared,
            volume,
            seq,
            extents,
            all: false,
            on_unread,
            lost: Mutex::new(lost),
            unread: Mutex::default(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.extents.is_empty() && !self.has_losses()
    }

    /// Whether content was lost, as far as the cut was read.
    pub fn has_losses(&self) -> bool {
        !self.lost().is_empty()
    }

    fn lost(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        // A map is whole between its own calls.
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unread(&self) -> MutexGuard<'_, Vec<(u32, u32)>> {
        // A list is whole between its own calls.
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the bytes of `piece` to `out`, which is as long; those of frames that are lost mean nothing.
    fn copy(&self, piece: &Piece, out: &mut [u8]) -> Result<(), IoError> {
        let (number, sector) = match piece.backing {
            Some(Backing::Data { number, sector }) => (number, sector),
            // The frame was given up since the cut was made.
            Some(Backing::Damaged { .. } | Backing::Doubt { .. }) => {
                self.lose(piece.range);
                return Ok(());
            }
            Some(Backing::Zero { .. }) => {
                out.fill(0);
                return Ok(());
            }
            // An extent of the cut has content for as long as the cut: the volume was removed, or the cut was taken back.
            None if self.volume.is_removed() => return Err(IoError::Removed(self.volume.id())),
            None => return Err(IoError::Unreadable),
        };
        let (first, frames) = frames_of(sector, piece.range.count());
        let mut buffer = vec![0; frames as usize * FRAME_BYTES];
        let read = self.read_frames(number, first, &mut buffer);
        if read.is_err() || self.first_bad(number, first, &buffer).is_some() {
            // One frame must not take those beside it.
            for (frame, bytes) in (first..).zip(buffer.chunks_exact_mut(FRAME_BYTES)) {
                if let Err(reason) = self.read_frame(number, frame, bytes)? {
                    self.lose_frame(piece, sector, (number, frame), reason);
                }
            }
        }
        // Less than a frame.
        let skip = usize::try_from(u64::from(sector) % FRAME_SECTORS * SECTOR_BYTES).unwrap_or(0);
        let bytes = buffer.get(skip..skip.saturating_add(out.len())).ok_or(IoError::TooLarge)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn read_frames(&self, number: u32, first: u32, buffer: &mut [u8]) -> io::Result<()> {
        let closed = || io::Error::from(io::ErrorKind::NotFound);
        self.shared.table.get(number).file().ok_or_else(closed)?.read_at(buffer, offset(first))
    }

    /// The first frame of `buffer`, which begins with frame `first` of segment `number`, that does not match its checksum.
    fn first_bad(&self, number: u32, first: u32, buffer: &[u8]) -> Option<u32> {
        let info = self.shared.table.get(number);
        let mut frames = (first..).zip(buffer.chunks_exact(FRAME_BYTES));
        frames.find(|(frame, bytes)| info.crc(*frame) != Some(frame_crc(bytes))).map(|(frame, _)| frame)
    }

    /// Reads one frame, once more if need be; says why the frame is lost, if so.
    fn read_frame(
        &self,
        number: u32,
        frame: u32,
        bytes: &mut [u8],
    ) -> Result<Result<(), &'static str>, IoError> {
        let file = self.shared.table.get(number).file().ok_or(IoError::Read)?;
        let mut read = read_again(&**file, bytes, offset(frame));
        if read.is_ok() && self.first_bad(number, frame, bytes).is_some() {
            // The copy in the page cache may be what went wrong. Where the disk does not say what it has, nobody knows.
            read = file.read_from_disk(bytes, offset(frame));
        }
        match read {
            Ok(()) if self.first_bad(number, frame, bytes).is_none() => Ok(Ok(())),
            Ok(()) => {
                self.shared.figures.corrupt_frames.fetch_add(1, Ordering::Relaxed);
                Ok(Err("the data does not match its checksum"))
            }
            Err(error) if self.on_unread == OnUnread::GiveUp && is_of_the_medium(&error) => {
                self.shared.figures.lost_frames.fetch_add(1, Ordering::Relaxed);
                self.unread().push((number, frame));
                Ok(Err("the disk does not read it"))
            }
            Err(error) => {
                let file = self.shared.disk.segment_name(number);
                tracing::error!(
                    file,
                    offset_bytes = offset(frame),
                    error = &error as &dyn Error,
                    "reading data to flush failed"
                );
                Err(IoError::Read)
            }
        }
    }

    /// Takes note that what `piece`, which begins at `sector` of its segment, has in a frame is lost.
    fn lose_frame(&self, piece: &Piece, sector: u32, (number, frame): (u32, u32), reason: &'static str) {
        let begin = (u64::from(frame) * FRAME_SECTORS).saturating_sub(u64::from(sector));
        let end = (u64::from(frame) * FRAME_SECTORS + FRAME_SECTORS).saturating_sub(u64::from(sector));
        let start = piece.range.start().saturating_add(begin);
        let count = end.min(piece.range.count()).saturating_sub(begin);
        let Some(range) = SectorRange::new(start, count) else { return };
        self.lose(range);
        // A cut is read again for each try to store it.
        let Some(suppressed) = self.volume.bad_writebacks().pass() else { return };
        tracing::error!(
            export = self.volume.id().0,
            first_sector = range.start(),
            sectors = range.count(),
            file = self.shared.disk.segment_name(number),
            offset_bytes = offset(frame),
            reason,
            suppressed,
            "data that has to be written back is lost: these sectors fail, in the store as well, until they are written again or discarded"
        );
    }

    fn lose(&self, range: SectorRange) {
        let mut lost = self.lost();
        let count = lost.entry(range.start()).or_default();
        *count = range.count().max(*count);
    }
}

/// Whether `extent` has content, where nothing up to `doubt` can be relied on.
fn is_whole(extent: &Extent, doubt: Option<Seq>) -> bool {
    !matches!(extent.backing, Backing::Damaged { .. }) && doubt.is_none_or(|doubt| extent.seq > doubt)
}

/// What is known to be lost before anything is read of `found`, which ascend: what has no content, and in doubt all but what is newer,
/// before the sector where the doubt ends.
fn known_losses(found: &[Extent], doubt: Option<(Seq, u64)>) -> BTreeMap<u64, u64> {
    let empty = found.iter().filter(|extent| !is_whole(extent, None));
    let mut lost: BTreeMap<u64, u64> =
        empty.map(|extent| (extent.range.start(), extent.range.count())).collect();
    let Some((doubt, end)) = doubt else { return lost };
    let mut lose = |from: u64, to: u64| {
        if let Some(count) = to.checked_sub(from).filter(|count| *count > 0) {
            let known = lost.entry(from).or_default();
            *known = count.max(*known);
        }
    };
    let mut at = 0;
    for extent in found.iter().filter(|extent| is_whole(extent, Some(doubt))) {
        lose(at, extent.range.start().min(end));
        at = extent.range.end();
    }
    lose(at, end);
    lost
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
            self.volume.plan(&self.shared.table, range, &mut plan);
        } else {
            self.volume.plan_cut(&self.shared.table, range, &mut plan);
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
            if let Some(Backing::Data { number, .. }) = piece.backing {
                self.shared.table.get(number).unpin();
            }
        }
        Ok(outcome?)
    }

    fn damaged(&self) -> Vec<SectorRange> {
        self.lost().iter().filter_map(|(start, count)| SectorRange::new(*start, *count)).collect()
    }

    fn may_come_back(&self) -> bool {
        !self.unread().is_empty()
    }

    fn has_come_back(&self) -> bool {
        let unread = self.unread().clone();
        let mut bytes = vec![0; FRAME_BYTES];
        unread.into_iter().any(|(number, frame)| {
            let read = self.read_frames(number, frame, &mut bytes);
            read.is_ok() && self.first_bad(number, frame, &bytes).is_none()
        })
    }
}
