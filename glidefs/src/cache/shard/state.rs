//! The writes inside a shard: the admitted writes, the open batches, and the records being written.
//!
//! Owns the containers and the order of the writes. Does not own the steps from one container to the next (`append`, `through`,
//! `flight`).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::request::Token;
use crate::cache::handoff::{OWNED_MAX, Way};
use crate::cache::log::batch::{Batch, HEADERS_MAX};
use crate::cache::log::disk::SegmentFile;
use crate::cache::log::segment::{Mark, Room, SegmentWriter};
use crate::cache::log::table::Place;
use crate::cache::volume::Volume;
use crate::cache::volume::appends::WriteKind;
use crate::cache::volume::hold::EXTENTS_MAX;
use crate::cache::volume::zeroes::{Carving, entries_of};
use crate::units::{FRAME_BYTES, REQUEST_BYTES_MAX, SectorRange};

/// Most frames a WRITE has.
pub(super) const WRITE_FRAMES_MAX: usize = REQUEST_BYTES_MAX / FRAME_BYTES;

/// A write that was admitted.
#[derive(Debug)]
pub(super) struct Pending<T> {
    pub token: T,
    pub volume: Arc<Volume>,
    pub range: SectorRange,
    /// Frames of data; 0 for zeroes.
    pub frames: usize,
    /// Number of entries in a record; at most so many before the record is made.
    pub entries: usize,
    /// The CRCs of the data, where these were made before the write came, or had to wait for a segment.
    pub crcs: Option<Box<[u32; WRITE_FRAMES_MAX]>>,
    pub fua: bool,
    pub room: Room,
}

impl<T> Pending<T> {
    /// Whether the write has data.
    pub fn kind(&self) -> WriteKind {
        if self.frames > 0 { WriteKind::Data } else { WriteKind::Zeroes }
    }

    /// Sets the number of entries to the most that the write may need.
    pub fn measure(&mut self) {
        // At most ZERO_ENTRIES_MAX for zeroes.
        let zeroes = usize::try_from(entries_of(self.range)).unwrap_or(1);
        self.entries = if self.frames > 0 { 1 } else { zeroes };
    }
}

/// Zeroes with a record, on their way into the index. The segment with the record is pinned.
#[derive(Debug)]
pub(super) struct Zeroes<T> {
    pub token: T,
    pub volume: Arc<Volume>,
    pub carving: Carving,
    pub fua: bool,
}

/// A lane of the log: a segment that is appended to, the batch that is next, and the records being written.
#[derive(Debug)]
pub(super) struct Lane<T: Token> {
    pub active: Option<SegmentWriter>,
    pub open: Load<T>,
    pub flights: Flights<T>,
}

impl<T: Token> Default for Lane<T> {
    fn default() -> Self {
        Self { active: None, open: Load::default(), flights: Flights::default() }
    }
}

impl<T: Token> Lane<T> {
    fn is_idle(&self) -> bool {
        self.open.joined.is_empty() && self.flights.is_idle()
    }
}

/// The segments that a shard appends to, and the writes on their way there.
#[derive(Debug)]
pub(super) struct Log<T: Token> {
    /// Any write: records are written as the engine says.
    pub common: Lane<T>,
    /// Writes whose FLUSH is expected: records are stable as soon as they are written (`through`).
    pub through: Lane<T>,
    /// The segment that is next in the common lane.
    pub standby: Option<SegmentWriter>,
    /// Room promised to admitted requests and not used by an append yet.
    pub reserved: Room,
    /// Requests that wait for a segment, behind the open batch.
    pub backlog: VecDeque<Pending<T>>,
    /// Zeroes on their way into the index: so much is put there in each turn, in the order of arrival.
    pub zeroes: VecDeque<Zeroes<T>>,
    /// Extents that zeroes may still touch in this turn.
    pub zeroes_left: usize,
    /// Extents that may still be looked at in this turn to decide what to record of new zeroes.
    pub looks_left: usize,
    /// A request was told to wait, perhaps because of the reserved room.
    pub crowded: bool,
    /// Reserved room was given back since the last turn.
    pub released: bool,
    /// The time of the next admission, while writes are slowed.
    pub next_admission: Duration,
}

