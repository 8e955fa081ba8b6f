//! Writing the checkpoint of the index: the extents in sealed segments, so that the next start need not read their footers.
//!
//! Owns when a checkpoint is written, and the order of the steps. Does not own the bytes (`log/format/checkpoint`), or why a start may
//! rely on a checkpoint (`recovery/checkpoint`). Invariants: the covered segments are chosen before any extent is gathered; the
//! checkpoint replaces the one before only when everything appended before the end of the gathering is stable; a covered segment has
//! all of its content in the indexes, and on the disk a trailer and sums; no checkpoint is written while the log has a loss.
//!
//! Writes go on meanwhile: an extent which changes during the gathering is also in a segment that is not covered.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::syncing::sync;
use crate::cache::log::disk::CheckpointFile;
use crate::cache::log::format::{
    CoveredSegment, ExtentRows, Head, OtherSegment, PageChain, PageKind, Trailer, encode_end, encode_rows,
};
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::life::State;
use crate::cache::log::scan;
use crate::cache::log::table::{Place, Stability};
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::units::Seq;

/// Part of the cache to be sealed since the last checkpoint before the next one.
const PART: u32 = 16;
/// Trailers read in one step, and slices of volumes gathered in one step.
const TRAILERS: usize = 64;
const SLICES: usize = 8;
/// Most extents that an orderly stop gathers, in less than a second: devices wait for the next daemon. A larger cache is covered but
/// for the last [`PART`] anyway.
const STOP_EXTENTS_MAX: u64 = 1 << 22;
/// Most steps of the last checkpoint that wait for the sync of another holder.
const WAITS_MAX: u32 = 1000;

#[derive(Debug, Default)]
pub(super) struct Checkpointer {
    /// Segments sealed since the last checkpoint was begun.
    pub sealed: u32,
    work: Option<Box<Work>>,
    /// The disk did not take the last checkpoint.
    failing: bool,
}

#[derive(Debug)]
struct Work {
    file: Box<dyn CheckpointFile>,
    chain: PageChain,
    stage: Stage,
    covered: Vec<CoveredSegment>,
    /// Whether a segment is covered, by number.
    is_covered: Vec<bool>,
    extents: u64,
}

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
enum Halt {
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
enum Progress {
    Made,
    Waits,
    Done,
}

impl Checkpointer {
    /// A writer of checkpoints for a cache with `uncovered` segments in no checkpoint.
    pub fn new(uncovered: u32) -> Self {
        Self { sealed: uncovered, ..Self::default() }
    }

    /// Does a part of the checkpoint that is due, and returns whether there was any.
    pub fn step(&mut self, shared: &Shared) -> bool {
        let is_due = self.sealed >= (shared.table.limit() / PART).max(1);
        (is_due || self.work.is_some()) && self.advance(shared) == Progress::Made
    }

    /// Completes a checkpoint of everything sealed, if anything was sealed since the last one, and if that does not take long. For an
    /// orderly stop.
    pub fn complete(&mut self, shared: &Shared) {
        let extents: u64 = shared.table.iter().map(|(_, info)| u64::from(info.extents())).sum();
        if extents > STOP_EXTENTS_MAX {
            return;
        }
        let mut waits = 0;
        while (self.sealed > 0 || self.work.is_some()) && waits < WAITS_MAX {
            match self.advance(shared) {
                Progress::Made => {}
                Progress::Done => waits += 1,
                Progress::Waits => {
                    waits += 1;
                    std::thread::yield_now();
                }
            }
        }
    }

    fn advance(&mut self, shared: &Shared) -> Progress {
        let advanced = match self.work.take() {
            None => {
                self.sealed = 0;
                Work::begin(shared).map(|work| (Some(work), Progress::Made))
            }
            Some(mut work) => work.advance(shared).and_then(|progress| match progress {
                Progress::Done => (*work).finish().map(|()| (None, Progress::Done)),
                progress => Ok((Some(work), progress)),
            }),
        };
        if matches!(advanced, Ok((None, _))) {
            shared.figures.checkpoints_written.fetch_add(1, Ordering::Relaxed);
        }
        match advanced {
            Ok((work, progress)) => {
                self.failing &= progress != Progress::Done;
                self.work = work;
                progress
            }
            Err(Halt::Loss) => Progress::Done,
            Err(Halt::Disk(error)) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "writing a checkpoint of the index failed: the next start takes longer"
                    );
                }
                Progress::Done
            }
        }
    }
}

impl Work {
    fn begin(shared: &Shared) -> Result<Box<Self>, Halt> {
        refuse_losses(shared)?;
        let table = &shared.table;
        let mut work = Box::new(Self {
            file: shared.disk.begin_checkpoint()?,
            chain: PageChain::new(table.cache_id()),
            stage: Stage::Choose(0),
            covered: Vec::new(),
            is_covered: vec![false; table.len()],
            extents: 0,
        });
        let head = Head { segment_bytes: table.segment_bytes(), start: shared.start() };
        work.append(PageKind::Head, &head.encode())?;
        Ok(work)
    }

