//! A daemon with many exports and no devices: catalog, cache, store and router as the daemon has them.
//!
//! Owns the directory, and one daemon at a time in the directory.
#![allow(dead_code, reason = "each user needs a part")]
#![allow(clippy::expect_used, reason = "a daemon that does not start measures nothing")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use glidefs::testing::cache::{Budgets, Cache, Directory, Known, MonotonicClock, OnFull, Options};
use glidefs::testing::daemon::{DaemonStorage, StoreSide};
use glidefs::testing::export::Export;
use glidefs::testing::router::{
    Catalog, CreateExport, DeviceError, DeviceId, DeviceOptions, Devices, ExportName, ExportSize,
    FoundDevice, InitialContent, PropertiesChange, Router, RouterOptions, Storage,
};
use glidefs::testing::store::volume::{VolumeStore, VolumeStoreOptions};
use glidefs::testing::store::{Backend, Store, StoreOptions, StoreUrl, process_variables};
use glidefs::testing::units::ExportId;
use tokio::runtime::Handle;

/// Bytes of a segment: the cache is empty.
const SEGMENT_BYTES: u64 = 1 << 20;
const SEGMENTS: u64 = 8;
const EXPORT_BYTES: u64 = 10 << 30;

/// A kernel without the driver.
struct NoDevices;

#[async_trait]
impl Devices for NoDevices {
    async fn attach(
        &self,
        _: Arc<Export>,
        _: DeviceOptions,
        _: Option<DeviceId>,
    ) -> Result<DeviceId, DeviceError> {
        Err(DeviceError::NoDriver)
    }

    async fn find(&self, _: &Export, _: DeviceId) -> Result<Option<FoundDevice>, DeviceError> {
        Ok(None)
    }

    async fn recover(&self, _: Arc<Export>, _: DeviceId) -> Result<(), DeviceError> {
        Err(DeviceError::NoDriver)
    }

    async fn detach(&self, _: ExportId, _: DeviceId) -> Result<(), DeviceError> {
        Ok(())
    }

    async fn resize(&self, _: &Export, _: DeviceId) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Whether exports have volumes in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Cache,
    /// The store is a directory.
    Store,
}

/// The options of a daemon for `exports_max` exports.
pub fn options(exports_max: usize) -> RouterOptions {
    RouterOptions {
        exports_max,
        queue_depth_default: 64,
        parallel_max: 8,
        confirm_patience: Duration::from_secs(10),
        serve_unconfirmed: false,
        waiting_since: None,
        tenures: std::collections::HashMap::new(),
        deaths: Arc::default(),
        boot_id: "a boot".into(),
    }
}

/// Opens the router of the daemon in `directory`. Blocks, so call it outside of `runtime`.
pub fn router(directory: &Path, place: Place, exports_max: usize, runtime: &Handle) -> Arc<Router> {
    let catalog = Catalog::open(&directory.join("catalog.redb")).expect("the catalog opens");
    let options_of_cache = Options {
        size_bytes: SEGMENTS * SEGMENT_BYTES,
        segment_bytes: SEGMENT_BYTES,
        shards: 1,
        on_full: OnFull::Wait,
        checksums_bytes_max: 0,
        mapped_bytes_max: 0,
        budgets: Budgets::default(),
        hands: 1,
    };
    let log = directory.join("log");
    std::fs::create_dir_all(&log).expect("a directory for the log");
    let known = Known { exports: catalog.known(), catalog: Arc::new(catalog.handle()), ..Known::local(&[]) };
    let clock = Arc::new(MonotonicClock::default());
    let (cache, _) =
        Cache::open(Arc::new(Directory::new(&log)), clock, options_of_cache, known).expect("the cache opens");
    let side = (place == Place::Store).then(|| Arc::new(store_side(directory, &cache, &catalog, runtime)));
    let storage = Arc::new(DaemonStorage::new(cache, side)) as Arc<dyn Storage>;
    Router::new(catalog, Arc::new(NoDevices), storage, options(exports_max))
}

fn store_side(directory: &Path, cache: &Cache, catalog: &Catalog, runtime: &Handle) -> StoreSide {
    let place = directory.join("store");
    std::fs::create_dir_all(&place).expect("a directory for the store");
    let url: StoreUrl = format!("file://{}", place.display()).parse().expect("a URL");
    let backend = Backend::connect(&url, &process_variables(), true).expect("the store is there");
    let store = Store::over(backend, StoreOptions { checked_first: true, ..StoreOptions::default() });
    let options = VolumeStoreOptions { notes: catalog.journal(), ..VolumeStoreOptions::new(cache.writer()) };
    let queue = cache.writeback_queue(runtime.clone());
    StoreSide::new(VolumeStore::new(store, options), queue, catalog)
}

/// The request for export `number`, without a device.
pub fn request(number: usize) -> CreateExport {
    CreateExport {
        name: ExportName::new(&format!("export-{number}")).expect("a name"),
        content: InitialContent::Blank(ExportSize::new(EXPORT_BYTES).expect("a size")),
        properties: PropertiesChange::default(),
        queues: None,
        queue_depth: None,
        detached: true,
    }
}

/// Creates exports without devices, `at_once` at the same time.
pub async fn create(router: &Arc<Router>, numbers: std::ops::Range<usize>, at_once: usize) {
    let creations = stream::iter(numbers).map(|number| async move {
        router.create(request(number)).await.expect("an export is created");
    });
    creations.buffer_unordered(at_once).collect::<()>().await;
}
