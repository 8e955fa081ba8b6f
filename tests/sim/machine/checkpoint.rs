//! The checkpoint file of the fake computer.
//!
//! Invariant: a finished checkpoint is whole on the medium; an unfinished one is gone with the process.

use std::io;

use glidefs::testing::cache::format::SegmentHeader;

use super::super::faults::{eio, enospc};
use super::super::file::FRAME;
use super::super::tally::Event;
use super::{Fate, Machine};

impl Machine {
    /// The bytes of the checkpoint for process `generation`.
    pub fn checkpoint(&mut self, generation: u64) -> io::Result<Option<Vec<u8>>> {
        self.alive(generation)?;
        if self.rng.permille(10 * self.faults.read) {
            self.tally.hit(Event::CheckpointUnread);
            return Err(eio());
        }
        if self.is_older {
            self.is_left_over = self.checkpoint.is_some();
            return Ok(None);
        }
        if self.is_left_over && self.checkpoint.is_some() {
            self.tally.hit(Event::CheckpointLeftOver);
        }
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
        self.is_left_over = false;
        Ok(())
    }

    /// Process `generation` adds to a checkpoint.
    pub fn append_to_checkpoint(&mut self, generation: u64) -> io::Result<()> {
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
        Ok(())
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
                    self.checkpoint = Some(bytes);
                }
                return Err(eio());
            }
            Fate::Done => {}
        }
        self.tally.hit(Event::CheckpointWritten);
        let is_reused = |(number, segment_id): (u32, u64)| {
            let front = self.bytes_of(number).and_then(|bytes| bytes.get(..FRAME));
            let header = front.and_then(|front| SegmentHeader::decode(front).ok());
            header.is_some_and(|header| header.segment_id != segment_id)
        };
        if covered(&bytes).into_iter().any(is_reused) {
            self.tally.hit(Event::CoveredReused);
        }
        self.is_left_over = false;
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
