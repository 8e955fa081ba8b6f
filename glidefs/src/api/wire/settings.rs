//! Properties of an export, in requests and answers.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::config::ByteSize;
use crate::properties::limits::{self, Limit};
use crate::properties::{Durability, OnUnreachable};

/// The limits of an export. A limit that is left out is not set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Most READ requests a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub read_iops: Option<u64>,
    /// Most WRITE, DISCARD and WRITE_ZEROES requests a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub write_iops: Option<u64>,
    /// Most bytes read a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub read_bytes_per_second: Option<u64>,
    /// Most bytes written a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub write_bytes_per_second: Option<u64>,
    /// An idle export saves up this much time's worth of each limit, and may use it at once: milliseconds.
    pub burst_milliseconds: u64,
}

impl Limits {
    /// The limits for an answer; `None` without any.
    pub(super) fn of(limits: &limits::Limits) -> Option<Self> {
        (*limits != limits::Limits::default()).then(|| Self {
            read_iops: limits.rate(Limit::ReadIops),
            write_iops: limits.rate(Limit::WriteIops),
            read_bytes_per_second: limits.rate(Limit::ReadBytes),
            write_bytes_per_second: limits.rate(Limit::WriteBytes),
            burst_milliseconds: u64::try_from(limits.burst.as_millis()).unwrap_or(u64::MAX),
        })
    }
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
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The changes in the order of [`Limit::ALL`].
    #[allow(clippy::option_option, reason = "as the fields")]
    pub(in crate::api) fn rates(&self) -> [Option<Option<u64>>; 4] {
        let bytes = |change: Option<Option<ByteSize>>| change.map(|rate| rate.map(|size| size.0));
        Limit::ALL.map(|limit| match limit {
            Limit::ReadIops => self.read_iops,
            Limit::WriteIops => self.write_iops,
            Limit::ReadBytes => bytes(self.read_bytes_per_second),
            Limit::WriteBytes => bytes(self.write_bytes_per_second),
        })
    }

    /// The new burst, if there is to be one.
    pub(in crate::api) fn burst(&self) -> Option<Duration> {
        self.burst_milliseconds.map(Duration::from_millis)
    }
}

/// Asks for other properties of an export. A property that is left out stays as the volume has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"durability": "store", "limits": {"write_iops": 5000, "read_iops": null}, "weight": 200}))]
pub struct SetRequest {
    /// The durability of an acknowledged FLUSH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// How a READ behaves that needs a store that is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub on_unreachable: Option<OnUnreachable>,
    /// The limits to change; the others stay.
    #[serde(skip_serializing_if = "LimitsChange::is_empty")]
    pub limits: LimitsChange,
    /// The export's part where exports share, 1 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
}

/// A field that is given, as null or as a value.
#[allow(clippy::option_option, reason = "as the fields")]
fn given<'a, T: Deserialize<'a>, D: Deserializer<'a>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_out_null_and_a_value_are_told_apart_and_print_as_they_were() {
        for text in [
            "{}",
            r#"{"limits":{"read_iops":5,"write_iops":null}}"#,
            r#"{"durability":"store","on_unreachable":"30s"}"#,
            r#"{"limits":{"write_bytes_per_second":null,"burst_milliseconds":20},"weight":7}"#,
        ] {
            let request: SetRequest = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
        }
        let text = r#"{"read_iops":null,"read_bytes_per_second":"1MiB"}"#;
        let change: LimitsChange = serde_json::from_str(text).unwrap();
        assert_eq!(change.rates(), [Some(None), None, Some(Some(1 << 20)), None]);
        assert!(serde_json::from_str::<LimitsChange>(r#"{"read_ops": 5}"#).is_err());
    }
}
