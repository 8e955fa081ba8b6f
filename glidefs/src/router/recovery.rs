//! What happens to exports when the daemon starts, and to their devices when it ends for good.
//!
//! Owns the comparison of the catalog's wishes with the kernel's devices. Invariants: a device that clients may use is never
//! removed because something else failed; devices whose requests already wait are served first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;

use super::Router;
use super::confirm::{CONFIRMATIONS_MAX, Said};
use super::devices::DeviceId;
use super::entry::{Entry, Held};
use super::error::RouterError;
use super::operations::{device_error, failed, finish};
use super::record::Desired;
use super::state::{Event, State};
use crate::observe::chain;
use crate::units::ExportId;

/// What [`Router::start`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Exports whose device was taken over from an earlier daemon.
    pub recovered: usize,
    /// Exports that got a new device.
    pub attached: usize,
    /// Exports that have no device because nobody wants one.
    pub detached: usize,
    /// Exports whose deletion goes on.
    pub deleting: usize,
    /// Exports that could not be given what they should have; their state says why.
    pub failed: usize,
    /// Exports whose devices wait for the store to confirm that this host still has them: [`Router::confirm`] goes on.
    pub waiting: usize,
    /// Devices removed because no export wants them.
    pub orphans_removed: usize,
    /// How long it took.
    pub elapsed: Duration,
}

/// What is to be done about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Its device waits for a server, perhaps with requests.
    RecoverWaiting,
    /// Its device has not noticed yet that its server died.
    Recover,
    /// It should have a device and has none.
    Attach,
    /// It should have no device.
    Detach { exists: bool },
    /// It should not be.
    Delete { exists: bool },
}

impl Plan {
    /// Whether a device answers requests afterwards.
    fn serves(&self) -> bool {
        matches!(self, Self::RecoverWaiting | Self::Recover | Self::Attach)
    }
}

/// Whether the store has to be asked whose an export is.
fn needs_answer((held, plan): &Planned) -> bool {
    plan.as_ref().is_ok_and(Plan::serves) && held.entry().export().volume().remote().is_some()
}

/// An export, and what is to be done about that export.
type Planned = (Held, Result<Plan, RouterError>);

/// What became of an export.
enum Outcome {
    Recovered,
    Attached,
    Detached,
    Deleted,
    Waiting,
    Failed,
}

impl Router {
    /// Gives every export of the catalog what it should have. Call once; operations on those exports wait for their turn here.
    /// Deletions that were not finished come last, and go on after this has ended: whoever uses a device does not wait for them.
    pub async fn start(self: &Arc<Self>) -> Recovery {
        let router = Arc::clone(self);
        let started = finish(String::new(), async move {
            let (recovery, deletions) = router.start_now().await;
            drop(tokio::spawn(async move { router.go_on_deleting(deletions).await }));
            Ok(recovery)
        });
        started.await.unwrap_or_default()
    }

    async fn go_on_deleting(&self, deletions: Vec<Planned>) {
        let deletions = deletions.into_iter().map(|(held, plan)| self.carry_out(held, plan, None));
        let mut deletions = stream::iter(deletions).buffer_unordered(self.parallel());
        while deletions.next().await.is_some() {}
    }

    /// Removes every device, for a host that is to run without the daemon. The exports are attached again at the next start.
    /// Call after [`Router::stop`]. Gives the number of devices that could not be removed.
    pub async fn remove_devices(&self) -> usize {
        let may_have_one = |entry: &Arc<Entry>| {
            matches!(entry.state(), State::Serving | State::Waiting | State::Failed { .. })
        };
        let removals = self.entries().into_iter().filter(may_have_one).map(|entry| async move {
            let held = Held::wait(entry, Arc::clone(&self.stopping).read_owned().await).await;
            match self.remove_for_now(&held).await {
                Ok(()) => 0,
                Err(error) => {
                    tracing::error!(export = %held.entry().name(), error = %chain(&error), "device not removed");
                    1
                }
            }
        });
        stream::iter(removals)
            .buffer_unordered(self.parallel())
            .fold(0, |sum, n| async move { sum + n })
            .await
    }

