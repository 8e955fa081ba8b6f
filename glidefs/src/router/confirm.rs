//! Asking the store whose exports are, before and while they are served.
//!
//! Owns which exports wait for the answer, and what follows. Does not own how a writer asks (`store::volume`). Invariant: at the
//! start no request is answered from the cache before the store has said that this host still has the export, unless the
//! user wants that.

use std::sync::{Arc, PoisonError};

use futures_util::{StreamExt, stream};
use tokio::time::{sleep, timeout};

use super::Router;
use super::entry::{Entry, Held};
use super::error::RouterError;
use super::operations::failed;
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
    /// Nothing: the store is away.
    Nothing,
}

impl Router {
    /// Asks the store whose an export is.
    pub(super) async fn ask(&self, entry: &Entry) -> Said {
        match entry.export().volume().confirm(self.options.confirm_patience).await {
            Ok(true) => Said::Ours,
            Ok(false) => Said::Nothing,
            Err(source) => Said::Lost(RouterError::Lost { name: entry.name().to_string(), source }),
        }
    }

    /// Whether the store can be asked at all. Only the store with these exports can tell.
    pub(super) async fn can_ask(&self) -> bool {
        match timeout(self.options.confirm_patience, self.volumes.names()).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                tracing::warn!(error = %chain(&error), "the store cannot be asked whose the exports are");
                false
            }
            Err(_) => {
                tracing::warn!("the store does not answer whose the exports are");
                false
            }
        }
    }

    /// Leaves the device of an export alone until the store has confirmed the export.
    pub(super) fn let_wait(&self, held: &Held) -> Result<(), RouterError> {
        held.step(Event::Wait)?;
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(held.entry()));
        Ok(())
    }

    /// How many exports wait for the store to confirm them.
    pub fn unconfirmed(&self) -> usize {
        self.entries().iter().filter(|entry| entry.state() == State::Waiting).count()
    }

    /// Asks the store whether the exports that are here are still this host's: another one may have taken them over while no
    /// daemon ran. Those that wait for the answer come first, and get their devices. What the store has not said yet is asked
    /// again.
    pub async fn confirm(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let is_waiting = |entry: &Arc<Entry>| waiting.iter().any(|other| Arc::ptr_eq(other, entry));
        let rest = self.entries();
        let rest: Vec<_> = if waiting.is_empty() {
            rest
        } else {
            rest.into_iter().filter(|entry| !is_waiting(entry)).collect()
        };
        let mut left = [waiting, rest].concat();
        while !self.can_ask().await {
            sleep(self.options.confirm_patience / 2).await;
        }
        while !left.is_empty() {
            let asked = stream::iter(left).map(|entry| async move {
                let said = self.confirm_one(&entry).await;
                (!said).then_some(entry)
            });
            left = asked.buffer_unordered(CONFIRMATIONS_MAX).filter_map(std::future::ready).collect().await;
            if !left.is_empty() {
                sleep(self.options.confirm_patience / 2).await;
                left.retain(|entry| !entry.export().volume().is_removed());
            }
        }
    }

    /// Asks whose one export is, and has what follows done; `false` when the store did not say.
    async fn confirm_one(&self, entry: &Arc<Entry>) -> bool {
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
        if entry.state() == State::Waiting
            && let Ok(gate) = self.enter().await
        {
            let held = Held::wait(Arc::clone(entry), gate).await;
            // Somebody may have decided meanwhile.
            if !held.is_gone() && held.entry().state() == State::Waiting {
                self.go_on(&held, said).await;
            }
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
