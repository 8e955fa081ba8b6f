//! A fake kernel: devices in a map that outlives the router, as real ones outlive the daemon.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::cache::Volume;
use crate::export::Export;
use crate::router::state::Event;
use crate::router::stored::tests::resume;
use crate::router::{
    Catalog, CreateExport, DeviceError, DeviceId, DeviceOptions, Devices, ExportName, ExportSize,
    FoundDevice, Router, RouterOptions, Source, State, Volumes,
};
use crate::store::gc::{GcError, GcOptions, GcReport};
use crate::store::volume::{DeletedVolume, Resume, VolumeError};
use crate::units::ExportId;

/// A device in the fake kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeDevice {
    pub export: ExportId,
    pub size_bytes: u64,
    pub quiesced: bool,
}

/// What a call does before it is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// Fails, and nothing is done.
    Fail,
    /// Is carried out, and never answers.
    Hang,
    /// Never answers, and nothing is done.
    HangBefore,
    /// Is carried out and reported as failed.
    FailAfter,
}

#[derive(Default)]
pub struct Kernel {
    pub devices: Mutex<BTreeMap<u32, FakeDevice>>,
    /// Numbers taken by somebody else's devices.
    pub foreign: Mutex<HashSet<u32>>,
    /// Faults by name of the call, for every call until changed.
    pub faults: Mutex<BTreeMap<&'static str, Fault>>,
    /// Exports for which every call fails.
    pub broken: Mutex<HashSet<ExportId>>,
    /// Time every call takes.
    pub delay: Mutex<Duration>,
    /// Calls wait until so many of them run at once.
    pub meeting: AtomicUsize,
    /// Told when a call hangs.
    pub hangs: tokio::sync::Notify,
    /// How devices are used.
    pub users: Mutex<BTreeMap<u32, &'static str>>,
    /// Whether nobody ever says how devices are used.
    pub users_hang: Mutex<bool>,
    /// Devices there may be.
    pub limit: Mutex<Option<usize>>,
    /// Whether `owned` tells anything.
    pub lists: Mutex<bool>,
    pub log: Mutex<Vec<String>>,
    running: AtomicUsize,
    pub running_max: AtomicUsize,
}

