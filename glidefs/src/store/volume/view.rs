//! Reading what one manifest says.
//!
//! Owns which pack counts for a sector, and which blocks are fetched. Does not own the manifest's being the newest.
//! Invariant: every byte was checked against the index it was found by, and that against the manifest; sectors that no pack
//! has are zero; a sector that the manifest lists as damaged is an error, whatever packs have of it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::{join_all, try_join_all};

use super::fetch::Supply;
use super::host::Host;
use super::metadata::Listing;
use super::{Crowd, ReadExtent, VolumeError};
use crate::store::client::Store;
use crate::store::error::StoreError;
use crate::store::format::{IndexEntry, Manifest, PackIndex, PackRef, PieceKind};
use crate::units::{SECTOR_BYTES, SectorRange};

/// How many indexes are fetched at once at most. It begins with the newest one, which often says it all.
const INDEXES_AT_ONCE_MAX: usize = 8;

/// A state of a volume, to be read. Cheap to clone. It stays readable for as long as garbage collection leaves the packs of
/// its manifest alone: as long as that is the newest, or a snapshot, and [`super::GRACE_MIN`] longer.
#[derive(Clone, Debug)]
pub struct View {
    pub(super) host: Arc<Host>,
    /// The store, as who reads uses it.
    pub(super) store: Store,
    pub(super) listing: Arc<Listing>,
}

/// Which part of a range is where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub range: SectorRange,
    pub content: Content,
}

/// What a part is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// In which of the packs that were asked, and by which entry.
    Block(usize, IndexEntry),
    /// Zeroes, as one of the packs says.
    Zero,
    /// None of the packs says anything.
    Absent,
}

impl Part {
    /// Where to fetch it.
    fn block(&self) -> Option<(usize, IndexEntry)> {
        match self.content {
            Content::Block(pack, entry) => Some((pack, entry)),
            Content::Zero | Content::Absent => None,
        }
    }
}

/// A pack, with its index.
pub(super) type Opened = (PackRef, Arc<PackIndex>);

impl View {
    /// What readers of a volume that is open here see.
    pub(super) fn of(host: Arc<Host>, listing: Arc<Listing>) -> Self {
        let store = host.store.for_readers(listing.manifest.volume);
        Self { host, store, listing }
    }

    /// What it shows.
    pub fn manifest(&self) -> &Manifest {
        &self.listing.manifest
    }

    /// Whether any pack may have something of `range`, or some of it is damaged. If not, it is zero. Asks nobody.
    pub fn covers(&self, range: SectorRange) -> bool {
        self.listing.covers(range)
    }

    /// The bytes of `range`, for which there must be memory.
    pub async fn read(&self, range: SectorRange) -> Result<Bytes, VolumeError> {
        Ok(join(range, &self.read_extents(range).await?))
    }

    /// As [`Self::read`], for one who needs `parts` of `range` only: damage elsewhere is no error, and the bytes there mean
    /// nothing.
    pub async fn read_parts(&self, range: SectorRange, parts: &[SectorRange]) -> Result<Bytes, VolumeError> {
        parts.iter().try_for_each(|part| self.listing.check(*part))?;
        Ok(join(range, &self.stored(range).await?))
    }

    /// What `range` holds: extents that ascend, without gaps, and cover it.
    ///
    /// What the clean cache does not have costs one request for each run of blocks that lie near each other in a pack, and one for
    /// each index that is not in memory.
    ///
    /// # Errors
    /// [`VolumeError::Damaged`] when some of it is damaged.
    pub async fn read_extents(&self, range: SectorRange) -> Result<Vec<ReadExtent>, VolumeError> {
        self.listing.check(range)?;
        self.stored(range).await
    }

    /// What packs have of `range`.
    async fn stored(&self, range: SectorRange) -> Result<Vec<ReadExtent>, VolumeError> {
        let packs = self.open_packs(range).await?;
        let parts = resolve(&packs, range);
        self.host.fetch(&self.store, &packs, &parts, Keeping::Clean).await
    }

    /// Has the clean cache keep what `range` holds. How much of it had to be fetched, bytes as stored.
    pub(super) async fn read_ahead(&self, range: SectorRange) -> Result<u64, VolumeError> {
        let packs = self.open_packs(range).await?;
        self.host.keep(&self.store, &packs, &resolve(&packs, range)).await
    }

