//! A start from a checkpoint: the footers of covered segments need not be read.
//!
//! Owns which part of a checkpoint a start uses. Does not own what a checkpoint lists (`keeper/checkpoint`). Invariant: the indexes are
//! those that the footers of all segments would have given, or, for content in the store, have less.
//!
//! **The rule.** A checkpoint is used at most once, by the start directly after the life that wrote the checkpoint. Each start takes
//! the checkpoint away, used or not, before the start writes anything; a start which cannot take the checkpoint away fails. The number of
//! the life is in the checkpoint and in the superblock, so a checkpoint that an older program left behind is not used. A log which lacks
//! a segment listed by the checkpoint, and has no later segment in the place, is an older copy that was put back: the checkpoint is not
//! of this log.
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

use std::io::Read;

use super::Outcome;
use super::segments::{Found, Recovery};
use crate::cache::log::format::{
    CHECKPOINT_HEADER_BYTES, CoveredSegment, ExtentReader, FormatError, Head, Kept, KeptExtent, OtherSegment,
    PageChain, PageKind, decode_end, decode_rows,
};
use crate::cache::log::life::Event;
use crate::cache::log::scan::Unusable;
use crate::cache::log::superblock::Superblock;
use crate::cache::volume::loading::Loading;
use crate::units::{ExportId, FRAME_SECTORS};

const ORDER: FormatError = FormatError::Malformed("a page, a segment or an export out of order");
const UNLISTED: FormatError = FormatError::Malformed("an extent outside the records of a covered segment");

/// A checkpoint that is read.
pub(super) struct Checkpoint {
    pages: Pages,
    /// By ascending segment number, none twice.
    covered: Vec<CoveredSegment>,
    /// The first page behind the covered segments.
    kind: PageKind,
}

/// What a start has to find beside the segments of a used checkpoint.
pub(super) struct Used {
    /// By ascending segment number, none twice.
    covered: Vec<CoveredSegment>,
    others: Vec<OtherSegment>,
}

/// The pages of a checkpoint, one in memory at a time.
struct Pages {
    source: Box<dyn Read + Send>,
    chain: PageChain,
    page: Vec<u8>,
}

impl Pages {
    /// Reads and checks the next page.
    fn next(&mut self) -> Result<PageKind, Unusable> {
        let mut header = [0; CHECKPOINT_HEADER_BYTES];
        self.source.read_exact(&mut header).map_err(Unusable::Unreadable)?;
        let len = PageChain::page_len(&header).map_err(Unusable::Damaged)?;
        self.page.clear();
        self.page.extend_from_slice(&header);
        self.page.resize(len, 0);
        let rest = self.page.get_mut(CHECKPOINT_HEADER_BYTES..).unwrap_or_default();
        self.source.read_exact(rest).map_err(Unusable::Unreadable)?;
        self.chain.open(&self.page).map(|(kind, _)| kind).map_err(Unusable::Damaged)
    }

    /// The body of the page read last.
    fn body(&self) -> &[u8] {
        PageChain::body(&self.page)
    }
}

/// What is known of each segment number: not listed, listed and gone, or covered up to a sector.
struct Ends(Vec<u64>);

const NOT_LISTED: u64 = 0;
const GONE: u64 = 1;

impl Ends {
    /// Whether `kept` is in a covered segment; an error for a segment which the checkpoint does not list.
    #[inline]
    fn has(&self, kept: &KeptExtent) -> Result<bool, FormatError> {
        let end = match self.0.get(kept.number as usize) {
            // A segment beyond the table is gone.
            None | Some(&GONE) => return Ok(false),
            Some(&NOT_LISTED) => return Err(UNLISTED),
            Some(end) => *end,
        };
        match kept.content {
            Kept::Data(sector) if u64::from(sector).saturating_add(kept.range.count()) > end => Err(UNLISTED),
            Kept::Data(_) | Kept::Zero | Kept::Damaged => Ok(true),
        }
    }
}

/// Adds those of `extents` which are in covered segments to `loading`, where there is a volume to load. Returns the number of all
/// extents of the page.
// Not inlined: the loop has the registers for itself.
#[inline(never)]
fn load_page(
    extents: ExtentReader<'_>,
    ends: &Ends,
    mut loading: Option<&mut Loading>,
) -> Result<u64, FormatError> {
    let mut count = 0_u64;
    for kept in extents {
        let kept = kept?;
        count = count.saturating_add(1);
        if let Some(loading) = &mut loading
            && ends.has(&kept)?
        {
            loading.add(&kept);
        }
    }
    Ok(count)
}

