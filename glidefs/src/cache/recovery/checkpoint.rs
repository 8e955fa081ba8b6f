//! A start from a checkpoint: the footers of covered segments need not be read.
//!
//! Owns which part of a checkpoint a start uses. Does not own what a checkpoint lists (`keeper/checkpoint`). Invariant: the indexes are
//! those that the footers of all segments would have given, or, for content in the store, have less.
//!
//! **The rule.** A checkpoint is used at most once, by the start directly after the life that wrote the checkpoint. Each start takes
//! the checkpoint away, used or not, before the start writes anything; a start which cannot take the checkpoint away fails. The number of
//! the life is in the checkpoint and in the superblock, so a checkpoint that an older program left behind is not used. A log which lacks
//! a segment listed by the checkpoint, and has no later segment in the place, has lost the segment (`missing`), or is an older copy that
//! was put back: the checkpoint is not of this log. Only where a segment is lost, the checkpoint stays until the log tells of the loss.
//!
//! Why that start may rely on a checkpoint that is older than the end of the log:
//!
//! - *Nothing too new or wrong.* An extent is taken only from a segment whose trailer says the same as the checkpoint: the extent is a
//!   part of an entry of the segment's footer. Of all entries the highest number wins here as well.
//! - *Nothing missing.* The segments were chosen, by their ids, before the extents were gathered, so whatever replaced a covered extent
//!   later is in a segment not covered, even where the number of a covered one was given to another segment meanwhile. Whatever had
//!   replaced an extent before the gathering is covered as well, or was synced before the checkpoint was complete, and is read from the
//!   segment as ever. A segment is used again only when everything that replaced the content is stable elsewhere: in a segment which
//!   is there now, and is covered or read.
//! - *Nothing evicted comes back.* Evicted content is not newer than the catalog's mark, which every start obeys, for extents of a
//!   checkpoint too. Marks only grow.
//! - *Deleted exports* are in no catalog any more, and ids are not given out again.
//! - *Copies of the cleaner* have the number and the content of the original. The copy in the segment of the higher rank counts, whether
//!   the copy is loaded first or last (`volume/ranks`): so the same segments are free as after reading all footers.
//! - *Zeroes on their way* into an index pin the segment with the record, and a pinned segment is not covered. Nor is a segment with
//!   the entry of a doubt.
//!
//! Where the disk lost anything, or the log tells of a loss, the checkpoint is not used at all: the losses are judged from the records.
//! While a doubt is in force, a checkpoint covers nothing, and proves only which segments there were.

mod extents;
mod pages;
#[cfg(test)]
mod tests;

use self::extents::{End, Loader, ORDER};
use self::pages::Pages;
use super::Outcome;
use super::missing::{Ids, Listed, LostContent, Missing, MissingSegment};
use super::segments::{Found, Recovery};
use crate::cache::log::format::{CoveredSegment, FormatError, Head, PageChain, PageKind, Place, decode_end};
use crate::cache::log::life::State;
use crate::cache::log::scan::Unusable;
use crate::cache::log::superblock::Superblock;
use crate::units::FRAME_SECTORS;

/// A checkpoint that is read up to the first page of extents.
pub(super) struct Checkpoint<'s> {
    pages: Pages<'s>,
    /// By ascending segment number, none twice.
    covered: Vec<CoveredSegment>,
    proves_losses: bool,
}

/// What a start has to find beside the segments of a used checkpoint.
pub(super) struct Used {
    /// By ascending segment number, none twice.
    covered: Vec<CoveredSegment>,
    others: Vec<Place>,
    /// A segment listed can be missing by a loss only, or because the log is an older copy.
    proves_losses: bool,
    /// The extents in missing segments.
    lost: LostContent,
}

