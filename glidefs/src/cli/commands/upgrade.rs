//! `glidefs upgrade`: asks the daemon to hand over, and waits until somebody serves again.
//!
//! Owns the wait. Does not own the hand-over, which goes on without this command. Invariant: exit status 0 means that the successor
//! serves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::api::wire::{Status, Upgrade, UpgradeBegun, UpgradeRequest};
use crate::cli::args::common::OutputArgs;
use crate::cli::error::CliError;
use crate::cli::print;
use crate::cli::print::answer;
use crate::cli::wait::DaemonWait;
use crate::client::Client;

/// How often the daemon is asked who serves.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a process may take to say that it serves.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Longest time until one of the two programs serves: longer than a standby waits for the successor, and a start after that.
const PATIENCE: Duration = Duration::from_mins(65);

pub(in crate::cli) async fn run(
    client: &Client,
    binary: Option<PathBuf>,
    output: OutputArgs,
) -> Result<(), CliError> {
    let before: Status = client.get("/v1/status").await?;
    let binary = binary.map(|path| absolute(&path)).transpose()?;
    let request = UpgradeRequest { binary };
    let preparing = async || Some("the successor gets ready".into());
    let wait = DaemonWait::new(output.json, None);
    let begun: UpgradeBegun = wait.until(client.post("/v1/upgrade", &request), preparing, "").await?;
    let look = async || Some(state(client, &begun).await);
    let ended = wait.until(end(client, before.pid, &begun), look, "").await?;
    drop(wait);
    answer(output.json, &ended, print::upgrade)
}

/// The path as text, from / on.
fn absolute(path: &Path) -> Result<String, CliError> {
    let whole =
        std::path::absolute(path).map_err(|source| CliError::Program { path: path.into(), source })?;
    whole.into_os_string().into_string().map_err(|_| CliError::Program {
        path: path.into(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidInput, "the path is not UTF-8 text"),
    })
}

async fn status(client: &Client) -> Option<Status> {
    timeout(ANSWER_PATIENCE, client.get("/v1/status")).await.ok()?.ok()
}

/// The state of the hand-over, in words.
async fn state(client: &Client, begun: &UpgradeBegun) -> String {
    match status(client).await {
        Some(status) if status.pid == begun.pid => {
            let exports = &status.exports;
            format!("the successor serves {} of {} exports", exports.serving, exports.total)
        }
        Some(_) => "the daemon ends its operations".into(),
        None => "the successor opens the cache".into(),
    }
}

/// Waits until one of the two programs serves.
async fn end(client: &Client, pid_before: u32, begun: &UpgradeBegun) -> Result<Upgrade, CliError> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = status(client).await.filter(|status| status.ready)
            && let Some(end) = judge(status, pid_before, begun)
        {
            return end;
        }
        sleep(PAUSE).await;
    }
    let reason = "no daemon answers: see the log".into();
    Err(CliError::NotUpgraded { reason })
}

/// Whether the daemon with `status`, which is ready, is the end of the upgrade; `None` while the daemon before has not ended.
fn judge(status: Status, pid_before: u32, begun: &UpgradeBegun) -> Option<Result<Upgrade, CliError>> {
    let of_this = status.last_upgrade.filter(|last| last.began == begun.began);
    if status.pid == begun.pid
        && let Some(last) = of_this
    {
        return Some(Ok(last));
    }
    let reason = match of_this {
        Some(last) => format!(
            "glidefs {} serves again: {}",
            status.version,
            last.reason.as_deref().unwrap_or("the successor failed")
        ),
        None if status.pid == pid_before => return None,
        None => format!("glidefs {} was started anew, and serves: see the log", status.version),
    };
    Some(Err(CliError::NotUpgraded { reason }))
}
