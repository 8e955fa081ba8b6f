//! Events of a simulation, counted, so a fault which never fired fails the test instead of passing the test.
//!
//! Owns the list of events. Does not own the time of an event.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// The process was killed and its page cache stayed.
    Kill,
    /// The host lost power.
    PowerCut,
    /// A kill cut an append in the middle.
    AppendCutByKill,
    /// Power was lost in the middle of an append.
    AppendCutByPower,
    /// A write was durable as soon as it had ended.
    AppendStable,
    /// A crash in the middle of a sync.
    CrashInSync,
    /// A crash while a segment file was made.
    CrashInCreate,
    /// A crash while the superblock was replaced.
    CrashInSuperblock,
    /// A crash while the keeper worked.
    CrashInKeeper,
    /// A crash while the cache was being opened.
    CrashInOpen,
    /// A frame that was not synced was lost at a power cut.
    FrameLost,
    /// A frame that was not synced survived a power cut.
    FrameKept,
    /// A frame that was not synced was torn at a power cut.
    FrameTorn,
    /// A frame survived a power cut, and one written before, in any file, did not.
    FramesReordered,
    /// A write failed with EIO.
    WriteEio,
    /// A write failed with ENOSPC.
    WriteEnospc,
    /// A failed write left part of its bytes behind.
    WriteShort,
    /// A failed write left all of its bytes behind.
    WriteWholeButFailed,
    /// A sync failed with EIO.
    SyncEio,
    /// A read failed with EIO.
    ReadEio,
    /// Opening or making a segment file failed.
    OpenEio,
    /// A read did not find the bytes in memory.
    ReadWouldBlock,
    /// An append ended before one that was asked for earlier.
    AppendOutOfOrder,
    /// A sync ended before one that was asked for earlier.
    SyncOutOfOrder,
    /// A read ended before one that was asked for earlier.
    ReadOutOfOrder,
    /// Opening failed because of an injected fault, and succeeded without it.
    OpenFailedCleanly,
    /// The cache was stopped with nothing in flight.
    CleanStop,
    /// The cache was opened with another number of shards.
    ShardsChanged,
    /// The cache was opened with a larger size.
    SizeGrown,
    /// The cache was opened with a smaller size.
    SizeShrunk,
    /// The cache refused to be opened with a smaller size.
    ShrinkRefused,
    /// A volume was removed.
    VolumeRemoved,
    /// A volume was removed with requests of it in flight.
    VolumeRemovedBusy,
    /// A write was told to ask again later.
    Delay,
    /// A write was told to wait for room.
    Wait,
    /// A write was refused because the cache is full.
    Full,
    /// A reservation was given back unused.
    Cancelled,
    /// A request failed because of an injected fault.
    RequestFailed,
    /// A FLUSH came back without error.
    Flushed,
    /// A write with FUA came back without error.
    WrittenThrough,
    /// A read returned bytes of a write that was in flight at the same time.
    ReadRaced,
    /// A segment was cleaned.
    Cleaned,
    /// One life wrote more than three times the size of the cache.
    Overwritten,
    /// After a power cut a sector was older than the newest acknowledged write of the sector, as the sector may be.
    WriteLost,
    /// After a crash a sector had content of a write without acknowledgement, as the sector may.
    UnacknowledgedKept,
    /// Recovery found a record cut short.
    TornTail,
    /// Recovery read a segment through its footer.
    Footer,
    Scan,
    Request,
    SectorChecked,
    /// The disk did not read the superblock.
    SuperblockUnread,
    /// The disk did not read a segment header in front.
    HeaderUnread,
    /// The disk did not read the copy of a segment header.
    CopyUnread,
    /// The disk did not read a trailer.
    TrailerUnread,
    /// The disk did not read a footer.
    FooterUnread,
    /// The disk did not read a record header.
    RecordUnread,
    /// The disk did not read a frame of data.
    DataUnread,
    /// After a failed sync a page read as the content of the medium.
    PageGone,
    FrameGivenUp,
    /// A segment file was not used any more because the disk does not read all of the file.
    SegmentQuarantined,
    /// An export may have lost a record.
    ExportDoubted,
    /// A sector with data lost by the disk could not be read.
    SectorFailed,
    /// A checkpoint of the index was written.
    CheckpointWritten,
    /// The disk did not take a checkpoint.
    CheckpointFailed,
    /// A crash while a checkpoint was written.
    CrashInCheckpoint,
    /// The disk did not read the checkpoint.
    CheckpointUnread,
    /// A start did not use a checkpoint, because of damage.
    CheckpointRefused,
    /// A checkpoint covered a segment.
    Covered,
    /// A start with a checkpoint found segments that the checkpoint does not cover.
    PartlyCovered,
    /// The number of a covered segment went to another segment while the checkpoint was made.
    CoveredReused,
    /// A start found a checkpoint that is not of the life before.
    CheckpointLeftOver,
    CrashInCheckpointRemoved,
    /// A start with the checkpoint was compared to a start without.
    StartsCompared,
    /// An older copy of the cache directory was put back.
    PutBack,
}

