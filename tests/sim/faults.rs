//! Faults of the fake computer: failures of the disk, and the two kinds of crash.
//!
//! Does not own the time of a fault: the machine rolls the dice.

use std::io;

use super::rng::Rng;

/// Rates of failing operations, of 1000.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Writes which fail, after any part of the write was carried out.
    pub write: u32,
    pub sync: u32,
    /// Pages hidden from readers by a failed sync, of the pages which the sync did not write.
    pub gone: u32,
    pub read: u32,
    pub open: u32,
    /// Reads which answer that the reader would have to wait.
    pub would_block: u32,
}

impl Faults {
    /// The faults of a life: usually none, or one kind, or a little of each.
    pub fn random(rng: &mut Rng) -> Self {
        let rate = [5, 30, 150][rng.index(3)];
        let would_block = [0, 100, 700][rng.index(3)];
        let none = Self { would_block, ..Self::default() };
        match rng.index(10) {
            0 => Self { write: rate, ..none },
            1 => Self { sync: rate, gone: [0, 300][rng.index(2)], ..none },
            2 => Self { read: rate, ..none },
            3 => Self { open: rate, ..none },
            4 => Self { write: 5, sync: 5, gone: 300, read: 5, open: 20, would_block },
            _ => none,
        }
    }
}

/// The end of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies; the page cache stays.
    Kill,
    /// The host loses power.
    PowerCut,
}

/// The treatment of frames without a sync at a power cut.
#[derive(Clone, Copy, Debug)]
pub struct PowerCut {
    /// Frames of which some version was written back, of 1000.
    pub kept: u32,
    /// Frames torn at sector granularity, of 1000.
    pub torn: u32,
}

impl PowerCut {
    /// Anything from "nothing was written back" to "all but a few frames were".
    pub fn random(rng: &mut Rng) -> Self {
        let kept = [0, 30, 500, 900, 985, 1000][rng.index(6)];
        Self { kept, torn: [0, 0, 20, 300][rng.index(4)] }
    }
}

/// The answer of a failing medium.
pub fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

/// The answer of a full file system.
pub fn enospc() -> io::Error {
    io::Error::from_raw_os_error(28)
}
