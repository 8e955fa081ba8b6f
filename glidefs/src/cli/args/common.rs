//! Arguments shared by several commands.

use clap::Args;

use super::settings::PropertyArgs;
use crate::api::wire::Choices;
use crate::config::{ByteSize, TimeSpan, ValueError};
use crate::router::{ExportName, ExportSize, QUEUE_DEPTH_MAX, QUEUES_MAX};

/// A snapshot of an export.
#[derive(Debug, Args)]
pub(in crate::cli) struct SnapshotName {
    /// Name of the export
    #[arg(value_name = "NAME", value_parser = ExportName::new)]
    pub name: ExportName,
    /// Name of the snapshot
    #[arg(value_name = "SNAPSHOT", value_parser = ExportName::new)]
    pub snapshot: ExportName,
}

/// Settings of a new export, apart from the content.
#[derive(Clone, Copy, Debug, Args)]
pub(in crate::cli) struct DeviceArgs {
    #[command(flatten)]
    pub properties: PropertyArgs,
    /// Queues of the device [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    pub queues: Option<u16>,
    /// Requests in flight a queue [default: as configured]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUE_DEPTH_MAX)))]
    pub queue_depth: Option<u16>,
}

impl DeviceArgs {
    /// The settings for a request.
    pub fn choices(&self) -> Choices {
        Choices {
            properties: self.properties.request(),
            queues: self.queues.map(Into::into),
            queue_depth: self.queue_depth.map(Into::into),
        }
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Name {
    /// Name of the export
    #[arg(value_name = "NAME", value_parser = ExportName::new)]
    pub name: ExportName,
}

/// How a command waits for the daemon, and prints the answer.
#[derive(Clone, Copy, Debug, Args)]
pub(in crate::cli) struct WaitArgs {
    /// Wait for at most so long: exit status 3 then, and the work goes on
    #[arg(long, global = true, value_name = "TIME")]
    pub timeout: Option<TimeSpan>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Clone, Copy, Debug, Args)]
pub(in crate::cli) struct OutputArgs {
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

pub(in crate::cli) fn size(text: &str) -> Result<ExportSize, String> {
    let bytes: ByteSize = text.parse().map_err(|error: ValueError| error.to_string())?;
    ExportSize::new(bytes.0).map_err(|error| error.to_string())
}
