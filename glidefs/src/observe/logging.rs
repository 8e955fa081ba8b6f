//! The log: target, filter, the queue of lines, and the text of errors.
//!
//! Owns the set-up of `tracing`, once, at start, and the thread that writes. Does not own the log lines. Rules for every log line: a constant
//! message; fields for everything that varies (`export`, `device_id`, `queue_id`, `offset_bytes`, `error`); nothing above `debug` for
//! a single request. A line that can repeat for the same trouble passes through a [`Repeat`](super::repeat::Repeat), and its
//! field `suppressed` counts the lines held back. Invariant: nobody waits who logs, whatever journald or the reader of standard error does;
//! lines that find no room are lost and counted.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt::{Debug, Write as _};
use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

/// Most lines that wait to be written: some hundred bytes each.
const QUEUED_MAX: usize = 4096;
/// How long the end of the process waits for lines to be written.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);
/// Pause between looks whether all lines are written.
const FLUSH_PAUSE: Duration = Duration::from_millis(1);
/// Where journald takes entries: systemd.journal-fields(7), and "Native Journal Protocol" of systemd's documents.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Longest value of a field in the journal, bytes: an entry fits into a datagram.
const VALUE_BYTES_MAX: usize = 16 << 10;

/// The queue of the log of this process.
static LINES: OnceLock<Lines> = OnceLock::new();

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
    /// The thread that writes could not be started.
    #[error("the thread of the log could not be started")]
    Thread(#[source] io::Error),
}

/// Sets up the log: lines that pass `filter` go with their fields to journald if standard error goes there, and as text to standard
/// error otherwise. `RUST_LOG` takes precedence over `filter`, unless it is not valid.
pub fn init(filter: &str) -> Result<(), LogError> {
    let variable = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let wanted = variable.as_deref().map(parse).transpose();
    let refused = wanted.as_ref().err().map(|error| chain(error));
    let registry = tracing_subscriber::registry().with(match wanted {
        Ok(Some(wanted)) => wanted,
        _ => parse(filter)?,
    });
    // Without journald's socket, standard error ends up in the journal as well, without the fields of a line.
    let journal = is_journal(std::env::var_os("JOURNAL_STREAM").as_deref(), std_error_identity())
        .then(UnixDatagram::unbound)
        .and_then(Result::ok)
        .filter(|_| std::path::Path::new(JOURNAL).exists());
    let done = if let Some(journal) = journal {
        // Not connected, so that it outlives a restart of journald.
        let lines = Lines::start(move |entry| journal.send_to(entry, JOURNAL).map(drop))?;
        let lines = LINES.get_or_init(|| lines);
        registry.with(Journal(lines.clone())).try_init()
    } else {
        let lines = Lines::start(|line| io::stderr().write_all(line))?;
        let lines = LINES.get_or_init(|| lines).clone();
        let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        registry.with(fmt::layer().with_writer(move || lines.clone()).with_ansi(colours)).try_init()
    };
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        flush();
        before(panic);
    }));
    if let Some(error) = refused {
        tracing::warn!(error, "RUST_LOG is not used");
    }
    done.map_err(LogError::Twice)
}

/// Waits until the lines of the log are written, for [`FLUSH_PATIENCE`] at most: before the end of the process, which ends their thread.
pub fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush(FLUSH_PATIENCE);
    }
}

/// Lines that were lost because nobody took them.
pub fn lost_lines() -> u64 {
    LINES.get().map_or(0, |lines| lines.counts.lost.load(Ordering::Relaxed))
}

/// The queue of lines for the thread that writes them. Cheap to clone.
#[derive(Clone)]
struct Lines {
    queue: SyncSender<Vec<u8>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    queued: AtomicU64,
    /// Written, or lost at that.
    ended: AtomicU64,
    lost: AtomicU64,
}

impl Lines {
    /// A queue whose lines a thread of its own gives to `write`, one at a time.
    fn start(mut write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static) -> Result<Self, LogError> {
        let (queue, queued) = sync_channel::<Vec<u8>>(QUEUED_MAX);
        let counts = Arc::new(Counts::default());
        let ours = Arc::clone(&counts);
        let writing = move || {
            // Signals are for others. The kernel refuses no set.
            let _ = SigSet::all().thread_block();
            // The thread is older than the flag of the daemon, which tells of a refusal.
            let _ = super::memory::set_io_flusher();
            for line in queued {
                if write(&line).is_err() {
                    ours.lost.fetch_add(1, Ordering::Relaxed);
                }
                ours.ended.fetch_add(1, Ordering::Release);
            }
        };
        std::thread::Builder::new().name("log".into()).spawn(writing).map_err(LogError::Thread)?;
        Ok(Self { queue, counts })
    }

