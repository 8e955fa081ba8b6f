//! Devices as the router sees them: attach, find, recover, detach, resize, move.
//!
//! Owns the list of devices which this process serves. Does not own the choice of the worker for each queue (`placement`), nor the
//! steps of a move to other workers (`moving`). Invariants: a device is
//! deleted only after the workers have let go of all its queues, because any reference to the character device blocks the
//! deletion; only a device with the owner tag of its export is stopped or deleted, because the kernel gives the number of a
//! deleted device away.

mod activity;
mod hosted;
mod moving;
mod owners;
mod rest;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use self::hosted::{Hosted, Stay};
use self::rest::Rests;
use super::abandoned::Untouchable;
use super::abi::Commands;
use super::control::{self, Info, NewDevice, Opened, State};
use super::features::Features;
use super::in_use;
use super::many::Encoding;
use super::names::{Names, NamesError, Owner, Udev};
use super::placement::Placement;
use super::queue::{Mode, UblkQueue};
use super::steps::Steps;
use crate::export::Export;
use crate::locks::MutexExt;
use crate::observe::chain;
use crate::observe::repeat::Repeat;
use crate::router::devices::{DeviceError, DeviceId, DeviceOptions, Devices, FoundDevice};
use crate::units::ExportId;
use crate::worker::Worker;

/// How long a device whose server has died may still look served: the kernel lets go of such a device asynchronously.
const RELEASE_PATIENCE: Duration = Duration::from_secs(20);
const RELEASE_POLL: Duration = Duration::from_millis(20);
/// Time for the queues of a stopped device with batches to be let go of before the device is stopped again.
const STOP_PATIENCE: Duration = Duration::from_secs(1);
/// Time for the programs which have a removed device open to notice the removal, before the device's number counts as taken.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// How new devices are made.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// With a buffer for each tag instead of USER_COPY.
    pub bounce: bool,
    /// So that the devices can be moved to other workers, if the kernel can.
    pub moves: bool,
    /// So that requests and answers travel in batches, if the kernel can, and the devices cannot be moved.
    pub batch: bool,
}

/// The kernel's ublk devices, served by the workers.
pub struct UblkDevices {
    workers: Vec<Worker>,
    placement: Placement,
    features: Features,
    settings: Settings,
    /// The upper half of every device's owner tag: the number of the cache directory.
    cache_tag: u32,
    steps: Steps,
    names: Names,
    udev: Udev,
    /// Limits the log lines about names.
    unnamed: Repeat,
    hosted: Mutex<HashMap<DeviceKey, Hosted>>,
    rests: Rests,
    /// The share of a CPU which each worker took of late, per cent, changed by moves since.
    busy: Mutex<Vec<u64>>,
    /// Devices moved to other workers, and moves that failed.
    moves: AtomicU64,
    moves_failed: AtomicU64,
    untouchable: Untouchable,
    /// Devices that waited for a server when the devices were listed, until somebody asks for the device.
    listed: Mutex<HashMap<DeviceId, Info>>,
}

/// An export and the number of its device: the number alone may be another export's by now.
type DeviceKey = (ExportId, DeviceId);

impl UblkDevices {
    /// Devices served by `workers`, new ones made as `settings` ask and the kernel allows. `cache_tag` tells this cache directory's
    /// devices from others; `limit` bounds every control command; devices that are `untouchable` are not touched.
    pub fn new(
        workers: Vec<Worker>,
        features: Features,
        settings: Settings,
        cache_tag: u32,
        limit: Duration,
        untouchable: Untouchable,
    ) -> Self {
        if !settings.bounce && !features.user_copy() {
            tracing::warn!("this kernel has no USER_COPY (Linux 6.5): devices run in bounce mode");
        }
        let placement = Placement::new(workers.len());
        let settings = Settings { bounce: settings.bounce || !features.user_copy(), ..settings };
        let devices = Self {
            workers,
            placement,
            features,
            settings,
            cache_tag,
            steps: Steps::new(limit),
            names: Names::of_this_host(limit),
            udev: Udev::of_this_host(),
            unnamed: Repeat::default(),
            hosted: Mutex::default(),
            rests: Rests::default(),
            busy: Mutex::default(),
            moves: AtomicU64::new(0),
            moves_failed: AtomicU64::new(0),
            untouchable,
            listed: Mutex::default(),
        };
        if settings.batch && devices.mode() != Mode::Batch {
            tracing::warn!(
                "new devices have no batches: batches need Linux 7.1, USER_COPY, and devices that are not moved"
            );
        }
        devices
    }

