//! Reads: the index divides a READ into pieces; the bytes of a piece come from the page cache or else from the disk. No byte
//! reaches a client unverified.
//!
//! Invariants: every frame read is compared with the checksum made when the data was acknowledged; a segment stays pinned from
//! the look-up until the bytes have been copied; at most [`READS_MAX`] reads of the disk are under way, with memory of at most
//! [`READ_BYTES_MAX`](super::read_buffers::READ_BYTES_MAX), and two pages of sums each; further reads begin in the order of arrival
//! in an export, and exports by weighted fair queueing. Of these, [`ASKED_MAX`] wait for the keeper at most; others which would
//! have to are read again when one of the former has ended, so lost sums of one export keep no other export's reads from the disk.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use slab::Slab;

use super::part_frames::PartFrames;
use super::read_buffers::ReadBuffers;
use super::request::{Token, Want};
use super::{Shard, sums};
use crate::cache::log::scan::offset;
use crate::cache::log::sums::Verdict;
use crate::cache::log::sums::pages::Pages;
use crate::cache::log::table::frames_of;
use crate::cache::shared::Shared;
use crate::cache::volume::Volume;
use crate::cache::volume::error::IoError;
use crate::cache::volume::extent::{Backing, Piece};
use crate::cache::volume::fetch::Fill;
use crate::fair::Fair;
use crate::units::{ExportId, FRAME_BYTES, FRAME_SECTORS, SECTOR_BYTES, SectorRange};

/// Most reads of the disk under way.
const READS_MAX: usize = 32;
/// Most reads with a place and memory which wait for checksums from the keeper.
const ASKED_MAX: usize = 8;

/// A READ that waits for the disk.
#[derive(Debug)]
struct WaitingRead<T> {
    token: T,
    /// Pieces that have not arrived.
    open: usize,
    outcome: Result<(), IoError>,
}

/// Bytes of a segment, and their place in a token's buffer.
#[derive(Clone, Copy, Debug)]
struct SegmentBytes {
    number: u32,
    /// First frame, and number of frames.
    first: u32,
    frames: u32,
    /// Bytes of the first frame before the wanted ones.
    skip: usize,
    /// Number of bytes wanted.
    len: usize,
    /// Offset in the token's buffer.
    to: usize,
    /// The export of the READ, for log lines.
    export: ExportId,
}

impl SegmentBytes {
    fn disk_bytes(&self) -> usize {
        self.frames as usize * FRAME_BYTES
    }
}

/// A piece to be read from the disk, and the READ that waits for the piece.
#[derive(Clone, Copy, Debug)]
struct DiskRead {
    source: SegmentBytes,
    waiting: usize,
    weight: u16,
}

/// A read of the disk under way. Ends when both the bytes and their checksums are there.
#[derive(Debug)]
struct Flight {
    read: DiskRead,
    /// The bytes, once they have arrived.
    data: Option<Result<Vec<u8>, IoError>>,
    sums: SumsRead,
}

/// How far the checksums of a flight are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SumsRead {
    /// At hand when the flight began, or read since.
    Idle,
    /// A read of sums is under way.
    UnderWay,
    /// The sums cannot be used: the keeper was asked for the checksums.
    Asked,
}

/// Bit of the number of an operation which reads sums. The rest of the number is the flight's.
const SUMS_BIT: u32 = 1 << 31;

#[derive(Debug)]
pub(super) struct Reads<T> {
    waiting: Slab<WaitingRead<T>>,
    flights: Slab<Flight>,
    queue: Fair<ExportId, DiskRead>,
    /// Empty between calls: only the capacity is kept.
    plan: Vec<Piece>,
    fetches: Vec<SegmentBytes>,
    buffers: ReadBuffers,
    /// Kept buffers for pages of sums, two pages each at most, and [`READS_MAX`] buffers at most.
    spare_sums: Vec<Vec<u8>>,
    parts: PartFrames,
    pages: Pages,
    /// Number of flights for which the keeper was asked.
    asked: usize,
    /// Reads whose checksums the keeper is asked for, without a place and memory.
    parked: VecDeque<DiskRead>,
}

