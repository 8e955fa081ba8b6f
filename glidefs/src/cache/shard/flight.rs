//! Records from the moment when a record has a place until the requests of the record may be acknowledged.
//!
//! Invariants, for each lane: the records of a segment land in the order of their places, because recovery ends at the first hole, and
//! so no record behind a hole may be acknowledged; when one record fails, all records behind the failed one in the same segment fail as
//! well; a segment is closed when no write to the segment is under way.

use std::io;
use std::ops::Range;

use super::Shard;
use super::append::{fail, publish};
use super::request::{Token, Want};
use super::state::{Flight, Flights, Lane, Load, LogStep, Rest};
use crate::cache::handoff::Way;
use crate::cache::log::disk::SegmentFile;
use crate::cache::log::segment::{Mark, SegmentWriter};
use crate::units::{FRAME_BYTES, PIECE_BYTES};

/// Writes the open batch of a lane as a record, or a first piece of the record, or hands the record out to be written. The active segment
/// has room for the record.
pub(super) fn start<T: Token>(shard: &mut Shard<T>, way: Way) {
    let Shard { shared, log, wanted, next_append, .. } = shard;
    let Lane { active, open, flights } = log.lane(way);
    let Some(active) = active else {
        debug_assert!(false, "a record is written only when there is a segment for it");
        return;
    };
    let mut load = std::mem::replace(open, flights.loads.pop().unwrap_or_default());
    let mark = active.place_record(&shared.table, &mut load.batch);
    let place = active.place();
    debug_assert!(place.end < shared.table.segment_frames(), "a record leaves room for footer and trailer");
    let op = *next_append;
    let mut rest = None;
    let outcome = if let Some(headers) = &mut flights.headers {
        *next_append = op.wrapping_add(1);
        let mut parts = flights.parts.pop().unwrap_or_default();
        match lend(headers, &mut load, &mut parts) {
            Ok(()) => {
                let offset = mark.offset();
                wanted.push(Want::Append { op, file: active.file.clone(), offset, parts });
                None
            }
            Err(error) => {
                take_back(headers, &mut parts, load.batch.header_count());
                flights.parts.push(parts);
                Some(Err(error))
            }
        }
    } else if flights.in_pieces && load.batch.record_bytes() > PIECE_BYTES {
        rest = Some(Rest { file: active.file.clone(), written: 0 });
        None
    } else {
        let all = 0..load.batch.record_bytes();
        Some(write(&*active.file, mark, &mut load, all))
    };
    let flight = Flight { op, mark, place, load, outcome: None, rest };
    match outcome {
        // No record before this one is under way.
        Some(outcome) if flights.steps.is_empty() => land(shard, way, flight, outcome),
        outcome => flights.steps.push_back(LogStep::Land(Flight { outcome, ..flight })),
    }
    settle(shard, way);
    go_on(shard);
}

/// Writes the bytes `window` of the record of `load`.
fn write<T: Token>(
    file: &dyn SegmentFile,
    mark: Mark,
    load: &mut Load<T>,
    window: Range<usize>,
) -> io::Result<()> {
    let data = load.joined.iter_mut().filter(|pending| pending.frames > 0).map(|pending| {
        let bytes = pending.frames * FRAME_BYTES;
        &pending.token.buffer()[..bytes]
    });
    SegmentWriter::write_record(file, mark, &load.batch, data, window)
}

/// How far byte `at` of the record at `mark` is into a stretch of the file as long as a piece.
fn in_page(mark: Mark, at: usize) -> usize {
    (usize::try_from(mark.offset() % PIECE_BYTES as u64).unwrap_or(0) + at) % PIECE_BYTES
}

/// Writes the next piece of a record that is written in pieces, if there is one: only in the common lane.
pub(super) fn go_on<T: Token>(shard: &mut Shard<T>) {
    let Some(LogStep::Land(Flight { mark, load, outcome, rest, .. })) =
        shard.log.common.flights.steps.front_mut()
    else {
        return;
    };
    let Some(Rest { file, written }) = rest else { return };
    let bytes = load.batch.record_bytes();
    // A piece ends where large pages of the page cache begin: the kernel takes twice as long for pieces that lie across.
    let end = bytes.min(*written + PIECE_BYTES - in_page(*mark, *written));
    match write(&**file, *mark, load, *written..end) {
        Ok(()) if end < bytes => *written = end,
        ended => (*outcome, *rest) = (Some(ended), None),
    }
    settle(shard, Way::Common);
}

/// Moves the memory of the record of `load` to `parts`: headers first, then the data of the requests.
fn lend<T: Token>(
    headers: &mut Vec<T::Part>,
    load: &mut Load<T>,
    parts: &mut Vec<T::Part>,
) -> io::Result<()> {
    for header in load.batch.headers() {
        let mut part = headers.pop().ok_or(io::ErrorKind::QuotaExceeded)?;
        let copied = part.as_mut().get_mut(..FRAME_BYTES).map(|frame| frame.copy_from_slice(header));
        parts.push(part);
        copied.ok_or(io::ErrorKind::InvalidInput)?;
    }
    for pending in load.joined.iter_mut().filter(|pending| pending.frames > 0) {
        let lent = pending.token.lend(pending.frames * FRAME_BYTES);
        parts.push(lent.ok_or(io::ErrorKind::Unsupported)?);
    }
    Ok(())
}

