//! How a volume comes into being: empty, or as a copy of a snapshot or of another volume.
//!
//! Owns what a repeated call finds and does. Does not own sizes (`capacity`) nor names (`names`). Invariant: a volume which is there
//! already is the answer only if its content began as this request wants; the name of the export tells.

use super::needs_store;
use crate::api::wire::{Choices, Export};
use crate::csi::Driver;
use crate::csi::capabilities::Access;
use crate::csi::capacity::SizeRange;
use crate::csi::error::CsiError;
use crate::csi::names::{NameSuffix, SnapshotId, Source, volume_name};
use crate::csi::parameters;
use crate::csi::proto::volume_content_source::Type;
use crate::csi::proto::{CreateVolumeRequest, CreateVolumeResponse, VolumeContentSource};
use crate::router::ExportName;

/// A request for a volume, checked.
struct New {
    name: ExportName,
    wanted: SizeRange,
    /// The least size for the file system, bytes.
    least_bytes: u64,
    source: Option<Source>,
    choices: Choices,
}

impl Driver {
    pub(super) async fn create_volume(
        &self,
        request: CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, CsiError> {
        let suffix = NameSuffix::of(&request.name)?;
        let access = Access::all(&request.volume_capabilities)?;
        let source = source(request.volume_content_source.as_ref())?;
        let choices = parameters::of_volume(&request.parameters, &request.mutable_parameters)?;
        self.host.check(request.accessibility_requirements.as_ref())?;
        check_movable(self.host.shared_store.is_some(), &choices)?;
        let new = New {
            name: suffix.full_name(source.as_ref())?,
            wanted: SizeRange::of(request.capacity_range.as_ref())?,
            least_bytes: access.iter().map(Access::least_bytes).max().unwrap_or(0),
            source,
            choices,
        };
        let _operation = self.operations.hold(format!("a volume of the name {:?}", request.name))?;
        let _operation = self.operations.hold_volume(&new.name)?;
        let exports = self.daemon.exports().await?;
        let stored = match &self.host.shared_store {
            Some(_) => self.daemon.stored().await?,
            None => Vec::new(),
        };
        let mut names = exports.iter().map(|export| &export.name).chain(&stored);
        if let Some(other) = names.find(|name| suffix.ends(name) && *name != new.name.as_str()) {
            let reason = format!(
                "volume {other} has this name, and began with another content: use another name, or delete that volume"
            );
            return Err(CsiError::exists(reason));
        }
        let existing = exports.iter().find(|export| export.name == new.name.as_str());
        if existing.is_none() && stored.iter().any(|name| name == new.name.as_str()) {
            let reason = format!(
                "volume {} was made by another host, or is being made there: ask the driver of that host",
                new.name
            );
            return Err(CsiError::precondition(reason));
        }
        let export = match &new.source {
            None => self.create_empty(&new, existing).await?,
            Some(source) => self.copy(&new, source, existing).await?,
        };
        let export = self.finish(&new.name, export, existing.is_none()).await?;
        tracing::info!(volume = %new.name, size_bytes = export.size_bytes, "volume created");
        Ok(CreateVolumeResponse { volume: Some(self.volume_of(&export, request.volume_content_source)) })
    }

    async fn create_empty(&self, new: &New, existing: Option<&Export>) -> Result<Export, CsiError> {
        // Of one which is there as well: the daemon compares the other parameters.
        let bytes = size(new, existing)?;
        let detached = self.host.shared_store.is_some();
        self.daemon.create(&new.name, bytes, new.choices, detached).await
    }

    async fn copy(&self, new: &New, source: &Source, existing: Option<&Export>) -> Result<Export, CsiError> {
        if !self.daemon.has_store().await? {
            // By the specification a source which this driver cannot copy makes the argument wrong.
            let reason = needs_store("copies");
            return Err(CsiError::invalid("volume_content_source", reason));
        }
        // Another host may have written since this one released the source: a copy is made only where the source is.
        let copy = async |origin: Export| self.copy_here(new, source, &origin, existing).await;
        self.visiting(source.place().0, copy).await
    }

    async fn copy_here(
        &self,
        new: &New,
        source: &Source,
        origin: &Export,
        existing: Option<&Export>,
    ) -> Result<Export, CsiError> {
        let (of, snapshot) = source.place();
        if let Source::Snapshot(id) = source
            && self.snapshot_of(id).await?.is_none()
        {
            return Err(CsiError::no_snapshot(&id.to_string()));
        }
        if origin.state == "failed" {
            let reason = origin.reason.as_deref().unwrap_or("the reason is not known");
            return Err(CsiError::precondition(format!(
                "volume {of} has failed ({reason}), and is not copied: repair the source first (`glidefs export show {of}`)"
            )));
        }
        if snapshot.is_none() {
            self.sync(origin).await;
            if existing.is_none() && !new.wanted.allows(origin.size_bytes) {
                let reason = format!(
                    "volume {of} has {} bytes, more than the limit of the copy: raise the limit",
                    origin.size_bytes
                );
                return Err(CsiError::out_of_range(reason));
            }
        }
        size(new, existing)?;
        let (is_new, export) = self.daemon.fork(&new.name, of, snapshot, new.choices).await?;
        match size(new, Some(&export)) {
            Ok(bytes) if bytes > export.size_bytes => self.daemon.resize(&new.name, bytes).await,
            Ok(_) => Ok(export),
            // The size of a snapshot is seen only in the copy.
            Err(_) if is_new => {
                self.daemon.delete(&new.name).await?;
                let reason = format!(
                    "the copy would have {} bytes, more than the limit: raise the limit",
                    export.size_bytes
                );
                Err(CsiError::out_of_range(reason))
            }
            Err(error) => Err(error),
        }
    }

    /// Where hosts do not share the store, waits until the device can be opened. Where they do, releases an export which this call made
    /// (`is_new`); an export which was there before may be in use, and stays.
    async fn finish(&self, name: &ExportName, export: Export, is_new: bool) -> Result<Export, CsiError> {
        let _mounts = self.operations.hold_mounts(name)?;
        if self.host.shared_store.is_none() {
            return Ok(self.ready_device(name, export, false).await?.1);
        }
        if export.device.is_none() || !is_new {
            return Ok(export);
        }
        self.daemon.release(name).await
    }
}

/// Refuses parameters which a volume would lose on its way to another host: those of the device.
fn check_movable(is_shared: bool, choices: &Choices) -> Result<(), CsiError> {
    if !is_shared || (choices.queues.is_none() && choices.queue_depth.is_none()) {
        return Ok(());
    }
    let reason = "a volume that moves between hosts would lose queues and queueDepth: leave them out with --shared-store";
    Err(CsiError::invalid("parameters", reason))
}

/// Decides which size the volume gets, bytes: that of the export which is there, or a larger one if this export is a copy.
fn size(new: &New, existing: Option<&Export>) -> Result<u64, CsiError> {
    let Some(export) = existing else { return new.wanted.new_size(new.least_bytes) };
    let bytes = export.size_bytes;
    if new.wanted.fits(bytes) {
        return Ok(bytes);
    }
    // A call which was cut short has made the copy, and not made it larger.
    if new.source.is_some() && !new.wanted.is_enough(bytes) {
        return new.wanted.new_size(new.least_bytes.max(bytes));
    }
    Err(CsiError::exists(format!(
        "volume {} exists with {bytes} bytes, which is another size: use that size, or another name",
        export.name
    )))
}

/// Reads the source of a request. An id which none of this driver's volumes and snapshots can have is of nothing which exists.
fn source(source: Option<&VolumeContentSource>) -> Result<Option<Source>, CsiError> {
    let Some(source) = source else { return Ok(None) };
    match &source.r#type {
        Some(Type::Volume(volume)) => Ok(Some(Source::Volume(volume_name(&volume.volume_id)?))),
        Some(Type::Snapshot(snapshot)) => SnapshotId::parse(&snapshot.snapshot_id)
            .map(|id| Some(Source::Snapshot(id)))
            .ok_or_else(|| CsiError::no_snapshot(&snapshot.snapshot_id)),
        None => Err(CsiError::missing("volume_content_source.type")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::{Durability, SetRequest};
    use crate::csi::proto::CapacityRange;
    use crate::csi::proto::volume_content_source::{SnapshotSource, VolumeSource};

    fn export(size_bytes: u64) -> Export {
        let text = format!(
            r#"{{"name": "csi-a", "id": 1, "size_bytes": {size_bytes}, "device": null, "state": "detached", "reason": null,
                "queues": 1, "queue_depth": 1, "created": "1970-01-01T00:00:00Z"}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn new(required_bytes: i64, limit_bytes: i64, copied: Option<&str>) -> New {
        let source = copied.map(|volume| Source::Volume(ExportName::new(volume).unwrap()));
        New {
            name: NameSuffix::of("a").unwrap().full_name(source.as_ref()).unwrap(),
            wanted: SizeRange::of(Some(&CapacityRange { required_bytes, limit_bytes })).unwrap(),
            least_bytes: 4096,
            source,
            choices: Choices::default(),
        }
    }

    #[test]
    fn a_repeated_call_takes_the_volume_that_is_there_if_the_size_fits() {
        assert_eq!(size(&new(8192, 0, None), None).unwrap(), 8192);
        assert_eq!(size(&new(8192, 0, None), Some(&export(8192))).unwrap(), 8192);
        assert_eq!(size(&new(4096, 16384, None), Some(&export(8192))).unwrap(), 8192);
        for (required, limit) in [(16384, 0), (4096, 4096)] {
            let error = size(&new(required, limit, None), Some(&export(8192))).unwrap_err();
            assert!(matches!(error, CsiError::Refused { code: tonic::Code::AlreadyExists, .. }), "{error}");
            assert!(error.to_string().ends_with(": use that size, or another name"), "{error}");
        }
    }

    #[test]
    fn a_volume_that_moves_has_no_parameters_that_do_not_move() {
        let queues = Choices { queues: Some(2), ..Choices::default() };
        let properties = SetRequest { durability: Some(Durability::Store), ..SetRequest::default() };
        let durable = Choices { properties, ..Choices::default() };
        check_movable(false, &queues).unwrap();
        check_movable(true, &durable).unwrap();
        assert!(check_movable(true, &queues).is_err());
    }

    #[test]
    fn a_copy_grows_and_never_shrinks() {
        assert_eq!(size(&new(16384, 0, Some("csi-b")), Some(&export(8192))).unwrap(), 16384);
        assert_eq!(size(&new(4096, 0, Some("csi-b")), Some(&export(8192))).unwrap(), 8192);
        assert!(size(&new(4096, 4096, Some("csi-b")), Some(&export(8192))).is_err());
    }

    #[test]
    fn a_source_that_nothing_can_have_is_not_found() {
        let volume = |id: &str| Type::Volume(VolumeSource { volume_id: id.into() });
        let snapshot = |id: &str| Type::Snapshot(SnapshotSource { snapshot_id: id.into() });
        let read = |r#type| source(Some(&VolumeContentSource { r#type: Some(r#type) }));
        for nothing in [volume("a/b"), volume(""), snapshot("csi-a"), snapshot("a@b@c")] {
            assert!(matches!(read(nothing), Err(CsiError::NotFound { .. })));
        }
        assert!(matches!(read(snapshot("a@b")).unwrap(), Some(Source::Snapshot(_))));
        assert!(matches!(
            source(Some(&VolumeContentSource { r#type: None })),
            Err(CsiError::Refused { code: tonic::Code::InvalidArgument, .. })
        ));
        assert_eq!(source(None).unwrap(), None);
    }
}
