//! Values in requests and answers: sizes, durability, moments; and the forms of answers that several have.

use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{KnownFormat, RefOr, Schema, SchemaFormat};

use crate::config::{self, ByteSize, TimeSpan};
use crate::properties::{self, Bound};

/// Media type of lines of JSON.
pub(in crate::api) const LINES_TYPE: &str = "application/x-ndjson";

/// Whether a figure may be left out of an answer.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) fn is_zero(figure: &u64) -> bool {
    *figure == 0
}

/// A size in a request: bytes as a number, or text with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size(pub ByteSize);

impl utoipa::PartialSchema for Size {
    fn schema() -> RefOr<Schema> {
        let bytes = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .minimum(Some(0))
            .description(Some("bytes"));
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("a number with KiB, MiB, GiB or TiB"))
            .examples([serde_json::json!("10GiB")]);
        OneOfBuilder::new().item(bytes).item(text).into()
    }
}

impl ToSchema for Size {}

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
    Bounded(RiskBound),
}

/// The bound of the data that can be lost with the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RiskBound {
    /// Most bytes at risk.
    pub max_bytes: u64,
    /// No write is acknowledged while an older write, acknowledged at least so many seconds ago, is not in the store.
    pub max_age_seconds: u64,
}

impl FromStr for Durability {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "local" => Ok(Self::Local),
            "store" => Ok(Self::Store),
            _ => bounded(text).ok_or("use local, store, or as bounded:64MiB,30s"),
        }
    }
}

fn bounded(text: &str) -> Option<Durability> {
    let (size, time) = text.strip_prefix("bounded:")?.split_once(',')?;
    let (size, time): (ByteSize, TimeSpan) = (size.parse().ok()?, time.parse().ok()?);
    Some(Durability::Bounded(RiskBound { max_bytes: size.0, max_age_seconds: time.0.as_secs() }))
}

impl From<Durability> for properties::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Local => Self::Local,
            Durability::Store => Self::Store,
            Durability::Bounded(RiskBound { max_bytes, max_age_seconds }) => {
                Self::Bounded(Bound { max_bytes, max_age: Duration::from_secs(max_age_seconds) })
            }
        }
    }
}

impl From<properties::Durability> for Durability {
    fn from(durability: properties::Durability) -> Self {
        match durability {
            properties::Durability::Local => Self::Local,
            properties::Durability::Store => Self::Store,
            properties::Durability::Bounded(Bound { max_bytes, max_age }) => {
                Self::Bounded(RiskBound { max_bytes, max_age_seconds: max_age.as_secs() })
            }
        }
    }
}

/// How a READ behaves that needs a store that is away: "wait", or a time such as "30s" after which the READ fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OnUnreachable(pub config::OnUnreachable);

/// The moment `unix_millis` milliseconds after 1970-01-01 UTC, such as `2025-01-31T23:59:59.123Z`.
pub(crate) fn rfc3339(unix_millis: u64) -> String {
    let moment = i64::try_from(unix_millis).ok().and_then(DateTime::from_timestamp_millis);
    // The last moment known to chrono stands for all later ones.
    moment.unwrap_or(DateTime::<Utc>::MAX_UTC).to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_prints_in_utc_with_milliseconds() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(millis), text);
        }
        assert!(rfc3339(u64::MAX).ends_with('Z'));
    }

    #[test]
    fn days_follow_each_other_without_gaps() {
        let day_of_month = |text: &str| text[8..10].parse::<u32>().unwrap();
        let mut last = rfc3339(0);
        for day in 1..200_000 {
            let next = rfc3339(day * 86_400_000);
            let (number, number_before) = (day_of_month(&next), day_of_month(&last));
            assert!(next > last && (number == number_before + 1 || number == 1), "{last} {next}");
            last = next;
        }
    }
}
