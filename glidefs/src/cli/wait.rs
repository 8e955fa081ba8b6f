//! Waiting for the daemon: how long, with which text on standard error, and ends before the work is done.
//!
//! Owns the text on standard error during a wait. Does not own the work. Invariants: a finished wait leaves no text of its own on a
//! terminal; with `--json` nothing is shown; the end of a wait never ends the work.

use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, Write};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::error::CliError;
use super::print::described;
use crate::api::wire::{AtRisk, Export, Status};
use crate::client::{Client, export_path};
use crate::config::TimeSpan;
use crate::router::ExportName;

/// How often a wait shows its state, on a terminal and in a file or a pipe.
const TERMINAL_PAUSE: Duration = Duration::from_secs(1);
const LINE_PAUSE: Duration = Duration::from_secs(10);
/// How long the daemon may take to tell the state once the wait has ended.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// How a wait shows the state.
#[derive(Debug)]
enum Show {
    Nothing,
    /// In one line that is overwritten each time.
    Terminal,
    /// In a new line each time.
    Lines,
}

/// A wait for the daemon.
pub(super) struct DaemonWait<'a> {
    show: Show,
    limit: Option<Duration>,
    /// Whether there is text on the terminal.
    shown: Cell<bool>,
    out: RefCell<Box<dyn Write + 'a>>,
}

impl<'a> DaemonWait<'a> {
    /// A wait of at most `limit`, shown on standard error unless `json` is set.
    pub fn new(json: bool, limit: Option<TimeSpan>) -> Self {
        let show = match std::io::stderr().is_terminal() {
            _ if json => Show::Nothing,
            true => Show::Terminal,
            false => Show::Lines,
        };
        Self::on(show, limit.map(|limit| limit.0), std::io::stderr())
    }

    fn on(show: Show, limit: Option<Duration>, out: impl Write + 'a) -> Self {
        Self { show, limit, shown: Cell::new(false), out: RefCell::new(Box::new(out)) }
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
        let limited = async {
            match self.limit {
                Some(limit) => timeout(limit, work).await.map_err(|_| limit),
                None => Ok(work.await),
            }
        };
        let done = tokio::select! {
            biased;
            done = limited => done,
            never = self.show(begun, &look) => match never {},
        };
        match done {
            Ok(done) => done.map_err(Into::into),
            Err(waited) => {
                let state = timeout(LAST_LOOK, look()).await.ok().flatten();
                let state = state.map_or_else(String::new, |state| format!(" ({state})"));
                let goes_on = goes_on.to_owned();
                Err(CliError::WaitEnded { seconds: waited.as_secs_f64(), state, goes_on })
            }
        }
    }

    /// Shows the state again and again while this future is polled.
    async fn show(&self, begun: Instant, look: impl AsyncFn() -> Option<String>) -> std::convert::Infallible {
        let pause = match self.show {
            Show::Nothing => return std::future::pending().await,
            Show::Terminal => TERMINAL_PAUSE,
            Show::Lines => LINE_PAUSE,
        };
        loop {
            sleep(pause).await;
            let state = look().await.unwrap_or_else(|| "the daemon has not answered yet".into());
            let text = format!("waiting for {} s: {state}", begun.elapsed().as_secs());
            match self.show {
                Show::Terminal => {
                    self.shown.set(true);
                    self.write(&format!("\r\x1b[K{}", first_line(&text)));
                }
                _ => self.write(&format!("{text}\n")),
            }
        }
    }

    fn write(&self, text: &str) {
        let mut out = self.out.borrow_mut();
        // Nothing can be done when standard error is closed.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Drop for DaemonWait<'_> {
    fn drop(&mut self) {
        if self.shown.get() {
            self.write("\r\x1b[K");
        }
    }
}

/// As much of `text` as fits a line of most terminals: a longer text could not be overwritten.
fn first_line(text: &str) -> String {
    const CHARS_MAX: usize = 110;
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= CHARS_MAX {
        return line.into();
    }
    line.chars().take(CHARS_MAX - 1).chain(['…']).collect()
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

    use super::*;

    async fn waited(show: Show, limit: Option<u64>, seconds: u64) -> (Result<u32, CliError>, String) {
        let mut out = Vec::new();
        let work = async {
            sleep(Duration::from_secs(seconds)).await;
            Ok::<_, CliError>(7)
        };
        let wait = DaemonWait::on(show, limit.map(Duration::from_secs), &mut out);
        let done = wait.until(work, async || Some("the reason".into()), "it goes on").await;
        drop(wait);
        (done, String::from_utf8(out).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_says_every_ten_seconds_what_it_waits_for() {
        let (done, shown) = waited(Show::Lines, None, 25).await;
        assert_eq!(done.unwrap(), 7);
        assert_eq!(shown, "waiting for 10 s: the reason\nwaiting for 20 s: the reason\n");
        assert_eq!(waited(Show::Lines, None, 9).await.1, "");
        assert_eq!(waited(Show::Nothing, None, 25).await.1, "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_terminal_is_left_clean() {
        let (_, shown) = waited(Show::Terminal, None, 3).await;
        assert!(shown.starts_with("\r\x1b[Kwaiting for 1 s: the reason\r"), "{shown:?}");
        assert!(shown.ends_with("\r\x1b[K") && !shown.contains('\n'), "{shown:?}");
        assert_eq!(first_line(&"ä".repeat(200)).chars().count(), 110);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_ends_before_the_work_says_so_and_what_goes_on() {
        for show in [Show::Lines, Show::Nothing] {
            let error = waited(show, Some(12), 100).await.0.unwrap_err();
            assert!(matches!(error, CliError::WaitEnded { .. }));
            assert_eq!(error.to_string(), "the wait ended after 12 s (the reason); it goes on");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_says_nothing_keeps_no_wait_from_its_end() {
        let wait = DaemonWait::on(Show::Lines, Some(Duration::from_secs(30)), std::io::sink());
        let work = pending::<Result<(), CliError>>();
        let error = wait.until(work, async || pending().await, "it goes on").await.unwrap_err();
        assert_eq!(error.to_string(), "the wait ended after 30 s; it goes on");
    }
}
