//! What a shard holds of writes: those that were admitted, the open batch, and the records that are being written.
//!
//! Owns the containers and their order. Does not own the steps from one to the next (`append`, `flight`).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::request::Token;
use crate::cache::handoff::OWNED_MAX;
use crate::cache::log::batch::{Batch, HEADERS_MAX};
use crate::cache::log::segment::{Mark, Room, SegmentWriter};
use crate::cache::log::table::Place;
use crate::cache::volume::Volume;
use crate::units::SectorRange;

/// A write that was admitted.
#[derive(Debug)]
pub(super) struct Pending<T> {
    pub token: T,
    pub volume: Arc<Volume>,
    pub range: SectorRange,
    /// Frames of data; 0 for zeroes.
    pub frames: usize,
    /// Entries it takes.
    pub entries: usize,
    pub fua: bool,
    pub room: Room,
}

/// The shard's end of the log.
#[derive(Debug)]
pub(super) struct Log<T: Token> {
    pub active: Option<SegmentWriter>,
    pub standby: Option<SegmentWriter>,
    /// Room promised to admitted requests that are not appended yet.
    pub reserved: Room,
    /// The open batch.
    pub open: Load<T>,
    pub flights: Flights<T>,
    /// Requests that wait for a segment, behind the open batch.
    pub backlog: VecDeque<Pending<T>>,
    /// A request was told to wait, maybe because of what is reserved.
    pub crowded: bool,
    /// Something reserved was released since the last turn.
    pub released: bool,
    /// While writes are slowed: when the next may be admitted.
    pub next_admission: Duration,
}

impl<T: Token> Default for Log<T> {
    fn default() -> Self {
        Self {
            active: None,
            standby: None,
            reserved: Room::default(),
            open: Load::default(),
            flights: Flights::default(),
            backlog: VecDeque::new(),
            crowded: false,
            released: false,
            next_admission: Duration::ZERO,
        }
    }
}

impl<T: Token> Log<T> {
    pub fn is_idle(&self) -> bool {
        self.open.joined.is_empty() && self.backlog.is_empty() && self.flights.is_idle()
    }
}

/// A batch and its requests, in the order of its entries.
#[derive(Debug)]
pub(super) struct Load<T> {
    pub batch: Batch,
    pub joined: Vec<Pending<T>>,
}

impl<T> Default for Load<T> {
    fn default() -> Self {
        Self { batch: Batch::default(), joined: Vec::new() }
    }
}

/// A record that is being written.
#[derive(Debug)]
pub(super) struct Flight<T> {
    pub op: u32,
    /// Where it begins.
    pub mark: Mark,
    /// Where it ends.
    pub place: Place,
    pub load: Load<T>,
    /// How the write ended; `None` while it is under way.
    pub outcome: Option<io::Result<()>>,
}

/// What happens next at the end of the log, in this order.
#[derive(Debug)]
pub(super) enum LogStep<T> {
    Land(Flight<T>),
    /// Let go of a segment.
    Close(SegmentWriter),
}

/// The records of a shard that are being written.
#[derive(Debug)]
pub(super) struct Flights<T: Token> {
    /// Memory for record headers, [`HEADERS_MAX`] a flight that may start; `None` where records are written at once.
    pub headers: Option<Vec<T::Part>>,
    pub steps: VecDeque<LogStep<T>>,
    pub next_op: u32,
    /// The segment at the front of which a record failed.
    pub failed: Option<u64>,
    /// Kept for their room.
    pub loads: Vec<Load<T>>,
    pub parts: Vec<Vec<T::Part>>,
}

impl<T: Token> Default for Flights<T> {
    fn default() -> Self {
        Self {
            headers: None,
            steps: VecDeque::with_capacity(OWNED_MAX as usize),
            next_op: 0,
            failed: None,
            loads: Vec::with_capacity(1),
            parts: Vec::new(),
        }
    }
}

impl<T: Token> Flights<T> {
    pub fn is_idle(&self) -> bool {
        self.steps.is_empty()
    }

    /// From now on records are handed out to be written, [`HEADERS_MAX`] of `headers` for each that is under way.
    pub fn defer(&mut self, headers: Vec<T::Part>) {
        let flights = headers.len() / HEADERS_MAX;
        self.steps.reserve(flights + OWNED_MAX as usize);
        self.loads.reserve(flights);
        self.parts.reserve(flights);
        self.headers = Some(headers);
    }

    /// Whether another record may be written.
    pub fn may_start(&self) -> bool {
        self.headers.as_ref().is_none_or(|headers| headers.len() >= HEADERS_MAX)
    }

    /// An empty load.
    pub fn spare_load(&mut self) -> Load<T> {
        self.loads.pop().unwrap_or_default()
    }
}