impl Recovery<'_> {
    /// Reads the beginning of the checkpoint, if there is one that can be used.
    pub fn begin_checkpoint(&mut self, superblock: &Superblock) -> Option<Checkpoint> {
        if !self.tries_checkpoint {
            return None;
        }
        match self.read_beginning(superblock) {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                self.refuse(&error);
                None
            }
        }
    }

    fn refuse(&mut self, error: &Unusable) {
        self.found.checkpoints_refused += 1;
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "the checkpoint of the index is damaged, or not of this log: reading all of the log instead"
        );
    }

    fn read_beginning(&self, superblock: &Superblock) -> Result<Option<Checkpoint>, Unusable> {
        let Some(source) = self.disk.read_checkpoint().map_err(Unusable::Unreadable)? else {
            return Ok(None);
        };
        let chain = PageChain::new(superblock.cache_id);
        let mut pages = Pages { source, chain, page: Vec::new() };
        if pages.next()? != PageKind::Head {
            return Err(Unusable::Damaged(ORDER));
        }
        let head = Head::decode(pages.body()).map_err(Unusable::Damaged)?;
        if head.segment_bytes != superblock.segment_bytes || head.start != superblock.start {
            return Err(Unusable::Damaged(FormatError::Malformed(
                "a checkpoint of another log, or not of the last start",
            )));
        }
        let mut covered: Vec<CoveredSegment> = Vec::new();
        let kind = loop {
            let kind = pages.next()?;
            if kind != PageKind::Covered {
                break kind;
            }
            covered.extend(decode_rows::<CoveredSegment>(pages.body()).map_err(Unusable::Damaged)?);
        };
        if !covered.is_sorted_by(|one, next| one.number < next.number) {
            return Err(Unusable::Damaged(ORDER));
        }
        Ok(Some(Checkpoint { pages, covered, kind }))
    }

    /// Loads the extents of `checkpoint` into the volumes, which are empty, and takes the covered ones of `segments` into use. An
    /// error leaves volumes and table worth nothing.
    pub fn load_checkpoint(
        &mut self,
        checkpoint: Checkpoint,
        segments: &mut [Found],
    ) -> Result<Used, Outcome> {
        let loaded = self.load(checkpoint, segments);
        loaded.map_err(|error| {
            self.refuse(&error);
            Outcome::ReadWithoutCheckpoint
        })
    }

    fn load(&mut self, checkpoint: Checkpoint, segments: &mut [Found]) -> Result<Used, Unusable> {
        let Checkpoint { mut pages, covered, mut kind } = checkpoint;
        let ends = self.cover(&covered, segments);
        let (mut loading, mut current, mut count) = (Loading::default(), None, 0_u64);
        while kind == PageKind::Extents {
            let extents = ExtentReader::new(pages.body()).map_err(Unusable::Damaged)?;
            let export = extents.export();
            if current != Some(export) {
                if current.is_some_and(|current: ExportId| current.0 > export.0) {
                    return Err(Unusable::Damaged(ORDER));
                }
                self.end_loading(current, &mut loading);
                current = Some(export);
                if let Some(volume) = self.volumes.get(&export) {
                    loading.begin(volume);
                }
            }
            let is_known = self.volumes.contains_key(&export);
            if is_known {
                loading.gave_out(extents.last_seq());
            }
            let loading = is_known.then_some(&mut loading);
            count = count.saturating_add(load_page(extents, &ends, loading).map_err(Unusable::Damaged)?);
            kind = pages.next()?;
        }
        self.end_loading(current, &mut loading);
        let mut others = Vec::new();
        while kind == PageKind::Others {
            others.extend(decode_rows::<OtherSegment>(pages.body()).map_err(Unusable::Damaged)?);
            kind = pages.next()?;
        }
        if !others.is_sorted_by(|one: &OtherSegment, next| one.number < next.number) {
            return Err(Unusable::Damaged(ORDER));
        }
        if kind != PageKind::End || decode_end(pages.body()).map_err(Unusable::Damaged)? != count {
            return Err(Unusable::Damaged(ORDER));
        }
        Ok(Used { covered, others })
    }

    fn end_loading(&mut self, export: Option<ExportId>, loading: &mut Loading) {
        if let Some(volume) = export.and_then(|export| self.volumes.get(&export)) {
            self.found.checkpoint_extents += volume.load(self.table, &self.ranks, loading);
        }
    }

    /// Takes those of `segments` into use that are as `covered` says.
    fn cover(&mut self, covered: &[CoveredSegment], segments: &mut [Found]) -> Ends {
        let frames = self.table.segment_frames();
        let mut ends = Ends(vec![NOT_LISTED; self.table.len()]);
        for row in covered {
            if let Some(end) = ends.0.get_mut(row.number as usize) {
                *end = GONE;
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
            used.on(Event::Prepare);
            used.on(Event::Close);
            used.on(Event::Seal);
            found.is_covered = true;
            self.found.segments += 1;
            self.found.covered += 1;
            if let Some(end) = ends.0.get_mut(found.number as usize) {
                *end = u64::from(trailer.footer_frame).saturating_mul(FRAME_SECTORS);
            }
        }
        ends
    }

    /// Whether the rest of the log, in `segments`, bears `used` out: nothing is lost that the checkpoint relied on.
    pub fn bears_out(&mut self, used: &Used, segments: &[Found]) -> bool {
        let damage = self.found.unreadable.saturating_add(self.found.bad_footers);
        let is_whole = self.found.holes == 0 && damage == self.of_blank_files;
        let is_sure = !self.volumes.values().any(|volume| volume.is_doubted());
        let is_there =
            self.is_as_new_as(used, segments) && segments.iter().all(|found| used.has_all_of(found));
        if is_whole && is_sure && is_there {
            return true;
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

    /// Whether each file has the segment that `used` lists, or one that was put there later.
    fn is_as_new_as(&self, used: &Used, segments: &[Found]) -> bool {
        let mut ids = vec![0; self.table.len()];
        for found in segments {
            if let Some(id) = ids.get_mut(found.number as usize) {
                *id = found.key.segment_id;
            }
        }
        let covered = used.covered.iter().map(|row| (row.number, row.segment_id));
        let mut listed = covered.chain(used.others.iter().map(|row| (row.number, row.segment_id)));
        listed.all(|(number, segment_id)| ids.get(number as usize).is_some_and(|id| *id >= segment_id))
    }
}

impl Used {
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
