//! The messages of a hand-over: one line of JSON each.
//!
//! Owns the form of the messages and the checks of received lines. Invariants: a line longer than [`LINE_BYTES_MAX`] is refused; a
//! message of another protocol is named as such, whatever else the line holds; texts are cut before sending, so that what this program
//! sends is never refused for its length.

use serde::{Deserialize, Serialize};

/// The version of the protocol. A program that speaks another version is refused, and the host is upgraded by a restart.
pub const PROTOCOL: u32 = 1;
/// Longest line, with the end of the line, bytes.
pub(super) const LINE_BYTES_MAX: usize = 16 << 10;
/// Most marks of a message.
pub(super) const MARKS_MAX: usize = 200;
/// Most tenures of a message.
pub(super) const TENURES_MAX: usize = 300;
/// Longest text of a message, bytes.
const TEXT_BYTES_MAX: usize = 2 << 10;

/// A message from one program to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum Message {
    /// The successor has read the configuration and checked everything that can be checked without a lock.
    Hello(Hello),
    /// Marks of exports, as many as fit. Several come, or none, before `Follow`.
    Marks {
        /// At most [`MARKS_MAX`] of all exports.
        marks: Vec<Mark>,
    },
    /// The old program has prepared the cache: the successor may load ahead.
    Follow {
        /// The version of the old program.
        version: String,
        /// When the upgrade began, milliseconds since 1970-01-01 UTC.
        began_unix_millis: u64,
    },
    /// The successor has done everything that can be done without a lock.
    Ready,
    /// Exports served by the old program, as many as fit. Several come, or none, before `Go`, for a successor that takes tenures.
    Tenures {
        /// At most [`TENURES_MAX`] of all exports.
        tenures: Vec<Tenure>,
    },
    /// The old program ends, and the successor is to take over.
    Go {
        /// When requests began to wait, nanoseconds of the monotonic clock.
        at_nanos: u64,
    },
    Alive,
    /// The successor has taken over.
    Serving,
    /// The standby ends: the successor is the main process of the service.
    Yours,
    Failed {
        /// The error, for the user.
        reason: String,
    },
}

/// The introduction of a successor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The protocol that the successor speaks.
    pub protocol: u32,
    /// The version of the successor.
    pub version: String,
    /// The cache and the socket of the successor.
    pub identity: Identity,
    /// Whether the successor understands [`Message::Tenures`].
    #[serde(default)]
    pub takes_tenures: bool,
}

/// The things of a daemon that a successor has to have in common with the daemon before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The path of the cache's directory, for messages to users.
    pub cache: String,
    /// Device and inode of the cache's directory.
    pub directory: (u64, u64),
    /// The socket of the API.
    pub socket: String,
    /// The TCP address of the API, or `none`. May differ, as far as the successor can have the address.
    pub listen: String,
    /// The URL of the store, or `none`. A store may be added.
    pub store: String,
    /// Of a successor the formats possibly written before the successor serves, of the program before the formats read.
    #[serde(default)]
    pub formats: Formats,
}

/// The newest versions of the formats in the cache's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formats {
    /// Of the cache as a whole.
    pub cache: u16,
    /// Of records in the log.
    pub records: u16,
    /// Of the catalog's tables and records.
    pub catalog: u64,
}

impl Default for Formats {
    /// The formats of programs with a hand-over whose `hello` is silent about formats.
    fn default() -> Self {
        Self { cache: 2, records: 2, catalog: 1 }
    }
}

impl Formats {
    /// A format of which `self` has a newer version than `read`: the name, the newer version, and the other one.
    pub(super) fn beyond(&self, read: &Self) -> Option<(&'static str, u64, u64)> {
        let pairs = [
            ("the cache", self.cache.into(), read.cache.into()),
            ("the log's records", self.records.into(), read.records.into()),
            ("the catalog", self.catalog, read.catalog),
        ];
        pairs.into_iter().find(|(_, own, other)| own > other)
    }
}

/// Of [`Identity`]: the value of a setting that is not set.
pub(super) const UNSET: &str = "none";

/// How far the store has the history of an export: the export's number, the last sequence number in the store, and the last one that may
/// not be read from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark(pub u32, pub u64, pub u64);

/// An export served by the program before until the hand-over: the export's number, and the epoch in which the host has the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenure(pub u32, pub u64);

/// Why a line is no message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    /// The line is longer than any message.
    #[error("a message is longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// The other program speaks another version of the protocol.
    #[error(
        "the other program speaks version {found} of the hand-over, and this one version {PROTOCOL}: upgrade by a restart instead"
    )]
    OtherProtocol {
        /// The version of the other program.
        found: u64,
    },
    /// The line is not a message of this protocol.
    #[error("{line:?} is no message of a hand-over")]
    NotUnderstood {
        /// The beginning of the line.
        line: String,
    },
}

