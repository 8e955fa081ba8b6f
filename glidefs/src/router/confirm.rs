//! Asking the store whose exports are, before and while exports are served.
//!
//! Owns which exports the store was not asked about, and the consequences of the answer. Does not own how a writer asks
//! (`store::volume`). Invariant: at the start no request is answered from the cache before the store has confirmed that this
//! host still has the export, unless the user wants otherwise.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::time::{sleep, timeout};

use super::Router;
use super::background::finish;
use super::entry::{ExportEntry, HeldExport};
use super::error::RouterError;
use super::state::{Event, State};
use crate::locks::MutexExt;
use crate::observe::chain;
use crate::tasks;
use crate::units::ExportId;

/// Exports that the store is asked about at the same time.
pub(super) const CONFIRMATIONS_MAX: usize = 64;

/// Exports to ask the store about, in the order of asking; each export once.
#[derive(Debug, Default)]
pub(super) struct Unasked {
    entries: Vec<Arc<ExportEntry>>,
    ids: HashSet<ExportId>,
}

/// Whose an export is.
#[derive(Debug)]
pub(super) enum Ownership {
    /// The export is this host's, or has no volume in a store.
    Ours,
    /// The daemon before had the export until this start, and the store was not asked.
    Inherited,
    /// The export is not this host's any more.
    Lost(RouterError),
    /// The store is away, or has no answer.
    Unknown,
}

impl Router {
    /// Asks the store whether this host has an export, until the daemon stops; `false` when the store did not answer.
    ///
    /// # Errors
    /// [`RouterError::Lost`] when another host has the export.
    pub(super) async fn store_confirms(&self, entry: &ExportEntry) -> Result<bool, RouterError> {
        let asked = async {
            if !entry.is_stored() {
                return Ok(true);
            }
            let confirmed = self.open(entry).volume().confirm(self.options.confirm_patience).await;
            confirmed.map_err(|source| RouterError::Lost { name: entry.name.to_string(), source })
        };
        self.unless_stopping(asked).await
    }

    async fn ownership(&self, entry: &ExportEntry) -> Ownership {
        match self.store_confirms(entry).await {
            Ok(true) => Ownership::Ours,
            Ok(false) | Err(RouterError::Stopping) => Ownership::Unknown,
            Err(error) => Ownership::Lost(error),
        }
    }

    /// Asks the store whose an export is that is about to get a device, and takes a released export back.
    pub(super) async fn claim(&self, held: &HeldExport) -> Ownership {
        let ownership = self.ownership(&held.entry).await;
        self.taken_back(held, ownership).await
    }

    /// Takes a released export back when the store has confirmed that this host has the export; else passes `ownership` on.
    async fn taken_back(&self, held: &HeldExport, ownership: Ownership) -> Ownership {
        if !matches!(ownership, Ownership::Ours) {
            return ownership;
        }
        match self.take_back(held).await {
            Ok(()) => Ownership::Ours,
            Err(error @ RouterError::Lost { .. }) => Ownership::Lost(error),
            Err(error) => {
                tracing::warn!(export = %held.entry.name, error = %chain(&error), "a released export could not be taken back");
                Ownership::Unknown
            }
        }
    }

    /// Checks that an export may get a device: the store confirms that this host has the export, or nobody insists on an answer.
    pub(super) async fn may_serve(&self, held: &HeldExport, needs_answer: bool) -> Result<(), RouterError> {
        let answered = if self.store_confirms(&held.entry).await? {
            self.take_back(held).await
        } else {
            Err(RouterError::Unconfirmed { name: held.name() })
        };
        match answered {
            Err(RouterError::Unconfirmed { .. } | RouterError::Released { .. })
                if !needs_answer || self.options.serve_unconfirmed =>
            {
                self.ask_later(&held.entry);
                Ok(())
            }
            answered => answered,
        }
    }

    /// Whether the store can be asked at all.
    pub(super) async fn can_ask(&self) -> bool {
        let reach = async {
            let reached = timeout(self.options.confirm_patience, self.storage.reach()).await;
            Ok(reached.map_err(|_| None).and_then(|reached| reached.map_err(Some)))
        };
        let reason = match self.unless_stopping(reach).await {
            Ok(Ok(())) => return true,
            Ok(Err(Some(error))) => chain(&error),
            Ok(Err(None)) => "it does not answer".into(),
            Err(_) => return false,
        };
        if let Some(suppressed) = self.away.pass() {
            tracing::warn!(error = %reason, suppressed, "the store cannot be asked whose the exports are");
        }
        false
    }

