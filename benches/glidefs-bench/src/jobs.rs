//! The two kinds of job: one thread that calls `pread` and `pwrite`, and one thread that keeps a ring full.
//!
//! Owns the loop of a job, its memory, which operations count, and all `unsafe`. Invariant: the memory of an operation is not
//! touched, and not freed, until the kernel has completed the operation.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use io_uring::{IoUring, Probe, opcode, types};

use crate::error::BenchError;
use crate::figures::Latencies;
use crate::machine;
use crate::plan::{BLOCK_BYTES, Case, IoWay};
use crate::test_file::{self, Offsets, TestFile};

/// How long an idle submission thread polls before it sleeps, milliseconds.
const SUBMISSION_IDLE_MILLIS: u32 = 1000;
/// How many times a job with a submission thread polls for completions before it waits in the kernel.
const LOOKS_MAX: u32 = 20_000;
/// Index of the test file in the ring's file table.
const FILE: types::Fixed = types::Fixed(0);

#[derive(Clone, Copy, Debug)]
pub struct CountedWindow {
    pub begin: Instant,
    pub end: Instant,
}

/// The work of one job inside the window.
#[derive(Debug, Default)]
pub struct JobTally {
    pub bytes: u64,
    pub latencies: Latencies,
}

/// Everything a job needs to start.
pub struct JobSetup<'a> {
    pub case: Case,
    pub job: usize,
    pub file: &'a TestFile,
    pub verify: bool,
    /// The ring whose kernel workers the job's ring shares.
    pub workers_of: Option<RawFd>,
    /// The CPU the job's thread is pinned to.
    pub cpu: Option<usize>,
    /// The CPU the job's submission thread is bound to, if the ring has one.
    pub submission_cpu: Option<usize>,
}

/// Tells a job when to stop, and counts its operations.
pub struct JobClock<'a> {
    pub window: CountedWindow,
    pub stop: &'a AtomicBool,
    pub tally: JobTally,
}

impl JobClock<'_> {
    fn is_over(&self, now: Instant) -> bool {
        now >= self.window.end || self.stop.load(Ordering::Relaxed)
    }

    /// Counts an operation that ended inside the window; ignores any other.
    fn count(&mut self, started: Instant, now: Instant, bytes: usize) {
        if now >= self.window.begin && now < self.window.end {
            self.tally.bytes += bytes as u64;
            self.tally.latencies.record(now.saturating_duration_since(started));
        }
    }
}

impl JobSetup<'_> {
    /// Turns an incomplete or failed transfer into an error.
    fn check(&self, offset: u64, result: io::Result<usize>) -> Result<(), BenchError> {
        let wanted = self.case.load.block_bytes;
        let engine = || self.case.engine.to_string();
        match result {
            Ok(moved) if moved == wanted => Ok(()),
            Ok(moved) => Err(BenchError::Short { engine: engine(), offset, moved, wanted }),
            Err(source) => {
                let hint = match source.raw_os_error() {
                    Some(libc::EOPNOTSUPP) if self.case.engine.polls_completions => {
                        ": this device or file system cannot be polled, leave out +iopoll"
                    }
                    Some(libc::ENOSPC) => ": give a smaller --size, or --dir on another file system",
                    _ => "",
                };
                Err(BenchError::Operation { engine: engine(), offset, hint, source })
            }
        }
    }

    /// Compares the bytes of a read with the stamps of the blocks, with `--verify` only.
    fn check_content(&self, bytes: &[u8], offset: u64) -> Result<(), BenchError> {
        if self.verify && !test_file::is_stamped(bytes, offset) {
            return Err(BenchError::Corrupt { engine: self.case.engine.to_string(), offset });
        }
        Ok(())
    }
}

