//! Blocks on local disk: one file of fixed length, written region by region.
//!
//! Owns the file, which file starts empty, when a region is written, and which block is in which region. Does not own the content of
//! blocks: the caller checks a block. Invariants: an opened file has the length and the superblock of its geometry, and never grows; a
//! failure of the disk costs blocks and nothing else.
//!
//! Blocks are gathered in memory until a region is full. The full region replaces the oldest region in one go. The header of the
//! old region is zeroed before the blocks are written, and the new header is written after the blocks. So a killed process leaves
//! no header that names other blocks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::BlockCacheCounters;
use super::region::{ENTRIES_MAX, Geometry, HEADER_BYTES, RegionEntry, RegionHeader};
use crate::locks::MutexExt;
use crate::store::format::BLOCK_BYTES_MAX;

/// Name of the file in the cache directory.
pub(super) const FILE_NAME: &str = "clean-blocks";
/// Number of threads that read the headers of a file that is opened.
const SCANNERS: u32 = 8;
/// A block in the oldest eighth of the regions is written again when the block leaves memory.
const OLD_SHARE: u64 = 8;

/// The file, the places of all blocks, and the regions in memory.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    geometry: Geometry,
    counters: Arc<BlockCacheCounters>,
    runtime: Handle,
    places: Mutex<Places>,
    /// Told whenever a region was written.
    written: Notify,
}

impl Disk {
    /// Opens the file in `directory`, or makes the file. Blocks of intact regions are there again.
    pub async fn open(
        directory: &Path,
        geometry: Geometry,
        counters: Arc<BlockCacheCounters>,
        runtime: Handle,
    ) -> io::Result<Arc<Self>> {
        let path = directory.join(FILE_NAME);
        let file = Arc::new(blocking(&runtime, move || open_file(&path, geometry)).await?);
        let scans = (0..SCANNERS).map(|scanner| {
            let file = Arc::clone(&file);
            blocking(&runtime, move || Ok(scan(&file, geometry, scanner)))
        });
        let scans = futures_util::future::try_join_all(scans).await?;
        let (mut found, mut damaged) = (Vec::new(), 0);
        for scan in scans {
            found.extend(scan.found);
            damaged += scan.damaged;
        }
        if damaged > 0 {
            tracing::warn!(
                directory = %directory.display(),
                regions = damaged,
                "parts of the block cache are damaged and start empty"
            );
        }
        let file = Arc::try_unwrap(file).map_err(|_| io::Error::other("the file is still in use"))?;
        let places = Mutex::new(Places::recovered(geometry, found));
        Ok(Arc::new(Self { file, geometry, counters, runtime, places, written: Notify::new() }))
    }

    /// The unchecked block of this digest and length, if the file or a region in memory has the block.
    pub async fn get(self: &Arc<Self>, digest: u64, len: usize) -> Option<Bytes> {
        let (place, sequence) = {
            let mut places = self.places();
            let place = *places.index.get(&digest)?;
            if place.len as usize != len {
                // Another block of the same digest.
                places.index.remove(&digest);
                return None;
            }
            if let Some(block) = places.gathered(place) {
                return Some(block);
            }
            (place, places.sequence_of(place))
        };
        let disk = Arc::clone(self);
        let block = match blocking(&self.runtime, move || disk.read(place)).await {
            Ok(block) => block,
            Err(error) => {
                self.failed("reading", &error);
                self.forget(digest);
                return None;
            }
        };
        // The region may have been given up during the read. The region may then even have got the same block again, in the same
        // place.
        let places = self.places();
        let is_same = places.index.get(&digest) == Some(&place) && places.sequence_of(place) == sequence;
        is_same.then_some(block)
    }

    /// Whether the block may be on disk. Asks memory only.
    pub fn has(&self, digest: u64) -> bool {
        self.places().index.contains_key(&digest)
    }

    /// Stores a block, unless the block is on disk already or the disk is busy. A block that a busy disk did not take is fetched
    /// again when needed.
    pub fn put(self: &Arc<Self>, digest: u64, block: &[u8]) {
        let _ = self.try_put(digest, block);
    }