    fn append(&mut self, kind: PageKind, body: &[u8]) -> Result<(), Halt> {
        let page = self.chain.seal(kind, body);
        let page = page.ok_or_else(|| io::Error::other("the checkpoint has too many pages"))?;
        Ok(self.file.append(&page)?)
    }

    fn advance(&mut self, shared: &Shared) -> Result<Progress, Halt> {
        match &mut self.stage {
            Stage::Choose(from) => {
                let from = *from;
                self.choose(shared, from)
            }
            Stage::Gather(volumes) => {
                let volumes = std::mem::take(volumes);
                self.gather(shared, volumes)
            }
            Stage::Settle(places) => {
                let places = std::mem::take(places);
                self.settle(shared, places)
            }
        }
    }

    /// Chooses some of the segments from number `from` on.
    fn choose(&mut self, shared: &Shared, from: u32) -> Result<Progress, Halt> {
        let table = &shared.table;
        let mut looks = TRAILERS;
        for (number, info) in table.iter().skip(from as usize) {
            if looks == 0 {
                self.stage = Stage::Choose(number);
                return Ok(Progress::Made);
            }
            // Nothing is pinned by zeroes on their way into an index after this, as nothing is appended to a sealed segment.
            if info.state() != State::Sealed || info.is_pinned() || info.sums_frame().is_none() {
                continue;
            }
            looks -= 1;
            let Some(row) =
                trailer_of(shared, info).and_then(|trailer| row(number, &trailer, table.segment_frames()))
            else {
                continue;
            };
            if let Some(is_covered) = self.is_covered.get_mut(number as usize) {
                *is_covered = true;
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

    fn gather(&mut self, shared: &Shared, mut volumes: Vec<Gathering>) -> Result<Progress, Halt> {
        for _ in 0..SLICES {
            let Some(volume) = volumes.last_mut() else {
                self.stage = Stage::Settle(places(shared, &self.is_covered)?);
                return Ok(Progress::Made);
            };
            if self.gather_slice(volume)? {
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
    fn gather_slice(&mut self, gathering: &mut Gathering) -> Result<bool, Halt> {
        let is_covered = |number| self.is_covered.get(number as usize).copied().unwrap_or(false);
        let slice = gathering.volume.slice(gathering.from, is_covered);
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

    /// Makes `places` stable, and then ends the file.
    fn settle(&mut self, shared: &Shared, mut places: Vec<Place>) -> Result<Progress, Halt> {
        let table = &shared.table;
        let mut others = Vec::with_capacity(places.len());
        let mut waits = Vec::new();
        for place in places.drain(..) {
            match place.stability(table) {
                Stability::Stable => others.push(place),
                Stability::Lost => return Err(Halt::Loss),
                Stability::Unsynced => match sync(shared, table.get(place.number), place.number) {
                    Some(true) => others.push(place),
                    Some(false) => return Err(Halt::Loss),
                    None => waits.push(place),
                },
            }
        }
        if !waits.is_empty() {
            waits.append(&mut others);
            shared.block_keeper_on_sync();
            self.stage = Stage::Settle(waits);
            return Ok(Progress::Waits);
        }
        refuse_losses(shared)?;
        let row = |place: &Place| OtherSegment {
            number: place.number,
            segment_id: place.segment_id,
            end: place.end,
        };
        let rows: Vec<OtherSegment> = others.iter().map(row).collect();
        for body in encode_rows(&rows) {
            self.append(PageKind::Others, &body)?;
        }
        self.append(PageKind::End, &encode_end(self.extents))?;
        Ok(Progress::Done)
    }

    fn finish(self) -> Result<(), Halt> {
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

/// The ends of all segments with records that are not covered: everything gathered so far that is not covered lies before.
fn places(shared: &Shared, is_covered: &[bool]) -> Result<Vec<Place>, Halt> {
    refuse_losses(shared)?;
    let is_other = |(number, info): &(u32, &SegmentInfo)| {
        let holds = matches!(info.state(), State::Open | State::Closed | State::Sealed);
        holds && !is_covered.get(*number as usize).copied().unwrap_or(false)
    };
    let place = |(number, info): (u32, &SegmentInfo)| Place {
        number,
        segment_id: info.segment_id(),
        end: info.appended(),
    };
    Ok(shared.table.iter().filter(is_other).map(place).collect())
}

/// The trailer of the sealed segment `info`, as the disk has the trailer.
fn trailer_of(shared: &Shared, info: &SegmentInfo) -> Option<Trailer> {
    let table = &shared.table;
    let frame = scan::read_frame(&**info.file()?, table.segment_frames().checked_sub(1)?).ok()?;
    Trailer::decode(&frame[..], &table.key(info.segment_id()), table.segment_bytes()).ok()
}

fn row(number: u32, trailer: &Trailer, frames: u32) -> Option<CoveredSegment> {
    trailer.sums_frame(frames)?;
    Some(CoveredSegment {
        number,
        segment_id: trailer.key.segment_id,
        footer_frame: trailer.footer_frame,
        footer_bytes: trailer.footer_bytes,
        footer_crc: trailer.footer_crc,
    })
}
