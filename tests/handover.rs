//! The processes of a hand-over, as the program makes them: a standby with a successor that is a script, and a successor with a test in
//! place of the daemon before. Without a ublk kernel the program ends where it would serve devices, and says so.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_glidefs");
/// Longer than anything takes that is not broken.
const PATIENCE: Duration = Duration::from_mins(2);

/// A directory with a configuration.
struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("cache")).unwrap();
        let host = Self(dir);
        std::fs::write(host.path("glidefs.toml"), host.config()).unwrap();
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn config(&self) -> String {
        let dir = self.0.path().display();
        format!(
            "[cache]\ndir = \"{dir}/cache\"\nsize = \"1GiB\"\n[api]\nlisten = \"none\"\nsocket = \"{dir}/sock\"\n[workers]\ncount = 1\n"
        )
    }

    /// The program, as `glidefs run` with these further arguments.
    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["run", "--config"]).arg(self.path("glidefs.toml")).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A standby whose successor is a child that does as `script` says, with the socket as standard input and output. The shell starts
    /// the successor and becomes the standby, as the daemon does.
    fn standby(&self, script: &str, notify: Option<&Path>) -> Child {
        let (standby, successor) = UnixStream::pair().unwrap();
        let config = self.config();
        let handed = |pid: &str| {
            let config = config.replace('"', "\\\"").replace('\n', "\\n");
            format!("{{\"pid\":{pid},\"to\":\"9.9.9\",\"began_unix_millis\":1,\"config\":\"{config}\"}}")
        };
        // A child that ends earlier would be a child of the shell.
        let script = format!("until grep -q glidefs /proc/$PPID/comm; do sleep 0.01; done; {script}");
        let shell = format!(
            "sh -c '{script}' <&1 2>/dev/null & exec 1>&2; printf '%s' \"$HANDED\" | sed \"s/PID/$!/\" >'{}'; GLIDEFS_STANDBY=9 exec \"$0\" \"$@\" --standby 9<'{}'",
            self.path("handed").display(),
            self.path("handed").display(),
        );
        let mut command = Command::new("sh");
        command.args(["-c", &shell, PROGRAM, "run", "--config"]).arg(self.path("glidefs.toml"));
        command.env("HANDED", handed("PID")).env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC");
        if let Some(notify) = notify {
            command.env("NOTIFY_SOCKET", notify);
        }
        command.stdin(OwnedFd::from(standby)).stdout(OwnedFd::from(successor)).stderr(Stdio::piped());
        // The file as it is today is one for the successor.
        std::fs::write(self.path("glidefs.toml"), "[of_the_future]\n").unwrap();
        command.spawn().unwrap()
    }

    /// The text of a file which another process writes, once there is some.
    fn written(&self, name: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match std::fs::read_to_string(self.path(name)) {
                Ok(text) if text.ends_with('\n') => return text.trim().into(),
                _ if Instant::now() >= deadline => panic!("{name} was not written"),
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// A successor that serves, and says in the file `said` of the host that it was told to stop.
fn serving(host: &Host) -> String {
    format!(
        "trap \"echo stopped >{}; exit 5\" TERM; echo \"{{\\\"say\\\":\\\"serving\\\"}}\" >&0; while :; do sleep 0.02; done",
        host.path("said").display()
    )
}

fn terminate(pid: u32) {
    nix::sys::signal::kill(pid_of(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
}

fn pid_of(pid: u32) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap())
}

fn parent_of(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap()
}

/// A service manager that is told of main processes.
struct Manager(UnixDatagram);

impl Manager {
    fn new(host: &Host) -> Self {
        let socket = UnixDatagram::bind(host.path("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    fn next(&self) -> String {
        let mut bytes = [0; 256];
        let read = self.0.recv(&mut bytes).unwrap();
        text(&bytes[..read]).trim().into()
    }

    /// The process which is to be the main one. Its barrier ends with [`Manager::barrier`].
    fn main(&self) -> u32 {
        let said = self.next();
        said.strip_prefix("MAINPID=").unwrap_or_else(|| panic!("{said}")).parse().unwrap()
    }

    /// The descriptor in the message is dropped by the kernel, as there is no room for one: the barrier ends.
    fn barrier(&self) {
        assert_eq!(self.next(), "BARRIER=1");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_standby_whose_successor_dies_serves_again_with_the_configuration_that_it_had() {
    for (script, reason) in [
        ("kill -9 $$", "signal: 9"),
        ("exit 3", "exit status: 3"),
        (
            "echo \"{\\\"say\\\":\\\"failed\\\",\\\"reason\\\":\\\"no room\\\"}\" >&0; exec sleep 600",
            "no room",
        ),
        ("echo nonsense >&0; exec sleep 600", "no message of a hand-over"),
    ] {
        let output = Host::new().standby(script, None).wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert!(said.contains("this program serves again"), "{script}: {said}");
        assert!(said.contains(reason), "{script}: {said}");
        // Not the exit status of a refused configuration, after which no daemon would be started any more.
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(!said.contains("of_the_future"), "{said}");
    }
}

#[test]
fn the_service_manager_is_told_of_its_own_children_only() {
    let host = Host::new();
    let manager = Manager::new(&host);
    let script = "echo \"{\\\"say\\\":\\\"alive\\\"}\" >&0; echo \"{\\\"say\\\":\\\"serving\\\"}\" >&0; read -r line; exit 0";
    let standby = host.standby(script, Some(&host.path("notify")));
    let usher = manager.main();
    let parent = parent_of(usher);
    assert_ne!(parent, standby.id(), "the usher is the standby's child");
    manager.barrier();
    let successor = manager.main();
    assert_ne!((successor, parent_of(successor)), (usher, standby.id()));
    assert_eq!(parent_of(successor), parent, "the successor is not the manager's child");
    manager.barrier();
    let output = standby.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_service_that_is_stopped_while_main_processes_change_stops_the_successor() {
    for stop_at in [0, 1] {
        let host = Host::new();
        let manager = Manager::new(&host);
        let standby = host.standby(&serving(&host), Some(&host.path("notify")));
        let mut main = standby.id();
        for change in [0, 1] {
            let next = manager.main();
            if change == stop_at {
                terminate(main);
            }
            manager.barrier();
            main = next;
            if change == stop_at && change == 0 && host.written("said") == "stopped" {
                break;
            }
        }
        assert_eq!(host.written("said"), "stopped", "stopped at change {stop_at}");
        drop(manager);
        let output = standby.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
}

#[test]
fn without_a_service_manager_the_standby_stays_and_passes_signals_on() {
    let host = Host::new();
    let mut standby = host.standby(&serving(&host), None);
    let mut lines = BufReader::new(standby.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("the successor serves")));
    assert!(standby.try_wait().unwrap().is_none(), "whoever started the daemon would start another one");
    terminate(standby.id());
    assert_eq!(standby.wait().unwrap().code(), Some(5));
    assert_eq!(host.written("said"), "stopped");
}

/// The end of the successor's process, and all that was written to the socket.
fn ended(mut child: Child, mut socket: UnixStream) -> (Output, String) {
    let mut said = String::new();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.read_to_string(&mut said).unwrap();
    drop(child.stdin.take());
    (child.wait_with_output().unwrap(), said)
}

fn successor(host: &Host, protocol: &str) -> (Child, UnixStream) {
    let (own, other) = UnixStream::pair().unwrap();
    let child = host.run(&[&format!("--successor={protocol}")]).stdin(OwnedFd::from(other)).spawn().unwrap();
    (child, own)
}

#[test]
fn a_successor_that_cannot_start_tells_the_daemon_before_why() {
    let host = Host::new();
    std::fs::write(host.path("glidefs.toml"), "[nonsense]\n").unwrap();
    let (child, socket) = successor(&host, "1");
    let (output, said) = ended(child, socket);
    assert!(said.contains("\"failed\"") && said.contains("nonsense"), "{said}");
    assert!(!output.status.success());
}

#[test]
fn a_successor_of_a_daemon_with_another_protocol_refuses() {
    let (child, socket) = successor(&Host::new(), "2");
    let (output, said) = ended(child, socket);
    assert_eq!(said, "");
    // The log of a successor is at standard output.
    assert!(text(&output.stdout).contains("speaks version 2"), "{}", text(&output.stdout));
}

#[test]
fn a_successor_without_a_daemon_before_does_not_start() {
    for option in ["--successor=1", "--standby"] {
        let output = Host::new().run(&[option]).stdin(Stdio::null()).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains("glidefs upgrade"), "{option}: {said}");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn a_successor_whose_daemon_goes_away_ends_and_has_changed_nothing() {
    let host = Host::new();
    let (child, socket) = successor(&host, "1");
    let mut lines = BufReader::new(socket.try_clone().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    if line.contains("hello") {
        (&socket).write_all(b"{\"say\":\"follow\",\"version\":\"0\",\"began_unix_millis\":1}\n").unwrap();
        line.clear();
        while !line.contains("ready") {
            line.clear();
            lines.read_line(&mut line).unwrap();
        }
    } else {
        // This machine has no ublk.
        assert!(line.contains("cannot serve block devices"), "{line}");
    }
    drop((socket, lines));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let left: Vec<_> = std::fs::read_dir(host.path("cache")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
