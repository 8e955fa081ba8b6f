//! The cache's disk on a real directory: `LOCK`, `cache.meta`, `index.ckpt` and `segments/NNNNNNNN.seg`.
//!
//! Owns system calls on those files. Does not own the contents of the files.

mod lock;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FcntlArg, RenameFlags, fcntl, renameat2};

use self::lock::{name_of, wait_for_lock};
use super::disk::{CheckpointFile, Disk, Lock, SegmentFile};
use super::mapping::Mapping;
use crate::units::FRAME_BYTES;

/// Bytes of a checkpoint that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Bytes of a checkpoint that are synced at once: a sync of all bytes at the end would keep other syncs of the disk waiting.
const SYNC_BYTES: usize = 8 << 20;

/// A cache directory on a real file system.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    direct: bool,
}

impl Directory {
    /// The cache in `path`, which must exist when the cache is opened.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), direct: false }
    }

    /// Whether deferred appends go past the page cache.
    #[must_use]
    pub fn direct(self, direct: bool) -> Self {
        Self { direct, ..self }
    }

    fn segments_path(&self) -> PathBuf {
        self.path.join("segments")
    }

    fn segment_path(&self, number: u32) -> PathBuf {
        self.segments_path().join(format!("{number:08}.seg"))
    }

    fn superblock_path(&self) -> PathBuf {
        self.path.join("cache.meta")
    }

    fn checkpoint_path(&self) -> PathBuf {
        self.path.join("index.ckpt")
    }

    fn new_checkpoint_path(&self) -> PathBuf {
        self.path.join("index.ckpt.new")
    }
}

