//! A worker's place, for tests: drives one shard of a cache and the keeper by hand, one request at a time.
//!
//! Owns nothing under test, and no store. The operations of the shard are carried out by the rig that all tests share. Does
//! not exist in the daemon.

#[path = "../../../tests/support/rig.rs"]
pub mod rig;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::sync::oneshot::Receiver;

use self::rig::{Completion, MemoryToken, Rig};
use super::{Admission, CheckpointPace, Keeper, Reservation, Volume};
use crate::cache::facade::Cache;
use crate::cache::volume::error::IoError;
use crate::cache::volume::fetch::Fill;
use crate::units::SectorRange;

/// Longest wait for an event which must happen.
pub const PATIENCE: Duration = Duration::from_mins(2);
/// How long a write without room waits for the progress hook before the keeper has another look.
const ROOM_PAUSE: Duration = Duration::from_millis(1);
/// Records that are under way at most, where appends are deferred.
const APPENDS_MAX: usize = 4;

/// A cache with one shard and the keeper.
pub struct Driver {
    pub cache: Cache,
    keeper: Keeper,
    rig: Rig<MemoryToken<u64>>,
    /// Number of requests so far. The name of a request is the number at its begin.
    requests: u64,
    /// Tells whether the host is down: then no request ends any more.
    is_down: Option<Box<dyn Fn() -> bool + Send>>,
    /// Called whenever a write waits for room.
    meanwhile: Option<Box<dyn FnMut() + Send>>,
}

impl Driver {
    /// Takes the part of the only worker of `cache`.
    pub fn new(cache: Cache) -> Self {
        let rig = Rig::new(cache.shard(0, Arc::default()));
        let mut keeper = cache.keeper();
        while keeper.step() {}
        Self { cache, keeper, rig, requests: 0, is_down: None, meanwhile: None }
    }

    /// As [`Self::new`], with appends that are deferred as a ring's, and operations that end after a number of turns drawn from
    /// `seed`.
    pub fn deferring(cache: Cache, seed: u64) -> Self {
        let mut driver = Self::new(cache);
        driver.rig.defer_appends(APPENDS_MAX);
        driver.rig.shuffle(seed);
        driver
    }

