//! READs of content that is all in mapped segments: the bytes are verified where they are, and copied to the client from there, without
//! a buffer and without a read of the file.
//!
//! Does not own the mappings (`log/mapping`, which says why the bytes copied are the bytes verified). Invariant: a READ that cannot be
//! served so has changed nothing, and goes the way of [`Shard::read`].

use std::io::{self, IoSlice};
use std::sync::Arc;

use arc_swap::Guard;
use arrayvec::ArrayVec;

use super::source_of;
use super::state::{Reads, SegmentBytes};
use crate::cache::log::mapping::Mapping;
use crate::cache::log::sums::Verdict;
use crate::cache::shard::Shard;
use crate::cache::shard::request::Token;
use crate::cache::shard::sums::Segment;
use crate::cache::volume::Volume;
use crate::cache::volume::extent::{Backing, Piece};
use crate::units::SectorRange;

/// Most pieces of a READ served from mapped segments: a READ of 128 KiB that was written in 4 KiB has as many.
const PIECES_MAX: usize = 32;

/// A segment with pieces of a READ.
struct MappedSegment<'a> {
    segment: Segment<'a>,
    mapping: Guard<Option<Arc<Mapping>>>,
}

impl<T: Token> Shard<T> {
    /// Serves a READ as [`Self::read`] does, if all of the content is in mapped segments and right: `copy` copies the bytes to the client,
    /// in order. `false` where [`Self::read`] has to serve the READ: the content is elsewhere, or the copy failed. The other way then
    /// meets the same failure and reports it, or succeeds.
    pub fn read_mapped(
        &mut self,
        volume: &Volume,
        range: SectorRange,
        copy: impl FnOnce(&[IoSlice<'_>]) -> io::Result<()>,
    ) -> bool {
        if !self.shared.has_mapped() || volume.lost().is_some() {
            return false;
        }
        let mut plan = std::mem::take(&mut self.reads.plan);
        volume.plan(&self.shared.table, range, &mut plan);
        // Most READs have one piece, and need no room for 32.
        let is_served = match plan.len() {
            1 => copy_verified::<_, 1>(self, volume, range, &plan, copy),
            _ => copy_verified::<_, PIECES_MAX>(self, volume, range, &plan, copy),
        }
        .is_some();
        for piece in plan.drain(..) {
            if let Some(Backing::Data { number, .. }) = piece.backing {
                self.shared.table.get(number).unpin();
            }
        }
        self.reads.plan = plan;
        if is_served {
            self.stats.reads.add(1);
            self.stats.reads_mapped.add(1);
        }
        is_served
    }
}

/// Copies the bytes of `plan`, up to `MOST` pieces, whose segments are pinned, to the client. `None` where that was not possible.
fn copy_verified<T: Token, const MOST: usize>(
    shard: &mut Shard<T>,
    volume: &Volume,
    range: SectorRange,
    plan: &[Piece],
    copy: impl FnOnce(&[IoSlice<'_>]) -> io::Result<()>,
) -> Option<()> {
    if plan.is_empty() || plan.len() > MOST {
        return None;
    }
    let Shard { shared, reads: Reads { pages, .. }, .. } = shard;
    let source = |piece: &Piece| match piece.backing {
        Some(Backing::Data { number, sector }) => {
            Some(source_of(piece, (number, sector), range, volume.id()))
        }
        _ => None,
    };
    // Pieces of one READ are mostly in a few segments. None of the vectors can have more elements than the plan.
    let mut segments = ArrayVec::<MappedSegment<'_>, MOST>::new();
    let mut sources = ArrayVec::<(SegmentBytes, usize), MOST>::new();
    for piece in plan {
        let source = source(piece)?;
        let known = segments.iter().rposition(|mapped| mapped.segment.number == source.number);
        let index = known.unwrap_or(segments.len());
        if known.is_none() {
            let segment = Segment::of(shared, source.number);
            segments.push(MappedSegment { mapping: segment.info.mapping(), segment });
        }
        sources.push((source, index));
    }
    // No frame is verified before all frames and checksums are there.
    let mut frames = ArrayVec::<&[u8], MOST>::new();
    for (source, index) in &sources {
        let MappedSegment { segment, mapping } = segments.get(*index)?;
        // SAFETY: the caller has pinned the segments of the plan until the copy has ended, and an index has places of appended records
        // only.
        frames.push(unsafe { mapping.as_deref()?.frames(source.first, source.frames)? });
        if !segment.are_known(shared, pages, source.first, source.frames) {
            return None;
        }
    }
    let mut parts = ArrayVec::<IoSlice<'_>, MOST>::new();
    for ((source, index), bytes) in sources.iter().zip(frames) {
        let MappedSegment { segment, mapping } = segments.get(*index)?;
        match segment.compare(shared, pages, source.first, bytes)? {
            Verdict::Right => {
                parts.push(IoSlice::new(bytes.get(source.skip..source.skip.checked_add(source.len)?)?));
            }
            Verdict::Wrong(_) => {
                mapping.as_deref().inspect(|mapping| mapping.give_up());
                return None;
            }
            Verdict::Missing(_) => return None,
        }
    }
    copy(&parts).ok()
}
