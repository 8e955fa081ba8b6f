//! A world for tests of volumes: a store in memory, a clock, daemons, and cuts with known content in every sector.
//!
//! Owns nothing under test.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use crate::store::backend::Backend;
use crate::store::block_cache::BlockCache;
use crate::store::client::{Store, StoreOptions};
use crate::store::error::BoxError;
use crate::store::faulty::Seeded;
use crate::store::format::Manifest;
use crate::store::ids::{HostName, StoreName, VolumeId, WriterId};
use crate::store::key::{Folder, Key};
use crate::store::scripted::{ManualClock, ScriptedStore};
use crate::store::stats::{Operation, StoreStats};
use crate::store::volume::view::rows::LoadedManifest;
use crate::store::volume::{
    Committed, CutExtent, CutSource, StatePoint, Upload, View, VolumeError, VolumeStore, VolumeStoreOptions,
    VolumeWriter,
};
use crate::store::volume::{Notes, NotesInMemory};
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

impl VolumeWriter {
    /// As [`Self::commit`], going on where an earlier try of the same cut with the same `upload` has stopped.
    pub async fn commit_on(
        &self,
        cut: Arc<dyn CutSource>,
        size_sectors: u64,
        upload: &Upload,
    ) -> Result<Committed, VolumeError> {
        loop {
            if let Some(committed) = self.commit_turn(Arc::clone(&cut), size_sectors, upload).await? {
                return Ok(committed);
            }
        }
    }
}

impl VolumeWriter {
    /// See [`View::read`]. With a block cache, data that a sequential reader wants next is fetched meanwhile.
    pub async fn read(&self, range: SectorRange) -> Result<Bytes, VolumeError> {
        self.follow_reader(range).await;
        self.looking(|view: View| async move { view.read(range).await }).await
    }

    /// As [`View::mapped`], on the newest state.
    pub async fn mapped(&self, range: SectorRange) -> Result<Vec<SectorRange>, VolumeError> {
        self.looking(|view: View| async move { view.mapped(range).await }).await
    }

    /// A new volume with the content of the last commit: see [`VolumeStore::fork`].
    pub async fn fork(&self, name: &StoreName) -> Result<Self, VolumeError> {
        VolumeStore { host: self.host.clone() }
            .fork(&StatePoint { volume: self.id(), snapshot: None }, name)
            .await
    }
}

impl View {
    /// The manifest of this state.
    pub fn manifest(&self) -> &Manifest {
        &self.loaded.manifest
    }

    /// As [`VolumeWriter::covers`], of this state.
    pub fn covers(&self, range: SectorRange) -> bool {
        self.loaded.covers(range)
    }
}

impl VolumeStore {
    /// A state of any volume, for reading without taking the volume over.
    pub async fn view(&self, point: &StatePoint) -> Result<View, VolumeError> {
        let manifest = Arc::new(self.host.state_and_newest(point).await?.0);
        let (reader, store) = (Arc::clone(&self.host.reader), self.host.store.clone());
        Ok(View::new(reader, store, Arc::new(LoadedManifest::of(manifest))))
    }

    /// As [`VolumeWriter::delete_snapshot`], of any volume.
    pub async fn delete_snapshot(&self, volume: VolumeId, name: &StoreName) -> Result<(), VolumeError> {
        let keys = self.host.keys_of_snapshot(volume, name).await?;
        let keys: Vec<_> = keys.into_iter().map(|key| Key::Snapshot(volume, key)).collect();
        Ok(self.host.store.delete(&keys).await?)
    }

    /// Memory of manifests and pack indexes, bytes.
    pub fn metadata_bytes(&self) -> usize {
        self.host.reader.metadata.bytes()
    }

    /// Memory for packs being made and uploaded, bytes: what was set aside.
    pub fn upload_bytes(&self) -> u64 {
        self.host.upload_bytes()
    }

    /// Sets memory aside as for a pack of `data_bytes`.
    pub async fn set_upload_memory_aside(&self, data_bytes: u64) -> tokio::sync::OwnedSemaphorePermit {
        self.host.pack_memory(data_bytes).await.unwrap()
    }
}

/// Stands for the content of a sector; 0 means zeroes.
pub type Tag = u64;
/// Stands for a damaged sector.
pub const LOST: Tag = Tag::MAX;

