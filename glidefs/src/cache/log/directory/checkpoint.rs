//! A checkpoint being written to a real file system.
//!
//! Owns the file's way from a temporary name to the name of the checkpoint. Invariant: under the name of the checkpoint is no part of one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use super::sync_directory;
use crate::cache::log::disk::CheckpointFile;

/// Bytes of a checkpoint that are synced at once: a sync of all bytes at the end would keep other syncs of the disk waiting.
const SYNC_BYTES: usize = 8 << 20;

/// The file, under the temporary name until all of the checkpoint is stable.
#[derive(Debug)]
pub(super) struct RealCheckpoint {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    /// Bytes appended since the last sync.
    unsynced: usize,
    is_finished: bool,
}

impl RealCheckpoint {
    /// Begins the file `temporary`, which is to be `path`.
    pub fn begin(path: PathBuf, temporary: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).truncate(true).write(true).open(&temporary)?;
        Ok(Self { file, temporary, path, unsynced: 0, is_finished: false })
    }
}

impl CheckpointFile for RealCheckpoint {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.unsynced = self.unsynced.saturating_add(bytes.len());
        if self.unsynced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.unsynced = 0;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        self.is_finished = true;
        self.path.parent().map_or(Ok(()), sync_directory)
    }
}

impl Drop for RealCheckpoint {
    fn drop(&mut self) {
        if !self.is_finished {
            // The next checkpoint truncates the file.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