    /// As [`Self::put`]. `false`: the disk is busy.
    fn try_put(self: &Arc<Self>, digest: u64, block: &[u8]) -> bool {
        debug_assert!((1..=BLOCK_BYTES_MAX).contains(&block.len()), "blocks of packs are not longer");
        let mut places = self.places();
        if places.index.get(&digest).is_some_and(|place| !places.is_old(*place)) {
            return true;
        }
        let has_room = |buffer: &RegionBuffer| {
            let end = HEADER_BYTES as usize + buffer.blocks.len() + block.len();
            end <= self.geometry.region_bytes as usize && buffer.header.entries.len() < ENTRIES_MAX
        };
        if !places.open.as_ref().is_some_and(has_room) {
            if places.open.is_some() && places.writing.is_some() {
                return false;
            }
            self.write_open(&mut places);
            places.open = places.next_buffer(self.geometry);
        }
        places.add(digest, block);
        true
    }

    /// Forgets a block that turned out to be wrong.
    pub fn forget(&self, digest: u64) {
        self.places().index.remove(&digest);
    }

    /// Writes `blocks`, and all blocks that are in memory only.
    pub async fn settle(self: &Arc<Self>, blocks: &[(u64, Bytes)]) {
        for (digest, block) in blocks {
            self.until(|| self.try_put(*digest, block)).await;
        }
        let all_begun = || {
            let mut places = self.places();
            if places.writing.is_none() {
                self.write_open(&mut places);
            }
            places.open.is_none()
        };
        self.until(all_begun).await;
        self.until(|| self.places().writing.is_none()).await;
    }

    /// Memory of the regions in memory and of the tables of blocks, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let places = self.places();
        let buffers = u64::from(places.open.is_some()) + u64::from(places.writing.is_some());
        // A hash table has one more byte for each entry, and at least an eighth of a table stays free. Each region lists its
        // digests as well.
        let index = places.index.capacity() * 8 / 7 * (size_of::<(u64, BlockPlace)>() + 1);
        let lists = places.index.len() * size_of::<u64>() + places.regions.len() * size_of::<Region>();
        buffers * u64::from(self.geometry.region_bytes) + (index + lists) as u64
    }

    /// Whether a region is being written.
    #[cfg(test)]
    pub fn is_busy(&self) -> bool {
        self.places().writing.is_some()
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock_whole()
    }

    /// Returns when `attempt` succeeds. `attempt` is called again after each region that was written.
    async fn until(&self, mut attempt: impl FnMut() -> bool) {
        loop {
            let mut written = std::pin::pin!(self.written.notified());
            written.as_mut().enable();
            if attempt() {
                return;
            }
            written.await;
        }
    }

    fn read(&self, place: BlockPlace) -> io::Result<Bytes> {
        let mut block = vec![0; place.len as usize];
        let offset = self.geometry.offset(place.region) + u64::from(place.at);
        self.file.read_exact_at(&mut block, offset)?;
        Ok(block.into())
    }

    /// Begins to write the region that was filled, if there is one. The caller makes sure that no other region is being written.
    fn write_open(self: &Arc<Self>, places: &mut Places) {
        let Some(buffer) = places.open.take().map(Arc::new) else { return };
        places.writing = Some(Arc::clone(&buffer));
        let disk = Arc::clone(self);
        self.runtime.spawn_blocking(move || {
            let result = disk.write(&buffer);
            if let Err(error) = &result {
                disk.failed("writing", error);
            }
            disk.places().was_written(&buffer, result.is_ok());
            disk.written.notify_waiters();
        });
    }

    fn write(&self, buffer: &RegionBuffer) -> io::Result<()> {
        let offset = self.geometry.offset(buffer.region);
        let header = buffer.header.encode();
        self.file.write_all_at(&vec![0; header.len()], offset)?;
        self.file.write_all_at(&buffer.blocks, offset + u64::from(HEADER_BYTES))?;
        self.file.write_all_at(&header, offset)
    }

    fn failed(&self, doing: &'static str, error: &io::Error) {
        self.counters.errors.add(1);
        if let Some(suppressed) = self.counters.troubles.pass() {
            tracing::warn!(
                doing,
                suppressed,
                error = error as &dyn std::error::Error,
                "the disk of the block cache fails; blocks are read from the store"
            );
        }
    }
}