    /// Whether new devices run in bounce mode.
    pub fn bounce(&self) -> bool {
        self.settings.bounce
    }

    /// Devices in service whose requests travel in batches.
    pub fn batched(&self) -> u64 {
        let hosted = self.hosted.lock_whole();
        hosted.values().filter(|device| device.mode == Mode::Batch).count() as u64
    }

    /// Whether the kernel can take a new device back, for other workers.
    fn makes_movable(&self) -> bool {
        self.settings.moves && self.features.quiesce()
    }

    /// The mode of a new device. A device with batches cannot be moved.
    fn mode(&self) -> Mode {
        let Settings { bounce, batch, .. } = self.settings;
        match bounce {
            true => Mode::Bounce,
            false if batch && self.features.batch() && !self.makes_movable() => Mode::Batch,
            false => Mode::UserCopy,
        }
    }

    fn owner_tag(&self, export: ExportId) -> u64 {
        (u64::from(self.cache_tag) << 32) | u64::from(export.0)
    }

    /// The export that [`Self::owner_tag`] put into the lower half of the tag; `None` for the tag of another cache directory.
    fn owner(&self, tag: u64) -> Option<ExportId> {
        let export = u32::try_from(tag & u64::from(u32::MAX)).ok()?;
        (tag >> 32 == u64::from(self.cache_tag)).then_some(ExportId(export))
    }

