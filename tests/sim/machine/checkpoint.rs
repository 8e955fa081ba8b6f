//! The checkpoint file of the fake computer.
//!
//! Invariant: a finished checkpoint is whole on the medium; an unfinished one is gone with the process.

use std::io;

use glidefs::testing::cache::format::SegmentHeader;

use super::super::faults::{eio, enospc};
use super::super::file::FRAME;
use super::super::tally::Event;
use super::{Fate, Inode, Machine};

impl Machine {
    /// The bytes of the checkpoint for process `generation`.
    pub fn checkpoint(&mut self, generation: u64) -> io::Result<Option<Vec<u8>>> {
        self.alive(generation)?;
        if self.rng.permille(10 * self.faults.read) {
            self.tally.hit(Event::CheckpointUnread);
            return Err(eio());
        }
        if self.is_older {
            return Ok(None);
        }
        self.tally.add(Event::CheckpointLeftOver, u64::from(self.has_checkpoint_left_over()));
        Ok(self.checkpoint.clone())
    }

    /// Takes the checkpoint away, for process `generation`.
    pub fn remove_checkpoint(&mut self, generation: u64) -> io::Result<()> {
        if self.is_older {
            return self.alive(generation);
        }
        match self.fate(generation) {
            Fate::Dead => return Err(eio()),
            Fate::Crashes => {
                self.tally.hit(Event::CrashInCheckpointRemoved);
                if self.rng.coin() {
                    self.checkpoint = None;
                }
                return Err(eio());
            }
            Fate::Done => {}
        }
        if self.checkpoint.is_some() && self.rng.permille(self.faults.write) {
            self.injected[0] += 1;
            return Err(eio());
        }
        self.checkpoint = None;
        Ok(())
    }

    /// Process `generation` adds `page` to a checkpoint, or begins one without a page.
    pub fn append_to_checkpoint(&mut self, generation: u64, page: &[u8]) -> io::Result<()> {
        match self.fate(generation) {
            Fate::Dead => return Err(eio()),
            Fate::Crashes => {
                self.tally.hit(Event::CrashInCheckpoint);
                return Err(eio());
            }
            Fate::Done => {}
        }
        if self.rng.permille(self.faults.write) {
            self.tally.hit(Event::CheckpointFailed);
            return Err(enospc());
        }
        if page.is_empty() {
            self.forget_covers();
        }
        self.covers.extend(covered(page));
        Ok(())
    }

    pub fn forget_covers(&mut self) {
        self.covers.clear();
        self.wrote_in_reused = false;
    }

    /// Notes a write to file `inode` behind the header of the segment there.
    pub fn note_write(&mut self, inode: Inode) {
        let of_the_file = self.covers.iter().find(|(number, _)| self.names.get(number) == Some(&inode));
        self.wrote_in_reused |= of_the_file.is_some_and(|covered| self.is_reused(covered));
    }

    /// Whether a segment with a number covered by the checkpoint under way, and another id, was written to.
    pub fn has_write_in_reused(&self) -> bool {
        self.wrote_in_reused
    }

    /// Whether another segment is in the place of segment `segment_id`.
    fn is_reused(&self, (number, segment_id): &(u32, u64)) -> bool {
        let front = self.bytes_of(*number).and_then(|bytes| bytes.get(..FRAME));
        let header = front.and_then(|front| SegmentHeader::decode(front).ok());
        header.is_some_and(|header| header.segment_id != *segment_id)
    }

    /// Puts `bytes` in the place of the checkpoint, for process `generation`.
    pub fn replace_checkpoint(&mut self, generation: u64, bytes: Vec<u8>) -> io::Result<()> {
        if self.is_older {
            return self.alive(generation);
        }
        match self.fate(generation) {
            Fate::Dead => return Err(eio()),
            Fate::Crashes => {
                self.tally.hit(Event::CrashInCheckpoint);
                if self.rng.coin() {
                    self.checkpoint_of = self.start.0;
                    self.checkpoint = Some(bytes);
                }
                return Err(eio());
            }
            Fate::Done => {}
        }
        self.tally.hit(Event::CheckpointWritten);
        let is_reused = self.covers.iter().any(|covered| self.is_reused(covered));
        self.forget_covers();
        self.tally.add(Event::CoveredReused, u64::from(is_reused));
        self.checkpoint_of = self.start.0;
        self.checkpoint = Some(bytes);
        Ok(())
    }

    /// Changes or loses some of the checkpoint on the medium.
    pub fn damage_checkpoint(&mut self) {
        let Some(mut bytes) = self.checkpoint.take() else { return };
        let at = self.rng.index(bytes.len());
        match self.rng.index(4) {
            0 => bytes.truncate(at),
            1 => return,
            _ => bytes[at] ^= 1 << self.rng.index(8),
        }
        self.checkpoint = Some(bytes);
    }

    pub fn has_checkpoint(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// Whether there is a checkpoint, and not of the last start that the catalog counts.
    pub fn has_checkpoint_left_over(&self) -> bool {
        self.has_checkpoint() && self.checkpoint_of != self.start.0
    }

    pub fn forget_checkpoint(&mut self) {
        self.checkpoint = None;
    }
}

/// Number and id of each covered segment in the checkpoint `bytes`.
fn covered(mut bytes: &[u8]) -> Vec<(u32, u64)> {
    const COVERED: u16 = 2;
    let mut found = Vec::new();
    while bytes.len() > 44 {
        let kind = u16::from_le_bytes([bytes[10], bytes[11]]);
        let len = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        let (page, rest) = bytes.split_at(len);
        if kind == COVERED {
            found.extend(page[40..len - 4].chunks_exact(24).map(|row| {
                let number = u32::from_le_bytes(row[..4].try_into().unwrap());
                (number, u64::from_le_bytes(row[4..12].try_into().unwrap()))
            }));
        }
        bytes = rest;
    }
    found
}
