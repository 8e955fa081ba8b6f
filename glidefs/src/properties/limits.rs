//! The limits and the weight of an export: how much of the host the export may use.
//!
//! Owns the values, which values are allowed, and the change of values. Does not own the counting of requests
//! (`export::throttle`). Invariant: settings which passed [`Settings::check`] let every request through within seconds.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::fair;
use crate::units::{ByteSize, REQUEST_BYTES_MAX, millis};

/// One of the four limits of an export. `write` stands for WRITE, DISCARD and WRITE_ZEROES; only a WRITE has bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Number of READs a second.
    ReadIops,
    /// Number of writes a second.
    WriteIops,
    /// Bytes of READs a second.
    ReadBytes,
    /// Bytes of WRITEs a second.
    WriteBytes,
}

impl Limit {
    /// All limits, each at the index of its number.
    pub const ALL: [Self; 4] = [Self::ReadIops, Self::WriteIops, Self::ReadBytes, Self::WriteBytes];

    /// The name in the API, the catalog and the metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadIops => "read_iops",
            Self::WriteIops => "write_iops",
            Self::ReadBytes => "read_bytes_per_second",
            Self::WriteBytes => "write_bytes_per_second",
        }
    }

    /// Whether the limit counts bytes, and not operations.
    pub const fn counts_bytes(self) -> bool {
        matches!(self, Self::ReadBytes | Self::WriteBytes)
    }

    /// Lowest value: the largest request takes a second.
    pub const fn min(self) -> u64 {
        if self.counts_bytes() { REQUEST_BYTES_MAX as u64 } else { 1 }
    }

    /// Highest value: above, the share of one request is too short for a count in nanoseconds.
    pub const fn max(self) -> u64 {
        if self.counts_bytes() { 64 << 30 } else { 10_000_000 }
    }
}

/// Most operations and bytes of an export a second, and the burst beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In the order of [`Limit::ALL`]; `None` without this limit.
    rates: [Option<u64>; 4],
    /// An idle export saves up this much time's worth of each limit, and may use it at once.
    pub burst: Duration,
}

impl Limits {
    /// A tenth of a second, as long as a late wake-up of a worker takes at most, and 1 % of ten seconds.
    pub const BURST_DEFAULT: Duration = Duration::from_millis(100);
    /// Shortest burst: a worker which sleeps for less than the burst loses nothing of the limit.
    pub const BURST_MIN: Duration = Duration::from_millis(10);
    /// Longest burst which can be chosen.
    pub const BURST_MAX: Duration = Duration::from_hours(1);

    /// No limit yet, and the burst of those to be set.
    pub const fn unlimited(burst: Duration) -> Self {
        Self { rates: [None; 4], burst }
    }

    /// The value of one limit.
    pub const fn rate(&self, limit: Limit) -> Option<u64> {
        self.rates[limit as usize]
    }

    /// Sets or ends one limit.
    pub const fn set_rate(&mut self, limit: Limit, rate: Option<u64>) {
        self.rates[limit as usize] = rate;
    }

    /// Whether no limit is set.
    pub fn is_unlimited(&self) -> bool {
        self.rates == [None; 4]
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::unlimited(Self::BURST_DEFAULT)
    }
}

/// The limits of an export, and its weight against other exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Most operations and bytes a second.
    pub limits: Limits,
    /// The export's part where exports share: twice the weight gets twice as much.
    pub weight: u16,
}

/// A change of limits. A limit that is left out stays as before, null ends the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[allow(clippy::option_option, reason = "left out, null and a number are three requests")]
pub struct LimitsChange {
    /// Most READs a second, 1 to 10000000.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub read_iops: Option<Option<u64>>,
    /// Most WRITE, DISCARD and WRITE_ZEROES requests a second, 1 to 10000000.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub write_iops: Option<Option<u64>>,
    /// Most bytes read a second, 128 KiB to 64 GiB.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ByteSize>)]
    pub read_bytes_per_second: Option<Option<ByteSize>>,
    /// Most bytes written a second, 128 KiB to 64 GiB.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ByteSize>)]
    pub write_bytes_per_second: Option<Option<ByteSize>>,
    /// An idle export saves up this much time's worth of each limit, and may use it at once: milliseconds, 10 to 3600000; 100 unless changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_milliseconds: Option<u64>,
}