pub trait Job {
    /// Works until the clock says that the run is over, and then until nothing is in flight.
    fn run(&mut self, clock: &mut JobClock<'_>) -> Result<(), BenchError>;
}

/// Makes the job of `setup`. Call this on the thread that runs it.
pub fn prepare<'a>(setup: JobSetup<'a>) -> Result<Box<dyn Job + 'a>, BenchError> {
    if let Some(cpu) = setup.cpu {
        machine::pin(cpu).map_err(setup.case.failed("pinning a thread"))?;
    }
    let load = setup.case.load;
    let offsets = Offsets::new(&setup.case, setup.job, setup.file.size_bytes());
    let no_memory = |()| setup.case.failed("making buffers")(io::ErrorKind::OutOfMemory.into());
    let memory = PageMemory::new(load.iodepth * load.block_bytes).map_err(no_memory)?;
    if setup.case.engine.is_ring() {
        return Ok(Box::new(RingJob::new(setup, offsets, memory)?));
    }
    Ok(Box::new(BlockingJob { offsets, memory, setup }))
}

/// Zeroed memory that is aligned for direct I/O.
struct PageMemory {
    start: NonNull<u8>,
    layout: Layout,
}

impl PageMemory {
    fn new(bytes: usize) -> Result<Self, ()> {
        let layout = Layout::from_size_align(bytes.max(BLOCK_BYTES), BLOCK_BYTES).map_err(|_| ())?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(())?;
        Ok(Self { start, layout })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.layout.size());
        self.start.as_ptr().wrapping_add(offset)
    }

    /// The bytes of one lane or of one piece.
    fn bytes(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset + len <= self.layout.size());
        // SAFETY: the range lies within the allocation, and jobs call this only for lanes without an operation in flight.
        unsafe { slice::from_raw_parts_mut(self.at(offset), len) }
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; the owner drops it with no operation in flight.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

struct BlockingJob<'a> {
    offsets: Offsets,
    memory: PageMemory,
    setup: JobSetup<'a>,
}

impl Job for BlockingJob<'_> {
    fn run(&mut self, clock: &mut JobClock<'_>) -> Result<(), BenchError> {
        let load = self.setup.case.load;
        let bytes = self.memory.bytes(0, load.block_bytes);
        loop {
            let started = Instant::now();
            if clock.is_over(started) {
                return Ok(());
            }
            let offset = self.offsets.next_offset();
            let result = if load.mode.writes() {
                test_file::stamp(bytes, offset);
                self.setup.file.file().write_at(bytes, offset)
            } else {
                self.setup.file.file().read_at(bytes, offset)
            };
            if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {
                continue;
            }
            self.setup.check(offset, result)?;
            clock.count(started, Instant::now(), load.block_bytes);
            if !load.mode.writes() {
                self.setup.check_content(bytes, offset)?;
            }
        }
    }
}

/// A ring for `case`. `workers_of` is a ring whose kernel workers the new one shares.
pub fn ring(case: Case, submission_cpu: Option<usize>, workers_of: Option<RawFd>) -> io::Result<IoUring> {
    let depth = u32::try_from(case.load.iodepth).map_err(io::Error::other)?;
    let mut builder = IoUring::builder();
    builder.setup_cqsize(2 * depth).setup_clamp().setup_submit_all().setup_single_issuer();
    if case.engine.polls_submissions {
        builder.setup_sqpoll(SUBMISSION_IDLE_MILLIS);
        if let Some(cpu) = submission_cpu {
            builder.setup_sqpoll_cpu(u32::try_from(cpu).map_err(io::Error::other)?);
        }
    } else {
        builder.setup_defer_taskrun();
    }
    if case.engine.polls_completions {
        builder.setup_iopoll();
    }
    if let Some(ring) = workers_of {
        builder.setup_attach_wq(ring);
    }
    builder.build(depth)
}

/// Work of a lane: one operation at a time, in memory of its own.
#[derive(Clone, Copy)]
struct LaneState {
    started: Instant,
    offset: u64,
}