impl<T> Reads<T> {
    /// Reads with memory for pages of sums, `pages_bytes` in all.
    pub fn new(pages_bytes: u64) -> Self {
        Self {
            waiting: Slab::new(),
            flights: Slab::new(),
            queue: Fair::new(),
            plan: Vec::new(),
            fetches: Vec::new(),
            buffers: ReadBuffers::default(),
            spare_sums: Vec::new(),
            parts: PartFrames::new(),
            pages: Pages::new(pages_bytes),
            asked: 0,
            parked: VecDeque::new(),
        }
    }

    pub fn is_idle(&self) -> bool {
        let is_idle = self.waiting.is_empty();
        debug_assert!(
            !is_idle || (self.flights.is_empty() && self.queue.is_empty()),
            "a read of the disk is for a READ that waits"
        );
        is_idle
    }
}

pub(super) fn read<T: Token>(
    shard: &mut Shard<T>,
    volume: &Arc<Volume>,
    range: SectorRange,
    fill: Option<&Fill>,
    mut token: T,
) {
    shard.stats.reads.add(1);
    debug_assert!(shard.reads.fetches.is_empty(), "the READ before has taken its reads of the disk");
    let mut plan = std::mem::take(&mut shard.reads.plan);
    volume.plan(&shard.shared.table, range, &mut plan);
    shard.reads.parts.begin();
    let mut outcome = Ok(());
    if plan.len() > 1 {
        outcome = plan.iter().try_for_each(|piece| can_serve(volume, piece, fill));
    }
    for piece in plan.drain(..) {
        let served = match piece.backing {
            Some(Backing::Data { number, .. }) if outcome.is_err() => {
                shard.shared.table.get(number).unpin();
                Ok(())
            }
            None => {
                without_log(volume, &piece, fill).and_then(|bytes| put(range, &piece, bytes, token.buffer()))
            }
            Some(Backing::Zero { .. }) => put(range, &piece, None, token.buffer()),
            Some(Backing::Damaged { .. } | Backing::Doubt { .. }) => Err(IoError::Damaged),
            Some(Backing::Data { number, sector }) => {
                let source = source_of(&piece, (number, sector), range, volume.id());
                serve(shard, &source, token.buffer())
            }
        };
        outcome = outcome.and(served);
    }
    shard.reads.plan = plan;
    let open = shard.reads.fetches.len();
    if open == 0 {
        end(shard, token, outcome);
        return;
    }
    let waiting = shard.reads.waiting.insert(WaitingRead { token, open, outcome });
    let Reads { fetches, queue, .. } = &mut shard.reads;
    for source in fetches.drain(..) {
        enqueue(queue, DiskRead { source, waiting, weight: volume.weight() });
    }
    start(shard);
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

fn enqueue(queue: &mut Fair<ExportId, DiskRead>, read: DiskRead) {
    queue.push(read.source.export, read.weight, read.source.disk_bytes() as u64, read);
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
    if !volume.store_link().is_some_and(|link| link.covers(piece.range)) {
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
            let Reads { parts, pages, .. } = &mut shard.reads;
            read_now(&shard.shared, source, part, parts, pages)
        }
    };
    if outcome == Ok(false) {
        shard.stats.reads_waited.add(1);
        shard.reads.fetches.push(*source);
        return Ok(());
    }
    shard.shared.table.get(source.number).unpin();
    shard.stats.reads_now.add(1);
    outcome.map(drop)
}

/// Fills `part` with the bytes of `source` where the page cache has all of them, and the checksums are at hand; `false` where not.
fn read_now(
    shared: &Shared,
    source: &SegmentBytes,
    part: &mut [u8],
    parts: &mut PartFrames,
    pages: &mut Pages,
) -> Result<bool, IoError> {
    if part.len() != source.disk_bytes() {
        return read_parts(shared, source, part, parts, pages);
    }
    if !frames_now(shared, source, source.first, part)? {
        return Ok(false);
    }
    verify(shared, source, source.first, part, pages).map_or(Ok(false), |verified| verified.map(|()| true))
}

