//! A look at a catalog beside the daemon, or without one.
//!
//! Owns the copy in memory. Does not own the tables. Invariant: the file is neither locked nor changed, so a daemon may start meanwhile;
//! then the copy may be torn, and is refused.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use redb::backends::InMemoryBackend;
use redb::{Database, StorageBackend};
use uuid::Uuid;

use super::error::CatalogError;
use super::tables::Contents;
use super::{Catalog, Loaded, PAGE_CACHE_BYTES};

/// The contents of a catalog, as far as a start depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogGlance {
    /// Exports, also those half deleted.
    pub exports: usize,
    /// Exports with a volume in the store.
    pub stored_exports: usize,
    /// Identity of the store with these volumes; `None` without such a volume, or before the store has told.
    pub store_id: Option<Uuid>,
}

impl Catalog {
    /// Reads a copy of the catalog at `path`, with the checks of a start. Blocks.
    pub fn glance(path: &Path) -> Result<CatalogGlance, CatalogError> {
        let open_error =
            |source: redb::Error| CatalogError::Open { path: path.into(), source: Arc::new(source) };
        let copy = InMemoryBackend::new();
        let copied = fs::read(path).and_then(|bytes| {
            copy.set_len(bytes.len() as u64)?;
            copy.write(0, &bytes)
        });
        copied.map_err(|error| open_error(redb::Error::Io(error)))?;
        let database = Database::builder().set_cache_size(PAGE_CACHE_BYTES).create_with_backend(copy);
        let database = database.map_err(|error| open_error(error.into()))?;
        let contents = Contents::of(path, &database)?;
        let store_id = contents.store_id;
        let Loaded { exports, volumes, .. } = Loaded::decode(path, contents)?;
        Ok(CatalogGlance {
            exports: exports.len(),
            stored_exports: volumes.len(),
            store_id: store_id.filter(|_| !volumes.is_empty()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::super::volume_record::tests::resume;
    use super::*;

    #[tokio::test]
    async fn a_glance_sees_the_exports_of_an_open_catalog_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.redb");
        let catalog = Catalog::open(&path).unwrap();
        catalog.create(record(1, "a"), Some(resume(1, 0))).await.unwrap();
        catalog.create(record(2, "b"), None).await.unwrap();
        let store_id = Uuid::from_u128(7);
        let handle = catalog.handle();
        tokio::task::spawn_blocking(move || handle.set_store_id(store_id)).await.unwrap().unwrap();
        let before = fs::read(&path).unwrap();
        let glance = Catalog::glance(&path).unwrap();
        assert_eq!(glance, CatalogGlance { exports: 2, stored_exports: 1, store_id: Some(store_id) });
        assert!(fs::read(&path).unwrap() == before, "the file has changed");
        drop(catalog);
    }

    #[test]
    fn a_file_that_is_no_catalog_is_refused_and_a_missing_one_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.redb");
        assert!(matches!(Catalog::glance(&path), Err(CatalogError::Open { .. })));
        assert!(!path.exists());
        fs::write(&path, [7; 9000]).unwrap();
        assert!(matches!(Catalog::glance(&path), Err(CatalogError::Open { .. })));
    }
}
