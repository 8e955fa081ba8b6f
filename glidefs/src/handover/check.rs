//! The check of a program before a daemon goes on as this program.
//!
//! The new program runs as a child, with the arguments of the daemon and `--check`, and prints an [`Identity`]: a line for each property.
//!
//! Owns the child and the comparison. Invariants: the child has a bounded time and its text a bounded length; a program is refused if
//! it could not take the devices of this daemon, or if this daemon could not serve again after its failure.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use super::program::{Launch, ProgramError, check_named, check_own};
use super::{VARIABLE, VERSION};

/// Longest time of a check.
const PATIENCE: Duration = Duration::from_mins(1);
/// Longest text of a check, bytes: the rest is not read.
const TEXT_BYTES_MAX: u64 = 16 << 10;
/// The version of the list for the next program.
const HANDED_VERSION: u32 = 1;
/// Of [`Identity`]: the value of a setting without one.
pub const UNSET: &str = "none";

/// A program fit to follow this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The file of the program, without links.
    pub program: PathBuf,
    /// The version, as the program says.
    pub version: String,
}

/// The properties of a daemon which the next program must share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The directory of the cache.
    pub cache: String,
    /// Device and inode of the directory: another path may lead there, and the path elsewhere by now. Not printed.
    pub directory: Option<(u64, u64)>,
    /// The socket of the API.
    pub socket: String,
    /// The TCP address of the API, or [`UNSET`]. May differ.
    pub listen: String,
    /// The URL of the store, or [`UNSET`]. A store may be added.
    pub store: String,
    /// The newest versions read of the [`FORMATS`], and possibly written before the program serves.
    pub formats: [u64; 3],
}

/// The formats in the cache's directory.
const FORMATS: [&str; 3] = ["the cache", "the log's records", "the catalog"];

/// Why a daemon does not go on as another program. The text tells the user how to act.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The file is no program, or not to be trusted.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel does not start the program.
    #[error("{path} could not be started")]
    Start {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The program refuses the configuration or the cache.
    #[error("{path} would not start ({status}): {said}")]
    Refused {
        path: PathBuf,
        status: String,
        /// The text on standard error.
        said: String,
    },
    /// The check does not end.
    #[error("the check of {path} did not end within {} s", PATIENCE.as_secs())]
    Late { path: PathBuf },
    /// The program is another one, or a version with another way to take over.
    #[error("{path} is not a glidefs that can go on in the process of this one: restart instead")]
    Unknown { path: PathBuf },
    /// The program would serve something else.
    #[error(
        "{what} is {theirs} for the new program, and {own} for the daemon that runs: change the configuration back, or restart instead"
    )]
    Differs {
        what: &'static str,
        /// The value of the new program.
        theirs: String,
        /// The value of this daemon.
        own: String,
    },
    /// The program before could not serve again, should the new one fail.
    #[error(
        "the new program may write version {theirs} of {what} before it serves, and the daemon that runs reads up to version {own}, so \
         that nothing could serve should the new program fail: restart instead"
    )]
    TooNew {
        what: &'static str,
        /// The version of the new program.
        theirs: u64,
        /// The newest version that this daemon reads.
        own: u64,
    },
}

/// Checks the program at `named` by a client, or else the file from which this program was started, as the next program of a daemon with
/// the identity `own`. Changes nothing.
pub async fn check(launch: &Launch, named: Option<&Path>, own: &Identity) -> Result<Candidate, CheckError> {
    let program = match named {
        Some(path) => check_named(path, nix::unistd::geteuid().as_raw())?,
        None => check_own(&launch.program).map(|()| launch.program.clone())?,
    };
    let path = || program.clone();
    let said = match tokio::time::timeout(PATIENCE, said_by(&program, launch)).await {
        Ok(said) => said.map_err(|source| CheckError::Start { path: path(), source })?,
        Err(_) => return Err(CheckError::Late { path: path() }),
    };
    let text = said.map_err(|(status, said)| CheckError::Refused { path: path(), status, said })?;
    let (version, theirs) = Identity::parse(&text).ok_or_else(|| CheckError::Unknown { path: path() })?;
    theirs.may_follow(own)?;
    Ok(Candidate { program, version })
}

