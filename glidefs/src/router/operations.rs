//! What users do with exports: create, attach, detach, resize, delete.
//!
//! Owns the order of steps: the wish goes to the catalog, then the device follows, then the catalog learns what became of it.
//! Does not own start-up (`recovery`), which finishes what a crash cut short between these steps.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::devices::{DeviceError, DeviceId};
use super::entry::Held;
use super::error::RouterError;
use super::name::ExportName;
use super::record::{BoundRecord, Desired, DeviceRecord, Record, reads_fail_after_millis};
use super::removal::Users;
use super::size::ExportSize;
use super::state::{Event, State};
use super::volumes::Source;
use super::{Added, ExportInfo, QUEUE_DEPTH_MAX, QUEUES_MAX, Router, RouterOptions};
use crate::cache::{Bound, Durability, OnUnreachable};
use crate::observe::chain;
use crate::store::volume::{Resume, check_size};
use crate::units::SECTOR_BYTES;

/// What a new export is to be like.
#[derive(Clone, Debug)]
pub struct CreateExport {
    /// Its name.
    pub name: ExportName,
    /// Where its content comes from, and with it its size.
    pub source: Source,
    /// What a FLUSH survives.
    pub durability: Durability,
    /// What a READ does while the store is away; the configured default when not given.
    pub on_unreachable: Option<OnUnreachable>,
    /// Queues of its device; the configured default when not given.
    pub queues: Option<u16>,
    /// Requests in flight a queue; the configured default when not given.
    pub queue_depth: Option<u16>,
    /// Whether it gets no device before it is attached.
    pub detached: bool,
}

/// What a new export begins with.
#[derive(Debug)]
pub(super) struct Beginning {
    pub size: ExportSize,
    pub counterpart: Option<Resume>,
    /// Whether the counterpart was made just now.
    pub is_new: bool,
}

/// What [`Router::create`] did.
#[derive(Clone, Debug)]
pub struct Created {
    /// The export.
    pub info: ExportInfo,
    /// Whether it was there before, with the same parameters.
    pub existed: bool,
}

/// What [`Router::delete`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The export was there and is gone.
    Now,
    /// There was none.
    Absent,
}

/// The catalog entry of an export that is about to be created.
pub(super) fn new_record(
    id: u32,
    number: u32,
    request: &CreateExport,
    size: ExportSize,
    options: &RouterOptions,
) -> Record {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    Record {
        id,
        name: request.name.to_string(),
        size_bytes: size.bytes(),
        queues: request.queues.unwrap_or(options.queues_default),
        queue_depth: request.queue_depth.unwrap_or(options.queue_depth_default),
        desired: if request.detached { Desired::Detached } else { Desired::Attached },
        device: DeviceRecord {
            number,
            boot_id: (!request.detached).then(|| options.boot_id.clone()),
            size_bytes: size.bytes(),
        },
        created_unix_millis: u64::try_from(now).unwrap_or(u64::MAX),
        flush_waits_for_store: request.durability == Durability::Store,
        bound: BoundRecord::of(request.durability),
        reads_fail_after_millis: reads_fail_after_millis(
            request.on_unreachable.unwrap_or(options.on_unreachable_default),
        ),
        rolls_back_to: None,
        may_be_released: false,
    }
}

impl Router {
    /// Makes an export and its device, unless it is to be made detached. When one of that name exists with the same parameters, that is the answer; if its
    /// device had failed to be made, that is tried again.
    pub async fn create(self: &Arc<Self>, request: CreateExport) -> Result<Created, RouterError> {
        check_parameter("queues", request.queues, QUEUES_MAX)?;
        check_parameter("queue_depth", request.queue_depth, QUEUE_DEPTH_MAX)?;
        if let Durability::Bounded(bound) = request.durability {
            check_bound(bound)?;
        }
        if let Some(OnUnreachable::FailAfter(limit)) = request.on_unreachable
            && limit < OnUnreachable::FAIL_AFTER_MIN
        {
            return Err(RouterError::FailAfter { min_seconds: OnUnreachable::FAIL_AFTER_MIN.as_secs() });
        }
        let router = Arc::clone(self);
        finish(request.name.to_string(), async move { router.create_now(request).await }).await
    }

