//! Storing a cut: packs, then the manifest that lists them.
//!
//! Owns how a cut becomes packs, and how many of those are in memory. Does not own what is in a cut. Invariant: a manifest is
//! created only when everything it lists is in the store.

use std::panic::resume_unwind;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::crowd::{Rows, check_room};
use super::host::next;
use super::land::{Landed, Uploads};
use super::{Committed, CutSource, Volume, VolumeError, damage};
use crate::store::client::Created;
use crate::store::format::{
    DAMAGED_RANGES_MAX, EncodedPack, Manifest, PackBuilder, PackOptions, PackRef, PushError, Sections,
};
use crate::store::ids::{PackId, VolumeId};
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

/// Packs of one cut that are uploaded at once.
const UPLOADS_AT_ONCE: usize = 3;
/// How much of a cut is read at once, sectors: whole blocks.
const READ_SECTORS: u64 = (1 << 20) / SECTOR_BYTES;
/// How often a cut is packed anew because the state before it turned out to be another one.
const PACKINGS_MAX: usize = 3;

impl Volume {
    /// Stores a cut, after which the volume has `size_sectors` sectors: one request for a pack, or one for about 32 MiB, and one
    /// for the manifest. What becomes smaller is zero when it grows again.
    ///
    /// After an error nothing or all of it is in the store, whether or not the error says so; go on with a newer cut that has
    /// everything this one has.
    ///
    /// # Errors
    /// [`VolumeError::Fenced`] when another writer has the volume: for good.
    pub async fn commit(&self, cut: Arc<dyn CutSource>, size_sectors: u64) -> Result<Committed, VolumeError> {
        check(&*cut, size_sectors)?;
        let _change = self.0.change.lock().await;
        self.refresh().await?;
        for _ in 0..PACKINGS_MAX {
            let base = self.manifest().await?;
            let shrinks = size_sectors < base.size_sectors;
            if cut.extents().is_empty() && base.size_sectors == size_sectors && base.cut == cut.seq() {
                return Ok(Committed {
                    resume: self.state(),
                    packs: 0,
                    pack_bytes: 0,
                    compaction_due: super::choose::is_due(&base.packs),
                    crowd: Rows::of(&base.packs).crowd(),
                });
            }
            check_room(base.packs.len(), data_bytes(&*cut), cut.extents().len())?;
            // What is known before anything is uploaded for nothing.
            check_damage(&damaged_after(&base, &*cut, size_sectors))?;
            let source = Source { cut: cut.clone(), zero_from: shrinks.then_some(size_sectors) };
            self.0.host.check_notes(self.id(), next(base.number)).await?;
            let uploads = self.upload(source).await?;
            check_damage(&damaged_after(&base, &*cut, size_sectors))?;
            let edit = |base: &Manifest| {
                (shrinks || base.size_sectors <= size_sectors).then(|| Manifest {
                    size_sectors,
                    cut: cut.seq(),
                    packs: [&uploads.packs[..], &base.packs].concat(),
                    sections: self.0.host.holding(&Sections {
                        damaged: damaged_after(base, &*cut, size_sectors),
                        ..base.sections.clone()
                    }),
                    ..base.clone()
                })
            };
            if let Some(landed) = self.land(&uploads, edit).await? {
                return Ok(self.committed(&landed, &uploads));
            }
        }
        Err(VolumeError::Contended { volume: self.id() })
    }

    pub(super) fn committed(&self, landed: &Landed, uploads: &Uploads) -> Committed {
        Committed {
            resume: self.resume_landed(landed),
            packs: uploads.packs.len(),
            pack_bytes: uploads.packs.iter().map(|pack| pack.total_bytes).sum(),
            compaction_due: super::choose::is_due(&landed.manifest.packs),
            crowd: Rows::of(&landed.manifest.packs).crowd(),
        }
    }

    /// Makes packs of `source` and uploads them.
    async fn upload(&self, source: Source) -> Result<Uploads, VolumeError> {
        let begun = self.0.host.options.clock.since_boot();
        // Owned, so that the future can move between threads.
        let volume = self.clone();
        let packs = stream::try_unfold(Packing::new(source), move |packing| {
            let volume = volume.clone();
            async move {
                let permit = volume.0.host.pack_memory(packing.left_bytes).await?;
                let options = volume.pack_options(0, packing.source.first_seq(), packing.source.cut.seq());
                let (pack, packing) = blocking(move || packing.next_pack(options)).await?;
                Ok::<_, VolumeError>(pack.map(|pack| ((pack, permit), packing)))
            }
        });
        let volume = self.clone();
        let uploaded = packs.map_ok(move |(pack, permit)| {
            let volume = volume.clone();
            async move {
                let pack = volume.create_pack(pack).await?;
                drop(permit);
                Ok(pack)
            }
        });
        let mut packs: Vec<PackRef> =
            uploaded.try_buffer_unordered(UPLOADS_AT_ONCE).boxed().try_collect().await?;
        packs.sort_unstable_by_key(|pack| pack.lowest_sector);
        Ok(Uploads { begun, packs })
    }

