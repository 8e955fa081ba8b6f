//! The store, opened from the configuration.
//!
//! Owns how the store is connected, and which errors keep the daemon from starting. Does not own requests (`store`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::error::DaemonError;
use super::storage::StoreSide;
use crate::cache::{Cache, Triggers};
use crate::config::Config;
use crate::router::Catalog;
use crate::store::volume::VolumeStoreOptions;
use crate::store::{
    self, Backend, BlockCache, BlockCacheError, BlockCacheOptions, HostName, StoreError, StoreOptions,
    StoreUrl, UploadLimit, process_variables,
};

/// Most memory for the last uploaded packs: enough for one level of a volume with packs of the usual length.
const RECENT_BYTES_MAX: u64 = 288 << 20;
/// Memory for packs being made: eight cuts on the way, with a pack each.
const UPLOAD_BYTES_MAX: u64 = 256 << 20;
/// Memory for blocks that READs need: a quarter for READs that need nothing from the store, the rest for all others.
const READ_BYTES_MAX: u64 = 64 << 20;
/// Memory of the block cache, beside its space on the disk.
const CLEAN_MEMORY_BYTES: usize = 64 << 20;
/// Data at risk of an export with which it is written back.
const FLUSH_BYTES: u64 = 32 << 20;
/// How long the start waits for the store, and each export for the store to say which host has the export. Also the pause before
/// the place is looked at again.
pub(super) const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// Connects to the store, if one is configured, and starts the writeback. A place that is not found to be the store is looked at
/// again; it keeps only a daemon without exports from starting. A daemon that `follows` another one keeps no device waiting for the
/// first answer of a store used by the other one: until the place is known to be this store, nothing is sent there.
pub(super) fn connect_store(
    config: &Config,
    catalog: &Catalog,
    cache: &Cache,
    runtime: &tokio::runtime::Runtime,
    stopped: &watch::Receiver<bool>,
    follows: bool,
) -> Result<Option<Arc<StoreSide>>, DaemonError> {
    let Some(url) = &config.store.url else { return Ok(None) };
    let is_known = catalog.store_id().is_some();
    let has_exports = is_known || !catalog.known().is_empty();
    let backend = connect(url, is_known, has_exports)?;
    let options = StoreOptions {
        shutdown: Some(stopped.clone()),
        checked_first: true,
        upload_limit: UploadLimit {
            bytes_per_second: config.store.upload_bps.map(|limit| limit.0),
            hours: config.store.upload_hours,
        },
        ..StoreOptions::default()
    };
    let store = store::Store::over(backend, options);
    let block_cache = open_block_cache(config, runtime)?;
    let pack_bytes_max = config.store.pack_memory.0;
    let upload_bytes_max = (pack_bytes_max - pack_bytes_max / 3).min(UPLOAD_BYTES_MAX);
    let options = VolumeStoreOptions {
        block_cache: Some(block_cache),
        notes: catalog.journal(),
        upload_bytes_max: usize::try_from(upload_bytes_max).unwrap_or(usize::MAX),
        recent_bytes_max: RECENT_BYTES_MAX,
        pack_bytes_max,
        read_bytes_max: READ_BYTES_MAX,
        host: host_name(),
        ..VolumeStoreOptions::new(cache.writer())
    };
    let volumes = store::volume::VolumeStore::new(store, options);
    let link = cache.writeback_queue(runtime.handle().clone());
    let triggers = Triggers {
        size_bytes: FLUSH_BYTES,
        age: config.store.flush_age.0,
        quiet: config.store.flush_interval.0,
    };
    runtime.spawn(cache.writeback(Arc::clone(&link), triggers).run(stopped.clone()));
    let side = Arc::new(StoreSide::new(volumes, link, catalog));
    let is_kept_waiting = !(follows && is_known);
    if is_kept_waiting {
        runtime.block_on(look(&side, url, has_exports))?;
    }
    let first = if is_kept_waiting { STORE_PATIENCE } else { Duration::ZERO };
    runtime.spawn(find(Arc::clone(&side), first, STORE_PATIENCE));
    Ok(Some(side))
}

/// Looks for the store until it is found: for the first time after `first`, and then after each `pause`.
async fn find(side: Arc<StoreSide>, first: Duration, pause: Duration) {
    tokio::time::sleep(first).await;
    while let Err(error) = side.check().await {
        tell(&error);
        tokio::time::sleep(pause).await;
    }
}

fn tell(error: &StoreError) {
    let error = error as &dyn std::error::Error;
    tracing::warn!(error, "the store cannot be used; it is asked again");
}