impl Lock for File {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Segment number of a file called `NNNNNNNN.seg`.
fn number_of(name: &OsStr) -> Option<u32> {
    let digits = name.to_str()?.strip_suffix(".seg")?;
    (digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

impl Disk for Directory {
    fn location(&self) -> String {
        self.path.display().to_string()
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Lock>>> {
        if !self.path.is_dir() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = self.path.join("LOCK");
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
        if !wait_for_lock(&file)? {
            return Ok(None);
        }
        // A full disk is no reason to refuse: the cache can be served from. Without the name, a second start does not wait for
        // the end of this process.
        let name = name_of(std::process::id()).unwrap_or_default();
        let _ = file.set_len(0).and_then(|()| file.write_all_at(name.as_bytes(), 0));
        // Half a checkpoint of a killed process takes room.
        let _ = fs::remove_file(self.new_checkpoint_path());
        match fs::create_dir(self.segments_path()) {
            Ok(()) => sync_directory(&self.path)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Ok(Some(Box::new(file)))
    }

    fn read_superblock(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.superblock_path()) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn replace_superblock(&self, bytes: &[u8]) -> io::Result<()> {
        let (place, beside) = (self.superblock_path(), self.path.join("cache.meta.new"));
        // The last exchange of names may not be durable: sync it, or a power cut brings back the file about to be overwritten.
        sync_directory(&self.path)?;
        // The file beside is the superblock before. It is not truncated, so that a full disk has room for this one.
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&beside)?;
        file.write_all_at(bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_all()?;
        match renameat2(AT_FDCWD, &beside, AT_FDCWD, &place, RenameFlags::RENAME_EXCHANGE) {
            Ok(()) => {}
            // There is no superblock yet, or the file system exchanges no names.
            Err(_) => fs::rename(&beside, &place)?,
        }
        sync_directory(&self.path)
    }

    fn segments(&self) -> io::Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(self.segments_path())? {
            numbers.extend(number_of(&entry?.file_name()));
        }
        Ok(numbers)
    }

    fn expect_segments(&self, count: usize) {
        // The kernel's table of open files doubles when the table is full, and in a process of several threads each doubling waits
        // until no thread reads the old table, which takes milliseconds. One file of a high number makes the table large at once.
        let highest = if self.direct { count.saturating_mul(2) } else { count };
        let (Ok(highest), Ok(file)) = (i32::try_from(highest), File::open(&self.path)) else { return };
        // Beyond the limit on open files there is no such number, and the table grows step by step.
        let _ = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(highest)).and_then(nix::unistd::close);
    }

    fn segment_name(&self, number: u32) -> String {
        self.segment_path(number).display().to_string()
    }

    fn open_segment(&self, number: u32, bytes: u64) -> io::Result<Arc<dyn SegmentFile>> {
        let path = self.segment_path(number);
        let mut options = OpenOptions::new();
        let file = options.create(bytes > 0).truncate(false).read(true).write(true).open(&path)?;
        if file.metadata()?.len() < bytes {
            let length =
                libc::off_t::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
            nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, length)?;
            file.sync_all()?;
            sync_directory(&self.segments_path())?;
        }
        let open_direct = || OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path);
        let direct = self.direct.then(open_direct).transpose()?;
        Ok(Arc::new(RealSegment { file, direct }))
    }

    fn remove_segment(&self, number: u32) -> io::Result<()> {
        fs::remove_file(self.segment_path(number))?;
        sync_directory(&self.segments_path())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let figures = nix::sys::statvfs::statvfs(&self.path)?;
        Ok(figures.blocks_available().saturating_mul(figures.fragment_size()))
    }

    fn read_checkpoint(&self) -> io::Result<Option<Box<dyn Read + Send>>> {
        match File::open(self.checkpoint_path()) {
            // `remove_checkpoint` leaves an empty file where the file cannot be removed.
            Ok(file) if file.metadata()?.len() == 0 => Ok(None),
            Ok(file) => Ok(Some(Box::new(BufReader::with_capacity(READ_BYTES, file)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn remove_checkpoint(&self) -> io::Result<()> {
        match fs::remove_file(self.checkpoint_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return self.begin_checkpoint().and_then(CheckpointFile::finish).map_err(|_| error);
            }
            Ok(()) | Err(_) => {}
        }
        // An earlier process may have removed the file, and died before the directory was stable.
        sync_directory(&self.path)
    }

    fn begin_checkpoint(&self) -> io::Result<Box<dyn CheckpointFile>> {
        let checkpoint = RealCheckpoint::begin(self.checkpoint_path(), self.new_checkpoint_path())?;
        Ok(Box::new(checkpoint))
    }
}

/// A checkpoint being written, under a temporary name until all of it is stable: under the name of the checkpoint is no part of one.
#[derive(Debug)]
struct RealCheckpoint {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    /// Bytes appended since the last sync.
    unsynced: usize,
    is_finished: bool,
}

impl RealCheckpoint {
    /// Begins the file `temporary`, which is to be `path`.
    fn begin(path: PathBuf, temporary: PathBuf) -> io::Result<Self> {
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

/// A segment file on a real file system.
#[derive(Debug)]
struct RealSegment {
    file: File,
    /// A second descriptor, which goes past the page cache; only where [`Directory::direct`] says so, and for stable appends.
    direct: Option<File>,
}

impl RealSegment {
    /// Fills `buffer` from the disk itself.
    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let disk = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        let mut memory = vec![0; buffer.len() + FRAME_BYTES];
        let start = memory.as_ptr().align_offset(FRAME_BYTES);
        let aligned = memory.get_mut(start..start.saturating_add(buffer.len()));
        let aligned = aligned.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        disk.read_exact_at(aligned, offset)?;
        buffer.copy_from_slice(aligned);
        Ok(())
    }
}

/// Fills `buffer`, whole frames, from `offset`: each frame by `cached`, which does not wait for the disk, and by `direct` where
/// `cached` fails. The order matters: of a frame whose sync failed, only the page cache has the newest bytes.
fn by_frames(
    buffer: &mut [u8],
    offset: u64,
    cached: impl Fn(&mut [u8], u64) -> io::Result<()>,
    direct: impl Fn(&mut [u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    let offsets = (offset..).step_by(FRAME_BYTES);
    buffer
        .chunks_mut(FRAME_BYTES)
        .zip(offsets)
        .try_for_each(|(frame, offset)| cached(frame, offset).or_else(|_| direct(frame, offset)))
}

impl SegmentFile for RealSegment {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let position =
            libc::off_t::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        loop {
            match nix::sys::uio::pwritev(&self.file, parts, position) {
                Ok(written) if written == bytes => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self.file.read_exact_at(buffer, offset) {
            // The page cache reads in pieces of up to 2 MiB. One bad sector fails the whole piece, whichever part of the piece
            // was asked for.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => by_frames(
                buffer,
                offset,
                |frame, offset| {
                    let is_there = self.read_now(frame, offset)?;
                    if is_there { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
                },
                |frame, offset| self.read_past_cache(frame, offset),
            )
            .map_err(|_| error),
            read => read,
        }
    }

    fn read_from_disk(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_past_cache(buffer, offset)?;
        let range = libc::off_t::try_from(offset).ok().zip(libc::off_t::try_from(buffer.len()).ok());
        if let Some((offset, bytes)) = range {
            let advice = nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED;
            // The advice may fail: then other readers meet the wrong copy until the kernel drops the page for another reason.
            let _ = nix::fcntl::posix_fadvise(&self.file, offset, bytes, advice);
        }
        Ok(())
    }

    fn read_now(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        let bytes = buffer.len();
        let position =
            libc::off_t::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let mut parts = [IoSliceMut::new(buffer)];
        // SAFETY: `IoSliceMut` has the layout of `iovec` and borrows `buffer` mutably for the whole call, so the kernel writes
        // only into memory that nobody else reads or writes. The descriptor is open as long as `self`.
        let read = unsafe {
            libc::preadv2(self.file.as_raw_fd(), parts.as_mut_ptr().cast(), 1, position, libc::RWF_NOWAIT)
        };
        match usize::try_from(read) {
            Ok(read) => Ok(read == bytes),
            Err(_) => match io::Error::last_os_error() {
                error
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::EINTR)
                    ) =>
                {
                    Ok(false)
                }
                error => Err(error),
            },
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn append_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.direct.as_ref().unwrap_or(&self.file).as_fd())
    }

    fn append_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let Some(direct) = &self.direct else { return self.write_at(parts, offset) };
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        // The kernel takes aligned memory only.
        let mut memory = vec![0; bytes + FRAME_BYTES];
        let start = memory.as_ptr().align_offset(FRAME_BYTES);
        let aligned = memory.get_mut(start..start.saturating_add(bytes));
        let aligned = aligned.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut at = 0;
        for part in parts {
            aligned[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        direct.write_all_at(aligned, offset)
    }

    fn stable(&self) -> io::Result<Option<Arc<dyn SegmentFile>>> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = libc::O_DIRECT | libc::O_DSYNC;
        match OpenOptions::new().write(true).custom_flags(flags).open(path) {
            Ok(direct) => {
                let file = self.file.try_clone()?;
                Ok(Some(Arc::new(Self { file, direct: Some(direct) })))
            }
            // The file system has no such writes.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn map(&self, bytes: u64) -> io::Result<Option<Mapping>> {
        // What is written past the page cache takes pages away, locked or not.
        if self.direct.is_some() {
            return Ok(None);
        }
        Mapping::of(self.file.as_fd(), bytes).map(Some)
    }

    fn forget_pages(&self) {
        if self.direct.is_some() {
            // The advice only saves work, so a file system that does not know the advice does no harm.
            let _ = nix::fcntl::posix_fadvise(
                &self.file,
                0,
                0,
                nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_superblock_is_replaced_in_the_room_of_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Directory::new(directory.path());
        let inode = |name: &str| fs::metadata(directory.path().join(name)).unwrap().ino();
        // As left by a start without room, of a version that truncated the file first.
        fs::write(directory.path().join("cache.meta.new"), [7; 100]).unwrap();
        (1..=2).for_each(|number| disk.replace_superblock(&[number; 48]).unwrap());
        let both = [inode("cache.meta"), inode("cache.meta.new")];
        for number in 3..=6 {
            disk.replace_superblock(&[number; 48]).unwrap();
            assert_eq!(disk.read_superblock().unwrap().unwrap(), [number; 48]);
            let mut now = [inode("cache.meta"), inode("cache.meta.new")];
            now.sort_by_key(|inode| both.iter().position(|other| other == inode));
            assert_eq!(now, both, "no file is made or truncated");
        }
    }

    #[test]
    fn only_frames_that_the_page_cache_does_not_give_are_read_past_it() {
        let bad = FRAME_BYTES as u64;
        let cached = |frame: &mut [u8], offset| {
            frame.fill(1);
            if offset == bad { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
        };
        let direct = |frame: &mut [u8], _| {
            frame.fill(2);
            Ok(())
        };
        let mut buffer = vec![0; 3 * FRAME_BYTES];
        by_frames(&mut buffer, 0, cached, direct).unwrap();
        let read: Vec<u8> = buffer.chunks(FRAME_BYTES).map(|frame| frame[0]).collect();
        assert_eq!(read, [1, 2, 1]);
        let fails = |_: &mut [u8], _| Err(io::ErrorKind::Other.into());
        assert!(by_frames(&mut buffer, 0, cached, fails).is_err());
    }
}
