//! A shard with the duties of a worker, for tests and benches: the one driver of the cache's state machine.
//!
//! ```text
//! shard ──wants──▶ Duty::Wanted ──carry_out──▶ Duty::Ended ──report──▶ shard ──completed──▶ Completion
//! ```
//!
//! Owns each operation which the shard wants, from the want to the report of the outcome, and the requests with memory of their
//! own. Does not own the requests which arrive, the keeper, faults, and which answers are right. Invariants: the outcome of an
//! operation is reported at most once; without a shuffle, operations are reported in the order of the wants; with appends at
//! once, a warm rig takes no memory from the heap.
#![allow(dead_code, reason = "each user drives a part")]

use std::io::{self, IoSlice};

use glidefs::testing::cache::{IoError, Shard, Token, Want};

/// Bytes of a frame.
const FRAME: usize = 4096;
/// Memory for headers of records, pieces per append under way.
const HEADERS_PER_APPEND: usize = 2;
/// A byte of a READ's buffer before the READ.
const NOT_READ: u8 = 0xDD;
/// A byte of a WRITE's buffer behind the data: none may reach the disk.
const NOT_WRITTEN: u8 = 0xEE;

/// An operation which the shard waits for.
#[derive(Debug)]
pub enum Duty<P> {
    Wanted(Want<P>),
    Ended(Outcome<P>),
}

/// The end of an operation, still to be reported to the shard.
#[derive(Debug)]
pub enum Outcome<P> {
    Append { op: u32, result: io::Result<()>, parts: Vec<P> },
    Sync { op: u32, result: io::Result<()> },
    Read { op: u32, result: io::Result<()>, buffer: Vec<u8> },
}

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DutyKind {
    Append,
    Sync,
    Read,
}

impl<P> Duty<P> {
    pub fn kind(&self) -> DutyKind {
        match self {
            Self::Wanted(Want::Append { .. }) | Self::Ended(Outcome::Append { .. }) => DutyKind::Append,
            Self::Wanted(Want::Sync { .. }) | Self::Ended(Outcome::Sync { .. }) => DutyKind::Sync,
            Self::Wanted(Want::Read { .. }) | Self::Ended(Outcome::Read { .. }) => DutyKind::Read,
        }
    }
}

/// Does what a shard wants, and waits for the end.
#[inline]
pub fn carry_out<P: AsMut<[u8]>>(want: Want<P>) -> Outcome<P> {
    match want {
        Want::Append { op, file, offset, mut parts } => {
            let pieces: Vec<_> = parts.iter_mut().map(|part| IoSlice::new(part.as_mut())).collect();
            let result = file.append_at(&pieces, offset);
            Outcome::Append { op, result, parts }
        }
        Want::Sync { op, file } => Outcome::Sync { op, result: file.sync() },
        Want::Read { op, file, offset, mut buffer } => {
            let result = file.read_at(&mut buffer, offset);
            Outcome::Read { op, result, buffer }
        }
    }
}

impl<P> Outcome<P> {
    /// Tells the shard.
    #[inline]
    pub fn report<T: Token<Part = P>>(self, shard: &mut Shard<T>) {
        match self {
            Self::Append { op, result, parts } => shard.append_done(op, result, parts),
            Self::Sync { op, result } => shard.sync_done(op, result),
            Self::Read { op, result, buffer } => shard.read_done(op, result, buffer),
        }
    }
}

/// A request which came back.
#[derive(Debug)]
pub struct Completion<T> {
    pub token: T,
    pub result: Result<(), IoError>,
}

/// A shard, and the operations which the shard waits for.
#[derive(Debug)]
pub struct Rig<T: Token> {
    pub shard: Shard<T>,
    /// In the order of the wants.
    duties: Vec<Duty<T::Part>>,
    /// Draws the duty which advances next. `None`: the oldest.
    shuffle: Option<Shuffle>,
}

impl<T: Token> Rig<T> {
    pub fn new(shard: Shard<T>) -> Self {
        Self { shard, duties: Vec::new(), shuffle: None }
    }

    /// Lets operations advance in an order drawn from `seed`, some only after further turns.
    pub fn shuffle(&mut self, seed: u64) {
        self.shuffle = Some(Shuffle { state: seed });
    }

    /// Ends a turn of the worker's loop. Nothing is carried out.
    #[inline]
    pub fn turn(&mut self) {
        self.shard.turn();
        self.note_wants();
    }

    /// The operations which the shard waits for, in the order of the wants.
    pub fn duties(&mut self) -> &[Duty<T::Part>] {
        self.note_wants();
        &self.duties
    }

    /// Takes duty `index` away. Somebody else has the duty now, and reports the outcome.
    pub fn take(&mut self, index: usize) -> Duty<T::Part> {
        self.duties.remove(index)
    }