/// Checks the place of the store, as far as the store answers in time. With exports no answer is an error: devices are served
/// from the cache, and nothing is sent to the place.
async fn look(side: &StoreSide, url: &StoreUrl, has_exports: bool) -> Result<(), StoreError> {
    match tokio::time::timeout(STORE_PATIENCE, side.check()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) if has_exports || error.is_transient() => {
            tell(&error);
        }
        Ok(Err(error)) => return Err(error),
        Err(_) => tracing::warn!(%url, "the store does not answer; it is asked again"),
    }
    Ok(())
}

/// The place of the store. With `is_known` the place has held a store, and no directory is made. With exports, a place that cannot
/// be set up counts as away: the file system may not be mounted yet, or the files with the credentials may be broken. Without, an
/// error is a mistake in the configuration.
fn connect(url: &StoreUrl, is_known: bool, has_exports: bool) -> Result<Backend, StoreError> {
    let variables = process_variables();
    match Backend::connect(url, &variables, !is_known) {
        Err(error @ StoreError::Setup { .. }) if has_exports => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the store cannot be set up; it is tried again");
            Backend::later(url, &variables)
        }
        connected => connected,
    }
}

/// The host name of the kernel.
fn host_name() -> HostName {
    HostName::nearest(&std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default())
}

/// Opens the block cache, in memory alone if the disk has no room.
fn open_block_cache(
    config: &Config,
    runtime: &tokio::runtime::Runtime,
) -> Result<BlockCache, BlockCacheError> {
    let options = BlockCacheOptions {
        directory: (config.cache.clean_size.0 > 0).then(|| config.cache.dir.clone()),
        memory_bytes_max: CLEAN_MEMORY_BYTES,
        disk_bytes_max: config.cache.clean_size.0,
    };
    match runtime.block_on(BlockCache::open(options.clone())) {
        Err(error @ BlockCacheError::Directory { .. }) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "data that is read back from the store is kept in memory only");
            runtime.block_on(BlockCache::open(BlockCacheOptions { directory: None, ..options }))
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cache::{Budgets, Directory, Known, MonotonicClock, OnFull, Options};
    use crate::units::SEGMENT_BYTES;

    const OTHER: &str = r#"{"format":9}"#;

    /// A host with its store in `place`.
    fn side(directory: &Path, place: StoreUrl, runtime: &tokio::runtime::Handle) -> Arc<StoreSide> {
        let catalog = Catalog::open(&directory.join("catalog.redb")).unwrap();
        let disk = Arc::new(Directory::new(directory));
        let options = Options {
            size_bytes: 16 * SEGMENT_BYTES,
            segment_bytes: SEGMENT_BYTES,
            shards: 1,
            on_full: OnFull::Wait,
            checksums_bytes_max: 0,
            mapped_bytes_max: 0,
            budgets: Budgets::default(),
            hands: 1,
        };
        let known = Known { exports: Vec::new(), next_export: None, catalog: Arc::new(catalog.handle()) };
        let (cache, _) = Cache::open(disk, Arc::new(MonotonicClock::default()), options, known).unwrap();
        let queue = cache.writeback_queue(runtime.clone());
        let backend = Backend::connect(&place, &Vec::new(), true).unwrap();
        let options = StoreOptions { checked_first: true, ..StoreOptions::default() };
        let store = store::Store::over(backend, options);
        let volumes = store::volume::VolumeStore::new(store, VolumeStoreOptions::new(cache.writer()));
        Arc::new(StoreSide::new(volumes, queue, &catalog))
    }

    #[test]
    fn a_marker_that_cannot_be_used_keeps_only_a_host_without_exports_from_starting() {
        let (directory, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (marker, url) = (place.path().join("glidefs.json"), StoreUrl::File(place.path().to_owned()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let side = side(directory.path(), url.clone(), runtime.handle());
        std::fs::write(&marker, OTHER).unwrap();
        runtime.block_on(async {
            let error = look(&side, &url, false).await.unwrap_err();
            assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
            look(&side, &url, true).await.unwrap();
            assert!(side.volumes().store().away().unwrap().contains("format version 9"));
            // The mended marker is found without a restart.
            let finding = tokio::spawn(find(Arc::clone(&side), Duration::ZERO, Duration::from_millis(1)));
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!finding.is_finished());
            std::fs::remove_file(&marker).unwrap();
            finding.await.unwrap();
            assert_eq!(side.volumes().store().away(), None);
        });
    }
}
