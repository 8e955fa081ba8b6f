//! Opening the file of the block cache, and reading the headers of its regions.
//!
//! Owns the decision which file starts empty. Does not own later reads and writes. Invariant: an opened file has the length and the
//! superblock of its geometry.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::region::{Geometry, HEADER_BYTES, RegionHeader};

/// Name of the file in the cache directory.
pub(super) const FILE_NAME: &str = "clean-blocks";
/// Number of threads that read the headers of a file that is opened.
pub(super) const SCANNERS: u32 = 8;

/// The file with the length and the superblock of `geometry`. A file with another superblock is emptied.
pub(super) fn open_file(path: &Path, geometry: Geometry) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let superblock = geometry.superblock();
    let mut found = superblock.map(|_| 0);
    let same = file.read_exact_at(&mut found, 0).is_ok() && found == superblock;
    if !same && file.metadata()?.len() > 0 {
        tracing::warn!(
            path = %path.display(),
            "the block cache is damaged, or was made with another version or size: it starts empty"
        );
        file.set_len(0)?;
    }
    file.set_len(geometry.file_bytes())?;
    file.write_all_at(&superblock, 0)?;
    Ok(file)
}

pub(super) struct Scan {
    pub found: Vec<(u32, RegionHeader)>,
    pub damaged: u64,
}

/// Reads the headers of every [`SCANNERS`]th region from `first` on.
pub(super) fn scan(file: &File, geometry: Geometry, first: u32) -> Scan {
    let mut scan = Scan { found: Vec::new(), damaged: 0 };
    let mut bytes = vec![0; HEADER_BYTES as usize];
    for region in (first..geometry.regions).step_by(SCANNERS as usize) {
        let read = file.read_exact_at(&mut bytes, geometry.offset(region));
        match RegionHeader::decode(&bytes, geometry.region_bytes).filter(|_| read.is_ok()) {
            Some(header) => scan.found.push((region, header)),
            // No header was written, or the last process ended during the write.
            None if read.is_ok() && bytes.iter().take(64).all(|byte| *byte == 0) => {}
            None => scan.damaged += 1,
        }
    }
    scan
}
