//! Values with units: sizes, time spans, CPU lists, addresses; printing and parsing.
//!
//! Owns the text forms. Invariant: a printed value parses to the same value, and a refusal says which values are allowed.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::properties::{Bound, Durability, OnUnreachable};
use crate::store::{Hours, StoreUrl};
use crate::units::{ByteSize, millis};

/// Units of sizes, largest first.
const SIZE_UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
/// Units of time spans, largest first, in milliseconds.
const SPAN_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)];

/// The refusal of a text that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}: {allowed}")]
pub struct ValueError {
    text: String,
    what: &'static str,
    allowed: &'static str,
}

impl ValueError {
    fn new(text: &str, what: &'static str, allowed: &'static str) -> Self {
        // The text is cut, so that the refusal stays one readable line.
        let text = if text.chars().count() > 80 {
            text.chars().take(80).chain(['…']).collect()
        } else {
            text.into()
        };
        Self { text, what, allowed }
    }
}

impl FromStr for ByteSize {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const ALLOWED: &str =
            "use bytes, or a number with KiB, MiB, GiB or TiB such as 10GiB, below 2^64 bytes";
        with_unit(text, &SIZE_UNITS, Some(1))
            .map(Self)
            .ok_or_else(|| ValueError::new(text, "a size", ALLOWED))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SIZE_UNITS.iter().find(|(_, bytes)| self.0 >= *bytes && self.0.is_multiple_of(*bytes)) {
            Some((unit, bytes)) if *bytes > 1 => write!(f, "{}{unit}", self.0 / bytes),
            _ => write!(f, "{}", self.0),
        }
    }
}

/// A length of time, written as `10s`, `500ms`, `2min` or `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Duration);

impl FromStr for TimeSpan {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const ALLOWED: &str = "use a number with ms, s, min or h such as 10s";
        with_unit(text, &SPAN_UNITS, None)
            .map(|millis| Self(Duration::from_millis(millis)))
            .ok_or_else(|| ValueError::new(text, "a length of time", ALLOWED))
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = millis(self.0);
        match SPAN_UNITS.iter().find(|(_, unit)| millis >= *unit && millis.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", millis / unit),
            None => write!(f, "{millis}ms"),
        }
    }
}

impl FromStr for Durability {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "local" => Ok(Self::Local),
            "store" => Ok(Self::Store),
            _ => bounded(text).map(Self::Bounded).ok_or("use local, store, or as bounded:64MiB,30s"),
        }
    }
}

/// The bound in `text`, in whole seconds as in the API.
fn bounded(text: &str) -> Option<Bound> {
    let (size, time) = text.strip_prefix("bounded:")?.split_once(',')?;
    let (ByteSize(max_bytes), TimeSpan(time)) = (size.parse().ok()?, time.parse().ok()?);
    Some(Bound { max_bytes, max_age: Duration::from_secs(time.as_secs()) })
}

impl FromStr for OnUnreachable {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const ALLOWED: &str = "use wait, or a time of at least 1s after which a read fails, such as 30s";
        if text.trim() == "wait" {
            return Ok(Self::Wait);
        }
        let limit = text.parse().ok().filter(|TimeSpan(limit)| *limit >= Self::FAIL_AFTER_MIN);
        limit
            .map(|TimeSpan(limit)| Self::FailAfter(limit))
            .ok_or_else(|| ValueError::new(text, "what a read does without a store", ALLOWED))
    }
}

impl fmt::Display for OnUnreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait => f.write_str("wait"),
            Self::FailAfter(limit) => write!(f, "{}", TimeSpan(*limit)),
        }
    }
}

/// Parses `<digits>[.<digits>][ ]<unit>` in the smallest unit; a fraction must come out whole.
fn with_unit(text: &str, units: &[(&str, u64)], bare: Option<u64>) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match unit.trim_start() {
        "" => bare?,
        unit => units.iter().find(|(name, _)| *name == unit)?.1,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.len() > 9 {
        return None;
    }
    let whole = u128::from(whole.parse::<u64>().ok()?) * u128::from(factor);
    let tenths = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = if fraction.is_empty() { 0 } else { fraction.parse::<u128>().ok()? * u128::from(factor) };
    if part % tenths != 0 {
        return None;
    }
    u64::try_from(whole + part / tenths).ok()
}

