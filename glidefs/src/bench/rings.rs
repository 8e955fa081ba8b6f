//! Jobs that keep a ring full.
//!
//! Owns the loop of one thread with a ring, an arena and a registered file. Each lane of the job has an operation in flight until
//! the run is over; the memory of a completed operation goes straight into the lane's next operation.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::BenchError;
use super::job::{JobClock, JobSetup};
use super::plan::{BLOCK_BYTES, Case, IoWay};
use super::test_file::{self, Offsets};
use crate::buffer::{Pool, Slot};
use crate::observe::io::WorkerStats;
use crate::units::REQUEST_BYTES_MAX;
use crate::worker::affinity::Cpu;
use crate::worker::ring::{
    Completion, Event, KernelWorkers, Kind, Memory, Op, Options, Ring, SubmissionThread, Target,
};

/// How long an idle submission thread polls before the thread sleeps.
const SUBMISSION_IDLE: Duration = Duration::from_secs(1);
/// How many times a job with a submission thread polls for completions before the job waits in the kernel.
const LOOKS_MAX: u32 = 20_000;
/// Index of the test file in the ring's file table.
const FILE: u32 = 0;

/// The operation in flight of a lane.
#[derive(Clone, Copy)]
struct LaneState {
    started: Instant,
    offset: u64,
}

pub(super) struct RingJob {
    ring: Ring<usize>,
    lanes: Vec<LaneState>,
    /// Memory for lanes without an operation yet.
    idle: Vec<Memory>,
    offsets: Offsets,
    setup: JobSetup,
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

/// With an engine that shares workers: the ring that lends its kernel workers to the rings of all jobs.
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
    /// Makes the ring, the arena and the registered file. Call this on the thread that runs the job.
    pub fn new(setup: JobSetup) -> Result<Self, BenchError> {
        let case = setup.case;
        let memory = setup.fail("making buffers");
        let pool = Pool::new(slots_for(case), Arc::new(WorkerStats::default()))
            .map_err(|error| memory(io::Error::other(error)))?;
        let mut ring: Ring<usize> = Ring::new(&options(case, setup.submission_cpu, setup.workers.clone()))
            .map_err(setup.fail("setting up a ring"))?;
        ring.register_file(FILE, setup.file.as_raw_fd()).map_err(setup.fail("registering the file"))?;
        if matches!(case.engine.way, IoWay::RingFixed | IoWay::RingVectoredFixed) {
            ring.register_arena(&pool).map_err(setup.fail("registering buffers (see RLIMIT_MEMLOCK)"))?;
        }
        if case.engine.way == IoWay::RingVectoredFixed && !ring.supports(Kind::ReadvFixed) {
            return Err(setup.fail("vectored I/O on registered buffers (Linux 6.15)")(
                io::ErrorKind::Unsupported.into(),
            ));
        }
        let acquire =
            |bytes| pool.try_acquire(bytes).ok_or_else(|| memory(io::ErrorKind::OutOfMemory.into()));
        let mut idle = Vec::new();
        for _ in 0..case.load.iodepth {
            idle.push(match case.engine.way {
                IoWay::RingVectored | IoWay::RingVectoredFixed => {
                    let pieces = case.load.block_bytes / BLOCK_BYTES;
                    Memory::Slots((0..pieces).map(|_| acquire(BLOCK_BYTES)).collect::<Result<_, _>>()?)
                }
                _ => Memory::Slot(acquire(case.load.block_bytes)?),
            });
        }
        let lane = LaneState { started: Instant::now(), offset: 0 };
        let offsets = Offsets::new(&case, setup.job, setup.size_bytes);
        Ok(Self { ring, lanes: vec![lane; case.load.iodepth], idle, offsets, setup })
    }

    /// Works until the clock says that the run is over, and then until nothing is in flight.
    pub fn run(&mut self, clock: &mut JobClock<'_>) -> Result<(), BenchError> {
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
            let is_over = clock.is_over(now);
            for event in events.drain(..) {
                let Event::Operation(Completion { context: lane, result, memory }) = event else { continue };
                let LaneState { started, offset } = self.lanes[lane];
                self.setup.check(offset, result)?;
                clock.count(started, now, self.setup.case.load.block_bytes);
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

    /// Waits for completions. With a submission thread, polls first and saves the system call if completions come soon.
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
        let (file, offset) = (Target::Registered(FILE), self.offsets.next_offset());
        self.lanes[lane] = LaneState { started: now, offset };
        let writes = case.load.mode.writes();
        if writes {
            match &mut memory {
                Memory::Slot(slot) => test_file::stamp(&mut slot[..case.load.block_bytes], offset),
                Memory::Slots(slots) => {
                    for (slot, at) in slots.iter_mut().zip((offset..).step_by(BLOCK_BYTES)) {
                        test_file::stamp(slot, at);
                    }
                }
                _ => {}
            }
        }
        let fixed = matches!(case.engine.way, IoWay::RingFixed | IoWay::RingVectoredFixed);
        let op = match memory {
            Memory::Slot(slot) => one(file, offset, slot, writes, fixed).window(0..case.load.block_bytes),
            Memory::Slots(slots) => several(file, offset, slots, writes, fixed),
            // `new` gave every lane slots, and a completion returns the same memory.
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