/// The table of blocks, the order in which regions are given up, and the regions in memory. A block is only found where the block was
/// written last.
#[derive(Debug, Default)]
struct Places {
    /// Where blocks are, by their digests.
    index: HashMap<u64, BlockPlace>,
    regions: Vec<Region>,
    /// Regions that may be given up, oldest first.
    order: VecDeque<u32>,
    /// Sequence number of the newest region.
    sequence: u64,
    /// The region that is being filled.
    open: Option<RegionBuffer>,
    /// The region that is being written.
    writing: Option<Arc<RegionBuffer>>,
}

#[derive(Clone, Debug, Default)]
struct Region {
    sequence: u64,
    digests: Box<[u64]>,
}

/// Where a block is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockPlace {
    region: u32,
    at: u32,
    len: u32,
}

/// A region in memory: being filled, or being written.
#[derive(Debug)]
struct RegionBuffer {
    region: u32,
    header: RegionHeader,
    blocks: Vec<u8>,
}

impl Places {
    /// The places after a start. `found` has each region at most once.
    fn recovered(geometry: Geometry, mut found: Vec<(u32, RegionHeader)>) -> Self {
        found.sort_unstable_by_key(|(_, header)| header.sequence);
        let mut places =
            Self { regions: vec![Region::default(); geometry.regions as usize], ..Self::default() };
        let used: HashSet<u32> = found.iter().map(|(region, _)| *region).collect();
        places.order.extend((0..geometry.regions).filter(|region| !used.contains(region)));
        for (region, RegionHeader { sequence, entries }) in found {
            places.sequence = sequence;
            places.order.push_back(region);
            for RegionEntry { digest, at, len } in &entries {
                places.index.insert(*digest, BlockPlace { region, at: *at, len: *len });
            }
            let digests = entries.iter().map(|entry| entry.digest).collect();
            places.regions[region as usize] = Region { sequence, digests };
        }
        places
    }

    /// A copy of the block at `place`, if the region of the place is in memory.
    fn gathered(&self, place: BlockPlace) -> Option<Bytes> {
        let buffers = self.open.iter().chain(self.writing.as_deref());
        let buffer = buffers.into_iter().find(|buffer| buffer.region == place.region)?;
        let start = place.at.checked_sub(HEADER_BYTES)? as usize;
        buffer.blocks.get(start..start + place.len as usize).map(Bytes::copy_from_slice)
    }

    /// Sequence number of the region of `place`: a higher number was filled later.
    fn sequence_of(&self, place: BlockPlace) -> u64 {
        self.regions.get(place.region as usize).map_or(0, |region| region.sequence)
    }

    /// Whether the region of `place` is given up soon.
    fn is_old(&self, place: BlockPlace) -> bool {
        let regions = self.regions.len() as u64;
        self.sequence.saturating_sub(self.sequence_of(place)) > regions - regions / OLD_SHARE
    }

    /// Gives up the oldest region for a new one.
    fn next_buffer(&mut self, geometry: Geometry) -> Option<RegionBuffer> {
        let region = self.order.pop_front()?;
        self.sequence = self.sequence.saturating_add(1);
        let next = Region { sequence: self.sequence, digests: Box::default() };
        let old = std::mem::replace(self.regions.get_mut(region as usize)?, next);
        self.strike(region, &old.digests);
        Some(RegionBuffer {
            region,
            header: RegionHeader { sequence: self.sequence, entries: Vec::new() },
            blocks: Vec::with_capacity((geometry.region_bytes - HEADER_BYTES) as usize),
        })
    }

    /// Adds a block to the region that is being filled. The caller has checked that there is room.
    fn add(&mut self, digest: u64, block: &[u8]) {
        let Some(buffer) = &mut self.open else { return };
        let (Ok(before), Ok(len)) = (u32::try_from(buffer.blocks.len()), u32::try_from(block.len())) else {
            return;
        };
        let at = HEADER_BYTES + before;
        buffer.blocks.extend_from_slice(block);
        buffer.header.entries.push(RegionEntry { digest, at, len });
        self.index.insert(digest, BlockPlace { region: buffer.region, at, len });
    }