/// Puts the first `count` of `parts`, the headers of a record, back to `headers`, and drops the rest.
fn take_back<P>(headers: &mut Vec<P>, parts: &mut Vec<P>, count: usize) {
    headers.extend(parts.drain(..).take(count));
}

impl<T: Token> Shard<T> {
    /// Takes the result of the [`Want::Append`] with this `op`; `parts` are the parts of the want.
    pub fn append_done(&mut self, op: u32, result: io::Result<()>, mut parts: Vec<T::Part>) {
        let is_it = |flight: &Flight<T>| flight.op == op && flight.outcome.is_none();
        let has_it = |lane: &Lane<T>| {
            lane.flights.steps.iter().any(|step| matches!(step, LogStep::Land(flight) if is_it(flight)))
        };
        let way = if has_it(&self.log.through) { Way::Through } else { Way::Common };
        let Flights { headers, steps, parts: spare, .. } = &mut self.log.lane(way).flights;
        let found = steps.iter_mut().find_map(|step| match step {
            LogStep::Land(flight) if is_it(flight) => Some(flight),
            _ => None,
        });
        debug_assert!(found.is_some(), "no append {op} is under way");
        if let Some(flight) = found {
            if let Some(headers) = headers {
                let count = flight.load.batch.header_count();
                debug_assert!(
                    parts.len() >= count,
                    "append {op} came back with {} of its {count} headers",
                    parts.len()
                );
                take_back(headers, &mut parts, count);
            }
            flight.outcome = Some(result);
        }
        spare.push(parts);
        settle(self, way);
    }
}

/// Gives up the active segment of a lane. The segment is closed after the last record under way in the segment has landed.
pub(super) fn leave<T: Token>(shard: &mut Shard<T>, way: Way) {
    let Lane { active, flights, .. } = shard.log.lane(way);
    if let Some(active) = active.take() {
        flights.steps.push_back(LogStep::Close(active));
        settle(shard, way);
    }
}

/// Takes all steps of a lane up to the first record that is still being written.
fn settle<T: Token>(shard: &mut Shard<T>, way: Way) {
    while let Some(step) = shard.log.lane(way).flights.steps.pop_front() {
        match step {
            LogStep::Land(mut flight) => match flight.outcome.take() {
                Some(outcome) => land(shard, way, flight, outcome),
                None => {
                    shard.log.lane(way).flights.steps.push_front(LogStep::Land(flight));
                    return;
                }
            },
            LogStep::Close(segment) => {
                let failed = &mut shard.log.lane(way).flights.failed;
                failed.take_if(|failed| *failed == segment.key.segment_id);
                shard.shared.ports[shard.index].gave_back(way);
                shard.shared.close(segment);
            }
        }
    }
}

/// Ends a flight that is in front of all others.
fn land<T: Token>(shard: &mut Shard<T>, way: Way, mut flight: Flight<T>, outcome: io::Result<()>) {
    let flights = &mut shard.log.lane(way).flights;
    debug_assert!(
        flights.steps.iter().all(|step| may_follow(step, &flight)),
        "the records of a segment land in the order of their places"
    );
    let behind_failed = flights.failed == Some(flight.place.segment_id);
    let outcome =
        if behind_failed { Err(io::Error::other("a record in front of this one failed")) } else { outcome };
    match outcome {
        Ok(()) => publish(shard, way, &mut flight),
        Err(error) => {
            give_up(shard, way, &flight);
            fail(shard, &mut flight, &error);
        }
    }
    flight.load.batch.reset();
    shard.log.lane(way).flights.loads.push(flight.load);
}

/// Whether `step` may be taken after `flight` has landed: a later record of the same segment has a place behind the flight.
fn may_follow<T>(step: &LogStep<T>, flight: &Flight<T>) -> bool {
    match step {
        LogStep::Land(later) if later.place.segment_id == flight.place.segment_id => {
            later.mark.position >= flight.place.end
        }
        LogStep::Land(_) | LogStep::Close(_) => true,
    }
}

/// Ends the segment of a failed record where the record was to begin: the bytes from there on are unknown.
fn give_up<T: Token>(shard: &mut Shard<T>, way: Way, flight: &Flight<T>) {
    let id = flight.place.segment_id;
    let Lane { active, flights, .. } = shard.log.lane(way);
    if flights.failed.replace(id) == Some(id) {
        return;
    }
    if let Some(mut active) = active.take_if(|active| active.key.segment_id == id) {
        active.retract(flight.mark);
        flights.steps.push_back(LogStep::Close(active));
        return;
    }
    let left = flights.steps.iter_mut().find_map(|step| match step {
        LogStep::Close(segment) if segment.key.segment_id == id => Some(segment),
        _ => None,
    });
    debug_assert!(left.is_some(), "the segment of a record is not closed before the record has landed");
    if let Some(segment) = left {
        segment.retract(flight.mark);
    }
}