impl Kernel {
    pub fn devices(&self) -> MutexGuard<'_, BTreeMap<u32, FakeDevice>> {
        self.devices.lock().unwrap()
    }

    pub fn fault(&self, call: &'static str, fault: Fault) {
        self.faults.lock().unwrap().insert(call, fault);
    }

    /// The daemon has died: every device waits for a server.
    pub fn daemon_died(&self) {
        self.devices().values_mut().for_each(|device| device.quiesced = true);
        self.faults.lock().unwrap().clear();
    }

    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    /// Runs one call under the faults in force.
    async fn call<T>(
        &self,
        name: &'static str,
        target: (ExportId, u32),
        work: impl FnOnce() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        self.log.lock().unwrap().push(format!("{name} {}", target.1));
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.running_max.fetch_max(running, Ordering::SeqCst);
        let meeting = async {
            while self.running_max.load(Ordering::SeqCst) < self.meeting.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(30), meeting).await;
        let delay = *self.delay.lock().unwrap();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let fault = self.faults.lock().unwrap().get(name).copied().unwrap_or_default();
        let broken = self.broken.lock().unwrap().contains(&target.0);
        let failed = || DeviceError::Kernel {
            command: "FAKE",
            path: DeviceId(target.1).path(),
            source: std::io::Error::from_raw_os_error(libc::EIO),
        };
        let result = match fault {
            _ if broken => Err(failed()),
            Fault::None => work(),
            Fault::Fail => Err(failed()),
            Fault::Hang => {
                let _ = work();
                self.hangs.notify_one();
                std::future::pending().await
            }
            Fault::HangBefore => {
                self.hangs.notify_one();
                std::future::pending().await
            }
            Fault::FailAfter => work().and_then(|_| Err(failed())),
        };
        self.running.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

impl Devices for Kernel {
    fn attach(
        &self,
        export: Arc<Export>,
        _options: DeviceOptions,
        preferred: Option<DeviceId>,
    ) -> BoxFuture<'_, Result<DeviceId, DeviceError>> {
        Box::pin(async move {
            let wanted = preferred.map_or(0, |id| id.0);
            self.call("attach", (export.id(), wanted), || {
                let mut devices = self.devices();
                if self.limit.lock().unwrap().is_some_and(|limit| devices.len() >= limit) {
                    return Err(DeviceError::LimitReached);
                }
                let foreign = self.foreign.lock().unwrap();
                let free = |n: &u32| !devices.contains_key(n) && !foreign.contains(n);
                let number = if free(&wanted) { wanted } else { (0..=1000).find(free).unwrap() };
                let device =
                    FakeDevice { export: export.id(), size_bytes: export.size_bytes(), quiesced: false };
                devices.insert(number, device);
                Ok(DeviceId(number))
            })
            .await
        })
    }

    fn find(&self, export: &Export, id: DeviceId) -> BoxFuture<'_, Result<Option<FoundDevice>, DeviceError>> {
        let export = export.id();
        Box::pin(async move {
            self.call("find", (export, id.0), || {
                let devices = self.devices();
                let device = devices.get(&id.0).filter(|device| device.export == export);
                Ok(device.map(|device| FoundDevice { id, quiesced: device.quiesced }))
            })
            .await
        })
    }

    fn recover(&self, export: Arc<Export>, id: DeviceId) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.call("recover", (export.id(), id.0), || {
                let mut devices = self.devices();
                let device = devices.get_mut(&id.0).ok_or(DeviceError::NotFound { path: id.path() })?;
                device.quiesced = false;
                Ok(())
            })
            .await
        })
    }

    fn user(&self, id: DeviceId) -> BoxFuture<'_, Result<Option<String>, DeviceError>> {
        if *self.users_hang.lock().unwrap() {
            return Box::pin(std::future::pending());
        }
        let user = self.users.lock().unwrap().get(&id.0).map(ToString::to_string);
        Box::pin(std::future::ready(Ok(user)))
    }

    fn detach(&self, export: ExportId, id: DeviceId) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.call("detach", (export, id.0), || {
                let mut devices = self.devices();
                if devices.get(&id.0).is_some_and(|device| device.export == export) {
                    devices.remove(&id.0);
                }
                Ok(())
            })
            .await
        })
    }

    fn resize(&self, export: &Export, id: DeviceId) -> BoxFuture<'_, Result<(), DeviceError>> {
        let (export, size_bytes) = (export.id(), export.size_bytes());
        Box::pin(async move {
            self.call("resize", (export, id.0), || {
                let mut devices = self.devices();
                let device = devices.get_mut(&id.0).filter(|device| device.export == export);
                let device = device.ok_or(DeviceError::NotFound { path: id.path() })?;
                device.size_bytes = size_bytes;
                Ok(())
            })
            .await
        })
    }

    fn owned(&self) -> BoxFuture<'_, Result<Vec<(ExportId, DeviceId)>, DeviceError>> {
        let listed = if *self.lists.lock().unwrap() {
            self.devices().iter().map(|(&number, device)| (device.export, DeviceId(number))).collect()
        } else {
            Vec::new()
        };
        Box::pin(std::future::ready(Ok(listed)))
    }
}

/// Volumes that remember which of them are gone.
#[derive(Default)]
pub struct FakeVolumes {
    pub removed: Mutex<Vec<ExportId>>,
    /// Counterparts that were deleted.
    pub deleted: Mutex<Vec<ExportId>>,
    /// Whether counterparts cannot be deleted.
    pub keeps: Mutex<bool>,
    /// Whether a deletion has no answer.
    pub hangs: Mutex<bool>,
    /// Whether there is a store.
    pub has_store: Mutex<bool>,
}

impl Volumes for FakeVolumes {
    fn volume(&self, id: ExportId, _size_bytes: u64, _counterpart: Option<&Resume>) -> Arc<Volume> {
        Arc::new(Volume::new(id))
    }

