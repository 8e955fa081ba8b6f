//! `glidefs upgrade`: has the daemon go on as another program, and waits until it serves, or the one before serves again.
//!
//! Owns the wait. Does not own the upgrade, which goes on without this command. Invariant: exit status 0 means that the new program
//! serves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::api::wire::{Status, Upgrade, UpgradeBegun, UpgradeRequest};
use crate::cli::args::common::{OutputArgs, WaitArgs};
use crate::cli::error::CliError;
use crate::cli::print;
use crate::cli::print::answer;
use crate::cli::wait::DaemonWait;
use crate::client::Client;

/// How often the daemon is asked who serves.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a daemon may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Longest time until one of the two programs serves: a start of each.
const PATIENCE: Duration = Duration::from_mins(65);

pub(in crate::cli) async fn run(
    client: &Client,
    binary: Option<PathBuf>,
    output: OutputArgs,
) -> Result<(), CliError> {
    let binary = binary.map(|path| absolute(&path)).transpose()?;
    let request = UpgradeRequest { binary };
    let checking = async || Some("the new program checks configuration and cache".into());
    let (mut wait, asked) = (DaemonWait::new(WaitArgs { timeout: None, output }), Instant::now());
    let begun: UpgradeBegun = wait.until(client.post("/v1/upgrade", &request), checking, "").await?;
    let look = async || Some(state(client, &begun).await);
    let ended = wait.until(end(client, asked, &begun), look, "").await?;
    drop(wait);
    answer(output.json, &ended, print::upgrade)
}

/// The path as text, from / on.
fn absolute(path: &Path) -> Result<String, CliError> {
    let what = format!("{} cannot be the new program", path.display());
    let not_text = |_| std::io::Error::new(std::io::ErrorKind::InvalidInput, "the path is not UTF-8 text");
    let text =
        std::path::absolute(path).and_then(|whole| whole.into_os_string().into_string().map_err(not_text));
    text.map_err(|source| CliError::System { what, source })
}

async fn status(client: &Client) -> Option<Status> {
    timeout(ANSWER_PATIENCE, client.get("/v1/status")).await.ok()?.ok()
}

/// The upgrade that `begun` tells of, if `status` knows its end.
fn end_of(status: &Status, begun: &UpgradeBegun) -> Option<Upgrade> {
    status.last_upgrade.clone().filter(|last| last.began == begun.began)
}

/// The state of the upgrade, in words.
async fn state(client: &Client, begun: &UpgradeBegun) -> String {
    match status(client).await {
        Some(status) if end_of(&status, begun).is_some() => {
            let exports = &status.exports;
            format!("glidefs {} serves {} of {} exports", status.version, exports.serving, exports.total)
        }
        Some(_) => "the daemon ends its operations".into(),
        None => "the cache is closed, and opened by the new program".into(),
    }
}

/// Waits until one of the two programs serves. The daemon before was up when it was `asked`.
async fn end(client: &Client, asked: Instant, begun: &UpgradeBegun) -> Result<Upgrade, CliError> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = status(client).await.filter(|status| status.ready)
            && let Some(end) = judge(status, asked.elapsed(), begun)
        {
            return end;
        }
        sleep(PAUSE).await;
    }
    let reason = "no daemon answers: see the log".into();
    Err(CliError::NotUpgraded { reason })
}

/// Whether the daemon with `status`, which is ready, is the end of an upgrade asked for so long ago; `None` while the daemon before has not
/// ended.
fn judge(status: Status, asked: Duration, begun: &UpgradeBegun) -> Option<Result<Upgrade, CliError>> {
    let version = &status.version;
    let reason = match end_of(&status, begun) {
        Some(Upgrade { reason: Some(reason), .. }) => format!("glidefs {version} serves again: {reason}"),
        Some(upgrade) => return Some(Ok(upgrade)),
        None if status.uptime_seconds >= asked.as_secs() => return None,
        None => format!("glidefs {version} was started anew, and serves: see the log"),
    };
    Some(Err(CliError::NotUpgraded { reason }))
}
