//! Devices as the router sees them: attach, find, recover, detach, resize.
//!
//! Owns the list of devices which this process serves. Does not own the steps into service (`serving`) and out of service (`removal`), nor
//! stable paths (`names`). Invariant: an entry of the list has every worker that was given one of the device's queues.

mod removal;
mod serving;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::Shared;

use super::control::{self, NewDevice};
use super::driver::{Info, State};
use super::features::Features;
use super::in_use;
use super::names::Names;
use super::placement::Placement;
use super::queue::Mode;
use super::steps::Steps;
use crate::export::Export;
use crate::locks::MutexExt;
use crate::observe::repeat::Repeat;
use crate::router::devices::{DeviceError, DeviceId, DeviceOptions, Devices, FoundDevice};
use crate::units::ExportId;
use crate::worker::{QueueGone, Worker};

/// How long a device whose server has died may still look served: the kernel lets go of such a device asynchronously.
const RELEASE_PATIENCE: Duration = Duration::from_secs(20);
const RELEASE_POLL: Duration = Duration::from_millis(20);

/// The kernel's ublk devices, served by the workers.
pub struct UblkDevices {
    workers: Vec<Worker>,
    placement: Placement,
    features: Features,
    /// Whether new devices have a buffer for each tag instead of USER_COPY.
    bounce: bool,
    /// Whether devices are made on a kernel that is known to be broken.
    allow_broken: bool,
    /// The upper half of every device's owner tag: the number of the cache directory.
    cache_tag: u32,
    steps: Steps,
    names: Names,
    /// Limits the log lines about names.
    unnamed: Repeat,
    hosted: Mutex<HashMap<DeviceKey, Hosted>>,
    /// Devices that a command of the start may still take from any server.
    untouchable: HashSet<DeviceId>,
    /// Devices that waited for a server when the devices were listed, until somebody asks for the device.
    listed: Mutex<HashMap<DeviceId, Info>>,
}

/// An export and the number of its device: the number alone may be another export's by now.
type DeviceKey = (ExportId, DeviceId);

/// A device this process serves.
struct Hosted {
    export: Arc<Export>,
    /// The end of each queue whose tags were armed, for more than one who waits.
    gone: Vec<Shared<QueueGone>>,
    /// The worker of each queue.
    workers: Vec<usize>,
}

impl UblkDevices {
    /// Devices served by `workers`, new ones in `bounce` mode where asked for or where the kernel has no other, and none on a broken kernel
    /// unless `allow_broken`. `cache_tag` tells this cache directory's devices from others; `limit` bounds every control command; devices
    /// that are `untouchable` are not touched.
    pub fn new(
        workers: Vec<Worker>,
        features: Features,
        bounce: bool,
        allow_broken: bool,
        cache_tag: u32,
        limit: Duration,
        untouchable: HashSet<DeviceId>,
    ) -> Self {
        if !bounce && !features.user_copy() {
            tracing::warn!("this kernel has no USER_COPY (Linux 6.5): devices run in bounce mode");
        }
        let placement = Placement::new(workers.len());
        Self {
            workers,
            placement,
            features,
            bounce: bounce || !features.user_copy(),
            allow_broken,
            cache_tag,
            steps: Steps::new(limit),
            names: Names::of_this_host(),
            unnamed: Repeat::default(),
            hosted: Mutex::default(),
            untouchable,
            listed: Mutex::default(),
        }
    }

    /// Whether new devices run in bounce mode.
    pub fn bounce(&self) -> bool {
        self.bounce
    }

    fn owner_tag(&self, export: ExportId) -> u64 {
        (u64::from(self.cache_tag) << 32) | u64::from(export.0)
    }

    /// The export that [`Self::owner_tag`] put into the lower half of the tag; `None` for the tag of another cache directory.
    fn owner(&self, tag: u64) -> Option<ExportId> {
        let export = u32::try_from(tag & u64::from(u32::MAX)).ok()?;
        (tag >> 32 == u64::from(self.cache_tag)).then_some(ExportId(export))
    }

    /// Asks the kernel about a device; `None` when no device was made for that export.
    ///
    /// # Errors
    /// Also for a device which this process must not touch.
    async fn info(&self, (export, id): DeviceKey) -> Result<Option<Info>, DeviceError> {
        if self.untouchable.contains(&id) {
            let seconds = self.steps.limit().as_secs();
            return Err(DeviceError::TimedOut { command: "QUIESCE_DEV", path: id.path(), seconds });
        }
        let info = self.steps.on("GET_DEV_INFO", id, move || control::info(id)).await?;
        Ok(info.filter(|info| info.owner_tag == self.owner_tag(export)))
    }

    fn is_hosted(&self, key: DeviceKey) -> bool {
        self.hosted.lock_whole().contains_key(&key)
    }
}

