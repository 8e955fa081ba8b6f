//! One life of the cache: the shards with the duties of workers, the keeper, and everything under way.
//!
//! Owns the order of events, all of the order drawn from the seed. Does not own which requests arrive (`workload`) nor which answers are
//! right (`oracle`). Invariant: a request given to a shard comes back from that shard exactly once, or
//! the process dies first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use glidefs::testing::cache::{Admission, Cache, CheckpointPace, Clock, IoError, Keeper, Reservation};

use super::content::Content;
use super::disk::{FakeClock, machine};
use super::oracle::Before;
use super::request::{Kind, Request, SimToken};
use super::rig::{Completion, Duty, DutyKind, Rig};
use super::rng::Rng;
use super::tally::Event;
use super::world::World;

/// One worker.
struct Lane {
    rig: Rig<SimToken>,
    /// Requests in line for admission.
    queue: VecDeque<Request>,
    /// Requests with log space, in line for a buffer.
    held: Vec<(Request, Reservation)>,
    ask_after: Option<Duration>,
    waiting: bool,
    progress: Arc<AtomicBool>,
    inside: BTreeMap<Content, Request>,
}

/// The end of a life: requests which never came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Requests which were never admitted.
    pub withdrawn: usize,
    /// Admitted writes without an end, because the cache is full and the segment failed.
    pub stuck: usize,
}

pub struct Process {
    pub cache: Cache,
    clock: Arc<FakeClock>,
    keeper: Keeper,
    lanes: Vec<Lane>,
    pub written_bytes: u64,
}

