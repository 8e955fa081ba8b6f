//! What the store reads of a cut: its extents, the verified bytes of each, and the sectors without content.
//!
//! Owns the reading, and the decision that an unreadable frame is lost. Does not own when a cut is made or ends. Invariants:
//! bytes that are not on this host any more are an error or damage, never zeroes; where the newest content of a sector is lost,
//! the sector is damaged in the store as well, and no older content takes the sector.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::cache::keeper::sealing;
use crate::cache::log::format::frame_crc;
use crate::cache::log::scan::{is_of_the_medium, offset, read_again};
use crate::cache::log::sums::Verdict;
use crate::cache::log::table::{Place, Stability, frames_of};
use crate::cache::shared::Shared;
use crate::cache::verify::compare;
use crate::cache::volume::Volume;
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Extent, Piece};
use crate::cache::volume::store_link::StoreLink;
use crate::locks::MutexExt;
use crate::store::BoxError;
use crate::store::volume::{CutExtent, CutSource};
use crate::units::{FRAME_BYTES, FRAME_SECTORS, SECTOR_BYTES, SectorRange, Seq};

/// What to do about a frame that the disk does not read. A frame that does not match the checksum is lost in both cases.
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
    /// The cut stands for all data that is not in the store, and not for the first cut of the volume.
    all: bool,
    on_unread: OnUnread,
    /// The store has content up to this number, from an earlier life of the daemon. If some of the content is lost here, the cut
    /// has no use.
    stored: Seq,
    /// Some of that content is lost.
    lost_stored: AtomicBool,
    /// Sectors of lost content: first sector, and number of sectors. Whole between its own calls, as `unread` is.
    lost: Mutex<BTreeMap<u64, u64>>,
    /// Segment numbers and frames given up because the disk did not read the frame.
    unread: Mutex<Vec<(u32, u32)>>,
}

impl Cut {
    /// The first cut of `volume`, made at `seq`; the cut is complete.
    pub(super) fn new(shared: Arc<Shared>, volume: Arc<Volume>, seq: Seq, on_unread: OnUnread) -> Self {
        let found = volume.cut_extents();
        let stored = volume.store_link().and_then(StoreLink::unnoted).unwrap_or_default();
        // Content given up since the last look. A doubt about later content goes on, whatever the store has.
        let is_lost = |extent: &Extent| extent.seq <= stored && !is_whole(extent, None);
        let has_lost = volume.doubt().is_none() && found.iter().any(is_lost);
        Self {
            on_unread,
            stored,
            lost_stored: AtomicBool::new(has_lost),
            ..Self::of(shared, volume, seq, &found)
        }
    }

    /// A cut at `seq` of `volume` without changes.
    pub(super) fn empty(shared: Arc<Shared>, volume: Arc<Volume>, seq: Seq) -> Self {
        Self::of(shared, volume, seq, &[])
    }

    /// All data of `volume` that is not in the store. The volume may not be written to any more. A frame that the disk does not
    /// read is given up in this copy only: the volume keeps the frame.
    pub fn all(shared: Arc<Shared>, volume: Arc<Volume>) -> Self {
        let (seq, dirty) = volume.dirty();
        Self { all: true, ..Self::of(shared, volume, seq, &dirty) }
    }