    /// Makes a device for an export that has none. Succeeds when it has one.
    pub async fn attach(self: &Arc<Self>, name: &str) -> Result<ExportInfo, RouterError> {
        self.attach_confirmed(name, true).await
    }

    /// As [`Self::attach`], also where the store cannot be asked whose the export is: what is in the cache may be old.
    pub async fn attach_unconfirmed(self: &Arc<Self>, name: &str) -> Result<ExportInfo, RouterError> {
        self.attach_confirmed(name, false).await
    }

    async fn attach_confirmed(
        self: &Arc<Self>,
        name: &str,
        needs_answer: bool,
    ) -> Result<ExportInfo, RouterError> {
        self.on_held(name, move |router, held| async move {
            router.finish_rollback(&held).await?;
            if held.entry().state() != State::Serving {
                router.may_serve(&held, needs_answer).await?;
            }
            router.attach_held(&held).await?;
            Ok(held.entry().info())
        })
        .await
    }

    /// Removes the device of an export, keeps its data, and releases it in the store, if the store can be asked. Succeeds when it
    /// has none; refused while the device is in use.
    pub async fn detach(self: &Arc<Self>, name: &str) -> Result<ExportInfo, RouterError> {
        self.detach_from(name, Users::Spare).await
    }

    /// Removes the device of an export and keeps its data, whoever uses the device: what they do next fails.
    pub async fn force_detach(self: &Arc<Self>, name: &str) -> Result<ExportInfo, RouterError> {
        self.detach_from(name, Users::Cut).await
    }

    async fn detach_from(self: &Arc<Self>, name: &str, users: Users) -> Result<ExportInfo, RouterError> {
        self.on_held(name, move |router, held| async move {
            router.detach_held(&held, users).await?;
            router.release(&held).await;
            Ok(held.entry().info())
        })
        .await
    }

    /// Makes an export larger while it is used.
    pub async fn resize(self: &Arc<Self>, name: &str, size: ExportSize) -> Result<ExportInfo, RouterError> {
        self.on_held(name, move |router, held| async move {
            router.resize_held(&held, size).await?;
            Ok(held.entry().info())
        })
        .await
    }

    /// Removes an export: its device, its data and its catalog entry. Succeeds when there is none; refused while the device is in
    /// use. What failed half-way goes on where it failed when this is called again.
    pub async fn delete(self: &Arc<Self>, name: &str) -> Result<Deleted, RouterError> {
        self.delete_from(name, Users::Spare).await
    }

    /// Removes an export, whoever uses its device.
    pub async fn force_delete(self: &Arc<Self>, name: &str) -> Result<Deleted, RouterError> {
        self.delete_from(name, Users::Cut).await
    }

    async fn delete_from(self: &Arc<Self>, name: &str, users: Users) -> Result<Deleted, RouterError> {
        let deleted = self
            .on_held(name, move |router, held| async move { router.delete_held(&held, users).await })
            .await;
        match deleted {
            Ok(()) => Ok(Deleted::Now),
            Err(RouterError::NotFound { .. }) => Ok(Deleted::Absent),
            Err(error) => Err(error),
        }
    }

