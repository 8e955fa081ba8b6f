//! The process between the standby and the successor: the main process of the service while the successor loses its parent.
//!
//! A service manager looks at the parent of a main process once, when the manager is told of the process. A main process that is not a
//! child of the manager is killed at every stop, without the time for a stop in good order. The successor is a child of the standby as
//! long as the standby lives, and the service ends when the main process ends; so the usher, a child of the manager, is the main process
//! meanwhile.
//!
//! Owns the process of the usher. Invariant: an usher tells the manager of a process only when that process is the manager's own child.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, daemon, getppid};

use super::link::Link;
use super::message::Message;
use super::notify::{Watchdog, make_main_process};
use super::program::Launch;
use super::standby::catch_stops;

/// How long the standby may take to end once the manager was told of the usher; the manager may keep the standby waiting.
const STANDBY_PATIENCE: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(2);
/// Longest process number with the end of the line, bytes.
const NUMBER_BYTES_MAX: u64 = 16;

/// Starts the usher of `successor`, a child of this process at the other end of `link`. Returns the process of the usher, which is no
/// child of this process.
pub(super) fn start(link: &Link, successor: u32) -> io::Result<u32> {
    let launch = Launch::of_this_process()?;
    let mut child = Command::new("/proc/self/exe")
        .arg0(&launch.name)
        .args(&launch.arguments)
        .arg(format!("--usher={successor}"))
        .stdin(link.as_fd().try_clone_to_owned()?)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut number = String::new();
    if let Some(said) = child.stdout.take() {
        BufReader::new(said.take(NUMBER_BYTES_MAX)).read_line(&mut number)?;
    }
    // The usher is a child of the service manager when its own parent has ended.
    child.wait()?;
    number.trim().parse().map_err(io::Error::other)
}

/// The usher: waits until `successor` has lost its parent, and makes the successor the main process of the service. To be called before
/// any thread is started, by a process which [`start`] has started.
pub fn usher(successor: u32) -> io::Result<()> {
    let link = Link::new(super::successor::take_socket()?)?;
    let standby = u32::try_from(getppid().as_raw()).map_err(io::Error::other)?;
    // The service may be stopped from the moment on when this process is the main one.
    let signals = catch_stops()?;
    daemon(true, true)?;
    // The kernel has named the process after the path of the program's file in /proc.
    let _ = nix::sys::prctl::set_name(c"glidefs");
    writeln!(io::stdout(), "{}", std::process::id())?;
    let watchdog = Watchdog::new();
    let deadline = Instant::now() + STANDBY_PATIENCE;
    loop {
        match parent_of(successor) {
            Ok(parent) if parent == standby => {}
            Ok(_) => break,
            // The manager starts the service again, unless the service is stopped.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::error!("the successor ended after it served");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(PAUSE);
    }
    // The watchdog is fed while the manager takes its time, and at once: the standby may have been busy.
    watchdog.feed_now();
    if let Err(error) = make_main_process(successor, &watchdog) {
        tracing::error!(error = %error, "the service manager could not be told of the successor");
    }
    // The successor may have ended by itself.
    if let Ok(Some(_)) = signals.read_signal() {
        let pid = i32::try_from(successor).map_err(io::Error::other)?;
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    let _ = link.send(&Message::Yours);
    Ok(())
}

/// The parent of the process `pid`.
fn parent_of(pid: u32) -> io::Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    let parent = parent.and_then(|number| number.trim().parse().ok());
    parent.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel does not tell the parent"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_of_a_process_is_known_while_the_process_lives() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        assert_eq!(parent_of(child.id()).unwrap(), std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(parent_of(child.id()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