impl Process {
    /// Starts workers for the `shards` shards of `cache`, each with at most `appends` appends under way; 0: appends
    /// at once, where every second worker writes large records in pieces.
    pub fn new(cache: Cache, clock: Arc<FakeClock>, shards: usize, appends: usize) -> Self {
        let lanes = (0..shards).map(|index| {
            let progress = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&progress);
            cache.on_progress(index, Arc::new(move || flag.store(true, Ordering::Release)));
            let mut rig = Rig::new(cache.shard(index, Arc::default()));
            if appends > 0 {
                rig.defer_appends(appends);
            }
            // A worker with a small arena does without.
            if appends != 1 {
                rig.write_through(2);
            }
            rig.shard.write_in_pieces(index.is_multiple_of(2));
            Lane {
                rig,
                queue: VecDeque::new(),
                held: Vec::new(),
                ask_after: None,
                waiting: false,
                progress,
                inside: BTreeMap::new(),
            }
        });
        let lanes = lanes.collect();
        Self { keeper: cache.keeper(), cache, clock, lanes, written_bytes: 0 }
    }

    /// Has checkpoints made at `pace`.
    pub fn pace_checkpoints(&mut self, pace: CheckpointPace) {
        self.keeper.pace_checkpoints(pace);
    }

    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Requests of worker `lane` which have not come back.
    pub fn load(&self, lane: usize) -> usize {
        let lane = &self.lanes[lane];
        lane.queue.len() + lane.held.len() + lane.inside.len()
    }

    /// Whether a request of `export` is inside a shard.
    pub fn is_busy(&self, export: glidefs::testing::units::ExportId) -> bool {
        self.lanes.iter().flat_map(|lane| lane.inside.values()).any(|request| request.export() == export)
    }

    /// A request arrives at worker `lane`.
    pub fn arrive(&mut self, world: &mut World, lane: usize, request: Request) {
        if request.changes() {
            self.lanes[lane].queue.push_back(request);
        } else {
            self.enter(world, lane, request, None);
        }
    }

    /// Worker `lane` asks for the head of the line. Returns whether the line moved.
    pub fn admit(&mut self, world: &mut World, lane: usize) -> bool {
        let now = self.clock.now();
        let this = &mut self.lanes[lane];
        if this.progress.swap(false, Ordering::AcqRel) {
            this.waiting = false;
        }
        if this.waiting || this.ask_after.is_some_and(|time| now < time) {
            return false;
        }
        let Some(request) = this.queue.front() else { return false };
        this.ask_after = None;
        match this.rig.shard.admit(request.data_bytes()) {
            Admission::Accept(reservation) => {
                self.written_bytes += request.data_bytes() as u64;
                let request = this.queue.pop_front().unwrap();
                this.held.push((request, reservation));
                true
            }
            Admission::Delay(time) => {
                assert!(!time.is_zero(), "a delay of no time at all");
                world.tally.hit(Event::Delay);
                this.ask_after = Some(now + time);
                false
            }
            Admission::Wait => {
                world.tally.hit(Event::Wait);
                this.waiting = true;
                false
            }
            Admission::Full => {
                world.tally.hit(Event::Full);
                this.queue.pop_front();
                true
            }
        }
    }

    /// A request of worker `lane` gets a buffer, or is withdrawn before.
    pub fn fill_held(&mut self, world: &mut World, lane: usize, cancel: bool) -> bool {
        // Reservations are used in the order of admission: a pool serves requests strictly in turn.
        if self.lanes[lane].held.is_empty() {
            return false;
        }
        let (request, reservation) = self.lanes[lane].held.remove(0);
        if cancel {
            world.tally.hit(Event::Cancelled);
            self.lanes[lane].rig.shard.cancel(reservation);
            self.lanes[lane].waiting = false;
        } else {
            self.enter(world, lane, request, Some(reservation));
        }
        true
    }

    fn enter(
        &mut self,
        world: &mut World,
        lane: usize,
        mut request: Request,
        reservation: Option<Reservation>,
    ) {
        let this = &mut self.lanes[lane];
        let (token, volume, range) = (request.token(), Arc::clone(&request.volume), request.range);
        if world.trace {
            eprintln!("  {lane} < {} {:?} of {} {range:?}", request.id, request.kind, volume.id());
        }
        if request.changes() {
            let zero = matches!(request.kind, Kind::Zero { .. });
            world.oracle.issue(volume.id(), range, request.id, zero);
        } else {
            request.issued = world.oracle.tick();
        }
        world.tally.hit(Event::Request);
        let kind = request.kind;
        assert!(this.inside.insert(request.id, request).is_none());
        match (kind, reservation) {
            (Kind::Write { fua }, Some(room)) => this.rig.shard.write(&volume, range, fua, room, token),
            (Kind::Zero { fua }, Some(room)) => this.rig.shard.zero(&volume, range, fua, room, token),
            (Kind::Flush, None) => this.rig.shard.flush(&volume, token),
            (Kind::Read, None) => this.rig.shard.read(&volume, range, None, token),
            other => panic!("{other:?}"),
        }
    }

    /// Worker `lane` ends a turn of the loop and takes note of the shard's wishes.
    pub fn turn(&mut self, lane: usize) {
        self.lanes[lane].rig.turn();
    }

    /// Lets one wish of worker `lane` advance by one step: the wish is carried out, or the result is reported. `pick`
    /// chooses the wish.
    pub fn advance(
        &mut self,
        world: &mut World,
        lane: usize,
        pick: impl FnOnce(&mut Rng, usize) -> usize,
    ) -> bool {
        let rig = &mut self.lanes[lane].rig;
        let duties = rig.duties();
        if duties.is_empty() {
            return false;
        }
        let index = pick(&mut world.rng, duties.len());
        if let Duty::Ended(_) = &duties[index] {
            let event = match duties[index].kind() {
                DutyKind::Append => Event::AppendOutOfOrder,
                DutyKind::Sync => Event::SyncOutOfOrder,
                DutyKind::Read => Event::ReadOutOfOrder,
            };
            if world.dead() {
                // A dead process hears of no result.
                drop(rig.take(index));
                return false;
            }
            world.tally.add(event, u64::from(rig.overtakes(index)));
        }
        rig.advance(index);
        true
    }

    /// Worker `lane` acknowledges finished requests; the oracle judges each. Returns how many requests came back.
    pub fn collect(&mut self, world: &mut World, lane: usize) -> usize {
        if world.dead() {
            return 0;
        }
        let this = &mut self.lanes[lane];
        let done: Vec<Completion<SimToken>> = this.rig.completed().collect();
        let count = done.len();
        for Completion { token, result } in done {
            let request = self.lanes[lane].inside.remove(&token.name);
            let request = request
                .unwrap_or_else(|| panic!("request {} came back twice, or from another shard", token.name));
            if world.trace {
                eprintln!("  {lane} > {} {:?} of {} {result:?}", request.id, request.kind, request.export());
            }
            let reads = self.lanes.iter().flat_map(|lane| lane.inside.values());
            let oldest = reads.filter(|other| other.kind == Kind::Read).map(|other| other.issued).min();
            world.judge(&request, &token, result, oldest);
        }
        count
    }

    /// Worker `lane` carries out a READ without a concurrent write, and the oracle compares the content with the
    /// past. `false` when the READ fails, as a READ may.
    pub fn observe(&mut self, world: &mut World, lane: usize, request: Request, before: Before) -> bool {
        let token = request.token();
        let this = &mut self.lanes[lane];
        this.rig.shard.read(&request.volume, request.range, None, token);
        for _ in 0..10_000 {
            self.turn(lane);
            while self.advance(world, lane, Rng::index) {}
            let completed = self.lanes[lane].rig.completed().next();
            if let Some(Completion { token, result }) = completed {
                assert_eq!(token.name, request.id);
                if let Err(error) = result {
                    let lost = matches!(error, IoError::Damaged | IoError::Corrupt | IoError::Read);
                    let may_fail = world.may_fail(request.export(), request.range, u64::MAX);
                    assert!(lost && may_fail, "{request:?} after {before:?}: {error}");
                    return false;
                }
                let data = token.data(request.bytes());
                if let Err(violation) = world.oracle.observe(request.export(), request.range, before, data) {
                    panic!("after {before:?}, READ of {:?}: {violation}", request.range);
                }
                return true;
            }
            // The READ waits for the keeper, which brings back checksums whose sums are damaged.
            self.keep(world);
        }
        panic!("{request:?} never came back");
    }

    /// The keeper does one pass. Returns whether the keeper had work.
    pub fn keep(&mut self, world: &mut World) -> bool {
        let dead = world.dead();
        let busy = self.keeper.step();
        if !dead && world.dead() {
            world.tally.hit(Event::CrashInKeeper);
        }
        busy
    }

    /// The keeper ends in good order.
    pub fn stop(&mut self) {
        self.keeper.rest();
    }

    /// Worker `lane` looks again for room without a call of the hook, as a worker may after any turn.
    pub fn look_again(&mut self, lane: usize) {
        self.lanes[lane].waiting = false;
    }

    pub fn sleep(&mut self, time: Duration) {
        self.clock.advance(time);
    }

    /// Lets everything come to an end, without faults. Requests without hope of room in a full cache are withdrawn.
    ///
    /// A worker in need of room asks again only after a call of the progress hook, as an idle worker would.
    pub fn settle(&mut self, world: &mut World) -> Rest {
        const ROUNDS: usize = 20_000;
        /// Time between two looks of the keeper without a wake-up.
        const PATIENCE: Duration = Duration::from_millis(100);
        /// The keeper may leave a failing disk alone for a while, so rest means three seconds without an event.
        const QUIET_ROUNDS: usize = 30;
        let mut idle_rounds = 0;
        for _ in 0..ROUNDS {
            let mut busy = false;
            for lane in 0..self.lanes.len() {
                while self.admit(world, lane) {
                    busy = true;
                }
                while self.fill_held(world, lane, false) {
                    busy = true;
                }
                self.turn(lane);
                while self.advance(world, lane, |_, _| 0) {
                    busy = true;
                }
                busy |= self.collect(world, lane) > 0;
            }
            let kept = self.keep(world);
            if busy {
                idle_rounds = 0;
                continue;
            }
            idle_rounds += 1;
            assert!(idle_rounds < 2000, "the keeper never rests, or a delayed write is never taken");
            if !kept && idle_rounds > QUIET_ROUNDS {
                return self.rest(world);
            }
            self.clock.advance(PATIENCE);
        }
        panic!("the cache did not come to rest in {ROUNDS} rounds");
    }

    /// Checks that nothing is left.
    fn rest(&mut self, world: &mut World) -> Rest {
        let stats = self.cache.stats();
        let mut rest = Rest { withdrawn: 0, stuck: 0 };
        for index in 0..self.lanes.len() {
            self.look_again(index);
            let moved = self.admit(world, index);
            assert!(!moved, "worker {index} waited for room that was there, and was not told: {stats:?}");
            let lane = &mut self.lanes[index];
            rest.withdrawn += std::mem::take(&mut lane.queue).len();
            rest.stuck += lane.inside.len();
            // An admitted write which lost the segment to a failure waits for the next segment.
            let failed = machine(&world.machine).injected().iter().sum::<u64>() > 0
                || machine(&world.machine).has_lost();
            let full = stats.segments_free <= 2 && failed;
            let waits = full && lane.inside.values().all(Request::changes);
            assert!(lane.inside.is_empty() || waits, "never came back: {:?}, {stats:?}", lane.inside);
            assert_eq!(lane.rig.shard.idle(), lane.inside.is_empty(), "shard {index}");
        }
        let lost = machine(&world.machine).has_lost();
        assert!(lost || stats.corrupt_frames == 0, "a checksum did not match");
        assert!(lost || stats.lost_frames == 0 || machine(&world.machine).injected()[2] > 0);
        assert!(stats.used_bytes <= stats.limit_bytes, "{stats:?}");
        world.tally.add(Event::Cleaned, stats.segments_cleaned);
        world.tally.add(Event::FrameGivenUp, stats.lost_frames);
        world.tally.add(Event::SegmentQuarantined, stats.segments_quarantined);
        rest
    }
}