impl<T: Token> Default for Log<T> {
    fn default() -> Self {
        Self {
            common: Lane::default(),
            through: Lane::default(),
            standby: None,
            reserved: Room::default(),
            backlog: VecDeque::new(),
            zeroes: VecDeque::new(),
            zeroes_left: EXTENTS_MAX,
            looks_left: EXTENTS_MAX,
            crowded: false,
            released: false,
            next_admission: Duration::ZERO,
        }
    }
}

impl<T: Token> Log<T> {
    pub fn is_idle(&self) -> bool {
        self.common.is_idle() && self.through.is_idle() && self.backlog.is_empty() && self.zeroes.is_empty()
    }

    pub fn lane(&mut self, way: Way) -> &mut Lane<T> {
        match way {
            Way::Common => &mut self.common,
            Way::Through => &mut self.through,
        }
    }
}

/// A batch and the requests in the batch, in the order of the entries.
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

/// A record being written.
#[derive(Debug)]
pub(super) struct Flight<T> {
    pub op: u32,
    /// Begin of the record.
    pub mark: Mark,
    /// End of the record.
    pub place: Place,
    pub load: Load<T>,
    /// How the write ended; `None` while it is under way.
    pub outcome: Option<io::Result<()>>,
    /// What is left of a record that the shard itself writes in pieces.
    pub rest: Option<Rest>,
}

/// The rest of a record that is written in pieces.
#[derive(Debug)]
pub(super) struct Rest {
    pub file: Arc<dyn SegmentFile>,
    /// Number of bytes written so far.
    pub written: usize,
}

/// A step at the end of the log; steps are taken in order.
#[derive(Debug)]
pub(super) enum LogStep<T> {
    Land(Flight<T>),
    /// Close the segment: the shard appends no more to the segment.
    Close(SegmentWriter),
}

/// The records of a shard that are being written.
#[derive(Debug)]
pub(super) struct Flights<T: Token> {
    /// Memory for record headers: [`HEADERS_MAX`] for each further record that may be handed out; `None` where records are
    /// written at once.
    pub headers: Option<Vec<T::Part>>,
    pub steps: VecDeque<LogStep<T>>,
    /// Whether the shard writes large records in pieces, one or more a turn.
    pub in_pieces: bool,
    /// Id of the segment where a record failed, until the segment is closed.
    pub failed: Option<u64>,
    /// Empty loads and lists: only the capacity is kept.
    pub loads: Vec<Load<T>>,
    pub parts: Vec<Vec<T::Part>>,
}

impl<T: Token> Default for Flights<T> {
    fn default() -> Self {
        Self {
            headers: None,
            steps: VecDeque::with_capacity(OWNED_MAX as usize),
            in_pieces: false,
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

    /// From now on records are handed out to be written. A record under way has [`HEADERS_MAX`] of `headers`.
    pub fn defer(&mut self, headers: Vec<T::Part>) {
        let flights = headers.len() / HEADERS_MAX;
        self.steps.reserve(flights + OWNED_MAX as usize);
        self.loads.reserve(flights);
        self.parts.reserve(flights);
        self.headers = Some(headers);
    }

    /// Whether records are handed out to be written.
    pub fn is_deferred(&self) -> bool {
        self.headers.is_some()
    }

    /// Whether one more record may be written.
    pub fn may_start(&self) -> bool {
        // Without headers only a record that is written in pieces is under way.
        self.headers.as_ref().map_or(!self.has_rest(), |headers| headers.len() >= HEADERS_MAX)
    }

    /// Whether a record is written in pieces, and pieces are left. Such a record is in front of all others.
    pub fn has_rest(&self) -> bool {
        matches!(self.steps.front(), Some(LogStep::Land(Flight { rest: Some(_), .. })))
    }
}
