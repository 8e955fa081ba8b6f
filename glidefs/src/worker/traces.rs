//! The requests which a worker traces at the moment, for readers of traces.
//!
//! Owns which requests are traced, and the row of each in a table of a fixed size. Does not own the parts of the way, which the steps of a
//! request tell with [`enter`], nor readers. Invariants: a traced request has one row, from the arrival to the answer; the table is a
//! worker's own, so no lock is taken; a request which is not traced costs a look at one byte of the request at each step, and where nobody
//! reads, the table has no memory.

use std::cell::RefCell;
use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::export::{Export, Operation};
use crate::observe::trace::{Part, RequestTrace, Session, Steps};
use crate::units::{SECTOR_BYTES, SectorRange};

/// Most requests of a worker which are traced at the same time.
pub const ROWS_MAX: u8 = 128;
/// Rows that are kept for exports with fewer traced requests than this: those of one stuck export never take all.
pub const ROWS_KEPT: u8 = 32;
/// Most readers of traces at the same time: clients, and the daemon's own reader.
pub const SESSIONS_MAX: usize = 5;

/// The number of a traced request's row in the table of the request's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowNumber(NonZeroU8);

/// A request at its arrival.
pub struct Arrival<'a> {
    pub export: &'a Export,
    /// Number of the device, and of the queue in the device.
    pub ids: (u32, u16),
    pub tag: u16,
    pub operation: Operation,
    pub range: SectorRange,
    pub fua: bool,
    /// When the turn began in which the request came.
    pub began: Instant,
    pub unseen_max: Duration,
}

/// A reader, with the number of requests until the next one is chosen.
struct Watching {
    session: Arc<Session>,
    skip: u32,
}

/// A traced request, and the readers who chose the request, a bit each.
struct Row {
    trace: RequestTrace,
    chosen_by: u8,
}

/// The table of a worker.
struct Table {
    /// Number of the worker among those of the daemon.
    worker: usize,
    watching: [Option<Watching>; SESSIONS_MAX],
    /// Empty until the first reader comes.
    rows: Vec<Option<Row>>,
    free: Vec<RowNumber>,
    random: u32,
}

thread_local! {
    static TABLE: RefCell<Table> = const {
        RefCell::new(Table { worker: 0, watching: [const { None }; SESSIONS_MAX], rows: Vec::new(), free: Vec::new(), random: 0 })
    };
}

/// Notes that a request is in `part` from now on.
#[inline]
pub fn enter(traced: Option<RowNumber>, part: Part) {
    if let Some(number) = traced {
        enter_part(number, part);
    }
}

#[cold]
fn enter_part(number: RowNumber, part: Part) {
    let now = Instant::now();
    TABLE.with_borrow_mut(|table| {
        if let Some(row) = table.row(number) {
            row.trace.steps.enter(part, now);
        }
    });
}

/// The row of a request which a reader has chosen, if there is one.
#[cold]
pub fn begin(arrival: &Arrival<'_>) -> Option<RowNumber> {
    TABLE.with_borrow_mut(|table| table.begin(arrival))
}

/// Gives the trace of an answered request to the readers who chose the request. `result` is `ok`, or a word for the failure.
#[inline]
pub fn end(traced: Option<RowNumber>, result: &'static str) {
    if let Some(number) = traced {
        end_traced(number, result);
    }
}

#[cold]
fn end_traced(number: RowNumber, result: &'static str) {
    let now = Instant::now();
    TABLE.with_borrow_mut(|table| table.end(number, result, now));
}

/// Begins with traces for `session` in the calling worker, which has this number. Returns whether anybody reads now.
pub fn watch(session: Arc<Session>, worker: usize) -> bool {
    TABLE.with_borrow_mut(|table| {
        table.worker = worker;
        table.watch(session);
        table.is_watched()
    })
}

/// Ends the traces for `session` in the calling worker. Returns whether anybody else reads.
pub fn unwatch(session: &Arc<Session>) -> bool {
    TABLE.with_borrow_mut(|table| {
        table.unwatch(session);
        table.is_watched()
    })
}

impl RowNumber {
    fn index(self) -> usize {
        usize::from(self.0.get()) - 1
    }
}

impl Table {
    fn is_watched(&self) -> bool {
        self.watching.iter().any(Option::is_some)
    }

    fn watch(&mut self, session: Arc<Session>) {
        if self.rows.is_empty() {
            self.rows = (0..ROWS_MAX).map(|_| None).collect();
            self.free = (1..=ROWS_MAX).rev().filter_map(NonZeroU8::new).map(RowNumber).collect();
        }
        // Whoever lets readers in lets in no more than [`SESSIONS_MAX`].
        if let Some(free) = self.watching.iter_mut().find(|watching| watching.is_none()) {
            *free = Some(Watching { session, skip: 0 });
        }
    }