    fn put(&self, line: Vec<u8>) {
        let counted = match self.queue.try_send(line) {
            Ok(()) => &self.counts.queued,
            Err(_) => &self.counts.lost,
        };
        counted.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&self, patience: Duration) {
        let (queued, deadline) = (self.counts.queued.load(Ordering::Relaxed), Instant::now() + patience);
        while self.counts.ended.load(Ordering::Acquire) < queued && Instant::now() < deadline {
            std::thread::sleep(FLUSH_PAUSE);
        }
    }
}

/// Text: each call is a line.
impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines as entries of the journal: fields of lines are called `GLIDEFS_` and their name there.
struct Journal(Lines);

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = Entry::of(event.metadata());
        event.record(&mut entry);
        self.0.put(entry.0);
    }
}

/// An entry in journald's own protocol: each field a name, a newline, the length as 64 bits, the value and a newline.
struct Entry(Vec<u8>);

impl Entry {
    fn of(line: &Metadata<'_>) -> Self {
        let priority = match *line.level() {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "5",
            Level::DEBUG => "6",
            Level::TRACE => "7",
        };
        let mut entry = Self(Vec::with_capacity(512));
        entry.field("PRIORITY", priority);
        entry.field("SYSLOG_IDENTIFIER", "glidefs");
        entry.field("TARGET", line.target());
        if let (Some(file), Some(number)) = (line.file(), line.line()) {
            entry.field("CODE_FILE", file);
            entry.field("CODE_LINE", &number.to_string());
        }
        entry
    }

