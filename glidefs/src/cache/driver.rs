//! A worker's place, for tests: drives one shard of a cache and the keeper by hand, one request at a time.
//!
//! Owns nothing under test, and no store. Does not exist in the daemon.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::TryRecvError;

use super::{Admission, Keeper, Shard, ShardStats, Token, Volume, Want};
use crate::cache::facade::Cache;
use crate::cache::volume::error::IoError;
use crate::cache::volume::fetch::Fill;
use crate::units::{FRAME_BYTES, SectorRange};

/// Longest wait for an event which must happen.
pub const PATIENCE: Duration = Duration::from_mins(2);
/// Between two looks whether a fetch was answered.
const FETCH_PAUSE: Duration = Duration::from_micros(50);

/// A request with the request's memory.
#[derive(Debug)]
pub struct Request {
    buffer: Vec<u8>,
}

impl Token for Request {
    type Part = Vec<u8>;

    fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    fn lend(&mut self, _bytes: usize) -> Option<Vec<u8>> {
        None
    }
}

/// A cache with one shard and the keeper.
pub struct Driver {
    pub cache: Cache,
    keeper: Keeper,
    shard: Shard<Request>,
    /// Tells whether the host is down: then no request ends any more.
    is_down: Option<Box<dyn Fn() -> bool + Send>>,
    /// Called whenever a write waits for room.
    meanwhile: Option<Box<dyn FnMut() + Send>>,
}

impl Driver {
    /// Takes the part of the only worker of `cache`.
    pub fn new(cache: Cache) -> Self {
        let shard = cache.shard(0, Arc::new(ShardStats::default()));
        let mut keeper = cache.keeper();
        while keeper.step() {}
        Self { cache, keeper, shard, is_down: None, meanwhile: None }
    }

    /// Makes requests under way fail when the host goes down.
    pub fn ends_when(&mut self, is_down: impl Fn() -> bool + Send + 'static) {
        self.is_down = Some(Box::new(is_down));
    }

    /// Has `happens` called again and again while a write waits for room.
    pub fn while_waiting(&mut self, happens: impl FnMut() + Send + 'static) {
        self.meanwhile = Some(Box::new(happens));
    }

    fn is_down(&self) -> bool {
        self.is_down.as_ref().is_some_and(|is_down| is_down())
    }

    /// Does all background work there is to do.
    pub fn keep(&mut self) {
        while self.keeper.step() {}
    }

    /// Ends as kill -9 does. Other users of the cache must have been told to end.
    pub fn kill(self) {
        let Self { cache, keeper, shard, .. } = self;
        drop((keeper, shard));
        let deadline = Instant::now() + PATIENCE;
        // Cuts under way end with their tasks.
        while cache.sharers() > 1 {
            assert!(Instant::now() < deadline, "tasks hold the cache");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Writes `data`, whole sectors, or zeroes.
    pub fn write(
        &mut self,
        volume: &Arc<Volume>,
        range: SectorRange,
        data: Option<&[u8]>,
    ) -> Result<(), IoError> {
        self.write_as(volume, range, data, false)
    }

    /// As [`Self::write`], with FUA if `through` says so.
    pub fn write_as(
        &mut self,
        volume: &Arc<Volume>,
        range: SectorRange,
        data: Option<&[u8]>,
        through: bool,
    ) -> Result<(), IoError> {
        let bytes = data.map_or(0, <[u8]>::len);
        let deadline = Instant::now() + PATIENCE;
        let reservation = loop {
            match self.shard.admit(bytes) {
                Admission::Accept(reservation) => break reservation,
                Admission::Full => panic!("full"),
                Admission::Delay(_) | Admission::Wait if self.is_down() => return Err(IoError::Write),
                Admission::Delay(_) | Admission::Wait => {
                    assert!(Instant::now() < deadline, "no room: {:?}", self.cache.stats());
                    self.meanwhile.iter_mut().for_each(|happens| happens());
                    if !self.keeper.step() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        };
        if let Some(data) = data {
            let mut buffer = data.to_vec();
            buffer.resize(bytes.next_multiple_of(FRAME_BYTES), 0xEE);
            self.shard.write(volume, range, through, reservation, Request { buffer });
        } else {
            self.shard.zero(volume, range, through, reservation, Request { buffer: Vec::new() });
        }
        self.settle().1
    }

    pub fn flush(&mut self, volume: &Arc<Volume>) -> Result<(), IoError> {
        self.shard.flush(volume, Request { buffer: Vec::new() });
        self.settle().1
    }

    /// The bytes of `range`, from wherever they are.
    pub fn read(&mut self, volume: &Arc<Volume>, range: SectorRange) -> Result<Vec<u8>, IoError> {
        let bytes = usize::try_from(range.bytes().unwrap()).unwrap();
        let mut fill = None;
        loop {
            let request = Request { buffer: vec![0xDD; bytes.next_multiple_of(FRAME_BYTES)] };
            self.shard.read(volume, range, fill.as_ref(), request);
            let (mut request, result) = self.settle();
            request.buffer.truncate(bytes);
            match result {
                Err(IoError::Remote) => {
                    fill = volume.fetch(range).map(answer).transpose()?;
                }
                result => return result.map(|()| request.buffer),
            }
        }
    }

    /// Takes turns until the only request is finished.
    fn settle(&mut self) -> (Request, Result<(), IoError>) {
        let mut completed = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.shard.turn();
            for want in self.shard.wants().collect::<Vec<_>>() {
                match want {
                    Want::Append { .. } => unreachable!("appends are not deferred"),
                    Want::Sync { op, file } => self.shard.sync_done(op, file.sync()),
                    Want::Read { op, file, offset, mut buffer } => {
                        let result = file.read_at(&mut buffer, offset);
                        self.shard.read_done(op, result, buffer);
                    }
                }
            }
            completed.extend(self.shard.completed());
            self.keeper.step();
            if self.shard.idle() {
                return completed.pop().unwrap();
            }
            if self.is_down() {
                return (Request { buffer: Vec::new() }, Err(IoError::Write));
            }
            assert!(Instant::now() < deadline, "requests never came back: {:?}", self.shard);
            // The store is waited for.
            std::thread::yield_now();
        }
    }
}

/// The answer to a fetch.
fn answer(mut fetch: Receiver<Result<Fill, IoError>>) -> Result<Fill, IoError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fetch.try_recv() {
            Ok(answer) => return answer,
            Err(TryRecvError::Closed) => panic!("nobody fetches any more"),
            Err(TryRecvError::Empty) => {}
        }
        assert!(Instant::now() < deadline, "a fetch never came back");
        std::thread::sleep(FETCH_PAUSE);
    }
}

/// The content of sector `sector` after write `number`, with the number at the beginning; zeroes after write 0.
pub fn bytes_of(number: u64, sector: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    if number != 0 {
        let mut word = number << 20 | sector;
        for chunk in bytes.as_chunks_mut().0 {
            *chunk = word.to_le_bytes();
            word = word.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
        }
    }
    bytes
}

/// The number of the write in sector `sector`, for content made by [`bytes_of`].
pub fn number_of(bytes: &[u8], sector: u64) -> Option<u64> {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap()) >> 20;
    (bytes == bytes_of(number, sector)).then_some(number)
}
