//! The extents of a checkpoint on their way into the volumes: several threads check and decode pages, and make leaves of the
//! extents; one thread adds the leaves to the volumes, in the order of the file.
//!
//! Owns which extents count, which are lost, and the order of exports. Does not own the pages (`pages`), or the indexes. Invariants: no
//! page is used unchecked; volumes, counts and the error, the first in the order of the file, are the same for any number of threads; at
//! most two batches more than threads are in memory at a time, beside the leaves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::pages::{Batch, Batches, Pages, Room};
use crate::cache::hands::in_order;
use crate::cache::log::format::{ExtentReader, FormatError, Kept, KeptExtent};
use crate::cache::log::scan::Unusable;
use crate::cache::log::table::SegmentTable;
use crate::cache::recovery::missing::LostContent;
use crate::cache::volume::Volume;
use crate::cache::volume::loading::{GainedRefs, Loading};
use crate::cache::volume::ranks::Ranks;
use crate::locks::MutexExt;
use crate::units::{ExportId, Seq};

pub(super) const ORDER: FormatError = FormatError::Malformed("a page, a segment or an export out of order");
pub(super) const UNLISTED: FormatError =
    FormatError::Malformed("an extent outside the records of a covered segment");

/// The volumes, which are empty, and what their extents are checked against.
pub(super) struct Loader<'a> {
    pub volumes: &'a HashMap<ExportId, Arc<Volume>>,
    /// By segment number.
    pub ends: &'a [End],
    pub table: &'a SegmentTable,
    pub ranks: &'a Ranks,
    pub hands: usize,
}

/// How many extents the checkpoint lists, how many of these are in a volume now, the last export with an extent, and the extents in
/// missing segments.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Loaded {
    pub listed: u64,
    pub loaded: u64,
    pub last_export: Option<ExportId>,
    pub lost: LostContent,
}

impl<'a> Loader<'a> {
    /// Loads the extents of the next pages. An error leaves volumes and table worth nothing.
    pub fn load(&self, pages: &mut Pages) -> Result<Loaded, Unusable> {
        let (rooms, mut refs) = (Mutex::<Vec<Room>>::default(), GainedRefs::default());
        let (mut current, mut found) = (None::<Part<'a>>, Loaded::default());
        let take = |decoded: Decoded<'a>| {
            let Decoded { parts, listed, last_export, error, mut room } = decoded;
            refs.append(&mut room.refs);
            rooms.lock_whole().push(room);
            found.listed = found.listed.saturating_add(listed);
            found.last_export = found.last_export.max(last_export);
            for mut part in parts {
                if let Some((volume, _)) = &part.loading {
                    found.lost.add(volume, part.last, std::mem::take(&mut part.lost));
                }
                match &mut current {
                    Some(current) if current.export == part.export => current.append(part, &mut refs),
                    Some(current) if current.export.0 > part.export.0 => {
                        return Err(Unusable::Damaged(ORDER));
                    }
                    _ => found.loaded += self.end(current.replace(part), &mut refs),
                }
            }
            error.map_or(Ok(()), Err)
        };
        in_order(self.hands, Batches::new(pages, &rooms), |batch| self.decode(batch), take)?;
        found.loaded += self.end(current, &mut refs);
        Ok(found)
    }

    /// Makes `part` the content of the volume. Returns the number of extents.
    fn end(&self, part: Option<Part<'_>>, refs: &mut GainedRefs) -> u64 {
        let loading = part.and_then(|part| part.loading);
        loading.map_or(0, |(volume, loading)| volume.load(self.table, self.ranks, loading, refs))
    }

