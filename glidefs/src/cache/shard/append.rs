//! Writes: admission, the check of a WRITE and the choice of its lane, the open batch of the common lane, the append of the batch as one
//! record, and the change to the next segment. Does not own what the other lane does with a WRITE (`through`).
//!
//! Invariants: all admitted requests together have room in the active segment, or together in an empty segment; an append
//! succeeds for every request in the record, and then all are indexed, or fails for every request, and then none is indexed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::request::{Admission, Reservation, Token, WriteSums};
use super::state::{Flight, Load, Log, Pending, WRITE_FRAMES_MAX};
use super::zero::{self, ZERO_ENTRIES_MAX};
use super::{Shard, flight, sync, through};
use crate::cache::handoff::Way;
use crate::cache::log::format::frame_crc;
use crate::cache::log::segment::{Room, SegmentWriter};
use crate::cache::options::OnFull;
use crate::cache::volume::Volume;
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::extent;
use crate::units::{FRAME_BYTES, SectorRange, Seq};

/// Longest pause asked for at once, so that a write soon notices new room.
const PAUSE_MAX: Duration = Duration::from_millis(10);

impl<T: Token> Shard<T> {
    /// May a write of `data_bytes` (0 for a range of zeroes) be taken now? Reserves room in the log when the answer is
    /// [`Admission::Accept`]. Call this before the request gets a buffer.
    pub fn admit(&mut self, data_bytes: usize) -> Admission {
        let room = room_of(data_bytes);
        let pause = self.shared.pressure.pause(room.frames);
        if !pause.is_zero() {
            let now = self.shared.clock.now();
            if now < self.log.next_admission {
                self.stats.delays.add(1);
                return Admission::Delay(self.log.next_admission.saturating_sub(now).min(PAUSE_MAX));
            }
            self.log.next_admission = now + pause;
        }
        let total = self.log.reserved.plus(room);
        if has_room(self, total) {
            self.log.reserved = total;
            return Admission::Accept(Reservation { room });
        }
        if self.shared.on_full == OnFull::Enospc
            && self.log.standby.is_none()
            && self.shared.pressure.is_stuck()
        {
            return Admission::Full;
        }
        self.log.crowded = true;
        self.stats.waits.add(1);
        Admission::Wait
    }

    /// Gives back the room of a reservation that no write will use.
    pub fn cancel(&mut self, reservation: Reservation) {
        release(self, reservation.room);
    }

    /// Takes a WRITE of `range`, 1 byte to [`crate::units::REQUEST_BYTES_MAX`], from the token's buffer, and adds
    /// the WRITE to the open batch. The bytes of the buffer after the range, up to the end of the range's last frame, are
    /// overwritten with zeroes. With `fua` the token comes back when the data survives a power cut.
    pub fn write(
        &mut self,
        volume: &Arc<Volume>,
        range: SectorRange,
        fua: bool,
        reservation: Reservation,
        token: T,
    ) {
        self.write_summed(volume, range, fua, reservation, (token, None));
    }

    /// As [`Self::write`]. Where `sums` are given, these are of the bytes in the buffer, and the bytes after the range are zeroes.
    pub fn write_summed(
        &mut self,
        volume: &Arc<Volume>,
        range: SectorRange,
        fua: bool,
        reservation: Reservation,
        (token, sums): (T, Option<WriteSums>),
    ) {
        let Some(mut token) = self.enter(volume, token) else { return self.cancel(reservation) };
        let room = reservation.room;
        let bytes = range.bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
        let frames = bytes.div_ceil(FRAME_BYTES);
        let fits = frames > 0 && frames <= WRITE_FRAMES_MAX && token.buffer().len() >= frames * FRAME_BYTES;
        if !fits || room_of(bytes).frames > room.frames {
            release(self, room);
            self.finish(token, Err(IoError::TooLarge));
            return;
        }
        let crcs = sums.and_then(|sums| sums.of(frames));
        if crcs.is_none() {
            // The checksum covers the padding, and must not depend on the former content of the buffer.
            token.buffer()[bytes..frames * FRAME_BYTES].fill(0);
        }
        let volume = Arc::clone(volume);
        let pending = Pending { token, volume, range, frames, entries: 1, crcs, fua, room };
        if let Err(pending) = through::join(self, pending) {
            take(self, pending);
        }
    }

