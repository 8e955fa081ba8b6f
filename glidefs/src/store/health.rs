//! Whether a store does what this host asks of it: since when, and why not.
//!
//! Owns the state over the last answers to all kinds of requests, and the log lines about it. Does not own counters (`stats`), nor
//! the sentences (`error`, `classify`). Invariants: any answer ends silence; a refusal ends when a request of the same kind is carried
//! out.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::error::StoreError;
use super::stats::Operation;
use crate::locks::MutexExt;
use crate::observe::chain;
use crate::observe::repeat::Repeat;

/// Silence that ends sooner is not logged: tries that fail are usual.
const SILENCE_LOGGED: Duration = Duration::from_secs(10);

/// What a store does. It is asked only when something is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// There was no request yet.
    #[default]
    Unasked,
    /// It does what it is asked.
    Up,
    /// It does not answer, or answers that it cannot at present.
    Silent,
    /// It refuses requests: credentials, permissions, the bucket, the region.
    Refuses,
    /// The place is not the store of this host.
    NotFound,
}

/// As in JSON.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The state of a store, as this host sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreState {
    /// The URL of the store.
    pub url: String,
    /// What the store does.
    pub state: Condition,
    /// For how long, seconds.
    pub since_seconds: u64,
    /// Why the store does not do what it is asked, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
}

/// As a line: "s3://bucket: up for 12 s".
impl fmt::Display for StoreState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} for {} s", self.url, self.state, self.since_seconds)?;
        self.error.iter().try_for_each(|error| write!(f, ": {error}"))
    }
}

/// The troubles of a store: of several the first one counts.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<Inner>);

/// The place of the trouble that the place is not the store; of silence; and of the refusals of each kind of request.
const PLACE: usize = 0;
const SILENCE: usize = 1;
const REFUSALS: usize = 2;

#[derive(Debug, Default)]
struct Inner {
    troubles: [Option<Trouble>; REFUSALS + Operation::ALL.len()],
    /// The first answer, or the end of the last trouble.
    well_since: Option<Instant>,
    /// The trouble that the log tells of.
    logged: Option<Condition>,
    /// Lets one of many log lines pass.
    lines: Repeat,
}

#[derive(Clone, Debug)]
struct Trouble {
    condition: Condition,
    error: String,
    since: Instant,
}

impl Inner {
    fn trouble(&self) -> Option<&Trouble> {
        self.troubles.iter().flatten().next()
    }

    fn log(&mut self) {
        match self.trouble().cloned() {
            Some(trouble)
                if trouble.condition == Condition::Silent && trouble.since.elapsed() < SILENCE_LOGGED => {}
            Some(Trouble { condition: state, error, since }) if self.logged != Some(state) => {
                let Some(suppressed) = self.lines.pass() else { return };
                let seconds = since.elapsed().as_secs();
                tracing::warn!(%state, seconds, error, suppressed, "the store does not do what it is asked");
                self.logged = Some(state);
            }
            None if self.logged.take().is_some() => tracing::info!("the store does what it is asked again"),
            _ => {}
        }
    }
}

impl Health {
    /// Notes an answer to a request, or why there was none, or none of use.
    pub fn note(&self, operation: Operation, trouble: Option<(Condition, String)>) {
        let refusal = REFUSALS + operation as usize;
        match trouble {
            None => self.change(&[SILENCE, refusal], None),
            Some((Condition::Silent, _)) => self.change(&[], Some(SILENCE).zip(trouble)),
            Some(_) => self.change(&[SILENCE], Some(refusal).zip(trouble)),
        }
    }

    /// Notes that the place is the store, or why not.
    pub fn note_place(&self, error: Option<&StoreError>) {
        let Some(error) = error else { return self.change(&[PLACE, SILENCE], None) };
        let condition = match error {
            StoreError::ShuttingDown { .. } => return,
            StoreError::Refused { .. } => Condition::Refuses,
            StoreError::Unreachable { .. } => Condition::Silent,
            _ => Condition::NotFound,
        };
        self.change(&[], Some((PLACE, (condition, chain(error)))));
    }

    fn change(&self, ends: &[usize], begins: Option<(usize, (Condition, String))>) {
        let (now, mut inner) = (Instant::now(), self.0.lock_whole());
        let mut has_ended = false;
        for at in ends {
            has_ended |= inner.troubles[*at].take().is_some();
        }
        if let Some((at, (condition, error))) = begins {
            let had = inner.troubles[at].take().filter(|had| had.condition == condition);
            let since = had.map_or(now, |had| had.since);
            inner.troubles[at] = Some(Trouble { condition, error, since });
        } else if has_ended || inner.well_since.is_none() {
            inner.well_since = Some(now);
        }
        inner.log();
    }