impl<'a> Recovery<'a> {
    /// Reads the beginning of the checkpoint, if there is one that can be used. Fails where the disk does not read the checkpoint: the
    /// log is read with all pauses then.
    pub fn begin_checkpoint(&mut self, superblock: &Superblock) -> Result<Option<Checkpoint<'a>>, Outcome> {
        if !self.tries_checkpoint {
            return Ok(None);
        }
        self.read_beginning(superblock).or_else(|error| {
            self.refuse(&error);
            match error {
                Unusable::Unreadable(_) => Err(Outcome::ReadWithoutCheckpoint),
                Unusable::Damaged(_) => Ok(None),
            }
        })
    }

    fn refuse(&mut self, error: &Unusable) {
        self.found.checkpoints_refused += 1;
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "the checkpoint of the index is damaged, or not of this log: reading all of the log instead"
        );
    }

    fn read_beginning(&self, superblock: &Superblock) -> Result<Option<Checkpoint<'a>>, Unusable> {
        // A read that fails once must not cost the proof of a loss.
        let patience = self.patience;
        let source = patience.again(|| self.disk.read_checkpoint()).map_err(Unusable::Unreadable)?;
        let Some(source) = source else { return Ok(None) };
        let mut pages = Pages::new(patience.with_source(source), PageChain::new(superblock.cache_id));
        let (PageKind::Head, body) = pages.next()? else { return Err(Unusable::Damaged(ORDER)) };
        let head = Head::decode(body).map_err(Unusable::Damaged)?;
        if head.segment_bytes != superblock.segment_bytes || head.start != superblock.start {
            return Err(Unusable::Damaged(FormatError::Malformed(
                "a checkpoint of another log, or not of the last start",
            )));
        }
        let covered: Vec<CoveredSegment> = pages.rows(PageKind::Covered)?;
        if !covered.is_sorted_by(|one, next| one.number < next.number) {
            return Err(Unusable::Damaged(ORDER));
        }
        Ok(Some(Checkpoint { pages, covered, proves_losses: head.proves_losses }))
    }

    /// Loads the extents of `checkpoint`, into the volumes, which are empty, and takes the covered
    /// ones of `segments` into use. An error leaves volumes and table worth nothing.
    pub fn load_checkpoint(
        &mut self,
        checkpoint: Checkpoint<'_>,
        segments: &mut [Found],
    ) -> Result<Used, Outcome> {
        let loaded = self.load(checkpoint, segments);
        loaded.map_err(|error| {
            self.refuse(&error);
            Outcome::ReadWithoutCheckpoint
        })
    }

    fn load(&mut self, checkpoint: Checkpoint<'_>, segments: &mut [Found]) -> Result<Used, Unusable> {
        let Checkpoint { mut pages, covered, proves_losses } = checkpoint;
        let ends = self.cover(&covered, segments);
        let Self { volumes, table, ranks, hands, .. } = &*self;
        let loader = Loader { volumes, ends: &ends, table, ranks, hands: *hands };
        let loaded = loader.load(&mut pages)?;
        let others: Vec<Place> = pages.rows(PageKind::Others)?;
        if !others.is_sorted_by(|one, next| one.number < next.number) {
            return Err(Unusable::Damaged(ORDER));
        }
        let (PageKind::End, body) = pages.next()? else { return Err(Unusable::Damaged(ORDER)) };
        if decode_end(body).map_err(Unusable::Damaged)? != loaded.listed {
            return Err(Unusable::Damaged(ORDER));
        }
        self.found.checkpoint_extents += loaded.loaded;
        self.last_export = self.last_export.max(loaded.last_export);
        Ok(Used { covered, others, proves_losses, lost: loaded.lost })
    }

    /// Takes those of `segments` into use that are as `covered` says. Returns what is known of each segment number.
    fn cover(&mut self, covered: &[CoveredSegment], segments: &mut [Found]) -> Vec<End> {
        let frames = self.table.segment_frames();
        let mut ends = vec![End::NotListed; self.table.len()];
        let ids = self.ids(segments);
        for row in covered {
            let is_gone = ids.has(row.number, row.segment_id);
            if let Some(end) = ends.get_mut(row.number as usize) {
                *end = if is_gone { End::Gone } else { End::Missing };
            }
        }
        for found in segments {
            let Some(row) = row_of(covered, found.number) else { continue };
            let Some(trailer) = found.trailer.filter(|_| is_as_covered(row, found)) else { continue };
            if trailer.sums_frame(frames).is_none() {
                continue;
            }
            let used = self.table.get(found.number);
            used.leave_crcs(Some(&trailer), frames);
            used.begin_use(found.key.segment_id, trailer.footer_frame);
            used.enter(State::Open);
            used.enter(State::Closed);
            used.enter(State::Sealed);
            found.is_covered = true;
            self.found.segments += 1;
            self.found.covered += 1;
            let end = u64::from(trailer.footer_frame).saturating_mul(FRAME_SECTORS);
            ends[found.number as usize] = End::Covered(end);
        }
        ends
    }

    /// Whether the rest of the log, in `segments`, bears `used` out: nothing is lost that the checkpoint relied on.
    pub fn bears_out(&mut self, used: Used, segments: &[Found]) -> bool {
        let damage = self.found.unreadable.saturating_add(self.found.bad_footers);
        let is_whole = self.found.holes == 0 && damage == self.of_blank_files;
        let is_sure = !self.volumes.values().any(|volume| volume.is_doubted());
        let (missing, last_listed) = (used.missing(&self.ids(segments)), used.last_listed());
        let is_there = missing.is_empty() && segments.iter().all(|found| used.has_all_of(found));
        // The indexes have nothing from a checkpoint that covers no segment.
        if is_there && (used.covered.is_empty() || is_whole && is_sure) {
            return true;
        }
        if used.proves_losses {
            // The next reading judges: a file may be away for a moment only.
            self.missing =
                Missing { segments: missing, content: used.lost, last_listed, ..Missing::default() };
        }
        self.found.checkpoints_refused += 1;
        tracing::warn!(
            is_whole,
            is_sure,
            is_there,
            "the log tells of losses, or is older than the checkpoint of the index: reading all of the log, without the checkpoint"
        );
        false
    }
}

