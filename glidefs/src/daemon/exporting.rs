//! The export of traces to a collector, as the daemon begins and ends one. Nothing in a program without the feature `otel`.
//!
//! Does not own the export (`otlp`). Invariants: files are read before the turn of a successor, and none on a control thread; no mistake about
//! the export keeps a device from being served, as only a check and a successor, whose daemon before goes on, refuse one.

use super::error::DaemonError;
use crate::api::Traces;
use crate::config::Config;

/// The export, if one is configured: at first the way to the collector, and once begun the task that sends.
#[cfg(feature = "otel")]
pub(super) struct Exporting {
    collector: Option<crate::otlp::Collector>,
    host_name: String,
    exporter: Option<crate::otlp::Exporter>,
}

#[cfg(feature = "otel")]
impl Exporting {
    /// Reads what the export needs of files, and asks nobody. Refuses whatever keeps the export from beginning.
    pub fn prepare(config: &Config) -> Result<Self, DaemonError> {
        let collector = crate::otlp::Collector::of(&config.traces)?;
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(Self { collector, host_name, exporter: None })
    }

    /// The export of a daemon that sends no traces.
    pub fn none() -> Self {
        Self { collector: None, host_name: String::new(), exporter: None }
    }

    /// Begins the export. Reads no file.
    pub fn begin(&mut self, config: &Config, traces: &Traces) {
        if let Some(collector) = self.collector.take() {
            let exporter = crate::otlp::Exporter::begin(collector, &config.traces, traces, &self.host_name);
            self.exporter = Some(exporter);
        }
    }

    /// Ends the export, within about a second and a half.
    pub async fn end(&mut self) {
        if let Some(exporter) = &mut self.exporter {
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
    pub fn prepare(_: &Config) -> Result<Self, DaemonError> {
        Ok(Self)
    }

    pub fn none() -> Self {
        Self
    }

    pub fn begin(&mut self, _: &Config, _: &Traces) {}

    pub async fn end(&mut self) {}
}

impl Exporting {
    /// The export of a daemon that starts. A successor is refused, as the daemon before goes on; otherwise nobody else serves the devices,
    /// and what keeps the export from beginning is logged.
    pub fn at_start(config: &Config, is_successor: bool) -> Result<Self, DaemonError> {
        Self::prepare(config).or_else(|error| {
            if is_successor {
                return Err(error);
            }
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "devices are served, and no traces are sent before the next start"
            );
            Ok(Self::none())
        })
    }
}

#[cfg(all(test, feature = "otel"))]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_in_the_file_of_headers_refuses_a_check_and_only_is_logged_at_a_start() {
        let mut config = Config::default();
        config.traces.otlp_endpoint = Some("http://127.0.0.1:9".into());
        assert!(Exporting::prepare(&config).unwrap().collector.is_some());
        config.traces.otlp_headers_file = Some("/no/such/file".into());
        assert!(Exporting::prepare(&config).is_err());
        assert!(crate::daemon::check(&config).is_err());
        let lines = crate::observe::logging::captured(|| {
            assert!(Exporting::at_start(&config, false).unwrap().collector.is_none());
        });
        assert!(lines.contains("no traces are sent") && lines.contains("/no/such/file"), "{lines}");
        assert!(Exporting::at_start(&config, true).is_err(), "the daemon before goes on");
    }
}