    fn of(shared: Arc<Shared>, volume: Arc<Volume>, seq: Seq, found: &[Extent]) -> Self {
        // A cut at or after the doubt ends the doubt, because the cut has all newer writes.
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
            stored: Seq(0),
            lost_stored: AtomicBool::new(false),
            lost: Mutex::new(lost),
            unread: Mutex::default(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.extents.is_empty() && !self.has_losses()
    }

    /// Whether content is known to be lost, as far as the cut was read until now.
    pub fn has_losses(&self) -> bool {
        !self.lost.lock_whole().is_empty()
    }

    /// Whether the cut has no use because content is lost here, which the store has.
    pub fn has_lost_stored(&self) -> bool {
        self.lost_stored.load(Ordering::Acquire)
    }

    /// Copies the bytes of `piece` to `out`, a buffer of the same length. The bytes of lost frames are undefined.
    fn copy(&self, piece: &Piece, out: &mut [u8]) -> Result<(), IoError> {
        let (number, sector) = match piece.backing {
            Some(Backing::Data { number, sector }) => (number, sector),
            // The frame was given up after the cut was made.
            Some(Backing::Damaged { .. } | Backing::Doubt { .. }) => {
                self.leave_to_store(piece)?;
                self.lose(piece.range);
                return Ok(());
            }
            Some(Backing::Zero { .. }) => {
                out.fill(0);
                return Ok(());
            }
            // An extent of a cut has content for as long as the cut exists: so the volume was removed, or the cut was taken back.
            None if self.volume.is_removed() => return Err(IoError::Removed(self.volume.id())),
            None => return Err(IoError::Unreadable),
        };
        let (first, frames) = frames_of(sector, piece.range.count());
        let mut buffer = vec![0; frames as usize * FRAME_BYTES];
        let read = self.read_frames(number, first, &mut buffer);
        if read.is_err() || self.compare(number, first, &buffer) != Verdict::Right {
            // Each frame by itself: one bad frame must not make its neighbours lost.
            for (frame, bytes) in (first..).zip(buffer.chunks_exact_mut(FRAME_BYTES)) {
                let read = self.read_frame(number, frame, bytes);
                if read != Ok(Ok(())) {
                    self.leave_to_store(piece)?;
                }
                if let Err(reason) = read? {
                    self.lose_frame(piece, sector, (number, frame), reason);
                }
            }
        }
        // Fewer bytes than a frame has.
        let skip = usize::try_from(u64::from(sector) % FRAME_SECTORS * SECTOR_BYTES).unwrap_or(0);
        let bytes = buffer.get(skip..skip.saturating_add(out.len())).ok_or(IoError::TooLarge)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    /// Fails where the store has the content of `piece`, which is lost here.
    fn leave_to_store(&self, piece: &Piece) -> Result<(), IoError> {
        if piece.seq > self.stored {
            return Ok(());
        }
        self.lost_stored.store(true, Ordering::Release);
        Err(IoError::Unreadable)
    }

    fn read_frames(&self, number: u32, first: u32, buffer: &mut [u8]) -> io::Result<()> {
        let closed = || io::Error::from(io::ErrorKind::NotFound);
        self.shared.table.get(number).file().ok_or_else(closed)?.read_at(buffer, offset(first))
    }

    /// Compares `buffer` with the checksums. `buffer` begins with frame `first` of segment `number`.
    fn compare(&self, number: u32, first: u32, buffer: &[u8]) -> Verdict {
        let crcs: Vec<u32> = buffer.chunks_exact(FRAME_BYTES).map(frame_crc).collect();
        compare(&self.shared, number, first, &crcs)
    }

    /// Reads one frame, several times if the disk fails; the inner error says why the frame is lost.
    fn read_frame(
        &self,
        number: u32,
        frame: u32,
        bytes: &mut [u8],
    ) -> Result<Result<(), &'static str>, IoError> {
        let file = self.shared.table.get(number).file().ok_or(IoError::Read)?;
        let mut read = read_again(&**file, bytes, offset(frame));
        if read.is_ok() && matches!(self.compare(number, frame, bytes), Verdict::Wrong(_)) {
            // Perhaps only the copy in the page cache is wrong. Where the disk itself does not answer, nobody knows. A mapped page
            // would stay.
            drop(self.shared.table.get(number).set_mapping(None));
            read = file.read_from_disk(bytes, offset(frame));
        }
        let error = match read.map(|()| self.compare(number, frame, bytes)) {
            Ok(Verdict::Right) => return Ok(Ok(())),
            Ok(Verdict::Wrong(_)) => {
                self.shared.figures.corrupt_frames.fetch_add(1, Ordering::Relaxed);
                return Ok(Err("the data does not match its checksum"));
            }
            // Bytes without a checksum are as good as bytes which the disk does not read.
            Ok(Verdict::Missing(_)) => io::Error::from_raw_os_error(libc::ENODATA),
            Err(error) => error,
        };
        if self.on_unread == OnUnread::GiveUp && is_of_the_medium(&error) {
            self.shared.figures.lost_frames.fetch_add(1, Ordering::Relaxed);
            self.unread.lock_whole().push((number, frame));
            return Ok(Err("the disk does not read the frame"));
        }
        let file = self.shared.disk.segment_name(number);
        tracing::error!(
            file,
            offset_bytes = offset(frame),
            error = &error as &dyn Error,
            "reading data to write back failed"
        );
        Err(IoError::Read)
    }

    /// Notes the loss of the part of `piece` in frame `frame`; `piece` begins at `sector` of segment `number`.
    fn lose_frame(&self, piece: &Piece, sector: u32, (number, frame): (u32, u32), reason: &'static str) {
        let begin = (u64::from(frame) * FRAME_SECTORS).saturating_sub(u64::from(sector));
        let end = (u64::from(frame) * FRAME_SECTORS + FRAME_SECTORS).saturating_sub(u64::from(sector));
        let start = piece.range.start().saturating_add(begin);
        let count = end.min(piece.range.count()).saturating_sub(begin);
        let Some(range) = SectorRange::new(start, count) else { return };
        self.lose(range);
        // A cut is read again for each try to write the cut back, and would log the loss each time.
        let Some(suppressed) = self.volume.bad_writebacks.pass() else { return };
        tracing::error!(
            export = self.volume.id().0,
            first_sector = range.start(),
            sectors = range.count(),
            file = self.shared.disk.segment_name(number),
            offset_bytes = offset(frame),
            reason,
            suppressed,
            "data that has to be written back is lost: these sectors fail, in the store as well, until written again or discarded"
        );
    }

    fn lose(&self, range: SectorRange) {
        let mut lost = self.lost.lock_whole();
        let count = lost.entry(range.start()).or_default();
        *count = range.count().max(*count);
    }
}

/// Whether `extent` has content that can be relied on. With a doubt, only writes after the doubt can be.
fn is_whole(extent: &Extent, doubt: Option<Seq>) -> bool {
    !matches!(extent.backing, Backing::Damaged { .. }) && doubt.is_none_or(|doubt| extent.seq > doubt)
}

/// The losses known before any frame is read: extents of `found` without content; and, with a `doubt`, all sectors before the
/// sector where the doubt ends, except for extents of `found` that are newer than the doubt. `found` is in ascending order. The
/// keys are first sectors, the values numbers of sectors.
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

