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
    StoreUrl, process_variables,
};

/// Most memory for the last uploaded packs: enough for one level of a volume with packs of the usual length.
const RECENT_BYTES_MAX: u64 = 288 << 20;
/// Memory for packs being made: eight cuts on the way, with a pack each.
const UPLOAD_BYTES_MAX: u64 = 256 << 20;
/// How long the start waits for the store, and each export for the answer whose the export is.
pub(super) const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// Connects to the store, if one is configured, and starts the writeback. A store that does not answer is asked again on
/// demand; a place that is no store keeps the daemon from starting. A daemon that `follows` another one keeps no device waiting for the
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
    let backend = connect(url, catalog.store_id().is_some())?;
    let options =
        StoreOptions { shutdown: Some(stopped.clone()), checked_first: true, ..StoreOptions::default() };
    let store = store::Store::over(backend, options);
    let block_cache = open_block_cache(config, runtime)?;
    let pack_bytes_max = config.store.pack_memory.0;
    let upload_bytes_max = (pack_bytes_max - pack_bytes_max / 3).min(UPLOAD_BYTES_MAX);
    let options = VolumeStoreOptions {
        block_cache: Some(block_cache),
        notes: catalog.journal(),
        upload_bytes_max: usize::try_from(upload_bytes_max).unwrap_or(usize::MAX),
        recent_bytes_max: Some(RECENT_BYTES_MAX),
        pack_bytes_max: Some(pack_bytes_max),
        read_bytes_max: config.store.read_memory.0,
        host: host_name(),
        ..VolumeStoreOptions::new(cache.writer())
    };
    let volumes = store::volume::VolumeStore::new(store, options);
    let link = cache.writeback_queue(runtime.handle().clone());
    let triggers = Triggers {
        size_bytes: config.store.flush_size.0,
        age: config.store.flush_age.0,
        quiet: config.store.flush_interval.0,
    };
    runtime.spawn(cache.writeback(Arc::clone(&link), triggers).run(stopped.clone()));
    let side = Arc::new(StoreSide::new(volumes, link, catalog));
    if follows && catalog.store_id().is_some() {
        let (side, url) = (Arc::clone(&side), url.to_string());
        // An error is in the log, and asked about again like any other outage.
        runtime.spawn(async move { look(&side, &url).await.err() });
    } else {
        runtime.block_on(look(&side, &url.to_string()))?;
    }
    Ok(Some(side))
}

/// Checks the place of the store, as far as the store answers in time.
async fn look(side: &StoreSide, url: &str) -> Result<(), StoreError> {
    match tokio::time::timeout(STORE_PATIENCE, side.check()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let reason = &error as &dyn std::error::Error;
            tracing::warn!(error = reason, "the store cannot be reached; it is asked again");
            if side.is_foreign(&error) {
                return Err(error);
            }
        }
        Err(_) => tracing::warn!(url, "the store does not answer; it is asked again"),
    }
    Ok(())
}

/// The place of the store. With `is_known` the place has held a store, and a place that cannot be set up counts as away: the
/// file system may not be mounted yet, or the files with the credentials may be broken. Without, an error is a mistake in the
/// configuration.
fn connect(url: &StoreUrl, is_known: bool) -> Result<Backend, StoreError> {
    let variables = process_variables();
    match Backend::connect(url, &variables, !is_known) {
        Err(error @ StoreError::Setup { .. }) if is_known => {
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
        memory_bytes_max: usize::try_from(config.cache.clean_memory.0).unwrap_or(usize::MAX),
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
