//! The checkpoint file of the fake computer.
//!
//! Invariant: a finished checkpoint is whole on the medium; an unfinished one is gone with the process.

use std::io;

use super::super::faults::{eio, enospc};
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
        Ok(self.checkpoint.clone())
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

    pub fn forget_checkpoint(&mut self) {
        self.checkpoint = None;
    }
}