    pub(super) fn pack_options(&self, level: u8, first_seq: Seq, last_seq: Seq) -> PackOptions {
        let (host, volume): (_, VolumeId) = (&self.0.host, self.id());
        let pack = PackId::random(host.store.entropy());
        PackOptions { volume, pack, level, first_seq, last_seq, zstd_level: host.options.zstd_level }
    }

    pub(super) async fn create_pack(&self, pack: EncodedPack) -> Result<PackRef, VolumeError> {
        let host = &self.0.host;
        let created = pack.trailer.pack;
        match host.store.create_pack(&pack).await? {
            Created::Created => {}
            // Its identity is random: only one who makes the same random numbers can have created it.
            Created::Existed => return Err(VolumeError::Contended { volume: self.id() }),
        }
        // What is merged next. Results of merges are read much later.
        if let Some(recent) = host.recent.as_ref().filter(|_| created.level == 0)
            && let Some(index) = recent.put(pack)
        {
            host.metadata.put_index(created.pack, index);
        }
        Ok(created)
    }
}

/// Whether `cut` is what a cut must be.
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
fn damaged_after(base: &Manifest, cut: &dyn CutSource, size_sectors: u64) -> Vec<SectorRange> {
    let written = cut.extents().iter().map(|extent| extent.range);
    damage::after(&base.sections.damaged, written, &cut.damaged(), size_sectors)
}

/// Whether a manifest can list `damaged`. Ranges are never joined over what is whole: that would lose it.
fn check_damage(damaged: &[SectorRange]) -> Result<(), VolumeError> {
    let runs = damaged.len();
    if runs > DAMAGED_RANGES_MAX { Err(VolumeError::TooDamaged { runs }) } else { Ok(()) }
}

/// Data in a cut, bytes.
fn data_bytes(cut: &dyn CutSource) -> u64 {
    let data = cut.extents().iter().filter(|extent| !extent.zero);
    data.filter_map(|extent| extent.range.bytes()).fold(0, u64::saturating_add)
}

/// Runs `work` on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(VolumeError::Stopping),
        },
    }
}

/// What is stored: a cut, and zeroes behind the end of a volume that becomes smaller.
struct Source {
    cut: Arc<dyn CutSource>,
    zero_from: Option<u64>,
}

impl Source {
    fn first_seq(&self) -> Seq {
        self.cut.extents().iter().map(|extent| extent.seq).min().unwrap_or(self.cut.seq())
    }
}

/// A source, of which the beginning is packed.
struct Packing {
    source: Source,
    /// The next extent.
    extent: usize,
    /// Its first sector that is not packed, if some of it is.
    at: Option<u64>,
    /// Data that is not packed.
    left_bytes: u64,
}

impl Packing {
    fn new(source: Source) -> Self {
        let left_bytes = data_bytes(&*source.cut);
        Self { source, extent: 0, at: None, left_bytes }
    }

    /// The next pack; `None` when everything is packed.
    fn next_pack(mut self, options: PackOptions) -> Result<(Option<EncodedPack>, Self), VolumeError> {
        let builder = PackBuilder::new(options);
        let mut builder = builder.map_err(|error| VolumeError::Compressor(Arc::new(error)))?;
        while !builder.is_full() && self.push_some(&mut builder)? {}
        Ok((builder.finish(), self))
    }

    /// Adds the next piece. `false`: there is none.
    fn push_some(&mut self, builder: &mut PackBuilder) -> Result<bool, VolumeError> {
        let Some(extent) = self.source.cut.extents().get(self.extent).copied() else {
            let Some(from) = self.source.zero_from.take() else { return Ok(false) };
            let rest = SectorRange::new(from, u64::MAX - from).filter(|rest| !rest.is_empty());
            rest.map_or(Ok(()), |rest| builder.push_zero(rest)).map_err(bad)?;
            return Ok(true);
        };
        if extent.zero {
            builder.push_zero(extent.range).map_err(bad)?;
            self.extent += 1;
            return Ok(true);
        }
        let start = self.at.unwrap_or(extent.range.start());
        // Up to a boundary between blocks.
        let count = (READ_SECTORS - start % READ_SECTORS).min(extent.range.end() - start);
        let piece = super::view::between(start, start + count);
        let bytes = usize::try_from(count * SECTOR_BYTES);
        let mut data = vec![0; bytes.unwrap_or_else(|_| unreachable!("at most READ_SECTORS"))];
        self.source.cut.read(piece, &mut data).map_err(VolumeError::cut)?;
        builder.push_data(start, Bytes::from(data)).map_err(bad)?;
        self.at = Some(piece.end());
        self.left_bytes = self.left_bytes.saturating_sub(count * SECTOR_BYTES);
        if piece.end() == extent.range.end() {
            self.at = None;
            self.extent += 1;
        }
        Ok(true)
    }
}

/// What cannot happen with a cut that was checked, and packs that end when they are full.
pub(super) fn bad(error: PushError) -> VolumeError {
    VolumeError::BadCut(match error {
        PushError::Order => "its extents do not ascend",
        PushError::Unfit => "an extent is not in whole sectors",
        PushError::Full => "an extent does not fit into a pack",
    })
}
