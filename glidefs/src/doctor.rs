//! `glidefs doctor`: faults of this host that keep the daemon from running well, each with a remedy.
//!
//! Each check is a function that judges what it sees. A check that a start of the daemon makes as well calls the same code: `config`,
//! `api` for the token, `ublk` for the driver, `router` for the catalog, `store` for the place.
//!
//! Owns findings, advice and time limits. Does not own the printing (`cli`). Invariants: doctor works without a daemon and beside one;
//! a part of the host that hangs costs its time limit and hides no other part; nothing is changed, except for a measurement in the
//! directory of the cache and a trial's objects in the store, both of which are removed.

mod cache;
mod daemon;
mod kernel;
mod process;
mod store;

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::oneshot;

use self::daemon::Host;
use crate::store::{StoreUrl, TrialSize};

/// How long a part of the host may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Several findings by one look at the host.
type Check = fn(&Host) -> Vec<Finding>;

/// The checks, each with its first finding's name. The store's come after them (`store`).
const CHECKS: [(&str, Check); 7] = [
    ("configuration", daemon::configuration),
    ("API token", daemon::token),
    ("daemon", daemon::check),
    ("kernel", kernel::check),
    ("capabilities", process::check),
    ("cache directory", cache::check),
    ("catalog", cache::catalog),
];

/// Checks this host for the daemon of the configuration file at `config`.
pub async fn examine(config: &Path) -> Report {
    let mut host = Host::find(config).await;
    let (of_store, store_id) = store::check(&host, TrialSize::BRIEF).await;
    host.store_id = store_id;
    let host = Arc::new(host);
    let mut findings = Vec::new();
    for (name, check) in CHECKS {
        let host = Arc::clone(&host);
        match answer(move || check(&host)).await {
            Ok(found) => findings.extend(found),
            Err(silence) => findings.push(
                failure(silence)
                    .why("the daemon needs this part of the host, and hangs or does not start")
                    .mend("dmesg; then mend the disk, the file system or the driver")
                    .named(name),
            ),
        }
    }
    findings.extend(of_store);
    Report::new(findings)
}

/// Tries the store at `url`, or that of the configuration file at `config`, for longer than [`examine`] does, and says which promises it
/// allows. With `url` any user may ask, with variables of the command where no daemon runs.
pub async fn try_store(config: &Path, url: Option<StoreUrl>) -> Report {
    let mut host = Host::find(config).await;
    if url.is_some() {
        (host.config.store.url, host.refused, host.is_root) = (url, None, true);
        // No cache has data of it, as far as is known.
        host.config.cache.dir = "/dev/null".into();
    }
    let (mut findings, _) = store::check(&host, TrialSize::WHOLE).await;
    findings.extend(store::promises(&findings));
    Report::new(findings)
}

/// The answer to `question` within [`PATIENCE`], or a sentence that there is none. The thread of a lost question ends with the process.
async fn answer<T: Send + 'static>(question: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let (sender, answered) = oneshot::channel();
    let asking = thread::Builder::new().name("question".into()).spawn(move || {
        // The receiver is gone when the answer is late.
        let _ = sender.send(question());
    });
    asking.map_err(|error| format!("no thread can be made: {error}"))?;
    match tokio::time::timeout(PATIENCE, answered).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) | Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

/// How serious a finding is, least serious first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Good to know; nothing has to be done.
    Note,
    /// The daemon runs, and something is slower, smaller or less safe than it could be.
    Warning,
    /// The daemon does not start, or data is in danger.
    Failure,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check, as in the table of docs/operations.md.
    pub check: &'static str,
    pub verdict: Verdict,
    /// The facts, in a line.
    pub found: String,
    /// Why the matter counts; `None` only when all is well.
    pub why: Option<String>,
    /// The command or the step that mends the matter; `None` only when all is well.
    pub mend: Option<String>,
}

/// A finding without a name yet.
fn finding(verdict: Verdict, found: impl Into<String>) -> Finding {
    Finding { check: "", verdict, found: found.into(), why: None, mend: None }
}

fn ok(found: impl Into<String>) -> Finding {
    finding(Verdict::Ok, found)
}

fn note(found: impl Into<String>) -> Finding {
    finding(Verdict::Note, found)
}

fn warning(found: impl Into<String>) -> Finding {
    finding(Verdict::Warning, found)
}

fn failure(found: impl Into<String>) -> Finding {
    finding(Verdict::Failure, found)
}

/// A note that only root can find out more.
fn for_root(found: impl Into<String>) -> Finding {
    note(found).why("other users than root see less, and the daemon runs as root").mend("sudo glidefs doctor")
}

impl Finding {
    fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }

    /// The finding as that of the check `name`.
    fn named(mut self, name: &'static str) -> Self {
        self.check = name;
        self
    }

    /// The same, no more serious than `most`.
    fn at_most(mut self, most: Verdict) -> Self {
        self.verdict = self.verdict.min(most);
        self
    }
}

/// All findings of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order of the checks.
    pub findings: Vec<Finding>,
    pub worst: Verdict,
}

impl Report {
    pub fn new(findings: Vec<Finding>) -> Self {
        let worst = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok);
        Self { findings, worst }
    }

    /// The number of findings with `verdict`.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_as_json_has_every_key_also_where_all_is_well_and_its_worst_verdict() {
        let report = Report::new(vec![ok("1").named("a"), warning("2").why("3").mend("4").named("b")]);
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"findings":[{"check":"a","verdict":"ok","found":"1","why":null,"mend":null},{"check":"b","verdict":"warning","found":"2","why":"3","mend":"4"}],"worst":"warning"}"#
        );
        assert_eq!(Report::new(vec![failure("x"), note("y")]).worst, Verdict::Failure);
        assert_eq!(failure("x").at_most(Verdict::Note).verdict, Verdict::Note);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_without_an_answer_ends_with_its_time_limit() {
        let (_stays, never) = std::sync::mpsc::channel::<()>();
        assert_eq!(answer(move || never.recv()).await, Err("no answer within 10 s".into()));
    }

    #[tokio::test]
    async fn an_answer_in_time_is_given_on() {
        assert_eq!(answer(|| 7).await, Ok(7));
    }
}
