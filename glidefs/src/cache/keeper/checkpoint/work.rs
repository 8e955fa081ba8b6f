//! The steps of a checkpoint of the index: the extents in sealed segments, so that the next start need not read their footers.
//!
//! Owns the order of the steps. Does not own the bytes (`log/format/checkpoint`), or why a start may rely on a checkpoint
//! (`recovery/checkpoint`). Invariants: the covered segments are chosen before any extent is gathered; a segment is known by the id,
//! because the number may go to another segment meanwhile; the checkpoint replaces the one before only when everything appended before
//! the end of the gathering is stable; a covered segment has all of its content in the indexes, and on the disk a trailer and sums; no
//! checkpoint is written while the log has a segment that is not stable, or that the disk does not read; while a doubt is in force, no
//! segment is covered.
//!
//! Writes go on meanwhile: an extent which changes during the gathering is also in a segment that is not covered.

use std::io;
use std::sync::Arc;

use super::CheckpointPace;
use crate::cache::keeper::sealing::sync;
use crate::cache::log::disk::CheckpointFile;
use crate::cache::log::format::{
    CoveredSegment, ExtentRows, Head, PageChain, PageKind, encode_end, encode_rows,
};
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::life::State;
use crate::cache::log::table::{Place, SegmentTable, Stability};
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::units::Seq;

/// Room on the disk for one extent, and for one segment, in a checkpoint: more than nearly all extents take.
const EXTENT_BYTES: u64 = 24;
const SEGMENT_BYTES: u64 = 24;

#[derive(Debug)]
pub(super) struct Work {
    file: Box<dyn CheckpointFile>,
    chain: PageChain,
    stage: Stage,
    covered: Vec<CoveredSegment>,
    /// The id of the covered segment of each number; [`NO_ID`] of a number that is not covered.
    covers: Vec<u64>,
    /// Volumes with doubts, ended or in force.
    doubted: Vec<Arc<Volume>>,
    extents: u64,
}

/// No segment has this id.
const NO_ID: u64 = 0;

#[derive(Debug)]
enum Stage {
    /// Choosing the segments, from this number on.
    Choose(u32),
    /// Gathering the extents of volumes, the last one first.
    Gather(Vec<Gathering>),
    /// Waiting until these places are stable.
    Settle(Vec<Place>),
}

/// A volume whose extents are gathered.
#[derive(Debug)]
struct Gathering {
    volume: Arc<Volume>,
    /// The sector to go on from.
    from: u64,
    rows: Option<ExtentRows>,
}

/// Why a checkpoint is given up.
#[derive(Debug)]
pub(super) enum Halt {
    /// The log has a loss, or something is not stable.
    Loss,
    Disk(io::Error),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Made,
    /// Another holder syncs a file.
    Waits,
    Done,
}

impl Work {
    /// Begins a checkpoint beside the one before. While a doubt is in force, the checkpoint covers nothing, and says only which segments
    /// there are: the next start has to notice if one of these is lost.
    pub fn begin(shared: &Shared) -> Result<Box<Self>, Halt> {
        refuse_losses(shared)?;
        refuse_a_full_disk(shared)?;
        let table = &shared.table;
        let mut doubted = shared.all_volumes();
        doubted.retain(|volume| volume.doubted_to() > Seq(0));
        let is_in_doubt = doubted.iter().any(|volume| volume.is_doubted());
        let mut work = Box::new(Self {
            file: shared.disk.begin_checkpoint()?,
            chain: PageChain::new(table.cache_id()),
            stage: Stage::Choose(0),
            covered: Vec::new(),
            covers: vec![NO_ID; table.len()],
            doubted,
            extents: 0,
        });
        let head = Head { segment_bytes: table.segment_bytes(), start: shared.start(), proves_losses: true };
        work.append(PageKind::Head, &head.encode())?;
        if is_in_doubt {
            work.stage = Stage::Settle(places(shared, &work.covers)?);
        }
        Ok(work)
    }

    fn append(&mut self, kind: PageKind, body: &[u8]) -> Result<(), Halt> {
        let page = self.chain.seal(kind, body);
        let page = page.ok_or_else(|| io::Error::other("the checkpoint has too many pages"))?;
        Ok(self.file.append(&page)?)
    }

