//! Requests: the JSON bodies and the queries.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::values::{Durability, OnUnreachable, Size};

/// Asks for a new export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRequest {
    /// Its name: a letter or digit, then letters, digits, '.', '_' and '-'; 128 characters at most.
    pub name: String,
    /// Its size: a positive multiple of 512 bytes.
    pub size: Size,
    /// What an acknowledged FLUSH survives; "local" when left out.
    #[serde(default)]
    pub durability: Durability,
    /// What a READ does that needs a store that is away; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub on_unreachable: Option<OnUnreachable>,
    /// Queues of its device; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u64>,
    /// Requests in flight a queue, at most; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u64>,
    /// Whether it gets no device before it is attached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
}

/// Asks for an export that was deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UndeleteRequest {
    /// Its new name; the one it had when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What an acknowledged FLUSH survives; "local" when left out.
    #[serde(default)]
    pub durability: Durability,
    /// What a READ does that needs a store that is away; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub on_unreachable: Option<OnUnreachable>,
    /// Queues of its device; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u64>,
    /// Requests in flight a queue, at most; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u64>,
}

/// Asks for an export whose content is in the store already.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenRequest {
    /// Whether to give up what is only here of an export that another host has taken over, or that has two histories; durability
    /// and device stay as they are then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discard_local: bool,
    /// Whether it is taken over from a host that has not released it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub take_over: bool,
    /// What an acknowledged FLUSH survives; "local" when left out.
    #[serde(default)]
    pub durability: Durability,
    /// What a READ does that needs a store that is away; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub on_unreachable: Option<OnUnreachable>,
    /// Queues of its device; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u64>,
    /// Requests in flight a queue, at most; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u64>,
}

/// Asks for a new export with the content of another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// Name of the new export.
    pub name: String,
    /// Snapshot of the other one; its newest state when left out. What it has not flushed is flushed first if it is served here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Whether to begin with what is here of an export that another host has taken over, or that has two histories.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub local: bool,
    /// What an acknowledged FLUSH survives; "local" when left out.
    #[serde(default)]
    pub durability: Durability,
    /// What a READ does that needs a store that is away; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub on_unreachable: Option<OnUnreachable>,
    /// Queues of its device; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u64>,
    /// Requests in flight a queue, at most; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u64>,
}

/// How to attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AttachQuery {
    /// Whether a store that cannot be asked whose the export is does not matter.
    pub unconfirmed: bool,
}

/// Asks for a device to be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoveQuery {
    /// Whether to remove it although it is mounted, or held in another way.
    pub force: bool,
}

/// How to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlushQuery {
    /// Whether the answer waits until all of it is in the store.
    pub wait: bool,
}

impl Default for FlushQuery {
    fn default() -> Self {
        Self { wait: true }
    }
}

/// Asks for an export to go back to a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// The snapshot.
    pub snapshot: String,
}

/// Asks for a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRequest {
    /// Its name, by the rule for exports.
    pub name: String,
}

/// Asks for garbage collection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GcRequest {
    /// Change nothing, say what would go.
    #[serde(default)]
    pub dry_run: bool,
    /// How long something stays that is not in use, seconds; a day when left out, six hours at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
}

/// Asks for an export to grow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeRequest {
    /// Its new size: a multiple of 512 bytes, no less than it has.
    pub size: Size,
}
