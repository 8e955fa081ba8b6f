//! Reads: the index divides a READ into pieces; the bytes come from mapped segments, if those have all ([`mapped`]), or else piece by
//! piece from mapped segments and the page cache ([`page_cache`]) or the disk ([`disk`]). No byte reaches a client unverified.
//!
//! Does not own the READs that wait for the disk (`state`). Invariants: every frame read is compared with the checksum made when the
//! data was acknowledged; a segment stays pinned from the look-up until the bytes have been copied.

mod disk;
mod mapped;
mod page_cache;
pub(super) mod state;

use std::sync::Arc;

use self::state::{DiskRead, Reads, SegmentBytes, WaitingRead};
use super::Shard;
use super::request::Token;
use crate::cache::log::table::frames_of;
use crate::cache::volume::Volume;
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Piece};
use crate::cache::volume::fetch::Fill;
use crate::units::{ExportId, FRAME_BYTES, FRAME_SECTORS, SECTOR_BYTES, SectorRange};

impl<T: Token> Shard<T> {
    /// Takes a READ of at most [`REQUEST_BYTES_MAX`](crate::units::REQUEST_BYTES_MAX). The READ sees every write acknowledged
    /// before. When the token comes back without an error, the token's buffer holds the bytes of the range; after an error the
    /// bytes are undefined.
    ///
    /// The token comes back with [`IoError::Remote`] when only the store has some of the data: fetch the data with
    /// [`Volume::fetch`], and call this again with the data as `fill`.
    pub fn read(&mut self, volume: &Arc<Volume>, range: SectorRange, fill: Option<&Fill>, token: T) {
        let Some(mut token) = self.enter(volume, token) else { return };
        self.stats.reads.add(1);
        debug_assert!(self.reads.fetches.is_empty(), "the READ before has taken its reads of the disk");
        let mut plan = std::mem::take(&mut self.reads.plan);
        volume.plan(&self.shared.table, range, &mut plan);
        let mut outcome = Ok(());
        if plan.len() > 1 {
            outcome = plan.iter().try_for_each(|piece| can_serve(volume, piece, fill));
        }
        for piece in plan.drain(..) {
            let served = match piece.backing {
                Some(Backing::Data { number, .. }) if outcome.is_err() => {
                    self.shared.table.get(number).unpin();
                    Ok(())
                }
                None => without_log(volume, &piece, fill)
                    .and_then(|bytes| put(range, &piece, bytes, token.buffer())),
                Some(Backing::Zero { .. }) => put(range, &piece, None, token.buffer()),
                Some(Backing::Damaged { .. } | Backing::Doubt { .. }) => Err(IoError::Damaged),
                Some(Backing::Data { number, sector }) => {
                    let source = source_of(&piece, (number, sector), range, volume.id());
                    serve(self, &source, token.buffer())
                }
            };
            outcome = outcome.and(served);
        }
        self.reads.plan = plan;
        let open = self.reads.fetches.len();
        if open == 0 {
            end(self, token, outcome);
            return;
        }
        let waiting = self.reads.waiting.insert(WaitingRead { token, open, outcome });
        let Reads { fetches, queue, .. } = &mut self.reads;
        for source in fetches.drain(..) {
            disk::enqueue(queue, DiskRead { source, waiting, weight: volume.weight() });
        }
        disk::start(self);
    }
}

/// Whether `piece` can be served at all. A READ with a piece that cannot be served reads and verifies nothing: the READ fails, or
/// comes again once the piece was fetched.
fn can_serve(volume: &Volume, piece: &Piece, fill: Option<&Fill>) -> Result<(), IoError> {
    match piece.backing {
        None => without_log(volume, piece, fill).map(drop),
        Some(Backing::Damaged { .. } | Backing::Doubt { .. }) => Err(IoError::Damaged),
        Some(Backing::Zero { .. } | Backing::Data { .. }) => Ok(()),
    }
}

/// Where the bytes of `piece` are: `piece` begins at `sector` of segment `number`.
fn source_of(
    piece: &Piece,
    (number, sector): (u32, u32),
    range: SectorRange,
    export: ExportId,
) -> SegmentBytes {
    let (first, frames) = frames_of(sector, piece.range.count());
    let skip = bytes_of(u64::from(sector) % FRAME_SECTORS);
    let len = bytes_of(piece.range.count());
    debug_assert!(skip + len <= frames as usize * FRAME_BYTES, "the bytes of a piece lie in its frames");
    let to = bytes_of(piece.range.start() - range.start());
    SegmentBytes { number, first, frames, skip, len, to, export }
}

fn bytes_of(sectors: u64) -> usize {
    usize::try_from(sectors.saturating_mul(SECTOR_BYTES)).unwrap_or(usize::MAX)
}

/// The bytes of a piece that the log does not have: `None` where the store has none either, as the sectors were never written.
fn without_log<'a>(
    volume: &Volume,
    piece: &Piece,
    fill: Option<&'a Fill>,
) -> Result<Option<&'a [u8]>, IoError> {
    if !volume.store_link().is_some_and(|link| link.remote.covers(piece.range)) {
        return Ok(None);
    }
    // The log may have forgotten the piece after the fill was fetched. Then the fill does not have the piece.
    fill.and_then(|fill| fill.part(piece.range)).map(Some).ok_or(IoError::Remote)
}

/// Fills the part of `buffer` for `piece` with `bytes`, or with zeroes.
fn put(range: SectorRange, piece: &Piece, bytes: Option<&[u8]>, buffer: &mut [u8]) -> Result<(), IoError> {
    let to = bytes_of(piece.range.start() - range.start());
    let part =
        buffer.get_mut(to..to.saturating_add(bytes_of(piece.range.count()))).ok_or(IoError::TooLarge)?;
    match bytes {
        Some(bytes) => part.copy_from_slice(bytes),
        None => part.fill(0),
    }
    Ok(())
}

/// Fills the part of `buffer` for `source`, or adds `source` to the list of reads of the disk. Unpins the segment unless the disk
/// is to be read.
fn serve<T: Token>(shard: &mut Shard<T>, source: &SegmentBytes, buffer: &mut [u8]) -> Result<(), IoError> {
    let outcome = match buffer.get_mut(source.to..source.to.saturating_add(source.len)) {
        None => Err(IoError::TooLarge),
        Some(part) => {
            let Reads { ends, pages, .. } = &mut shard.reads;
            page_cache::read_now(&shard.shared, source, part, ends, pages)
        }
    };
    if outcome == Ok(false) {
        shard.stats.reads_waited.add(1);
        shard.reads.fetches.push(*source);
        return Ok(());
    }
    shard.shared.table.get(source.number).unpin();
    outcome.map(drop)
}

/// Ends one piece of a READ; the last piece ends the READ.
fn arrived<T: Token>(shard: &mut Shard<T>, fetch: &DiskRead, outcome: Result<(), IoError>) {
    shard.shared.table.get(fetch.source.number).unpin();
    let waiting = &mut shard.reads.waiting[fetch.waiting];
    waiting.outcome = waiting.outcome.and(outcome);
    debug_assert!(waiting.open > 0, "a READ waits for a piece that it has not counted");
    waiting.open -= 1;
    if waiting.open == 0 {
        let WaitingRead { token, outcome, .. } = shard.reads.waiting.remove(fetch.waiting);
        end(shard, token, outcome);
    }
}

fn end<T: Token>(shard: &mut Shard<T>, token: T, outcome: Result<(), IoError>) {
    match outcome {
        Ok(()) | Err(IoError::Remote) => {}
        Err(_) => shard.stats.read_errors.add(1),
    }
    shard.finish(token, outcome);
}