    /// Where `range` may hold something other than zeroes: ascending, without overlaps or neighbours. Reads indexes only.
    ///
    /// # Errors
    /// [`VolumeError::Damaged`] when some of it is damaged.
    pub async fn mapped(&self, range: SectorRange) -> Result<Vec<SectorRange>, VolumeError> {
        self.listing.check(range)?;
        let packs = self.open_packs(range).await?;
        let mut mapped: Vec<SectorRange> = Vec::new();
        for part in resolve(&packs, range).into_iter().filter(|part| part.block().is_some()) {
            match mapped.last_mut() {
                Some(last) if last.end() == part.range.start() => {
                    *last = between(last.start(), part.range.end());
                }
                _ => mapped.push(part.range),
            }
        }
        Ok(mapped)
    }

    /// How many packs a sector may have to be looked for in, and how many there are.
    pub fn crowd(&self) -> Crowd {
        self.listing.rows.crowd()
    }

    /// The packs that may have something of `range`, newest first, with their indexes: until those say everything about it.
    async fn open_packs(&self, range: SectorRange) -> Result<Vec<Opened>, VolumeError> {
        let packs: Vec<PackRef> = self.listing.reaching(range).copied().collect();
        let mut missing = if range.is_empty() { Vec::new() } else { vec![range] };
        let (mut opened, mut at_once) = (Vec::new(), 1);
        while !missing.is_empty() && opened.len() < packs.len() {
            let until = packs.len().min(opened.len() + at_once);
            let chunk = &packs[opened.len()..until];
            let indexes = try_join_all(chunk.iter().map(|pack| self.host.index(&self.store, pack))).await?;
            for (pack, index) in chunk.iter().zip(indexes) {
                missing = missing.into_iter().flat_map(|range| absent(&index, range)).collect();
                opened.push((*pack, index));
            }
            at_once = INDEXES_AT_ONCE_MAX.min(at_once * 2);
        }
        Ok(opened)
    }
}

/// The parts of `range` that `index` knows nothing of.
fn absent(index: &PackIndex, range: SectorRange) -> Vec<SectorRange> {
    index.lookup(range).filter(|piece| piece.kind == PieceKind::Absent).map(|piece| piece.range).collect()
}

/// Where every sector of `range` is, as far as `packs` say, newest first: parts that ascend, without gaps.
pub(super) fn resolve(packs: &[Opened], range: SectorRange) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut missing = if range.is_empty() { Vec::new() } else { vec![range] };
    for (number, (_, index)) in packs.iter().enumerate() {
        let mut still_missing = Vec::new();
        for piece in missing.iter().flat_map(|range| index.lookup(*range)) {
            match piece.kind {
                PieceKind::Data(entry) => {
                    parts.push(Part { range: piece.range, content: Content::Block(number, *entry) });
                }
                PieceKind::Zero => parts.push(Part { range: piece.range, content: Content::Zero }),
                PieceKind::Absent => still_missing.push(piece.range),
            }
        }
        missing = still_missing;
    }
    parts.extend(missing.into_iter().map(|range| Part { range, content: Content::Absent }));
    parts.sort_unstable_by_key(|part| part.range.start());
    parts
}

/// What becomes of blocks that were fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeping {
    /// The clean cache has them, or keeps them.
    Clean,
    /// They are needed once.
    Nothing,
}

impl Host {
    /// The index of a pack, from `store` if it is not here.
    pub(super) async fn index(
        &self,
        store: &Store,
        pack: &PackRef,
    ) -> Result<Arc<PackIndex>, Arc<StoreError>> {
        let load = || {
            let (store, pack) = (store.clone(), *pack);
            async move { store.pack_index(&pack).await }
        };
        self.metadata.index(pack, load).await
    }

