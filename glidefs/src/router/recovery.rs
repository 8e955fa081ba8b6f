//! The start of the daemon: every export of the catalog gets the device it should have. And the removal of all devices at the
//! end.
//!
//! Owns the comparison of the wishes in the catalog with the devices in the kernel, and the steps that follow. Does not own the order
//! of the exports (`starting`). Invariants: a device that clients may use is never removed because of another failure; an export that
//! could not get its device is tried again (`stranded`), unless lost without a device; one without the store's answer waits (`confirm`);
//! one of which the daemon has died twice is left alone until it is attached (`deaths`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;

use super::Router;
use super::background::finish;
use super::catalog::record::Desired;
use super::confirm::Ownership;
use super::devices::DeviceId;
use super::entry::{ExportEntry, HeldExport};
use super::error::RouterError;
use super::starting::Starting;
use super::state::{Event, State};
use crate::locks::MutexExt;
use crate::observe::chain;
use crate::units::ExportId;

/// The result of [`Router::start`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartReport {
    /// Exports with a device taken over from an earlier daemon.
    pub recovered: usize,
    /// Exports with a new device.
    pub attached: usize,
    /// Exports without a device, as the user wants.
    pub detached: usize,
    /// Exports whose deletion goes on after the start.
    pub deleting: usize,
    /// Exports without the device wanted; the state of each says why.
    pub failed: usize,
    /// Exports that wait for the store to confirm that this host still has them: [`Router::confirm`] goes on.
    pub waiting: usize,
    /// Removed devices that belonged to no export.
    pub orphans_removed: usize,
    pub elapsed: Duration,
}

impl StartReport {
    /// Counts the outcome for one export.
    pub(super) fn count(&mut self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Recovered => &mut self.recovered,
            Outcome::Attached => &mut self.attached,
            Outcome::Detached => &mut self.detached,
            Outcome::Waiting => &mut self.waiting,
            Outcome::Failed => &mut self.failed,
            // Never happens: deletions go on after the start, and are counted before.
            Outcome::Deleted => return,
        };
        *counter = counter.saturating_add(1);
    }
}

/// The step that an export needs at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// The device waits for a server, perhaps with requests.
    RecoverWaiting,
    /// The device has not noticed yet that the earlier daemon died.
    Recover,
    /// The export has no device, and should have one.
    Attach,
    /// The export should have no device.
    Detach { exists: bool },
    /// The export should not exist.
    Delete { exists: bool },
}

/// An export and the step that the export needs.
pub(super) type Planned = (HeldExport, Result<Plan, RouterError>);

/// The outcome of the start for one export.
pub(super) enum Outcome {
    Recovered,
    Attached,
    Detached,
    Deleted,
    Waiting,
    Failed,
}

impl Router {
    /// Gives every export of the catalog its device, if the user wants one, and removes devices of no export. Call once;
    /// operations on these exports wait until their export is dealt with. Unfinished deletions come last and go on after the
    /// return, so that users of devices do not wait for deletions.
    pub async fn start(self: &Arc<Self>) -> StartReport {
        let router = Arc::clone(self);
        let started = finish(String::new(), async move {
            let (report, deletions) = router.start_now().await;
            drop(tokio::spawn(async move {
                // A deletion may take any time, and leftovers lead to devices of others.
                tokio::join!(router.devices.tidy(), router.go_on_deleting(deletions));
            }));
            Ok(report)
        });
        started.await.unwrap_or_default()
    }

    async fn go_on_deleting(self: &Arc<Self>, deletions: Vec<Planned>) {
        let deletions = deletions.into_iter().map(|(held, plan)| self.carry_out(held, plan, None));
        let mut deletions = stream::iter(deletions).buffer_unordered(self.parallel());
        while deletions.next().await.is_some() {}
    }

