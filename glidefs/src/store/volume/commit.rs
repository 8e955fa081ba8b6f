//! Writing a cut back: packs, then the manifest that lists the packs.
//!
//! Owns how many packs of a cut are in memory, and that data which a try has uploaded is not uploaded again. Does not own the
//! content of a cut, nor how a cut becomes packs (`packing`). Invariants: a manifest is created only when every listed pack is in
//! the store, and the cut is settled on this host.

pub(super) mod packing;
pub(super) mod upload;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};

use self::packing::{CutContent, CutPack, Packing};
use self::upload::{Span, Upload};
use super::compact::plan;
use super::crowd::{Crowd, check_room};
use super::cut::CutSource;
use super::damage;
use super::error::{VolumeError, blocking};
use super::host::EncodedManifest;
use super::types::{Resume, next_number};
use super::view::rows::Rows;
use super::writer::VolumeWriter;
use super::writer::new_packs::{NewPack, NewPacks};
use crate::fair::WEIGHT_DEFAULT;
use crate::store::format::{DAMAGED_RANGES_MAX, Manifest, PackRef, Sections};
use crate::store::ids::PackId;
use crate::units::SectorRange;

/// Packs of one cut uploaded at once.
const UPLOADS_AT_ONCE: usize = 3;
/// Number of times a cut is packed anew, because another manifest than expected turned out to be the newest.
const PACKINGS_MAX: usize = 3;
/// Time for making packs of one cut before other volumes, and other changes of this volume, have a turn; in proportion to the
/// weight of the volume.
const TURN_TIME: Duration = Duration::from_secs(5);

/// Most data of a cut of one pack, bytes, and most extents.
const ONE_PACK_BYTES_MAX: u64 = 1 << 20;
const ONE_PACK_EXTENTS_MAX: usize = 256;

/// A manifest that is in the store: of a cut, a rollback, or a step of compaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The state to remember for a restart.
    pub resume: Resume,
    /// Whether [`VolumeWriter::compact`] has a step to do.
    pub compaction_due: bool,
    /// How crowded the volume is now.
    pub crowd: Crowd,
}

impl Committed {
    fn of(resume: Resume, packs: &[PackRef]) -> Self {
        Self { resume, compaction_due: plan::is_due(packs), crowd: Rows::of(packs).crowd() }
    }
}

impl VolumeWriter {
    /// Writes a cut back. The volume has `size_sectors` sectors after the cut; sectors cut off by a smaller size are zero when
    /// the volume grows again. Costs one request for each pack of up to about 32 MiB, and one for the manifest.
    ///
    /// After an error the volume has all of the cut or nothing of the cut, whatever the error says. The caller goes on with a
    /// newer cut that has everything of this one.
    ///
    /// # Errors
    /// [`VolumeError::Fenced`] when another writer has the volume: for good.
    pub async fn commit(&self, cut: Arc<dyn CutSource>, size_sectors: u64) -> Result<Committed, VolumeError> {
        let upload = Upload::default();
        loop {
            if let Some(committed) = self.commit_turn(Arc::clone(&cut), size_sectors, &upload).await? {
                return Ok(committed);
            }
        }
    }

