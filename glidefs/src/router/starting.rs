//! The order in which a start deals with the exports of the catalog.
//!
//! ```text
//!  unplanned ─plan─▶ unclaimed ─the store's answer─▶ ready ─carry out─▶ counted
//!                 └─ not stored, or nothing to serve ──┘
//! ```
//!
//! Owns the queues between these steps, and how many steps run at once. Does not own the steps (`recovery`). Invariants, once the devices
//! were listed and orphans removed (`recovery`): among the exports that are ready, those with waiting requests go first; no export waits
//! for another one, except for a place among the steps that run or among the questions to the store, and for [`PLANS_PATIENCE`]; of several
//! places plans leave one to exports that are ready; each step is a task of its own, so that a slow step never delays the timers of
//! another.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::Router;
use super::confirm::{CONFIRMATIONS_MAX, Ownership};
use super::entry::HeldExport;
use super::recovery::{Outcome, Plan, Planned, StartReport};
use crate::tasks;

/// How long exports whose devices have no waiting requests let others go first that are not planned yet.
const PLANS_PATIENCE: Duration = Duration::from_secs(2);

/// For how many exports the store may still fail to answer: the daemon has to be ready some time. Set with the first claim; 0 when
/// the store as a whole is away.
type Patience = OnceCell<AtomicUsize>;

/// An export whose plan may be carried out, with the store's answer if the store was asked.
type Ready = (Planned, Option<Ownership>);

/// Exports in two lines, each in the order of their coming.
struct Lines<T> {
    /// Exports whose devices have requests that wait.
    first: VecDeque<T>,
    others: VecDeque<T>,
}

impl<T> Lines<T> {
    fn new() -> Self {
        Self { first: VecDeque::new(), others: VecDeque::new() }
    }

    fn of(&mut self, plan: &Planned) -> &mut VecDeque<T> {
        if matches!(plan.1, Ok(Plan::RecoverWaiting)) { &mut self.first } else { &mut self.others }
    }
}

/// The exports of a start.
pub(super) struct Starting {
    router: Arc<Router>,
    patience: Arc<Patience>,
    /// When exports without waiting requests stop waiting for plans.
    plans_end: Instant,
    unplanned: VecDeque<HeldExport>,
    unclaimed: Lines<Planned>,
    ready: Lines<Ready>,
    deletions: Vec<Planned>,
    plans: JoinSet<Planned>,
    claims: JoinSet<Ready>,
    steps: JoinSet<Outcome>,
}

impl Starting {
    pub fn new(router: Arc<Router>, loaded: Vec<HeldExport>) -> Self {
        Self {
            router,
            patience: Arc::default(),
            plans_end: Instant::now() + PLANS_PATIENCE,
            unplanned: loaded.into(),
            unclaimed: Lines::new(),
            ready: Lines::new(),
            deletions: Vec::new(),
            plans: JoinSet::new(),
            claims: JoinSet::new(),
            steps: JoinSet::new(),
        }
    }

    /// Deals with all exports but those to be deleted, which are returned.
    pub async fn run(mut self, report: &mut StartReport) -> Vec<Planned> {
        loop {
            self.begin();
            let waits_for_plans = !self.ready.others.is_empty() && !self.may_begin_others();
            tokio::select! {
                Some(planned) = self.plans.join_next() => match planned {
                    Ok(planned) => self.planned(planned),
                    Err(error) => report.count(broken(&error)),
                },
                Some(claimed) = self.claims.join_next() => match claimed {
                    Ok(claimed) => self.ready.of(&claimed.0).push_back(claimed),
                    Err(error) => report.count(broken(&error)),
                },
                Some(outcome) = self.steps.join_next() => {
                    report.count(outcome.unwrap_or_else(|error| broken(&error)));
                }
                () = sleep_until(self.plans_end), if waits_for_plans => {}
                else => break,
            }
        }
        report.deleting = self.deletions.len();
        self.deletions
    }

