//! The file a dump is written to: `FILE.partial` until the dump is complete, then FILE.
//!
//! Invariants: FILE is complete or unchanged; two dumps never write the same file; only the owner may read the copy of a device.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::copy::Before;
use super::error::TransferError;
use super::raw_file::RawFile;

/// The incomplete file of a dump.
#[derive(Debug)]
pub(super) struct Partial {
    file: File,
    path: PathBuf,
    wanted: PathBuf,
    may_replace: bool,
}

/// Where the dump of `file` is written.
fn partial_path(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".partial");
    name.into()
}

/// Refuses a `file` that cannot become the dump.
pub(super) fn check(file: &Path, may_replace: bool, resume: bool) -> Result<(), TransferError> {
    check_wanted(file, may_replace)?;
    let path = partial_path(file);
    if !resume && !may_replace && fs::symlink_metadata(&path).is_ok() {
        return Err(TransferError::PartialExists { path });
    }
    Ok(())
}

fn check_wanted(file: &Path, may_replace: bool) -> Result<(), TransferError> {
    let path = || file.to_path_buf();
    match fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(TransferError::File { action: "look at", path: path(), source }),
        Ok(metadata) if metadata.is_dir() => {
            Err(TransferError::NotAFile { path: path(), what: "a directory", wanted: "the name of a file" })
        }
        Ok(metadata) if !metadata.is_file() => Err(TransferError::NotAFile {
            path: path(),
            what: "not a file",
            wanted: "the name of a file, or `-` for standard output",
        }),
        Ok(_) if may_replace => Ok(()),
        Ok(_) => Err(TransferError::FileExists { path: path() }),
    }
}

impl Partial {
    /// Opens the file that becomes `wanted`, `length_bytes` long. Keeps the content with `resume`.
    pub fn open(
        wanted: &Path,
        length_bytes: u64,
        may_replace: bool,
        resume: bool,
    ) -> Result<(Self, RawFile, Before), TransferError> {
        check(wanted, may_replace, resume)?;
        let path = partial_path(wanted);
        let error = |action| {
            let path = path.clone();
            move |source| TransferError::File { action, path, source }
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(error("create"))?;
        if !file.metadata().map_err(error("look at"))?.is_file() {
            return Err(TransferError::NotAFile { path, what: "not a file", wanted: "another name" });
        }
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(TransferError::PartialInUse { path }),
            // Some file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        // Another dump may have renamed the file between opening and locking.
        let here = |metadata: &Metadata| (metadata.dev(), metadata.ino());
        let opened = file.metadata().map_err(error("look at"))?;
        if fs::metadata(&path).map_err(error("look at")).is_ok_and(|now| here(&now) != here(&opened))
            || !path.exists()
        {
            return Err(TransferError::PartialInUse { path });
        }
        if !resume {
            file.set_len(0).map_err(error("empty"))?;
        }
        let was_bytes = file.metadata().map_err(error("look at"))?.len();
        let before = if was_bytes == 0 { Before::Zeroes } else { Before::Something };
        file.set_len(length_bytes).map_err(error("make room in"))?;
        let disk = file.try_clone().and_then(RawFile::new).map_err(error("open"))?;
        Ok((Self { file, path, wanted: wanted.into(), may_replace }, disk, before))
    }

    /// Gives the complete and synced file its final name.
    pub fn complete(self) -> Result<(), TransferError> {
        check_wanted(&self.wanted, self.may_replace)?;
        let error = |source| TransferError::File { action: "create", path: self.wanted.clone(), source };
        fs::rename(&self.path, &self.wanted).map_err(error)?;
        sync_parent(&self.wanted).map_err(error)?;
        drop(self.file);
        Ok(())
    }
}

/// Makes the name of `path` survive loss of power.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(file: &Path, force: bool, resume: bool) -> Result<(Partial, RawFile, Before), TransferError> {
        Partial::open(file, 8192, force, resume)
    }

    #[test]
    fn a_file_that_exists_is_replaced_only_when_that_was_asked_for_and_only_in_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("vm.raw");
        fs::write(&file, "mine").unwrap();
        assert!(matches!(open(&file, false, false), Err(TransferError::FileExists { .. })));
        assert!(matches!(open(&file, false, true), Err(TransferError::FileExists { .. })));
        let (partial, _, before) = open(&file, true, false).unwrap();
        assert_eq!((fs::read(&file).unwrap(), before), (b"mine".to_vec(), Before::Zeroes));
        partial.complete().unwrap();
        assert_eq!(fs::read(&file).unwrap(), vec![0; 8192]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("vm.raw");
        let (partial, ..) = open(&file, false, false).unwrap();
        fs::write(&file, "theirs").unwrap();
        assert!(matches!(partial.complete(), Err(TransferError::FileExists { .. })));
        assert_eq!(fs::read(&file).unwrap(), b"theirs");
    }

    #[test]
    fn what_was_left_is_kept_started_anew_or_refused_as_asked() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("vm.raw");
        let left = || fs::write(partial_path(&file), vec![7; 10_000]).unwrap();
        left();
        assert!(matches!(open(&file, false, false), Err(TransferError::PartialExists { .. })));
        let (_, disk, before) = open(&file, false, true).unwrap();
        let mut content = vec![0; 8192];
        disk.read_exact(&mut content, 0).unwrap();
        assert_eq!((disk.length_bytes(), before, content), (8192, Before::Something, vec![7; 8192]));
        // The disk shares the lock.
        drop(disk);
        left();
        let (_, disk, before) = open(&file, true, false).unwrap();
        assert_eq!((disk.length_bytes(), before), (8192, Before::Zeroes));
    }

    #[test]
    fn two_dumps_never_write_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("vm.raw");
        let first = open(&file, false, false).unwrap();
        assert!(matches!(open(&file, true, true), Err(TransferError::PartialInUse { .. })));
        drop(first);
        open(&file, true, true).unwrap();
    }

    #[test]
    fn devices_and_directories_are_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path(), Path::new("/dev/null")] {
            assert!(matches!(check(path, true, false), Err(TransferError::NotAFile { .. })), "{path:?}");
        }
    }
}