    /// As [`Self::commit`], going on where an earlier try of the same cut with the same `upload` has stopped, for [`TURN_TIME`] and the
    /// uploads that are under way then. `None` when the turn is over and the cut has more: the caller calls again after others who wait
    /// to upload.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub async fn commit_turn(
        &self,
        cut: Arc<dyn CutSource>,
        size_sectors: u64,
        upload: &Upload,
    ) -> Result<Option<Committed>, VolumeError> {
        let committed = self.try_commit(&cut, size_sectors, upload).await;
        if committed.is_err() && cut.may_come_back() {
            upload.forget_lossy();
        }
        committed
    }

    async fn try_commit(
        &self,
        cut: &Arc<dyn CutSource>,
        size_sectors: u64,
        upload: &Upload,
    ) -> Result<Option<Committed>, VolumeError> {
        check(&**cut, size_sectors)?;
        let _change = self.shared.change.lock().await;
        self.refresh().await?;
        for _ in 0..PACKINGS_MAX {
            let base = self.manifest().await?;
            let shrinks = size_sectors < base.size_sectors;
            let is_known =
                base.size_sectors == size_sectors && self.properties_after(&base) == base.sections.properties;
            if cut.extents().is_empty() && is_known && base.cut == cut.seq() {
                return Ok(Some(Committed::of(self.state(), &base.packs)));
            }
            // Damage known so far: if a manifest cannot list that much damage, uploading would be for nothing.
            check_damage(&damaged_after(&base, &**cut, upload, size_sectors))?;
            let content = CutContent { cut: cut.clone(), zero_from: shrinks.then_some(size_sectors) };
            check_room(base.packs.len(), content.data_bytes(), cut.extents().len())?;
            self.host.check_notes(self.id(), next_number(base.number)).await?;
            let edit = |base: &Manifest, uploads: &NewPacks| {
                (shrinks || base.size_sectors <= size_sectors).then(|| Manifest {
                    size_sectors,
                    cut: cut.seq(),
                    packs: in_front(uploads, &base.packs),
                    sections: self.host.holding(&Sections {
                        damaged: damaged_after(base, &**cut, upload, size_sectors),
                        ..base.sections.clone()
                    }),
                    ..base.clone()
                })
            };
            let noted = self.upload_one_pack(&base, &content, upload, edit).await?;
            if noted.is_none() && !self.upload_settled(content, upload).await? {
                if upload.wants_keeping(self.host.options.clock.since_boot()) {
                    self.keep(&upload.uploads()).await?;
                }
                return Ok(None);
            }
            let uploads = upload.uploads();
            let uploads = if cut.may_come_back() { uploads.giving_up(Arc::clone(cut)) } else { uploads };
            check_damage(&damaged_after(&base, &**cut, upload, size_sectors))?;
            if let Some(published) =
                self.publish_from(noted, &uploads, |base: &Manifest| edit(base, &uploads)).await?
            {
                return Ok(Some(self.committed(&published)));
            }
        }
        Err(VolumeError::Contended { volume: self.id() })
    }

    /// Uploads `content` if one pack has everything: while the pack goes to the store, the cut settles, and then the manifest is noted.
    ///
    /// ```text
    ///              ┌─▶ pack in the store ────────────────┐
    ///  pack made ──┴─▶ cut is settled ─▶ manifest noted ─┴─▶ manifest in the store
    /// ```
    ///
    /// A manifest is noted only when the cut is settled, since a copy of this host's disk with the note must have the data too. If the
    /// pack does not arrive, the store is never asked to create the manifest, and the note is taken back.
    ///
    /// Returns the manifest that is noted for the pack: the cut is settled then. `None` when the content is too much, or some of it is
    /// lost, or an earlier try has uploaded some: then the caller uploads whatever is not in `upload`, and settles the cut.
    async fn upload_one_pack(
        &self,
        base: &Manifest,
        content: &CutContent,
        upload: &Upload,
        edit: impl Fn(&Manifest, &NewPacks) -> Option<Manifest>,
    ) -> Result<Option<EncodedManifest>, VolumeError> {
        let (data_bytes, cut) = (content.data_bytes(), Arc::clone(&content.cut));
        if data_bytes > ONE_PACK_BYTES_MAX || cut.extents().len() > ONE_PACK_EXTENTS_MAX {
            return Ok(None);
        }
        let clock = &self.host.options.clock;
        if !upload.begin(content.hash(), data_bytes, clock.since_boot(), base).is_empty() {
            return Ok(None);
        }
        let permit = self.host.pack_memory(data_bytes).await?;
        let begun = clock.since_boot();
        let packing = Packing::new(content.clone(), &[]);
        let options = self.pack_options(0, content.first_seq(), cut.seq());
        let (made, mut packing) = blocking(move || packing.next_pack(options)).await?;
        let Some(CutPack { pack, sectors, data_bytes }) = made else { return Ok(None) };
        let is_whole = packing.is_done() && cut.damaged().is_empty();
        let draft = if is_whole {
            let uploads = NewPacks::since(begun, base.number, [pack.pack]);
            self.draft(base, |base| edit(base, &uploads))?
        } else {
            None
        };
        let local = async {
            cut.settled().await.map_err(|error| VolumeError::Unsettled(error.into()))?;
            match &draft {
                Some(draft) => self.host.note_manifest(draft).await,
                None => Ok(()),
            }
        };
        let (created, noted) = futures_util::join!(self.create_pack(pack), local);
        drop(permit);
        if let (Some(draft), true) = (&draft, created.is_err() && noted.is_ok()) {
            self.host.withdraw_note(draft);
        }
        let pack = created?;
        let lost = damage::parts_in(&cut.damaged(), sectors.clone());
        let new = NewPack { pack, begun, after: base.number };
        upload.add(Span { from: sectors.start, to: sectors.end, lost, data_bytes, new });
        noted?;
        Ok(draft)
    }

    /// As [`Self::upload`], while the cut settles. When all of the cut is in the store, the cut is settled as well.
    async fn upload_settled(&self, content: CutContent, upload: &Upload) -> Result<bool, VolumeError> {
        let cut = Arc::clone(&content.cut);
        let (uploaded, settled) = futures_util::join!(self.upload(content, upload), cut.settled());
        let is_whole = uploaded?;
        if is_whole {
            settled.map_err(|error| VolumeError::Unsettled(error.into()))?;
        }
        Ok(is_whole)
    }

    pub(super) fn committed(&self, published: &EncodedManifest) -> Committed {
        Committed::of(self.state_with(Some(published.bytes.clone())), &published.manifest.packs)
    }

    /// Has a manifest of unchanged content list `uploads` as uploaded: garbage collection does not know how long the rest of the
    /// cut takes, or a rollback. A later manifest that neither lists these packs as content nor as uploaded gives the packs up.
    pub(super) async fn keep(&self, uploads: &NewPacks) -> Result<(), VolumeError> {
        let edit = |base: &Manifest| {
            let uploaded = uploads.packs().map(|pack| pack.pack).collect();
            let sections = Sections { uploaded, ..self.host.holding(&base.sections) };
            Some(Manifest { sections, ..base.clone() })
        };
        self.publish(uploads, edit).await.map(drop)
    }

    /// Makes and uploads the packs of `content` that no earlier try has uploaded. Stops early when the turn is over, or a
    /// manifest has to keep the uploaded packs. Returns whether all of `content` is in the store.
    ///
    /// After an error, uploaded packs are in `upload` as well.
    async fn upload(&self, content: CutContent, upload: &Upload) -> Result<bool, VolumeError> {
        let clock = &self.host.options.clock;
        let base = self.manifest().await?;
        let kept = upload.begin(content.hash(), content.data_bytes(), clock.since_boot(), &base);
        let after = base.number;
        drop(base);
        let turn_end = clock.since_boot().saturating_add(turn_time(self.weight()));
        let is_over = |now| now >= turn_end || upload.wants_keeping(now);
        let stops = Arc::new(AtomicBool::new(is_over(clock.since_boot())));
        let cut = content.cut.clone();
        let packing = Packing::new(content, &kept);
        // Owned, so that the future can move between threads.
        let state = (self.clone(), packing, Arc::clone(&stops));
        let packs = stream::try_unfold(state, |(volume, packing, stops)| async move {
            if stops.load(Ordering::Acquire) {
                return Ok(None);
            }
            let permit = volume.host.pack_memory(packing.left_bytes).await?;
            let begun = volume.host.options.clock.since_boot();
            let options = volume.pack_options(0, packing.content.first_seq(), packing.content.cut.seq());
            let (pack, packing) = blocking(move || packing.next_pack(options)).await?;
            Ok::<_, VolumeError>(pack.map(|pack| ((pack, begun, permit), (volume, packing, stops))))
        });
        let volume = self.clone();
        let uploading = packs.map(move |made| {
            let (volume, cut) = (volume.clone(), cut.clone());
            async move {
                let (CutPack { pack, sectors, data_bytes }, begun, permit) = made?;
                let pack = volume.create_pack(pack).await?;
                drop(permit);
                let lost = damage::parts_in(&cut.damaged(), sectors.clone());
                let new = NewPack { pack, begun, after };
                Ok(Span { from: sectors.start, to: sectors.end, lost, data_bytes, new })
            }
        });
        let mut uploading = uploading.buffer_unordered(UPLOADS_AT_ONCE).boxed();
        let mut failed = None;
        while let Some(uploaded) = uploading.next().await {
            match uploaded {
                Ok(span) => {
                    upload.add(span);
                    if is_over(clock.since_boot()) {
                        stops.store(true, Ordering::Release);
                    }
                }
                Err(error) => {
                    // Uploads under way go on; no other upload begins.
                    stops.store(true, Ordering::Release);
                    failed.get_or_insert(error);
                }
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(!stops.load(Ordering::Acquire)),
        }
    }
}

