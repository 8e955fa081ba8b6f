//! Why an operation on an export failed.

use super::catalog::CatalogError;
use super::devices::DeviceError;
use super::entry::ways_out;
use super::name::NameError;
use super::size::SizeError;
use super::state::ForbiddenTransition;
use crate::cache::IoError;
use crate::store::gc::GcError;
use crate::store::volume::VolumeError;

/// Why an operation on an export failed.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// The name breaks the naming rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The size breaks the size rule.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A parameter is outside its bounds.
    #[error("{parameter} is {value}: use {min} to {max}")]
    Parameter {
        /// Name of the parameter.
        parameter: &'static str,
        /// What was asked for.
        value: u64,
        /// Least allowed value.
        min: u64,
        /// Greatest allowed value.
        max: u64,
    },
    /// There is no such export.
    #[error("there is no export {name:?}: `glidefs export list` shows those that exist")]
    NotFound {
        /// The name asked for.
        name: String,
    },
    /// The name is taken by an export with other parameters.
    #[error(
        "export {name} exists with {parameter} {existing}, not {wanted}: \
         choose another name, or resize or delete the export"
    )]
    Conflict {
        /// The name asked for.
        name: String,
        /// The parameter that differs.
        parameter: &'static str,
        /// What it is.
        existing: u64,
        /// What was asked for.
        wanted: u64,
    },
    /// The name is taken by an export with another durability.
    #[error("export {name} exists with another durability: choose another name, or delete the export")]
    OtherDurability {
        /// The name asked for.
        name: String,
    },
    /// The name is taken by an export whose READs do something else while the store is away.
    #[error("export {name} exists with another on_unreachable: choose another name, or delete the export")]
    OtherOnUnreachable {
        /// The name asked for.
        name: String,
    },
    /// A time after which READs fail that no store could keep.
    #[error("reads may fail after {min_seconds} s of waiting for the store at the earliest")]
    FailAfter {
        /// The shortest.
        min_seconds: u64,
    },
    /// A bound too small to keep.
    #[error(
        "a bound on what is at risk must be at least {max_bytes_min} bytes and {max_age_min_seconds} s: the store needs time"
    )]
    Bound {
        /// Smallest bound of bytes.
        max_bytes_min: u64,
        /// Smallest bound of time.
        max_age_min_seconds: u64,
    },
    /// An export never gets smaller.
    #[error(
        "export {name} has {existing_bytes} bytes and cannot shrink to {wanted_bytes}: only growing is possible"
    )]
    Shrink {
        /// The export.
        name: String,
        /// Its size.
        existing_bytes: u64,
        /// The size asked for.
        wanted_bytes: u64,
    },
    /// `[exports] max` is reached.
    #[error("there are {max} exports, as many as allowed: delete some or raise `[exports] max`")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// Every export id has been used.
    #[error("this cache directory has used up its export ids: start with a new one")]
    IdsExhausted,
    /// The export is being deleted, and that has failed half-way.
    #[error("export {name} is half deleted: delete it again")]
    HalfDeleted {
        /// The export.
        name: String,
    },
    /// The export's device is mounted, or held in another way.
    #[error(
        "export {name} is in use and stays: {device} is {usage}. Unmount or release it first, or have what its users do next fail: \
         `glidefs export {action} {name} --force`"
    )]
    InUse {
        /// The export.
        name: String,
        /// What was asked for: detach or delete.
        action: &'static str,
        /// Path of the device.
        device: String,
        /// How it is used.
        usage: String,
    },
    /// Nobody can tell whether the export's device is mounted, or held in another way.
    #[error(
        "export {name} stays, as the kernel does not tell who uses its device: try again, or have what its users do next fail, if \
         there are any: `glidefs export {action} {name} --force`"
    )]
    UserUnknown {
        /// The export.
        name: String,
        /// What was asked for: detach or delete.
        action: &'static str,
        /// What the kernel said.
        #[source]
        source: DeviceError,
    },
    /// The export could not be deleted to the end.
    #[error("export {name} is half deleted, and left are {left}: delete it again")]
    Undeleted {
        /// The export.
        name: String,
        /// What is left of it.
        left: &'static str,
        /// What went wrong.
        #[source]
        source: Box<RouterError>,
    },
    /// The export has a device, and what uses it must not see its content change.
    #[error("export {name} has a device, or is about to: detach it first (glidefs export detach {name})")]
    NotDetached {
        /// The export.
        name: String,
    },
    /// The store did not take what it does not have of the export.
    #[error(
        "the store has not taken what is new of export {name}: the log says why; fork the snapshot and delete the export if \
         that cannot be mended"
    )]
    NotFlushed {
        /// The export.
        name: String,
    },
    /// The store has it as another host's, or not at all.
    #[error("export {name} is not this host's any more. {}", ways_out(name))]
    Lost {
        /// The export.
        name: String,
        /// What the store says.
        source: VolumeError,
    },
    /// The store was not there to say whose the export is.
    #[error(
        "the store cannot be asked whether this host still has export {name}: try again when it can be reached, or serve what is \
         in the cache, which is old if another host took the export over (glidefs export attach {name} --unconfirmed)"
    )]
    Unconfirmed {
        /// The export.
        name: String,
    },
    /// Another host may have opened the export, and the store cannot say.
    #[error(
        "export {name} was released when it was detached, so another host may have opened it: attach it when the store can be \
         reached"
    )]
    Released {
        /// The export.
        name: String,
        /// What the store said, if it answered.
        #[source]
        source: Option<VolumeError>,
    },
    /// The store has all of the export and was not told that another host may open it.
    #[error("export {name} is in the store, and could not be released: another host has to take it over")]
    NotReleased {
        /// The export.
        name: String,
        /// What the store said, if it answered.
        #[source]
        source: Option<VolumeError>,
    },
    /// A volume cannot come back under the name of an export.
    #[error("there is an export {name}: have the volume back under another name (--as NEW)")]
    NameInUse {
        /// The name.
        name: String,
    },
    /// The export was lost, and the store gives its name to another volume.
    #[error(
        "export {name} was lost, and what has its name in the store now is not the same: nothing was changed. Make another \
         export of what is here (glidefs export fork {name} NEW --local), or give that up (glidefs export delete {name}), which \
         leaves the store alone; open what has the name then (glidefs export open {name})"
    )]
    Replaced {
        /// The export.
        name: String,
        /// What has the name.
        #[source]
        source: VolumeError,
    },
    /// There is only one history of the export, and this host has it.
    #[error(
        "export {name} is this host's, with one history: --discard-local and --local are for exports that another host has \
         taken over, or that have two histories"
    )]
    NotLost {
        /// The export.
        name: String,
    },
    /// Nothing of the export is in a store.
    #[error(
        "export {name} is not in a store: without `[store] url` in the configuration there is none, and otherwise the export was \
         made before there was one and is not brought to it yet: the log says why"
    )]
    NotInStore {
        /// The export.
        name: String,
    },
    /// A snapshot is needed for what has begun.
    #[error(
        "export {name} goes back to snapshot {snapshot}: attach it first, or roll it back to another one"
    )]
    SnapshotNeeded {
        /// The export.
        name: String,
        /// The snapshot.
        snapshot: String,
    },
    /// The snapshot that the export was to go back to was deleted meanwhile.
    #[error(
        "export {name} cannot go back to snapshot {snapshot}, which was deleted meanwhile: the export goes on with what the store \
         has; attach it, or roll it back to another snapshot"
    )]
    SnapshotGone {
        /// The export.
        name: String,
        /// The snapshot.
        snapshot: String,
    },
    /// The export is on its way back to a snapshot.
    #[error(
        "export {name} is half rolled back: attach it, or roll it back again, when the store can be reached"
    )]
    HalfRolledBack {
        /// The export.
        name: String,
    },
    /// The daemon is stopping.
    #[error("the daemon is stopping: try again when it runs")]
    Stopping,
    /// The operation broke off.
    #[error("the operation on export {name} broke off: see the daemon's log")]
    Interrupted {
        /// The export.
        name: String,
    },
    /// The export's device could not be made, found or removed.
    #[error("cannot {action} the device of export {name}")]
    Device {
        /// What was tried: attach, find, recover or remove.
        action: &'static str,
        /// The export.
        name: String,
        /// What went wrong.
        #[source]
        source: DeviceError,
    },
    /// The export has grown, and the kernel could not be told.
    #[error(
        "export {name} has {size_bytes} bytes now, but its device keeps the old size until it is detached and attached"
    )]
    SizeNotTold {
        /// The export.
        name: String,
        /// Its new size.
        size_bytes: u64,
        /// What went wrong.
        #[source]
        source: DeviceError,
    },
    /// The store refused or failed.
    #[error("the store cannot serve export {name}")]
    Store {
        /// The export.
        name: String,
        /// What went wrong.
        #[source]
        source: VolumeError,
    },
    /// Something was asked for that needs a store.
    #[error("there is no store: set `[store] url` in the configuration and restart the daemon")]
    NoStore,
    /// What nothing uses could not be removed from the store.
    #[error("garbage collection failed")]
    Collect(#[source] GcError),
    /// What was written could not be brought to the store.
    #[error("export {name} cannot be flushed to the store")]
    Flush {
        /// The export.
        name: String,
        /// What went wrong.
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
