//! Facts of the catalog.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use uuid::Uuid;

use super::patience::answer;
use crate::config::Config;
use crate::doctor::catalog::{CatalogFacts, CatalogState};
use crate::observe::chain;
use crate::router::Catalog;

/// The facts of the catalog of `config`. `is_served`: some process serves devices of the cache. `found`: the store at the URL.
pub(super) async fn gather(config: &Config, is_served: bool, found: Option<Uuid>) -> CatalogFacts {
    let directory = config.cache.dir.clone();
    let catalog = answer(move || state(&directory)).await.unwrap_or_else(CatalogState::Refused);
    CatalogFacts { catalog, is_served, has_store: config.store.url.is_some(), found }
}

fn state(directory: &Path) -> CatalogState {
    let path = directory.join("catalog.redb");
    match File::open(&path).map_err(|error| error.kind()) {
        Err(io::ErrorKind::NotFound) => return CatalogState::Absent,
        Err(io::ErrorKind::PermissionDenied) => return CatalogState::Forbidden,
        _ => {}
    }
    // A daemon takes both locks before it writes, so a copy is whole if there is no lock behind it.
    let glance = Catalog::glance(&path);
    if [&path, &directory.join("LOCK")].into_iter().any(|file| is_locked(file)) {
        return CatalogState::InUse;
    }
    match glance {
        Ok(glance) => CatalogState::Read(glance),
        Err(error) => CatalogState::Refused(chain(&error)),
    }
}

/// Whether some process holds a lock of `file`. Nothing is locked to find out, so no daemon fails to start.
fn is_locked(file: &Path) -> bool {
    let Ok(found) = fs::metadata(file) else { return false };
    // The last part is the inode; some file systems have another device number there than in their metadata.
    let inode = format!(":{}", found.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.split_whitespace().any(|field| field.ends_with(&inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_catalog_is_read_without_being_opened_and_not_judged_while_somebody_has_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalog.redb");
        assert!(matches!(state(folder.path()), CatalogState::Absent));
        let catalog = Catalog::open(&path).unwrap();
        assert!(matches!(state(folder.path()), CatalogState::InUse));
        drop(catalog);
        assert!(matches!(state(folder.path()), CatalogState::Read(glance) if glance.exports == 0));
        fs::write(&path, "nonsense").unwrap();
        assert!(matches!(state(folder.path()), CatalogState::Refused(_)));
        let lock = File::create(folder.path().join("LOCK")).unwrap();
        lock.lock().unwrap();
        assert!(matches!(state(folder.path()), CatalogState::InUse), "a daemon is starting");
    }
}