    /// The state of the store at `url`.
    pub fn state(&self, url: &str) -> StoreState {
        let inner = self.0.lock_whole();
        let (state, since, error) = match (inner.trouble(), inner.well_since) {
            (Some(trouble), _) => (trouble.condition, Some(trouble.since), Some(trouble.error.clone())),
            (None, Some(since)) => (Condition::Up, Some(since), None),
            (None, None) => (Condition::Unasked, None, None),
        };
        let since_seconds = since.map_or(0, |since| since.elapsed().as_secs());
        StoreState { url: url.into(), state, since_seconds, error }
    }

    /// Why requests of writeback, which deletes nothing, have no answer of use at present.
    pub fn of_writeback(&self) -> Option<String> {
        let inner = self.0.lock_whole();
        let mut troubles = inner.troubles.iter().enumerate();
        troubles.find_map(|(at, trouble)| {
            let trouble = trouble.as_ref().filter(|_| at != REFUSALS + Operation::Delete as usize)?;
            Some(trouble.error.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::observe::logging::captured;

    fn silent() -> (Condition, String) {
        (Condition::Silent, "no route".into())
    }

    fn refused() -> (Condition, String) {
        (Condition::Refuses, "403".into())
    }

    const GET: Operation = Operation::Get;
    const LIST: Operation = Operation::List;

    #[tokio::test(start_paused = true)]
    async fn a_store_is_up_silent_or_refuses_since_the_change_and_with_the_cause() {
        let health = Health::default();
        let state = || {
            let StoreState { state, since_seconds, error, .. } = health.state("s3://b");
            (state.to_string(), since_seconds, error)
        };
        assert_eq!(state(), ("unasked".into(), 0, None));
        health.note(GET, None);
        advance(Duration::from_secs(5)).await;
        health.note(GET, None);
        assert_eq!(state(), ("up".into(), 5, None));
        health.note(GET, Some(silent()));
        advance(Duration::from_secs(3)).await;
        health.note(GET, Some((Condition::Silent, "503".into())));
        assert_eq!(state(), ("silent".into(), 3, Some("503".into())));
        health.note(GET, Some(refused()));
        assert_eq!(state(), ("refuses".into(), 0, Some("403".into())));
        assert_eq!(health.of_writeback().as_deref(), Some("403"));
        health.note(GET, None);
        assert_eq!(state(), ("up".into(), 0, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_lasts_until_the_same_is_permitted_and_silence_until_an_answer() {
        let health = Health::default();
        let condition = || health.state("").state;
        health.note(LIST, Some(silent()));
        assert_eq!(condition(), Condition::Silent);
        health.note(GET, None);
        assert_eq!(condition(), Condition::Up);
        health.note(LIST, Some(refused()));
        advance(Duration::from_hours(2)).await;
        health.note(GET, None);
        assert_eq!(condition(), Condition::Refuses);
        health.note(GET, Some(silent()));
        assert_eq!(condition(), Condition::Silent, "nothing at all is answered");
        health.note(LIST, None);
        assert_eq!(condition(), Condition::Up);
    }

    #[tokio::test(start_paused = true)]
    async fn deletions_that_are_refused_are_shown_and_no_reason_of_writeback() {
        let health = Health::default();
        health.note(Operation::Delete, Some(refused()));
        assert_eq!((health.state("").state, health.of_writeback()), (Condition::Refuses, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_found_ends_the_silence_before_it_and_no_refusal() {
        let health = Health::default();
        health.note(LIST, Some(silent()));
        health.note_place(Some(&StoreError::NotAStore { location: "s3://b".into() }));
        assert!(health.state("").error.unwrap().contains("s3://b"));
        health.note_place(None);
        assert_eq!((health.state("").state, health.state("").error), (Condition::Up, None));
        health.note(LIST, Some(refused()));
        health.note_place(None);
        assert_eq!(health.state("").state, Condition::Refuses);
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_stops_says_nothing_about_the_place() {
        let health = Health::default();
        health.note_place(Some(&StoreError::ShuttingDown { operation: GET, key: "glidefs.json".into() }));
        assert_eq!(health.state("").state, Condition::Unasked);
    }

    #[test]
    fn the_log_tells_once_of_a_trouble_that_lasts_and_of_its_end() {
        let log = captured(|| {
            let health = Health::default();
            (0..100).for_each(|_| health.note(GET, Some(silent())));
            health.note(GET, None);
        });
        assert_eq!(log, "", "tries that fail for a moment are usual");
        let log = captured(|| {
            let health = Health::default();
            (0..100).for_each(|_| health.note(GET, Some(refused())));
            (0..100).for_each(|_| health.note(GET, None));
        });
        assert_eq!(log.lines().count(), 2, "{log}");
        assert!(log.contains("403") && log.contains("again"), "{log}");
    }
}
