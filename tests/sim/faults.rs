//! What can go wrong with the fake computer: failures of its disk, and the two kinds of crash.
//!
//! Does not own when: the machine rolls the dice.

use std::io;

use super::rng::Rng;

/// How often operations fail, of 1000.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Writes that fail, after any part of them was carried out.
    pub write: u32,
    /// Syncs that fail.
    pub sync: u32,
    /// Pages that a failed sync takes from readers as well, of those that it did not write.
    pub gone: u32,
    /// Reads that fail.
    pub read: u32,
    /// Openings of segment files that fail.
    pub open: u32,
    /// Reads that say they would have to wait.
    pub would_block: u32,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies; the page cache stays.
    Kill,
    /// The host loses power.
    PowerCut,
}

/// How a power cut treats what was not synced.
#[derive(Clone, Copy, Debug)]
pub struct PowerCut {
    /// Frames of which some version was written back, of 1000.
    pub kept: u32,
    /// Frames torn at sector granularity, of 1000.
    pub torn: u32,
}

impl PowerCut {
    /// Everything from "nothing was written back" to "all but a few frames were".
    pub fn random(rng: &mut Rng) -> Self {
        let kept = [0, 30, 500, 900, 985, 1000][rng.index(6)];
        Self { kept, torn: [0, 0, 20, 300][rng.index(4)] }
    }
}

/// What a failing medium answers.
pub fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

/// What a full file system answers.
pub fn enospc() -> io::Error {
    io::Error::from_raw_os_error(28)
}
