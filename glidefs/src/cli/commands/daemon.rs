//! `glidefs status`, `drain` and `gc`: commands about the daemon as a whole.

use crate::api::wire::{Drained, GcAnswer, GcRequest, Status};
use crate::cli::args::common::OutputArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::output::answer;
use crate::cli::print;
use crate::cli::wait::{Wait, all_at_risk};
use crate::config::TimeSpan;

/// `glidefs status`
pub(in crate::cli) async fn status(client: &Client, json: bool) -> Result<(), CliError> {
    let status: Status = client.get("/v1/status").await?;
    answer(json, &status, print::status)
}

/// `glidefs drain`
pub(in crate::cli) async fn drain(
    client: &Client,
    limit: Option<TimeSpan>,
    output: OutputArgs,
) -> Result<(), CliError> {
    let look = async || all_at_risk(client).await;
    let drained: Drained = Wait::new(output.json, limit)
        .until(client.post("/v1/drain", &()), look, "draining goes on: the same command waits again")
        .await?;
    answer(output.json, &drained, print::drained)?;
    if drained.failed.is_empty() {
        Ok(())
    } else {
        Err(CliError::NotDrained { exports: drained.failed.len() })
    }
}

/// `glidefs gc`
pub(in crate::cli) async fn gc(
    client: &Client,
    dry_run: bool,
    grace: Option<TimeSpan>,
    output: OutputArgs,
) -> Result<(), CliError> {
    let request = GcRequest { dry_run, grace_seconds: grace.map(|grace| grace.0.as_secs()) };
    let look = async || Some("the store is looked through".into());
    let done: GcAnswer =
        Wait::new(output.json, None).until(client.post("/v1/gc", &request), look, "").await?;
    answer(output.json, &done, print::gc)
}
