//! What a volume promises on whichever host it is: durability, how READs end without a store, limits and weight.
//!
//! Owns the values, their bounds, and the change of values by a request. Does not own where the values are kept: in the catalog of
//! this host (`router`) and in the manifests of the volume (`store`). Invariant: allowed durations are
//! whole milliseconds, so they survive catalog and manifest.

pub mod limits;

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use self::limits::{LimitsChange, Settings};
use crate::units::millis;

/// The loss that an acknowledged FLUSH survives, and the bound of the data that can be lost with the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Durability {
    /// An acknowledged FLUSH survives loss of power.
    #[default]
    Local,
    /// An acknowledged FLUSH survives loss of the host: FLUSH waits for the store.
    Store,
    /// An acknowledged FLUSH survives loss of power, and the data lost with the host is bounded: writes are slowed near the
    /// bound, and wait at the bound.
    Bounded(Bound),
}

/// The bound of the data that can be lost with the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RiskBound)]
pub struct Bound {
    /// Most bytes at risk.
    pub max_bytes: u64,
    /// No write is acknowledged while an older write, acknowledged at least so many seconds ago, is not in the store.
    #[serde(rename = "max_age_seconds", serialize_with = "as_seconds", deserialize_with = "from_seconds")]
    #[schema(value_type = u64)]
    pub max_age: Duration,
}

fn as_seconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(span.as_secs())
}

fn from_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_secs)
}

impl Bound {
    /// Smallest bound of bytes: eight of the largest requests.
    pub const MAX_BYTES_MIN: u64 = 1 << 20;
    /// Smallest bound of time. Carrying a cut to the store takes some of the time.
    pub const MAX_AGE_MIN: Duration = Duration::from_secs(1);

    /// Whether an export may have this bound.
    pub fn is_allowed(&self) -> bool {
        self.max_bytes >= Self::MAX_BYTES_MIN
            && self.max_age >= Self::MAX_AGE_MIN
            && is_in_millis(self.max_age)
    }
}

/// Behaviour of a READ that needs the store while the store cannot be reached, or refuses this host. Its text, "wait" or a time such
/// as "30s", is made by `config`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnreachable {
    /// READs wait until the store answers.
    #[default]
    Wait,
    /// Fail after so long a wait.
    FailAfter(Duration),
}

impl OnUnreachable {
    /// Shortest time after which a READ may fail.
    pub const FAIL_AFTER_MIN: Duration = Duration::from_secs(1);

    /// Whether an export may have this behaviour.
    pub fn is_allowed(&self) -> bool {
        match *self {
            Self::Wait => true,
            Self::FailAfter(limit) => limit >= Self::FAIL_AFTER_MIN && is_in_millis(limit),
        }
    }
}

/// What a volume promises on each host that opens it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// The loss that acknowledged FLUSHes survive.
    pub durability: Durability,
    /// How a READ ends that needs a store which is away.
    pub on_unreachable: OnUnreachable,
    /// Limits, and weight against others.
    pub settings: Settings,
}

impl Properties {
    /// Whether each value is within its bounds.
    pub fn are_allowed(&self) -> bool {
        let is_bound_allowed = match &self.durability {
            Durability::Bounded(bound) => bound.is_allowed(),
            Durability::Local | Durability::Store => true,
        };
        let is_burst_whole = is_in_millis(self.settings.limits.burst);
        is_bound_allowed
            && self.on_unreachable.is_allowed()
            && self.settings.check().is_ok()
            && is_burst_whole
    }
}

/// Asks for other properties of an export. A property that is left out stays as the volume has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = SetRequest, example = json!({"durability": "store", "limits": {"write_iops": 5000, "read_iops": null}, "weight": 200}))]
pub struct PropertiesChange {
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

impl PropertiesChange {
    /// The properties that this change makes of `properties`.
    pub fn applied_to(&self, properties: &Properties) -> Properties {
        let Settings { limits, weight } = properties.settings;
        Properties {
            durability: self.durability.unwrap_or(properties.durability),
            on_unreachable: self.on_unreachable.unwrap_or(properties.on_unreachable),
            settings: Settings {
                limits: self.limits.applied_to(limits),
                // The router refuses a weight that is too large.
                weight: self.weight.map_or(weight, |weight| u16::try_from(weight).unwrap_or(u16::MAX)),
            },
        }
    }
}

fn is_in_millis(span: Duration) -> bool {
    Duration::from_millis(millis(span)) == span
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::ByteSize;

    #[test]
    fn left_out_null_and_a_value_are_told_apart_and_print_as_they_were() {
        for text in [
            "{}",
            r#"{"limits":{"read_iops":5,"write_iops":null}}"#,
            r#"{"durability":"store","on_unreachable":"30s"}"#,
            r#"{"limits":{"write_bytes_per_second":null,"burst_milliseconds":20},"weight":7}"#,
        ] {
            let request: PropertiesChange = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
        }
        let text = r#"{"read_iops":null,"read_bytes_per_second":"1MiB"}"#;
        let change: LimitsChange = serde_json::from_str(text).unwrap();
        assert_eq!(
            (change.read_iops, change.read_bytes_per_second),
            (Some(None), Some(Some(ByteSize(1 << 20))))
        );
        assert!(serde_json::from_str::<LimitsChange>(r#"{"read_ops": 5}"#).is_err());
    }
}