    /// Begins as much as may run at once.
    fn begin(&mut self) {
        let places = self.router.parallel();
        while self.plans.len().saturating_add(self.steps.len()) < places {
            if let Some(ready) = self.ready.first.pop_front() {
                self.carry_out(ready);
            } else if self.plans.len() < places.saturating_sub(1).max(1)
                && let Some(held) = self.unplanned.pop_front()
            {
                self.plan(held);
            } else if self.may_begin_others()
                && let Some(ready) = self.ready.others.pop_front()
            {
                self.carry_out(ready);
            } else {
                break;
            }
        }
        // An answer is not to be old when the device is made.
        while self.claims.len().saturating_add(self.ready.first.len()) < CONFIRMATIONS_MAX
            && let Some(planned) = self.unclaimed.first.pop_front()
        {
            self.claim(planned);
        }
        while self.claims.len().saturating_add(self.ready.others.len()) < CONFIRMATIONS_MAX
            && let Some(planned) = self.unclaimed.others.pop_front()
        {
            self.claim(planned);
        }
    }

    fn may_begin_others(&self) -> bool {
        self.unplanned.is_empty() && self.plans.is_empty() || Instant::now() >= self.plans_end
    }

    fn plan(&mut self, held: HeldExport) {
        let router = Arc::clone(&self.router);
        self.plans.spawn(tasks::for_export(held.entry.id, async move {
            let plan = router.plan(&held).await;
            (held, plan)
        }));
    }

    fn planned(&mut self, planned: Planned) {
        if matches!(planned.1, Ok(Plan::Delete { .. })) {
            self.deletions.push(planned);
        } else if needs_answer(&planned) {
            self.unclaimed.of(&planned).push_back(planned);
        } else {
            self.ready.of(&planned).push_back((planned, None));
        }
    }

    fn claim(&mut self, (held, plan): Planned) {
        let (router, patience) = (Arc::clone(&self.router), Arc::clone(&self.patience));
        self.claims.spawn(tasks::for_export(held.entry.id, async move {
            let ownership = claim_patiently(&router, &held, &patience).await;
            ((held, plan), Some(ownership))
        }));
    }

    fn carry_out(&mut self, ((held, plan), ownership): Ready) {
        let (router, id) = (Arc::clone(&self.router), held.entry.id);
        let step = async move { router.carry_out(held, plan, ownership).await };
        self.steps.spawn(tasks::for_export(id, step));
    }
}

/// Whether the store has to be asked whose an export is.
fn needs_answer((held, plan): &Planned) -> bool {
    // A device answers requests after these steps.
    matches!(plan, Ok(Plan::RecoverWaiting | Plan::Recover | Plan::Attach)) && held.entry.is_stored()
}

/// Claims an export, unless `patience` is used up. The store is not asked about an export known to be lost, nor about one that the
/// daemon before had, unless the store may have content of the export that is lost here.
async fn claim_patiently(router: &Router, held: &HeldExport, patience: &Patience) -> Ownership {
    if held.entry.is_lost() {
        return router.claim(held).await;
    }
    let is_inherited = router.inherits(held);
    // Content that is lost here, and that the store may have, is mended by its answer.
    if is_inherited && !router.open(&held.entry).volume().may_be_mended().await {
        return Ownership::Inherited;
    }
    match ask_patiently(router, held, patience).await {
        Ownership::Unknown if is_inherited => Ownership::Inherited,
        answer => answer,
    }
}

async fn ask_patiently(router: &Router, held: &HeldExport, patience: &Patience) -> Ownership {
    let begin = async { AtomicUsize::new(if router.can_ask().await { CONFIRMATIONS_MAX } else { 0 }) };
    let patience = patience.get_or_init(|| begin).await;
    if patience.load(Ordering::Acquire) == 0 {
        return Ownership::Unknown;
    }
    let ownership = router.claim(held).await;
    if matches!(ownership, Ownership::Unknown) {
        if router.can_ask().await {
            held.entry.set_silent();
            let fewer = |left: usize| left.checked_sub(1);
            let _: Result<usize, usize> = patience.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
        } else {
            patience.store(0, Ordering::Release);
        }
    }
    ownership
}

/// The outcome for an export whose step has panicked, in builds where a panic does not end the daemon.
fn broken(error: &JoinError) -> Outcome {
    tracing::error!(error = error as &dyn std::error::Error, "a step of the start has broken off");
    Outcome::Failed
}
