//! Content which a READ may return: the promises of table 1, sector by sector.
//!
//! Owns the history of every sector: the writes issued, the end of each, and which of the writes a FLUSH or FUA made
//! durable. Does not own bytes, nor the execution of requests.
//!
//! A write is *over* when a later write was acknowledged which had been issued after the end of the first. Of writes which overlapped
//! in time either may come last, and a write which failed or was cut off by a crash may take effect or not. So:
//!
//! - a READ returns a write which was not over when the READ was issued;
//! - the first READ after kill -9 returns a write which was not over when the process died;
//! - the first READ after a power cut returns any write which is not over by *durable* writes alone;
//! - content read once everything had come to rest stays, and content ruled out by that READ never comes back.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use glidefs::testing::units::{ExportId, SectorRange};

use super::content::{Content, Found, identify};
use super::file::{FRAME, SECTOR};
use super::tally::{Event, Tally};

/// A point in time: events are numbered.
pub type Moment = u64;

/// A write or zeroing. Ids of writes are contents; zeroings have ids too, but the content of a zeroing is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Write {
    id: Content,
    zero: bool,
    issued: Moment,
    /// `Moment::MAX` while in flight.
    ended: Moment,
    acknowledged: bool,
    durable: bool,
}

impl Write {
    const NEVER_WRITTEN: Self =
        Self { id: 0, zero: true, issued: 0, ended: 0, acknowledged: true, durable: true };

    fn content(&self) -> Content {
        if self.zero { 0 } else { self.id }
    }
}

/// The event before the reads of [`Oracle::observe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// No crash: everything has come to rest.
    Rest,
    /// kill -9, at least once, or a clean stop.
    Kill,
    /// A power cut, and any other crashes.
    PowerCut,
}

#[derive(Clone, Debug)]
struct History {
    sectors: Vec<Vec<Write>>,
}

#[derive(Clone, Debug, Default)]
pub struct Oracle {
    exports: BTreeMap<ExportId, History>,
    now: Moment,
    /// Moment of the last death of the process.
    crashed: Moment,
    pub tally: Tally,
}

impl Oracle {
    /// Starts the history of an export of `sectors` sectors.
    pub fn add(&mut self, export: ExportId, sectors: u64) {
        let sectors = vec![vec![Write::NEVER_WRITTEN]; usize::try_from(sectors).unwrap()];
        self.exports.insert(export, History { sectors });
    }

    /// Ends the history of an export.
    pub fn remove(&mut self, export: ExportId) {
        self.exports.remove(&export);
    }

    /// Size of `export` in sectors; 0 when it was removed.
    pub fn sectors(&self, export: ExportId) -> u64 {
        self.exports.get(&export).map_or(0, |history| history.sectors.len() as u64)
    }

    /// A new moment, for a READ or FLUSH issued now.
    pub fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn part(&mut self, export: ExportId, range: SectorRange) -> &mut [Vec<Write>] {
        let Some(history) = self.exports.get_mut(&export) else { return &mut [] };
        let len = history.sectors.len() as u64;
        let [start, end] = [range.start(), range.end()].map(|at| usize::try_from(at.min(len)).unwrap());
        &mut history.sectors[start..end]
    }

    /// Whether every sector of `range` has a durable write which was issued, or was seen, after `since` and ended
    /// before `until`.
    pub fn is_durable(&self, export: ExportId, range: SectorRange, since: Moment, until: Moment) -> bool {
        let Some(history) = self.exports.get(&export) else { return false };
        let [start, end] = [range.start(), range.end()].map(|at| usize::try_from(at).unwrap());
        let counts = |write: &Write| write.durable && write.issued > since && write.ended < until;
        history.sectors[start..end].iter().all(|writes| writes.iter().any(counts))
    }

    /// A write, or a zeroing, is issued. `id` is new.
    pub fn issue(&mut self, export: ExportId, range: SectorRange, id: Content, zero: bool) {
        let issued = self.tick();
        let write = Write { id, zero, issued, ended: Moment::MAX, acknowledged: false, durable: false };
        for sector in self.part(export, range) {
            sector.push(write);
        }
    }

    /// The write `id` came back; `through` says whether the write was FUA.
    pub fn end(&mut self, export: ExportId, range: SectorRange, id: Content, ok: bool, through: bool) {
        let ended = self.tick();
        for sector in self.part(export, range) {
            if let Some(write) = sector.iter_mut().find(|write| write.id == id) {
                write.ended = ended;
                write.acknowledged = ok;
                write.durable = ok && through;
            }
        }
    }

    /// A FLUSH of `export`, issued at `issued`, came back without error. READs issued before `reads_since` may still
    /// be under way.
    pub fn flushed(&mut self, export: ExportId, issued: Moment, reads_since: Moment) {
        let Some(history) = self.exports.get_mut(&export) else { return };
        for sector in &mut history.sectors {
            for write in sector.iter_mut() {
                // A write of an earlier life, not seen since, may be lost, and no FLUSH brings the write back.
                write.durable |= write.acknowledged && write.ended < issued && write.ended > self.crashed;
            }
            // Writes which are over for every later read and crash are forgotten.
            let floor = sector.iter().filter(|write| write.durable && write.ended < reads_since);
            if let Some(floor) = floor.map(|write| write.issued).max() {
                sector.retain(|write| write.ended >= floor);
            }
        }
    }