    fn was_written(&mut self, buffer: &RegionBuffer, good: bool) {
        self.writing = None;
        self.order.push_back(buffer.region);
        let digests: Box<[u64]> = buffer.header.entries.iter().map(|entry| entry.digest).collect();
        if !good {
            self.strike(buffer.region, &digests);
        } else if let Some(region) = self.regions.get_mut(buffer.region as usize) {
            region.digests = digests;
        }
    }

    /// The blocks of a region are not there any more; some may be elsewhere by now.
    fn strike(&mut self, region: u32, digests: &[u64]) {
        for digest in digests {
            if self.index.get(digest).is_some_and(|place| place.region == region) {
                self.index.remove(digest);
            }
        }
    }
}

/// The file with the length and the superblock of `geometry`. A file with another superblock is emptied.
fn open_file(path: &Path, geometry: Geometry) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let superblock = geometry.superblock();
    let mut found = superblock.map(|_| 0);
    let same = file.read_exact_at(&mut found, 0).is_ok() && found == superblock;
    if !same && file.metadata()?.len() > 0 {
        tracing::warn!(
            path = %path.display(),
            "the block cache is damaged, or was made with another version or size: it starts empty"
        );
        file.set_len(0)?;
    }
    file.set_len(geometry.file_bytes())?;
    file.write_all_at(&superblock, 0)?;
    Ok(file)
}

struct Scan {
    found: Vec<(u32, RegionHeader)>,
    damaged: u64,
}

/// Reads the headers of every [`SCANNERS`]th region from `first` on.
fn scan(file: &File, geometry: Geometry, first: u32) -> Scan {
    let mut scan = Scan { found: Vec::new(), damaged: 0 };
    let mut bytes = vec![0; HEADER_BYTES as usize];
    for region in (first..geometry.regions).step_by(SCANNERS as usize) {
        let read = file.read_exact_at(&mut bytes, geometry.offset(region));
        match RegionHeader::decode(&bytes, geometry.region_bytes).filter(|_| read.is_ok()) {
            Some(header) => scan.found.push((region, header)),
            // No header was written, or the last process ended during the write.
            None if read.is_ok() && bytes.iter().take(64).all(|byte| *byte == 0) => {}
            None => scan.damaged += 1,
        }
    }
    scan
}

/// Runs `work`, which may wait for a disk, on a blocking thread.
async fn blocking<T: Send + 'static>(
    runtime: &Handle,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    runtime.spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use tempfile::TempDir;

    use super::*;

    const GEOMETRY: Geometry = Geometry { region_bytes: 1 << 18, regions: 8 };

    #[tokio::test]
    async fn a_disk_that_fails_costs_blocks_and_nothing_else() {
        let directory = TempDir::new().unwrap();
        let counters = Arc::<BlockCacheCounters>::default();
        let open = || Disk::open(directory.path(), GEOMETRY, Arc::clone(&counters), Handle::current());
        let mut disk = open().await.unwrap();
        for digest in 0..16 {
            disk.put(digest, &[9; 60_000]);
            disk.until(|| !disk.is_busy()).await;
        }
        disk.settle(&[]).await;
        // Nothing can be written from now on, then not even be read.
        let path = directory.path().join(FILE_NAME);
        for (file, reads) in [(File::open(&path), true), (OpenOptions::new().write(true).open(&path), false)]
        {
            // The task of the last write may still hold a reference.
            while Arc::strong_count(&disk) > 1 {
                tokio::task::yield_now().await;
            }
            Arc::get_mut(&mut disk).unwrap().file = file.unwrap();
            let before = counters.errors.get();
            for digest in 100..400 {
                disk.put(digest, &[1; 60_000]);
                disk.until(|| !disk.is_busy()).await;
                assert!(
                    disk.get(digest % 16, 60_000).await.is_none_or(|block| reads && block == [9; 60_000][..])
                );
                assert!(disk.get(digest, 60_000).await.is_none_or(|block| block == [1; 60_000][..]));
            }
            disk.settle(&[(1, Bytes::from(vec![9; 60_000]))]).await;
            assert!(!reads || counters.errors.get() >= before + 70);
            let held = disk.places().index.len();
            assert!(held <= 32, "{held} blocks are believed to be there");
        }
        drop(disk);
        let disk = open().await.unwrap();
        disk.put(1000, &[2; 100]);
        disk.settle(&[]).await;
        assert!(disk.get(1000, 100).await.is_some());
    }
}
