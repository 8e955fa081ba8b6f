//! The way back of an upgrade, as the program takes it: a program that fails before it serves becomes the program before, in the same
//! process. And a start whose configuration is refused. Without a ublk kernel a daemon ends where it would serve devices, and says so.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Output};

use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;

const PROGRAM: &str = env!("CARGO_BIN_EXE_glidefs");

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

    /// A configuration that is refused where devices are served: the cache's directory is not there.
    fn config(&self) -> String {
        let dir = self.0.path().display();
        format!(
            "[cache]\ndir = \"{dir}/none\"\nsize = \"1GiB\"\n[api]\nlisten = \"none\"\nsocket = \"{dir}/sock\"\n[workers]\ncount = 1\n"
        )
    }

    /// The program as `glidefs run` by a shell, with `name` as the file of a list: the descriptors 8 and 9 are the program before, and a
    /// file in memory with the list.
    fn run(&self, name: &std::ffi::CStr, list: &str) -> Output {
        let before: OwnedFd = nix::fcntl::open(PROGRAM, OFlag::O_RDONLY, Mode::empty()).unwrap();
        let mut memory = File::from(memfd_create(name, MFdFlags::empty()).unwrap());
        memory.write_all(list.as_bytes()).unwrap();
        let shell = format!(
            "exec 8</proc/self/fd/{} 9</proc/self/fd/{}; GLIDEFS_HANDED=9 exec \"$0\" run --config \"$1\"",
            before.as_raw_fd(),
            memory.as_raw_fd()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &shell, PROGRAM]).arg(self.path("glidefs.toml"));
        command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC").output().unwrap()
    }

    /// The program as `glidefs run` by a service manager that keeps this directory for the service.
    fn start(&self, options: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.arg("run").args(options).arg("--config").arg(self.path("glidefs.toml"));
        command.env("STATE_DIRECTORY", self.0.path()).env_remove("NOTIFY_SOCKET").output().unwrap()
    }

    /// A list of a program before with the configuration of the host.
    fn list(&self) -> String {
        let config = self.config().replace('"', "\\\"").replace('\n', "\\n");
        let bytes = |text: &str| format!("{{\"Unix\":{:?}}}", text.as_bytes());
        let path = self.path("glidefs.toml").display().to_string();
        let arguments = ["run", "--config", &path].map(bytes).join(",");
        let launch = format!("{{\"name\":{},\"arguments\":[{arguments}]}}", bytes("glidefs"));
        let upgrade = "{\"began_unix_millis\":1,\"from\":\"0.0.9\",\"to\":\"9.9.9\",\"failure\":null}";
        format!(
            "{{\"upgrade\":{upgrade},\"waiting_nanos\":1,\"start\":1,\"tenures\":[[1,7]],\"config\":\"{config}\",\"launch\":{launch},\"before\":8,\"later\":[]}}"
        )
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn a_program_that_refuses_its_configuration_becomes_the_program_before_with_the_configuration_of_before() {
    let host = Host::new();
    std::fs::write(host.path("glidefs.toml"), "[of_the_future]\n").unwrap();
    let output = host.run(c"glidefs-handed", &host.list());
    let said = said(&output);
    assert!(said.contains("the program before serves again") && said.contains("of_the_future"), "{said}");
    // The program before has its configuration, and there is no way back from there: one end, and no refusal of the
    // configuration.
    assert_eq!(said.matches("serves again").count(), 1, "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("part=\"configuration\""), "the file is refused still: {said}");
    assert!(said.trim().lines().last().unwrap().starts_with("glidefs: "), "{said}");
    assert!(!said.trim().lines().last().unwrap().contains("of_the_future"), "{said}");
}

#[test]
fn a_program_that_fails_where_it_would_serve_becomes_the_program_before() {
    let host = Host::new();
    let output = host.run(c"glidefs-handed", &host.list());
    let said = said(&output);
    assert_eq!(said.matches("serves again").count(), 1, "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
}

#[test]
fn a_variable_of_the_environment_that_leads_to_no_list_means_a_start_as_any_other() {
    let host = Host::new();
    for (name, list) in [(c"another", host.list()), (c"glidefs-handed", "nonsense".into())] {
        let output = host.run(name, &list);
        let said = said(&output);
        assert!(!said.contains("serves again"), "{said}");
        assert_eq!(output.status.code(), Some(1), "{said}");
    }
}

#[test]
fn a_check_prints_what_an_upgrade_compares_and_refuses_a_cache_of_a_later_format() {
    let host = Host::new();
    let check = || {
        let mut command = Command::new(PROGRAM);
        command.args(["run", "--check", "--config"]).arg(host.path("glidefs.toml")).output().unwrap()
    };
    let printed = said(&check());
    let dir = host.0.path().display();
    let expected =
        format!("cache.dir {dir}/none\napi.socket {dir}/sock\napi.listen none\nstore.url none\nformats ");
    assert!(printed.starts_with(&expected) && printed.contains("\nupgrade 1\n"), "{printed}");
    std::fs::create_dir(host.path("none")).unwrap();
    let mut later = b"GLIDEMTA".to_vec();
    later.extend([9, 0]);
    later.extend([0; 100]);
    std::fs::write(host.path("none/cache.meta"), later).unwrap();
    let refused = check();
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("format 9"), "{}", said(&refused));
}

#[test]
fn a_start_whose_file_is_refused_goes_on_with_the_content_that_served_last() {
    let host = Host::new();
    let file = host.path("glidefs.toml");
    let keep = |of: &std::path::Path, text: &str| {
        let head = format!("# Written by glidefs, which serves with this content of {}", of.display());
        std::fs::write(host.path("accepted.toml"), format!("{head}\n{text}")).unwrap();
    };
    let is_refused = |output: &Output| {
        assert_eq!(output.status.code(), Some(2), "{}", said(output));
        assert!(said(output).contains("glidefs.toml:1: "), "{}", said(output));
    };
    let refused = format!("[of_the_future]\n{}", host.config());
    std::fs::write(&file, &refused).unwrap();
    is_refused(&host.start(&[]));
    keep(&host.path("another.toml"), &host.config());
    is_refused(&host.start(&[]));
    keep(&file, "[nonsense]\n");
    is_refused(&host.start(&[]));
    keep(&file, &host.config());
    is_refused(&host.start(&["--check"]));
    // The daemon ends where it would serve devices.
    let goes_on = |why: &str| {
        let output = host.start(&[]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(
            said(&output).contains("part=\"configuration\"") && said(&output).contains(why),
            "{}",
            said(&output)
        );
    };
    goes_on("of_the_future");
    // The cache was moved, so what the daemon before had is old.
    std::fs::write(&file, "[of_the_future]\n[cache]\ndir = \"/moved\"\n").unwrap();
    is_refused(&host.start(&[]));
    std::fs::remove_file(&file).unwrap();
    goes_on("cannot read the configuration");
    std::fs::write(&file, host.config()).unwrap();
    assert!(!said(&host.start(&[])).contains("configuration\""), "a good file counts");
}