    /// Changes the files about names on behalf of device `id`.
    ///
    /// # Errors
    /// When it is not known whether the change was begun.
    async fn on_names<T: Send + 'static>(
        &self,
        id: DeviceId,
        change: impl FnOnce(&Names) -> Result<T, NamesError> + Send + 'static,
    ) -> Result<Result<T, NamesError>, DeviceError> {
        let names = self.names.clone();
        self.steps.on("naming", id, move || Ok(change(&names))).await
    }

    fn warn_of_names(&self, id: DeviceId, reason: &str) {
        if let Some(suppressed) = self.unnamed.pass() {
            tracing::warn!(
                device_id = id.0,
                reason,
                suppressed,
                "the stable path of a device is not as it should be"
            );
        }
    }

    /// Sees to the stable path of a live device.
    async fn give_path_now(&self, name: String, id: DeviceId) -> Result<(), String> {
        let settled = name.clone();
        let settle = move |names: &Names| {
            if names.are_kept(id, &settled) {
                // The device was taken over.
                return Ok(None);
            }
            let named = names.settle(id, &settled)?;
            if !named.was_announced {
                // udev has nothing to do any more.
                names.point(id, &settled, &named.disk)?;
            }
            Ok(Some(named).filter(|named| named.was_announced))
        };
        let Some(named) = told(self.on_names(id, settle).await)? else { return Ok(()) };
        // Whatever udev has done, the path is looked at next.
        self.udev.sees(&named.disk).await;
        told(self.on_names(id, move |names| names.point(id, &name, &named.disk)).await)
    }

    /// Asks the kernel about a device; `None` when no device was made for that export.
    ///
    /// # Errors
    /// Also for a device which this process must not touch.
    async fn info(&self, (export, id): DeviceKey) -> Result<Option<Info>, DeviceError> {
        if self.untouchable.has(id) {
            let seconds = self.steps.limit().as_secs();
            return Err(DeviceError::TimedOut { command: "QUIESCE_DEV", path: id.path(), seconds });
        }
        let info = self.steps.on("GET_DEV_INFO", id, move || control::info(id)).await?;
        Ok(info.filter(|info| info.owner_tag == self.owner_tag(export)))
    }

    /// Arms every queue of `opened`, on the given `workers` or as the placement says, then starts the device.
    async fn serve(
        &self,
        export: Arc<Export>,
        opened: Opened,
        workers: Option<&[usize]>,
    ) -> Result<DeviceId, DeviceError> {
        let id = opened.id();
        let Some(mode) = opened.mode() else {
            let source = std::io::Error::other("the device has batches and no USER_COPY");
            return Err(DeviceError::Kernel { command: "opening", path: id.path(), source });
        };
        export.volume().allow_waits();
        let can_move = self.settings.moves && opened.can_be_moved();
        let stay = if can_move { Stay::Movable } else { Stay::Fixed };
        let mut hosted = Hosted::new(Arc::clone(&export), opened.queues(), mode, stay);
        let armed = self.arm(&export, &opened, workers.unwrap_or_default(), &mut hosted).await;
        // When a queue could not be armed, the queues armed before are let go of like those of a device in service.
        self.host((export.id(), id), hosted);
        armed?;
        self.steps.on("START_DEV", id, move || control::start(&opened)).await?;
        Ok(id)
    }

    /// Takes a device among those of this process. The queues of an entry which is replaced count no more.
    fn host(&self, key: DeviceKey, hosted: Hosted) {
        let replaced = self.hosted.lock_whole().insert(key, hosted);
        for worker in replaced.into_iter().flat_map(|replaced| replaced.workers) {
            self.placement.remove(worker);
        }
    }

    async fn arm(
        &self,
        export: &Arc<Export>,
        opened: &Opened,
        wanted: &[usize],
        hosted: &mut Hosted,
    ) -> Result<(), DeviceError> {
        let (id, mode) = (opened.id(), hosted.mode);
        let fail = |source| DeviceError::Kernel { command: "mapping the queues", path: id.path(), source };
        let char_device = Arc::new(opened.char_device().map_err(fail)?);
        let commands = Commands::new(self.features.ioctl_encoded());
        let queue = |queue_id| {
            let (export, char_device) = (Arc::clone(export), Arc::clone(&char_device));
            UblkQueue::new(export, id.0, queue_id, opened.depth(), commands, char_device, mode)
        };
        // All queues are made before the first is armed: the kernel gives the armed tags of a device that was taken over back
        // only when this process ends.
        let queues: Vec<_> = (0..opened.queues()).map(queue).collect::<Result<_, _>>().map_err(fail)?;
        for (number, queue) in queues.into_iter().enumerate() {
            let worker = match wanted.get(number).filter(|&&worker| worker < self.workers.len()) {
                Some(&worker) => {
                    self.placement.put(worker);
                    worker
                }
                None => {
                    let busy: Vec<u64> = self.workers.iter().map(Worker::busy_percent).collect();
                    self.placement.place(&hosted.workers, &busy)
                }
            };
            hosted.workers.push(worker);
            let gone = self.workers[worker]
                .attach(Box::new(queue))
                .await
                .map_err(|error| fail(std::io::Error::other(error)))?;
            hosted.armed(gone);
        }
        Ok(())
    }

    /// Fails the waiting requests of a device. The kernel stops a device only when all its requests have ended.
    async fn end_waits(&self, key: DeviceKey) {
        let hosted = {
            let hosted = self.hosted.lock_whole();
            hosted.get(&key).map(|hosted| (Arc::clone(&hosted.export), hosted.workers.clone()))
        };
        let Some((export, workers)) = hosted else { return };
        export.volume().end_waits();
        for worker in workers.into_iter().collect::<BTreeSet<_>>() {
            // A worker which has ended takes the process with it.
            let _ = self.workers[worker].end_waits().await;
        }
    }

    /// Stops device `id`, waits until no worker refers to the device, and deletes the device, if the device is that of `export`.
    async fn remove(&self, export: ExportId, id: DeviceId) -> Result<(), DeviceError> {
        self.end_waits((export, id)).await;
        self.rests.forget((export, id));
        self.listed.lock_whole().remove(&id);
        let is_own = self.info((export, id)).await?.is_some();
        let stop = || self.steps.on("STOP_DEV", id, move || control::stop(id));
        let existed = is_own && stop().await?;
        // The kernel gives the number of a stopped device away only after the deletion.
        let owner = if existed { Owner::Caller } else { Owner::Unknown };
        let name = self.hosted.lock_whole().get(&(export, id)).map(|hosted| hosted.export.name().to_owned());
        let cleared = self.on_names(id, move |names| names.clear(id, name.as_deref(), owner)).await?;
        if let Err(error) = cleared {
            self.warn_of_names(id, &chain(&error));
        }
        if !existed {
            return self.let_go((export, id), self.steps.limit()).await;
        }
        self.let_go_of_stopped((export, id), stop).await?;
        self.steps.on("DEL_DEV", id, move || control::delete(id)).await?;
        if !self.is_free(id).await {
            tracing::warn!(
                device_id = id.0,
                "the device is removed; the kernel keeps its number until the last program that has it open closes it"
            );
        }
        Ok(())
    }

    /// Returns when no worker refers to a device which has been stopped. The kernel takes the commands of a queue back once for each
    /// STOP_DEV, and leaves the one which delivers batches where that command is just looking for requests. So a device with batches
    /// is stopped again and again with `stop`.
    async fn let_go_of_stopped<S>(&self, key: DeviceKey, stop: impl Fn() -> S) -> Result<(), DeviceError>
    where
        S: Future<Output = Result<bool, DeviceError>>,
    {
        let let_go = self.let_go(key, self.steps.limit());
        if self.hosted.lock_whole().get(&key).is_none_or(|hosted| hosted.mode != Mode::Batch) {
            return let_go.await;
        }
        let stop_again = async {
            loop {
                tokio::time::sleep(STOP_PATIENCE).await;
                if let Err(error) = stop().await {
                    let error = &error as &dyn std::error::Error;
                    tracing::debug!(device_id = key.1.0, error, "a stopped device is not stopped again");
                }
            }
        };
        tokio::select! {
            biased;
            let_go = let_go => let_go,
            () = stop_again => Ok(()),
        }
    }

    /// Returns when no worker refers to a device which has been stopped or quiesced, or is gone. Waits `patience` for each queue.
    async fn let_go(&self, key: DeviceKey, patience: Duration) -> Result<(), DeviceError> {
        let gone = self.hosted.lock_whole().get(&key).map(Hosted::gone).unwrap_or_default();
        for gone in gone {
            // An error means that the worker has ended, and takes the process with it.
            let _ = tokio::time::timeout(patience, gone).await.map_err(|_| DeviceError::TimedOut {
                command: "letting go of the queues",
                path: key.1.path(),
                seconds: patience.as_secs(),
            })?;
        }
        let hosted = self.hosted.lock_whole().remove(&key);
        for worker in hosted.into_iter().flat_map(|hosted| hosted.workers) {
            self.placement.remove(worker);
        }
        Ok(())
    }

    /// Whether the number of a deleted device can be used again soon.
    async fn is_free(&self, id: DeviceId) -> bool {
        let deadline = tokio::time::Instant::now() + CLOSE_PATIENCE;
        loop {
            if self.steps.on("GET_DEV_INFO", id, move || Ok(!control::is_taken(id))).await.unwrap_or(false) {
                return true;
            }
            if tokio::time::Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(RELEASE_POLL).await;
        }
    }

    fn is_hosted(&self, key: DeviceKey) -> bool {
        self.hosted.lock_whole().contains_key(&key)
    }

    /// Removes the remains of a failed attach, and gives back its error, with the device if the device stays.
    async fn undo(&self, (export, id): DeviceKey, error: DeviceError) -> DeviceError {
        let Err(again) = self.remove(export, id).await else { return error };
        tracing::warn!(
            device_id = id.0,
            error = &again as &dyn std::error::Error,
            "a device that could not be started could not be removed either"
        );
        DeviceError::Left { device: id, source: Box::new(error) }
    }
}

