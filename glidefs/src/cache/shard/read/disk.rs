//! Reads of the disk: which begin, and how each gets the bytes and the checksums.
//!
//! Does not own the containers (`state`). Invariants: at most [`READS_MAX`] reads are under way, with memory of at most
//! [`READ_BYTES_MAX`](super::super::read_buffers::READ_BYTES_MAX), and two pages of sums each; further reads begin in the order of arrival
//! in an export, and exports by weighted fair queueing. Of the reads under way, [`ASKED_MAX`] wait for the keeper at most; others which
//! would have to wait are read again when one of the former has ended, so lost sums of one export keep no other export's reads from the
//! disk.

use std::io;

use super::arrived;
use super::page_cache::{report, verify};
use super::state::{DiskRead, Flight, Reads, SumsRead};
use crate::cache::log::scan::offset;
use crate::cache::shard::request::{Token, Want};
use crate::cache::shard::sums::Segment;
use crate::cache::shard::{Shard, sums};
use crate::cache::volume::error::IoError;
use crate::fair::Fair;
use crate::units::{ExportId, FRAME_BYTES};

/// Most reads of the disk under way.
pub(super) const READS_MAX: usize = 32;
/// Most reads with a place and memory which wait for checksums from the keeper.
const ASKED_MAX: usize = 8;

/// Bit of the number of an operation which reads sums. The rest of the number is the flight's.
const SUMS_BIT: u32 = 1 << 31;

impl<T: Token> Shard<T> {
    /// Takes the result of the [`Want::Read`] with this `op`; `buffer` is the buffer of the want.
    pub fn read_done(&mut self, op: u32, result: io::Result<()>, buffer: Vec<u8>) {
        if op & SUMS_BIT != 0 {
            return sums_done(self, op & !SUMS_BIT, result.is_ok(), buffer);
        }
        let Reads { flights, buffers, .. } = &mut self.reads;
        let Some(flight) = flights.get_mut(op as usize) else {
            debug_assert!(false, "no read {op} is under way");
            return;
        };
        let source = flight.read.source;
        flight.data = Some(match result {
            Ok(()) if buffer.len() == source.disk_bytes() => {
                // Some file systems, such as tmpfs, never read without waiting: all READs come here.
                self.shared.heat.count(source.number, source.first, source.frames);
                Ok(buffer)
            }
            result => {
                buffers.give(buffer);
                if let Err(error) = result {
                    report(&self.shared, &source, source.first, &error);
                }
                Err(IoError::Read)
            }
        });
        conclude(self, op);
    }

    /// Looks again at the reads of the disk for which the keeper was asked.
    pub(in crate::cache::shard) fn read_turn(&mut self) {
        if self.reads.asked == 0 {
            return;
        }
        for op in 0..self.reads.flights.capacity() {
            if self.reads.flights.get(op).is_some_and(|flight| flight.sums == SumsRead::Asked) {
                // At most READS_MAX.
                conclude(self, u32::try_from(op).unwrap_or(u32::MAX));
            }
        }
    }
}

pub(super) fn enqueue(queue: &mut Fair<ExportId, DiskRead>, read: DiskRead) {
    queue.push(read.source.export, read.weight, read.source.disk_bytes() as u64, read);
}

/// Begins queued reads of the disk while fewer than [`READS_MAX`] are under way and there is memory for the next one.
pub(super) fn start<T: Token>(shard: &mut Shard<T>) {
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
        let segment = Segment::of(&shard.shared, source.number);
        let is_known = segment.are_known(&shard.shared, &mut shard.reads.pages, source.first, source.frames);
        if !is_known {
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
