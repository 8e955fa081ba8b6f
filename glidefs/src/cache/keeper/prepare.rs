//! Preparing segments: free segments become segments ready for appends.
//!
//! Does not own which shard gets a segment. Invariant: the header of a segment is stable before anybody gets the segment.

use std::io::IoSlice;
use std::sync::Arc;

use crate::cache::handoff::Way;
use crate::cache::log::disk::SegmentFile;
use crate::cache::log::life::State;
use crate::cache::log::seal;
use crate::cache::log::segment::SegmentWriter;
use crate::cache::shared::Shared;
use crate::cache::sync_hold::SyncHold;
use crate::units::FRAME_BYTES;

/// Bytes of a new segment that are written and synced at once.
const FILL_BYTES: usize = 1 << 20;
const NO_SEGMENT: &str = "the cache disk gave no segment: writes wait for one; free space on the disk of cache.dir, or lower \
                          cache.size";

/// Turns free segments into segments ready for appends.
#[derive(Debug, Default)]
pub(super) struct Preparer {
    /// Where the next search for a free segment begins, so that a segment with a failing file does not stand in the way.
    next: u32,
    /// The disk did not give the last segment.
    pub failing: bool,
    /// The file of the last segment was new, and was filled with zeroes.
    pub filled: bool,
    /// The disk has no writes that are stable at once.
    without_stable: bool,
}

impl Preparer {
    /// A segment for shard `shard`, with a file that is written to in this way; `None` when the disk failed or no more than `spare`
    /// segments are free.
    pub fn prepare(&mut self, shared: &Shared, shard: u32, spare: u32, way: Way) -> Option<SegmentWriter> {
        let table = &shared.table;
        let is_impossible = way == Way::Through && self.without_stable;
        if is_impossible || table.count(State::Free) <= spare {
            return None;
        }
        let limit = table.limit();
        let free = |number: &u32| table.get(*number).state() == State::Free;
        let in_turn = || (0..limit).map(|step| (self.next + step) % limit).filter(free);
        // A full disk has room in the existing files.
        let having_files = in_turn().filter(|number| self.failing && table.get(*number).file().is_some());
        let hold = having_files.chain(in_turn()).find_map(|number| SyncHold::begin(shared, number))?;
        let number = hold.number;
        self.next = (number + 1) % limit;
        let prepared = self.prepare_held(&hold, shared, shard, way);
        drop(hold);
        let prepared = prepared.transpose()?;
        if let Err(error) = &prepared
            && !self.failing
        {
            shared.report(number, error, NO_SEGMENT);
        }
        self.failing = prepared.is_err();
        prepared.ok()
    }

    /// Writes a fresh header into a free segment. `None` where the disk has no such way.
    fn prepare_held(
        &mut self,
        hold: &SyncHold<&Shared>,
        shared: &Shared,
        shard: u32,
        way: Way,
    ) -> std::io::Result<Option<SegmentWriter>> {
        let (table, info, number) = (&shared.table, hold.info(), hold.number);
        let file = match info.file() {
            Some(file) => Arc::clone(file),
            None => {
                let file = shared.disk.open_segment(number, table.segment_bytes())?;
                self.filled = fill(shared, &*file)?;
                Arc::clone(info.set_file(file))
            }
        };
        let writer = match way {
            Way::Common => Arc::clone(&file),
            Way::Through => match self.stable(&*file) {
                Some(file) => file,
                None => return Ok(None),
            },
        };
        let header = table.header(shared.new_segment_id(), shard);
        writer.forget_pages();
        seal::write_header(&*file, &header, table.segment_frames(), &info.front_unsure)?;
        if way == Way::Through {
            // With a page in memory, the kernel ends each append on another thread, which drops the page.
            writer.forget_pages();
            if !self.can_append(&*writer) {
                return Ok(None);
            }
            info.set_through();
        }
        Ok(Some(SegmentWriter::begin(table, number, &header, writer)))
    }

    /// The file for writes that are stable at once, if the disk has such writes.
    fn stable(&mut self, file: &dyn SegmentFile) -> Option<Arc<dyn SegmentFile>> {
        match file.stable() {
            Ok(Some(stable)) => return Some(stable),
            Ok(None) => {
                tracing::debug!("no writes past the page cache on the cache disk: each FLUSH is a sync");
            }
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a segment file cannot be opened for writes past the page cache: each FLUSH is a sync until the next start"
            ),
        }
        self.without_stable = true;
        None
    }

    /// Tries a stable append of a frame, behind a fresh header: some disks can be opened for such writes, and refuse each. After any other
    /// failure the next segment is tried.
    fn can_append(&mut self, file: &dyn SegmentFile) -> bool {
        let tried = file.append_at(&[IoSlice::new(&[0; FRAME_BYTES])], FRAME_BYTES as u64);
        if let Err(error) = &tried
            && matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
        {
            self.without_stable = true;
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "the cache disk refuses writes past the page cache: each FLUSH is a sync until the next start"
            );
        }
        tried.is_ok()
    }
}

/// Writes zeroes all over a new segment file, as long as nobody waits for the keeper. The file system notes for each allocated
/// block whether the block was ever written, and a sync that covers a first write has to make the note stable as well: a FLUSH
/// then costs a commit of the file system's journal. `false` when nothing was written.
fn fill(shared: &Shared, file: &dyn SegmentFile) -> std::io::Result<bool> {
    let zeroes = vec![0; FILL_BYTES];
    let (mut at, end) = (0, shared.table.segment_bytes());
    while at < end && !shared.is_keeper_needed() {
        let bytes = (end - at).min(FILL_BYTES as u64);
        // At most FILL_BYTES.
        let part = &zeroes[..usize::try_from(bytes).unwrap_or(FILL_BYTES)];
        file.write_at(&[IoSlice::new(part)], at)?;
        // One piece at a time is written and synced, so the keeper is never away for long.
        file.sync()?;
        at += bytes;
    }
    Ok(at > 0)
}