    /// Removes every device, for a host that is to run without the daemon. The next start attaches the exports again. Call
    /// after [`Router::stop`]. Returns the number of devices that could not be removed.
    pub async fn remove_devices(&self) -> usize {
        let may_have_one = |entry: &Arc<ExportEntry>| {
            matches!(entry.state(), State::Serving | State::Waiting | State::Failed { .. })
        };
        let removals = self.entries().into_iter().filter(may_have_one).map(|entry| async move {
            let held = HeldExport::wait(entry, Arc::clone(&self.stopping).read_owned().await).await;
            match self.remove_for_now(&held).await {
                Ok(()) => 0,
                Err(error) => {
                    tracing::error!(export = %held.entry.name, error = %chain(&error), "device not removed");
                    1
                }
            }
        });
        stream::iter(removals)
            .buffer_unordered(self.parallel())
            .fold(0, |sum, n| async move { sum + n })
            .await
    }

    async fn remove_for_now(&self, held: &HeldExport) -> Result<(), RouterError> {
        if held.entry.state() != State::Serving && !self.device_exists(held).await? {
            return Ok(());
        }
        held.step(Event::BeginDetach)?;
        self.remove_device(held, true).await.or_else(|error| held.failed(error))?;
        held.write(&self.catalog, |record| record.device.boot_id = None).await?;
        held.step(Event::DeviceGone)?;
        Ok(())
    }

    /// How many exports are dealt with at once.
    pub(super) fn parallel(&self) -> usize {
        self.options.parallel_max.max(1)
    }

    /// Deals with all exports but those to be deleted, which are returned.
    async fn start_now(self: &Arc<Self>) -> (StartReport, Vec<Planned>) {
        let begun = Instant::now();
        let loaded = std::mem::take(&mut *self.loaded.lock_whole());
        let mut report =
            StartReport { orphans_removed: self.reconcile(&loaded).await, ..StartReport::default() };

        let loaded = Self::settle(loaded, &mut report);
        let (held_back, loaded): (Vec<_>, Vec<_>) =
            loaded.into_iter().partition(|held| self.holds_back(held));
        report.failed = report.failed.saturating_add(held_back.len());
        drop(held_back);
        let deletions = Starting::new(Arc::clone(self), loaded).run(&mut report).await;
        report.elapsed = begun.elapsed();
        (report, deletions)
    }

    /// Lets go at once of the exports that need no step: without a device, as the user wants, and with all data in the store.
    /// Operations on these exports wait for no other export, and the store is asked nothing: before such an export gets a device,
    /// the store is asked whose the export is. Returns the other exports.
    fn settle(loaded: Vec<HeldExport>, report: &mut StartReport) -> Vec<HeldExport> {
        let needs_step =
            |held: &HeldExport| !held.entry.is_settled() || held.step(Event::DeviceGone).is_err();
        let (left, settled): (Vec<_>, Vec<_>) = loaded.into_iter().partition(needs_step);
        report.detached = report.detached.saturating_add(settled.len());
        left
    }

    /// Leaves an export alone of which the daemon has died twice: requests of its device wait.
    fn holds_back(&self, held: &HeldExport) -> bool {
        let Some(death) = self.options.deaths.holds_back(held.entry.id) else { return false };
        let name = &held.entry.name;
        let reason = format!(
            "the daemon died twice of work for this export, and serves the others without it: requests wait, and \
             nothing is written back; `glidefs export attach {name}` tries again. The last time it {death}"
        );
        let is_held_back =
            held.record().desired != Desired::Deleted && held.step(Event::Fail { reason }).is_ok();
        if is_held_back {
            tracing::error!(export = %name, death, "the export is held back, as the daemon died twice of it");
        }
        is_held_back
    }

