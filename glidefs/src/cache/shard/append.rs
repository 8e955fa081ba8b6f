//! Writes: admission, the open batch, the append of the batch as one record, and the change to the next segment.
//!
//! Invariants: all admitted requests together have room in the active segment, or together in an empty segment; an append
//! succeeds for every request in the record, and then all are indexed, or fails for every request, and then none is indexed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::request::{Admission, Reservation, Token, WriteSums};
use super::state::{Flight, Load, Pending, WRITE_FRAMES_MAX};
use super::zero::{self, ZERO_ENTRIES_MAX};
use super::{Shard, flight, sync};
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
        admit(self, data_bytes)
    }

    /// Gives back the room of a reservation that no write will use.
    pub fn cancel(&mut self, reservation: Reservation) {
        release(self, reservation.into_room());
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
        let Some(token) = self.enter(volume, token) else { return self.cancel(reservation) };
        write(self, volume, range, fua, reservation.into_room(), (token, sums));
    }

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
        zero::zero(self, volume, range, fua, reservation.into_room(), token);
    }

    /// Ends requests that wait for a segment and are of a volume where no request may wait any more.
    pub fn end_waits(&mut self) {
        end_waits(self);
    }

    /// Does the appends of a turn: first the requests that waited for a segment, then the open batch.
    pub(super) fn append_turn(&mut self) {
        turn(self);
    }
}

fn room_of(data_bytes: usize) -> Room {
    match data_bytes.div_ceil(FRAME_BYTES) {
        0 => Room::of(ZERO_ENTRIES_MAX, 0),
        frames => Room::of(1, u32::try_from(frames).unwrap_or(u32::MAX)),
    }
}

fn admit<T: Token>(shard: &mut Shard<T>, data_bytes: usize) -> Admission {
    let room = room_of(data_bytes);
    let pause = shard.shared.pressure.pause(room.frames);
    if !pause.is_zero() {
        let now = shard.shared.clock.now();
        if now < shard.log.next_admission {
            shard.stats.delays.add(1);
            return Admission::Delay(shard.log.next_admission.saturating_sub(now).min(PAUSE_MAX));
        }
        shard.log.next_admission = now + pause;
    }
    let total = shard.log.reserved.plus(room);
    if has_room(shard, total) {
        shard.log.reserved = total;
        return Admission::Accept(Reservation { room });
    }
    if shard.shared.on_full == OnFull::Enospc
        && shard.log.standby.is_none()
        && shard.shared.pressure.is_stuck()
    {
        return Admission::Full;
    }
    shard.log.crowded = true;
    shard.stats.waits.add(1);
    Admission::Wait
}