struct RingJob<'a> {
    ring: IoUring,
    /// `None` after a failure of the ring with operations in flight: their memory is never freed.
    memory: Option<PageMemory>,
    /// The pieces of each lane's memory, for vectored operations.
    pieces: Vec<libc::iovec>,
    pieces_per_lane: usize,
    lanes: Vec<LaneState>,
    offsets: Offsets,
    setup: JobSetup<'a>,
}

impl<'a> RingJob<'a> {
    fn new(setup: JobSetup<'a>, offsets: Offsets, memory: PageMemory) -> Result<Self, BenchError> {
        let case = setup.case;
        let ring =
            ring(case, setup.submission_cpu, setup.workers_of).map_err(case.failed("setting up a ring"))?;
        let submitter = ring.submitter();
        submitter
            .register_files(&[setup.file.file().as_raw_fd()])
            .map_err(case.failed("registering the file"))?;
        if matches!(case.engine.way, IoWay::RingFixed | IoWay::RingVectoredFixed) {
            let all = libc::iovec { iov_base: memory.at(0).cast(), iov_len: memory.layout.size() };
            // SAFETY: the job frees the memory after the ring is closed, see `Drop`.
            unsafe { submitter.register_buffers(&[all]) }
                .map_err(case.failed("registering buffers (see RLIMIT_MEMLOCK)"))?;
        }
        if case.engine.way == IoWay::RingVectoredFixed {
            let mut probe = Probe::new();
            submitter.register_probe(&mut probe).map_err(case.failed("looking up what the ring can do"))?;
            if !probe.is_supported(opcode::ReadvFixed::CODE) {
                let source = io::ErrorKind::Unsupported.into();
                return Err(case.failed("vectored I/O on registered buffers (Linux 6.15)")(source));
            }
        }
        let block_bytes = case.load.block_bytes;
        let pieces_per_lane = block_bytes / BLOCK_BYTES;
        // Downwards, so that the kernel cannot join neighbours.
        let pieces = (0..case.load.iodepth)
            .flat_map(|lane| {
                (0..pieces_per_lane).rev().map(move |piece| lane * block_bytes + piece * BLOCK_BYTES)
            })
            .map(|at| libc::iovec { iov_base: memory.at(at).cast(), iov_len: BLOCK_BYTES })
            .collect();
        let lanes = vec![LaneState { started: Instant::now(), offset: 0 }; case.load.iodepth];
        Ok(Self { ring, memory: Some(memory), pieces, pieces_per_lane, lanes, offsets, setup })
    }