    /// Ends requests that wait for a segment and are of a volume where no request may wait any more.
    pub fn end_waits(&mut self) {
        for _ in 0..self.log.backlog.len() {
            let Some(pending) = self.log.backlog.pop_front() else { return };
            if pending.volume.are_waits_ended() {
                release(self, pending.room);
                self.finish(pending.token, Err(IoError::Detached));
            } else {
                self.log.backlog.push_back(pending);
            }
        }
    }

    /// Does the appends of a turn: first the requests that waited for a segment, then the open batch.
    pub(super) fn append_turn(&mut self) {
        flight::go_on(self);
        while !self.log.backlog.is_empty()
            && has_segment(self)
            && let Some(pending) = self.log.backlog.pop_front()
        {
            let joined = self.log.common.open.joined.len();
            if let Err(pending) = join(self, pending) {
                // The failed append may have moved the open batch to the front of the backlog; this request belongs behind the batch.
                let before = joined - self.log.common.open.joined.len();
                self.log.backlog.insert(before, pending);
                break;
            }
        }
        append(self);
        zero::turn(self);
        let table = &self.shared.table;
        if self.log.common.active.as_ref().is_some_and(|active| table.get(active.number).is_poisoned()) {
            flight::leave(self, Way::Common);
        }
        if self.log.released && std::mem::take(&mut self.log.crowded) {
            self.shared.ports[self.index].wake();
        }
        self.log.released = false;
    }
}

pub(super) fn room_of(data_bytes: usize) -> Room {
    match data_bytes.div_ceil(FRAME_BYTES) {
        0 => Room::of(ZERO_ENTRIES_MAX, 0),
        frames => Room::of(1, u32::try_from(frames).unwrap_or(u32::MAX)),
    }
}

/// Whether `total` has room in the active segment, or all of `total` in an empty segment.
fn has_room<T: Token>(shard: &mut Shard<T>, total: Room) -> bool {
    let table = &shard.shared.table;
    if shard.log.common.active.as_ref().is_some_and(|active| active.has_room(table, total)) {
        return true;
    }
    if !SegmentWriter::empty_has_room(table, total) {
        return false;
    }
    fetch_standby(shard)
}

/// Takes the ready segment from the keeper unless the shard has one. Returns whether the shard has one now.
fn fetch_standby<T: Token>(shard: &mut Shard<T>) -> bool {
    if shard.log.standby.is_none() {
        shard.log.standby = shard.shared.ports[shard.index].take(Way::Common, &shard.shared.signal);
    }
    shard.log.standby.is_some()
}

pub(super) fn release<T: Token>(shard: &mut Shard<T>, room: Room) {
    let reserved = shard.log.reserved;
    debug_assert!(
        reserved.frames >= room.frames && reserved.footer_bytes >= room.footer_bytes,
        "{room:?} is given back of the {reserved:?} that is reserved"
    );
    shard.log.reserved = reserved.minus(room);
    shard.log.released = true;
}

pub(super) fn take<T: Token>(shard: &mut Shard<T>, pending: Pending<T>) {
    if shard.log.backlog.is_empty() {
        if let Err(pending) = join(shard, pending) {
            shard.log.backlog.push_back(pending);
        }
    } else {
        shard.log.backlog.push_back(pending);
    }
}

/// Adds a request to the open batch of the common lane. Where the batch or the active segment is too full for one request more, the
/// batch is appended before. Gives the request back when the append is not possible now.
fn join<T: Token>(shard: &mut Shard<T>, pending: Pending<T>) -> Result<(), Pending<T>> {
    let frames = u32::try_from(pending.frames).unwrap_or(u32::MAX);
    let Log { common, standby, .. } = &shard.log;
    let batch = &common.open.batch;
    let crowded = !batch.fits(pending.entries, pending.frames)
        || common.active.as_ref().or(standby.as_ref()).is_some_and(|active| {
            !batch.is_empty() && !active.has_room_for(&shard.shared.table, batch, pending.entries, frames)
        });
    if crowded && !append(shard) {
        return Err(pending);
    }
    if pending.frames == 0 {
        zero::join(shard, pending);
        return Ok(());
    }
    add_data(shard, Way::Common, pending);
    Ok(())
}

