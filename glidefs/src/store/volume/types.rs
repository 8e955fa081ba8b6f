//! Plain values that several files of this folder exchange: who writes a volume, where a daemon goes on, which state is meant.
//!
//! Owns no behaviour but how a state is taken from a manifest, and the arithmetic of sector ranges.

use std::fmt;

use bytes::Bytes;

use super::damage;
use crate::store::format::{Manifest, PackRef};
use crate::store::ids::{HostName, StoreName, VolumeId, WriterId};
use crate::units::{SectorRange, Seq};

/// The identity under which manifests of a volume are made. Of two fences the one with the higher epoch is the newer. A manifest
/// of an older fence is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Counts how often a host created, opened, took over or undeleted the volume.
    pub epoch: u64,
    /// Identity of the cache whose daemon made the manifest.
    pub writer: WriterId,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "writer {}, epoch {}", self.writer, self.epoch)
    }
}

/// The writer that has taken a volume over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taker {
    /// Its fence.
    pub fence: Fence,
    /// The name of its host. `None`: that host did not say, or a daemon before this one noticed the loss.
    pub host: Option<HostName>,
}

impl Taker {
    pub(super) fn of(manifest: &Manifest) -> Self {
        let fence = Fence { epoch: manifest.epoch, writer: manifest.writer };
        Self { fence, host: manifest.sections.holder.as_ref().map(|holder| holder.host.clone()) }
    }
}

impl fmt::Display for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) => write!(f, "host {host}, epoch {}", self.fence.epoch),
            None => self.fence.fmt(f),
        }
    }
}

/// State of a volume as a daemon remembers the volume, so that the daemon goes on after a restart without a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The volume to go on with.
    pub volume: VolumeId,
    /// The writer of the volume: the daemon that resumes.
    pub writer: WriterId,
    /// Epoch in which this writer took the volume over last.
    pub epoch: u64,
    /// Number of the newest manifest.
    pub number: u64,
    /// Size in the newest manifest, sectors.
    pub size_sectors: u64,
    /// The newest manifest has every write up to this sequence number.
    pub cut: Seq,
    /// Number of damaged sectors in the newest manifest.
    pub damaged_sectors: u64,
    /// The newest manifest as bytes. `None`: the manifest is fetched when it is needed.
    pub manifest: Option<Bytes>,
}

impl Resume {
    /// The state in `manifest`, without the bytes of the manifest.
    pub(super) fn of(manifest: &Manifest) -> Self {
        Self {
            volume: manifest.volume,
            writer: manifest.writer,
            epoch: manifest.epoch,
            number: manifest.number,
            size_sectors: manifest.size_sectors,
            cut: manifest.cut,
            damaged_sectors: damage::sectors(&manifest.sections.damaged),
            manifest: None,
        }
    }
}

/// One part of the answer to a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadExtent {
    /// Sectors of the part. Not empty.
    pub range: SectorRange,
    /// Bytes of the part; `None` when every byte is zero. The bytes may be a slice of a block, and keep all of the block (up to
    /// 64 KiB) in memory.
    pub data: Option<Bytes>,
}

/// A state of a volume in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePoint {
    /// The volume whose state is meant.
    pub volume: VolumeId,
    /// The snapshot that keeps the state; `None`: the newest state.
    pub snapshot: Option<StoreName>,
}

/// A snapshot, as a listing shows the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Name of the snapshot within its volume, or the last part of its key.
    pub name: StoreName,
    /// Time of creation by the clock of the store, milliseconds since 1970-01-01 UTC.
    pub created_unix_millis: u64,
}

/// The number after `number`. A volume cannot use numbers up, so the last number may repeat.
pub(super) fn next_number(number: u64) -> u64 {
    number.saturating_add(1)
}

/// The sectors from `start` to before `end`; an empty range when `end` is before `start`.
pub(super) fn between(start: u64, end: u64) -> SectorRange {
    let count = end.saturating_sub(start);
    SectorRange::new(start, count).unwrap_or_else(|| unreachable!("the end of a range does not overflow"))
}

/// The range from the lowest to the highest sector of a pack.
pub(super) fn reach(pack: &PackRef) -> SectorRange {
    // `PackRef::check`: the highest sector is below the last possible one.
    between(pack.lowest_sector, pack.highest_sector + 1)
}

pub(super) fn overlaps(pack: &PackRef, range: SectorRange) -> bool {
    pack.lowest_sector < range.end() && range.start() <= pack.highest_sector && !range.is_empty()
}