/// The bytes of a sector with content `tag`. Every other tag compresses.
pub fn sector(tag: Tag) -> [u8; SECTOR_BYTES as usize] {
    let mut bytes = [0; SECTOR_BYTES as usize];
    match tag {
        0 => {}
        tag if tag % 2 == 0 => bytes.as_chunks_mut().0.fill(tag.to_le_bytes()),
        tag => blake3::Hasher::new().update(&tag.to_le_bytes()).finalize_xof().fill(&mut bytes),
    }
    bytes
}

pub fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(start, count).unwrap()
}

/// Keys of all objects except graves, and the observation that every run of garbage collection leaves. Tests have no marker.
pub async fn keys_in(store: &Store) -> Vec<Key> {
    let listing = store.list(Folder::All, None).await.unwrap();
    let stays = |key: &Key| match key {
        Key::Grave(_) => true,
        Key::Gc(name) => name.as_str().starts_with("candidates-"),
        _ => false,
    };
    listing.into_iter().map(|object| object.key).filter(|key| !stays(key)).collect()
}

pub fn name(text: &str) -> StoreName {
    text.parse().unwrap()
}

/// The bytes of `at` by `read`, with the bytes of [`LOST`] in the place of damaged sectors.
pub async fn patched<F>(at: SectorRange, read: impl Fn(SectorRange) -> F) -> Vec<u8>
where
    F: Future<Output = Result<Bytes, VolumeError>>,
{
    let (mut bytes, mut start) = (Vec::new(), at.start());
    while start < at.end() {
        let rest = range(start, at.end() - start);
        match read(rest).await {
            Ok(found) => {
                bytes.extend_from_slice(&found);
                break;
            }
            Err(VolumeError::Damaged { range: lost }) => {
                assert!(!lost.is_empty() && lost.start() >= start && lost.end() <= at.end());
                if lost.start() > start {
                    bytes.extend_from_slice(&read(range(start, lost.start() - start)).await.unwrap());
                }
                (0..lost.count()).for_each(|_| bytes.extend_from_slice(&sector(LOST)));
                start = lost.end();
            }
            Err(error) => panic!("{error}"),
        }
    }
    bytes
}

/// A cut with all content in memory.
#[derive(Debug, Default)]
pub struct MemoryCut {
    seq: Seq,
    extents: Vec<CutExtent>,
    tags: BTreeMap<u64, Tag>,
    /// Whether reads fail from now on.
    pub failing: Mutex<bool>,
}

impl MemoryCut {
    /// Runs of sectors, each as (first sector, count, tag). Tag 0 is WRITE_ZEROES. [`LOST`] is damage: some of these sectors are
    /// known as damaged before any read, so no extent has them; the others are found by reading.
    pub fn new(seq: u64, runs: &[(u64, u64, Tag)]) -> Arc<Self> {
        let mut tags = BTreeMap::new();
        for &(start, count, tag) in runs {
            tags.extend((start..start + count).map(|at| (at, tag)));
        }
        Self::of(seq, &tags)
    }

    /// Single sectors, joined into extents of neighbours.
    pub fn of(seq: u64, tags: &BTreeMap<u64, Tag>) -> Arc<Self> {
        let mut extents: Vec<CutExtent> = Vec::new();
        for (&at, &tag) in tags.iter().filter(|(at, tag)| **tag != LOST || **at % 48 < 24) {
            let zero = tag == 0;
            match extents.last_mut() {
                // Some neighbours stay apart: the commit has to join these.
                Some(last) if last.range.end() == at && last.zero == zero && at % 24 != 0 => {
                    last.range = range(last.range.start(), last.range.count() + 1);
                }
                _ => extents.push(CutExtent { range: range(at, 1), seq: Seq(seq), zero }),
            }
        }
        Arc::new(Self { seq: Seq(seq), extents, tags: tags.clone(), failing: Mutex::default() })
    }
}

impl CutSource for MemoryCut {
    fn seq(&self) -> Seq {
        self.seq
    }

    fn extents(&self) -> &[CutExtent] {
        &self.extents
    }

    fn read(&self, range: SectorRange, buffer: &mut [u8]) -> Result<(), BoxError> {
        if *self.failing.lock().unwrap() {
            return Err("the disk is broken".into());
        }
        assert_eq!(range.bytes(), Some(buffer.len() as u64));
        for (at, bytes) in (range.start()..).zip(buffer.chunks_mut(SECTOR_BYTES as usize)) {
            bytes.copy_from_slice(&sector(self.tags[&at]));
        }
        Ok(())
    }