impl Event {
    /// All events, in the order of declaration.
    pub const ALL: [Self; 74] = {
        use Event as E;
        [
            E::Kill,
            E::PowerCut,
            E::AppendCutByKill,
            E::AppendCutByPower,
            E::AppendStable,
            E::CrashInSync,
            E::CrashInCreate,
            E::CrashInSuperblock,
            E::CrashInKeeper,
            E::CrashInOpen,
            E::FrameLost,
            E::FrameKept,
            E::FrameTorn,
            E::FramesReordered,
            E::WriteEio,
            E::WriteEnospc,
            E::WriteShort,
            E::WriteWholeButFailed,
            E::SyncEio,
            E::ReadEio,
            E::OpenEio,
            E::ReadWouldBlock,
            E::AppendOutOfOrder,
            E::SyncOutOfOrder,
            E::ReadOutOfOrder,
            E::OpenFailedCleanly,
            E::CleanStop,
            E::ShardsChanged,
            E::SizeGrown,
            E::SizeShrunk,
            E::ShrinkRefused,
            E::VolumeRemoved,
            E::VolumeRemovedBusy,
            E::Delay,
            E::Wait,
            E::Full,
            E::Cancelled,
            E::RequestFailed,
            E::Flushed,
            E::WrittenThrough,
            E::ReadRaced,
            E::Cleaned,
            E::Overwritten,
            E::WriteLost,
            E::UnacknowledgedKept,
            E::TornTail,
            E::Footer,
            E::Scan,
            E::Request,
            E::SectorChecked,
            E::SuperblockUnread,
            E::HeaderUnread,
            E::CopyUnread,
            E::TrailerUnread,
            E::FooterUnread,
            E::RecordUnread,
            E::DataUnread,
            E::PageGone,
            E::FrameGivenUp,
            E::SegmentQuarantined,
            E::ExportDoubted,
            E::SectorFailed,
            E::CheckpointWritten,
            E::CheckpointFailed,
            E::CrashInCheckpoint,
            E::CheckpointUnread,
            E::CheckpointRefused,
            E::Covered,
            E::PartlyCovered,
            E::CoveredReused,
            E::CheckpointLeftOver,
            E::CrashInCheckpointRemoved,
            E::StartsCompared,
            E::PutBack,
        ]
    };
}

/// How often each event happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<Event, u64>);

impl Tally {
    pub fn hit(&mut self, event: Event) {
        self.add(event, 1);
    }

    pub fn add(&mut self, event: Event, times: u64) {
        if times > 0 {
            *self.0.entry(event).or_default() += times;
        }
    }

    /// How often `event` happened.
    pub fn get(&self, event: Event) -> u64 {
        self.0.get(&event).copied().unwrap_or(0)
    }

    pub fn merge(&mut self, other: &Self) {
        for (&event, &times) in &other.0 {
            self.add(event, times);
        }
    }

    pub fn missing(&self) -> Vec<Event> {
        Event::ALL.into_iter().filter(|event| self.get(*event) == 0).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (column, event) in Event::ALL.into_iter().enumerate() {
            let end = if column % 4 == 3 { "\n" } else { "  " };
            write!(f, "{:>20} {:>8}{end}", format!("{event:?}"), self.get(event))?;
        }
        Ok(())
    }
}
