//! The forwarding of spans to a collector, as the daemon begins and ends it. Nothing in a program without the feature `otel`.
//!
//! Does not own the way of spans (`otlp`). Invariants: files are read before the turn of a successor, and none on a control thread; no mistake about
//! forwarding keeps a device from being served, as only a check and a successor, whose daemon before goes on, refuse one.

use super::error::DaemonError;
use crate::api::TraceHub;
use crate::config::Config;

/// Forwarding, if configured: at first the way to the collector, and once begun the task that sends.
#[cfg(feature = "otel")]
pub(super) struct Forwarding {
    collector: Option<crate::otlp::Collector>,
    host_name: String,
    forwarder: Option<crate::otlp::Forwarder>,
}

#[cfg(feature = "otel")]
impl Forwarding {
    /// Reads the files that forwarding needs, and asks nobody. Refuses whatever keeps forwarding from beginning.
    pub fn prepare(config: &Config) -> Result<Self, DaemonError> {
        let collector = crate::otlp::Collector::of(&config.traces)?;
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(Self { collector, host_name, forwarder: None })
    }

    /// A daemon that sends no traces.
    pub fn none() -> Self {
        Self { collector: None, host_name: String::new(), forwarder: None }
    }

    /// Begins forwarding. Reads no file.
    pub fn begin(&mut self, config: &Config, traces: &TraceHub) {
        if let Some(collector) = self.collector.take() {
            let forwarder = crate::otlp::Forwarder::begin(collector, &config.traces, traces, &self.host_name);
            self.forwarder = Some(forwarder);
        }
    }

    /// Ends forwarding, within about a second and a half.
    pub async fn end(&mut self) {
        if let Some(forwarder) = &mut self.forwarder {
            forwarder.end().await;
        }
    }
}

/// No forwarding: the configuration refuses a collector.
#[cfg(not(feature = "otel"))]
pub(super) struct Forwarding;

#[cfg(not(feature = "otel"))]
#[allow(clippy::unnecessary_wraps, clippy::unused_async, clippy::unused_self, reason = "as with the feature")]
impl Forwarding {
    pub fn prepare(_: &Config) -> Result<Self, DaemonError> {
        Ok(Self)
    }

    pub fn none() -> Self {
        Self
    }

    pub fn begin(&mut self, _: &Config, _: &TraceHub) {}

    pub async fn end(&mut self) {}
}

impl Forwarding {
    /// Forwarding of a daemon that starts. A successor is refused, as the daemon before goes on; otherwise nobody else serves the devices,
    /// and what keeps forwarding from beginning is logged.
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
        assert!(Forwarding::prepare(&config).unwrap().collector.is_some());
        config.traces.otlp_headers_file = Some("/no/such/file".into());
        assert!(Forwarding::prepare(&config).is_err());
        assert!(crate::daemon::check(&config).is_err());
        let lines = crate::observe::logging::captured(|| {
            assert!(Forwarding::at_start(&config, false).unwrap().collector.is_none());
        });
        assert!(lines.contains("no traces are sent") && lines.contains("/no/such/file"), "{lines}");
        assert!(Forwarding::at_start(&config, true).is_err(), "the daemon before goes on");
    }
}