/// Adds a WRITE to the open batch of a lane, which has room for it, or ends the WRITE where the export has no number for it.
pub(super) fn add_data<T: Token>(shard: &mut Shard<T>, way: Way, mut pending: Pending<T>) {
    let first = match pending.volume.next_seqs(1) {
        Ok(first) => first,
        Err(error) => return refuse(shard, pending, error),
    };
    let open = &mut shard.log.lane(way).open;
    let mut made = [0; WRITE_FRAMES_MAX];
    if pending.crcs.is_none() {
        let data = &pending.token.buffer()[..pending.frames * FRAME_BYTES];
        for (crc, frame) in made.iter_mut().zip(data.chunks_exact(FRAME_BYTES)) {
            *crc = frame_crc(frame);
        }
    }
    let crcs = &pending.crcs.as_deref().unwrap_or(&made)[..pending.frames];
    let pushed = open.batch.push_data(pending.volume.id(), first, pending.range, crcs);
    debug_assert!(pushed, "the request was measured before");
    open.joined.push(pending);
}

/// Ends a request that the volume does not take.
pub(super) fn refuse<T: Token>(shard: &mut Shard<T>, pending: Pending<T>, error: IoError) {
    let Pending { token, volume, room, .. } = pending;
    if error == IoError::NoSequenceNumber
        && let Some(suppressed) = volume.bad_writebacks.pass()
    {
        let error = &error as &dyn std::error::Error;
        tracing::error!(export = volume.id().0, error, suppressed, "a write has no sequence number");
    }
    release(shard, room);
    shard.finish(token, Err(error));
}

/// Whether some segment can take a record: the active one, or the standby.
fn has_segment<T: Token>(shard: &mut Shard<T>) -> bool {
    let table = &shard.shared.table;
    shard.log.common.active.as_ref().is_some_and(|active| !table.get(active.number).is_poisoned())
        || fetch_standby(shard)
}

/// Makes a segment active that has room for the open batch; `false` when the keeper has no segment ready.
fn make_room<T: Token>(shard: &mut Shard<T>) -> bool {
    if let Some(active) = &shard.log.common.active {
        let table = &shard.shared.table;
        let usable = !table.get(active.number).is_poisoned();
        if usable && active.has_room_for(table, &shard.log.common.open.batch, 0, 0) {
            return true;
        }
        flight::leave(shard, Way::Common);
    }
    if !fetch_standby(shard) {
        return false;
    }
    debug_assert!(
        shard.log.common.active.is_none(),
        "the active segment was left before the next one takes its place"
    );
    shard.log.common.active = shard.log.standby.take();
    debug_assert!(
        shard.log.common.active.as_ref().is_some_and(|active| active.has_room_for(
            &shard.shared.table,
            &shard.log.common.open.batch,
            0,
            0
        )),
        "what was admitted has room in an empty segment"
    );
    true
}

/// Appends the open batch. Returns `false`, and appends nothing, when no segment has room for the batch or too many records are
/// under way.
fn append<T: Token>(shard: &mut Shard<T>) -> bool {
    if shard.log.common.open.batch.is_empty() {
        return true;
    }
    if !shard.log.common.flights.may_start() {
        return false;
    }
    if !make_room(shard) {
        take_apart(shard, Way::Common);
        return false;
    }
    let rooms = shard.log.common.open.joined.iter().map(|pending| pending.room);
    let room = rooms.fold(Room::default(), Room::plus);
    release(shard, room);
    flight::start(shard, Way::Common);
    true
}

