//! The READs that wait for the disk, and the reads of the disk for them.
//!
//! Owns the containers. Does not own the steps from one to the next (`read`, `disk`).

use std::collections::VecDeque;

use slab::Slab;

use crate::cache::log::format::Frame;
use crate::cache::log::sums::pages::Pages;
use crate::cache::shard::read_buffers::ReadBuffers;
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::Piece;
use crate::fair::Fair;
use crate::units::{ExportId, FRAME_BYTES};

/// A READ that waits for the disk.
#[derive(Debug)]
pub(super) struct WaitingRead<T> {
    pub token: T,
    /// Pieces that have not arrived.
    pub open: usize,
    pub outcome: Result<(), IoError>,
}

/// Bytes of a segment, and their place in a token's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentBytes {
    pub number: u32,
    /// First frame, and number of frames.
    pub first: u32,
    pub frames: u32,
    /// Bytes of the first frame before the wanted ones.
    pub skip: usize,
    /// Number of bytes wanted.
    pub len: usize,
    /// Offset in the token's buffer.
    pub to: usize,
    /// The export of the READ, for log lines.
    pub export: ExportId,
}

impl SegmentBytes {
    pub fn disk_bytes(&self) -> usize {
        self.frames as usize * FRAME_BYTES
    }
}

/// A piece to be read from the disk, and the READ that waits for the piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskRead {
    pub source: SegmentBytes,
    pub waiting: usize,
    pub weight: u16,
}

/// A read of the disk under way. Ends when both the bytes and their checksums are there.
#[derive(Debug)]
pub(super) struct Flight {
    pub read: DiskRead,
    /// The bytes, once they have arrived.
    pub data: Option<Result<Vec<u8>, IoError>>,
    pub sums: SumsRead,
}

/// How far the checksums of a flight are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SumsRead {
    /// At hand when the flight began, or read since.
    Idle,
    /// A read of sums is under way.
    UnderWay,
    /// The sums cannot be used: the keeper was asked for the checksums.
    Asked,
}

#[derive(Debug)]
pub(in crate::cache::shard) struct Reads<T> {
    pub(super) waiting: Slab<WaitingRead<T>>,
    pub(super) flights: Slab<Flight>,
    pub(super) queue: Fair<ExportId, DiskRead>,
    /// Empty between calls: only the capacity is kept.
    pub(super) plan: Vec<Piece>,
    pub(super) fetches: Vec<SegmentBytes>,
    pub(super) buffers: ReadBuffers,
    /// Kept buffers for pages of sums, two pages each at most, and [`READS_MAX`](super::disk::READS_MAX) buffers at most.
    pub(super) spare_sums: Vec<Vec<u8>>,
    /// Memory for a first and a last frame of which only a part is wanted.
    pub(super) ends: Box<[Frame; 2]>,
    pub(super) pages: Pages,
    /// Number of flights for which the keeper was asked.
    pub(super) asked: usize,
    /// Reads whose checksums the keeper is asked for, without a place and memory.
    pub(super) parked: VecDeque<DiskRead>,
}

impl<T> Reads<T> {
    /// Reads with memory for pages of sums, `pages_bytes` in all.
    pub fn new(pages_bytes: u64) -> Self {
        Self {
            waiting: Slab::new(),
            flights: Slab::new(),
            queue: Fair::new(),
            plan: Vec::new(),
            fetches: Vec::new(),
            buffers: ReadBuffers::default(),
            spare_sums: Vec::new(),
            ends: Box::new([[0; FRAME_BYTES]; 2]),
            pages: Pages::new(pages_bytes),
            asked: 0,
            parked: VecDeque::new(),
        }
    }

    pub fn is_idle(&self) -> bool {
        let is_idle = self.waiting.is_empty();
        debug_assert!(
            !is_idle || (self.flights.is_empty() && self.queue.is_empty()),
            "a read of the disk is for a READ that waits"
        );
        is_idle
    }
}
