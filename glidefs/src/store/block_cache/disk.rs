//! Blocks on local disk: one file of fixed length, written region by region.
//!
//! Owns which block is where in the file, and which region is given up for the next one. Does not own what blocks hold: who asks
//! for one checks it. Invariant: the file never grows, a failure of the disk costs blocks and nothing else, and a block is only
//! found where it was written last.
//!
//! Blocks are gathered in memory until a region is full, which is then written at once in the place of the oldest one. Its header
//! is invalidated before and written after its blocks, so that a killed process leaves no header that names other blocks.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::figures::Counters;
use super::region::{ENTRIES_MAX, Geometry, HEADER_BYTES, RegionEntry, RegionHeader};
use crate::store::format::BLOCK_BYTES_MAX;

/// Name of the file in its directory.
pub(super) const FILE_NAME: &str = "clean-blocks";
/// How many threads look through the headers of a file that is opened.
const SCANNERS: u32 = 8;
/// A block in the oldest eighth of the regions is written again when it leaves memory.
const OLD_SHARE: u64 = 8;

/// The blocks on disk.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    geometry: Geometry,
    counters: Arc<Counters>,
    runtime: Handle,
    state: Mutex<State>,
    /// Told whenever a region was written.
    written: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Where blocks are, by their digests.
    index: HashMap<u64, BlockPlace>,
    regions: Vec<Region>,
    /// Regions that may be given up, the first one first.
    order: VecDeque<u32>,
    /// Of the newest region.
    sequence: u64,
    /// What is being filled.
    open: Option<RegionBuffer>,
    /// What is being written.
    writing: Option<Arc<RegionBuffer>>,
}

#[derive(Clone, Debug, Default)]
struct Region {
    sequence: u64,
    digests: Box<[u64]>,
}

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockPlace {
    region: u32,
    at: u32,
    len: u32,
}

/// A region in memory.
#[derive(Debug)]
struct RegionBuffer {
    region: u32,
    header: RegionHeader,
    blocks: Vec<u8>,
}

impl Disk {
    /// Opens the file in `directory`, or makes it. What it holds is there again, as far as it is intact.
    pub async fn open(
        directory: &Path,
        geometry: Geometry,
        counters: Arc<Counters>,
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
        let state = Mutex::new(State::recovered(geometry, found));
        Ok(Arc::new(Self { file, geometry, counters, runtime, state, written: Notify::new() }))
    }

    /// A block of that length, unchecked, if it is here.
    pub async fn get(self: &Arc<Self>, digest: u64, len: usize) -> Option<Bytes> {
        let (place, sequence) = {
            let mut state = self.state();
            let place = *state.index.get(&digest)?;
            if place.len as usize != len {
                // Another block of the same digest.
                state.index.remove(&digest);
                return None;
            }
            if let Some(block) = state.gathered(place) {
                return Some(block);
            }
            (place, state.sequence_of(place))
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
        // Its region may have been given up meanwhile, and have got the block again, in the same place.
        let state = self.state();
        let is_same = state.index.get(&digest) == Some(&place) && state.sequence_of(place) == sequence;
        is_same.then_some(block)
    }

    /// Whether it may be here. Asks memory only.
    pub fn has(&self, digest: u64) -> bool {
        self.state().index.contains_key(&digest)
    }

    /// Has a block here, unless the disk is busy: then whoever needs it fetches it again.
    pub fn put(self: &Arc<Self>, digest: u64, block: &[u8]) {
        if !self.try_put(digest, block) {
            self.counters.unwritten_bytes.add(block.len() as u64);
        }
    }

    /// Makes sure that a block is here. `false`: the disk is busy.
    fn try_put(self: &Arc<Self>, digest: u64, block: &[u8]) -> bool {
        debug_assert!((1..=BLOCK_BYTES_MAX).contains(&block.len()), "blocks of packs are not longer");
        let mut state = self.state();
        if state.index.get(&digest).is_some_and(|place| !state.is_old(*place)) {
            return true;
        }
        let has_room = |buffer: &RegionBuffer| {
            let end = HEADER_BYTES as usize + buffer.blocks.len() + block.len();
            end <= self.geometry.region_bytes as usize && buffer.header.entries.len() < ENTRIES_MAX
        };
        if !state.open.as_ref().is_some_and(has_room) {
            if state.open.is_some() && state.writing.is_some() {
                return false;
            }
            self.write_open(&mut state);
            state.open = state.next_buffer(self.geometry);
        }
        state.add(digest, block);
        true
    }

    /// A block that was not what it should be is not here any more.
    pub fn forget(&self, digest: u64) {
        self.state().index.remove(&digest);
    }

    /// Writes `blocks`, and everything that is in memory only.
    pub async fn settle(self: &Arc<Self>, blocks: &[(u64, Bytes)]) {
        for (digest, block) in blocks {
            self.until(|| self.try_put(*digest, block)).await;
        }
        let all_begun = || {
            let mut state = self.state();
            if state.writing.is_none() {
                self.write_open(&mut state);
            }
            state.open.is_none()
        };
        self.until(all_begun).await;
        self.until(|| self.state().writing.is_none()).await;
    }

    /// Memory for regions on their way and for what is known of blocks, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let state = self.state();
        let buffers = u64::from(state.open.is_some()) + u64::from(state.writing.is_some());
        // An entry of a hash table has one byte more, and a table is never full; each region lists its digests as well.
        let index = state.index.capacity() * 8 / 7 * (size_of::<(u64, BlockPlace)>() + 1);
        let lists = state.index.len() * size_of::<u64>() + state.regions.len() * size_of::<Region>();
        buffers * u64::from(self.geometry.region_bytes) + (index + lists) as u64
    }

