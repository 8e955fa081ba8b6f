//! The lock of a cache directory, and the name of the lock's owner in the lock's file.
//!
//! Owns waiting for the lock. Invariant: a start waits only for a process that has ended and for which the kernel still works, and
//! for no more than [`LOCK_PATIENCE`]. For a process that lives a start waits no longer than [`FORK_PATIENCE`].

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Longest time that the kernel is given to end work for a process that has ended.
const LOCK_PATIENCE: Duration = Duration::from_mins(1);
/// Longest time for which a program that a thread is starting holds copies of the descriptors: from fork to exec. The owner may have
/// closed the lock in that time.
const FORK_PATIENCE: Duration = Duration::from_millis(200);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Takes the lock. `false` when the process that has the lock lives, or when the kernel does not end the work for a process that
/// has ended.
pub(super) fn wait_for_lock(file: &File) -> io::Result<bool> {
    let began = Instant::now();
    loop {
        // Before the try: a lock let go within the patience is taken, however late this thread looks.
        let waited = began.elapsed();
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => {
                let patience = if owner_lives(file) { FORK_PATIENCE } else { LOCK_PATIENCE };
                if waited > patience {
                    return Ok(false);
                }
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Whether the process named in the lock's file lives; also `true` when the file names no process.
fn owner_lives(file: &File) -> bool {
    let mut text = [0; 64];
    let read = file.read_at(&mut text, 0).unwrap_or(0);
    let named = std::str::from_utf8(&text[..read]).unwrap_or_default().trim();
    match named.split_whitespace().next().and_then(|process| process.parse().ok()) {
        Some(process) => name_of(process).is_some_and(|name| name == named),
        None => true,
    }
}

/// A name for a process: number and start time, because numbers are used again. `None` when there is no such process, or when the
/// process has ended and waits for the parent to take note.
pub(super) fn name_of(process: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // "PID (name) state …": the name may hold anything; the start time is the twentieth field from the state on.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?;
    (!matches!(state, "Z" | "X")).then(|| format!("{process} {started}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cache::log::directory::Directory;
    use crate::cache::log::disk::Disk;

    /// The lock's file, locked, with `owner` as the owner's name.
    fn owned(directory: &Path, owner: &str) -> File {
        let file = File::options()
            .create(true)
            .read(true)
            .write(true)
            .truncate(true)
            .open(directory.join("LOCK"))
            .unwrap();
        file.lock().unwrap();
        file.write_all_at(owner.as_bytes(), 0).unwrap();
        file
    }

    #[test]
    fn a_directory_whose_owner_keeps_the_lock_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let _owner = owned(directory.path(), &name_of(std::process::id()).unwrap());
        assert!(Directory::new(directory.path()).lock().unwrap().is_none());
    }

    #[test]
    fn a_copy_of_the_descriptor_that_ends_at_exec_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let owner = owned(directory.path(), &name_of(std::process::id()).unwrap());
        let copy = owner.try_clone().unwrap();
        drop(owner);
        let started = std::thread::spawn(move || {
            std::thread::sleep(LOCK_PAUSE);
            drop(copy);
        });
        assert!(Directory::new(directory.path()).lock().unwrap().is_some());
        started.join().unwrap();
    }

    #[test]
    fn what_the_kernel_still_does_for_a_process_that_ended_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("0.1").spawn().unwrap();
        let owner = owned(directory.path(), &name_of(child.id()).unwrap());
        child.wait().unwrap();
        let ending = std::thread::spawn(move || {
            std::thread::sleep(LOCK_PAUSE * 4);
            drop(owner);
        });
        let lock = Directory::new(directory.path()).lock().unwrap();
        ending.join().unwrap();
        let text = fs::read_to_string(directory.path().join("LOCK")).unwrap();
        assert_eq!(Some(text), name_of(std::process::id()));
        assert!(lock.unwrap().fd().is_some());
    }

    #[test]
    fn a_number_that_was_given_to_another_process_is_not_taken_for_the_owner() {
        let directory = tempfile::tempdir().unwrap();
        let owner = owned(directory.path(), &format!("{} 1", std::process::id()));
        assert!(!owner_lives(&owner));
        owner.set_len(0).unwrap();
        assert!(owner_lives(&owner), "nobody is named");
    }
}
