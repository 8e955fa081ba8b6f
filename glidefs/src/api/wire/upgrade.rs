//! Upgrades of the daemon.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The wish for an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRequest {
    /// Absolute path of the new program. Left out for the program installed in place of the daemon's. Only root and the user of
    /// the daemon may name a program, and over the Unix socket only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<String>,
}

/// An upgrade to a program that was found fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UpgradeBegun {
    /// The version of the new program.
    pub version: String,
    /// When the upgrade began, RFC 3339 in UTC: tells this upgrade from others in `last_upgrade` of the status.
    #[schema(format = DateTime)]
    pub began: String,
}

/// An upgrade that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Upgrade {
    /// When the upgrade began, RFC 3339 in UTC.
    #[schema(format = DateTime)]
    pub began: String,
    /// The version of the program before.
    pub from: String,
    /// The version of the new program; left out for a program that did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub to: Option<String>,
    /// How the upgrade ended: "done", or "failed" where the program before serves on.
    pub outcome: String,
    /// Why the program before serves on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// How long requests of devices waited for the new program. Left out after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub pauses: Option<Pauses>,
}

/// How long requests of devices waited for a new program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Pauses {
    /// Devices that the new program has taken over.
    pub devices: u64,
    /// The longest pause of a device, seconds.
    pub longest_seconds: f64,
    /// The median of the pauses, seconds.
    pub median_seconds: f64,
}
