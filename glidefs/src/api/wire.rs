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
pub(super) mod values;

pub use self::answers::{
    Deleted, DeletedExport, Drained, Export, Flushed, Snapshot, StoredExport, StoredVolume,
};
pub use self::codes::ProblemCode;
pub use self::problem::{ErrorDetail, PROBLEM_TYPE, Problem};
pub use self::requests::{
    AttachQuery, Choices, CreateRequest, FlushQuery, ForkRequest, GcRequest, MetricsQuery, OpenRequest,
    PageQuery, RemoveQuery, ResizeRequest, RollbackRequest, SnapshotRequest, TraceQuery, UndeleteRequest,
};
pub use self::settings::Limits;
pub use self::status::{
    CacheStatus, DaemonStatus, ExportCounts, Memory, MemoryCategory, Pauses, Status, Upgrade, UpgradeBegun,
    UpgradeRequest, WorkerStatus,
};
pub use self::top::{Top, TopCache, TopExport, TopIo, TopRequests, TopRisk, TopStore, TopStoreOperation};
pub(crate) use self::values::rfc3339;
pub use crate::cache::AtRisk;
pub use crate::observe::trace::{Trace, TraceParts, TracedRequest};
pub use crate::properties::limits::LimitsChange;
pub use crate::properties::{Bound, Durability, OnUnreachable, PropertiesChange as SetRequest};
pub use crate::store::gc::GcReport;
pub use crate::store::{Condition, StoreState};
