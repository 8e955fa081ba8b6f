//! All runs in order, and one run of one case: threads, warm-up, the clock, CPU time.
//!
//! Owns the order of runs and the measured window: operations count when they complete inside the window, and CPU time of the
//! process counts between its ends. Does not own how an operation is done. Invariants: each round visits all cases, so that a slow
//! change of the machine meets every case; every job is fully set up before the window is set.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::compare::{Compared, Pair};
use crate::error::BenchError;
use crate::figures::{CaseRuns, CpuTime, MeasuredRun};
use crate::jobs::{self, CountedWindow, JobClock, JobSetup, JobTally};
use crate::machine;
use crate::plan::{Case, Settings};
use crate::test_file::TestFile;

/// Is told what is under way, how much is done, and of how much.
pub type Progress<'a> = &'a dyn Fn(&str, u64, u64);

fn prepare(cases: &[Case], settings: &Settings, progress: Progress<'_>) -> Result<TestFile, BenchError> {
    settings.check(cases)?;
    TestFile::prepare(settings, cases, |done, total| {
        progress("filling the test file, MiB", done >> 20, total >> 20);
    })
}

pub fn measure(
    cases: &[Case],
    settings: &Settings,
    progress: Progress<'_>,
) -> Result<Vec<CaseRuns>, BenchError> {
    let file = prepare(cases, settings, progress)?;
    let mut groups: Vec<CaseRuns> = cases.iter().map(|&case| CaseRuns { case, runs: Vec::new() }).collect();
    let of = (cases.len() * settings.repeat) as u64;
    let mut number = 0;
    for _ in 0..settings.repeat {
        for group in &mut groups {
            number += 1;
            progress(&group.case.to_string(), number, of);
            group.runs.push(run(group.case, &file, settings)?);
        }
    }
    Ok(groups)
}

/// Compares the sides of `pairs`. With `lenient`, an operation that this machine cannot do is noted instead of failing the
/// comparison.
pub fn compare(
    pairs: &[Pair],
    settings: &Settings,
    lenient: bool,
    progress: Progress<'_>,
) -> Result<Vec<Compared>, BenchError> {
    let cases: Vec<Case> = pairs.iter().flat_map(|pair| [pair.before, pair.after]).collect();
    let file = prepare(&cases, settings, progress)?;
    let mut results = Vec::new();
    for (done, &pair) in pairs.iter().enumerate() {
        results.push(Compared::run(pair, settings.repeat, lenient, |case| {
            progress(&case.to_string(), done as u64 + 1, pairs.len() as u64);
            run(case, &file, settings)
        })?);
    }
    Ok(results)
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
    let cpus = machine::allowed_cpus().map_err(case.failed("looking up the CPUs"))?;
    // A CPU each where there are enough, and others for submission threads while there are any.
    let cpu_of = |job: usize| cpus.get(job).copied().filter(|_| jobs <= cpus.len());
    let submission_cpu_of = |job: usize| cpus.get(jobs + job).copied();
    // The ring that lends its kernel workers to the rings of all jobs.
    let anchor = if case.engine.shares_workers {
        Some(jobs::ring(case, submission_cpu_of(0), None).map_err(case.failed("setting up a ring"))?)
    } else {
        None
    };
    let workers_of: Option<RawFd> = anchor.as_ref().map(AsRawFd::as_raw_fd);
    let (ready, go) = (Barrier::new(jobs + 1), Barrier::new(jobs + 1));
    let (stop, window) = (AtomicBool::new(false), OnceLock::new());
    let work = |job: usize| {
        let setup = JobSetup {
            case,
            job,
            file,
            verify: settings.verify,
            workers_of,
            cpu: cpu_of(job),
            submission_cpu: submission_cpu_of(job),
        };
        let prepared = jobs::prepare(setup);
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
        let work = &work;
        let handles: Vec<_> = (0..jobs).map(|job| scope.spawn(move || work(job))).collect();
        ready.wait();
        let begin = Instant::now() + settings.warmup;
        let _ = window.set(CountedWindow { begin, end: begin + settings.duration });
        go.wait();
        let used = cpu_time_within(begin, settings.duration, &stop);
        let join =
            |handle: thread::ScopedJoinHandle<'_, _>| handle.join().unwrap_or(Err(BenchError::Panicked));
        (handles.into_iter().map(join).collect::<Vec<Result<JobTally, BenchError>>>(), used)
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