    fn damaged(&self) -> Vec<SectorRange> {
        self.tags.iter().filter(|(_, tag)| **tag == LOST).map(|(at, _)| range(*at, 1)).collect()
    }
}

/// A cut of any length, with tag 2 × *n* + 1 in sector *n*: nothing compresses.
#[derive(Debug)]
pub struct BigCut(pub Vec<CutExtent>);

impl CutSource for BigCut {
    fn seq(&self) -> Seq {
        Seq(9)
    }

    fn extents(&self) -> &[CutExtent] {
        &self.0
    }

    fn read(&self, range: SectorRange, buffer: &mut [u8]) -> Result<(), BoxError> {
        for (at, bytes) in (range.start()..).zip(buffer.chunks_mut(SECTOR_BYTES as usize)) {
            bytes.copy_from_slice(&sector(2 * at + 1));
        }
        Ok(())
    }
}

/// A cut whose reads take time.
pub struct SlowCut {
    cut: Arc<MemoryCut>,
    clock: Arc<ManualClock>,
    takes: Duration,
}

impl SlowCut {
    /// Sectors 0 to 7. Each read advances the clock by `takes`.
    pub fn new(world: &World, takes: Duration, tag: Tag) -> Arc<Self> {
        let cut = MemoryCut::new(2, &[(0, 8, tag)]);
        Arc::new(Self { cut, clock: world.clock.clone(), takes })
    }
}

impl CutSource for SlowCut {
    fn seq(&self) -> Seq {
        self.cut.seq()
    }

    fn extents(&self) -> &[CutExtent] {
        self.cut.extents()
    }

    fn read(&self, range: SectorRange, buffer: &mut [u8]) -> Result<(), BoxError> {
        self.clock.advance(self.takes);
        self.cut.read(range, buffer)
    }
}

/// A store, a clock, and the daemons that use both.
pub struct World {
    pub clock: Arc<ManualClock>,
    pub objects: Arc<ScriptedStore>,
    seed: u64,
    /// Notes of each writer, in all its processes.
    notes: Mutex<BTreeMap<u8, Arc<NotesInMemory>>>,
    daemons: AtomicU64,
}

/// A daemon: its volumes, and counters of its requests.
pub struct Daemon {
    pub volumes: VolumeStore,
    pub stats: Arc<StoreStats>,
}

impl World {
    pub fn new() -> Self {
        Self::seeded(1)
    }

    pub fn seeded(seed: u64) -> Self {
        let clock = Arc::<ManualClock>::default();
        Self {
            objects: ScriptedStore::new(clock.clone()),
            clock,
            seed,
            notes: Mutex::default(),
            daemons: AtomicU64::new(0),
        }
    }

    /// A new process of the daemon `writer`.
    pub fn daemon(&self, writer: u8) -> Daemon {
        self.daemon_over(writer, Backend::over(self.objects.clone(), true), 64 << 20)
    }

    pub fn daemon_over(&self, writer: u8, backend: Backend, metadata_bytes_max: usize) -> Daemon {
        self.daemon_with(writer, backend, metadata_bytes_max, None)
    }

    /// A new process of the daemon `writer`, with a block cache.
    pub fn daemon_with_block_cache(&self, writer: u8, block_cache: &BlockCache) -> Daemon {
        let backend = Backend::over(self.objects.clone(), true);
        self.daemon_with(writer, backend, 64 << 20, Some(block_cache.clone()))
    }

    pub fn daemon_with(
        &self,
        writer: u8,
        backend: Backend,
        metadata_bytes_max: usize,
        block_cache: Option<BlockCache>,
    ) -> Daemon {
        let notes = self.notes.lock().unwrap().entry(writer).or_default().clone();
        self.daemon_noting(writer, backend, metadata_bytes_max, block_cache, notes)
    }

    /// A new process of the daemon `writer` with a clock of its own.
    pub fn daemon_with_clock(&self, writer: u8, clock: Arc<ManualClock>) -> Daemon {
        let notes = self.notes.lock().unwrap().entry(writer).or_default().clone();
        let options = VolumeStoreOptions { notes, clock, ..VolumeStoreOptions::new(WriterId([writer; 16])) };
        self.daemon_as(Backend::over(self.objects.clone(), true), options)
    }

    /// A new process of a copy of the daemon `writer`; the copy was made when the daemon had taken `notes`.
    pub fn copy(&self, writer: u8, notes: Arc<dyn Notes>) -> Daemon {
        let backend = Backend::over(self.objects.clone(), true);
        self.daemon_noting(writer, backend, 64 << 20, None, notes)
    }