    fn begin(
        &self,
        _name: ExportName,
        _source: Source,
    ) -> BoxFuture<'_, Result<Option<Resume>, VolumeError>> {
        let resume = self.has_store.lock().unwrap().then(|| resume(1, 0));
        Box::pin(std::future::ready(Ok(resume)))
    }

    fn regain(&self, _: ExportName, _: Arc<Volume>) -> BoxFuture<'_, Result<Option<Resume>, VolumeError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn rescue(
        &self,
        _: ExportName,
        _: Arc<Volume>,
        _: u64,
    ) -> BoxFuture<'_, Result<Option<Resume>, VolumeError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn tie(&self, _: &Volume, _: u64, _: &Resume) {}

    fn collect(&self, _: GcOptions) -> BoxFuture<'_, Result<Option<GcReport>, GcError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn deleted(&self) -> BoxFuture<'_, Result<Option<Vec<DeletedVolume>>, VolumeError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn reach(&self) -> BoxFuture<'_, Result<(), VolumeError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn names(&self) -> BoxFuture<'_, Result<Option<Vec<String>>, VolumeError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn delete(&self, volume: Arc<Volume>) -> BoxFuture<'_, Result<(), VolumeError>> {
        if *self.hangs.lock().unwrap() {
            return Box::pin(std::future::pending());
        }
        let kept = *self.keeps.lock().unwrap();
        if !kept {
            self.deleted.lock().unwrap().push(volume.id());
        }
        let failed = || VolumeError::NoSuchName { name: "a".parse().unwrap() };
        Box::pin(std::future::ready(if kept { Err(failed()) } else { Ok(()) }))
    }

    fn remove(&self, id: ExportId) {
        let mut removed = self.removed.lock().unwrap();
        // Forgetting what is forgotten does nothing.
        if !removed.contains(&id) {
            removed.push(id);
        }
    }
}

/// A host: a disk with a catalog, a kernel, and routers that come and go.
pub struct Host {
    dir: tempfile::TempDir,
    pub kernel: Arc<Kernel>,
    pub volumes: Arc<FakeVolumes>,
    pub options: RouterOptions,
}

impl Host {
    pub fn new() -> Self {
        let kernel = Kernel { lists: Mutex::new(true), ..Kernel::default() };
        Self {
            dir: tempfile::tempdir().unwrap(),
            kernel: Arc::new(kernel),
            volumes: Arc::default(),
            options: RouterOptions {
                exports_max: 16,
                queues_default: 1,
                queue_depth_default: 64,
                on_unreachable_default: crate::cache::OnUnreachable::Wait,
                parallel_max: 8,
                serve_unconfirmed: false,
                confirm_patience: Duration::from_secs(10),
                boot_id: "boot-1".into(),
            },
        }
    }

    pub fn catalog_path(&self) -> PathBuf {
        Path::join(self.dir.path(), "catalog.redb")
    }

    /// A router as a daemon that has just started has it, before recovery.
    pub fn router(&self) -> Arc<Router> {
        let catalog = Catalog::open(&self.catalog_path()).unwrap();
        Router::new(
            catalog,
            Arc::clone(&self.kernel) as Arc<dyn Devices>,
            Arc::clone(&self.volumes) as Arc<dyn Volumes>,
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

    /// The machine has started anew: no device is left.
    pub fn reboot(&mut self) {
        self.kernel.devices().clear();
        self.kernel.faults.lock().unwrap().clear();
        self.options.boot_id.push('+');
    }
}

/// Has every export wait for the store that the catalog of a router before recovery has, as a start does while the store is away.
pub fn store_is_away(router: &Router) {
    let loaded = std::mem::take(&mut *router.loaded.lock().unwrap());
    for held in &loaded {
        held.step(Event::Wait).unwrap();
    }
}

/// Lets the catalog of a router count as one that cannot be written, until something is written.
pub fn catalog_fails(router: &Router) {
    router.catalog_health().fails(&std::io::Error::from_raw_os_error(libc::ENOSPC));
}

/// Ends when the deletions that a start goes on with have.
pub async fn deletions_ended(router: &Router) {
    while router.list().iter().any(|info| info.state == State::Deleting) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub fn create(name: &str, size_bytes: u64) -> CreateExport {
    CreateExport {
        name: ExportName::new(name).unwrap(),
        source: Source::Blank(ExportSize::new(size_bytes).unwrap()),
        durability: crate::cache::Durability::Local,
        on_unreachable: None,
        queues: None,
        queue_depth: None,
        detached: false,
    }
}

/// Drops the last handle on a router and waits until its catalog is closed.
pub fn drop_last(router: Arc<Router>) {
    // A task that has answered may not have ended yet.
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while Arc::strong_count(&router) > 1 && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(Arc::into_inner(router).is_some(), "the router is still in use");
}