    /// The data of `parts`, which `packs` have, from `store` where it is not here.
    pub(super) async fn fetch(
        &self,
        store: &Store,
        packs: &[Opened],
        parts: &[Part],
        keeping: Keeping,
    ) -> Result<Vec<ReadExtent>, VolumeError> {
        let needed = needed(parts);
        let clean = self.options.clean.as_ref().filter(|_| keeping == Keeping::Clean);
        let mut blocks: Vec<Option<Bytes>> = vec![None; needed.len()];
        if let Some(clean) = clean {
            // Parts name packs that exist.
            let looks = needed.iter().map(|(pack, entry)| clean.get(packs[*pack].0.pack, entry));
            blocks = join_all(looks).await;
        }
        if let Some(recent) = &self.recent {
            for (block, (pack, entry)) in blocks.iter_mut().zip(&needed).filter(|(block, _)| block.is_none())
            {
                *block = recent.block(packs[*pack].0.pack, entry);
            }
        }
        let places: Vec<usize> = (0..needed.len()).filter(|place| blocks[*place].is_none()).collect();
        let requests = places.chunk_by(|a, b| needed[*a].0 == needed[*b].0).map(|chunk| {
            let supply = Supply { store, pack: &packs[needed[chunk[0]].0].0, clean };
            let entries: Vec<IndexEntry> = chunk.iter().map(|place| needed[*place].1).collect();
            async move { self.fetcher.blocks(supply, &entries).await }
        });
        let fetched = try_join_all(requests).await?;
        for (place, block) in places.iter().zip(fetched.into_iter().flatten()) {
            blocks[*place] = Some(block);
        }
        let extent = |part: &Part| {
            let data = part.block().map(|(pack, entry)| {
                let key = (pack, entry.offset_bytes);
                let found = needed.binary_search_by_key(&key, |(pack, entry)| (*pack, entry.offset_bytes));
                // Everything that parts name was needed.
                let block = found.ok().and_then(|at| blocks.get(at)?.clone()).unwrap_or_default();
                slice(&block, entry.range.start(), part.range)
            });
            ReadExtent { range: part.range, data }
        };
        Ok(parts.iter().map(extent).collect())
    }

    /// Has the clean cache keep the data of `parts`. How much of it had to be fetched, bytes as stored.
    async fn keep(&self, store: &Store, packs: &[Opened], parts: &[Part]) -> Result<u64, VolumeError> {
        let (needed, clean) = (needed(parts), self.options.clean.as_ref());
        let requests = needed.chunk_by(|a, b| a.0 == b.0).map(|chunk| {
            // Chunks are not empty, and name packs that exist.
            let supply = Supply { store, pack: &packs[chunk[0].0].0, clean };
            let entries: Vec<IndexEntry> = chunk.iter().map(|(_, entry)| *entry).collect();
            async move { self.fetcher.keep(supply, &entries).await }
        });
        Ok(try_join_all(requests).await?.into_iter().sum())
    }
}

/// The blocks of `parts`, by pack and place there.
fn needed(parts: &[Part]) -> Vec<(usize, IndexEntry)> {
    let mut needed: Vec<(usize, IndexEntry)> = parts.iter().filter_map(Part::block).collect();
    needed.sort_unstable_by_key(|(pack, entry)| (*pack, entry.offset_bytes));
    needed.dedup_by_key(|(pack, entry)| (*pack, entry.offset_bytes));
    needed
}

/// Sectors `range` of a block that begins at sector `start` and covers it.
fn slice(block: &Bytes, start: u64, range: SectorRange) -> Bytes {
    let at = |sector: u64| usize::try_from((sector - start) * SECTOR_BYTES).unwrap_or(usize::MAX);
    block.slice(at(range.start())..at(range.end()))
}

/// `extents`, which cover `range`, as bytes.
fn join(range: SectorRange, extents: &[ReadExtent]) -> Bytes {
    // There is memory for all of it.
    let bytes = |range: SectorRange| {
        range.bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX)
    };
    let mut joined = BytesMut::with_capacity(bytes(range));
    for extent in extents {
        match &extent.data {
            Some(data) => joined.extend_from_slice(data),
            None => joined.resize(joined.len() + bytes(extent.range), 0),
        }
    }
    joined.freeze()
}

/// The sectors from `start` to `end`; none when it ends before.
pub(super) fn between(start: u64, end: u64) -> SectorRange {
    let count = end.saturating_sub(start);
    SectorRange::new(start, count).unwrap_or_else(|| unreachable!("the end of a range does not overflow"))
}

/// The sectors that a pack may have.
pub(super) fn reach(pack: &PackRef) -> SectorRange {
    // `PackRef::check`: the highest sector is below the last possible one.
    between(pack.lowest_sector, pack.highest_sector + 1)
}

pub(super) fn overlaps(pack: &PackRef, range: SectorRange) -> bool {
    pack.lowest_sector < range.end() && range.start() <= pack.highest_sector && !range.is_empty()
}