/// The outcome of a change of names, with the error as a sentence.
fn told<T>(changed: Result<Result<T, NamesError>, DeviceError>) -> Result<T, String> {
    changed.map_err(|error| chain(&error))?.map_err(|error| chain(&error))
}

impl Devices for UblkDevices {
    fn attach(
        &self,
        export: Arc<Export>,
        options: DeviceOptions,
        preferred: Option<DeviceId>,
    ) -> BoxFuture<'_, Result<DeviceId, DeviceError>> {
        async move {
            let new = NewDevice {
                preferred,
                queues: options.queues,
                depth: options.queue_depth,
                mode: self.mode(),
                owner_tag: self.owner_tag(export.id()),
                sectors: export.sectors(),
                quiesce: self.features.quiesce() && self.mode() == Mode::UserCopy,
            };
            let path = preferred.map_or_else(|| "a new device".into(), DeviceId::path);
            let (locking, adding) = ((control::LOCKING, control::CONTROL_PATH), ("ADD_DEV", path));
            let add = move |alone| control::add(alone, new);
            let opened = self.steps.making(locking, control::lock, adding, add, control::take_back).await?;
            let (id, name) = (opened.id(), export.name().to_owned());
            let key = (export.id(), id);
            // Before the kernel shows the device to udev. `give_path` tells why there is no name; nothing of an earlier device is left.
            let served = match self.on_names(id, move |names| names.announce(id, &name)).await {
                Ok(_) => self.serve(export, opened, None).await,
                Err(error) => Err(error),
            };
            match served {
                Ok(id) => Ok(id),
                Err(error) => Err(self.undo(key, error).await),
            }
        }
        .boxed()
    }

    fn find(&self, export: &Export, id: DeviceId) -> BoxFuture<'_, Result<Option<FoundDevice>, DeviceError>> {
        let export = export.id();
        async move {
            let listed = self.listed.lock_whole().remove(&id);
            if listed.is_some_and(|info| info.owner_tag == self.owner_tag(export))
                && !self.untouchable.has(id)
            {
                return Ok(Some(FoundDevice { id, quiesced: true }));
            }
            let deadline = tokio::time::Instant::now() + RELEASE_PATIENCE;
            loop {
                let Some(info) = self.info((export, id)).await? else { return Ok(None) };
                match info.state {
                    State::Quiesced => return Ok(Some(FoundDevice { id, quiesced: true })),
                    State::Live
                        if !self.is_hosted((export, id)) && tokio::time::Instant::now() < deadline =>
                    {
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
        .boxed()
    }

    fn owned(&self) -> BoxFuture<'_, Result<Vec<(ExportId, DeviceId)>, DeviceError>> {
        async move {
            let encoding = Encoding { is_ioctl: self.features.ioctl_encoded() };
            // Less than the step is waited for: a device that hangs costs no other device's answer.
            let limit = self.steps.limit() / 2;
            let list = self.steps.anywhere("listing", move || owners::owners(encoding, limit), drop);
            let infos = list.await?;
            // A device that waits for a server goes on waiting until this process takes the device over.
            let is_quiesced =
                |(id, info): &(DeviceId, Info)| (info.state == State::Quiesced).then_some((*id, *info));
            *self.listed.lock_whole() = infos.iter().filter_map(is_quiesced).collect();
            let owned = infos.into_iter().filter_map(|(id, info)| Some((self.owner(info.owner_tag)?, id)));
            Ok(owned.collect())
        }
        .boxed()
    }

    fn tidy(&self) -> BoxFuture<'_, ()> {
        async move {
            self.listed.lock_whole().clear();
            let names = self.names.clone();
            let swept = self.steps.anywhere("sweeping", move || Ok(names.sweep()), drop).await;
            if let Ok(Err(error)) = swept {
                tracing::warn!(error = %chain(&error), "stable paths of devices that are gone may be left");
            }
        }
        .boxed()
    }

    fn give_path(&self, name: &str, id: DeviceId) -> BoxFuture<'_, Result<(), String>> {
        let name = name.to_owned();
        async move {
            let given = self.give_path_now(name, id).await;
            given.inspect_err(|reason| self.warn_of_names(id, reason))
        }
        .boxed()
    }

    fn user(&self, id: DeviceId) -> BoxFuture<'_, Result<Option<String>, DeviceError>> {
        async move {
            let asked = tokio::task::spawn_blocking(move || in_use::user_of(id)).await;
            asked.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(|source| {
                DeviceError::Kernel { command: "looking for its users", path: id.path(), source }
            })
        }
        .boxed()
    }

    fn recover(&self, export: Arc<Export>, id: DeviceId) -> BoxFuture<'_, Result<(), DeviceError>> {
        async move {
            let key = (export.id(), id);
            if self.hosted.lock_whole().get(&key).is_some_and(|hosted| hosted.stay == Stay::Leaving) {
                // A move to other workers was not finished.
                self.vacate(key).await?;
                return self.take_back(export, id, None).await;
            }
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
            self.serve(export, opened, None).await.map(drop)
        }
        .boxed()
    }

    fn next_move(&self, except: &HashSet<ExportId>) -> Option<(Arc<Export>, DeviceId)> {
        self.next_device(except)
    }

    fn relocate(&self, export: ExportId, id: DeviceId) -> BoxFuture<'_, Result<bool, DeviceError>> {
        self.relocate_now((export, id)).boxed()
    }

    fn detach(&self, export: ExportId, id: DeviceId) -> BoxFuture<'_, Result<(), DeviceError>> {
        self.remove(export, id).boxed()
    }

    fn resize(&self, export: &Export, id: DeviceId) -> BoxFuture<'_, Result<(), DeviceError>> {
        let (key, size_bytes) = ((export.id(), id), export.size_bytes());
        async move {
            if !self.features.update_size() {
                return Err(DeviceError::Unsupported { what: "resizing a live device", since: "6.16" });
            }
            if self.info(key).await?.is_none() {
                return Err(DeviceError::NotFound { path: id.path() });
            }
            self.steps.on("UPDATE_SIZE", id, move || control::resize(id, size_bytes)).await
        }
        .boxed()
    }
}
