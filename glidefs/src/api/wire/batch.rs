//! A batch: one operation on many exports, and the result for each.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answers::{ErrorDetail, Export};
use super::requests::CreateRequest;

/// Most exports of a batch.
pub const BATCH_EXPORTS_MAX: usize = 20_000;

/// Asks for one operation on many exports: at most 20,000.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BatchRequest {
    /// Create these exports.
    Create(Vec<CreateRequest>),
    /// Give the exports of these names a block device.
    Attach(Vec<String>),
    /// Remove the block devices of the exports of these names.
    Detach(Vec<String>),
    /// Delete the exports of these names.
    Delete(Vec<String>),
}

impl BatchRequest {
    /// Number of exports.
    pub fn exports(&self) -> usize {
        match self {
            Self::Create(requests) => requests.len(),
            Self::Attach(names) | Self::Detach(names) | Self::Delete(names) => names.len(),
        }
    }
}

/// The query of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchQuery {
    /// For detach and delete: whether to remove devices that are mounted, or held in another way.
    pub force: bool,
    /// For attach: whether to serve the cache's content although the store cannot confirm that this host still has the export.
    pub unconfirmed: bool,
}

/// The result for one export of a batch: a line of the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchResult {
    /// The name of the export, as in the request.
    pub name: String,
    /// The export after the operation. Left out after a failure, and after a deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<Export>,
    /// Whether the export existed before. Left out after a failure, an attach and a detach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existed: Option<bool>,
    /// Why the operation on this export failed. Left out after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetail>,
}