/// As [`read_now`], for a first or a last frame of which only a part is wanted. No frame is verified before all bytes and checksums are
/// there: where some are not, all bytes are read from the disk, and verified then.
fn read_parts(
    shared: &Shared,
    source: &SegmentBytes,
    part: &mut [u8],
    parts: &mut PartFrames,
    pages: &mut Pages,
) -> Result<bool, IoError> {
    let head = if source.skip == 0 { 0 } else { (FRAME_BYTES - source.skip).min(part.len()) };
    let (head, rest) = part.split_at_mut(head);
    let (whole, tail) = rest.split_at_mut(rest.len() / FRAME_BYTES * FRAME_BYTES);
    let first_whole = source.first + u32::from(!head.is_empty());
    // A part has fewer frames than 2^32.
    let last = first_whole + u32::try_from(whole.len() / FRAME_BYTES).unwrap_or(0);
    if !whole.is_empty() && !frames_now(shared, source, first_whole, whole)? {
        return Ok(false);
    }
    let mut ends = [(source.first, source.skip, head, None), (last, 0, tail, None)];
    for (frame, _, _, found) in ends.iter_mut().filter(|(_, _, bytes, _)| !bytes.is_empty()) {
        let known = parts.find((source.number, *frame));
        let slot = known.unwrap_or_else(|| parts.take());
        if known.is_none() && !frames_now(shared, source, *frame, parts.bytes(slot))? {
            return Ok(false);
        }
        *found = Some((slot, known.is_some()));
    }
    if !sums::are_known(shared, pages, source.number, source.first, source.frames) {
        return Ok(false);
    }
    let mut verified = verify(shared, source, first_whole, whole, pages);
    for (frame, skip, bytes, found) in ends {
        let Some((slot, is_verified)) = found else { continue };
        if !is_verified && verified == Some(Ok(())) {
            verified = verify(shared, source, frame, parts.bytes(slot), pages);
        }
        if verified == Some(Ok(())) {
            parts.verified(slot, (source.number, frame));
            bytes.copy_from_slice(&parts.bytes(slot)[skip..skip + bytes.len()]);
        }
    }
    verified.map_or(Ok(false), |verified| verified.map(|()| true))
}

/// Fills `buffer` with whole frames, the first of which is `first`; `false` where the page cache does not have all.
fn frames_now(
    shared: &Shared,
    source: &SegmentBytes,
    first: u32,
    buffer: &mut [u8],
) -> Result<bool, IoError> {
    let Some(file) = shared.table.get(source.number).file() else { return Err(IoError::Read) };
    file.read_now(buffer, offset(first)).map_err(|error| {
        report(shared, source, first, &error);
        IoError::Read
    })
}

/// Compares `buffer`, the frames from `first` on, with their checksums; `None` while the checksums are not at hand.
fn verify(
    shared: &Shared,
    source: &SegmentBytes,
    first: u32,
    buffer: &[u8],
    pages: &mut Pages,
) -> Option<Result<(), IoError>> {
    match sums::compare(shared, pages, source.number, first, buffer)? {
        Verdict::Right => Some(Ok(())),
        Verdict::Wrong(frame) => {
            shared.figures.corrupt_frames.fetch_add(1, Ordering::Relaxed);
            let Some(suppressed) = passes(shared, source) else { return Some(Err(IoError::Corrupt)) };
            tracing::error!(
                export = source.export.0,
                file = shared.disk.segment_name(source.number),
                offset_bytes = offset(frame),
                suppressed,
                "cached data does not match the checksum; reads of the data fail until the data is written again"
            );
            Some(Err(IoError::Corrupt))
        }
        Verdict::Missing(frame) => {
            report(shared, source, frame, &io::Error::other("the checksum of the data cannot be read"));
            Some(Err(IoError::Read))
        }
    }
}

/// Whether a line about data of `source` is logged now; if so, how many lines were held back before. An export without a volume
/// was removed, and has no reader.
fn passes(shared: &Shared, source: &SegmentBytes) -> Option<u64> {
    shared.find_volume(source.export)?.bad_reads().pass()
}

