//! Jobs that keep a ring full.
//!
//! Owns the loop of one thread with its ring, arena and registered file. Each place in the queue (a lane) has an operation in
//! flight until the run is over; the memory of a completed operation goes straight into the next.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::BenchError;
use super::job::{Setup, Watch};
use super::plan::{BLOCK_BYTES, Case, Way};
use super::target::{self, Places};
use crate::buffer::{Pool, Slot};
use crate::observe::io::WorkerStats;
use crate::units::REQUEST_BYTES_MAX;
use crate::worker::affinity::Cpu;
use crate::worker::ring::{
    Completion, Event, KernelWorkers, Kind, Memory, Op, Options, Ring, SubmissionThread, Target,
};

/// How long a submission thread polls without work before it sleeps.
const SUBMISSION_IDLE: Duration = Duration::from_secs(1);
/// How often a job with a submission thread looks for completions before it waits in the kernel.
const LOOKS_MAX: u32 = 20_000;
/// The place of the test file in the ring's file table.
const FILE: u32 = 0;

/// What a lane is doing.
#[derive(Clone, Copy)]
struct Lane {
    started: Instant,
    offset: u64,
}

/// One thread's job.
pub(super) struct RingJob {
    ring: Ring<usize>,
    lanes: Vec<Lane>,
    /// Memory of lanes that have nothing in flight yet.
    idle: Vec<Memory>,
    places: Places,
    setup: Setup,
}

fn options(case: Case, submission_cpu: Option<Cpu>, workers_of: Option<KernelWorkers>) -> Options {
    let depth = u32::try_from(case.load.iodepth).unwrap_or(u32::MAX);
    Options {
        submissions: depth,
        completions: depth.saturating_mul(2),
        files_max: FILE + 1,
        submission_thread: case
            .engine
            .polls_submissions
            .then_some(SubmissionThread { idle: SUBMISSION_IDLE, cpu: submission_cpu }),
        poll_completions: case.engine.polls_completions,
        workers_of,
    }
}

/// A ring for those of the jobs to share the workers of, if they do.
pub(super) fn anchor(
    case: Case,
    submission_cpu: Option<Cpu>,
) -> Result<Option<(Ring<usize>, KernelWorkers)>, BenchError> {
    if !case.engine.shares_workers {
        return Ok(None);
    }
    let shared = Ring::new(&options(case, submission_cpu, None)).and_then(|ring| {
        let workers = ring.workers()?;
        Ok((ring, workers))
    });
    let fail =
        |source| BenchError::Setup { engine: case.engine.to_string(), what: "setting up a ring", source };
    shared.map(Some).map_err(fail)
}

/// How many slots of the largest size the operations of one job need.
fn slots_for(case: Case) -> usize {
    // An operation takes a slot of a power of four times 4 KiB, or the largest.
    let block = case.load.block_bytes;
    let class = [BLOCK_BYTES, 4 * BLOCK_BYTES, 16 * BLOCK_BYTES].into_iter().find(|&class| block <= class);
    (case.load.iodepth * class.unwrap_or(REQUEST_BYTES_MAX)).div_ceil(REQUEST_BYTES_MAX)
}

impl RingJob {
    /// A job with its ring, its arena and its registered file. Call on the thread that runs it.
    pub fn new(setup: Setup) -> Result<Self, BenchError> {
        let case = setup.case;
        let memory = setup.fail("making buffers");
        let pool = Pool::new(slots_for(case), Arc::new(WorkerStats::default()))
            .map_err(|error| memory(io::Error::other(error)))?;
        let mut ring: Ring<usize> = Ring::new(&options(case, setup.submission_cpu, setup.workers.clone()))
            .map_err(setup.fail("setting up a ring"))?;
        ring.register_file(FILE, setup.file.as_raw_fd()).map_err(setup.fail("registering the file"))?;
        if matches!(case.engine.way, Way::RingFixed | Way::RingVectoredFixed) {
            ring.register_arena(&pool).map_err(setup.fail("registering buffers (see RLIMIT_MEMLOCK)"))?;
        }
        if case.engine.way == Way::RingVectoredFixed && !ring.supports(Kind::ReadvFixed) {
            return Err(setup.fail("vectored I/O on registered buffers (Linux 6.15)")(
                io::ErrorKind::Unsupported.into(),
            ));
        }
        let acquire =
            |bytes| pool.try_acquire(bytes).ok_or_else(|| memory(io::ErrorKind::OutOfMemory.into()));
        let mut idle = Vec::new();
        for _ in 0..case.load.iodepth {
            idle.push(match case.engine.way {
                Way::RingVectored | Way::RingVectoredFixed => {
                    let pieces = case.load.block_bytes / BLOCK_BYTES;
                    Memory::Slots((0..pieces).map(|_| acquire(BLOCK_BYTES)).collect::<Result<_, _>>()?)
                }
                _ => Memory::Slot(acquire(case.load.block_bytes)?),
            });
        }
        let lane = Lane { started: Instant::now(), offset: 0 };
        let places = Places::new(&case, setup.job, setup.size_bytes);
        Ok(Self { ring, lanes: vec![lane; case.load.iodepth], idle, places, setup })
    }