    fn unwatch(&mut self, session: &Arc<Session>) {
        for (bit, watching) in self.watching.iter_mut().enumerate() {
            if watching.take_if(|watching| Arc::ptr_eq(&watching.session, session)).is_some() {
                // The next reader in the same place has not chosen these requests.
                self.rows.iter_mut().flatten().for_each(|row| row.chosen_by &= !(1 << bit));
            }
        }
        self.shrink();
    }

    /// Gives the memory back where nobody reads and no request has a row.
    fn shrink(&mut self) {
        let is_idle = self.free.len() == self.rows.len();
        if is_idle && !self.is_watched() {
            (self.rows, self.free) = (Vec::new(), Vec::new());
        }
    }

    fn row(&mut self, number: RowNumber) -> Option<&mut Row> {
        self.rows.get_mut(number.index())?.as_mut()
    }

    fn begin(&mut self, arrival: &Arrival<'_>) -> Option<RowNumber> {
        let mut chosen_by = 0;
        for (bit, watching) in self.watching.iter_mut().enumerate() {
            let Some(Watching { session, skip }) = watching else { continue };
            let Some(side) = session.worker(self.worker) else { continue };
            if !session.wants_requests_of(arrival.export.name()) {
                continue;
            }
            side.requests.add(1);
            let one_in = session.one_in();
            // A distance that was drawn for one in many would outlive a change to one in few.
            *skip = (*skip).min(skip_max(one_in));
            if *skip > 0 {
                *skip -= 1;
                continue;
            }
            *skip = next_skip(one_in, &mut self.random);
            if may_have_row(&self.free, &self.rows, arrival.export.name()) {
                side.sampled.add(1);
                chosen_by |= 1 << bit;
            } else {
                side.not_traced.add(1);
            }
        }
        if chosen_by == 0 {
            return None;
        }
        let number = self.free.pop()?;
        let trace = RequestTrace {
            export: arrival.export.shared_name(),
            device_id: arrival.ids.0,
            queue_id: arrival.ids.1,
            tag: arrival.tag,
            operation: arrival.operation.name(),
            offset_bytes: arrival.range.start().saturating_mul(SECTOR_BYTES),
            length_bytes: arrival.range.bytes().unwrap_or(u64::MAX),
            fua: arrival.fua,
            began: arrival.began,
            unseen_max: arrival.unseen_max,
            result: "",
            steps: Steps::begin(Part::Queue, arrival.began),
        };
        *self.rows.get_mut(number.index())? = Some(Row { trace, chosen_by });
        Some(number)
    }

    fn take(&mut self, number: RowNumber) -> Option<Row> {
        let row = self.rows.get_mut(number.index())?.take()?;
        // There is room: each number is in the list once at most.
        self.free.push(number);
        self.shrink();
        Some(row)
    }

    fn end(&mut self, number: RowNumber, result: &'static str, now: Instant) {
        let Some(Row { mut trace, chosen_by }) = self.take(number) else { return };
        trace.steps.close(now);
        trace.result = result;
        let took = trace.steps.total();
        for (bit, watching) in self.watching.iter().enumerate() {
            let Some(Watching { session, .. }) = watching else { continue };
            let is_chosen = chosen_by & (1 << bit) != 0;
            let Some(side) = session.worker(self.worker).filter(|_| is_chosen) else { continue };
            if took >= session.ask().slower_than && !side.ring.push(trace.clone()) {
                side.dropped.add(1);
            }
        }
    }
}

/// Whether a request of `export` may have a row.
fn may_have_row(free: &[RowNumber], rows: &[Option<Row>], export: &str) -> bool {
    let of_export = || rows.iter().flatten().filter(|row| &*row.trace.export == export).count();
    let kept = usize::from(ROWS_KEPT);
    free.len() > kept || (!free.is_empty() && of_export() < kept)
}

/// Most requests that are left out between two chosen ones.
fn skip_max(one_in: u32) -> u32 {
    one_in.saturating_sub(1).saturating_mul(2)
}

/// How many requests to leave out before the next one is chosen: from none to twice the mean. With a fixed number, a
/// client that repeats the same few requests would always have the same one traced.
fn next_skip(one_in: u32, random: &mut u32) -> u32 {
    if one_in <= 1 {
        return 0;
    }
    // A step of a linear congruential generator; the upper bits are the better ones.
    *random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    // Of 32 bits, so that the product has 64.
    let choices = (u64::from(one_in) * 2 - 1).min(u32::MAX.into());
    u32::try_from((u64::from(*random) * choices) >> 32).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
