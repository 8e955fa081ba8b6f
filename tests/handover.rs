//! The processes of a hand-over, as the program makes them: a standby with a successor that is a script, and a successor with a test in
//! place of the daemon before. Without a ublk kernel the program ends where it would serve devices, and says so.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

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
    fn standby(&self, script: &str, notify: Option<&Path>) -> Output {
        let (standby, successor) = UnixStream::pair().unwrap();
        let config = self.config();
        let handed = |pid: &str| {
            let config = config.replace('"', "\\\"").replace('\n', "\\n");
            format!("{{\"pid\":{pid},\"to\":\"9.9.9\",\"began_unix_millis\":1,\"config\":\"{config}\"}}")
        };
        // A child that ends earlier would be a child of the shell.
        let script = format!("until grep -q glidefs /proc/$PPID/comm; do sleep 0.01; done; {script}");
        let shell = format!(
            "sh -c '{script}' <&1 2>/dev/null & exec 1>&2; GLIDEFS_STANDBY=$(printf '%s' \"$HANDED\" | sed \"s/PID/$!/\") exec \"$0\" \"$@\" --standby"
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
        command.output().unwrap()
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
        let output = Host::new().standby(script, None);
        let said = text(&output.stderr);
        assert!(said.contains("this program serves again"), "{script}: {said}");
        assert!(said.contains(reason), "{script}: {said}");
        // Not the exit status of a refused configuration, after which no daemon would be started any more.
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(!said.contains("of_the_future"), "{said}");
    }
}

#[test]
fn a_standby_gives_way_and_the_service_manager_knows_the_successor_first() {
    let host = Host::new();
    let path = host.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let managing = std::thread::spawn(move || {
        let mut bytes = [0; 256];
        // The descriptor in the second message is dropped by the kernel, as there is no room for one: the barrier ends.
        [(); 2].map(|()| {
            let read = manager.recv(&mut bytes).unwrap();
            text(&bytes[..read])
        })
    });
    let script = "echo \"{\\\"say\\\":\\\"alive\\\"}\" >&0; echo \"{\\\"say\\\":\\\"serving\\\"}\" >&0; read -r line; exit 0";
    let output = host.standby(script, Some(&path));
    let [main, barrier] = managing.join().unwrap();
    assert!(main.starts_with("MAINPID="), "{main}");
    assert_eq!(barrier, "BARRIER=1");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
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
