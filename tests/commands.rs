//! Commands of the program that meet files without an answer, and signals.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

/// Longer than anything takes that is not broken.
const PATIENCE: Duration = Duration::from_mins(2);

fn glidefs(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glidefs"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Whether the process ends by itself. Kills the process otherwise.
fn ends(child: &mut Child) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= deadline {
            child.kill().unwrap();
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

fn pipe_at(path: &Path) -> &str {
    mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    path.to_str().unwrap()
}

#[test]
fn a_check_of_a_configuration_that_nobody_writes_ends_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("glidefs.toml");
    let mut check = glidefs(&["run", "--check", "--config", pipe_at(&config)]).spawn().unwrap();
    assert!(ends(&mut check), "the check waits for ever");
    let output = check.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(config.to_str().unwrap()) && said.contains("does not answer"), "{said}");
}

#[test]
fn with_json_a_failure_is_a_line_of_json_and_standard_output_stays_empty() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none");
    let socket = socket.to_str().unwrap();
    for (arguments, code, status) in [
        (&["export", "list", "--json", "--socket", socket][..], "\"not_running\"", 7),
        (&["export", "open", "a", "b", "--json", "--socket", socket], "\"not_running\"", 7),
        (&["export", "resize", "a", "--json"], "\"usage\"", 2),
    ] {
        let output = glidefs(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{arguments:?}: {said}");
        assert!(said.starts_with("{\"error\":{\"code\":") && said.contains(code), "{said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
    let output = glidefs(&["export", "list", "--socket", socket]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).starts_with("glidefs: the glidefs daemon is not running")
    );
}

#[test]
fn a_bundle_that_is_interrupted_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle.tar.zst");
    let config = folder.path().join("glidefs.toml");
    // The bundle waits a minute for the configuration.
    let config = pipe_at(&config);
    let out = bundle.to_str().unwrap();
    let mut gathering = glidefs(&["support-bundle", "--config", config, "--out", out]).spawn().unwrap();
    // Questions have threads: the gathering has begun.
    let threads = format!("/proc/{}/task", gathering.id());
    let deadline = Instant::now() + PATIENCE;
    while std::fs::read_dir(&threads).unwrap().count() < 2 {
        assert!(Instant::now() < deadline, "nothing is gathered");
        std::thread::sleep(Duration::from_millis(10));
    }
    // A shell starts what runs in the background with SIGINT ignored.
    kill(Pid::from_raw(i32::try_from(gathering.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert!(ends(&mut gathering));
    assert!(!bundle.exists(), "{} bytes", std::fs::metadata(&bundle).unwrap().len());
}