    /// Works until the watch says it is over, and then until nothing is in flight.
    pub fn run(&mut self, watch: &mut Watch<'_>) -> Result<(), BenchError> {
        let mut in_flight = 0;
        for lane in 0..self.lanes.len() {
            if let Some(memory) = self.idle.pop() {
                self.start(lane, memory, Instant::now());
                in_flight += 1;
            }
        }
        let mut events = Vec::new();
        while in_flight > 0 {
            self.wait(&mut events).map_err(self.setup.fail("waiting for completions"))?;
            let now = Instant::now();
            let is_over = watch.is_over(now);
            for event in events.drain(..) {
                let Event::Operation(Completion { context: lane, result, memory }) = event else { continue };
                let Lane { started, offset } = self.lanes[lane];
                self.setup.check(offset, result)?;
                watch.count(started, now, self.setup.case.load.block_bytes);
                if !self.setup.case.load.mode.writes() {
                    self.check_content(&memory, offset)?;
                }
                if is_over {
                    in_flight -= 1;
                } else {
                    self.start(lane, memory, now);
                }
            }
        }
        Ok(())
    }

    /// Waits for completions; with a submission thread without a system call, if they come soon.
    fn wait(&mut self, events: &mut Vec<Event<usize>>) -> io::Result<()> {
        if self.setup.case.engine.polls_submissions {
            self.ring.submit()?;
            for _ in 0..LOOKS_MAX {
                self.ring.drain(events);
                if !events.is_empty() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        self.ring.submit_and_wait(None)?;
        self.ring.drain(events);
        Ok(())
    }

    fn start(&mut self, lane: usize, mut memory: Memory, now: Instant) {
        let case = self.setup.case;
        let (file, offset) = (Target::Registered(FILE), self.places.next_offset());
        self.lanes[lane] = Lane { started: now, offset };
        let writes = case.load.mode.writes();
        if writes {
            match &mut memory {
                Memory::Slot(slot) => target::stamp(&mut slot[..case.load.block_bytes], offset),
                Memory::Slots(slots) => {
                    for (slot, at) in slots.iter_mut().zip((offset..).step_by(BLOCK_BYTES)) {
                        target::stamp(slot, at);
                    }
                }
                _ => {}
            }
        }
        let fixed = matches!(case.engine.way, Way::RingFixed | Way::RingVectoredFixed);
        let op = match memory {
            Memory::Slot(slot) => one(file, offset, slot, writes, fixed).window(0..case.load.block_bytes),
            Memory::Slots(slots) => several(file, offset, slots, writes, fixed),
            // Lanes have slots: `new` made them, and completions give back what they were given.
            _ => return,
        };
        self.ring.start(op, lane);
    }

    fn check_content(&self, memory: &Memory, offset: u64) -> Result<(), BenchError> {
        match memory {
            Memory::Slot(slot) => self.setup.check_content(&slot[..self.setup.case.load.block_bytes], offset),
            Memory::Slots(slots) => slots
                .iter()
                .zip((offset..).step_by(BLOCK_BYTES))
                .try_for_each(|(slot, at)| self.setup.check_content(slot, at)),
            _ => Ok(()),
        }
    }
}

fn one(file: Target, offset: u64, slot: Slot, writes: bool, fixed: bool) -> Op<Memory> {
    match (writes, fixed) {
        (false, false) => Op::read(file, offset, slot).erase(),
        (false, true) => Op::read_fixed(file, offset, slot).erase(),
        (true, false) => Op::write(file, offset, slot).erase(),
        (true, true) => Op::write_fixed(file, offset, slot).erase(),
    }
}

fn several(file: Target, offset: u64, slots: Vec<Slot>, writes: bool, fixed: bool) -> Op<Memory> {
    match (writes, fixed) {
        (false, false) => Op::readv(file, offset, slots).erase(),
        (false, true) => Op::readv_fixed(file, offset, slots).erase(),
        (true, false) => Op::writev(file, offset, slots).erase(),
        (true, true) => Op::writev_fixed(file, offset, slots).erase(),
    }
}