    /// Runs `work` with the right to change the export called `name`, to its end whatever becomes of the caller.
    pub(super) async fn on_held<T, W, F>(self: &Arc<Self>, name: &str, work: W) -> Result<T, RouterError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<Self>, Held) -> F + Send + 'static,
        F: Future<Output = Result<T, RouterError>> + Send,
    {
        let (router, name) = (Arc::clone(self), name.to_owned());
        finish(name.clone(), async move {
            let held = router.hold(&name).await?;
            work(router, held).await
        })
        .await
    }

    async fn create_now(self: Arc<Self>, request: CreateExport) -> Result<Created, RouterError> {
        // Two that begin at once would take the volume in the store from each other.
        let turn = self.turns.of(&request.name);
        let _turn = turn.lock().await;
        let mut beginning = None;
        loop {
            let gate = self.enter().await?;
            let (entry, gate) = match (self.entry(request.name.as_str()), &beginning) {
                (Some(entry), _) => (entry, gate),
                (None, None) => {
                    self.may_add()?;
                    beginning = Some(self.begin(&request).await?);
                    continue;
                }
                (None, Some(beginning)) => match self.add(&request, beginning, gate)? {
                    Added::New(held) => {
                        self.bring_into_being(&held, beginning).await?;
                        return Ok(Created { info: held.entry().info(), existed: false });
                    }
                    Added::Existing(entry, gate) => (entry, gate),
                },
            };
            let held = Held::wait(entry, gate).await;
            if held.is_gone() {
                // So may be what it began with.
                beginning = None;
                continue;
            }
            let record = held.record();
            compare(&record, &request)?;
            if matches!(request.source, Source::Deleted { .. }) {
                return Err(RouterError::NameInUse { name: record.name });
            }
            if request.source.is_there() {
                if held.entry().export().volume().remote().is_none() {
                    return Err(RouterError::NotInStore { name: record.name });
                }
                self.unless_stopping(confirm(&held, self.options.confirm_patience)).await?;
            }
            let failed = matches!(held.entry().state(), State::Failed { .. });
            if failed && record.desired != Desired::Detached {
                if record.desired == Desired::Attached {
                    self.may_serve(&held, true).await?;
                }
                self.attach_held(&held).await?;
            }
            return Ok(Created { info: held.entry().info(), existed: true });
        }
    }

    /// What a new export begins with: its counterpart in the store, where there is a store, and its size.
    async fn begin(&self, request: &CreateExport) -> Result<Beginning, RouterError> {
        if let Source::Fork { of, snapshot: None } = &request.source
            && let Some(entry) = self.entry(of.as_str())
            && entry.export().volume().lost().is_none()
        {
            self.unless_stopping(self.flush(of.as_str())).await?;
        }
        let begin = async {
            if let Source::Local { of } = &request.source {
                return self.begin_from_lost(&request.name, of).await.map(Some);
            }
            let begun = self.volumes.begin(request.name.clone(), request.source.clone()).await;
            begun.map_err(|source| RouterError::Store { name: request.name.to_string(), source })
        };
        let counterpart = self.unless_stopping(begin).await?;
        if request.durability != Durability::Local && counterpart.is_none() {
            return Err(RouterError::NoStore);
        }
        let size = match (&request.source, &counterpart) {
            (Source::Blank(size), _) => *size,
            (_, Some(counterpart)) => ExportSize::new(counterpart.size_sectors.saturating_mul(SECTOR_BYTES))?,
            (_, None) => return Err(RouterError::NoStore),
        };
        Ok(Beginning {
            size,
            counterpart,
            is_new: !request.source.is_there() && !matches!(request.source, Source::Deleted { .. }),
        })
    }

    /// Catalog entry of a new export, and its device where it is to have one.
    async fn bring_into_being(&self, held: &Held, beginning: &Beginning) -> Result<(), RouterError> {
        if let Err(error) = self.catalog.create(held.record(), beginning.counterpart.clone()).await {
            self.forget(held);
            return Err(error.into());
        }
        if held.record().desired == Desired::Attached {
            return self.first_attach(held, beginning).await;
        }
        held.step(Event::NoDevice)?;
        tracing::info!(export = %held.entry().name(), "export created, without a device");
        self.release(held).await;
        Ok(())
    }

    /// Device of a new export; nothing is left of the export where it certainly got no device.
    async fn first_attach(&self, held: &Held, beginning: &Beginning) -> Result<(), RouterError> {
        let Err(error) = self.make_device(held).await else {
            tracing::info!(export = %held.entry().name(), device_id = held.record().device.number, "export created");
            return Ok(());
        };
        let nothing_made = matches!(
            &error,
            RouterError::Device {
                source: DeviceError::NoDriver | DeviceError::NoPermission | DeviceError::LimitReached,
                ..
            }
        );
        if nothing_made && self.catalog.remove(held.record().export_id()).await.is_ok() {
            // What was opened was there before, and stays.
            if beginning.is_new
                && let Err(source) = self.volumes.delete(Arc::clone(held.entry().export().volume())).await
            {
                let error = &source as &dyn std::error::Error;
                tracing::warn!(export = %held.entry().name(), error, "a new volume stays in the store");
            }
            self.forget(held);
            return Err(error);
        }
        failed(held, error)
    }

    /// Gives an export its device, new or recovered, whatever state it is in.
    pub(super) async fn attach_held(&self, held: &Held) -> Result<(), RouterError> {
        if held.record().desired == Desired::Deleted {
            return Err(RouterError::HalfDeleted { name: held.entry().name().to_string() });
        }
        if held.entry().state() == State::Serving {
            return Ok(());
        }
        held.step(Event::BeginAttach)?;
        match self.attach_steps(held).await {
            Ok(()) => {
                tracing::info!(export = %held.entry().name(), device_id = held.record().device.number, "export attached");
                Ok(())
            }
            Err(error) => failed(held, error),
        }
    }

    async fn attach_steps(&self, held: &Held) -> Result<(), RouterError> {
        if self.device_exists(held).await? {
            held.write(&self.catalog, |record| record.desired = Desired::Attached).await?;
            return self.recover_device(held).await;
        }
        self.attach_anew(held).await
    }

    /// Writes the wish for a device and makes one; there is none yet.
    pub(super) async fn attach_anew(&self, held: &Held) -> Result<(), RouterError> {
        let boot_id = Some(self.options.boot_id.clone());
        held.write(&self.catalog, |record| {
            record.desired = Desired::Attached;
            record.device.boot_id = boot_id;
            record.device.size_bytes = record.size_bytes;
        })
        .await?;
        self.make_device(held).await
    }

    /// Makes the device that the catalog entry asks for.
    async fn make_device(&self, held: &Held) -> Result<(), RouterError> {
        let record = held.record();
        let export = Arc::clone(held.entry().export());
        let made = self.devices.attach(export, record.device_options(), Some(record.device_id())).await;
        let device = made.map_err(|source| device_error("attach", held, source))?;
        if device != record.device_id() {
            self.adopt_number(held, device).await?;
        }
        held.step(Event::DeviceReady)?;
        Ok(())
    }

    /// Remembers the number that the kernel gave instead of the one asked for; removes the device where that fails.
    async fn adopt_number(&self, held: &Held, device: DeviceId) -> Result<(), RouterError> {
        let before = held.record().device.number;
        if let Err(error) = held.write(&self.catalog, |record| record.device.number = device.0).await {
            self.devices.detach(device).await.map_err(|source| device_error("remove", held, source))?;
            return Err(error.into());
        }
        self.renumber(before, device.0);
        Ok(())
    }

    /// Takes over the device that an earlier daemon, or an attempt that failed, left behind.
    pub(super) async fn recover_device(&self, held: &Held) -> Result<(), RouterError> {
        let device = held.record().device_id();
        let recovered = self.devices.recover(Arc::clone(held.entry().export()), device).await;
        recovered.map_err(|source| device_error("recover", held, source))?;
        held.step(Event::DeviceReady)?;
        if let Err(error) = self.tell_size(held).await {
            tracing::warn!(
                export = %held.entry().name(), device_id = device.0, error = %chain(&error),
                "device keeps its old size until it is attached again"
            );
        }
        Ok(())
    }

    /// Tells the kernel the export's size, where it does not know.
    async fn tell_size(&self, held: &Held) -> Result<(), RouterError> {
        let record = held.record();
        if record.device.size_bytes == record.size_bytes {
            return Ok(());
        }
        let told = self.devices.resize(held.entry().export(), record.device_id()).await;
        told.map_err(|source| RouterError::SizeNotTold {
            name: record.name,
            size_bytes: record.size_bytes,
            source,
        })?;
        held.write(&self.catalog, |record| record.device.size_bytes = record.size_bytes).await?;
        Ok(())
    }

    async fn resize_held(&self, held: &Held, size: ExportSize) -> Result<(), RouterError> {
        let record = held.record();
        if record.desired == Desired::Deleted {
            return Err(RouterError::HalfDeleted { name: record.name });
        }
        if record.rolls_back_to.is_some() {
            return Err(RouterError::HalfRolledBack { name: record.name });
        }
        if size.bytes() < record.size_bytes {
            return Err(RouterError::Shrink {
                name: record.name,
                existing_bytes: record.size_bytes,
                wanted_bytes: size.bytes(),
            });
        }
        let is_stored = held.entry().export().volume().remote().is_some();
        if is_stored && size.bytes() > record.size_bytes {
            check_size(size.bytes() / SECTOR_BYTES)
                .map_err(|source| RouterError::Store { name: record.name.clone(), source })?;
        }
        // The catalog and the export grow before the device does: a device must never be larger than its export.
        held.write(&self.catalog, |record| record.size_bytes = size.bytes()).await?;
        held.entry().export().set_size_bytes(size.bytes());
        held.entry().export().volume().resize(size.bytes() / SECTOR_BYTES);
        if held.entry().state() == State::Serving {
            self.tell_size(held).await?;
        }
        tracing::info!(export = %held.entry().name(), size_bytes = size.bytes(), "export resized");
        Ok(())
    }

    /// Whether the kernel has a device that was made for this export.
    pub(super) async fn device_exists(&self, held: &Held) -> Result<bool, RouterError> {
        let record = held.record();
        if record.device.boot_id.as_deref() != Some(self.options.boot_id.as_str()) {
            return Ok(false);
        }
        let found = self.devices.find(held.entry().export(), record.device_id()).await;
        found.map(|device| device.is_some()).map_err(|source| device_error("find", held, source))
    }
}

