//! A router with thousands of exports, over a kernel that makes any device at once.
//!
//! Owns no data: the volumes come from the caller.
#![allow(clippy::expect_used, reason = "a bench may end")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use glidefs::testing::cache::Volume;
use glidefs::testing::export::Export;
use glidefs::testing::router::{
    Begun, Catalog, CreateExport, DeviceError, DeviceId, DeviceOptions, Devices, ExportName, ExportSize,
    FoundDevice, InitialContent, Properties, PropertiesChange, Router, RouterOptions, Storage,
};
use glidefs::testing::store::volume::{Resume, VolumeError, VolumeStore};
use glidefs::testing::store::{StoreError, VolumeId};
use glidefs::testing::units::ExportId;

/// A kernel that makes any device at once.
#[derive(Default)]
pub struct InstantKernel(AtomicU32);

#[async_trait]
impl Devices for InstantKernel {
    async fn attach(
        &self,
        export: Arc<Export>,
        options: DeviceOptions,
        preferred: Option<DeviceId>,
    ) -> Result<DeviceId, DeviceError> {
        for queue_id in 0..options.queues {
            export.queue_stats(queue_id);
        }
        let next = DeviceId(self.0.fetch_add(1, Ordering::Relaxed));
        Ok(preferred.unwrap_or(next))
    }

    async fn find(&self, _: &Export, _: DeviceId) -> Result<Option<FoundDevice>, DeviceError> {
        Ok(None)
    }

    async fn recover(&self, _: Arc<Export>, _: DeviceId) -> Result<(), DeviceError> {
        Ok(())
    }

    async fn detach(&self, _: ExportId, _: DeviceId) -> Result<(), DeviceError> {
        Ok(())
    }

    async fn resize(&self, _: &Export, _: DeviceId) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Makes the volume of an export.
type Volumes = Box<dyn Fn(ExportId) -> Arc<Volume> + Send + Sync>;

struct Data(Volumes);

#[async_trait]
impl Storage for Data {
    fn volume(&self, id: ExportId, _: u64, _: Option<&Resume>) -> Arc<Volume> {
        (self.0)(id)
    }

    fn is_at_rest(&self, _: ExportId, _: u64, _: Option<&Resume>) -> bool {
        true
    }

    async fn begin(
        &self,
        _: ExportName,
        _: InitialContent,
        _: Option<VolumeId>,
        _: Properties,
        _: bool,
    ) -> Result<Option<Begun>, VolumeError> {
        Ok(None)
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

    async fn delete(&self, _: Arc<Volume>) -> Result<(), VolumeError> {
        Ok(())
    }

    async fn reach(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    async fn volumes(&self) -> Result<Option<VolumeStore>, StoreError> {
        Ok(None)
    }

    fn link(&self, _: &Volume, _: u64, _: &Resume) {}

    fn remove(&self, _: ExportId) {}
}

pub fn name(number: u32) -> String {
    format!("customer-{:04}.disk-{number:05}", number % 977)
}

/// A router with `exports` exports, the first `attached` of which have a device. The catalog is in memory, because the time of
/// making the catalog does not count.
pub fn router(directory: &Path, exports: u32, attached: u32, volumes: Volumes) -> Arc<Router> {
    let options = RouterOptions {
        exports_max: exports as usize,
        queue_depth_default: 64,
        parallel_max: 64,
        serve_unconfirmed: false,
        confirm_patience: Duration::from_secs(10),
        waiting_since: None,
        tenures: std::collections::HashMap::new(),
        deaths: Arc::default(),
        boot_id: "bench".into(),
    };
    let catalog = Catalog::open(&directory.join("catalog.redb")).expect("the catalog opens");
    let router = Router::new(catalog, Arc::new(InstantKernel::default()), Arc::new(Data(volumes)), options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        router.start().await;
        for number in 0..exports {
            let request = CreateExport {
                name: ExportName::new(&name(number)).expect("a good name"),
                content: InitialContent::Blank(ExportSize::new(1 << 30).expect("a good size")),
                properties: PropertiesChange::default(),
                queues: None,
                queue_depth: None,
                detached: number >= attached,
            };
            router.create(request).await.expect("the export is made");
        }
    });
    router
}