    /// Compares the devices in the kernel with the catalog. Devices whose numbers a crash kept out of the catalog are noted as
    /// strays; devices of no export are removed. Devices of exports created since the catalog was read are left alone. Returns the number
    /// of removed devices.
    async fn reconcile(&self, loaded: &[HeldExport]) -> usize {
        let owned = match self.devices.owned().await {
            Ok(owned) => owned,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot list devices: those the catalog does not know stay");
                return 0;
            }
        };
        let by_export: HashMap<ExportId, &HeldExport> =
            loaded.iter().map(|held| (held.record().export_id(), held)).collect();
        // Asked after the listing: an export is in memory before its device is made.
        let known: HashSet<ExportId> = self.entries().iter().map(|entry| entry.id).collect();
        let mut orphans = Vec::new();
        // A device with the recorded number wins over any other device of the same export.
        let recorded = |(id, device): &(ExportId, DeviceId)| {
            by_export.get(id).is_some_and(|held| held.record().device_id() == *device)
        };
        let (expected, unexpected): (Vec<_>, Vec<_>) = owned.into_iter().partition(recorded);
        let mut with_device: HashSet<ExportId> = expected.into_iter().map(|(id, _)| id).collect();
        for (id, device) in unexpected {
            match by_export.get(&id) {
                Some(held) if held.record().desired == Desired::Attached && with_device.insert(id) => {
                    // Made just before a crash; or the recorded device did not answer, and its number stays in the catalog.
                    held.note_stray(device);
                }
                // The device of an export created meanwhile.
                None if known.contains(&id) => {}
                _ => orphans.push((id, device)),
            }
        }
        let by_export = &by_export;
        let removals = orphans.into_iter().map(|(id, device)| async move {
            match self.devices.detach(id, device).await {
                Ok(()) => {
                    tracing::info!(device_id = device.0, "removed a device that no export wants");
                    1
                }
                Err(error) => {
                    tracing::error!(device_id = device.0, error = %chain(&error), "cannot remove a device that no export wants");
                    if let Some(held) = by_export.get(&id) {
                        held.note_stray(device);
                    }
                    0
                }
            }
        });
        stream::iter(removals)
            .buffer_unordered(self.parallel())
            .fold(0, |sum, n| async move { sum + n })
            .await
    }

    /// Decides which step an export needs.
    pub(super) async fn plan(&self, held: &HeldExport) -> Result<Plan, RouterError> {
        Ok(match held.record().desired {
            Desired::Attached => match self.find_device(held).await? {
                Some(device) if device.quiesced => Plan::RecoverWaiting,
                Some(_) => Plan::Recover,
                None => Plan::Attach,
            },
            Desired::Detached => Plan::Detach { exists: self.device_exists(held).await? },
            Desired::Deleted => Plan::Delete { exists: self.device_exists(held).await? },
        })
    }

    /// Carries out the plan for one export, as far as the store's answer allows. Without an answer the store is asked later.
    pub(super) async fn carry_out(
        self: &Arc<Self>,
        held: HeldExport,
        plan: Result<Plan, RouterError>,
        ownership: Option<Ownership>,
    ) -> Outcome {
        let is_claimed = matches!(ownership, Some(Ownership::Ours | Ownership::Inherited));
        let is_stored = held.entry.is_stored();
        if is_stored
            && !matches!(
                (&plan, &ownership),
                (Ok(Plan::Delete { .. }), _) | (_, Some(Ownership::Ours | Ownership::Lost(_)))
            )
        {
            self.ask_later(&held.entry);
        }
        let done = match (plan, ownership) {
            (Ok(_), Some(Ownership::Unknown)) if !self.options.serve_unconfirmed => {
                // A device, if there is one, keeps its requests waiting until the store has confirmed the export.
                held.step(Event::Wait).map(|()| Outcome::Waiting).map_err(RouterError::from)
            }
            // A lost export gets no new device. An existing one is served, and answers its waiting requests with errors.
            (Ok(Plan::Attach), Some(Ownership::Lost(error))) | (Err(error), _) => Err(error),
            (Ok(Plan::RecoverWaiting | Plan::Recover), _) => {
                self.recover_device(&held).await.map(|()| Outcome::Recovered)
            }
            (Ok(Plan::Attach), _) => self.attach_anew(&held).await.map(|()| Outcome::Attached),
            (Ok(Plan::Detach { exists }), _) => {
                self.detach_steps(&held, exists).await.map(|()| Outcome::Detached)
            }
            (Ok(Plan::Delete { exists }), _) => {
                self.delete_steps(&held, exists).await.map(|()| Outcome::Deleted)
            }
        };
        match done {
            Ok(outcome) => outcome,
            Err(error) => {
                // If the device became ready before a later step failed, the export is served all the same.
                if held.entry.state() != State::Serving {
                    let is_lost = matches!(error, RouterError::Lost { .. });
                    let _: Result<(), RouterError> = held.failed(error);
                    if !is_lost {
                        self.try_later(&held, is_claimed);
                    }
                }
                Outcome::Failed
            }
        }
    }
}
