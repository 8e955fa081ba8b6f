//! The trait through which the router reaches the data of exports. The composition root implements the trait over the cache and
//! the store.

use std::sync::Arc;

use async_trait::async_trait;

use super::ExportName;
use super::size::ExportSize;
use crate::cache::Volume;
use crate::properties::Properties;
pub use crate::store::volume::Begun;
use crate::store::volume::{Resume, VolumeError, VolumeStore};
use crate::store::{StoreError, VolumeId};
use crate::units::ExportId;

/// The content that a new export begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitialContent {
    /// Zeroes, of this size.
    Blank(ExportSize),
    /// The volume of the export's name in the store. Refused if another host has the volume.
    Store,
    /// The volume of the export's name in the store, taken over from the host that has the volume.
    TakeOver,
    /// A deleted volume of the store.
    Deleted {
        /// The volume's name before the deletion.
        of: ExportName,
    },
    /// A copy of another volume in the store, which stays as it is.
    Fork {
        /// The volume's name.
        of: ExportName,
        /// The snapshot to copy; the newest content when `None`.
        snapshot: Option<ExportName>,
    },
    /// The content that this host has of an export lost to another host or history, or of one whose newest manifest is damaged.
    Local {
        /// The export's name.
        of: ExportName,
        /// The number of an older manifest to begin with in place of the newest one, which cannot be read.
        manifest: Option<u64>,
    },
}

impl InitialContent {
    /// Whether an existing volume of the export's name is opened. Such a volume stays when the export cannot be created.
    pub fn opens_volume(&self) -> bool {
        matches!(self, Self::Store | Self::TakeOver)
    }
}

/// The data of exports, in the cache and in the store.
#[async_trait]
pub trait Storage: Send + Sync + 'static {
    /// The volume of export `id` in the cache: recovered, or empty. An export with a volume in the store is linked to that
    /// volume, from the state `resume` on. Call once for each export.
    fn volume(&self, id: ExportId, size_bytes: u64, resume: Option<&Resume>) -> Arc<Volume>;

    /// Whether export `id` of the catalog, of this size, needs no volume in the cache before the first use: the cache has no data
    /// of the export, and the store has nothing else than `resume` says, without damage and without a loss to another host or
    /// history.
    fn is_at_rest(&self, id: ExportId, size_bytes: u64, resume: Option<&Resume>) -> bool;

    /// Creates or opens the volume of a new export in the store; `None` without a store. A blank volume gets `properties`, any other
    /// one keeps the properties of its past, or of its origin. A new volume for an export that is to be `detached` may be released
    /// to other hosts from the beginning. The volume of an earlier creation that stopped is gone on with, released or not, and
    /// perhaps of another size or with other properties. `origin`: the volume that a fork is of, where an export of this host has the
    /// volume; otherwise the store gives the name a meaning.
    async fn begin(
        &self,
        name: ExportName,
        content: InitialContent,
        origin: Option<VolumeId>,
        properties: Properties,
        detached: bool,
    ) -> Result<Option<Begun>, VolumeError>;

    /// Takes the volume of a lost export over from the host that has the volume, with the properties that it has in the store. `None`
    /// without a store.
    ///
    /// # Errors
    /// [`VolumeError::OtherVolume`] when the store gives `name` to another volume, which is left alone.
    async fn regain(&self, name: ExportName, volume: Arc<Volume>) -> Result<Option<Begun>, VolumeError>;

    /// Creates a volume in the store with the content that this host has of a lost export: the last state that this host wrote
    /// back, or that of the older `manifest`, and the data at risk. The properties are those of the lost export. `None` without a
    /// store.
    async fn rescue(
        &self,
        name: ExportName,
        volume: Arc<Volume>,
        size_sectors: u64,
        manifest: Option<u64>,
    ) -> Result<Option<Resume>, VolumeError>;

    /// Deletes the volume of an export in the store, unless there is none, or another host has taken the volume over.
    async fn delete(&self, volume: Arc<Volume>) -> Result<(), VolumeError>;

    /// Links an export's volume in the cache to its new volume in the store.
    fn link(&self, volume: &Volume, size_bytes: u64, resume: &Resume);

    /// Asks the store for its identity: whether the store answers, and is the one with the exports' volumes. Asks about no volume.
    async fn reach(&self) -> Result<(), VolumeError>;

    /// The volumes of the store, once the place is known to be the store; `None` without a store.
    async fn volumes(&self) -> Result<Option<VolumeStore>, StoreError>;

    /// Removes the data of export `id` from the cache. Called when the device is gone and the catalog has the export as
    /// deleted, or not at all.
    fn remove(&self, id: ExportId);
}