    pub fn advance(&mut self, shared: &Shared, pace: CheckpointPace) -> Result<Progress, Halt> {
        match &mut self.stage {
            Stage::Choose(from) => {
                let from = *from;
                self.choose(shared, from, pace)
            }
            Stage::Gather(volumes) => {
                let volumes = std::mem::take(volumes);
                self.gather(shared, volumes, pace)
            }
            Stage::Settle(places) => {
                let places = std::mem::take(places);
                self.settle(shared, places)
            }
        }
    }

    /// Chooses some of the segments from number `from` on.
    fn choose(&mut self, shared: &Shared, from: u32, pace: CheckpointPace) -> Result<Progress, Halt> {
        let mut looks = pace.segments.max(1);
        for (number, info) in shared.table.iter().skip(from as usize) {
            if looks == 0 {
                self.stage = Stage::Choose(number);
                return Ok(Progress::Made);
            }
            looks -= 1;
            if let Some(row) = self.row_of(number, info) {
                if let Some(id) = self.covers.get_mut(number as usize) {
                    *id = row.segment_id;
                }
                self.covered.push(row);
            }
        }
        for body in encode_rows(&std::mem::take(&mut self.covered)) {
            self.append(PageKind::Covered, &body)?;
        }
        let mut volumes = shared.all_volumes();
        // The last one is gathered first.
        volumes.sort_unstable_by_key(|volume| std::cmp::Reverse(volume.id().0));
        let gathering = |volume| Gathering { volume, from: 0, rows: None };
        self.stage = Stage::Gather(volumes.into_iter().map(gathering).collect());
        Ok(Progress::Made)
    }

    /// The row of the sealed segment `info`; `None` of a segment that no checkpoint may cover, or that nobody needs.
    fn row_of(&self, number: u32, info: &SegmentInfo) -> Option<CoveredSegment> {
        // Nothing is pinned by zeroes on their way into an index after this, as nothing is appended to a sealed segment.
        let is_settled = info.state() == State::Sealed && !info.is_pinned() && info.extents() > 0;
        // The entries of doubt are read from the segment at each start.
        let has_doubts = || self.doubted.iter().any(|volume| volume.is_doubted_in(number));
        info.covered(number).filter(|_| is_settled && !has_doubts())
    }

    fn gather(
        &mut self,
        shared: &Shared,
        mut volumes: Vec<Gathering>,
        pace: CheckpointPace,
    ) -> Result<Progress, Halt> {
        for _ in 0..pace.slices.max(1) {
            let Some(volume) = volumes.last_mut() else {
                self.stage = Stage::Settle(places(shared, &self.covers)?);
                return Ok(Progress::Made);
            };
            if self.gather_slice(&shared.table, volume, pace.extents)? {
                volumes.pop();
            }
            if shared.is_keeper_needed() {
                break;
            }
        }
        self.stage = Stage::Gather(volumes);
        Ok(Progress::Made)
    }

    /// Gathers a slice of a volume. Returns `true` at the end of the volume.
    fn gather_slice(
        &mut self,
        table: &SegmentTable,
        gathering: &mut Gathering,
        limit: usize,
    ) -> Result<bool, Halt> {
        // Asked under the lock of the volume: a segment with an extent in the volume is not freed, so the id is the segment's.
        let is_covered = |number| covers(&self.covers, number, table.get(number));
        let slice = gathering.volume.slice(gathering.from, limit, is_covered);
        if slice.is_doubted {
            return Err(Halt::Loss);
        }
        let export = gathering.volume.id();
        let mut rows = gathering.rows.take().unwrap_or_else(|| ExtentRows::new(export, slice.last));
        for extent in &slice.extents {
            if !rows.has_room() {
                self.append(PageKind::Extents, rows.body())?;
                rows = ExtentRows::new(export, slice.last);
            }
            if !rows.push(extent) {
                return Err(io::Error::other("an extent that no checkpoint can list").into());
            }
            self.extents = self.extents.saturating_add(1);
        }
        if let Some(next) = slice.next {
            (gathering.from, gathering.rows) = (next, Some(rows));
            return Ok(false);
        }
        if !(rows.is_empty() && slice.last == Seq(0)) {
            self.append(PageKind::Extents, rows.body())?;
        }
        Ok(true)
    }

