//! `glidefs status`, `drain` and `gc`: commands about the daemon as a whole.

use crate::api::wire::{Drained, GcReport, GcRequest, Memory, Status};
use crate::cli::args::common::WaitArgs;
use crate::cli::error::CliError;
use crate::cli::print::{self, answer, emit};
use crate::cli::wait::{DaemonWait, GOES_ON};
use crate::client::Client;
use crate::config::TimeSpan;

pub(in crate::cli) async fn status(client: &Client, json: bool) -> Result<(), CliError> {
    let status: Status = client.get("/v1/status").await?;
    if json {
        return answer(json, &status, print::status);
    }
    let memory: Memory = client.get("/v1/memory").await?;
    emit(format!("{}\n{}\n", print::status(&status), print::memory(&memory)).as_bytes())
}

pub(in crate::cli) async fn drain(client: &Client, args: WaitArgs) -> Result<(), CliError> {
    let mut wait = DaemonWait::new(args);
    let drained: Drained = wait.for_daemon(client, client.post("/v1/drain", &()), GOES_ON).await?;
    answer(args.output.json, &drained, print::drained)?;
    if drained.failed.is_empty() {
        Ok(())
    } else {
        Err(CliError::Refused(format!(
            "{} exports are not in the store as a whole: `glidefs export list` shows which; run it again when the store answers",
            drained.failed.len()
        )))
    }
}

pub(in crate::cli) async fn gc(
    client: &Client,
    dry_run: bool,
    grace: Option<TimeSpan>,
    args: WaitArgs,
) -> Result<(), CliError> {
    let request = GcRequest { dry_run, grace_seconds: grace.map(|grace| grace.0.as_secs()) };
    let ends = "the collection ends with the wait; the daemon collects again by itself";
    let mut wait = DaemonWait::new(args);
    let done: GcReport = wait.for_daemon(client, client.post("/v1/gc", &request), ends).await?;
    answer(args.output.json, &done, print::gc)
}
