//! The test file, and the pattern in each block.
//!
//! Owns the file and the permission to write the file. Invariants: an existing file or device is written only with leave; a test
//! file that the user did not name has no name on disk, so the file is gone when the program ends, however the program ends; every
//! written block holds the stamp of its offset, so a read can tell whether the right block came back.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, PosixFadviseAdvice, fcntl, posix_fadvise};

use crate::error::BenchError;
use crate::plan::{BLOCK_BYTES, Case, Settings};

/// Bytes filled at a time.
const FILL_BYTES: usize = 1 << 20;

/// The file that jobs read and write.
#[derive(Debug)]
pub struct TestFile {
    file: File,
    size_bytes: u64,
}

impl TestFile {
    /// Opens or makes the file. Fills the file with stamps, except an existing file that is only read. `progress` is told the bytes
    /// done and the bytes in all.
    pub fn prepare(
        settings: &Settings,
        cases: &[Case],
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Self, BenchError> {
        let path = settings.file.as_deref().unwrap_or(&settings.dir);
        let fail = |source| BenchError::Prepare { path: path.into(), source };
        let writes = cases.iter().any(|case| case.load.mode.writes());
        let (mut file, fill) = match &settings.file {
            None => (nameless(&settings.dir).map_err(fail)?, true),
            Some(path) => match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
                Ok(file) => (file, true),
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(fail(error)),
                Err(_) if settings.overwrite => {
                    (OpenOptions::new().read(true).write(true).open(path).map_err(fail)?, true)
                }
                Err(_) if writes => return Err(BenchError::Exists { path: path.clone() }),
                Err(_) => (File::open(path).map_err(fail)?, false),
            },
        };
        let size_bytes = settings.size_bytes - settings.size_bytes % BLOCK_BYTES as u64;
        if fill {
            fill_with_stamps(&file, size_bytes, &mut progress).map_err(fail)?;
            file.sync_all().map_err(fail)?;
        }
        // The length of a block device is found by seeking too.
        let bytes = file.seek(SeekFrom::End(0)).map_err(fail)?;
        if bytes < size_bytes {
            return Err(BenchError::TooShort { path: path.into(), bytes });
        }
        if settings.direct {
            // Pages already in the page cache would have to be written back first.
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
                .map_err(|error| fail(error.into()))?;
            let flags = fcntl(&file, FcntlArg::F_GETFL).map_err(|error| fail(error.into()))?;
            let flags = OFlag::from_bits_retain(flags) | OFlag::O_DIRECT;
            fcntl(&file, FcntlArg::F_SETFL(flags)).map_err(|error| match error {
                nix::errno::Errno::EINVAL => BenchError::NoDirect { path: path.into() },
                other => fail(other.into()),
            })?;
        }
        Ok(Self { file, size_bytes })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes of the file in use.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}

/// A file without a name in `dir`.
fn nameless(dir: &Path) -> io::Result<File> {
    let options =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(dir);
    match options {
        // Some file systems have no nameless files.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            let path = dir.join(format!(".glidefs-bench-{}", std::process::id()));
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        other => other,
    }
}

fn fill_with_stamps(file: &File, bytes: u64, progress: &mut impl FnMut(u64, u64)) -> io::Result<()> {
    let mut chunk = vec![0xa5; FILL_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let len = usize::try_from(bytes - offset).unwrap_or(FILL_BYTES).min(FILL_BYTES);
        stamp(&mut chunk[..len], offset);
        file.write_all_at(&chunk[..len], offset)?;
        offset += len as u64;
        progress(offset, bytes);
    }
    Ok(())
}

/// The first bytes of the block at byte `offset` of the file: never zero, and different for each block.
fn stamp_of(offset: u64) -> [u8; 8] {
    (offset / BLOCK_BYTES as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// Puts the stamps of the blocks from byte `offset` of the file on into `bytes`.
pub fn stamp(bytes: &mut [u8], offset: u64) {
    for (block, at) in bytes.chunks_mut(BLOCK_BYTES).zip((offset..).step_by(BLOCK_BYTES)) {
        if let Some(start) = block.first_chunk_mut() {
            *start = stamp_of(at);
        }
    }
}

/// Whether `bytes`, read from byte `offset` of the file, have the stamps of their blocks.
pub fn is_stamped(bytes: &[u8], offset: u64) -> bool {
    bytes
        .chunks(BLOCK_BYTES)
        .zip((offset..).step_by(BLOCK_BYTES))
        .all(|(block, at)| block.first_chunk() == Some(&stamp_of(at)))
}

/// The byte offsets of one job's operations.
#[derive(Debug)]
pub struct Offsets {
    block_bytes: u64,
    /// The part of the file the job may touch, in blocks of the size of an operation: the first block, and the number of blocks.
    first: u64,
    count: u64,
    next: u64,
    /// State of the random numbers; `None` for sequential offsets.
    random: Option<u64>,
}

impl Offsets {
    /// The offsets of `job` in a file of `size_bytes`: random ones anywhere in the file, sequential ones through the job's own
    /// share, again and again.
    pub fn new(case: &Case, job: usize, size_bytes: u64) -> Self {
        let block_bytes = case.load.block_bytes as u64;
        let blocks = size_bytes / block_bytes;
        let (first, count, random) = if case.load.mode.is_random() {
            (0, blocks, Some(0x2545_f491_4f6c_dd1d ^ ((job as u64) << 32)))
        } else {
            let share = blocks / case.load.numjobs as u64;
            (share * job as u64, share, None)
        };
        Self { block_bytes, first, count: count.max(1), next: 0, random }
    }

    /// Byte offset of the next operation.
    pub fn next_offset(&mut self) -> u64 {
        let block = match &mut self.random {
            Some(state) => {
                // SplitMix64 (public domain), scaled to the number of blocks by the high half of a product.
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut mixed = *state;
                mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                mixed ^= mixed >> 31;
                u64::try_from((u128::from(mixed) * u128::from(self.count)) >> 64).unwrap_or(0)
            }
            None => {
                let block = self.next;
                self.next = (self.next + 1) % self.count;
                block
            }
        };
        (self.first + block) * self.block_bytes
    }
}
