//! Retries: how often, how long, and with which pauses.
//!
//! Owns the only retry policy; the policies of the libraries below are off. Does not own the judgement which failures may be
//! retried. Invariant: a try goes on as long as something moves (`transfer`), and no try begins after the time budget of the request. A
//! request ends at once when the daemon stops.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::client::{Store, StoreOptions};
use super::error::{BoxError, StoreError};
use super::health::Condition;
use super::ids::Entropy;
use super::stats::Operation;
use super::transfer::{self, Transfer};
use super::turns::{Reader, Turn, Turns};
use crate::observe::chain;

/// Shortest limit of a last try, so that the try can fail for a reason of its own.
const LAST_TRY_MIN: Duration = Duration::from_secs(1);

/// How often, how fast and how long a request is tried.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// A try in which nothing moves for so long is given up.
    pub idle_time_max: Duration,
    /// Time for all tries of a request together. A try that moves something may take longer.
    pub time_budget: Duration,
    /// Longest pause after the first try. The longest pause doubles with each further try; the pause is a random share of the
    /// longest.
    pub pause_first_max: Duration,
    /// Upper bound of all pauses.
    pub pause_max: Duration,
    /// How long the store says that an object is missing which must be there before the store is believed.
    pub missing_time: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            idle_time_max: Duration::from_secs(20),
            time_budget: Duration::from_mins(3),
            pause_first_max: Duration::from_millis(100),
            pause_max: Duration::from_secs(10),
            missing_time: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    /// A random pause after `tries` tries.
    pub(super) fn pause(&self, tries: u32, entropy: &dyn Entropy) -> Duration {
        let doubled = 2_u32.saturating_pow(tries.saturating_sub(1));
        let longest = self.pause_first_max.saturating_mul(doubled).min(self.pause_max);
        let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(entropy.next_u64() % nanos.saturating_add(1).max(1))
    }
}

/// Whether another try may follow a failed try.
pub(super) enum Failure {
    /// Another try may succeed, after this time at the earliest.
    Again(BoxError, Option<Duration>),
    /// No other try can succeed.
    Final(StoreError),
}

/// Everything a request needs beside the request itself.
pub(super) struct Tries<'a> {
    pub store: &'a Store,
    pub operation: Operation,
    pub key: &'a str,
    /// As in [`RetryPolicy`], or less.
    pub time_budget: Duration,
    /// For a reader, and for the upload of a pack: each try takes a turn of this cost. A pause holds no turn.
    pub turns: Option<(&'a Arc<Turns>, Reader, u64)>,
    /// Whether the request itself checks whether the place is the store. Until the store was found there, every try of any other
    /// request fails before.
    pub is_look: bool,
}

impl Tries<'_> {
    /// Calls `attempt` until a try succeeds, a failure is final, or the time is up. Returns the number of tries as well.
    pub async fn run<T, F>(&self, attempt: impl FnMut() -> F) -> Result<(T, u32), StoreError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let answer = tokio::select! {
            biased;
            () = self.store.stopped() => {
                Err(StoreError::ShuttingDown { operation: self.operation, key: self.key.into() })
            }
            answer = self.until_answered(attempt) => answer,
        };
        if let Err(error) = &answer {
            let stats = self.store.stats();
            stats.of(self.operation).errors.add(u64::from(!error.is_missing()));
            stats.refused.add(u64::from(matches!(error, StoreError::Refused { .. })));
        }
        answer
    }

    /// As [`Self::run`], as long as the daemon does not stop.
    async fn until_answered<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<(T, u32), StoreError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let Self { store, operation, key, time_budget, .. } = *self;
        let StoreOptions { retry, entropy, stats, .. } = &store.inner.options;
        let counts = stats.of(operation);
        let mut begun = Instant::now();
        let mut tries = 0;
        loop {
            let waiting = Instant::now();
            let turn = self.turn().await;
            // The wait for a turn does not count: a late turn is no fault of the store.
            begun += waiting.elapsed();
            tries += 1;
            counts.requests.add(1);
            counts.retries.add(u64::from(tries > 1));
            // The first try has the whole limit, whatever the budget is. So has every try that sends: what was sent is sent again.
            let left = time_budget.saturating_sub(begun.elapsed());
            let limit = || match operation {
                Operation::Put => retry.idle_time_max + store.inner.uplink.patience(),
                _ if tries == 1 => retry.idle_time_max,
                _ => retry.idle_time_max.min(left.max(LAST_TRY_MIN)),
            };
            let answer = async {
                self.in_place().await?;
                transfer::moved();
                attempt().await
            };
            let answer = Transfer::watch(&store.inner.uplink, limit, answer).await;
            drop(turn);
            let (source, after) = match answer {
                Ok(value) => {
                    stats.health.note(operation, None);
                    return Ok((value, tries));
                }
                Err(Failure::Again(source, after)) => (source, after.unwrap_or_default()),
                Err(Failure::Final(error)) => {
                    let refused = matches!(error, StoreError::Refused { .. });
                    let trouble = refused.then(|| (Condition::Refuses, chain(&error)));
                    stats.health.note(operation, trouble);
                    return Err(error);
                }
            };
            let silence = format!("the store does not answer: {}", chain(&*source));
            stats.health.note(operation, Some((Condition::Silent, silence)));
            let pause = retry.pause(tries, &**entropy).max(after);
            if begun.elapsed().saturating_add(pause) >= time_budget {
                let (key, elapsed) = (key.into(), begun.elapsed());
                return Err(StoreError::Unreachable { operation, key, tries, elapsed, source });
            }
            tracing::debug!(%operation, key, tries, error = %source, pause_ms = pause.as_millis(), "trying again");
            sleep(pause).await;
        }
    }

    async fn turn(&self) -> Option<Turn> {
        let (turns, reader, cost) = self.turns?;
        Some(turns.take(reader, cost).await)
    }

    /// Checks that the directory of the store is there: data written to an empty mount point would be in no store.
    async fn in_place(&self) -> Result<(), Failure> {
        let is_open = self.store.is_open();
        if !is_open && !self.is_look {
            let why = "it is not known yet whether the place is the store with the exports of this host";
            return Err(Failure::Again(why.into(), None));
        }
        let Some(directory) = self.store.inner.backend.directory.clone() else { return Ok(()) };
        // A network file system may be away; then this call blocks.
        let checked = tokio::task::spawn_blocking(move || directory.check(!is_open)).await;
        checked
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|error| Failure::Again(Box::new(error), None))
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::super::backend::Backend;
    use super::*;
    use crate::observe::logging::captured;

    #[test]
    fn credentials_that_are_refused_are_told_once_for_all_requests_of_the_host() {
        let store = Store::over(Backend::over(Arc::new(InMemory::new()), true), StoreOptions::default());
        let refuse = |key: &'static str| {
            let tries = store.tries(Operation::Put, key);
            let attempt = || async {
                let source = io::Error::from(io::ErrorKind::PermissionDenied).into();
                let (operation, key) = (Operation::Put, key.into());
                let advice = "check the credentials";
                Err::<(), _>(Failure::Final(StoreError::Refused { operation, key, advice, source }))
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            assert!(runtime.block_on(tries.run(attempt)).is_err());
        };
        let log = captured(|| (0..100).for_each(|number| refuse(["one", "two"][number % 2])));
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains("state=refuses") && log.contains("check the credentials"), "{log}");
        assert_eq!(store.stats().refused.get(), 100);
        assert!(store.stats().health.of_writeback().unwrap().contains("check the credentials"));
    }
}
