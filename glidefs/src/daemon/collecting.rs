//! Garbage collection of the store at intervals.
//!
//! Owns when the store is collected, and since when that fails. Does not own which objects are removed (`store::gc`). Invariants: a
//! host does not collect the store if it has created nothing since its last run, and that run ended well and left nothing to later
//! runs; of many hosts about one collects in an interval, and where that one ends another one does from the next interval on. A run that
//! failed, as when the store took one of its many requests for too long, is tried again soon.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::locks::MutexExt;
use crate::router::Router;
use crate::store::gc::{GcOptions, GcReport};
use crate::store::{Key, Operation, StoreStats};

/// Time from a run that failed to the next one; doubled after each further one that fails.
const FAILED_PAUSE: Duration = Duration::from_mins(15);

/// After so many doublings the pause is longer than any interval.
const FAILED_DOUBLINGS: u32 = 12;

/// The runs of garbage collection.
#[derive(Debug, Default)]
pub struct Collections {
    /// When the first run after the last successful one began.
    since: Mutex<Option<Instant>>,
}

impl Collections {
    fn begins(&self, now: Instant) {
        self.since.lock_whole().get_or_insert(now);
    }

    fn ends(&self, is_done: bool) {
        if is_done {
            *self.since.lock_whole() = None;
        }
    }

    /// Time since the first run after the last successful one began; zero if there is no such run.
    pub fn overdue(&self, now: Instant) -> Duration {
        self.since.lock_whole().map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

/// The need of another run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    /// Objects that this host had asked the store to create when the last run ended.
    created: u64,
    /// Whether the last run failed, or left something to a later run.
    is_unfinished: bool,
    /// Runs that failed since one ended well.
    failed: u32,
}

impl Need {
    /// The process before may have ended between two runs, or after a creation.
    const AT_START: Self = Self { created: 0, is_unfinished: true, failed: 0 };

    /// After a run that ended with `result`, when this host had asked for `created` creations.
    fn after<E>(self, result: &Result<GcReport, E>, created: u64) -> Self {
        let is_unfinished = result.as_ref().map_or(true, |report| report.is_unfinished);
        let failed = if result.is_ok() { 0 } else { self.failed.saturating_add(1) };
        Self { created, is_unfinished, failed }
    }

    /// Time to the next look whether a run is due.
    fn pause(self, interval: Duration) -> Duration {
        match self.failed.checked_sub(1) {
            None => interval,
            Some(before) => FAILED_PAUSE.saturating_mul(1 << before.min(FAILED_DOUBLINGS)).min(interval),
        }
    }

    /// Whether a run is due, when this host has asked for `created` creations.
    fn is_due(self, created: u64) -> bool {
        self.is_unfinished || created != self.created
    }
}

/// Whether a run of another host ended well between two looks at the observations of the store: then those of before are gone. A look
/// that failed tells nothing.
fn has_collected(before: Option<&[Key]>, after: Option<&[Key]>) -> bool {
    before.zip(after).is_some_and(|(before, after)| before.iter().any(|key| !after.contains(key)))
}

/// Collects the store every `interval`, unless another host does.
pub async fn collect(
    router: Arc<Router>,
    stats: Arc<StoreStats>,
    interval: Duration,
    collections: Arc<Collections>,
) {
    let mut need = Need::AT_START;
    // What the last look at the store found.
    let mut seen = router.observations().await.ok();
    loop {
        // Random, so that hosts started together do not collect together.
        tokio::time::sleep(need.pause(interval).mul_f64(rand::random_range(0.75..1.25))).await;
        if !need.is_due(stats.of(Operation::Put).requests.get()) {
            continue;
        }
        let found = router.observations().await.ok();
        let is_collected = has_collected(seen.as_deref(), found.as_deref());
        seen = found;
        if is_collected {
            collections.ends(true);
            need.failed = 0;
            continue;
        }
        collections.begins(Instant::now());
        let result = router.collect(GcOptions::default()).await;
        seen = router.observations().await.ok();
        collections.ends(result.is_ok());
        need = need.after(&result, stats.of(Operation::Put).requests.get());
        match result {
            Ok(report) => tracing::info!(
                packs_removed = report.packs_removed,
                bytes_removed = report.bytes_removed,
                packs_waiting = report.packs_waiting,
                damaged = ?report.damaged,
                not_looked_for = report.not_looked_for,
                stale_records = ?report.stale_records,
                "the store was collected"
            ),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the store was not collected");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need_after(is_unfinished: bool) -> Need {
        Need::AT_START.after(&Ok::<_, ()>(GcReport { is_unfinished, ..GcReport::default() }), 7)
    }

    #[test]
    fn a_run_that_left_packs_waiting_is_followed_by_another_though_nothing_was_created() {
        assert!(Need::AT_START.is_due(0));
        assert!(need_after(true).is_due(7));
        let finished = need_after(false);
        assert_eq!((finished.is_due(7), finished.is_due(8)), (false, true));
    }

    #[test]
    fn a_run_of_another_host_counts_when_it_ended_well() {
        let key = |number: u8| Key::Gc(format!("candidates-{number:032x}").parse().unwrap());
        let counts = |before: &[Key], after: &[Key]| has_collected(Some(before), Some(after));
        assert!(counts(&[key(1)], &[key(2)]) && counts(&[key(1), key(2)], &[key(2)]));
        assert!(!counts(&[key(1)], &[key(1)]) && !counts(&[], &[key(1)]));
        assert!(!counts(&[key(1)], &[key(1), key(2)]), "a run has begun, and has perhaps failed");
        assert!(!has_collected(None, Some(&[])) && !has_collected(Some(&[key(1)]), None));
    }

    #[test]
    fn a_failed_run_is_tried_again_soon() {
        let failed = Need::AT_START.after(&Err(()), 7);
        assert!(failed.is_due(7));
        let (day, minute) = (Duration::from_hours(24), Duration::from_mins(1));
        assert_eq!((failed.pause(day), failed.pause(minute)), (FAILED_PAUSE, minute));
        let twice = failed.after(&Err(()), 7);
        assert_eq!(twice.pause(day), 2 * FAILED_PAUSE);
        assert_eq!((0..50).fold(twice, |need, _| need.after(&Err(()), 7)).pause(day), day);
        let ended = twice.after(&Ok::<_, ()>(GcReport::default()), 7);
        assert_eq!((Need::AT_START.pause(day), ended.pause(day)), (day, day));
    }

    #[test]
    fn collecting_is_overdue_from_the_first_run_that_did_not_end_well_until_one_does() {
        let collections = Collections::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(collections.overdue(at(5)), Duration::ZERO);
        collections.begins(at(10));
        assert_eq!(collections.overdue(at(15)), Duration::from_secs(5), "a run is under way");
        collections.ends(false);
        collections.begins(at(100));
        assert_eq!(collections.overdue(at(110)), Duration::from_secs(100));
        collections.ends(true);
        assert_eq!(collections.overdue(at(200)), Duration::ZERO);
    }
}