/// Moves the requests of a lane's open batch to the front of the backlog, because no segment has room for the batch. The requests give
/// their sequence numbers back. Otherwise a cut would wait for these writes, and these writes for the room made by the cut. The CRCs
/// stay: the requests keep their buffers.
pub(super) fn take_apart<T: Token>(shard: &mut Shard<T>, way: Way) {
    let Log { common, through, backlog, reserved, .. } = &mut shard.log;
    let Load { batch, joined } = match way {
        Way::Common => &mut common.open,
        Way::Through => &mut through.open,
    };
    let mut end = batch.entries().len();
    let mut crcs = batch.crcs();
    while let Some(mut pending) = joined.pop() {
        let first = end.saturating_sub(pending.entries);
        if let Some(entry) = batch.entries().get(first) {
            pending.volume.gave_back(entry.seq, pending.entries as u64, pending.kind());
        }
        end = first;
        let (before, of_this) = crcs.split_at(crcs.len().saturating_sub(pending.frames));
        crcs = before;
        if !of_this.is_empty() {
            let kept = pending.crcs.get_or_insert_with(|| Box::new([0; WRITE_FRAMES_MAX]));
            kept[..of_this.len()].copy_from_slice(of_this);
        }
        pending.measure();
        if way == Way::Through {
            // Nobody asked for room in the common lane, but those who ask from now on wait for this one.
            pending.room = room_of(pending.frames * FRAME_BYTES);
            *reserved = reserved.plus(pending.room);
        }
        backlog.push_front(pending);
    }
    debug_assert_eq!(end, 0, "every entry of a batch is of a request that joined it");
    batch.reset();
}

/// Puts the requests of a written record into the index and ends the requests. A FUA write has to wait for a sync first.
pub(super) fn publish<T: Token>(shard: &mut Shard<T>, way: Way, flight: &mut Flight<T>) {
    let Flight { mark, place, load, .. } = flight;
    let info = shard.shared.table.get(place.number);
    debug_assert_eq!(
        info.segment_id(),
        place.segment_id,
        "a segment is in use until its shard has let go of it"
    );
    debug_assert_eq!(info.appended(), mark.position, "a record lands where the record before it ended");
    info.set_appended(place.end);
    if way == Way::Through {
        info.note_stable(mark.position, place.end);
        shard.stats.stable_appends.add(1);
    }
    shard.stats.appends.add(1);
    shard.stats.appended_requests.add(load.joined.len() as u64);
    shard.stats.appended_bytes.add(u64::from(place.end - mark.position) * FRAME_BYTES as u64);
    let mut first = 0;
    for pending in load.joined.drain(..) {
        let entries = &load.batch.entries()[first..first + pending.entries];
        first += pending.entries;
        if pending.frames == 0 {
            zero::publish(shard, pending, entries, *place);
            continue;
        }
        let extents = entries.iter().filter_map(|entry| extent(entry, place.number, mark.record));
        let first_seq = entries.first().map_or(Seq(u64::MAX), |entry| entry.seq);
        let seqs = (first_seq, entries.len() as u64);
        match pending.volume.appended(&shard.shared.table, seqs, extents, *place) {
            Ok(()) if pending.fua => {
                let last = entries.last().map_or(first_seq, |entry| entry.seq);
                let store = sync::InStore::of(&pending.volume, last);
                sync::wait_for(shard, *place, store, pending.token);
            }
            outcome => shard.finish(pending.token, outcome),
        }
    }
    debug_assert_eq!(
        first,
        load.batch.entries().len(),
        "every entry of a record is of a request that joined it"
    );
}

/// Fails the requests of a record that was not written.
pub(super) fn fail<T: Token>(shard: &mut Shard<T>, flight: &mut Flight<T>, error: &io::Error) {
    let Flight { mark, place, load, .. } = flight;
    shard.stats.append_errors.add(1);
    if let Some(suppressed) = shard.bad_appends.pass() {
        tracing::error!(
            file = shard.shared.disk.segment_name(place.number),
            offset_bytes = mark.offset(),
            error = error as &dyn std::error::Error,
            requests = load.joined.len(),
            suppressed,
            "appending to the cache failed; the requests fail"
        );
    }
    let mut first = 0;
    for pending in load.joined.drain(..) {
        if let Some(entry) = load.batch.entries().get(first) {
            pending.volume.failed(entry.seq, pending.entries as u64, pending.kind());
        }
        first += pending.entries;
        shard.finish(pending.token, Err(IoError::Write));
    }
}
