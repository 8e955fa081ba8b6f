//! The router's view of the data of exports. The composition root implements it over the cache and the store.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::name::ExportName;
use super::size::ExportSize;
use crate::cache::Volume;
use crate::store::gc::{GcError, GcOptions, GcReport};
use crate::store::volume::{DeletedVolume, Resume, VolumeError};
use crate::units::ExportId;

/// Where the content of a new export comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// It is all zero, and has this size.
    Blank(ExportSize),
    /// The volume of its name in the store, which no other host has.
    Store,
    /// The volume of its name in the store, which is taken over from whoever wrote it before.
    TakeOver,
    /// A volume that was deleted from the store, which had this name.
    Deleted {
        /// The volume's name.
        of: ExportName,
    },
    /// The state of another volume in the store, which is left alone.
    Fork {
        /// The volume's name.
        of: ExportName,
        /// Its snapshot; its newest state when there is none.
        snapshot: Option<ExportName>,
    },
    /// What is here of another export, which this host has lost.
    Local {
        /// The export's name.
        of: ExportName,
    },
}

impl Source {
    /// Whether the content is that of the volume of the export's name, and stays when the export cannot be made.
    pub fn is_there(&self) -> bool {
        matches!(self, Self::Store | Self::TakeOver)
    }
}

/// Gives and forgets the data of exports.
pub trait Volumes: Send + Sync + 'static {
    /// The data of export `id`, which has `size_bytes`: what was recovered, or empty. It is tied to its counterpart in the
    /// store, if it has one, from `counterpart` on, or where the catalog says.
    fn volume(&self, id: ExportId, size_bytes: u64, counterpart: Option<&Resume>) -> Arc<Volume>;

    /// Makes or finds the counterpart of a new export in the store; `None` where there is no store.
    fn begin(&self, name: ExportName, source: Source) -> BoxFuture<'_, Result<Option<Resume>, VolumeError>>;

    /// Takes the counterpart of `volume`, which was lost, over from whoever has it. `None` where there is no store.
    ///
    /// # Errors
    /// [`VolumeError::OtherVolume`] when the store gives `name` to another volume, which is left alone.
    fn regain(
        &self,
        name: ExportName,
        volume: Arc<Volume>,
    ) -> BoxFuture<'_, Result<Option<Resume>, VolumeError>>;

    /// Makes a volume in the store with what is here of `volume`, which was lost: what its last flush left in the store, and what
    /// was not flushed. `None` where there is no store.
    fn rescue(
        &self,
        name: ExportName,
        volume: Arc<Volume>,
        size_sectors: u64,
    ) -> BoxFuture<'_, Result<Option<Resume>, VolumeError>>;

    /// Deletes the counterpart of an export in the store, if it has one and nobody else has taken it over.
    fn delete(&self, volume: Arc<Volume>) -> BoxFuture<'_, Result<(), VolumeError>>;

    /// Ties the data of an export that had no counterpart to the one it has now.
    fn tie(&self, volume: &Volume, size_bytes: u64, counterpart: &Resume);

    /// Asks the store whether it is there, and the one with the volumes of these exports: nothing about any volume.
    fn reach(&self) -> BoxFuture<'_, Result<(), VolumeError>>;

    /// Names of all volumes in the store; `None` where there is no store.
    fn names(&self) -> BoxFuture<'_, Result<Option<Vec<String>>, VolumeError>>;

    /// The volumes that were deleted and can be had back; `None` where there is no store.
    fn deleted(&self) -> BoxFuture<'_, Result<Option<Vec<DeletedVolume>>, VolumeError>>;

    /// Removes from the store what nothing uses any more; `None` where there is no store.
    fn collect(&self, options: GcOptions) -> BoxFuture<'_, Result<Option<GcReport>, GcError>>;

    /// Forgets the data of export `id`. Called when its device is gone and the catalog says that it is wanted no more.
    fn remove(&self, id: ExportId);
}
