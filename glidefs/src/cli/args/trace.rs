//! The arguments of `glidefs trace`.

use clap::Args;

use crate::config::TimeSpan;
use crate::router::ExportName;

/// What the help says at the end.
pub(in crate::cli) const EXAMPLES: &str = "Examples:\n  \
    glidefs trace                           slow requests of late, and a sample of the others\n  \
    glidefs trace vm-1 --slower-than 50ms   the slow requests of one export\n  \
    glidefs trace --follow --json           each as it ends\n\n\
    QUEUE: waits for the worker. WAIT: for a limit of the export, for log space or another bound, or for memory. COPY: the bytes go to \
    or come from the client. LOG: the local log is written or read. SYNC: data becomes stable on the local disk. STORE: the store \
    is waited for. The columns add up to TOTAL; --json has each part.\n\n\
    The daemon always keeps the last 2,048 requests that took at least 10 ms or were sampled: about ten a second of each worker.";

/// Which requests to show, and how.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct TraceArgs {
    /// The only export to show [default: all]
    #[arg(value_name = "EXPORT", value_parser = ExportName::new)]
    pub export: Option<ExportName>,
    /// Show only requests that took at least so long
    #[arg(long, value_name = "TIME")]
    pub slower_than: Option<TimeSpan>,
    /// Go on with requests that end from now on, until Ctrl-C
    #[arg(long)]
    pub follow: bool,
    /// Print a line of JSON for each request
    #[arg(long)]
    pub json: bool,
}
