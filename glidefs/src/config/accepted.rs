//! The configuration that served last, for a start whose file is refused.
//!
//! Owns the copy of the file, in the directory which systemd keeps for the service (`StateDirectory=`): the place of the cache is itself a
//! setting. Does not own which start uses the copy. Invariants: a copy stands for the file of which it was made and for no other one, so that
//! of two daemons neither takes the other's cache; it is written when its daemon serves, and replaced as a whole.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The environment variable with the directories which systemd keeps for the service.
const VARIABLE: &str = "STATE_DIRECTORY";
const NAME: &str = "accepted.toml";

/// The place of a copy.
#[derive(Clone, Debug)]
pub struct Accepted {
    copy: PathBuf,
    /// The first line of the copy.
    head: String,
}

impl Accepted {
    /// The copy of the file at `config`; `None` where the service has no directory.
    pub fn of(config: &Path) -> Option<Self> {
        Self::within(&std::env::var_os(VARIABLE)?, config)
    }

    fn within(directories: &OsStr, config: &Path) -> Option<Self> {
        let first = directories.as_bytes().split(|byte| *byte == b':').next()?;
        let copy = Path::new(OsStr::from_bytes(first)).join(NAME);
        let head = format!("# Written by glidefs, which serves with this content of {}\n", config.display());
        copy.is_absolute().then_some(Self { copy, head })
    }

    /// The content of the file when a daemon served with it last.
    pub fn text(&self) -> Option<String> {
        let copy = fs::read_to_string(&self.copy).ok()?;
        copy.strip_prefix(&self.head).map(Into::into)
    }

    /// Notes that a daemon serves with `text`. After a crash the copy is the one before, or this one.
    pub fn keep(&self, text: &str) -> io::Result<()> {
        if self.text().as_deref() == Some(text) {
            return Ok(());
        }
        let new = self.copy.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(self.head.as_bytes())?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(new, &self.copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_the_text_that_was_kept_last_and_is_not_for_another_file() {
        let place = tempfile::tempdir().unwrap();
        let mut directories = place.path().as_os_str().to_owned();
        directories.push(":/var/lib/another");
        let copy = |config: &str| Accepted::within(&directories, Path::new(config)).unwrap();
        assert_eq!(copy("/a.toml").text(), None);
        copy("/a.toml").keep("[cache]\n# größer\n").unwrap();
        assert_eq!(copy("/a.toml").text().as_deref(), Some("[cache]\n# größer\n"));
        assert_eq!(copy("/b.toml").text(), None);
        copy("/a.toml").keep("").unwrap();
        assert_eq!(copy("/a.toml").text().as_deref(), Some(""));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        assert!(Accepted::within(OsStr::new(""), Path::new("/a.toml")).is_none());
    }
}
