//! Waiting for the daemon: how long, with which text on standard error, and ends before the work is done.
//!
//! Owns the text on standard error during a wait. Does not own the work. Invariants: with `--json` nothing is shown; the end of a wait never
//! ends the work.

use std::cell::RefCell;
use std::io::Write;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::error::CliError;
use super::print::described;
use crate::api::wire::{AtRisk, Export, Status};
use crate::client::{Client, export_path};
use crate::config::TimeSpan;
use crate::observe::one_line;
use crate::router::ExportName;

/// How often a wait shows its state.
const SHOW_INTERVAL: Duration = Duration::from_secs(10);
/// How long the daemon may take to tell the state once the wait has ended.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// A wait for the daemon.
pub(super) struct DaemonWait<'a> {
    limit: Option<Duration>,
    /// Where lines about the state go.
    out: RefCell<Box<dyn Write + 'a>>,
}

impl<'a> DaemonWait<'a> {
    /// A wait of at most `limit`, shown on standard error unless `json` is set.
    pub fn new(json: bool, limit: Option<TimeSpan>) -> Self {
        let limit = limit.map(|limit| limit.0);
        if json { Self::on(limit, std::io::sink()) } else { Self::on(limit, std::io::stderr()) }
    }

    fn on(limit: Option<Duration>, out: impl Write + 'a) -> Self {
        Self { limit, out: RefCell::new(Box::new(out)) }
    }

    /// Waits for `work`. `look` tells the state of the work, as text. When the wait ends before the work does, the error says with
    /// `goes_on` which work goes on and how to look at that work.
    pub async fn until<T, E: Into<CliError>>(
        &self,
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
            let _ = writeln!(
                self.out.borrow_mut(),
                "waiting for {} s: {}",
                begun.elapsed().as_secs(),
                one_line(&state)
            );
        }
    }
}

/// The data of these exports that is not in the store, in words.
pub(super) async fn exports_at_risk(client: &Client, names: &[ExportName]) -> Option<String> {
    let exports = match names {
        [name] => vec![client.get::<Export>(&export_path(name, "")).await.ok()?],
        _ => client.get::<Vec<Export>>("/v1/exports").await.ok()?,
    };
    let at_risk: Vec<(&str, &AtRisk)> = exports
        .iter()
        .filter(|export| names.iter().any(|name| name.as_str() == export.name))
        .filter_map(|export| Some((export.name.as_str(), export.at_risk.as_ref()?)))
        .collect();
    let Some((oldest, risk)) = at_risk.iter().max_by_key(|(_, risk)| risk.seconds) else {
        return Some("all data is in the store; a last request to the store is under way".into());
    };
    let bytes = at_risk.iter().fold(0_u64, |sum, (_, risk)| sum.saturating_add(risk.bytes));
    Some(match at_risk.len() {
        1 => described(oldest, bytes, risk),
        count => described(&format!("{count} exports"), bytes, risk),
    })
}

/// The data of all exports that is not in the store, in words.
pub(super) async fn all_at_risk(client: &Client) -> Option<String> {
    let status: Status = client.get("/v1/status").await.ok()?;
    let state = match status.exports_at_risk {
        0 => "all data is in the store; exports without a device are released for other hosts".into(),
        count => described(&format!("{count} exports"), status.at_risk.bytes, &status.at_risk),
    };
    Some(match status.catalog_fails {
        Some(reason) => format!("{state}; the catalog cannot be written: {reason}"),
        None => state,
    })
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
        let wait = DaemonWait::on(limit.map(Duration::from_secs), &mut out);
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
        let wait = DaemonWait::on(Some(Duration::from_secs(30)), std::io::sink());
        let work = pending::<Result<(), CliError>>();
        let error = wait.until(work, async || pending().await, "it goes on").await.unwrap_err();
        assert_eq!(error.to_string(), "the wait ended after 30 s; it goes on");
    }
}
