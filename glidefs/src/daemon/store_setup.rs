//! The store, opened from the configuration.
//!
//! Owns how the store is connected, and the search for the store. Does not own requests (`store`). Invariant: nothing waits for the place,
//! which may be a file system or a server that does not answer.

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
    self, Backend, BlockCache, BlockCacheError, BlockCacheOptions, HostName, StoreOptions, UploadLimit,
    process_variables,
};

/// Most memory for the last uploaded packs: enough for one level of a volume with packs of the usual length.
const RECENT_BYTES_MAX: u64 = 288 << 20;
/// Memory for packs being made: eight cuts on the way, with a pack each.
const UPLOAD_BYTES_MAX: u64 = 256 << 20;
/// Memory for blocks that READs need: a quarter for READs that need nothing from the store, the rest for all others.
const READ_BYTES_MAX: u64 = 64 << 20;
/// Memory for manifests and indexes of packs.
const METADATA_BYTES_MAX: usize = 64 << 20;
/// Memory of the block cache, beside its space on the disk.
const CLEAN_MEMORY_BYTES: usize = 64 << 20;
/// Data at risk of an export with which it is written back.
const FLUSH_BYTES: u64 = 32 << 20;
/// How long each export waits at the start for the store to say which host has the export. Also the pause before the place is looked at
/// again.
pub(super) const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// Connects to the store, if one is configured, and starts the writeback and the search for the store: until the place is known to be the
/// store, nothing is sent there.
pub(super) fn connect_store(
    config: &Config,
    catalog: &Catalog,
    cache: &Cache,
    runtime: &tokio::runtime::Runtime,
    stopped: &watch::Receiver<bool>,
) -> Result<Option<Arc<StoreSide>>, DaemonError> {
    let Some(url) = &config.store.url else { return Ok(None) };
    let backend = Backend::later(url, &process_variables())?;
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
        writer: cache.writer(),
        notes: catalog.journal(),
        host: host_name(),
        clock: Arc::new(store::SystemClock),
        metadata_bytes_max: METADATA_BYTES_MAX,
        upload_bytes_max: usize::try_from(upload_bytes_max).unwrap_or(usize::MAX),
        recent_bytes_max: RECENT_BYTES_MAX,
        pack_bytes_max,
        read_bytes_max: READ_BYTES_MAX,
        block_cache: Some(block_cache),
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
    runtime.spawn(look_after(Arc::clone(&side)));
    Ok(Some(side))
}

/// Looks for the store until it is found; the store's state says why it is not.
async fn find(side: &StoreSide) {
    while let Err(error) = side.check().await {
        tracing::debug!(error = &error as &dyn std::error::Error, "the store is looked for again");
        tokio::time::sleep(STORE_PATIENCE).await;
    }
}

/// Finds the store, and looks at it again while it is in trouble: an idle host would ask it for nothing, and not learn that it is back.
async fn look_after(side: Arc<StoreSide>) {
    find(&side).await;
    loop {
        tokio::time::sleep(STORE_PATIENCE * 6).await;
        if side.volumes().store().state().error.is_some() {
            // The state says how it went.
            let _ = side.reach().await;
        }
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
    use crate::store::StoreUrl;
    use crate::units::SEGMENT_BYTES;

    const OTHER: &str = r#"{"format":9}"#;

    /// A host with its cache in `directory`.
    fn host(directory: &Path) -> (Catalog, Cache) {
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
        (catalog, cache)
    }

    /// A host with its store in `place`.
    fn side(directory: &Path, place: StoreUrl, runtime: &tokio::runtime::Handle) -> Arc<StoreSide> {
        let (catalog, cache) = host(directory);
        let queue = cache.writeback_queue(runtime.clone());
        let backend = Backend::connect(&place, &Vec::new(), true).unwrap();
        let options = StoreOptions { checked_first: true, ..StoreOptions::default() };
        let store = store::Store::over(backend, options);
        let volumes = store::volume::VolumeStore::new(store, VolumeStoreOptions::new(cache.writer()));
        Arc::new(StoreSide::new(volumes, queue, &catalog))
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
    }

    #[test]
    fn a_place_that_cannot_be_used_is_looked_at_until_it_can() {
        let (directory, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (marker, url) = (place.path().join("glidefs.json"), StoreUrl::File(place.path().to_owned()));
        let runtime = runtime();
        let side = side(directory.path(), url, runtime.handle());
        std::fs::write(&marker, OTHER).unwrap();
        runtime.block_on(async {
            let looking = Arc::clone(&side);
            let finding = tokio::spawn(async move { find(&looking).await });
            tokio::time::sleep(STORE_PATIENCE * 3).await;
            assert!(!finding.is_finished());
            assert!(side.volumes().store().away().unwrap().contains("format version 9"));
            // The mended marker is found without a restart.
            std::fs::remove_file(&marker).unwrap();
            finding.await.unwrap();
            assert_eq!(side.volumes().store().away(), None);
        });
    }

    #[test]
    fn a_start_waits_for_no_store_and_no_store_ends_it() {
        for is_foreign in [true, false] {
            let (directory, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let file = place.path().join("glidefs.json");
            std::fs::write(&file, OTHER).unwrap();
            let (catalog, cache) = host(directory.path());
            let mut config = Config::default();
            config.cache.clean_size.0 = 0;
            // No directory can be made below a file.
            let place = if is_foreign { place.path().to_owned() } else { file.join("store") };
            config.store.url = Some(StoreUrl::File(place));
            let (_stop, stopped) = watch::channel(false);
            let runtime = runtime();
            let now = || runtime.block_on(async { tokio::time::Instant::now() });
            let begun = now();
            let side = connect_store(&config, &catalog, &cache, &runtime, &stopped).unwrap();
            // The paused clock goes on only while something waits.
            assert_eq!(now(), begun);
            runtime.block_on(async { tokio::time::sleep(Duration::from_secs(1)).await });
            assert!(side.unwrap().volumes().store().away().is_some(), "the status says why");
        }
    }
}
