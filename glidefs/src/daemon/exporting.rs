//! The export of traces to a collector, as the daemon begins and ends one. Nothing in a program without the feature `otel`.
//!
//! Does not own the export (`otlp`).

use super::error::DaemonError;
use crate::api::Traces;
use crate::config::Config;

/// The export, if one is configured.
#[cfg(feature = "otel")]
pub(super) struct Exporting(Option<crate::otlp::Exporter>);

#[cfg(feature = "otel")]
impl Exporting {
    /// Refuses what [`Self::begin`] would refuse, and asks nobody.
    pub fn check(config: &Config) -> Result<(), DaemonError> {
        Ok(crate::otlp::check(&config.traces)?)
    }

    /// Begins the export. A file with headers that was changed behind the check keeps no device from being served.
    pub fn begin(config: &Config, traces: &Traces) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let begun = crate::otlp::Exporter::begin(&config.traces, traces, &host);
        Self(begun.unwrap_or_else(|error| {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "no traces are sent before the next start"
            );
            None
        }))
    }

    /// Ends the export, within about a second.
    pub async fn end(&mut self) {
        if let Some(exporter) = &mut self.0 {
            exporter.end().await;
        }
    }
}

/// No export: the configuration refuses one.
#[cfg(not(feature = "otel"))]
pub(super) struct Exporting;

#[cfg(not(feature = "otel"))]
#[allow(clippy::unnecessary_wraps, clippy::unused_async, clippy::unused_self, reason = "as with the feature")]
impl Exporting {
    pub fn check(_: &Config) -> Result<(), DaemonError> {
        Ok(())
    }

    pub fn begin(_: &Config, _: &Traces) -> Self {
        Self
    }

    pub async fn end(&mut self) {}
}