/// Length of a turn of a volume of this weight: half of [`TURN_TIME`] to twice as much, as others wait meanwhile.
fn turn_time(weight: u16) -> Duration {
    let weight = weight.clamp(WEIGHT_DEFAULT / 2, WEIGHT_DEFAULT * 2);
    TURN_TIME * u32::from(weight) / u32::from(WEIGHT_DEFAULT)
}

/// `packs` before `older`. `older` may have some of `packs` already, when a manifest of an earlier try arrived late.
fn in_front(packs: &NewPacks, older: &[PackRef]) -> Vec<PackRef> {
    let new: HashSet<PackId> = packs.packs().map(|pack| pack.pack).collect();
    packs.packs().chain(older.iter().filter(|pack| !new.contains(&pack.pack))).copied().collect()
}

/// An error when `cut` breaks the rules of [`CutSource`].
fn check(cut: &dyn CutSource, size_sectors: u64) -> Result<(), VolumeError> {
    let mut end = 0;
    for extent in cut.extents() {
        if extent.range.is_empty() || extent.range.start() < end {
            return Err(VolumeError::BadCut("its extents are empty, or do not ascend"));
        }
        if extent.seq > cut.seq() {
            return Err(VolumeError::BadCut("it has something newer than itself"));
        }
        end = extent.range.end();
    }
    if end > size_sectors {
        return Err(VolumeError::BadCut("it goes beyond the end of the volume"));
    }
    Ok(())
}

/// The damaged sectors of the state that `cut` makes of `base`.
fn damaged_after(
    base: &Manifest,
    cut: &dyn CutSource,
    upload: &Upload,
    size_sectors: u64,
) -> Vec<SectorRange> {
    let written = cut.extents().iter().map(|extent| extent.range);
    // Sectors packed by earlier tries are not read again, so `upload` knows which of these were lost.
    let lost = [cut.damaged(), upload.lost()].concat();
    damage::after(&base.sections.damaged, written, &lost, size_sectors)
}

/// An error when `damaged` has more ranges than a manifest can list. Ranges are never joined across whole sectors: whole sectors
/// would be lost.
fn check_damage(damaged: &[SectorRange]) -> Result<(), VolumeError> {
    let runs = damaged.len();
    if runs > DAMAGED_RANGES_MAX { Err(VolumeError::TooDamaged { runs }) } else { Ok(()) }
}