    /// Makes one of `places` stable that is not yet, and ends the file when all are. A sync may write a whole segment: the keeper has
    /// other work between two.
    fn settle(&mut self, shared: &Shared, places: Vec<Place>) -> Result<Progress, Halt> {
        let table = &shared.table;
        let (mut others, mut waits, mut left) = (Vec::with_capacity(places.len()), Vec::new(), Vec::new());
        let mut has_synced = false;
        for place in places {
            match place.stability(table) {
                Stability::Stable => others.push(place),
                Stability::Lost => return Err(Halt::Loss),
                Stability::Unsynced if has_synced => left.push(place),
                Stability::Unsynced => match sync(shared, place.number) {
                    Some(true) => {
                        has_synced = true;
                        others.push(place);
                    }
                    Some(false) => return Err(Halt::Loss),
                    None => waits.push(place),
                },
            }
        }
        let is_blocked = left.is_empty() && !has_synced;
        left.append(&mut waits);
        if !left.is_empty() {
            left.append(&mut others);
            self.stage = Stage::Settle(left);
            if is_blocked {
                shared.block_keeper_on_sync();
                return Ok(Progress::Waits);
            }
            return Ok(Progress::Made);
        }
        refuse_losses(shared)?;
        others.sort_unstable_by_key(|place| place.number);
        for body in encode_rows(&others) {
            self.append(PageKind::Others, &body)?;
        }
        self.append(PageKind::End, &encode_end(self.extents))?;
        Ok(Progress::Done)
    }

    /// Whether extents are being gathered.
    #[cfg(test)]
    pub fn is_gathering(&self) -> bool {
        matches!(self.stage, Stage::Gather(_))
    }

    /// Puts the checkpoint in the place of the one before.
    pub fn finish(self) -> Result<(), Halt> {
        Ok(self.file.finish()?)
    }
}

/// Fails while the log has a segment with data that is not stable, or that the disk does not read.
fn refuse_losses(shared: &Shared) -> Result<(), Halt> {
    let is_lost = |info: &SegmentInfo| {
        let holds = matches!(info.state(), State::Open | State::Closed | State::Sealed);
        holds && (info.is_poisoned() || info.is_retired())
    };
    if shared.table.iter().any(|(_, info)| is_lost(info)) { Err(Halt::Loss) } else { Ok(()) }
}

/// Fails unless the disk has room for a checkpoint, and for the segment prepared next.
fn refuse_a_full_disk(shared: &Shared) -> Result<(), Halt> {
    let table = &shared.table;
    let extents: u64 = table.iter().map(|(_, info)| u64::from(info.extents())).sum();
    let segments = u64::from(table.limit()).saturating_mul(SEGMENT_BYTES);
    let needed = extents.saturating_mul(EXTENT_BYTES).saturating_add(segments);
    if shared.disk.free_bytes()? < needed.saturating_add(table.segment_bytes()) {
        return Err(io::Error::from(io::ErrorKind::StorageFull).into());
    }
    Ok(())
}

/// Whether the segment `info`, which has the number `number` now, is one of the `covered` ones, whose ids are by number.
fn covers(covered: &[u64], number: u32, info: &SegmentInfo) -> bool {
    let segment_id = info.segment_id();
    segment_id != NO_ID && covered.get(number as usize) == Some(&segment_id)
}

/// The ends of all segments with records that are not covered: everything gathered so far that is not covered lies before.
fn places(shared: &Shared, covered: &[u64]) -> Result<Vec<Place>, Halt> {
    refuse_losses(shared)?;
    let is_other = |(number, info): &(u32, &SegmentInfo)| {
        let holds = matches!(info.state(), State::Open | State::Closed | State::Sealed);
        holds && !covers(covered, *number, info)
    };
    let place = |(number, info): (u32, &SegmentInfo)| Place {
        number,
        segment_id: info.segment_id(),
        end: info.appended(),
    };
    Ok(shared.table.iter().filter(is_other).map(place).collect())
}
