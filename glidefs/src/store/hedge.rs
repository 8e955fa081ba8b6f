//! Second requests for GETs that take unusually long.
//!
//! Owns how long GETs took lately, when a GET is late, and the number of second requests. Does not own the requests. Invariants:
//! a GET has at most one second request; second requests are at most a twentieth of the answered GETs plus [`SAVED_MAX`]; no
//! second request is sent while the store fails, or before enough GETs were measured.

use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::retry::Failure;

use crate::locks::MutexExt;

/// Remembered GETs of a class of sizes.
const SAMPLES: usize = 128;
/// Measured GETs of a class that are needed before a GET of the class can be late.
const SAMPLES_MIN: usize = 32;
/// A GET that takes longer than so many per cent of the remembered GETs is late.
const LATE_PERCENT: usize = 95;
/// No GET is late before this time.
const LATE_MIN: Duration = Duration::from_millis(10);
/// What an answered GET adds to the budget, and what a second request takes, hundredths of a request.
const EARNED: u32 = 5;
const COST: u32 = 100;
/// Most second requests that the budget saves up.
const SAVED_MAX: u32 = 10;
/// Classes of sizes: up to 64 KiB, 256 KiB, 1 MiB, and above.
const CLASSES: usize = 4;

/// Durations of a store's GETs, and the budget of second requests. No code that can panic runs between two related changes under the
/// lock.
#[derive(Debug, Default)]
pub(super) struct Hedge(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    classes: [Times; CLASSES],
    budget: u32,
    /// Whether the last GET that ended had no answer.
    failing: bool,
}

/// How long the last GETs of a class took, in a ring.
#[derive(Debug, Default)]
struct Times {
    times: Vec<Duration>,
    next: usize,
}

impl Times {
    fn add(&mut self, time: Duration) {
        match self.times.get_mut(self.next) {
            Some(oldest) => *oldest = time,
            None => self.times.push(time),
        }
        self.next = (self.next + 1) % SAMPLES;
    }

    fn late(&self) -> Option<Duration> {
        if self.times.len() < SAMPLES_MIN {
            return None;
        }
        let mut times = self.times.clone();
        let at = times.len() * LATE_PERCENT / 100;
        let (_, late, _) = times.select_nth_unstable(at);
        Some((*late).max(LATE_MIN))
    }
}

fn class(bytes: u64) -> usize {
    match bytes >> 10 {
        0..=64 => 0,
        65..=256 => 1,
        257..=1024 => 2,
        _ => 3,
    }
}

impl Hedge {
    /// After how long a GET of `bytes` is late. `None`: too few GETs were measured, or the store fails.
    pub fn late_after(&self, bytes: u64) -> Option<Duration> {
        let inner = self.0.lock_whole();
        if inner.failing { None } else { inner.classes[class(bytes)].late() }
    }

    /// Takes a second request from the budget. `false`: the budget is used up, or the store fails.
    pub fn spend(&self) -> bool {
        let mut inner = self.0.lock_whole();
        let left = inner.budget.checked_sub(COST).filter(|_| !inner.failing);
        inner.budget = left.unwrap_or(inner.budget);
        left.is_some()
    }

    /// Begins to measure a GET. The sender gives the GET up after `limit`.
    pub fn begin(&self, limit: Duration) -> Watch<'_> {
        Watch { hedge: self, begun: Instant::now(), limit }
    }

    /// Records that a GET of `bytes` was answered after `took`.
    fn answered(&self, bytes: u64, took: Duration) {
        let mut inner = self.0.lock_whole();
        inner.failing = false;
        inner.budget = (inner.budget + EARNED).min(SAVED_MAX * COST);
        inner.classes[class(bytes)].add(took);
    }

    /// Records that a GET was not answered.
    fn failed(&self) {
        self.0.lock_whole().failing = true;
    }
}

/// A GET that is under way. A watch that is dropped after the limit records that the GET was not answered.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    hedge: &'a Hedge,
    begun: Instant,
    limit: Duration,
}

impl Watch<'_> {
    /// Records an answer of up to `bytes`.
    pub fn answered(mut self, bytes: u64) {
        self.limit = Duration::MAX;
        self.hedge.answered(bytes, self.begun.elapsed());
    }

    /// Records that there was no answer.
    pub fn failed(self) {
        self.hedge.failed();
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if self.begun.elapsed() >= self.limit {
            self.hedge.failed();
        }
    }
}

/// The answer of `first`. When `first` takes longer than `late`, `second` is called and the faster of both answers counts. When
/// one of both fails, the other one keeps its time. The flag tells whether the second request won.
pub(super) async fn hedged<T, F, S>(
    first: F,
    late: Option<Duration>,
    second: impl FnOnce() -> Option<S>,
) -> (Result<T, Failure>, bool)
where
    F: Future<Output = Result<T, Failure>>,
    S: Future<Output = Result<T, Failure>>,
{
    tokio::pin!(first);
    let Some(late) = late else { return (first.await, false) };
    tokio::select! {
        biased;
        answer = &mut first => return (answer, false),
        () = sleep(late) => {}
    }
    let Some(second) = second() else { return (first.await, false) };
    tokio::pin!(second);
    tokio::select! {
        biased;
        answer = &mut first => match answer {
            Err(Failure::Again(..)) => (second.await, true),
            answer => (answer, false),
        },
        answer = &mut second => match answer {
            Err(Failure::Again(..)) => (first.await, false),
            answer => (answer, true),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_get_is_late_when_it_takes_longer_than_nineteen_of_twenty_of_its_size() {
        let hedge = Hedge::default();
        (1..SAMPLES_MIN as u64).for_each(|at| hedge.answered(4096, millis(at)));
        assert_eq!(hedge.late_after(4096), None, "too few were measured");
        (0..SAMPLES as u64).for_each(|at| hedge.answered(4096, millis(100 + at)));
        assert_eq!(hedge.late_after(64 << 10), Some(millis(100 + 121)), "the older ones are forgotten");
        assert_eq!(hedge.late_after(1 << 20), None, "none of this size was measured");
        (0..SAMPLES).for_each(|_| hedge.answered(4096, millis(1)));
        assert_eq!(hedge.late_after(4096), Some(LATE_MIN));
    }

    #[test]
    fn second_requests_stay_within_their_budget_and_end_when_the_store_fails() {
        let hedge = Hedge::default();
        assert!(!hedge.spend(), "nothing was earned");
        let mut spent = 0;
        for _ in 0..10_000 {
            hedge.answered(4096, millis(1));
            spent += u64::from(hedge.spend());
        }
        assert_eq!(spent, 500);
        (0..100_000).for_each(|_| hedge.answered(4096, millis(1)));
        hedge.failed();
        assert!(!hedge.spend() && hedge.late_after(4096).is_none());
        hedge.answered(4096, millis(1));
        let saved = (0..1000).filter(|_| hedge.spend()).count();
        assert_eq!(saved, SAVED_MAX as usize);
    }
}
