//! Asking the store whose exports are, before and while they are served.
//!
//! Owns which exports the store was not asked about, and what follows from the answer. Does not own how a writer asks
//! (`store::volume`). Invariant: at the start no request is answered from the cache before the store has said that this host
//! still has the export, unless the user wants that.

use std::sync::{Arc, PoisonError};

use futures_util::{StreamExt, stream};
use tokio::time::{sleep, timeout};

use super::Router;
use super::entry::{Entry, Held};
use super::error::RouterError;
use super::operations::{confirm, failed, finish};
use super::state::{Event, State};
use crate::observe::chain;

/// Exports that the store is asked about at the same time.
pub(super) const CONFIRMATIONS_MAX: usize = 64;

/// What the store says of an export.
#[derive(Debug)]
pub(super) enum Said {
    /// It is this host's, or has nothing to do with a store.
    Ours,
    /// It is not.
    Lost(RouterError),
    /// Nothing: the store is away, or cannot say.
    Nothing,
}

impl Router {
    /// Asks the store whose an export is, until the daemon stops.
    async fn ask(&self, entry: &Entry) -> Said {
        let asked = async {
            let confirmed = entry.export().volume().confirm(self.options.confirm_patience).await;
            confirmed.map_err(|source| RouterError::Lost { name: entry.name().to_string(), source })
        };
        match self.unless_stopping(asked).await {
            Ok(true) => Said::Ours,
            Ok(false) | Err(RouterError::Stopping) => Said::Nothing,
            Err(error) => Said::Lost(error),
        }
    }

    /// Asks the store whose an export is that is about to get a device, and takes the export back where it was released.
    pub(super) async fn claim(&self, held: &Held) -> Said {
        match self.ask(held.entry()).await {
            Said::Ours => self.taken_back(held).await,
            said => said,
        }
    }

    async fn taken_back(&self, held: &Held) -> Said {
        match self.take_back(held).await {
            Ok(()) => Said::Ours,
            Err(error @ RouterError::Lost { .. }) => Said::Lost(error),
            Err(error) => {
                tracing::warn!(export = %held.entry().name(), error = %chain(&error), "a released export could not be taken back");
                Said::Nothing
            }
        }
    }

    /// Makes sure that an export may get a device: the store says that this host has the export, or nobody insists on that.
    pub(super) async fn may_serve(&self, held: &Held, needs_answer: bool) -> Result<(), RouterError> {
        let said = self.unless_stopping(confirm(held, self.options.confirm_patience)).await?;
        let answered = if said {
            self.take_back(held).await
        } else {
            Err(RouterError::Unconfirmed { name: held.entry().name().to_string() })
        };
        match answered {
            Err(RouterError::Unconfirmed { .. } | RouterError::Released { .. })
                if !needs_answer || self.options.serve_unconfirmed =>
            {
                self.ask_later(held.entry());
                Ok(())
            }
            answered => answered,
        }
    }

    /// Whether the store can be asked at all.
    pub(super) async fn can_ask(&self) -> bool {
        let reach = async {
            let reached = timeout(self.options.confirm_patience, self.volumes.reach()).await;
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

    /// Has the store asked by [`Router::confirm`] whose an export is.
    pub(super) fn ask_later(&self, entry: &Arc<Entry>) {
        let mut unasked = self.unasked.lock().unwrap_or_else(PoisonError::into_inner);
        if !unasked.iter().any(|other| Arc::ptr_eq(other, entry)) {
            unasked.push(Arc::clone(entry));
        }
        drop(unasked);
        self.to_ask.notify_one();
    }

    /// Ends when there may be something for [`Router::confirm`] to do.
    pub async fn has_to_confirm(&self) {
        self.to_ask.notified().await;
    }

    /// How many exports wait because the store is away. Those that wait although the store is there are not among them: nothing
    /// but what the store has of them is wrong.
    pub fn unconfirmed(&self) -> usize {
        self.entries().iter().filter(|entry| entry.waits_for_store()).count()
    }

    /// Asks the store about the exports of which it has not said yet whether they are still this host's: another one may have
    /// taken them over while no daemon ran. Those that wait for the answer come first, and get their devices. Ends when the
    /// store has said so of all.
    pub async fn confirm(self: &Arc<Self>) {
        loop {
            let unasked = std::mem::take(&mut *self.unasked.lock().unwrap_or_else(PoisonError::into_inner));
            if unasked.is_empty() {
                return;
            }
            while !self.can_ask().await {
                sleep(self.options.confirm_patience / 2).await;
            }
            let asked = stream::iter(unasked).map(|entry| async move {
                let said = self.confirm_one(&entry).await;
                (!said).then_some(entry)
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
            silent.retain(|entry| !entry.export().volume().is_removed());
            for entry in &silent {
                self.ask_later(entry);
            }
        }
    }

    /// Asks whose one export is, and has what follows done, to the end whatever becomes of the caller; `false` when the store
    /// did not say.
    async fn confirm_one(self: &Arc<Self>, entry: &Arc<Entry>) -> bool {
        let said = self.ask(entry).await;
        if let Said::Lost(error) = &said
            // Of one that is being deleted here there is nothing to say.
            && self.entry(entry.name().as_str()).is_some_and(|here| Arc::ptr_eq(&here, entry))
        {
            tracing::error!(export = %entry.name(), error = %chain(error), "the export is not this host's any more, and stops here");
        }
        if matches!(said, Said::Nothing) {
            return false;
        }
        let is_to_follow = match entry.state() {
            State::Waiting => true,
            _ => entry.may_be_released(),
        };
        if !is_to_follow {
            return true;
        }
        let (router, entry) = (Arc::clone(self), Arc::clone(entry));
        let name = entry.name().to_string();
        let follow = async move {
            let held = Held::wait(entry, router.enter().await?).await;
            Ok(router.follow(&held, said).await)
        };
        // A daemon that stops asks no more.
        finish(name, follow).await.unwrap_or(true)
    }

    /// Does what follows from the store's answer: `false` when the store has to be asked again.
    async fn follow(&self, held: &Held, said: Said) -> bool {
        // Somebody may have decided meanwhile.
        let state = held.entry().state();
        if held.is_gone() || !matches!(state, State::Waiting | State::Serving) {
            return true;
        }
        let said = match said {
            Said::Ours => self.taken_back(held).await,
            said => said,
        };
        if matches!(said, Said::Nothing) {
            return false;
        }
        if state == State::Waiting {
            self.go_on(held, said).await;
        }
        true
    }

    /// Gives an export that waited its device, as far as it is to have one.
    async fn go_on(&self, held: &Held, said: Said) {
        let done = match said {
            // A device that is there answers what waits with errors; none is made.
            Said::Lost(error) if !self.device_exists(held).await.unwrap_or(false) => {
                let begun = held.step(Event::BeginAttach).map_err(RouterError::from);
                begun.and_then(|()| failed(held, error))
            }
            _ => self.attach_held(held).await,
        };
        // What failed is in the state and in the log.
        drop(done);
    }
}