    async fn remove_for_now(&self, held: &Held) -> Result<(), RouterError> {
        if held.entry().state() != State::Serving && !self.device_exists(held).await? {
            return Ok(());
        }
        held.step(Event::BeginDetach)?;
        let removed = self.devices.detach(held.record().export_id(), held.record().device_id()).await;
        if let Err(source) = removed {
            return failed(held, device_error("remove", held, source));
        }
        held.write(&self.catalog, |record| record.device.boot_id = None).await?;
        held.step(Event::DeviceGone)?;
        Ok(())
    }

    fn parallel(&self) -> usize {
        self.options.parallel_max.max(1)
    }

    /// Gives the exports what they should have that should be; and those that should not.
    async fn start_now(&self) -> (Recovery, Vec<Planned>) {
        let begun = Instant::now();
        let loaded = std::mem::take(&mut *self.loaded.lock().unwrap_or_else(PoisonError::into_inner));
        let mut report = Recovery { orphans_removed: self.reconcile(&loaded).await, ..Recovery::default() };

        let plans = stream::iter(loaded).map(|held| async move {
            let plan = self.plan(&held).await;
            (held, plan)
        });
        let plans: Vec<_> = plans.buffer_unordered(self.parallel()).collect().await;
        let (deletions, plans): (Vec<_>, Vec<_>) =
            plans.into_iter().partition(|(_, plan)| matches!(plan, Ok(Plan::Delete { .. })));
        report.deleting = deletions.len();
        let (first, rest): (Vec<_>, Vec<_>) =
            plans.into_iter().partition(|(_, plan)| matches!(plan, Ok(Plan::RecoverWaiting)));
        let has_to_ask = first.iter().chain(&rest).any(needs_answer);
        let patience =
            AtomicUsize::new(if has_to_ask && self.can_ask().await { CONFIRMATIONS_MAX } else { 0 });
        for wave in [first, rest] {
            let asked = stream::iter(wave).map(|export| {
                let patience = &patience;
                async move {
                    let needs_answer = needs_answer(&export);
                    let (held, plan) = export;
                    let said =
                        if needs_answer { Some(self.claim_patiently(&held, patience).await) } else { None };
                    (held, plan, said)
                }
            });
            let carried_out = asked
                .buffer_unordered(CONFIRMATIONS_MAX)
                .map(|(held, plan, said)| self.carry_out(held, plan, said));
            let mut carried_out = carried_out.buffer_unordered(self.parallel());
            while let Some(outcome) = carried_out.next().await {
                *match outcome {
                    Outcome::Recovered => &mut report.recovered,
                    Outcome::Attached => &mut report.attached,
                    Outcome::Detached => &mut report.detached,
                    // Deletions were taken out.
                    Outcome::Deleted => continue,
                    Outcome::Waiting => &mut report.waiting,
                    Outcome::Failed => &mut report.failed,
                } += 1;
            }
        }
        report.elapsed = begun.elapsed();
        (report, deletions)
    }

    /// Claims an export, unless the asking has ended: the daemon has to be ready some time. `patience` is how many exports more
    /// the store may say nothing of; none when the store as a whole is away.
    async fn claim_patiently(&self, held: &Held, patience: &AtomicUsize) -> Said {
        if patience.load(Ordering::Acquire) == 0 {
            return Said::Nothing;
        }
        let said = self.claim(held).await;
        if matches!(said, Said::Nothing) {
            if self.can_ask().await {
                held.entry().set_silent();
                let fewer = |left: usize| left.checked_sub(1);
                let _: Result<usize, usize> =
                    patience.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
            } else {
                patience.store(0, Ordering::Release);
            }
        }
        said
    }