/// The output of the check of `program`; or the exit status and the text of a failure.
async fn said_by(program: &Path, launch: &Launch) -> io::Result<Result<String, (String, String)>> {
    let mut child = Command::new(program)
        .args(&launch.arguments)
        .arg("--check")
        .env_remove(VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (printed, failed) = (child.stdout.take(), child.stderr.take());
    let (printed, failed, status) = tokio::join!(text(printed), text(failed), child.wait());
    let status = status?;
    Ok(if status.success() { Ok(printed) } else { Err((status.to_string(), failed.trim().into())) })
}

async fn text(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // A broken text is judged like any other.
        let _ = pipe.take(TEXT_BYTES_MAX).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl fmt::Display for Identity {
    /// The output of `glidefs run --check`. The package's scripts read the first two lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cache, directory: _, socket, listen, store, formats } = self;
        let [whole, records, catalog] = formats;
        writeln!(f, "cache.dir {cache}\napi.socket {socket}\napi.listen {listen}\nstore.url {store}")?;
        writeln!(f, "formats {whole} {records} {catalog}\nversion {VERSION}\nupgrade {HANDED_VERSION}")
    }
}

impl Identity {
    /// The version and the identity of the program behind the output `text`; `None` for a program which cannot go on in the process of
    /// another.
    fn parse(text: &str) -> Option<(String, Self)> {
        let lines: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once(' ')).collect();
        let value = |name| lines.get(name).map(|value| (*value).to_owned());
        let mut formats = [0; FORMATS.len()];
        let mut versions = lines.get("formats")?.split(' ');
        for format in &mut formats {
            *format = versions.next()?.parse().ok()?;
        }
        if value("upgrade")? != HANDED_VERSION.to_string() {
            return None;
        }
        let cache = value("cache.dir")?;
        let identity = Self {
            directory: directory_at(Path::new(&cache)),
            cache,
            socket: value("api.socket")?,
            listen: value("api.listen")?,
            store: value("store.url")?,
            formats,
        };
        Some((value("version")?, identity))
    }

    /// Whether a program with this identity may follow one with the identity `own`.
    fn may_follow(&self, own: &Self) -> Result<(), CheckError> {
        let differs = |what, theirs: &str, own: &str| {
            Err(CheckError::Differs { what, theirs: theirs.into(), own: own.into() })
        };
        if self.directory != own.directory {
            return differs("[cache] dir", &self.cache, &own.cache);
        }
        if self.socket != own.socket {
            return differs("[api] socket", &self.socket, &own.socket);
        }
        if own.store != UNSET && self.store != own.store {
            return differs("[store] url", &self.store, &own.store);
        }
        for ((what, theirs), own) in FORMATS.into_iter().zip(self.formats).zip(own.formats) {
            if theirs > own {
                return Err(CheckError::TooNew { what, theirs, own });
            }
        }
        Ok(())
    }
}

/// The device and the inode of the directory at `path`.
pub fn directory_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::observe::chain;

    fn identity() -> Identity {
        Identity {
            cache: "/c".into(),
            directory: None,
            socket: "/s".into(),
            listen: "127.0.0.1:9".into(),
            store: "s3://b".into(),
            formats: [2, 3, 4],
        }
    }

    /// The outcome for a script with these lines.
    async fn checked(lines: &str) -> Result<Candidate, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let launch = Launch {
            program: "/no/such/program".into(),
            name: "glidefs".into(),
            arguments: vec!["run".into(), "--config".into(), "a b".into()],
        };
        let checked = check(&launch, Some(&path), &identity()).await;
        checked.map_err(|error| chain(&error))
    }

    #[tokio::test]
    async fn a_program_that_says_what_this_one_is_may_follow_and_gets_the_arguments() {
        let same = format!("[ \"$*\" = 'run --config a b --check' ] || exit 7\nprintf '%s' '{}'", identity());
        assert_eq!(checked(&same).await.unwrap().version, VERSION);
        let later = format!("printf '%s' '{}a.later.line 1\n'", identity()).replace(VERSION, "9.9.9");
        assert_eq!(checked(&later).await.unwrap().version, "9.9.9");
    }

    #[tokio::test]
    async fn a_program_that_refuses_or_is_no_glidefs_is_refused_with_its_text() {
        let refused = async |lines: &str| checked(lines).await.unwrap_err();
        let said = refused("echo 'nonsense in line 3' >&2; exit 2").await;
        assert!(said.contains("exit status: 2") && said.contains("nonsense in line 3"), "{said}");
        assert!(refused("kill -9 $$").await.contains("signal: 9"));
        // As a version before says it; and as a version behind.
        assert!(refused("echo 'cache.dir /c'; echo 'api.socket /s'").await.contains("restart instead"));
        let other = identity().to_string().replace("upgrade 1", "upgrade 2");
        assert!(refused(&format!("printf '%s' '{other}'")).await.contains("restart instead"));
        // Ended by the pipe that is closed.
        assert!(refused("exec yes").await.contains("would not start"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_does_not_end_is_ended() {
        assert!(checked("exec sleep 600").await.unwrap_err().contains("did not end within 60 s"));
    }

    #[test]
    fn a_program_that_would_serve_something_else_is_refused() {
        let refused = |change: &dyn Fn(&mut Identity)| {
            let mut theirs = identity();
            change(&mut theirs);
            chain(&theirs.may_follow(&identity()).unwrap_err())
        };
        assert!(refused(&|theirs| theirs.directory = Some((1, 2))).contains("[cache] dir is /c"));
        assert!(refused(&|theirs| theirs.socket = "/t".into()).contains("[api] socket is /t"));
        assert!(refused(&|theirs| theirs.store = UNSET.into()).contains("[store] url is none"));
        assert!(refused(&|theirs| theirs.formats[0] = 3).contains("version 3 of the cache"));
        assert!(refused(&|theirs| theirs.formats[1] = 4).contains("version 4 of the log's records"));
        assert!(refused(&|theirs| theirs.formats[2] = 5).contains("version 5 of the catalog"));
    }

    #[test]
    fn other_addresses_another_path_to_the_cache_and_a_first_store_are_taken() {
        let own = Identity { store: UNSET.into(), ..identity() };
        let theirs = Identity { cache: "/link-to-c".into(), listen: "0.0.0.0:9".into(), ..identity() };
        assert!(theirs.may_follow(&own).is_ok());
        assert!(Identity { listen: UNSET.into(), ..theirs }.may_follow(&own).is_ok());
    }
}
