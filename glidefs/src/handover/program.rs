//! Which program may follow this one, and how this one was started.
//!
//! Owns the checks of a program that a client names. Invariant: what a client may name is a program which only root or the user of the
//! daemon can have put there; every directory on the way is checked as well, as whoever may write to a directory may put another file
//! in place of the checked one.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The end of the kernel's name for a program whose file was replaced or removed.
const DELETED: &[u8] = b" (deleted)";

/// Why a program cannot follow. The text tells the user how to act.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The path depends on the directory of whoever reads it.
    #[error("{path} is not an absolute path: name the program from / on")]
    Relative { path: PathBuf },
    /// There is no such file, or the daemon may not look.
    #[error("{path} cannot be used")]
    Missing {
        path: PathBuf,
        /// The error of the look.
        #[source]
        source: io::Error,
    },
    /// The path leads to something else than a program.
    #[error("{path} is not a program: name an executable file")]
    NoProgram { path: PathBuf },
    /// Somebody else could have put another file there.
    #[error(
        "{path} could be replaced by others than root and the user of the daemon: have {what} owned by root, and writable by the \
         owner only"
    )]
    Untrusted {
        path: PathBuf,
        /// The file or directory that others may write to.
        what: PathBuf,
    },
}

/// How this program was started: the same again, or another program in its place, starts with these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The program's file, as of the start: a file put there since is the next program. Not handed on.
    #[serde(skip)]
    pub program: PathBuf,
    /// The name under which the program was called.
    pub name: OsString,
    /// The arguments of this program.
    pub arguments: Vec<OsString>,
}

impl Launch {
    /// How this process was started. To be called at the start.
    pub fn of_this_process() -> io::Result<Self> {
        let program = without_mark(fs::read_link("/proc/self/exe")?);
        let mut arguments = std::env::args_os();
        let name = arguments.next().unwrap_or_else(|| "glidefs".into());
        Ok(Self { program, name, arguments: arguments.collect() })
    }
}

fn without_mark(program: PathBuf) -> PathBuf {
    match program.as_os_str().as_bytes().strip_suffix(DELETED) {
        Some(path) => OsString::from_vec(path.to_vec()).into(),
        None => program,
    }
}

/// Checks that the file at `path`, which no client has named, is a program.
pub(super) fn check_own(path: &Path) -> Result<(), ProgramError> {
    let missing = |source| ProgramError::Missing { path: path.into(), source };
    if is_program(&fs::metadata(path).map_err(missing)?) {
        Ok(())
    } else {
        Err(ProgramError::NoProgram { path: path.into() })
    }
}

/// Checks that a client may have the program at `path` started by a daemon of the user `own`. Returns the path without links.
pub(super) fn check_named(path: &Path, own: u32) -> Result<PathBuf, ProgramError> {
    let missing = |source| ProgramError::Missing { path: path.into(), source };
    if !path.is_absolute() {
        return Err(ProgramError::Relative { path: path.into() });
    }
    let whole = path.canonicalize().map_err(missing)?;
    let metadata = fs::symlink_metadata(&whole).map_err(missing)?;
    if !is_program(&metadata) {
        return Err(ProgramError::NoProgram { path: path.into() });
    }
    let untrusted = |what: &Path| ProgramError::Untrusted { path: path.into(), what: what.into() };
    if !is_trusted(&metadata, own, 0o022) {
        return Err(untrusted(&whole));
    }
    for directory in whole.ancestors().skip(1) {
        let metadata = fs::symlink_metadata(directory).map_err(missing)?;
        // In a directory with the sticky bit nobody replaces the file of somebody else. The rights of the group root count as well:
        // where a directory has an access list, those bits are what the list gives to anybody.
        let forbidden = if metadata.mode() & 0o1000 == 0 { 0o022 } else { 0 };
        if !is_trusted(&metadata, own, forbidden) {
            return Err(untrusted(directory));
        }
    }
    Ok(whole)
}

fn is_program(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
}

/// Whether root or the user `own` owns the file, and nobody has the rights `forbidden`.
fn is_trusted(metadata: &Metadata, own: u32, forbidden: u32) -> bool {
    (metadata.uid() == 0 || metadata.uid() == own) && metadata.mode() & forbidden == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn own() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    fn program(folder: &Path, mode: u32) -> PathBuf {
        let path = folder.join("program");
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_program_of_the_own_user_is_taken_and_a_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = program(folder.path(), 0o755);
        assert_eq!(check_named(&path, own()).unwrap(), path.canonicalize().unwrap());
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(check_named(&link, own()).unwrap(), path.canonicalize().unwrap());
        assert!(check_own(&path).is_ok());
    }

    #[test]
    fn what_is_no_program_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |path: &Path| check_named(path, own()).unwrap_err();
        assert!(matches!(refused(Path::new("bin/sh")), ProgramError::Relative { .. }));
        assert!(matches!(refused(Path::new("/no/such")), ProgramError::Missing { .. }));
        assert!(matches!(refused(folder.path()), ProgramError::NoProgram { .. }));
        let path = program(folder.path(), 0o644);
        assert!(matches!(refused(&path), ProgramError::NoProgram { .. }));
        assert!(matches!(check_own(&path), Err(ProgramError::NoProgram { .. })));
        assert!(matches!(refused(Path::new("/dev/null")), ProgramError::NoProgram { .. }));
    }

    #[test]
    fn a_program_that_others_could_replace_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o775, 0o757, 0o777] {
            let path = program(folder.path(), mode);
            let refused = check_named(&path, own());
            assert!(matches!(refused, Err(ProgramError::Untrusted { .. })), "{mode:o}");
        }
        let path = program(folder.path(), 0o755);
        let inside = |mode| {
            fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
            check_named(&path, own())
        };
        assert!(matches!(inside(0o777), Err(ProgramError::Untrusted { .. })));
        assert!(inside(0o1777).is_ok(), "in a sticky directory only the owner replaces the file");
        assert!(inside(0o700).is_ok());
        assert!(matches!(inside(0o775), Err(ProgramError::Untrusted { .. })), "also of the group root");
        assert!(inside(0o755).is_ok());
        // Root's files are always trusted, and a stranger's never.
        if own() == 0 {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            assert!(matches!(check_named(&path, 0), Err(ProgramError::Untrusted { .. })));
            assert!(check_named(&path, 12_345).is_ok());
        }
    }

    #[test]
    fn the_file_that_replaced_the_program_is_found() {
        assert_eq!(without_mark("/usr/bin/glidefs (deleted)".into()), Path::new("/usr/bin/glidefs"));
        assert_eq!(without_mark("/usr/bin/glidefs".into()), Path::new("/usr/bin/glidefs"));
    }
}