impl Message {
    /// The message as a line, with the end of the line.
    pub fn to_line(&self) -> Vec<u8> {
        // Plain structs always serialise.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }

    /// The message in `line`, which may have the end of the line.
    pub fn parse(line: &[u8]) -> Result<Self, MessageError> {
        if line.len() > LINE_BYTES_MAX {
            return Err(MessageError::TooLong);
        }
        let not_understood = || MessageError::NotUnderstood { line: beginning(line) };
        // The version is judged before the other fields, because these may differ in another version.
        let value: serde_json::Value = serde_json::from_slice(line).map_err(|_| not_understood())?;
        if let Some(found) = value.get("protocol").and_then(serde_json::Value::as_u64)
            && found != u64::from(PROTOCOL)
        {
            return Err(MessageError::OtherProtocol { found });
        }
        serde_json::from_value(value).map_err(|_| not_understood())
    }

    /// The successor gives up because of `reason`.
    pub fn failed(reason: &str) -> Self {
        Self::Failed { reason: cut(reason).into() }
    }
}

/// As much of `text` as a message may carry.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

fn beginning(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Message {
        let identity = Identity {
            cache: "/c".into(),
            directory: (1, 2),
            socket: "/s".into(),
            listen: "127.0.0.1:9470".into(),
            store: UNSET.into(),
            formats: Formats { cache: 3, ..Formats::default() },
        };
        Message::Hello(Hello { protocol: PROTOCOL, version: "1.2.3".into(), identity, takes_tenures: true })
    }

    #[test]
    fn every_message_reads_back_as_it_was_sent_on_one_line() {
        for message in [
            hello(),
            Message::Follow { version: "0.1.0".into(), began_unix_millis: 7 },
            Message::Ready,
            Message::Tenures { tenures: vec![Tenure(1, 2), Tenure(u32::MAX, u64::MAX)] },
            Message::Go { at_nanos: u64::MAX },
            Message::Alive,
            Message::Serving,
            Message::Yours,
            Message::failed("a\nreason \u{fc}"),
        ] {
            let line = message.to_line();
            assert_eq!(line.iter().position(|&byte| byte == b'\n'), Some(line.len() - 1), "{message:?}");
            assert_eq!(Message::parse(&line), Ok(message));
        }
    }

    #[test]
    fn lines_that_are_no_message_are_refused_and_shown_in_part() {
        let deep = "[".repeat(1000);
        let many = "x".repeat(1000);
        for line in
            ["", "{}", "null", "ready", "{\"say\":\"go\"}", "{\"say\":\"run\"}", "\u{0}", &deep, &many]
        {
            let Err(MessageError::NotUnderstood { line: shown }) = Message::parse(line.as_bytes()) else {
                panic!("{line}")
            };
            assert!(shown.chars().count() <= 80);
        }
        for line in ["{\"say\":\"go\",\"at_nanos\":-1}", "{\"say\":\"go\",\"at_nanos\":1.5}"] {
            assert!(Message::parse(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn a_line_longer_than_any_message_is_refused() {
        let line = format!("{{\"say\":\"failed\",\"reason\":\"{}\"}}", "x".repeat(LINE_BYTES_MAX));
        assert_eq!(Message::parse(line.as_bytes()), Err(MessageError::TooLong));
    }

    #[test]
    fn another_protocol_is_named_whatever_else_the_line_holds() {
        let line = b"{\"say\":\"greetings\",\"protocol\":2,\"who\":[]}";
        assert_eq!(Message::parse(line), Err(MessageError::OtherProtocol { found: 2 }));
    }

    #[test]
    fn fields_of_later_versions_are_no_reason_to_refuse() {
        assert_eq!(Message::parse(b"{\"say\":\"ready\",\"more\":1}"), Ok(Message::Ready));
    }

    #[test]
    fn a_successor_that_says_nothing_of_tenures_takes_none() {
        let line = String::from_utf8(hello().to_line()).unwrap().replace(",\"takes_tenures\":true", "");
        let Ok(Message::Hello(hello)) = Message::parse(line.as_bytes()) else { panic!("{line}") };
        assert!(!hello.takes_tenures);
    }

    #[test]
    fn the_most_marks_and_tenures_fit_a_line() {
        let marks = Message::Marks { marks: vec![Mark(u32::MAX, u64::MAX, u64::MAX); MARKS_MAX] };
        let tenures = Message::Tenures { tenures: vec![Tenure(u32::MAX, u64::MAX); TENURES_MAX] };
        for message in [marks, tenures] {
            assert!(message.to_line().len() <= LINE_BYTES_MAX);
        }
    }

    #[test]
    fn the_longest_reason_fits_a_line() {
        // Six bytes for each of these in JSON.
        let line = Message::failed(&"\u{1}".repeat(100_000)).to_line();
        assert!(line.len() <= LINE_BYTES_MAX, "{}", line.len());
        assert!(Message::parse(&line).is_ok());
    }
}
