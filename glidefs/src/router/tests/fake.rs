//! A fake host: a catalog on disk, and a fake kernel and storage that outlive the router.

mod kernel;
mod storage;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use self::kernel::{FakeDevice, Fault, Kernel};
pub use self::storage::FakeStorage;
use crate::properties::PropertiesChange;
use crate::router::state::Event;
use crate::router::{
    Catalog, CreateExport, Devices, ExportName, ExportSize, InitialContent, Router, RouterOptions, State,
    Storage, Tenures,
};

/// A host: a catalog on disk, a kernel, and routers that come and go.
pub struct Host {
    dir: tempfile::TempDir,
    pub kernel: Arc<Kernel>,
    pub storage: Arc<FakeStorage>,
    pub options: RouterOptions,
}

impl Host {
    pub fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            kernel: Arc::new(Kernel::new()),
            storage: Arc::default(),
            options: RouterOptions {
                exports_max: 16,
                queue_depth_default: 64,
                parallel_max: 8,
                serve_unconfirmed: false,
                confirm_patience: Duration::from_secs(10),
                waiting_since: None,
                tenures: Tenures::default(),
                deaths: Arc::default(),
                boot_id: "boot-1".into(),
            },
        }
    }

    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    pub fn catalog_path(&self) -> PathBuf {
        self.directory().join("catalog.redb")
    }

    /// The router of a daemon that has just started, before recovery.
    pub fn router(&self) -> Arc<Router> {
        let catalog = Catalog::open(&self.catalog_path()).unwrap();
        Router::new(
            catalog,
            Arc::clone(&self.kernel) as Arc<dyn Devices>,
            Arc::clone(&self.storage) as Arc<dyn Storage>,
            self.options.clone(),
        )
    }

    /// A router that has recovered.
    pub async fn started(&self) -> Arc<Router> {
        let router = self.router();
        router.start().await;
        deletions_ended(&router).await;
        router
    }

    /// Starts the machine anew: no device is left.
    pub fn reboot(&mut self) {
        self.kernel.devices().clear();
        self.kernel.faults.lock().unwrap().clear();
        self.options.boot_id.push('+');
    }
}

/// Has every export of a router before recovery wait for the store, as after a start while the store is away.
pub fn store_is_away(router: &Router) {
    let loaded = std::mem::take(&mut *router.loaded.lock().unwrap());
    for held in &loaded {
        held.step(Event::Wait).unwrap();
    }
}

/// Has the catalog of a router count as failing until the next successful write.
pub fn catalog_fails(router: &Router) {
    router.catalog_health().fails(&std::io::Error::from_raw_os_error(libc::ENOSPC));
}

/// Has the catalog of a router refuse every change of an export, or take the changes again.
pub fn catalog_refuses(router: &Router, refuses: bool) {
    router.catalog.refuse(refuses);
}

/// Has the router ask the store about every export.
pub fn ask_about_all(router: &Router) {
    router.entries().iter().for_each(|entry| router.ask_later(entry));
}

/// Notes that an export may be released in the store, as a drain does.
pub async fn release(router: &Router, name: &str) {
    let held = router.hold(name).await.unwrap();
    held.write(&router.catalog, |record| record.may_be_released = true).await.unwrap();
}

/// Has the catalog of a router refuse every change from now on.
pub fn catalog_is_closed(router: &Router) {
    router.catalog.close();
}

/// Returns when the deletions that go on after a start have ended.
pub async fn deletions_ended(router: &Router) {
    while router.list().iter().any(|info| info.state == State::Deleting) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns when no try of an export is under way.
pub async fn tries_ended(router: &Router) {
    while router.tries_under_way() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns when the export has its device. For paused time.
pub async fn served(router: &Router, name: &str) {
    let served = async {
        while router.show(name).unwrap().state != State::Serving {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let served = tokio::time::timeout(Duration::from_hours(1), served).await;
    served.unwrap_or_else(|_| panic!("{name} is not served: {:?}", router.show(name).unwrap().state));
}

/// The request to create an empty export with usual parameters.
pub fn create(name: &str, size_bytes: u64) -> CreateExport {
    CreateExport {
        name: ExportName::new(name).unwrap(),
        content: InitialContent::Blank(ExportSize::new(size_bytes).unwrap()),
        properties: PropertiesChange::default(),
        queues: None,
        queue_depth: None,
        detached: false,
    }
}

/// Drops the last handle on a router and waits until the catalog is closed.
pub fn drop_last(router: Arc<Router>) {
    // A task may hold the router for a moment after its answer.
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while Arc::strong_count(&router) > 1 && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(Arc::into_inner(router).is_some(), "the router is still in use");
}