/// Makes sure that no other host has taken an export over while it was not served here: `false` when the store did not say.
pub(super) async fn confirm(held: &Held, patience: Duration) -> Result<bool, RouterError> {
    let confirmed = held.entry().export().volume().confirm(patience).await;
    confirmed.map_err(|source| RouterError::Lost { name: held.entry().name().to_string(), source })
}

/// Notes in the export's state why an operation failed, and gives the error back.
pub(super) fn failed<T>(held: &Held, error: RouterError) -> Result<T, RouterError> {
    let reason = chain(&error);
    tracing::error!(export = %held.entry().name(), error = %reason, "operation on an export failed");
    held.step(Event::Fail { reason })?;
    Err(error)
}

/// Runs `work` to its end whatever becomes of the caller.
pub(super) async fn finish<T: Send + 'static>(
    name: String,
    work: impl Future<Output = Result<T, RouterError>> + Send + 'static,
) -> Result<T, RouterError> {
    tokio::spawn(work).await.map_err(|_| RouterError::Interrupted { name })?
}

pub(super) fn device_error(action: &'static str, held: &Held, source: DeviceError) -> RouterError {
    RouterError::Device { action, name: held.entry().name().to_string(), source }
}

fn check_parameter(parameter: &'static str, value: Option<u16>, max: u16) -> Result<(), RouterError> {
    match value {
        Some(value) if value == 0 || value > max => {
            Err(RouterError::Parameter { parameter, value: value.into(), min: 1, max: max.into() })
        }
        _ => Ok(()),
    }
}