    fn settled(&self) -> BoxFuture<'_, Result<(), BoxError>> {
        async move { Ok(make_stable(&self.shared, &self.volume).await?) }.boxed()
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
        self.lost.lock_whole().iter().filter_map(|(start, count)| SectorRange::new(*start, *count)).collect()
    }

    fn may_come_back(&self) -> bool {
        !self.unread.lock_whole().is_empty()
    }

    fn has_come_back(&self) -> bool {
        let unread = self.unread.lock_whole().clone();
        let mut bytes = vec![0; FRAME_BYTES];
        unread.into_iter().any(|(number, frame)| {
            let read = self.read_frames(number, frame, &mut bytes);
            read.is_ok() && self.compare(number, frame, &bytes) == Verdict::Right
        })
    }
}

/// Syncs the segments appended to by `volume` until all appended data is stable, which may be more than the data of a cut.
///
/// # Errors
/// [`IoError::Sync`] when some of the data is not stable after a sync. The keeper writes such data once more.
async fn make_stable(shared: &Arc<Shared>, volume: &Volume) -> Result<(), IoError> {
    let mut needs = Vec::new();
    volume.unsynced(&shared.table, &mut needs)?;
    for place in needs {
        sync_to(shared, place).await?;
    }
    volume.unsynced(&shared.table, &mut Vec::new())
}

/// Waits until `place` is stable. A thread is taken only where nobody else has the file, and the file only on that thread; so whoever waits
/// here holds up no other sync, even while there is no thread.
async fn sync_to(shared: &Arc<Shared>, place: Place) -> Result<(), IoError> {
    loop {
        // Begun before the look, so that no end of a sync after the look is missed.
        let next_sync = shared.next_sync();
        if place.stability(&shared.table) != Stability::Unsynced {
            return Ok(());
        }
        if shared.table.get(place.number).is_file_held() {
            // Somebody else is syncing the file.
            next_sync.await;
            continue;
        }
        let on_thread = Arc::clone(shared);
        let synced = tokio::task::spawn_blocking(move || sealing::sync(&on_thread, place.number));
        // Fails only when the runtime ends.
        match synced.await.unwrap_or(Some(false)) {
            Some(true) => {}
            Some(false) => return Err(IoError::Sync),
            // Somebody else was first.
            None => next_sync.await,
        }
    }
}