    fn daemon_noting(
        &self,
        writer: u8,
        backend: Backend,
        metadata_bytes_max: usize,
        block_cache: Option<BlockCache>,
        notes: Arc<dyn Notes>,
    ) -> Daemon {
        let options = VolumeStoreOptions {
            clock: self.clock.clone(),
            host: HostName::nearest(&format!("host-{writer}")),
            metadata_bytes_max,
            block_cache,
            notes,
            ..VolumeStoreOptions::new(WriterId([writer; 16]))
        };
        self.daemon_as(backend, options)
    }

    /// A new process of the daemon `writer`, which keeps up to `recent_bytes_max` of uploaded packs in memory.
    pub fn daemon_with_recent(&self, writer: u8, recent_bytes_max: u64) -> Daemon {
        let options = VolumeStoreOptions {
            clock: self.clock.clone(),
            recent_bytes_max,
            ..VolumeStoreOptions::new(WriterId([writer; 16]))
        };
        self.daemon_as(Backend::over(self.objects.clone(), true), options)
    }

    /// A new process of the daemon `writer`, with `pack_bytes_max` for packs being made and packs uploaded last.
    pub fn daemon_with_pack_memory(&self, writer: u8, pack_bytes_max: u64) -> Daemon {
        let options = VolumeStoreOptions {
            clock: self.clock.clone(),
            upload_bytes_max: 64 << 20,
            recent_bytes_max: u64::MAX,
            pack_bytes_max,
            ..VolumeStoreOptions::new(WriterId([writer; 16]))
        };
        self.daemon_as(Backend::over(self.objects.clone(), true), options)
    }

    /// A new process of the daemon `writer` with such memory for READs.
    pub fn daemon_with_read_memory(
        &self,
        writer: u8,
        read_bytes_max: u64,
        block_cache: Option<BlockCache>,
    ) -> Daemon {
        let options = VolumeStoreOptions {
            clock: self.clock.clone(),
            read_bytes_max,
            block_cache,
            ..VolumeStoreOptions::new(WriterId([writer; 16]))
        };
        self.daemon_as(Backend::over(self.objects.clone(), true), options)
    }

    fn daemon_as(&self, backend: Backend, options: VolumeStoreOptions) -> Daemon {
        let stats = Arc::<StoreStats>::default();
        let seed = (self.seed << 20) + self.daemons.fetch_add(1, SeqCst);
        let store_options = StoreOptions {
            entropy: Arc::new(Seeded::new(seed)),
            stats: stats.clone(),
            ..StoreOptions::default()
        };
        let store = Store::over(backend, store_options);
        Daemon { volumes: VolumeStore::new(store, options), stats }
    }

    /// The highest manifest of `volume` noted by the daemon `writer`.
    pub fn highest_note(&self, writer: u8, volume: VolumeId) -> Option<u64> {
        self.notes_of(writer)?.highest(volume)
    }

    /// The notes of the daemon `writer`.
    pub fn notes_of(&self, writer: u8) -> Option<Arc<NotesInMemory>> {
        self.notes.lock().unwrap().get(&writer).cloned()
    }

    pub fn advance_hours(&self, hours: u64) {
        self.clock.advance(Duration::from_hours(hours));
    }
}

impl Daemon {
    /// Requests so far, by kind.
    pub fn requests(&self) -> [u64; Operation::ALL.len()] {
        Operation::ALL.map(|operation| self.stats.of(operation).requests.get())
    }

    /// Requests since `before`: gets, puts, listings, deletions, heads.
    pub fn since(&self, before: [u64; 5]) -> [u64; 5] {
        let now = self.requests();
        std::array::from_fn(|at| now[at] - before[at])
    }
}

/// Checks the content of `at` in the volume. Panics over bytes of a sector that no test wrote.
pub async fn tags(volume: &VolumeWriter, at: SectorRange, expected: &[Tag]) {
    let bytes = patched(at, |at| volume.read(at)).await;
    compare(at, &bytes, expected);
}

pub fn compare(at: SectorRange, bytes: &[u8], expected: &[Tag]) {
    assert_eq!(bytes.len() as u64, at.count() * SECTOR_BYTES);
    for (index, (found, tag)) in bytes.chunks(SECTOR_BYTES as usize).zip(expected).enumerate() {
        assert!(found == sector(*tag), "sector {} is not {tag}", at.start() + index as u64);
    }
}