impl Used {
    /// The segments listed of which neither the segment nor one put there later is among `ids`.
    fn missing(&self, ids: &Ids) -> Vec<MissingSegment> {
        // The number may have been used again while the extents were gathered.
        let is_last = |row: &&CoveredSegment| {
            let other = self.others.binary_search_by_key(&row.number, |other| other.number);
            !other.is_ok_and(|at| self.others[at].segment_id > row.segment_id)
        };
        let covered = self.covered.iter().filter(is_last).map(|row| MissingSegment {
            number: row.number,
            segment_id: row.segment_id,
            listed: Listed::Covered,
        });
        // The header of a segment takes one frame.
        let others = self.others.iter().map(|row| MissingSegment {
            number: row.number,
            segment_id: row.segment_id,
            listed: if row.end > 1 { Listed::Filled } else { Listed::Prepared },
        });
        covered.chain(others).filter(|row| !ids.has(row.number, row.segment_id)).collect()
    }

    /// The highest id of a segment listed.
    fn last_listed(&self) -> u64 {
        let covered = self.covered.iter().map(|row| row.segment_id);
        covered.chain(self.others.iter().map(|row| row.segment_id)).max().unwrap_or(0)
    }

    /// Whether `found` has all that was stable when the checkpoint was complete.
    fn has_all_of(&self, found: &Found) -> bool {
        let segment_id = found.key.segment_id;
        let row = row_of(&self.covered, found.number).filter(|row| row.segment_id == segment_id);
        let is_same = row.is_none_or(|row| found.trailer.is_none() || is_as_covered(row, found));
        let other = self.others.binary_search_by_key(&found.number, |other| other.number).ok();
        let other = other.and_then(|at| self.others.get(at)).filter(|other| other.segment_id == segment_id);
        let needed = other.map(|other| other.end).max(row.map(|row| row.footer_frame)).unwrap_or(0);
        let trailer_end = found.trailer.as_ref().map(|trailer| trailer.footer_frame);
        let end = trailer_end.or_else(|| found.walk.as_ref().map(|walk| walk.tail)).unwrap_or(1);
        is_same && end >= needed
    }
}

fn row_of(covered: &[CoveredSegment], number: u32) -> Option<&CoveredSegment> {
    let at = covered.binary_search_by_key(&number, |row| row.number).ok()?;
    covered.get(at)
}

/// Whether `found` is sealed with the trailer that `row` describes.
fn is_as_covered(row: &CoveredSegment, found: &Found) -> bool {
    found.trailer.is_some_and(|trailer| {
        let CoveredSegment { number, segment_id, footer_frame, footer_bytes, footer_crc } = *row;
        (number, segment_id) == (found.number, found.key.segment_id)
            && (footer_frame, footer_bytes, footer_crc)
                == (trailer.footer_frame, trailer.footer_bytes, trailer.footer_crc)
    })
}