    /// Lets writes whose FLUSH is expected go through.
    pub fn write_through(&mut self) {
        self.rig.write_through(APPENDS_MAX);
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

    /// Keeps the keeper from making checkpoints.
    pub fn without_checkpoints(&mut self) {
        self.keeper.without_checkpoints();
    }

    pub fn pace_checkpoints(&mut self, pace: CheckpointPace) {
        self.keeper.pace_checkpoints(pace);
    }

    /// Whether a checkpoint is under way.
    pub fn makes_checkpoint(&self) -> bool {
        self.keeper.makes_checkpoint()
    }

    /// Does a step of the background work.
    pub fn keep_once(&mut self) {
        self.keeper.step();
    }

    /// Lets the keeper end in good order.
    pub fn rest(&mut self) {
        self.keeper.rest();
        // A stop gives a checkpoint up after a second, which a slow disk needs for one sync.
        while self.keeper.makes_checkpoint() {
            self.keeper.rest();
        }
    }

    /// Ends as kill -9 does. Other users of the cache must have been told to end.
    pub fn kill(self) {
        let Self { cache, keeper, rig, .. } = self;
        drop((keeper, rig));
        let deadline = Instant::now() + PATIENCE;
        // Cuts under way end with their tasks.
        while cache.sharers() > 1 {
            assert!(Instant::now() < deadline, "tasks hold the cache");
            thread::yield_now();
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
        let reservation = self.admit(data.map_or(0, <[u8]>::len))?;
        let (name, shard) = (self.name(), &mut self.rig.shard);
        if let Some(data) = data {
            shard.write(volume, range, through, reservation, MemoryToken::writing(name, data));
        } else {
            shard.zero(volume, range, through, reservation, MemoryToken::without_data(name));
        }
        self.settle(name).map(drop)
    }

    /// Room for a write of `bytes` bytes, once there is room.
    fn admit(&mut self, bytes: usize) -> Result<Reservation, IoError> {
        let deadline = Instant::now() + PATIENCE;
        let mut is_hooked = false;
        loop {
            match self.rig.shard.admit(bytes) {
                Admission::Accept(reservation) => return Ok(reservation),
                Admission::Full => panic!("full"),
                Admission::Delay(_) | Admission::Wait if self.is_down() => return Err(IoError::Write),
                Admission::Delay(_) | Admission::Wait => {
                    assert!(Instant::now() < deadline, "no room: {:?}", self.cache.stats());
                    self.meanwhile.iter_mut().for_each(|happens| happens());
                    if !std::mem::replace(&mut is_hooked, true) {
                        let me = thread::current();
                        self.cache.on_progress(0, Arc::new(move || me.unpark()));
                    }
                    if !self.keeper.step() {
                        thread::park_timeout(ROOM_PAUSE);
                    }
                }
            }
        }
    }

    pub fn flush(&mut self, volume: &Arc<Volume>) -> Result<(), IoError> {
        let name = self.name();
        self.rig.shard.flush(volume, MemoryToken::without_data(name));
        self.settle(name).map(drop)
    }

    /// The bytes of `range`, from wherever they are.
    pub fn read(&mut self, volume: &Arc<Volume>, range: SectorRange) -> Result<Vec<u8>, IoError> {
        let mapped = self.read_mapped(volume, range);
        let read = self.read_with_buffer(volume, range);
        // Memory may still have what the disk does not give any more.
        if let (Some(mapped), Ok(read)) = (mapped, &read) {
            assert!(mapped == *read, "mapped segments have other bytes of {range:?}");
        }
        read
    }

    fn read_mapped(&mut self, volume: &Volume, range: SectorRange) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let copied = self.rig.shard.read_mapped(volume, range, |parts| {
            bytes.extend(parts.iter().flat_map(|part| part.iter().copied()));
            Ok(())
        });
        if !copied {
            return None;
        }
        assert!(volume.lost().is_none(), "a lost export is not served");
        Some(bytes)
    }

    fn read_with_buffer(&mut self, volume: &Arc<Volume>, range: SectorRange) -> Result<Vec<u8>, IoError> {
        let bytes = usize::try_from(range.bytes().unwrap()).unwrap();
        let mut fill = None;
        loop {
            let name = self.name();
            self.rig.shard.read(volume, range, fill.as_ref(), MemoryToken::reading(name, bytes));
            match self.settle(name) {
                Err(IoError::Remote) => {
                    fill = volume.fetch(range).map(answer).transpose()?;
                }
                result => return result.map(|token| token.data(bytes).to_vec()),
            }
        }
    }

    /// The name of the next request.
    fn name(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Takes turns until request `name`, the only one, is finished.
    fn settle(&mut self, name: u64) -> Result<MemoryToken<u64>, IoError> {
        let Self { rig, keeper, is_down, .. } = self;
        let deadline = Instant::now() + PATIENCE;
        let completed = rig.settle(|| {
            keeper.step();
            assert!(Instant::now() < deadline, "a request never came back");
            // A request may wait for the store: lets the control threads run.
            thread::yield_now();
            !is_down.as_ref().is_some_and(|is_down| is_down())
        });
        keeper.step();
        // Requests that a dead host left behind may come back as well.
        let mut completed = completed.into_iter();
        let Completion { token, result } =
            completed.find(|completion| completion.token.name == name).ok_or(IoError::Write)?;
        result.map(|()| token)
    }
}

/// Wakes the thread that waits for a fetch.
struct Unpark {
    thread: Thread,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.thread.unpark();
    }
}

/// The answer to a fetch.
fn answer(mut fetch: Receiver<Result<Fill, IoError>>) -> Result<Fill, IoError> {
    let deadline = Instant::now() + PATIENCE;
    let waker = Waker::from(Arc::new(Unpark { thread: thread::current() }));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(answer) = Pin::new(&mut fetch).poll(&mut context) {
            return answer.expect("nobody fetches any more");
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "a fetch never came back");
        thread::park_timeout(left);
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
