//! A fake kernel: devices in a map that outlives the router, as real devices outlive the daemon.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;

use crate::export::Export;
use crate::router::{DeviceError, DeviceId, DeviceOptions, Devices, FoundDevice};
use crate::units::ExportId;

/// A device in the fake kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeDevice {
    pub export: ExportId,
    pub size_bytes: u64,
    pub quiesced: bool,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// The call fails, and nothing is done.
    Fail,
    /// The call is carried out, and never answers.
    Hang,
    /// The call never answers, and nothing is done.
    HangBefore,
    /// The call is carried out and reported as failed.
    FailAfter,
    /// The call goes on when the test says so.
    Pause,
}

pub struct Permits(pub tokio::sync::Semaphore);

impl Default for Permits {
    fn default() -> Self {
        Self(tokio::sync::Semaphore::new(0))
    }
}

impl Permits {
    pub async fn take(&self, permits: u32) {
        self.0.acquire_many(permits).await.unwrap().forget();
    }
}

#[derive(Default)]
pub struct Kernel {
    pub devices: Mutex<BTreeMap<u32, FakeDevice>>,
    /// Numbers of other programs' devices.
    pub foreign: Mutex<HashSet<u32>>,
    /// Faults by name of the call, in force until changed.
    pub faults: Mutex<BTreeMap<&'static str, Fault>>,
    /// Numbers about which the kernel says nothing.
    pub mute: Mutex<HashSet<u32>>,
    /// Exports for which every call fails.
    pub broken: Mutex<HashSet<ExportId>>,
    /// Exports for which every call goes on when the test says so.
    pub slow: Mutex<HashSet<ExportId>>,
    /// How long every call takes at least.
    pub delay: Mutex<Duration>,
    /// Number of calls that have to run at once before any call goes on.
    pub meeting: AtomicUsize,
    /// Told when a call hangs.
    pub hangs: tokio::sync::Notify,
    /// A permit for each call that came to a pause, and for each that may go on.
    pub paused: Permits,
    pub resumed: Permits,
    /// How devices are used, by number.
    pub users: Mutex<BTreeMap<u32, &'static str>>,
    /// Whether the question how a device is used has no answer.
    pub users_hang: Mutex<bool>,
    /// Why no device has a stable path, if so.
    pub no_path: Mutex<Option<&'static str>>,
    /// Most devices at the same time; `None` without a limit.
    pub limit: Mutex<Option<usize>>,
    /// Whether `owned` lists the devices.
    pub lists: Mutex<bool>,
    /// Devices that `owned` leaves out: the kernel does not say in time whose each is.
    pub unlisted: Mutex<HashSet<u32>>,
    /// Held by a test that has `owned` wait.
    pub listing: tokio::sync::Mutex<()>,
    pub log: Mutex<Vec<String>>,
    running: AtomicUsize,
    pub running_max: AtomicUsize,
}

impl Kernel {
    /// A kernel without devices and faults that lists its devices.
    pub fn new() -> Self {
        Self { lists: Mutex::new(true), ..Self::default() }
    }

    pub fn devices(&self) -> MutexGuard<'_, BTreeMap<u32, FakeDevice>> {
        self.devices.lock().unwrap()
    }

    pub fn fault(&self, call: &'static str, fault: Fault) {
        self.faults.lock().unwrap().insert(call, fault);
    }

    /// Has the daemon die: every device waits for a server.
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
        let is_slow = self.slow.lock().unwrap().contains(&target.0);
        if is_slow {
            self.resumed.take(1).await;
        }
        let fault = self.faults.lock().unwrap().get(name).copied().unwrap_or_default();
        let is_mute = name == "find" && self.mute.lock().unwrap().contains(&target.1);
        let broken = is_mute || self.broken.lock().unwrap().contains(&target.0);
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
            Fault::Pause => {
                self.paused.0.add_permits(1);
                self.resumed.take(1).await;
                work()
            }
        };
        self.running.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

#[async_trait]
impl Devices for Kernel {
    async fn attach(
        &self,
        export: Arc<Export>,
        _options: DeviceOptions,
        preferred: Option<DeviceId>,
    ) -> Result<DeviceId, DeviceError> {
        let wanted = preferred.map_or(0, |id| id.0);
        let mut made = None;
        let attached = self.call("attach", (export.id(), wanted), || {
            let mut devices = self.devices();
            if self.limit.lock().unwrap().is_some_and(|limit| devices.len() >= limit) {
                return Err(DeviceError::LimitReached);
            }
            let foreign = self.foreign.lock().unwrap();
            let free = |n: &u32| !devices.contains_key(n) && !foreign.contains(n);
            let number = if free(&wanted) { wanted } else { (0..=1000).find(free).unwrap() };
            let device = FakeDevice { export: export.id(), size_bytes: export.size_bytes(), quiesced: false };
            devices.insert(number, device);
            made = Some(DeviceId(number));
            Ok(DeviceId(number))
        });
        let attached = attached.await;
        attached.map_err(|error| match made {
            Some(device) => DeviceError::Left { device, source: Box::new(error) },
            None => error,
        })
    }

    async fn find(&self, export: &Export, id: DeviceId) -> Result<Option<FoundDevice>, DeviceError> {
        let export = export.id();
        self.call("find", (export, id.0), || {
            let devices = self.devices();
            let device = devices.get(&id.0).filter(|device| device.export == export);
            Ok(device.map(|device| FoundDevice { id, quiesced: device.quiesced }))
        })
        .await
    }

    async fn recover(&self, export: Arc<Export>, id: DeviceId) -> Result<(), DeviceError> {
        self.call("recover", (export.id(), id.0), || {
            let mut devices = self.devices();
            let device = devices.get_mut(&id.0).ok_or(DeviceError::NotFound { path: id.path() })?;
            device.quiesced = false;
            Ok(())
        })
        .await
    }

    async fn give_path(&self, _name: &str, _id: DeviceId) -> Result<(), String> {
        let reason = *self.no_path.lock().unwrap();
        reason.map_or(Ok(()), |reason| Err(reason.to_owned()))
    }

    async fn user(&self, id: DeviceId) -> Result<Option<String>, DeviceError> {
        if *self.users_hang.lock().unwrap() {
            return std::future::pending().await;
        }
        let user = self.users.lock().unwrap().get(&id.0).map(ToString::to_string);
        Ok(user)
    }

    async fn detach(&self, export: ExportId, id: DeviceId) -> Result<(), DeviceError> {
        self.call("detach", (export, id.0), || {
            let mut devices = self.devices();
            if devices.get(&id.0).is_some_and(|device| device.export == export) {
                devices.remove(&id.0);
            }
            Ok(())
        })
        .await
    }

    async fn resize(&self, export: &Export, id: DeviceId) -> Result<(), DeviceError> {
        let (export, size_bytes) = (export.id(), export.size_bytes());
        self.call("resize", (export, id.0), || {
            let mut devices = self.devices();
            let device = devices.get_mut(&id.0).filter(|device| device.export == export);
            let device = device.ok_or(DeviceError::NotFound { path: id.path() })?;
            device.size_bytes = size_bytes;
            Ok(())
        })
        .await
    }

    async fn owned(&self) -> Result<Vec<(ExportId, DeviceId)>, DeviceError> {
        let _listing = self.listing.lock().await;
        let lists = *self.lists.lock().unwrap();
        let devices = self.devices();
        let unlisted = self.unlisted.lock().unwrap();
        let listed = devices.iter().filter(|(number, _)| lists && !unlisted.contains(number));
        Ok(listed.map(|(&number, device)| (device.export, DeviceId(number))).collect())
    }
}
