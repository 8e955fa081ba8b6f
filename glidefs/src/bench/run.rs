//! One run of one case: threads, warm-up, the clock, CPU time.
//!
//! Owns the measured window: operations count when they complete inside the window, and CPU time of the process counts between the
//! ends of the window. Does not own how an operation is done. Invariant: every job is fully set up before the window is set.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::blocking::BlockingJob;
use super::error::BenchError;
use super::figures::{CpuTime, MeasuredRun};
use super::job::{CountedWindow, JobClock, JobSetup, JobTally};
use super::plan::{Case, Settings};
use super::rings::{self, RingJob};
use super::test_file::TestFile;
use crate::worker::affinity;
use crate::worker::ring::KernelWorkers;

enum Job {
    Blocking(Box<BlockingJob>),
    Ring(Box<RingJob>),
}

impl Job {
    fn new(setup: JobSetup) -> Result<Self, BenchError> {
        if let Some(cpu) = setup.cpu {
            affinity::pin(cpu).map_err(setup.fail("pinning a thread"))?;
        }
        Ok(if setup.case.engine.is_ring() {
            Self::Ring(Box::new(RingJob::new(setup)?))
        } else {
            Self::Blocking(Box::new(BlockingJob::new(setup)?))
        })
    }

    fn run(&mut self, clock: &mut JobClock<'_>) -> Result<(), BenchError> {
        match self {
            Self::Blocking(job) => job.run(clock),
            Self::Ring(job) => job.run(clock),
        }
    }
}

/// CPU time of the process so far, including the kernel's workers for the process.
fn cpu_time() -> CpuTime {
    let duration = |time: TimeVal| {
        let micros = u32::try_from(time.tv_usec()).unwrap_or(0);
        Duration::new(u64::try_from(time.tv_sec()).unwrap_or(0), micros.saturating_mul(1000))
    };
    // `getrusage` fails only for a bad address or a bad `who`.
    getrusage(UsageWho::RUSAGE_SELF)
        .map(|usage| CpuTime { user: duration(usage.user_time()), system: duration(usage.system_time()) })
        .unwrap_or_default()
}

pub fn run(case: Case, file: &TestFile, settings: &Settings) -> Result<MeasuredRun, BenchError> {
    let jobs = case.load.numjobs;
    let cpus = affinity::allowed().map_err(|source| BenchError::Setup {
        engine: case.engine.to_string(),
        what: "looking up the CPUs",
        source,
    })?;
    // A CPU each where there are enough, and others for submission threads while there are any.
    let cpu_of = |job: usize| cpus.get(job).copied().filter(|_| jobs <= cpus.len());
    let submission_cpu_of = |job: usize| cpus.get(jobs + job).copied();
    let anchor = rings::anchor(case, submission_cpu_of(0))?;
    let (ready, go) = (Barrier::new(jobs + 1), Barrier::new(jobs + 1));
    let (stop, window) = (AtomicBool::new(false), OnceLock::new());
    let work = |job: usize, workers: Option<KernelWorkers>| {
        let setup = JobSetup {
            case,
            job,
            file: Arc::clone(file.file()),
            size_bytes: file.size_bytes(),
            verify: settings.verify,
            workers,
            cpu: cpu_of(job),
            submission_cpu: submission_cpu_of(job),
        };
        let prepared = Job::new(setup);
        ready.wait();
        go.wait();
        let window = *window.get().ok_or(BenchError::Panicked)?;
        let mut clock = JobClock { window, stop: &stop, tally: JobTally::default() };
        let done = prepared.and_then(|mut job| job.run(&mut clock));
        if done.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        done.map(|()| clock.tally)
    };
    let (tallies, used) = thread::scope(|scope| {
        let handles: Vec<_> = (0..jobs)
            .map(|job| {
                let workers = anchor.as_ref().map(|(_, workers)| workers.clone());
                let work = &work;
                scope.spawn(move || work(job, workers))
            })
            .collect();
        ready.wait();
        let begin = Instant::now() + settings.warmup;
        let _ = window.set(CountedWindow { begin, end: begin + settings.duration });
        go.wait();
        let used = cpu_time_within(begin, settings.duration, &stop);
        (
            handles
                .into_iter()
                .map(|handle| handle.join().unwrap_or(Err(BenchError::Panicked)))
                .collect::<Vec<_>>(),
            used,
        )
    });
    let mut total = JobTally::default();
    for tally in tallies {
        let tally = tally?;
        total.bytes += tally.bytes;
        total.latencies.add(&tally.latencies);
    }
    Ok(MeasuredRun::new(case, settings.duration, &total.latencies, total.bytes, used))
}

/// CPU time used from `begin` on for `duration`; less when a job fails.
fn cpu_time_within(begin: Instant, duration: Duration, stop: &AtomicBool) -> CpuTime {
    let sleep_until = |until: Instant| {
        while !stop.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(Duration::from_millis(100)));
        }
    };
    sleep_until(begin);
    let before = cpu_time();
    sleep_until(begin + duration);
    let after = cpu_time();
    CpuTime {
        user: after.user.saturating_sub(before.user),
        system: after.system.saturating_sub(before.system),
    }
}
