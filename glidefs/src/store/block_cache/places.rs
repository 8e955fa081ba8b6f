//! Which block is in which region of the file, and the regions in memory.
//!
//! Owns the table of blocks, and the order in which regions are given up. Does not own the file. Invariant: a block is only found
//! where the block was written last.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::region::{Geometry, HEADER_BYTES, RegionEntry, RegionHeader};

/// A block in the oldest eighth of the regions is written again when the block leaves memory.
const OLD_SHARE: u64 = 8;

#[derive(Debug, Default)]
pub(super) struct Places {
    /// Where blocks are, by their digests.
    pub index: HashMap<u64, BlockPlace>,
    pub regions: Vec<Region>,
    /// Regions that may be given up, oldest first.
    pub order: VecDeque<u32>,
    /// Sequence number of the newest region.
    pub sequence: u64,
    /// The region that is being filled.
    pub open: Option<RegionBuffer>,
    /// The region that is being written.
    pub writing: Option<Arc<RegionBuffer>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Region {
    pub sequence: u64,
    pub digests: Box<[u64]>,
}

/// Where a block is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockPlace {
    pub region: u32,
    pub at: u32,
    pub len: u32,
}

/// A region in memory: being filled, or being written.
#[derive(Debug)]
pub(super) struct RegionBuffer {
    pub region: u32,
    pub header: RegionHeader,
    pub blocks: Vec<u8>,
}

impl Places {
    /// The places after a start. `found` has each region at most once.
    pub fn recovered(geometry: Geometry, mut found: Vec<(u32, RegionHeader)>) -> Self {
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
    pub fn gathered(&self, place: BlockPlace) -> Option<Bytes> {
        let buffers = self.open.iter().chain(self.writing.as_deref());
        let buffer = buffers.into_iter().find(|buffer| buffer.region == place.region)?;
        let start = place.at.checked_sub(HEADER_BYTES)? as usize;
        buffer.blocks.get(start..start + place.len as usize).map(Bytes::copy_from_slice)
    }

    /// Sequence number of the region of `place`: a higher number was filled later.
    pub fn sequence_of(&self, place: BlockPlace) -> u64 {
        self.regions.get(place.region as usize).map_or(0, |region| region.sequence)
    }

    /// Whether the region of `place` is given up soon.
    pub fn is_old(&self, place: BlockPlace) -> bool {
        let regions = self.regions.len() as u64;
        self.sequence.saturating_sub(self.sequence_of(place)) > regions - regions / OLD_SHARE
    }

    /// Gives up the oldest region for a new one.
    pub fn next_buffer(&mut self, geometry: Geometry) -> Option<RegionBuffer> {
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
    pub fn add(&mut self, digest: u64, block: &[u8]) {
        let Some(buffer) = &mut self.open else { return };
        let (Ok(before), Ok(len)) = (u32::try_from(buffer.blocks.len()), u32::try_from(block.len())) else {
            return;
        };
        let at = HEADER_BYTES + before;
        buffer.blocks.extend_from_slice(block);
        buffer.header.entries.push(RegionEntry { digest, at, len });
        self.index.insert(digest, BlockPlace { region: buffer.region, at, len });
    }

    pub fn was_written(&mut self, buffer: &RegionBuffer, good: bool) {
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
    pub fn strike(&mut self, region: u32, digests: &[u64]) {
        for digest in digests {
            if self.index.get(digest).is_some_and(|place| place.region == region) {
                self.index.remove(digest);
            }
        }
    }
}
