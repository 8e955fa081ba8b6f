//! The changes of the catalog.

use uuid::Uuid;

use super::record::ExportRecord;
use crate::cache::Start;
use crate::store::VolumeId;
use crate::store::volume::{Loss, ManifestHash, Past, Resume};
use crate::units::{ExportId, Seq};

/// One change of the catalog. Every change can be made twice with the same result.
#[derive(Debug)]
pub(in crate::router) enum Change {
    /// Adds or replaces the record of an export.
    Put(ExportRecord),
    /// Adds a new export, with its volume in the store if the export has one.
    Create(ExportRecord, Option<Resume>),
    /// Replaces the export of that id by an export with another id and no data in the cache.
    Replace(ExportId, ExportRecord, Resume),
    /// Records the volume in the store of an export without one.
    Link(ExportId, Resume),
    /// A newer state of the export's volume is in the store. No data up to the sequence number may be read from the log.
    WrittenBack(ExportId, Resume, Seq),
    /// No data up to these sequence numbers may be read from the log. Exports without a volume in the store are passed over.
    Evicted(Vec<(ExportId, Seq)>),
    Remove(ExportId),
    /// The identity of the store with the volumes.
    Store(Uuid),
    /// The last start, counted in the log too.
    Start(Start),
    /// The store is about to be asked to create this manifest.
    Intend(VolumeId, u64, ManifestHash),
    /// The store can never get this manifest.
    Withdraw(VolumeId, u64, ManifestHash),
    /// Removes the part of a volume's journal that a deleted volume leaves behind.
    Forget(Past),
    /// This host has lost this epoch of the volume.
    Lost(VolumeId, u64, Loss),
}