    /// Waits for completions. With a submission thread, polls first and saves the system call if completions come soon.
    fn wait(&mut self) -> io::Result<()> {
        if self.setup.case.engine.polls_submissions {
            self.ring.submit()?;
            for _ in 0..LOOKS_MAX {
                if !self.ring.completion().is_empty() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    fn is_vectored(&self) -> bool {
        matches!(self.setup.case.engine.way, IoWay::RingVectored | IoWay::RingVectoredFixed)
    }

    /// Calls `visit` with the memory of `lane` piece by piece, and the byte offset in the file of each.
    fn visit(
        &mut self,
        lane: usize,
        mut visit: impl FnMut(&JobSetup<'_>, &mut [u8], u64) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let (is_vectored, block_bytes) = (self.is_vectored(), self.setup.case.load.block_bytes);
        let LaneState { offset, .. } = self.lanes[lane];
        let Some(memory) = &mut self.memory else { return Ok(()) };
        if !is_vectored {
            return visit(&self.setup, memory.bytes(lane * block_bytes, block_bytes), offset);
        }
        (0..self.pieces_per_lane).rev().zip((offset..).step_by(BLOCK_BYTES)).try_for_each(
            |(piece, offset)| {
                visit(
                    &self.setup,
                    memory.bytes(lane * block_bytes + piece * BLOCK_BYTES, BLOCK_BYTES),
                    offset,
                )
            },
        )
    }

    fn start(&mut self, lane: usize, now: Instant) -> Result<(), BenchError> {
        let case = self.setup.case;
        let offset = self.offsets.next_offset();
        self.lanes[lane] = LaneState { started: now, offset };
        let writes = case.load.mode.writes();
        if writes {
            self.visit(lane, |_, bytes, offset| {
                test_file::stamp(bytes, offset);
                Ok(())
            })?;
        }
        let Some(memory) = &self.memory else { return Ok(()) };
        let start = memory.at(lane * case.load.block_bytes);
        // Both are bounded by `Settings::check`.
        let [len, count] = [case.load.block_bytes, self.pieces_per_lane]
            .map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        let pieces = self.pieces[lane * self.pieces_per_lane..].as_ptr();
        let entry = match (case.engine.way, writes) {
            (IoWay::RingFixed, false) => opcode::ReadFixed::new(FILE, start, len, 0).offset(offset).build(),
            (IoWay::RingFixed, true) => opcode::WriteFixed::new(FILE, start, len, 0).offset(offset).build(),
            (IoWay::RingVectored, false) => opcode::Readv::new(FILE, pieces, count).offset(offset).build(),
            (IoWay::RingVectored, true) => opcode::Writev::new(FILE, pieces, count).offset(offset).build(),
            (IoWay::RingVectoredFixed, false) => {
                opcode::ReadvFixed::new(FILE, pieces, count, 0).offset(offset).build()
            }
            (IoWay::RingVectoredFixed, true) => {
                opcode::WritevFixed::new(FILE, pieces, count, 0).offset(offset).build()
            }
            (_, false) => opcode::Read::new(FILE, start, len).offset(offset).build(),
            (_, true) => opcode::Write::new(FILE, start, len).offset(offset).build(),
        };
        let full = |error| case.failed("submitting an operation")(io::Error::other(error));
        // SAFETY: file, memory and pieces live until the operation has completed: `run` ends when nothing is in flight, and
        // leaks the memory if the ring fails before.
        unsafe { self.ring.submission().push(&entry.user_data(lane as u64)) }.map_err(full)
    }

    /// Counts and checks the operation of `lane`, which completed with `result`.
    fn finish(
        &mut self,
        lane: usize,
        result: i32,
        now: Instant,
        clock: &mut JobClock<'_>,
    ) -> Result<(), BenchError> {
        let LaneState { started, offset } = self.lanes[lane];
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        self.setup.check(offset, result)?;
        clock.count(started, now, self.setup.case.load.block_bytes);
        if self.setup.verify && !self.setup.case.load.mode.writes() {
            self.visit(lane, |setup, bytes, offset| setup.check_content(bytes, offset))?;
        }
        Ok(())
    }
}

impl Job for RingJob<'_> {
    fn run(&mut self, clock: &mut JobClock<'_>) -> Result<(), BenchError> {
        let (mut in_flight, mut outcome) = (0, Ok(()));
        for lane in 0..self.lanes.len() {
            outcome = outcome.and_then(|()| self.start(lane, Instant::now()));
            in_flight += usize::from(outcome.is_ok());
        }
        let mut events = Vec::new();
        while in_flight > 0 {
            if let Err(error) = self.wait() {
                std::mem::forget(self.memory.take());
                return Err(self.setup.case.failed("waiting for completions")(error));
            }
            let now = Instant::now();
            let is_over = outcome.is_err() || clock.is_over(now);
            events.extend(self.ring.completion().map(|event| (event.user_data(), event.result())));
            for (lane, result) in events.drain(..) {
                let lane = usize::try_from(lane).unwrap_or(usize::MAX);
                in_flight -= 1;
                let mut next = self.finish(lane, result, now, clock);
                if next.is_ok() && !is_over {
                    next = self.start(lane, now);
                    in_flight += usize::from(next.is_ok());
                }
                outcome = outcome.and(next);
            }
        }
        outcome
    }
}
