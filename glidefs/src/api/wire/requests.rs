//! Requests: the JSON bodies and the queries.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{LimitsChange, SetRequest};
use crate::config::ByteSize;
use crate::observe::metrics::ExportHistograms;
use crate::properties::{Durability, OnUnreachable};

/// What a request for an export may choose beside the content.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Choices {
    /// The properties.
    pub properties: SetRequest,
    /// Number of queues of the device.
    pub queues: Option<u64>,
    /// Most requests in flight per queue.
    pub queue_depth: Option<u64>,
}

/// A request for an export: its own fields, and [`Choices`]. (A flattened struct would let unknown fields pass.)
macro_rules! for_an_export {
    ($(#[$meta:meta])* pub struct $Name:ident { $($own:tt)* }) => {
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$meta])*
        pub struct $Name {
            $($own)*
            /// The durability of an acknowledged FLUSH; when left out as the volume has it, and "local" for a new one.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub durability: Option<Durability>,
            /// How a READ behaves that needs a store that is away; when left out as the volume has it, and a READ of a new one waits.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(value_type = Option<String>, example = "30s")]
            pub on_unreachable: Option<OnUnreachable>,
            /// Limits of the export; those left out are as the volume has them, and a new one has none.
            #[serde(default, skip_serializing_if = "LimitsChange::is_empty")]
            pub limits: LimitsChange,
            /// The export's part where exports share, 1 to 1000; when left out as the volume has it, and 100 for a new one.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub weight: Option<u64>,
            /// Number of queues of the device; one when left out.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub queues: Option<u64>,
            /// Most requests in flight per queue; the configured default when left out.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub queue_depth: Option<u64>,
        }

        impl $Name {
            /// The request with `choices`.
            #[must_use]
            pub fn with(self, choices: Choices) -> Self {
                let Choices { properties, queues, queue_depth } = choices;
                let SetRequest { durability, on_unreachable, limits, weight } = properties;
                Self { durability, on_unreachable, limits, weight, queues, queue_depth, ..self }
            }

            /// The choices of the request.
            pub fn choices(&self) -> Choices {
                let Self { durability, on_unreachable, limits, weight, queues, queue_depth, .. } = *self;
                let properties = SetRequest { durability, on_unreachable, limits, weight };
                Choices { properties, queues, queue_depth }
            }
        }
    };
}

for_an_export! {
    /// Asks for a new export.
    #[schema(example = json!({"name": "vm-1", "size": "10GiB", "limits": {"write_iops": 5000, "write_bytes_per_second": "100MiB"}}))]
    pub struct CreateRequest {
        /// The name of the export: a letter or digit, then letters, digits, '.', '_' and '-'; 128 characters at most.
        pub name: String,
        /// The size of the export: a positive multiple of 512 bytes.
        pub size: ByteSize,
        /// Whether to create the export without a device.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub detached: bool,
    }
}

for_an_export! {
    /// Asks for a deleted export to be restored.
    #[schema(example = json!({"name": "vm-1-again"}))]
    pub struct UndeleteRequest {
        /// The new name of the export; the name before the deletion when left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
    }
}

for_an_export! {
    /// Asks for an export whose content is in the store already.
    #[schema(example = json!({"take_over": true}))]
    pub struct OpenRequest {
        /// Whether to go on with the content of the store and give up the data that only this host has, for an export that
        /// another host has taken over, or that has two histories. The device stays as it is then.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub discard_local: bool,
        /// Whether to take the export over from a host that has not released the export.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub take_over: bool,
    }
}

for_an_export! {
    /// Asks for a new export with the content of another one.
    #[schema(example = json!({"name": "vm-2", "snapshot": "monday"}))]
    pub struct ForkRequest {
        /// The name of the new export.
        pub name: String,
        /// The snapshot of the other export to begin with; the newest state when left out. If the other export is served here,
        /// data at risk is written back first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub snapshot: Option<String>,
        /// Whether to begin with the content on this host, for an export that another host has taken over, or that has two
        /// histories.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub local: bool,
        /// With `local`: the number of an older manifest to begin with, for an export without a device whose newest manifest is damaged.
        /// What was written back after that manifest is not in the new export.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub manifest: Option<u64>,
    }
}

/// The query of attaching an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct AttachQuery {
    /// Whether to serve the cache's content although the store cannot confirm that this host still has the export; false when left out.
    pub unconfirmed: bool,
    /// Whether to serve the export although the daemon has died twice of it; false when left out.
    pub held_back: bool,
}

/// The query of removing a device: detach or delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveQuery {
    /// Whether to remove a device that is mounted, or held in another way; false when left out.
    pub force: bool,
}

/// The query of writing back an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct FlushQuery {
    /// Whether to answer only when all data is in the store; true when left out.
    pub wait: bool,
}

impl Default for FlushQuery {
    fn default() -> Self {
        Self { wait: true }
    }
}

/// The query of a scrape.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MetricsQuery {
    /// The exports with histograms: "none", "busy" (those with a device that was used: more requests than a look for partitions and file
    /// systems) or "all"; when left out, the setting api.export_histograms, or all where one export is asked for.
    #[param(value_type = Option<String>, pattern = "^(none|busy|all)$")]
    pub histograms: Option<ExportHistograms>,
    /// The name of an export, for the figures of this export only.
    pub export: Option<String>,
}

/// Asks for an export to go back to a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"snapshot": "monday"}))]
pub struct RollbackRequest {
    /// The name of the snapshot to go back to.
    pub snapshot: String,
}

/// Asks for a new snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "monday"}))]
pub struct SnapshotRequest {
    /// The name of the snapshot, by the rule for names of exports.
    pub name: String,
}

/// Asks for a garbage collection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"dry_run": true}))]
pub struct GcRequest {
    /// Whether to change nothing and only list the objects to remove.
    #[serde(default)]
    pub dry_run: bool,
    /// How long an object stays after the end of its use, seconds; a day when left out, six hours at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
}

/// Asks for an export to grow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"size": "20GiB"}))]
pub struct ResizeRequest {
    /// The new size: a multiple of 512 bytes, no less than the present size.
    pub size: ByteSize,
}

/// The query of a list: which part of the list to answer with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Most entries of the answer; all when left out. The header `Link` of the answer has the address of the next page, while there is one.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The answer begins behind this entry, also when the entry is gone: the value in the header `Link` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// The query of the trace: which requests to show.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TraceQuery {
    /// The name of the only export; all exports when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// Only requests after this sequence number; all that are kept when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Only requests that took at least so many nanoseconds; all when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_than_nanoseconds: Option<u64>,
}
