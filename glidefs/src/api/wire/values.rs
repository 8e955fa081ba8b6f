//! Values in requests and answers: sizes, moments; and the forms of answers that several have.

use std::borrow::Cow;

use chrono::{DateTime, SecondsFormat, Utc};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{KnownFormat, RefOr, Schema, SchemaFormat};

use crate::config::ByteSize;

/// A size in a request: bytes as a number, or text with a unit.
impl utoipa::PartialSchema for ByteSize {
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

impl ToSchema for ByteSize {
    fn name() -> Cow<'static, str> {
        "Size".into()
    }
}

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