fn check_bound(bound: Bound) -> Result<(), RouterError> {
    if bound.max_bytes < Bound::MAX_BYTES_MIN || bound.max_age < Bound::MAX_AGE_MIN {
        return Err(RouterError::Bound {
            max_bytes_min: Bound::MAX_BYTES_MIN,
            max_age_min_seconds: Bound::MAX_AGE_MIN.as_secs(),
        });
    }
    Ok(())
}

/// Whether `request` asks for what exists; parameters that it does not give fit anything.
fn compare(record: &Record, request: &CreateExport) -> Result<(), RouterError> {
    let size = match request.source {
        Source::Blank(size) => Some(size.bytes()),
        _ => None,
    };
    let pairs = [
        ("size", record.size_bytes, size),
        ("queues", record.queues.into(), request.queues.map(u64::from)),
        ("queue_depth", record.queue_depth.into(), request.queue_depth.map(u64::from)),
    ];
    if record.durability() != request.durability {
        return Err(RouterError::OtherDurability { name: record.name.clone() });
    }
    if request.on_unreachable.is_some_and(|wanted| wanted != record.on_unreachable()) {
        return Err(RouterError::OtherOnUnreachable { name: record.name.clone() });
    }
    for (parameter, existing, wanted) in pairs {
        if let Some(wanted) = wanted
            && wanted != existing
        {
            return Err(RouterError::Conflict { name: record.name.clone(), parameter, existing, wanted });
        }
    }
    Ok(())
}
