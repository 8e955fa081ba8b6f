//! Why an operation on an export failed.

use super::catalog::error::CatalogError;
use super::devices::DeviceError;
use super::size::SizeError;
use super::state::ForbiddenTransition;
use crate::cache::IoError;
use crate::properties::limits::OutOfBounds;
use crate::properties::{Bound, OnUnreachable};
use crate::store::NameError;
use crate::store::gc::GcError;
use crate::store::volume::VolumeError;

/// Why an operation on an export failed.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// The name breaks the rule of names.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The size breaks the rule of sizes.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A parameter is outside its bounds.
    #[error(transparent)]
    Parameter(#[from] OutOfBounds),
    /// There is no such export.
    #[error("there is no export {name:?}: `glidefs export list` shows those that exist")]
    NotFound { name: String },
    /// The name is taken by an export with other parameters.
    #[error(
        "export {name} exists with {parameter} {existing}, not {wanted}: \
         choose another name, or resize the export"
    )]
    OtherParameter {
        name: String,
        /// Name of the parameter that differs.
        parameter: &'static str,
        existing: u64,
        wanted: u64,
    },
    /// The name is taken by an export with other properties, the first of which is `property`.
    #[error(
        "export {name} exists with other properties ({property}): change them with `glidefs export set {name}`"
    )]
    OtherProperty { name: String, property: &'static str },
    /// READs would fail too soon: no store answers every READ within the requested time.
    #[error(
        "reads may fail after {} s of waiting for the store at the earliest",
        OnUnreachable::FAIL_AFTER_MIN.as_secs()
    )]
    FailAfter,
    /// The bound is too small for any store.
    #[error(
        "a bound on what is at risk must be at least {} bytes and {} s: the store needs time",
        Bound::MAX_BYTES_MIN, Bound::MAX_AGE_MIN.as_secs()
    )]
    Bound,
    /// The export would get smaller.
    #[error(
        "export {name} has {existing_bytes} bytes and cannot shrink to {wanted_bytes}: only growing is possible"
    )]
    Shrink { name: String, existing_bytes: u64, wanted_bytes: u64 },
    #[error("there are {max} exports, as many as allowed: delete some or raise `[exports] max`")]
    TooMany { max: usize },
    /// Every export id has been used.
    #[error("this cache directory has used up its export ids: start with a new one")]
    IdsExhausted,
    /// The export's deletion has begun and was not finished.
    #[error("export {name} is half deleted: delete it again")]
    HalfDeleted { name: String },
    /// The daemon died twice of work for the export.
    #[error(
        "the daemon died twice of export {name}, and serves the others without it: `glidefs export attach {name}` tries again: {death}"
    )]
    HeldBack {
        name: String,
        /// What the daemon said when it died last.
        death: String,
    },
    /// The export's device is mounted, or held in another way.
    #[error(
        "export {name} is in use and stays: {device} is {usage}. Unmount or release it first, or have what its users do next fail: \
         `glidefs export {action} {name} --force`"
    )]
    InUse {
        name: String,
        /// The requested operation: detach or delete.
        action: &'static str,
        device: String,
        /// How the device is used.
        usage: String,
    },
    /// The kernel does not say whether the export's device is mounted, or held in another way.
    #[error(
        "export {name} stays, as the kernel does not tell who uses its device: try again, or have what its users do next fail, if \
         there are any: `glidefs export {action} {name} --force`"
    )]
    UserUnknown {
        name: String,
        /// The requested operation: detach or delete.
        action: &'static str,
        #[source]
        source: DeviceError,
    },
    /// A deletion has begun and not ended.
    #[error("export {name} is half deleted, and left are {left}: delete it again")]
    PartlyDeleted {
        name: String,
        /// The parts that are left.
        left: &'static str,
        #[source]
        source: Box<RouterError>,
    },
    /// The export has a device, and the users of a device must not see the content change.
    #[error("export {name} has a device, or is about to: detach it first (glidefs export detach {name})")]
    NotDetached { name: String },
    /// The writeback of the export did not end in time.
    #[error(
        "the store has not taken what is new of export {name} for long: try again when the store answers; the log says why it does not"
    )]
    NotWrittenBack { name: String },
    /// Another host has the export, or the store does not have the export any more.
    #[error("export {name} is not this host's any more. {}", ways_out(name))]
    Lost { name: String, source: VolumeError },
    /// The store could not be asked whose the export is.
    #[error(
        "the store cannot be asked whether this host still has export {name}: try again when it can be reached, or serve what is \
         in the cache, which is old if another host took the export over (glidefs export attach {name} --unconfirmed)"
    )]
    Unconfirmed { name: String },
    /// Another host may have opened the export, and the store does not answer.
    #[error(
        "export {name} was released when it was detached, so another host may have opened it: attach it when the store can be \
         reached"
    )]
    Released {
        name: String,
        /// The store's error; `None` without an answer.
        #[source]
        source: Option<VolumeError>,
    },
    /// The export is written back, and could not be released.
    #[error("export {name} is in the store, and could not be released: another host has to take it over")]
    NotReleased {
        name: String,
        /// The store's error; `None` without an answer.
        #[source]
        source: Option<VolumeError>,
    },
    /// A deleted volume cannot be undeleted under the name of an existing export.
    #[error("there is an export {name}: have the volume back under another name (--as NEW)")]
    NameInUse { name: String },
    /// The export was lost, and another volume of the store has the export's name.
    #[error(
        "export {name} was lost, and what has its name in the store now is not the same: nothing was changed. Make another \
         export of what is here (glidefs export fork {name} NEW --local), or give that up (glidefs export delete {name}), which \
         leaves the store alone; open what has the name then (glidefs export open {name})"
    )]
    Replaced {
        name: String,
        /// The store's answer about the other volume.
        #[source]
        source: VolumeError,
    },
    /// There is only one history of the export, and this host has it.
    #[error(
        "export {name} is this host's, with one history: --discard-local and --local are for exports that another host has \
         taken over, or that have two histories"
    )]
    NotLost { name: String },
    /// Nothing of the export is in a store.
    #[error(
        "export {name} is not in a store: without `[store] url` in the configuration there is none, and otherwise the export was \
         made before there was one and is not brought to it yet: the log says why"
    )]
    NotInStore { name: String },
    /// The snapshot is needed to finish a rollback.
    #[error(
        "export {name} goes back to snapshot {snapshot}: attach it first, or roll it back to another one"
    )]
    SnapshotNeeded { name: String, snapshot: String },
    /// The snapshot of a rollback was deleted before the rollback was finished.
    #[error(
        "export {name} cannot go back to snapshot {snapshot}, which was deleted meanwhile: the export goes on with what the store \
         has; attach it, or roll it back to another snapshot"
    )]
    SnapshotGone { name: String, snapshot: String },
    /// The export's rollback has begun and was not finished.
    #[error(
        "export {name} is half rolled back: attach it, or roll it back again, when the store can be reached"
    )]
    HalfRolledBack { name: String },
    #[error("the daemon is stopping: try again when it runs")]
    Stopping,
    #[error("the operation on export {name} broke off: see the daemon's log")]
    Interrupted { name: String },
    /// The export's device could not be made, found or removed.
    #[error("cannot {action} the device of export {name}")]
    Device {
        /// The attempted step: attach, find, recover or remove.
        action: &'static str,
        name: String,
        #[source]
        source: DeviceError,
    },
    /// The export has grown, and the kernel could not be told.
    #[error(
        "export {name} has {size_bytes} bytes now, but its device keeps the old size until it is detached and attached"
    )]
    SizeNotTold {
        name: String,
        size_bytes: u64,
        #[source]
        source: DeviceError,
    },
    /// The store refused or failed. Without a name: a list of exports.
    #[error("{}", if name.is_empty() { "the exports in the store".into() } else { format!("export {name}") })]
    Store {
        name: String,
        #[source]
        source: VolumeError,
    },
    /// The operation needs a store, and none is configured.
    #[error("there is no store: set `[store] url` in the configuration and restart the daemon")]
    NoStore,
    #[error("garbage collection failed")]
    Collect(#[source] GcError),
    /// The export could not be written back.
    #[error("export {name} cannot be written back to the store")]
    Writeback {
        name: String,
        #[source]
        source: IoError,
    },
    /// The catalog could not be changed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The export's state does not allow the step: an error in glidefs itself.
    #[error(transparent)]
    State(#[from] ForbiddenTransition),
}

/// The ways out of a loss, for the user.
pub(super) fn ways_out(name: &impl std::fmt::Display) -> String {
    format!(
        "`glidefs export open {name} --discard-local` goes on here with what is in the store, once the export is detached on a host \
         that has it; `glidefs export fork {name} NEW --local` makes an export of what is here, `glidefs export fork {name} NEW` one of \
         what is in the store"
    )
}
