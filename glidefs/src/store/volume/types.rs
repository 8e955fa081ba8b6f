//! Plain values that several files of this folder exchange: who writes a volume, where a daemon goes on, which state is meant.
//!
//! Owns no behaviour.

use std::fmt;

use bytes::Bytes;

use crate::store::ids::{StoreName, VolumeId, WriterId};
use crate::units::{SectorRange, Seq};

/// Who writes a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// How often the volume was taken over.
    pub epoch: u64,
    /// By whom.
    pub writer: WriterId,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "writer {}, epoch {}", self.writer, self.epoch)
    }
}

/// What a daemon remembers of a volume, so that it can go on with it after a restart without a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Which volume.
    pub volume: VolumeId,
    /// Who writes it.
    pub writer: WriterId,
    /// How often it was taken over, by this writer the last time.
    pub epoch: u64,
    /// Number of the newest manifest.
    pub number: u64,
    /// Size that manifest says, sectors.
    pub size_sectors: u64,
    /// Everything up to here is in the store.
    pub cut: Seq,
    /// How many sectors that manifest lists as damaged.
    pub damaged_sectors: u64,
    /// That manifest as bytes. `None`: it is fetched when it is needed.
    pub manifest: Option<Bytes>,
}

/// A part of what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadExtent {
    /// Which sectors. Not empty.
    pub range: SectorRange,
    /// Their bytes; `None` when all of them are zero. May keep the block of up to 64 KiB alive that they are a part of.
    pub data: Option<Bytes>,
}

/// A state of a volume in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePoint {
    /// Of which volume.
    pub volume: VolumeId,
    /// What a snapshot keeps; `None`: the newest state.
    pub snapshot: Option<StoreName>,
}

/// A snapshot, as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: StoreName,
    /// When it was made by the clock of the store, milliseconds since 1970-01-01 UTC.
    pub created_unix_millis: u64,
}

/// The number behind `number`. There are more than a volume can use up.
pub(super) fn next_number(number: u64) -> u64 {
    number.saturating_add(1)
}
