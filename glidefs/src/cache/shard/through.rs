//! The lane for writes whose FLUSH is expected: one trip to the disk in place of two.
//!
//! A FLUSH of data in the page cache is an `fdatasync`, which a ring hands to a thread of the kernel. A record of this lane goes past the
//! page cache to a file where a write returns when it is stable, so the FLUSH behind it has nothing left to do. Which writes come here
//! depends on what the export has done so far (`volume/flush_habit`); a FUA write is flushed by itself.
//!
//! Owns the choice between the lanes. Does not own the way of a record to the disk (`flight`). Invariants:
//! - A write of this lane is acknowledged when it is stable, and a write of the common lane never waits for one of this lane: the lanes
//!   have segments of their own. Behind a record under way in the same segment no record could be acknowledged, because recovery
//!   ends at the first hole.
//! - All records of a segment come through here, in the order of their places. So when one has landed, everything before is stable.
//! - The lane takes no write that would have to wait for a segment: such a write goes the common way. Nor does the lane keep much
//!   memory from others: a few records are under way, and one is open.

use super::append::{add_data, release, take_apart};
use super::request::Token;
use super::state::{Pending, WRITE_FRAMES_MAX};
use super::{Shard, flight};
use crate::cache::handoff::Way;

/// Most frames of memory that the WRITEs of a record have: one WRITE of the largest size, or several smaller ones.
const RECORD_FRAMES_MAX: usize = WRITE_FRAMES_MAX;

/// Takes a WRITE if it is expected to be flushed next, and the lane has room for it. Otherwise gives the WRITE back.
pub(super) fn join<T: Token>(shard: &mut Shard<T>, mut pending: Pending<T>) -> Result<(), Pending<T>> {
    let is_flushed_next = pending.fua || pending.volume.flush_habit.wrote();
    if !is_flushed_next || !pending.token.is_lendable() || !has_room(shard, pending.frames) {
        return Err(pending);
    }
    // The room was reserved in the common lane.
    release(shard, std::mem::take(&mut pending.room));
    add_data(shard, Way::Through, pending);
    Ok(())
}

/// Whether the open batch has room for one more request with `frames` frames, or is made to have.
fn has_room<T: Token>(shard: &mut Shard<T>, frames: usize) -> bool {
    if !shard.log.through.flights.is_deferred() || shard.shared.pressure.is_scarce() {
        return false;
    }
    if fits(shard, frames) {
        return true;
    }
    append(shard);
    if !shard.log.through.open.batch.is_empty() {
        return false;
    }
    if fits(shard, frames) {
        return true;
    }
    let Some(next) = shard.shared.ports[shard.index].take(Way::Through, &shard.shared.signal) else {
        return false;
    };
    flight::leave(shard, Way::Through);
    shard.log.through.active = Some(next);
    fits(shard, frames)
}

/// Whether the open batch and the active segment have room for one more request with `frames` frames.
fn fits<T: Token>(shard: &Shard<T>, frames: usize) -> bool {
    let (lane, table) = (&shard.log.through, &shard.shared.table);
    let batch = &lane.open.batch;
    let frames_more = u32::try_from(frames).unwrap_or(u32::MAX);
    let memory = lane.open.joined.iter().map(|pending| memory_frames(pending.frames)).sum::<usize>();
    memory + memory_frames(frames) <= RECORD_FRAMES_MAX
        && batch.fits(1, frames)
        && lane.active.as_ref().is_some_and(|active| {
            !table.get(active.number).is_poisoned() && active.has_room_for(table, batch, 1, frames_more)
        })
}

/// Frames of the slot which a WRITE of `frames` frames has at most.
fn memory_frames(frames: usize) -> usize {
    match frames {
        0..=1 => frames,
        2..=4 => 4,
        5..=16 => 16,
        _ => WRITE_FRAMES_MAX,
    }
}

/// Hands the open batch out to be written, unless too many records are under way: then requests gather meanwhile. The requests go the
/// common way if the segment was given up because a record in front of them failed, or if a sync of it has failed.
fn append<T: Token>(shard: &mut Shard<T>) {
    let (lane, table) = (&shard.log.through, &shard.shared.table);
    if lane.open.batch.is_empty() {
        return;
    }
    if lane.active.as_ref().is_none_or(|active| table.get(active.number).is_poisoned()) {
        return take_apart(shard, Way::Through);
    }
    if !lane.flights.may_start() {
        return;
    }
    flight::start(shard, Way::Through);
}

impl<T: Token> Shard<T> {
    /// Does the appends of a turn. Gives the segment up while segments are scarce, and when a sync of the segment has failed.
    pub(super) fn through_turn(&mut self) {
        append(self);
        let (lane, table) = (&self.log.through, &self.shared.table);
        if let Some(active) = &lane.active {
            let has_to_go = self.shared.pressure.is_scarce() || table.get(active.number).is_poisoned();
            if has_to_go && !lane.open.batch.is_empty() {
                return;
            }
            if has_to_go {
                flight::leave(self, Way::Through);
            }
        }
    }
}
