//! The limits of an export, in answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::properties::limits::{self, Limit};
use crate::units::millis;

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
            burst_milliseconds: millis(limits.burst),
        })
    }
}