    /// Checks and decodes the pages of `batch`, up to the first error.
    fn decode(&self, mut batch: Batch) -> Decoded<'a> {
        let mut refs = std::mem::take(&mut batch.room.refs);
        let (mut chain, mut parts, mut listed) = (batch.chain, Vec::new(), 0_u64);
        let mut last_export = None;
        let added = batch.pages().try_for_each(|page| {
            let extents = ExtentReader::new(chain.open(page)?.1)?;
            let export = extents.export();
            if parts.last().is_none_or(|last: &Part<'_>| last.export != export) {
                let volume = self.volumes.get(&export);
                let loading = volume.map(|volume| (&**volume, Loading::of(volume)));
                parts.push(Part { export, loading, last: Seq(0), lost: Vec::new() });
            }
            if let Some(part) = parts.last_mut() {
                let count = part.add(extents, self.ends, &mut refs)?;
                listed = listed.saturating_add(count);
                // A page without extents tells of a volume, and not of a record in the log.
                if count > 0 {
                    last_export = last_export.max(Some(export));
                }
            }
            Ok(())
        });
        for (_, loading) in parts.iter_mut().filter_map(|part| part.loading.as_mut()) {
            loading.close(&mut refs);
        }
        batch.room.refs = refs;
        let error = added.map_err(Unusable::Damaged).err().or(batch.error);
        Decoded { parts, listed, last_export, error, room: batch.room }
    }
}

/// The content of a batch.
struct Decoded<'v> {
    /// In the order of the file: no two parts in a row are of one export.
    parts: Vec<Part<'v>>,
    /// Number of extents in the pages.
    listed: u64,
    /// The last export with an extent in the pages.
    last_export: Option<ExportId>,
    /// The first error. The last part, in which the error is, may not be whole.
    error: Option<Unusable>,
    /// With the references of all parts.
    room: Room,
}

/// The extents of one export in pages that follow each other.
struct Part<'v> {
    export: ExportId,
    /// `None` of an export which the catalog does not know.
    loading: Option<(&'v Volume, Loading)>,
    /// The last sequence number that the export had given out.
    last: Seq,
    /// The extents in missing segments.
    lost: Vec<KeptExtent>,
}

impl Part<'_> {
    /// Adds those of `extents` which are in covered segments, and counts all of `extents`.
    // Not inlined: the loop has the registers for itself.
    #[inline(never)]
    fn add(
        &mut self,
        extents: ExtentReader<'_>,
        ends: &[End],
        refs: &mut GainedRefs,
    ) -> Result<u64, FormatError> {
        self.last = self.last.max(extents.last_seq());
        let mut loading = self.loading.as_mut().map(|(_, loading)| loading);
        if let Some(loading) = &mut loading {
            loading.gave_out(extents.last_seq());
        }
        let mut count = 0_u64;
        for kept in extents {
            let kept = kept?;
            count = count.saturating_add(1);
            if let Some(loading) = &mut loading {
                // A segment beyond the table is gone.
                match ends.get(kept.number as usize).copied().unwrap_or(End::Gone) {
                    End::Covered(end) if is_within(&kept, end) => loading.add(&kept, refs),
                    End::Covered(_) | End::NotListed => return Err(UNLISTED),
                    End::Missing => self.lost.push(kept),
                    End::Gone => {}
                }
            }
        }
        Ok(count)
    }

    /// Adds the extents of `next`, of the same export, whose references are in `refs`.
    fn append(&mut self, next: Self, refs: &mut GainedRefs) {
        if let (Some((_, loading)), Some((_, next))) = (&mut self.loading, next.loading) {
            loading.append(next, refs);
        }
    }
}

/// Whether the content of `kept`, if there is any, lies before sector `end` of the segment.
#[inline]
fn is_within(kept: &KeptExtent, end: u64) -> bool {
    match kept.content {
        Kept::Data(sector) => u64::from(sector).saturating_add(kept.range.count()) <= end,
        Kept::Zero | Kept::Damaged => true,
    }
}

/// What a checkpoint, and the log beside, say of a segment number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The checkpoint lists no such segment.
    NotListed,
    /// The segment is read, or a later one is in the file.
    Gone,
    /// No file holds the segment, or a later one in its place.
    Missing,
    /// The segment is covered up to this sector.
    Covered(u64),
}
