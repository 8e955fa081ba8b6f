//! How an export comes into being: made, opened from the store, had back, forked, rescued.
//!
//! Owns the order of steps: what the export begins with is made or taken in the store, then the export is in the catalog, then its
//! device is made, unless it is to be made detached. Does not own devices (`operations`) nor what a source is (`volumes`).
//! Invariant: of an export that certainly got no device nothing is left.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::devices::DeviceError;
use super::entry::Held;
use super::error::RouterError;
use super::name::ExportName;
use super::operations::{confirm, failed, finish};
use super::record::{BoundRecord, Desired, DeviceRecord, Record, reads_fail_after_millis};
use super::size::ExportSize;
use super::state::{Event, State};
use super::volumes::Source;
use super::{Added, ExportInfo, QUEUE_DEPTH_MAX, QUEUES_MAX, Router, RouterOptions};
use crate::cache::{Bound, Durability, OnUnreachable};
use crate::store::volume::Resume;
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