#[async_trait]
impl Devices for UblkDevices {
    async fn attach(
        &self,
        export: Arc<Export>,
        options: DeviceOptions,
        preferred: Option<DeviceId>,
    ) -> Result<DeviceId, DeviceError> {
        if let Some(defect) = self.features.danger()
            && !self.allow_broken
        {
            return Err(DeviceError::BrokenKernel { defect });
        }
        let new = NewDevice {
            preferred,
            queues: options.queues,
            depth: options.queue_depth,
            mode: if self.bounce { Mode::Bounce } else { Mode::UserCopy },
            owner_tag: self.owner_tag(export.id()),
            sectors: export.sectors(),
            features: self.features,
        };
        let path = preferred.map_or_else(|| "a new device".into(), DeviceId::path);
        let add = move || control::add(new);
        let opened = self.steps.making("ADD_DEV", path, add, control::take_back).await?;
        let id = opened.id();
        let key = (export.id(), id);
        // Before the kernel shows the device to udev. `give_path` says why there is no path.
        let _ = self.names.announce(id, export.name());
        match self.serve(export, opened).await {
            Ok(id) => Ok(id),
            Err(error) => Err(self.undo(key, error).await),
        }
    }

    async fn find(&self, export: &Export, id: DeviceId) -> Result<Option<FoundDevice>, DeviceError> {
        let export = export.id();
        let listed = self.listed.lock_whole().remove(&id);
        if listed.is_some_and(|info| info.owner_tag == self.owner_tag(export))
            && !self.untouchable.contains(&id)
        {
            return Ok(Some(FoundDevice { id, quiesced: true }));
        }
        let deadline = tokio::time::Instant::now() + RELEASE_PATIENCE;
        loop {
            let Some(info) = self.info((export, id)).await? else { return Ok(None) };
            match info.state {
                State::Quiesced => return Ok(Some(FoundDevice { id, quiesced: true })),
                State::Live if !self.is_hosted((export, id)) && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(RELEASE_POLL).await;
                }
                State::Live | State::Failing => return Ok(Some(FoundDevice { id, quiesced: false })),
                State::Dead => {
                    // The maker died between adding and starting the device, so nobody can have used the device.
                    self.remove(export, id).await?;
                    return Ok(None);
                }
            }
        }
    }

    async fn owned(&self) -> Result<Vec<(ExportId, DeviceId)>, DeviceError> {
        let encoding = self.features.encoding();
        // Less than the step is waited for: a device that hangs costs no other device's answer.
        let limit = self.steps.limit() / 2;
        let list = self.steps.anywhere("listing", move || control::all(encoding, limit));
        let infos: Vec<_> =
            list.await?.into_iter().filter_map(|(id, info)| Some((id, known(id, info)?))).collect();
        // A device that waits for a server goes on waiting until this process takes the device over.
        let is_quiesced =
            |(id, info): &(DeviceId, Info)| (info.state == State::Quiesced).then_some((*id, *info));
        *self.listed.lock_whole() = infos.iter().filter_map(is_quiesced).collect();
        let owned = infos.into_iter().filter_map(|(id, info)| Some((self.owner(info.owner_tag)?, id)));
        Ok(owned.collect())
    }

    async fn tidy(&self) {
        self.listed.lock_whole().clear();
        self.names.sweep();
    }

    async fn give_path(&self, name: &str, id: DeviceId) -> Result<(), String> {
        let made = self.names.made(id, name).await;
        if let Err(reason) = &made
            && let Some(suppressed) = self.unnamed.pass()
        {
            tracing::warn!(device_id = id.0, reason, suppressed, "a device has no stable path");
        }
        made
    }

    async fn user(&self, id: DeviceId) -> Result<Option<String>, DeviceError> {
        let asked = tokio::task::spawn_blocking(move || in_use::user_of(id)).await;
        asked.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|source| DeviceError::Kernel {
            command: "looking for its users",
            path: id.path(),
            source,
        })
    }

    async fn recover(&self, export: Arc<Export>, id: DeviceId) -> Result<(), DeviceError> {
        let key = (export.id(), id);
        if self.is_hosted(key)
            && let Some(info) = self.info(key).await?
            && info.state == State::Live
        {
            // An earlier removal failed before the device was stopped.
            export.volume().allow_waits();
            return Ok(());
        }
        let tag = self.owner_tag(export.id());
        let opened =
            self.steps.on("START_USER_RECOVERY", id, move || control::start_recovery(id, tag)).await?;
        // When serving fails, the waiting device stays: the data of its clients may depend on the device.
        self.serve(export, opened).await.map(drop)
    }

    async fn detach(&self, export: ExportId, id: DeviceId) -> Result<(), DeviceError> {
        self.remove(export, id).await
    }

    async fn resize(&self, export: &Export, id: DeviceId) -> Result<(), DeviceError> {
        let (key, size_bytes) = ((export.id(), id), export.size_bytes());
        if !self.features.update_size() {
            return Err(DeviceError::Unsupported { what: "resizing a live device", since: "6.16" });
        }
        if self.info(key).await?.is_none() {
            return Err(DeviceError::NotFound { path: id.path() });
        }
        self.steps.on("UPDATE_SIZE", id, move || control::resize(id, size_bytes)).await
    }
}

/// The kernel's answer about device `id`. An error is logged.
fn known(id: DeviceId, info: io::Result<Option<Info>>) -> Option<Info> {
    info.unwrap_or_else(|error| {
        tracing::error!(
            device_id = id.0,
            error = &error as &dyn std::error::Error,
            "the kernel does not say whose a device is: if the device is an export's of this host, and the catalog has another number, \
             the export gets a second device"
        );
        None
    })
}
