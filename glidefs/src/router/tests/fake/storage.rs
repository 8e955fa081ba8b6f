//! A fake of cache and store that counts the volumes removed.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use crate::cache::Volume;
use crate::properties::Properties;
use crate::router::catalog::volume_record::tests::resume;
use crate::router::{Begun, ExportName, InitialContent, Storage};
use crate::store::volume::{Resume, VolumeError, VolumeStore};
use crate::store::{Operation, StoreError, VolumeId};
use crate::units::{ExportId, SECTOR_BYTES};

/// Cache and store.
#[derive(Default)]
pub struct FakeStorage {
    /// Exports removed from the cache.
    pub removed: Mutex<Vec<ExportId>>,
    /// Exports with a volume deleted from the store.
    pub deleted: Mutex<Vec<ExportId>>,
    /// Whether deletions in the store fail.
    pub keeps: Mutex<bool>,
    /// Whether deletions in the store never answer.
    pub hangs: Mutex<bool>,
    /// Whether the store refuses every request.
    pub refuses: Mutex<bool>,
    /// Whether there is a store.
    pub has_store: Mutex<bool>,
    /// Whether the cache has data of every export.
    pub has_data: Mutex<bool>,
    /// Exports with a volume made in the cache.
    pub made: Mutex<Vec<ExportId>>,
}

#[async_trait]
impl Storage for FakeStorage {
    fn volume(&self, id: ExportId, _size_bytes: u64, _resume: Option<&Resume>) -> Arc<Volume> {
        self.made.lock().unwrap().push(id);
        Arc::new(Volume::new(id))
    }

    fn is_at_rest(&self, _: ExportId, _: u64, _: Option<&Resume>) -> bool {
        !*self.has_data.lock().unwrap()
    }

    async fn begin(
        &self,
        _name: ExportName,
        content: InitialContent,
        _origin: Option<VolumeId>,
        properties: Properties,
        detached: bool,
    ) -> Result<Option<Begun>, VolumeError> {
        let has_store = *self.has_store.lock().unwrap();
        let mut resume = resume(1, 0);
        if let InitialContent::Blank(size) = content {
            resume.size_sectors = size.bytes() / SECTOR_BYTES;
        }
        Ok(has_store.then_some(Begun { resume, is_released: detached, properties }))
    }

    async fn regain(&self, _: ExportName, _: Arc<Volume>) -> Result<Option<Begun>, VolumeError> {
        Ok(None)
    }

    async fn rescue(
        &self,
        _: ExportName,
        _: Arc<Volume>,
        _: u64,
        _: Option<u64>,
    ) -> Result<Option<Resume>, VolumeError> {
        Ok(None)
    }

    fn link(&self, _: &Volume, _: u64, _: &Resume) {}

    async fn volumes(&self) -> Result<Option<VolumeStore>, StoreError> {
        if *self.refuses.lock().unwrap() {
            let key = "glidefs.json".into();
            let source = "403".into();
            return Err(StoreError::Refused { operation: Operation::Get, key, advice: "log in", source });
        }
        Ok(None)
    }

    async fn reach(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    async fn delete(&self, volume: Arc<Volume>) -> Result<(), VolumeError> {
        if *self.hangs.lock().unwrap() {
            return std::future::pending().await;
        }
        if *self.keeps.lock().unwrap() {
            return Err(VolumeError::NoSuchName { name: "a".parse().unwrap() });
        }
        self.deleted.lock().unwrap().push(volume.id());
        Ok(())
    }

    fn remove(&self, id: ExportId) {
        let mut removed = self.removed.lock().unwrap();
        // A second removal does nothing.
        if !removed.contains(&id) {
            removed.push(id);
        }
    }
}