fn report(shared: &Shared, source: &SegmentBytes, first: u32, error: &io::Error) {
    let Some(suppressed) = passes(shared, source) else { return };
    tracing::error!(
        export = source.export.0,
        file = shared.disk.segment_name(source.number),
        offset_bytes = offset(first),
        error = error as &dyn std::error::Error,
        suppressed,
        "reading from the cache disk failed"
    );
}

/// Begins queued reads of the disk while fewer than [`READS_MAX`] are under way and there is memory for the next one.
fn start<T: Token>(shard: &mut Shard<T>) {
    while shard.reads.flights.len() < READS_MAX {
        let Reads { parked, queue, asked, .. } = &mut shard.reads;
        if *asked < ASKED_MAX
            && let Some(read) = parked.pop_front()
        {
            enqueue(queue, read);
        }
        let Some((_, &fetch)) = queue.peek() else { return };
        let source = fetch.source;
        let Some(file) = shard.shared.table.get(source.number).file().cloned() else {
            shard.reads.queue.pop();
            arrived(shard, &fetch, Err(IoError::Read));
            continue;
        };
        let Some(buffer) = take_buffer(shard, source.disk_bytes()) else { return };
        shard.reads.queue.pop();
        let flight = Flight { read: fetch, data: None, sums: SumsRead::Idle };
        // At most READS_MAX.
        let op = u32::try_from(shard.reads.flights.insert(flight)).unwrap_or(u32::MAX);
        shard.wanted.push(Want::Read { op, file, offset: offset(source.first), buffer });
        if !sums::are_known(&shard.shared, &mut shard.reads.pages, source.number, source.first, source.frames)
        {
            read_sums(shard, op);
        }
    }
}

/// Begins a read of the sums for flight `op`, or asks the keeper where the segment has none.
fn read_sums<T: Token>(shard: &mut Shard<T>, op: u32) {
    let Some(flight) = shard.reads.flights.get_mut(op as usize) else { return };
    let source = flight.read.source;
    let info = shard.shared.table.get(source.number);
    let Some((first, file)) = info.sums_frame().zip(info.file().cloned()) else {
        ask(shard, op);
        return;
    };
    let pages = sums::pages_of(source.first, source.frames);
    flight.sums = SumsRead::UnderWay;
    let mut buffer = shard.reads.spare_sums.pop().unwrap_or_default();
    let before = buffer.capacity();
    buffer.resize(pages.len() * FRAME_BYTES, 0);
    shard.stats.read_buffer_bytes.add((buffer.capacity() - before) as u64);
    shard.stats.sums_read.add(1);
    let place = offset(first.saturating_add(pages.start));
    shard.wanted.push(Want::Read { op: op | SUMS_BIT, file, offset: place, buffer });
}

/// Asks the keeper for the checksums of flight `op`.
fn ask<T: Token>(shard: &mut Shard<T>, op: u32) {
    let Some(flight) = shard.reads.flights.get_mut(op as usize) else { return };
    if flight.sums != SumsRead::Asked {
        flight.sums = SumsRead::Asked;
        shard.reads.asked += 1;
    }
    let number = flight.read.source.number;
    shard.shared.sums.ask(number, shard.shared.table.get(number).segment_id());
    shard.shared.signal.raise();
}

/// Looks again at the flights for which the keeper was asked.
pub(super) fn turn<T: Token>(shard: &mut Shard<T>) {
    if shard.reads.asked == 0 {
        return;
    }
    for op in 0..shard.reads.flights.capacity() {
        if shard.reads.flights.get(op).is_some_and(|flight| flight.sums == SumsRead::Asked) {
            // At most READS_MAX.
            conclude(shard, u32::try_from(op).unwrap_or(u32::MAX));
        }
    }
}

/// Memory for a read of the disk, counted.
fn take_buffer<T: Token>(shard: &mut Shard<T>, bytes: usize) -> Option<Vec<u8>> {
    let buffers = &mut shard.reads.buffers;
    let before = buffers.held_bytes();
    let buffer = buffers.take(bytes);
    let gauge = &shard.stats.read_buffer_bytes;
    gauge.sub(before as u64);
    gauge.add(buffers.held_bytes() as u64);
    buffer
}

