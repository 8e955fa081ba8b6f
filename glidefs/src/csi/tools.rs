//! Programs of the system: blkid, mkfs, fsck, mount, umount and those which make a file system larger.
//!
//! Owns how a program is run, and how long a system call on a device is waited for. Does not own when (`node`). Invariant: a program gets no terminal and no input, is run without a
//! shell, and is killed when its time is over.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::error::CsiError;

/// How long a program which only looks or mounts may take. A mount replays a journal.
pub(super) const SHORT: Duration = Duration::from_mins(2);
/// How long a program may take which reads or writes a whole file system, but for a check.
pub(super) const LONG: Duration = Duration::from_mins(15);
/// Most characters of a program's complaint in a message.
const SAID_CHARS_MAX: usize = 600;

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub(super) enum ToolError {
    #[error(
        "cannot run {program}: the driver needs blkid, mount, umount, e2fsprogs and xfsprogs where it runs"
    )]
    Start {
        program: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{program} was killed, as it had not ended after {seconds} s")]
    Late { program: &'static str, seconds: u64 },
    /// The program ended with a status which means a failure.
    #[error("{program} failed with {status}: {said}")]
    Failed { program: &'static str, status: String, said: String },
}

/// Runs `program` for `limit` at most. Returns the exit status and the output; any status but those in `fine` is an error.
pub(super) async fn run(
    program: &'static str,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    limit: Duration,
    fine: &[i32],
) -> Result<(i32, String), ToolError> {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(limit, command.output()).await;
    let ended = ended.map_err(|_| ToolError::Late { program, seconds: limit.as_secs() })?;
    let ended = ended.map_err(|source| ToolError::Start { program, source })?;
    let output = String::from_utf8_lossy(&ended.stdout);
    match ended.status.code() {
        Some(status) if fine.contains(&status) => Ok((status, output.into_owned())),
        status => {
            let status = status.map_or("a signal".into(), |status| format!("exit status {status}"));
            let complaint = String::from_utf8_lossy(&ended.stderr);
            let said = if complaint.is_empty() { output } else { complaint };
            let said: Vec<&str> = said.split_whitespace().collect();
            let said = said.join(" ").chars().take(SAID_CHARS_MAX).collect();
            Err(ToolError::Failed { program, status, said })
        }
    }
}

/// Does `work`, which is to do `action` with `path` and may block on a device that does not answer, for `limit` at most.
pub(super) async fn within<T: Send + 'static>(
    limit: Duration,
    action: &'static str,
    path: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, CsiError> {
    match tokio::time::timeout(limit, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(done)) => done.map_err(|source| CsiError::system(action, path, source)),
        Ok(Err(_)) => Err(CsiError::Broken),
        Err(_) => Err(CsiError::later(format!("{} does not answer", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failure_is_told_with_the_words_of_the_program() {
        let error = run("sh", ["-c", "echo it is broken >&2; exit 4"], SHORT, &[0]).await.unwrap_err();
        assert_eq!(error.to_string(), "sh failed with exit status 4: it is broken");
        let ended = run("sh", ["-c", "echo fine; exit 4"], SHORT, &[0, 4]).await.unwrap();
        assert_eq!(ended, (4, "fine\n".into()));
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_is_killed() {
        let error = run("sleep", ["600"], Duration::from_millis(1), &[0]).await.unwrap_err();
        assert!(matches!(error, ToolError::Late { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_program_that_is_missing_is_named() {
        let error = run("/nonexistent/mkfs", ["x"], SHORT, &[0]).await.unwrap_err();
        assert!(error.to_string().contains("/nonexistent/mkfs"), "{error}");
    }
}