    /// Compares the kernel's devices with the catalog: numbers that a crash kept out of it are adopted, devices that no
    /// export wants are removed. Gives how many were removed.
    async fn reconcile(&self, loaded: &[Held]) -> usize {
        let owned = match self.devices.owned().await {
            Ok(owned) => owned,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot list devices: those the catalog does not know stay");
                return 0;
            }
        };
        let by_export: HashMap<ExportId, &Held> =
            loaded.iter().map(|held| (held.record().export_id(), held)).collect();
        let mut orphans = Vec::new();
        let mut adopted: HashMap<ExportId, DeviceId> = HashMap::new();
        // The recorded number wins over any other device of the same export.
        let recorded = |(id, device): &(ExportId, DeviceId)| {
            by_export.get(id).is_some_and(|held| held.record().device_id() == *device)
        };
        let (expected, unexpected): (Vec<_>, Vec<_>) = owned.into_iter().partition(recorded);
        adopted.extend(expected);
        for (id, device) in unexpected {
            match by_export.get(&id) {
                Some(held) if held.record().desired == Desired::Attached && !adopted.contains_key(&id) => {
                    if self.adopt_found(held, device).await {
                        adopted.insert(id, device);
                    }
                }
                _ => orphans.push((id, device)),
            }
        }
        let removals = orphans.into_iter().map(|(id, device)| async move {
            match self.devices.detach(id, device).await {
                Ok(()) => {
                    tracing::info!(device_id = device.0, "removed a device that no export wants");
                    1
                }
                Err(error) => {
                    tracing::error!(device_id = device.0, error = %chain(&error), "cannot remove a device that no export wants");
                    0
                }
            }
        });
        stream::iter(removals)
            .buffer_unordered(self.parallel())
            .fold(0, |sum, n| async move { sum + n })
            .await
    }

    /// Records the number of a device that was made just before a crash.
    async fn adopt_found(&self, held: &Held, device: DeviceId) -> bool {
        let before = held.record().device.number;
        let boot_id = Some(self.options.boot_id.clone());
        let written = held.write(&self.catalog, |record| {
            record.device.number = device.0;
            record.device.boot_id = boot_id;
        });
        match written.await {
            Ok(()) => {
                self.renumber(before, device.0);
                true
            }
            Err(error) => {
                tracing::error!(export = %held.entry().name(), error = %chain(&error), "cannot record a device's number");
                false
            }
        }
    }

    async fn plan(&self, held: &Held) -> Result<Plan, RouterError> {
        let record = held.record();
        let found = if record.device.boot_id.as_deref() == Some(self.options.boot_id.as_str()) {
            let found = self.devices.find(held.entry().export(), record.device_id()).await;
            found.map_err(|source| device_error("find", held, source))?
        } else {
            None
        };
        Ok(match (record.desired, found) {
            (Desired::Attached, Some(device)) if device.quiesced => Plan::RecoverWaiting,
            (Desired::Attached, Some(_)) => Plan::Recover,
            (Desired::Attached, None) => Plan::Attach,
            (Desired::Detached, found) => Plan::Detach { exists: found.is_some() },
            (Desired::Deleted, found) => Plan::Delete { exists: found.is_some() },
        })
    }

    /// Gives an export what it should have, as far as the store allows that; what the store was not asked, or has not answered,
    /// is asked later.
    async fn carry_out(&self, held: Held, plan: Result<Plan, RouterError>, said: Option<Said>) -> Outcome {
        let is_stored = held.entry().export().volume().remote().is_some();
        if is_stored
            && !matches!((&plan, &said), (Ok(Plan::Delete { .. }), _) | (_, Some(Said::Ours | Said::Lost(_))))
        {
            self.ask_later(held.entry());
        }
        let done = match (plan, said) {
            (Ok(_), Some(Said::Nothing)) if !self.options.serve_unconfirmed => {
                // The export's device is left alone until the store has confirmed the export.
                held.step(Event::Wait).map(|()| Outcome::Waiting).map_err(RouterError::from)
            }
            // A device that is there answers what waits with errors; none is made.
            (Ok(Plan::Attach), Some(Said::Lost(error))) => Err(error),
            (plan, _) => self.give(&held, plan).await,
        };
        match done {
            Ok(outcome) => outcome,
            Err(error) => {
                // A device may have become ready before what followed failed; then the export serves all the same.
                if held.entry().state() != State::Serving {
                    let _ = failed::<()>(&held, error);
                }
                Outcome::Failed
            }
        }
    }

    /// Gives an export what it should have.
    async fn give(&self, held: &Held, plan: Result<Plan, RouterError>) -> Result<Outcome, RouterError> {
        match plan {
            Ok(Plan::RecoverWaiting | Plan::Recover) => {
                self.recover_device(held).await.map(|()| Outcome::Recovered)
            }
            Ok(Plan::Attach) => self.attach_anew(held).await.map(|()| Outcome::Attached),
            Ok(Plan::Detach { exists }) => self.detach_steps(held, exists).await.map(|()| Outcome::Detached),
            Ok(Plan::Delete { exists }) => self.delete_steps(held, exists).await.map(|()| Outcome::Deleted),
            Err(error) => Err(error),
        }
    }
}