pub(super) fn done<T: Token>(shard: &mut Shard<T>, op: u32, result: io::Result<()>, buffer: Vec<u8>) {
    if op & SUMS_BIT != 0 {
        return sums_done(shard, op & !SUMS_BIT, result.is_ok(), buffer);
    }
    let Reads { flights, buffers, .. } = &mut shard.reads;
    let Some(flight) = flights.get_mut(op as usize) else {
        debug_assert!(false, "no read {op} is under way");
        return;
    };
    let source = flight.read.source;
    flight.data = Some(match result {
        Ok(()) if buffer.len() == source.disk_bytes() => Ok(buffer),
        result => {
            buffers.give(buffer);
            if let Err(error) = result {
                report(&shard.shared, &source, source.first, &error);
            }
            Err(IoError::Read)
        }
    });
    conclude(shard, op);
}

fn sums_done<T: Token>(shard: &mut Shard<T>, op: u32, is_read: bool, buffer: Vec<u8>) {
    let Some(flight) = shard.reads.flights.get_mut(op as usize) else {
        debug_assert!(false, "no read {op} is under way");
        return;
    };
    let source = flight.read.source;
    flight.sums = SumsRead::Idle;
    let of = sums::pages_of(source.first, source.frames);
    let Reads { pages, spare_sums, .. } = &mut shard.reads;
    let is_kept = is_read && sums::take(&shard.shared, pages, source.number, of, &buffer);
    // Each of at most READS_MAX flights has one buffer at a time.
    spare_sums.push(buffer);
    if !is_kept {
        ask(shard, op);
    }
    conclude(shard, op);
}

/// Ends flight `op` if both the bytes and the checksums are there.
fn conclude<T: Token>(shard: &mut Shard<T>, op: u32) {
    let Some(flight) = shard.reads.flights.get(op as usize) else { return };
    let Some(data) = flight.data.as_ref().filter(|_| flight.sums != SumsRead::UnderWay) else { return };
    let source = flight.read.source;
    let outcome = match data {
        Err(error) => Err(*error),
        Ok(buffer) => {
            match verify(&shard.shared, &source, source.first, buffer, &mut shard.reads.pages) {
                Some(outcome) => outcome,
                None if flight.sums == SumsRead::Asked && shard.reads.asked > ASKED_MAX => {
                    return park(shard, op);
                }
                None if flight.sums == SumsRead::Asked => return ask(shard, op),
                // Other pages have taken the place of the sums since the flight began.
                None => return read_sums(shard, op),
            }
        }
    };
    let Flight { read, data, sums } = shard.reads.flights.remove(op as usize);
    shard.reads.asked -= usize::from(sums == SumsRead::Asked);
    if let Some(Ok(buffer)) = data {
        if outcome.is_ok()
            && let Some(waiting) = shard.reads.waiting.get_mut(read.waiting)
        {
            // In bounds: `serve` measured the token's buffer, and the wanted bytes lie inside the frames of the source.
            waiting.token.buffer()[source.to..source.to + source.len]
                .copy_from_slice(&buffer[source.skip..source.skip + source.len]);
        }
        shard.reads.buffers.give(buffer);
    }
    arrived(shard, &read, outcome);
    start(shard);
}

/// Takes place and memory from flight `op`, which waits for the keeper like enough others.
fn park<T: Token>(shard: &mut Shard<T>, op: u32) {
    let Reads { flights, buffers, asked, parked, .. } = &mut shard.reads;
    let Flight { read, data, .. } = flights.remove(op as usize);
    *asked = asked.saturating_sub(1);
    if let Some(Ok(buffer)) = data {
        buffers.give(buffer);
    }
    parked.push_back(read);
    start(shard);
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
        Ok(()) => {}
        Err(IoError::Remote) => shard.stats.reads_remote.add(1),
        Err(_) => shard.stats.read_errors.add(1),
    }
    shard.finish(token, outcome);
}