    /// Adds an export to those that [`Router::confirm`] asks the store about.
    pub(super) fn ask_later(&self, entry: &Arc<ExportEntry>) {
        let mut unasked = self.unasked.lock_whole();
        if unasked.ids.insert(entry.id) {
            unasked.entries.push(Arc::clone(entry));
        }
        drop(unasked);
        self.to_ask.notify_one();
    }

    /// Ends when there may be something for [`Router::confirm`] to do.
    pub async fn has_to_confirm(&self) {
        self.to_ask.notified().await;
    }

    /// How many exports wait because the store is away. An export that waits although the store answers is not counted: only
    /// the volume of this one export has a problem.
    pub fn unconfirmed(&self) -> usize {
        self.entries().iter().filter(|entry| entry.waits_for_store()).count()
    }

    /// Asks the store about the unconfirmed exports: another host may have taken an export over while no daemon ran. Exports
    /// that wait for the answer come first, and get their devices. Ends when the store has answered for all exports.
    pub async fn confirm(self: &Arc<Self>) {
        loop {
            let unasked = std::mem::take(&mut *self.unasked.lock_whole()).entries;
            if unasked.is_empty() {
                return;
            }
            while !self.can_ask().await {
                sleep(self.options.confirm_patience / 2).await;
            }
            let asked = stream::iter(unasked).map(|entry| async move {
                let is_answered = tasks::for_export(entry.id, self.confirm_one(&entry)).await;
                (!is_answered).then_some(entry)
            });
            let silent = asked.buffer_unordered(CONFIRMATIONS_MAX).filter_map(std::future::ready);
            let mut silent: Vec<_> = silent.collect().await;
            if silent.is_empty() {
                continue;
            }
            if self.can_ask().await {
                for entry in &silent {
                    entry.set_silent();
                }
            }
            sleep(self.options.confirm_patience / 2).await;
            silent.retain(|entry| !self.open(entry).volume().is_removed());
            for entry in &silent {
                self.ask_later(entry);
            }
        }
    }

    /// Asks whose one export is, and carries out the consequences, to the end also when the caller goes away; `false` when the
    /// store did not answer.
    async fn confirm_one(self: &Arc<Self>, entry: &Arc<ExportEntry>) -> bool {
        let ownership = self.ownership(entry).await;
        if let Ownership::Lost(error) = &ownership
            // The loss of an export that was deleted here meanwhile is no news.
            && self.entry(entry.name.as_str()).is_some_and(|here| Arc::ptr_eq(&here, entry))
        {
            tracing::error!(export = %entry.name, error = %chain(error), "the export is not this host's any more, and stops here");
        }
        if matches!(ownership, Ownership::Unknown) {
            return false;
        }
        // The answer has consequences only for an export that waits, or may be released.
        if entry.state() != State::Waiting && !entry.may_be_released() {
            return true;
        }
        let (router, entry) = (Arc::clone(self), Arc::clone(entry));
        let name = entry.name.to_string();
        let follow = async move {
            let held = HeldExport::wait(entry, router.enter().await?).await;
            Ok(router.follow(&held, ownership).await)
        };
        // An error means that the daemon stops: nothing is asked again.
        finish(name, follow).await.unwrap_or(true)
    }

    /// Carries out the consequences of the store's answer: `false` when the store has to be asked again.
    async fn follow(self: &Arc<Self>, held: &HeldExport, ownership: Ownership) -> bool {
        // Another operation may have changed the export while this one waited for the right to.
        let state = held.entry.state();
        if held.is_gone() || !matches!(state, State::Waiting | State::Serving) {
            return true;
        }
        let ownership = self.taken_back(held, ownership).await;
        if matches!(ownership, Ownership::Unknown) {
            return false;
        }
        if state == State::Waiting {
            self.end_waiting(held, ownership).await;
        }
        true
    }

    /// Gives an export that waited its device. A lost export keeps an existing device and gets no new one.
    async fn end_waiting(self: &Arc<Self>, held: &HeldExport, ownership: Ownership) {
        let is_claimed = matches!(ownership, Ownership::Ours);
        let done = match ownership {
            // An existing device of a lost export is served too: its waiting requests are answered with errors.
            Ownership::Lost(lost) => match self.device_exists(held).await {
                Ok(true) => self.attach_held(held).await,
                Ok(false) => fail_waiting(held, lost),
                Err(unknown) => fail_waiting(held, unknown),
            },
            _ => self.attach_held(held).await,
        };
        // A failure is in the export's state and in the log already.
        if done.is_err_and(|error| !matches!(error, RouterError::Lost { .. })) {
            self.try_later(held, is_claimed);
        }
    }
}

/// Moves an export that waited to the failed state.
fn fail_waiting(held: &HeldExport, error: RouterError) -> Result<(), RouterError> {
    held.step(Event::BeginAttach)?;
    held.failed(error)
}
