//! DISCARD and `WRITE_ZEROES`: what is recorded, and the recorded zeroes on their way into the index.
//!
//! Does not own the batch (`append`), nor the decision what to record (`volume/zeroes`). Invariants: zeroes are acknowledged when
//! the index has all of them; in a turn zeroes touch a bounded number of extents, so zeroes for a large part of a volume take
//! several turns, and other requests go on meanwhile; the decisions what to record are bounded apart, so new zeroes do not stop
//! those on their way; the segment of the record is pinned until the index has the zeroes.

use std::sync::Arc;

use super::append::{refuse, release, take};
use super::request::{Reservation, Token};
use super::state::{Pending, Zeroes};
use super::{Shard, sync};
use crate::cache::log::format::{Entry, EntryKind};
use crate::cache::log::table::Place;
use crate::cache::volume::Volume;
use crate::cache::volume::error::IoError;
use crate::cache::volume::hold::EXTENTS_MAX;
use crate::cache::volume::zeroes::{Carving, ENTRY_SECTORS_MAX, Zeroing, entries_of};
use crate::units::{SectorRange, Seq};

/// Extents that one request touches before the next one has a turn, and extents looked at for one decision.
const SHARE_EXTENTS: usize = 256;
/// Most entries a zero range is divided into.
pub(super) const ZERO_ENTRIES_MAX: u32 = 16;

impl<T: Token> Shard<T> {
    /// Takes a DISCARD or `WRITE_ZEROES` of `range`, at most 32 TiB. With `fua` the token comes back when the zeroes survive a
    /// power cut.
    pub fn zero(
        &mut self,
        volume: &Arc<Volume>,
        range: SectorRange,
        fua: bool,
        reservation: Reservation,
        token: T,
    ) {
        let Some(token) = self.enter(volume, token) else { return self.cancel(reservation) };
        let room = reservation.room;
        if range.is_empty() || entries_of(range) > u64::from(ZERO_ENTRIES_MAX) {
            release(self, room);
            self.finish(token, Err(IoError::TooLarge));
            return;
        }
        let volume = Arc::clone(volume);
        let mut pending = Pending { token, volume, range, frames: 0, entries: 0, crcs: None, fua, room };
        pending.measure();
        take(self, pending);
    }
}

/// Adds zeroes to the open batch, which has room for them, or ends the request where nothing has to be recorded.
pub(super) fn join<T: Token>(shard: &mut Shard<T>, mut pending: Pending<T>) {
    let share = SHARE_EXTENTS.min(shard.log.looks_left);
    let decision = pending.volume.begin_zeroes(pending.range, pending.fua, share).inspect(|(_, looked)| {
        shard.log.looks_left = shard.log.looks_left.saturating_sub(*looked);
    });
    let (first, range) = match decision {
        Ok((Zeroing::Record(first, range), _)) => (first, range),
        Ok((Zeroing::Nothing, _)) => {
            release(shard, pending.room);
            return shard.finish(pending.token, Ok(()));
        }
        Err(error) => return refuse(shard, pending, error),
    };
    let open = &mut shard.log.common.open;
    let (export, before) = (pending.volume.id(), open.batch.entries().len());
    let (mut at, mut seq) = (range.start(), first.0);
    while at < range.end() {
        let part = SectorRange::new(at, (range.end() - at).min(ENTRY_SECTORS_MAX));
        let entry = |range| Entry { export, seq: Seq(seq), range, kind: EntryKind::Zero };
        let pushed = part.is_some_and(|part| open.batch.push(entry(part), &[]));
        debug_assert!(pushed, "the request was measured before");
        at = part.map_or(range.end(), SectorRange::end);
        seq += 1;
    }
    pending.entries = open.batch.entries().len() - before;
    open.joined.push(pending);
}

/// Begins to put zeroes into the index, of which `entries` were recorded in the record that ends at `place`.
pub(super) fn publish<T: Token>(shard: &mut Shard<T>, pending: Pending<T>, entries: &[Entry], place: Place) {
    let Pending { token, volume, fua, .. } = pending;
    let hull = entries.first().zip(entries.last()).and_then(|(first, last)| {
        let range = SectorRange::new(first.range.start(), last.range.end() - first.range.start())?;
        Some((first.seq, range))
    });
    let Some((first, range)) = hull else {
        debug_assert!(false, "zeroes without an entry are not recorded");
        return shard.finish(token, Err(IoError::Write));
    };
    shard.shared.table.get(place.number).pin();
    shard.log.zeroes.push_back(Zeroes { token, volume, carving: Carving::new(first, range, place), fua });
    carve(shard);
}

/// Puts zeroes into the index as far as the turn allows: a share of each request, so short ones do not stand behind long ones.
fn carve<T: Token>(shard: &mut Shard<T>) {
    while shard.log.zeroes_left > 0
        && let Some(mut zeroes) = shard.log.zeroes.pop_front()
    {
        let Zeroes { volume, carving, .. } = &mut zeroes;
        let share = SHARE_EXTENTS.min(shard.log.zeroes_left);
        let outcome = match volume.carve_some(&shard.shared.table, carving, share) {
            Ok((touched, is_done)) => {
                shard.log.zeroes_left = shard.log.zeroes_left.saturating_sub(touched);
                if !is_done {
                    shard.log.zeroes.push_back(zeroes);
                    continue;
                }
                Ok(())
            }
            Err(error) => Err(error),
        };
        let Zeroes { token, volume, carving, fua } = zeroes;
        shard.shared.table.get(carving.place.number).unpin();
        match outcome {
            Ok(()) if fua => {
                let store = sync::InStore::of(&volume, carving.last());
                sync::wait_for(shard, carving.place, store, token);
            }
            outcome => shard.finish(token, outcome),
        }
    }
}

/// Goes on with zeroes from earlier turns. The worker takes another turn soon if some are left.
pub(super) fn turn<T: Token>(shard: &mut Shard<T>) {
    carve(shard);
    shard.log.zeroes_left = EXTENTS_MAX;
    shard.log.looks_left = EXTENTS_MAX;
    if !shard.log.zeroes.is_empty() {
        shard.shared.ports[shard.index].wake();
    }
}
