//! The wire types: requests and answers as JSON. The command line reads and writes the same types.
//!
//! Invariant: fields are added, never renamed; a request with an unknown field is refused.

#![allow(unused_qualifications, reason = "the derived schema of an optional struct has one")]

mod answers;
mod codes;
mod problem;
mod requests;
mod settings;
mod status;
mod top;
mod trace;
mod upgrade;
pub(super) mod values;

pub use self::answers::{
    AtRisk, Deleted, DeletedExport, Drained, Export, Flushed, Snapshot, StoredExport, StoredVolume,
};
pub use self::codes::ProblemCode;
pub use self::problem::{ErrorDetail, PROBLEM_TYPE, Problem};
pub use self::requests::{
    AttachQuery, Choices, CreateRequest, FlushQuery, ForkRequest, GcRequest, MetricsQuery, OpenRequest,
    PageQuery, RemoveQuery, ResizeRequest, RollbackRequest, SnapshotRequest, UndeleteRequest,
};
pub use self::settings::{Limits, LimitsChange, SetRequest};
pub use self::status::{
    CacheStatus, DaemonStatus, ExportCounts, Memory, MemoryCategory, Status, WorkerStatus,
};
pub use self::top::{Top, TopCache, TopExport, TopIo, TopRequests, TopRisk, TopStore, TopStoreOperation};
pub use self::trace::{Trace, TraceParts, TraceQuery, TracedRequest};
pub use self::upgrade::{Pauses, Upgrade, UpgradeBegun, UpgradeRequest};
pub(crate) use self::values::rfc3339;
pub use crate::properties::{Bound, Durability, OnUnreachable};
pub use crate::store::gc::GcReport;
pub use crate::store::{Condition, StoreState};