/// Whether `total` has room in the active segment, or all of `total` in an empty segment.
fn has_room<T: Token>(shard: &mut Shard<T>, total: Room) -> bool {
    let table = &shard.shared.table;
    if shard.log.active.as_ref().is_some_and(|active| active.has_room(table, total)) {
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
        shard.log.standby = shard.shared.ports[shard.index].take(&shard.shared.signal);
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

fn write<T: Token>(
    shard: &mut Shard<T>,
    volume: &Arc<Volume>,
    range: SectorRange,
    fua: bool,
    room: Room,
    (mut token, sums): (T, Option<WriteSums>),
) {
    let bytes = range.bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
    let frames = bytes.div_ceil(FRAME_BYTES);
    let fits = frames > 0 && frames <= WRITE_FRAMES_MAX && token.buffer().len() >= frames * FRAME_BYTES;
    if !fits || room_of(bytes).frames > room.frames {
        release(shard, room);
        shard.finish(token, Err(IoError::TooLarge));
        return;
    }
    let crcs = sums.and_then(|sums| sums.of(frames));
    if crcs.is_none() {
        // The checksum covers the padding, and must not depend on the former content of the buffer.
        token.buffer()[bytes..frames * FRAME_BYTES].fill(0);
    }
    let volume = Arc::clone(volume);
    take(shard, Pending { token, volume, range, frames, entries: 1, crcs, fua, room });
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

/// Adds a request to the open batch. Where the batch or the active segment is too full for one request more, the batch is
/// appended before. Gives the request back when the append is not possible now.
fn join<T: Token>(shard: &mut Shard<T>, mut pending: Pending<T>) -> Result<(), Pending<T>> {
    let frames = u32::try_from(pending.frames).unwrap_or(u32::MAX);
    let (log, batch) = (&shard.log, &shard.log.open.batch);
    let crowded = !batch.fits(pending.entries, pending.frames)
        || log.active.as_ref().is_some_and(|active| {
            !batch.is_empty() && !active.has_room_for(&shard.shared.table, batch, pending.entries, frames)
        });
    if crowded && !append(shard) {
        return Err(pending);
    }
    if pending.frames == 0 {
        zero::join(shard, pending);
        return Ok(());
    }
    let first = pending.volume.next_seqs(1);
    let mut made = [0; WRITE_FRAMES_MAX];
    if pending.crcs.is_none() {
        let data = &pending.token.buffer()[..pending.frames * FRAME_BYTES];
        for (crc, frame) in made.iter_mut().zip(data.chunks_exact(FRAME_BYTES)) {
            *crc = frame_crc(frame);
        }
    }
    let open = &mut shard.log.open;
    let crcs = &pending.crcs.as_deref().unwrap_or(&made)[..pending.frames];
    let pushed = open.batch.push_data(pending.volume.id(), first, pending.range, crcs);
    debug_assert!(pushed.is_ok(), "the request was measured before");
    open.joined.push(pending);
    Ok(())
}

/// Ends the requests of the backlog that may not wait any more, with [`IoError::Detached`].
fn end_waits<T: Token>(shard: &mut Shard<T>) {
    for _ in 0..shard.log.backlog.len() {
        let Some(pending) = shard.log.backlog.pop_front() else { return };
        if pending.volume.are_waits_ended() {
            release(shard, pending.room);
            shard.finish(pending.token, Err(IoError::Detached));
        } else {
            shard.log.backlog.push_back(pending);
        }
    }
}

fn turn<T: Token>(shard: &mut Shard<T>) {
    flight::go_on(shard);
    while !shard.log.backlog.is_empty()
        && has_segment(shard)
        && let Some(pending) = shard.log.backlog.pop_front()
    {
        let joined = shard.log.open.joined.len();
        if let Err(pending) = join(shard, pending) {
            // The failed append may have moved the open batch to the front of the backlog; this request belongs behind the batch.
            let before = joined - shard.log.open.joined.len();
            shard.log.backlog.insert(before, pending);
            break;
        }
    }
    append(shard);
    zero::turn(shard);
    let table = &shard.shared.table;
    if shard.log.active.as_ref().is_some_and(|active| table.get(active.number).is_poisoned()) {
        flight::leave(shard);
    }
    if shard.log.released && std::mem::take(&mut shard.log.crowded) {
        shard.shared.ports[shard.index].wake();
    }
    shard.log.released = false;
}

/// Whether some segment can take a record: the active one, or the standby.
fn has_segment<T: Token>(shard: &mut Shard<T>) -> bool {
    let table = &shard.shared.table;
    shard.log.active.as_ref().is_some_and(|active| !table.get(active.number).is_poisoned())
        || fetch_standby(shard)
}

/// Makes a segment active that has room for the open batch; `false` when the keeper has no segment ready.
fn make_room<T: Token>(shard: &mut Shard<T>) -> bool {
    if let Some(active) = &shard.log.active {
        let table = &shard.shared.table;
        let usable = !table.get(active.number).is_poisoned();
        if usable && active.has_room_for(table, &shard.log.open.batch, 0, 0) {
            return true;
        }
        flight::leave(shard);
    }
    if !fetch_standby(shard) {
        return false;
    }
    debug_assert!(
        shard.log.active.is_none(),
        "the active segment was left before the next one takes its place"
    );
    shard.log.active = shard.log.standby.take();
    debug_assert!(
        shard.log.active.as_ref().is_some_and(|active| active.has_room_for(
            &shard.shared.table,
            &shard.log.open.batch,
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
    if shard.log.open.batch.is_empty() {
        return true;
    }
    if !shard.log.flights.may_start() {
        return false;
    }
    if !make_room(shard) {
        take_apart(shard);
        return false;
    }
    let spare = shard.log.flights.spare_load();
    let load = std::mem::replace(&mut shard.log.open, spare);
    for pending in &load.joined {
        release(shard, pending.room);
    }
    flight::start(shard, load);
    true
}

/// Moves the requests of the open batch to the front of the backlog, because no segment has room for the batch. The requests give
/// their sequence numbers back. Otherwise a cut would wait for these writes, and these writes for the room made by the cut. The CRCs
/// stay: the requests keep their buffers.
fn take_apart<T: Token>(shard: &mut Shard<T>) {
    let Load { batch, joined } = &mut shard.log.open;
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
        shard.log.backlog.push_front(pending);
    }
    debug_assert_eq!(end, 0, "every entry of a batch is of a request that joined it");
    batch.reset();
}

/// Puts the requests of a written record into the index and ends the requests. A FUA write has to wait for a sync first.
pub(super) fn publish<T: Token>(shard: &mut Shard<T>, flight: &mut Flight<T>) {
    let Flight { mark, place, load, .. } = flight;
    let info = shard.shared.table.get(place.number);
    debug_assert_eq!(
        info.segment_id(),
        place.segment_id,
        "a segment is in use until its shard has let go of it"
    );
    debug_assert_eq!(info.appended(), mark.position, "a record lands where the record before it ended");
    info.set_appended(place.end);
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