    /// Advances duty `index` by one step: a wanted operation is carried out; the outcome of one that has ended is reported.
    pub fn advance(&mut self, index: usize) {
        match self.duties.remove(index) {
            Duty::Wanted(want) => self.duties.insert(index, Duty::Ended(carry_out(want))),
            Duty::Ended(outcome) => outcome.report(&mut self.shard),
        }
    }

    /// Whether an operation of the kind of duty `index` was wanted earlier and is not reported yet.
    pub fn overtakes(&self, index: usize) -> bool {
        let kind = self.duties[index].kind();
        self.duties[..index].iter().any(|duty| duty.kind() == kind)
    }

    /// Ends a turn and does the duties: all duties, or, with a shuffle, a random part, at least one step.
    #[inline]
    pub fn work(&mut self) {
        self.turn();
        if self.shuffle.is_some() {
            return self.work_shuffled();
        }
        let Self { shard, duties, .. } = self;
        for duty in duties.drain(..) {
            match duty {
                Duty::Wanted(want) => carry_out(want).report(shard),
                Duty::Ended(outcome) => outcome.report(shard),
            }
        }
    }

    fn work_shuffled(&mut self) {
        while let Some(shuffle) = self.shuffle.as_mut().filter(|_| !self.duties.is_empty()) {
            let index = shuffle.below(self.duties.len());
            let is_last = shuffle.below(8) == 0;
            self.advance(index);
            if is_last {
                return;
            }
        }
    }

    /// The requests which have come back since the last call.
    #[inline]
    pub fn completed(&mut self) -> impl Iterator<Item = Completion<T>> {
        self.shard.completed().map(|(token, result)| Completion { token, result })
    }

    /// Works until no request is inside the shard, and returns the requests which came back. `meanwhile` is called between
    /// rounds; `false` ends the wait.
    pub fn settle(&mut self, mut meanwhile: impl FnMut() -> bool) -> Vec<Completion<T>> {
        let mut completed = Vec::new();
        loop {
            self.work();
            completed.extend(self.completed());
            if self.shard.idle() || !meanwhile() {
                return completed;
            }
        }
    }

    #[inline]
    fn note_wants(&mut self) {
        self.duties.extend(self.shard.wants().map(Duty::Wanted));
    }
}

impl<T: Token<Part = Vec<u8>>> Rig<T> {
    /// From now on appends are deferred, with at most `appends` under way. Call before the first write.
    pub fn defer_appends(&mut self, appends: usize) {
        let headers = (0..HEADERS_PER_APPEND * appends).map(|_| vec![0; FRAME]);
        self.shard.defer_appends(headers.collect());
    }

    /// From now on writes whose FLUSH is expected may be written through, with at most `appends` under way. Call before the first write.
    pub fn write_through(&mut self, appends: usize) {
        // Few records need both of their headers.
        let headers = (0..=appends).map(|_| vec![0; FRAME]);
        self.shard.write_through(headers.collect());
    }
}

/// Random numbers.
#[derive(Debug)]
struct Shuffle {
    state: u64,
}

impl Shuffle {
    /// A number below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ mixed >> 31) % end as u64).unwrap_or(0)
    }
}

/// A request with memory of its own, known to the test by `name`.
#[derive(Debug)]
pub struct MemoryToken<N> {
    pub name: N,
    buffer: Vec<u8>,
    /// Address of the buffer at first.
    address: usize,
}

impl<N> MemoryToken<N> {
    fn new(name: N, buffer: Vec<u8>) -> Self {
        Self { name, address: buffer.as_ptr().addr(), buffer }
    }

    /// For a FLUSH or zeroes.
    pub fn without_data(name: N) -> Self {
        Self::new(name, Vec::new())
    }

    /// For a READ of `bytes` bytes.
    pub fn reading(name: N, bytes: usize) -> Self {
        Self::new(name, vec![NOT_READ; bytes.next_multiple_of(FRAME)])
    }

    /// For a WRITE of `data`.
    pub fn writing(name: N, data: &[u8]) -> Self {
        let mut buffer = data.to_vec();
        buffer.resize(data.len().next_multiple_of(FRAME), NOT_WRITTEN);
        Self::new(name, buffer)
    }

    /// The `bytes` bytes which a READ has read.
    pub fn data(&self, bytes: usize) -> &[u8] {
        assert_eq!(self.buffer.as_ptr().addr(), self.address, "a request came back with another buffer");
        &self.buffer[..bytes]
    }
}

impl<N> Token for MemoryToken<N> {
    type Part = Vec<u8>;

    fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    fn is_lendable(&self) -> bool {
        true
    }

    fn lend(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let mut part = std::mem::take(&mut self.buffer);
        part.truncate(bytes);
        Some(part)
    }

    fn give_back(&mut self) {
        self.buffer = Vec::new();
    }
}
