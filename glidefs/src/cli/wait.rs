//! Waiting for the daemon: how long, with which text on standard error, and ends before the work is done.
//!
//! Owns the text on standard error during a wait. Does not own the work. Invariants: with `--json` nothing is shown; the end of a wait never
//! ends the work.

use std::io::Write;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::args::common::WaitArgs;
use super::error::CliError;
use super::print::described;
use crate::api::wire::Status;
use crate::client::Client;
use crate::observe::one_line;

/// How often a wait shows its state.
const SHOW_INTERVAL: Duration = Duration::from_secs(10);
/// What becomes of the work of most commands when a wait ends before it.
pub(super) const GOES_ON: &str = "the daemon goes on with what it has begun: the same command waits again";
/// How long the daemon may take to tell the state once the wait has ended.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// A wait for the daemon.
pub(super) struct DaemonWait<'a> {
    limit: Option<Duration>,
    /// Where lines about the state go.
    out: Box<dyn Write + 'a>,
}

impl DaemonWait<'_> {
    /// A wait shown on standard error, or with `--json` nowhere.
    pub fn new(WaitArgs { timeout, output }: WaitArgs) -> Self {
        let limit = timeout.map(|limit| limit.0);
        Self { limit, out: if output.json { Box::new(std::io::sink()) } else { Box::new(std::io::stderr()) } }
    }

    /// Waits for `work`. `look` tells the state of the work, as text. When the wait ends before the work does, the error says with
    /// `goes_on` which work goes on and how to look at that work.
    pub async fn until<T, E: Into<CliError>>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
        look: impl AsyncFn() -> Option<String>,
        goes_on: &str,
    ) -> Result<T, CliError> {
        let begun = Instant::now();
        let mut work = pin!(work);
        loop {
            let left = self.limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            let pause = left.map_or(SHOW_INTERVAL, |left| left.min(SHOW_INTERVAL));
            if let Ok(done) = timeout(pause, &mut work).await {
                return done.map_err(Into::into);
            }
            let state = timeout(LAST_LOOK, look()).await.ok().flatten();
            if let Some(limit) = self.limit.filter(|limit| begun.elapsed() >= *limit) {
                let state = state.map_or_else(String::new, |state| format!(" ({state})"));
                return Err(CliError::WaitEnded {
                    seconds: limit.as_secs_f64(),
                    state,
                    goes_on: goes_on.into(),
                });
            }
            let state = state.unwrap_or_else(|| "the daemon does not say what for".into());
            // Nothing can be done when standard error is closed.
            let _ = writeln!(self.out, "waiting for {} s: {}", begun.elapsed().as_secs(), one_line(&state));
        }
    }

    /// Waits for `work` of the daemon, which may need the store. As [`Self::until`].
    pub async fn for_daemon<T, E: Into<CliError>>(
        &mut self,
        client: &Client,
        work: impl Future<Output = Result<T, E>>,
        goes_on: &str,
    ) -> Result<T, CliError> {
        self.until(work, async || state(client).await, goes_on).await
    }
}

/// What the daemon may wait for, in words: data that is not in the store, the catalog, the store.
async fn state(client: &Client) -> Option<String> {
    let status: Status = client.get("/v1/status").await.ok()?;
    let mut state = match status.exports_at_risk {
        0 => "all data is in the store".into(),
        count => described(&format!("{count} exports"), status.at_risk.bytes, &status.at_risk),
    };
    state.extend(status.catalog_fails.map(|reason| format!("; the catalog cannot be written: {reason}")));
    state.extend(status.daemon.store.map(|store| format!("; store {store}")));
    Some(state)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    async fn waited(limit: Option<u64>, seconds: u64) -> (Result<u32, CliError>, String) {
        let mut out = Vec::new();
        let work = async {
            sleep(Duration::from_secs(seconds)).await;
            Ok::<_, CliError>(7)
        };
        let limit = limit.map(Duration::from_secs);
        let mut wait = DaemonWait { limit, out: Box::new(&mut out) };
        let done = wait.until(work, async || Some("the reason".into()), "it goes on").await;
        drop(wait);
        (done, String::from_utf8(out).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_says_every_ten_seconds_what_it_waits_for() {
        let (done, shown) = waited(None, 25).await;
        assert_eq!(done.unwrap(), 7);
        assert_eq!(shown, "waiting for 10 s: the reason\nwaiting for 20 s: the reason\n");
        assert_eq!(waited(None, 9).await.1, "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_ends_before_the_work_says_so_and_what_goes_on() {
        let error = waited(Some(12), 100).await.0.unwrap_err();
        assert!(matches!(error, CliError::WaitEnded { .. }));
        assert_eq!(error.to_string(), "the wait ended after 12 s (the reason); it goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_says_nothing_keeps_no_wait_from_its_end() {
        let limit = Some(Duration::from_secs(30));
        let mut wait = DaemonWait { limit, out: Box::new(std::io::sink()) };
        let work = pending::<Result<(), CliError>>();
        let error = wait.until(work, async || pending().await, "it goes on").await.unwrap_err();
        assert_eq!(error.to_string(), "the wait ended after 30 s; it goes on");
    }
}