    /// The process died: nothing in flight will come back.
    pub fn crashed(&mut self) {
        let now = self.tick();
        self.crashed = now;
        for write in self.exports.values_mut().flat_map(|history| &mut history.sectors).flatten() {
            write.ended = write.ended.min(now);
        }
    }

    /// Checks the content returned by a READ of `range`, issued at `issued`.
    pub fn check(
        &mut self,
        export: ExportId,
        range: SectorRange,
        issued: Moment,
        data: &[u8],
    ) -> Result<(), String> {
        let mut raced = false;
        for (sector, bytes) in (range.start()..).zip(data.as_chunks::<SECTOR>().0) {
            let Some(writes) =
                self.exports.get(&export).map(|h| &h.sectors[usize::try_from(sector).unwrap()])
            else {
                return Ok(());
            };
            let legal = not_over(writes, |write| write.acknowledged && write.ended < issued);
            raced |= legal.len() > 1;
            require(export, sector, bytes, &legal, writes)?;
        }
        self.tally.add(Event::SectorChecked, range.count());
        self.tally.add(Event::ReadRaced, u64::from(raced));
        Ok(())
    }

    /// Checks the content returned by a READ without a concurrent write, and rules out every write which the content
    /// contradicts.
    pub fn observe(
        &mut self,
        export: ExportId,
        range: SectorRange,
        before: Before,
        data: &[u8],
    ) -> Result<(), String> {
        let now = self.tick();
        let (mut lost, mut kept) = (0, 0);
        for ((sector, bytes), writes) in
            (range.start()..).zip(data.as_chunks::<SECTOR>().0).zip(self.part(export, range))
        {
            let counts =
                |write: &Write| if before == Before::PowerCut { write.durable } else { write.acknowledged };
            let legal = not_over(writes, counts);
            let matching = require(export, sector, bytes, &legal, writes)?;
            let durable = before == Before::PowerCut || matching.iter().all(|write| write.durable);
            let newest = not_over(writes, |write| write.acknowledged);
            lost += u64::from(matching.iter().all(|write| !newest.contains(write)));
            kept += u64::from(matching.iter().all(|write| !write.acknowledged));
            let horizon = matching.iter().map(|write| write.ended).max().unwrap_or(now);
            let settled = Write { issued: now, ended: now, acknowledged: true, durable, ..matching[0] };
            writes.retain_mut(|write| {
                // A write which failed just now and is not seen may yet come with the next crash; after a crash the
                // write never will.
                if before == Before::Rest && !write.acknowledged && legal.contains(write) {
                    write.ended = now;
                    return write.id != settled.id;
                }
                // Older content may lie under the content seen, and come to light if a power cut takes the newer one
                // away.
                !durable && write.issued <= horizon && write.id != settled.id
            });
            writes.push(settled);
        }
        self.tally.add(Event::SectorChecked, range.count());
        if before != Before::Rest {
            self.tally.add(Event::WriteLost, lost);
            self.tally.add(Event::UnacknowledgedKept, kept);
        }
        Ok(())
    }

    /// No READ of `range` succeeded after the crash. A power cut may have taken any write which is not durable, and a later READ may
    /// find what was below.
    pub fn unseen(&mut self, export: ExportId, range: SectorRange, before: Before) {
        if before == Before::PowerCut {
            for write in self.part(export, range).iter_mut().flatten() {
                write.acknowledged &= write.durable;
            }
        }
    }

    /// Fewest frames which the cache needs: each run of sectors with content of one write begins in a frame of its
    /// own. Call the function when everything has come to rest and was observed.
    pub fn live_frames(&self) -> u64 {
        let mut frames = 0;
        for history in self.exports.values() {
            let newest = history.sectors.iter().map(|writes| writes.iter().max_by_key(|write| write.issued));
            let newest: Vec<(Content, bool)> = newest.flatten().map(|write| (write.id, write.zero)).collect();
            for run in newest.chunk_by(|a, b| a == b).filter(|run| !run[0].1) {
                // One more, as the sectors need not begin at the start of a frame.
                frames += (run.len() * SECTOR).div_ceil(FRAME) as u64 + 1;
            }
        }
        frames
    }
}

/// Writes which are not over, when only writes selected by `counts` end others.
fn not_over(writes: &[Write], counts: impl Fn(&Write) -> bool) -> Vec<Write> {
    let last = writes.iter().filter(|write| counts(write)).map(|write| write.issued).max().unwrap_or(0);
    writes.iter().filter(|write| write.ended >= last).copied().collect()
}

fn require(
    export: ExportId,
    sector: u64,
    bytes: &[u8; SECTOR],
    legal: &[Write],
    all: &[Write],
) -> Result<Vec<Write>, String> {
    let found = identify(bytes, export, sector);
    let matching: Vec<Write> =
        legal.iter().filter(|write| found == Found::Write(write.content())).copied().collect();
    if matching.is_empty() {
        let word = if let Found::Write(content) = found
            && all.iter().any(|write| write.content() == content)
        {
            "stale"
        } else {
            "alien"
        };
        return Err(format!(
            "export {export} sector {sector}: {word} {found:?}\n legal: {legal:#?}\n history: {all:#?}"
        ));
    }
    Ok(matching)
}
