//! The log: target, filter, and the text of errors.
//!
//! Owns the set-up of `tracing`, once, at start. Does not own the log lines. Rules for every log line: a constant message;
//! fields for everything that varies (`export`, `device_id`, `queue_id`, `offset_bytes`, `error`); nothing above `debug` for
//! a single request. A line that can repeat for the same trouble passes through a [`Repeat`](super::repeat::Repeat), and its
//! field `suppressed` counts the lines held back.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt::Write;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter cannot be parsed.
    #[error(
        "the log filter {filter:?} is not valid: use a level, or directives such as \"info,glidefs::router=debug\""
    )]
    Filter {
        /// The filter as given by the configuration or `RUST_LOG`.
        filter: String,
        /// The error of the parser.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// A log was set up before.
    #[error("the log was set up twice")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Sets up the log: lines that pass `filter` go with their fields to journald if standard error goes there, and as text to standard
/// error otherwise. `RUST_LOG` takes precedence over `filter`.
pub fn init(filter: &str) -> Result<(), LogError> {
    let registry = tracing_subscriber::registry().with(effective(filter)?);
    // Without journald's socket, standard error ends up in the journal as well, without the fields of a line.
    if is_journal(std::env::var_os("JOURNAL_STREAM").as_deref(), std_error_identity())
        && let Ok(layer) = tracing_journald::layer()
    {
        let layer = layer.with_field_prefix(Some("GLIDEFS".into())).with_syslog_identifier("glidefs".into());
        return registry.with(layer).try_init().map_err(LogError::Twice);
    }
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours);
    registry.with(layer).try_init().map_err(LogError::Twice)
}

/// Refuses a filter that [`init`] would refuse, and sets up nothing.
pub fn check(filter: &str) -> Result<(), LogError> {
    effective(filter).map(drop)
}

/// The filter of `RUST_LOG` if the variable is set, `filter` otherwise.
fn effective(filter: &str) -> Result<EnvFilter, LogError> {
    let from_environment = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    parse(from_environment.as_deref().unwrap_or(filter))
}

/// Lines of the AWS SDK that pass unless the filter names the SDK's parts: the SDK warns at every try of every request, and some
/// warnings show a token.
const SDK: &str =
    "aws_config=error,aws_runtime=error,aws_sdk=error,aws_smithy=error,aws_credential_types=error";

fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::try_new(format!("{SDK},{filter}"))
        .map_err(|source| LogError::Filter { filter: filter.into(), source })
}

/// Device and inode of standard error.
fn std_error_identity() -> Option<(u64, u64)> {
    let status = nix::sys::stat::fstat(std::io::stderr()).ok()?;
    Some((status.st_dev, status.st_ino))
}

/// Whether `journal_stream`, written `device:inode` by systemd, names the file of standard error.
fn is_journal(journal_stream: Option<&OsStr>, std_error: Option<(u64, u64)>) -> bool {
    let stream = journal_stream.and_then(OsStr::to_str).and_then(|text| text.split_once(':'));
    let stream = stream.and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
    stream.is_some() && stream == std_error
}

/// An error and its sources in one line: `error: cause: cause of the cause`.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Writing to a string does not fail.
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

/// The lines that `work` logs on this thread, without colours.
#[cfg(test)]
pub fn captured(work: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Lines(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let lines = Lines::default();
    let to = lines.clone();
    let layer = tracing_subscriber::fmt::layer().with_writer(move || to.clone()).with_ansi(false);
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_the_aws_sdk_do_not_pass_unless_they_are_asked_for() {
        let passes = |filter: &str| {
            let registry = tracing_subscriber::registry().with(parse(filter).unwrap());
            tracing::subscriber::with_default(registry, || {
                let sdk = tracing::enabled!(target: "aws_config::ecs", tracing::Level::WARN);
                (sdk, tracing::enabled!(target: "glidefs::store", tracing::Level::INFO))
            })
        };
        assert_eq!(passes("info"), (false, true));
        assert_eq!(passes("debug"), (false, true));
        assert_eq!(passes("warn,aws_config=warn"), (true, false));
    }

    #[test]
    fn journald_is_used_only_when_standard_error_is_its_stream() {
        let stream = |text: &str| is_journal(Some(OsStr::new(text)), Some((8, 1234)));
        assert!(stream("8:1234"));
        for text in ["8:1235", "9:1234", "", "8", "8:x"] {
            assert!(!stream(text), "{text}");
        }
        assert!(!is_journal(None, Some((8, 1234))) && !is_journal(None, None));
    }

    #[test]
    fn a_filter_that_is_none_is_refused_with_an_example() {
        assert!(parse("info,glidefs::router=debug").is_ok());
        assert!(parse("glidefs=loud").unwrap_err().to_string().contains("glidefs::router=debug"));
    }

    #[test]
    fn a_chain_names_every_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot open")]
        struct Outer(#[source] std::io::Error);
        assert_eq!(chain(&Outer(std::io::Error::other("disk on fire"))), "cannot open: disk on fire");
    }
}