impl LimitsChange {
    /// Whether nothing is to change.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The limits after this change of `limits`.
    pub fn applied_to(&self, mut limits: Limits) -> Limits {
        let bytes = |change: Option<Option<ByteSize>>| change.map(|rate| rate.map(|size| size.0));
        for (limit, change) in [
            (Limit::ReadIops, self.read_iops),
            (Limit::WriteIops, self.write_iops),
            (Limit::ReadBytes, bytes(self.read_bytes_per_second)),
            (Limit::WriteBytes, bytes(self.write_bytes_per_second)),
        ] {
            if let Some(rate) = change {
                limits.set_rate(limit, rate);
            }
        }
        limits.burst = self.burst_milliseconds.map_or(limits.burst, Duration::from_millis);
        limits
    }
}

/// A field that is given, as null or as a value.
#[allow(clippy::option_option, reason = "as the fields")]
fn given<'a, T: Deserialize<'a>, D: Deserializer<'a>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A parameter outside its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{parameter} is {value}: use {min} to {max}")]
pub struct OutOfBounds {
    /// Name of the parameter, as in the API.
    pub parameter: &'static str,
    /// The value which was refused.
    pub value: u64,
    /// Lowest value that is allowed.
    pub min: u64,
    /// Highest value that is allowed.
    pub max: u64,
}

impl Settings {
    /// Weight of an export for which none was chosen.
    pub const WEIGHT_DEFAULT: u16 = fair::WEIGHT_DEFAULT;
    /// Highest weight; the lowest is 1.
    pub const WEIGHT_MAX: u16 = fair::WEIGHT_MAX;

    /// Checks each value against the bounds.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let rates = Limit::ALL
            .into_iter()
            .filter_map(|limit| Some((limit.name(), self.limits.rate(limit)?, limit.min(), limit.max())));
        let burst = (
            "burst_milliseconds",
            millis(self.limits.burst),
            millis(Limits::BURST_MIN),
            millis(Limits::BURST_MAX),
        );
        let weight = ("weight", self.weight.into(), 1, Self::WEIGHT_MAX.into());
        for (parameter, value, min, max) in rates.chain([burst, weight]) {
            if value < min || value > max {
                return Err(OutOfBounds { parameter, value, min, max });
            }
        }
        Ok(())
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self { limits: Limits::default(), weight: Self::WEIGHT_DEFAULT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_taken_between_its_bounds_and_refused_beyond() {
        for limit in Limit::ALL {
            for (rate, allowed) in
                [(limit.min() - 1, false), (limit.min(), true), (limit.max(), true), (limit.max() + 1, false)]
            {
                let mut settings = Settings::default();
                settings.limits.set_rate(limit, Some(rate));
                assert_eq!(settings.check().is_ok(), allowed, "{limit:?} {rate}");
                assert_eq!(settings.limits.rate(limit), Some(rate));
            }
        }
        for (weight, allowed) in [(0, false), (1, true), (1000, true), (1001, false)] {
            assert_eq!(Settings { weight, ..Settings::default() }.check().is_ok(), allowed, "{weight}");
        }
        for (millis, allowed) in [(9, false), (10, true), (3_600_000, true), (3_600_001, false)] {
            let limits = Limits::unlimited(Duration::from_millis(millis));
            let refused = Settings { limits, ..Settings::default() }.check().err();
            assert_eq!(refused.is_none(), allowed, "{millis}");
            assert!(refused.is_none_or(|refused| refused.parameter == "burst_milliseconds"));
        }
    }
}
