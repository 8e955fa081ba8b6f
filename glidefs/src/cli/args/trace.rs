//! The arguments of `glidefs trace`.

use clap::Args;

use crate::config::TimeSpan;
use crate::router::ExportName;

/// What the help says at the end.
pub(in crate::cli) const EXAMPLES: &str = "Examples:\n  \
    glidefs trace                                some requests of all exports, and all requests to the store\n  \
    glidefs trace vm-1 --slower-than 10ms        the slow requests of one export\n  \
    glidefs trace vm-1 --requests --one-in 1 --count 1000 --json > requests.jsonl\n  \
    glidefs trace --store                        requests to the store only\n\n\
    QUEUE: waits for the worker. WAIT: for a limit of the export, for log space or another bound, or for memory. COPY: the bytes go to \
    or come from the client. LOG: the local log is written or read. SYNC: data becomes stable on the local disk. STORE: the store \
    is waited for. REST: everything else. The columns add up to TOTAL; --json has each part and each step.\n\n\
    The daemon traces while this command runs, and no longer. Without --one-in the daemon aims at about 200 requests a second, of \
    the export where one is named.     Keys of the store are shown, never credentials.\n\n\
    Exit status: 0 by Ctrl-C, --count or --for, 1 where the daemon ends before.";

/// Which requests to show, and how.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct TraceArgs {
    /// The only export to show [default: all]
    #[arg(value_name = "EXPORT", value_parser = ExportName::new)]
    pub export: Option<ExportName>,
    /// Show requests to the store; without --requests, only these
    #[arg(long)]
    pub store: bool,
    /// Show requests of devices; without --store, only these
    #[arg(long)]
    pub requests: bool,
    /// Show only requests that took at least so long; all requests are looked at then, unless --one-in says otherwise
    #[arg(long, value_name = "TIME")]
    pub slower_than: Option<TimeSpan>,
    /// Trace one request in N, on average [default: chosen by the daemon, about 200 a second]
    #[arg(long, alias = "rate", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub one_in: Option<u32>,
    /// End after N requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after this time, at most 1h [default: 1h]
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub time: Option<TimeSpan>,
    /// Print a line of JSON for each request
    #[arg(long)]
    pub json: bool,
}

fn time(text: &str) -> Result<TimeSpan, String> {
    let span: TimeSpan = text.parse().map_err(|error| format!("{error}"))?;
    let is_whole = span.0.subsec_nanos() == 0;
    if is_whole && (1..=3600).contains(&span.0.as_secs()) {
        Ok(span)
    } else {
        Err("a trace lasts from 1s to 1h, in whole seconds".into())
    }
}