    fn field(&mut self, name: &str, value: &str) {
        let value = &value.as_bytes()[..value.floor_char_boundary(VALUE_BYTES_MAX)];
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'\n');
        self.0.extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.0.extend_from_slice(value);
        self.0.push(b'\n');
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            return self.field("MESSAGE", value);
        }
        self.field(&format!("GLIDEFS_{}", field.name().replace('.', "_").to_ascii_uppercase()), value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.record_str(field, &chain(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// Refuses a filter that [`init`] would refuse, and sets up nothing.
pub fn check(filter: &str) -> Result<(), LogError> {
    parse(filter).map(drop)
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
    let status = nix::sys::stat::fstat(io::stderr()).ok()?;
    Some((status.st_dev, status.st_ino))
}

/// Whether `journal_stream`, written `device:inode` by systemd, names the file of standard error.
fn is_journal(journal_stream: Option<&OsStr>, std_error: Option<(u64, u64)>) -> bool {
    let stream = journal_stream.and_then(OsStr::to_str).and_then(|text| text.split_once(':'));
    let stream = stream.and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
    stream.is_some() && stream == std_error
}

/// `text` in one line, without characters that a terminal obeys: for what a store, a daemon or a client has sent.
pub fn one_line(text: &str) -> String {
    let safe = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        // Marks that change the direction of the text after them are no control characters by name.
        '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(safe).collect()
}

/// As [`one_line`], each line of `text`.
pub fn printable(text: &str) -> String {
    text.split('\n').map(one_line).collect::<Vec<_>>().join("\n")
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
    struct Captured(Arc<std::sync::Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let lines = Captured::default();
    let to = lines.clone();
    let layer = fmt::layer().with_writer(move || to.clone()).with_ansi(false);
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
                let sdk = tracing::enabled!(target: "aws_config::ecs", Level::WARN);
                (sdk, tracing::enabled!(target: "glidefs::store", Level::INFO))
            })
        };
        assert_eq!(passes("info"), (false, true));
        assert_eq!(passes("debug"), (false, true));
        assert_eq!(passes("warn,aws_config=warn"), (true, false));
    }

    /// The thread that writes waits for the end of the sender.
    fn stuck() -> (Lines, std::sync::mpsc::Sender<()>) {
        let (go_on, wait) = std::sync::mpsc::channel();
        let write = move |_: &[u8]| {
            // An error is the end of the test.
            let _ = wait.recv();
            Ok(())
        };
        (Lines::start(write).unwrap(), go_on)
    }

    #[test]
    fn nobody_waits_for_a_log_that_is_stuck_and_what_is_lost_is_counted() {
        let (lines, go_on) = stuck();
        for _ in 0..=2 * QUEUED_MAX {
            lines.put(b"line".to_vec());
        }
        lines.flush(Duration::from_millis(10));
        // One may be with the thread.
        let lost = lines.counts.lost.load(Ordering::Relaxed);
        assert!((QUEUED_MAX as u64..=QUEUED_MAX as u64 + 1).contains(&lost), "{lost}");
        drop(go_on);
        lines.flush(Duration::from_mins(1));
        assert_eq!(lines.counts.ended.load(Ordering::Relaxed) + lost, 2 * QUEUED_MAX as u64 + 1);
    }

    #[test]
    fn lines_are_written_in_order_before_the_end_and_those_that_cannot_be_are_counted() {
        let (here, there) = UnixDatagram::pair().unwrap();
        let lines = Lines::start(move |line| here.send(line).map(drop)).unwrap();
        for line in [b"one", b"two"] {
            lines.put(line.to_vec());
        }
        lines.flush(Duration::from_mins(1));
        let mut read = [0; 8];
        for line in [b"one", b"two"] {
            assert_eq!(there.recv(&mut read).unwrap(), 3);
            assert_eq!(&read[..3], line);
        }
        drop(there);
        lines.put(b"three".to_vec());
        lines.flush(Duration::from_mins(1));
        assert_eq!(lines.counts.lost.load(Ordering::Relaxed), 1);
    }

    /// The fields of an entry, by journald's protocol.
    fn fields(mut entry: &[u8]) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut fields = Vec::new();
        while let Some(at) = entry.iter().position(|&byte| byte == b'\n') {
            let (length, rest) = entry[at + 1..].split_first_chunk::<8>().unwrap();
            let (value, rest) = rest.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap());
            fields.push((text(&entry[..at]), text(value)));
            entry = rest.strip_prefix(b"\n").unwrap();
        }
        fields
    }

    #[test]
    fn an_entry_of_the_journal_has_the_fields_of_the_line_whatever_they_hold() {
        let (here, there) = UnixDatagram::pair().unwrap();
        let lines = Lines::start(move |line| here.send(line).map(drop)).unwrap();
        let registry = tracing_subscriber::registry().with(Journal(lines.clone()));
        let long = "ä".repeat(VALUE_BYTES_MAX);
        tracing::subscriber::with_default(registry, || {
            tracing::warn!(export = "a\nPRIORITY=0", device_id = 7, long, "it is\nso");
        });
        lines.flush(Duration::from_mins(1));
        let mut read = vec![0; 256 << 10];
        let length = there.recv(&mut read).unwrap();
        let fields = fields(&read[..length]);
        let value = |name: &str| {
            let mut of_name = fields.iter().filter(|(field, _)| field == name);
            let (_, value) = of_name.next().unwrap();
            assert!(of_name.next().is_none(), "{name} twice");
            value.as_str()
        };
        assert_eq!((value("PRIORITY"), value("MESSAGE")), ("4", "it is\nso"));
        assert_eq!((value("GLIDEFS_EXPORT"), value("GLIDEFS_DEVICE_ID")), ("a\nPRIORITY=0", "7"));
        assert_eq!(value("SYSLOG_IDENTIFIER"), "glidefs");
        assert!(
            value("TARGET").starts_with("glidefs::observe") && value("CODE_FILE").ends_with("logging.rs")
        );
        assert_eq!(value("GLIDEFS_LONG").len(), VALUE_BYTES_MAX);
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
    fn text_from_outside_cannot_command_a_terminal_or_begin_a_line() {
        let text = "\u{1b}[2J\u{9b}1m\r\nglidefs: all is well\u{7}\u{202e}\u{2067}";
        let safe = "\u{fffd}[2J\u{fffd}1m  glidefs: all is well\u{fffd}\u{fffd}\u{fffd}";
        assert_eq!(one_line(text), safe);
        assert_eq!(printable(&format!("a\tb\n{text}")), format!("a b\n{}", safe.replacen("  ", " \n", 1)));
        assert_eq!(one_line("Gerät 7 – ok"), "Gerät 7 – ok");
    }

    #[test]
    fn a_chain_names_every_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot open")]
        struct Outer(#[source] io::Error);
        assert_eq!(chain(&Outer(io::Error::other("disk on fire"))), "cannot open: disk on fire");
    }
}