    /// Space of the disk in use, bytes.
    pub fn disk_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.blocks() * 512)
    }

    /// Whether a region is being written.
    #[cfg(test)]
    pub fn is_busy(&self) -> bool {
        self.state().writing.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when `attempt` succeeds, which it may whenever a region was written.
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

    /// Begins to write the region that was filled, if there is one; none may be being written.
    fn write_open(self: &Arc<Self>, state: &mut State) {
        let Some(buffer) = state.open.take().map(Arc::new) else { return };
        state.writing = Some(Arc::clone(&buffer));
        let disk = Arc::clone(self);
        self.runtime.spawn_blocking(move || {
            let result = disk.write(&buffer);
            match &result {
                Ok(()) => disk.counters.written_bytes.add(buffer.blocks.len() as u64),
                Err(error) => disk.failed("writing", error),
            }
            disk.state().was_written(&buffer, result.is_ok());
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
        if self.counters.may_log() {
            tracing::warn!(
                doing,
                error = error as &dyn std::error::Error,
                "the disk of the block cache fails; blocks are read from the store"
            );
        }
    }
}

impl State {
    /// What `found` says, of which each region is in once at most.
    fn recovered(geometry: Geometry, mut found: Vec<(u32, RegionHeader)>) -> Self {
        found.sort_unstable_by_key(|(_, header)| header.sequence);
        let mut state =
            Self { regions: vec![Region::default(); geometry.regions as usize], ..Self::default() };
        let used: std::collections::HashSet<u32> = found.iter().map(|(region, _)| *region).collect();
        state.order.extend((0..geometry.regions).filter(|region| !used.contains(region)));
        for (region, RegionHeader { sequence, entries }) in found {
            state.sequence = sequence;
            state.order.push_back(region);
            for RegionEntry { digest, at, len } in &entries {
                state.index.insert(*digest, BlockPlace { region, at: *at, len: *len });
            }
            let digests = entries.iter().map(|entry| entry.digest).collect();
            state.regions[region as usize] = Region { sequence, digests };
        }
        state
    }

    /// A block that is in memory.
    fn gathered(&self, place: BlockPlace) -> Option<Bytes> {
        let buffers = self.open.iter().chain(self.writing.as_deref());
        let buffer = buffers.into_iter().find(|buffer| buffer.region == place.region)?;
        let start = place.at.checked_sub(HEADER_BYTES)? as usize;
        buffer.blocks.get(start..start + place.len as usize).map(Bytes::copy_from_slice)
    }

    /// How late its region was filled.
    fn sequence_of(&self, place: BlockPlace) -> u64 {
        self.regions.get(place.region as usize).map_or(0, |region| region.sequence)
    }

    /// Whether its region is given up soon.
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

    /// Adds a block to the region that is filled, which has room for it.
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

/// What is done where it may wait for a disk.
async fn blocking<T: Send + 'static>(
    runtime: &Handle,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    runtime.spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// The file, as long as it has to be, and with the right superblock. Another one is emptied.
fn open_file(path: &Path, geometry: Geometry) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
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

/// What every [`SCANNERS`]th region from `first` on says of itself.
fn scan(file: &File, geometry: Geometry, first: u32) -> Scan {
    let mut scan = Scan { found: Vec::new(), damaged: 0 };
    let mut bytes = vec![0; HEADER_BYTES as usize];
    for region in (first..geometry.regions).step_by(SCANNERS as usize) {
        let read = file.read_exact_at(&mut bytes, geometry.offset(region));
        match RegionHeader::decode(&bytes, geometry.region_bytes).filter(|_| read.is_ok()) {
            Some(header) => scan.found.push((region, header)),
            // None was written, or the last process ended while it was.
            None if read.is_ok() && bytes.iter().take(64).all(|byte| *byte == 0) => {}
            None => scan.damaged += 1,
        }
    }
    scan
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
        let counters = Arc::<Counters>::default();
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
            // The last write may not have let go of it yet.
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
            let held = disk.state().index.len();
            assert!(held <= 32, "{held} blocks are believed to be there");
        }
        drop(disk);
        let disk = open().await.unwrap();
        disk.put(1000, &[2; 100]);
        disk.settle(&[]).await;
        assert!(disk.get(1000, 100).await.is_some());
    }
}