/// A list of CPUs, written as `0-3,8`: ascending, each CPU once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

/// Highest CPU number in a list: the last one in the kernel's CPU mask.
pub const CPU_NUMBER_MAX: usize = 1023;

impl CpuList {
    /// The CPUs of the list, ascending.
    pub fn cpus(&self) -> &[usize] {
        &self.0
    }
}

impl FromStr for CpuList {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let error =
            || ValueError::new(text, "a list of CPUs", "use numbers up to 1023 and ranges such as 0-3,8");
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&n| n <= CPU_NUMBER_MAX);
            let (first, last) = number(first).zip(number(last)).ok_or_else(error)?;
            if first > last {
                return Err(error());
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match run {
                [only] => write!(f, "{comma}{only}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// The TCP address of the API, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(pub Option<SocketAddr>);

impl FromStr for Listen {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text == "none" {
            return Ok(Self(None));
        }
        let error = || ValueError::new(text, "an address", "use IP:PORT such as 127.0.0.1:9470, or none");
        text.parse().map(|address| Self(Some(address))).map_err(|_| error())
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("none"),
        }
    }
}

/// Implements serde through `FromStr` and `Display`.
macro_rules! as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}
as_text!(TimeSpan, OnUnreachable, CpuList, Listen, StoreUrl, Hours);

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    /// Parses text with a unit, or a number of bytes.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a size is a number of bytes or text such as \"10GiB\"")]
        enum Form {
            Bytes(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Bytes(bytes) => Ok(Self(bytes)),
            Form::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_read_with_every_unit_and_whole_fractions() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("1KiB", 1024),
            ("1.5KiB", 1536),
            ("10 GiB", 10 << 30),
            ("2TiB", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in [
            "",
            "GiB",
            "1GB",
            "1gib",
            "-1",
            "1.KiB",
            ".5KiB",
            "0.3B",
            "16777216TiB",
            "1e3",
            "1 0",
            "1.1.1KiB",
        ] {
            let message = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(message.contains("KiB, MiB, GiB or TiB"), "{text}: {message}");
        }
    }

    #[test]
    fn spans_need_a_unit() {
        assert_eq!("500ms".parse(), Ok(TimeSpan(Duration::from_millis(500))));
        assert_eq!("1.5s".parse(), Ok(TimeSpan(Duration::from_millis(1500))));
        assert_eq!("2min".parse(), Ok(TimeSpan(Duration::from_mins(2))));
        assert_eq!("wait".parse(), Ok(OnUnreachable::Wait));
        let half_a_minute = OnUnreachable::FailAfter(Duration::from_secs(30));
        assert_eq!(("30s".parse(), half_a_minute.to_string()), (Ok(half_a_minute), "30s".into()));
        assert!("500ms".parse::<OnUnreachable>().unwrap_err().to_string().contains("at least 1s"));
        assert!("10".parse::<TimeSpan>().unwrap_err().to_string().contains("such as 10s"));
    }

    #[test]
    fn cpu_lists_are_sorted_and_print_as_ranges() {
        let list: CpuList = "8,0-3,2".parse().unwrap();
        assert_eq!(list.cpus(), [0, 1, 2, 3, 8]);
        assert_eq!(list.to_string(), "0-3,8");
        for text in ["", "3-1", "a", "0-", "1024", "0-99999999999"] {
            assert!(text.parse::<CpuList>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(bytes in any::<u64>(), shift in 0_u32..44, millis in any::<u32>()) {
            let size = ByteSize(bytes >> shift << shift);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
            let span = TimeSpan(Duration::from_millis(millis.into()));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".{0,40}") {
            let _ = (text.parse::<ByteSize>(), text.parse::<TimeSpan>(), text.parse::<CpuList>());
            let _ = text.parse::<Listen>();
        }
    }
}
