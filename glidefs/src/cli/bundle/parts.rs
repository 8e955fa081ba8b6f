//! The parts of a bundle: the questions to the daemon, to systemd and to the kernel.
//!
//! Does not own the removal of secrets (`secrets`). Invariants: no question takes longer than [`PATIENCE`], but for those of the doctor, who
//! has limits of its own; all are asked at once; none but those of the doctor changes anything.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use futures_util::future::join_all;

use crate::client::Client;
use crate::config::Config;
use crate::doctor;
use crate::observe::chain;

/// How long one part is waited for.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long a program may take, in seconds, before it is ended, and killed a little later.
const PROGRAM_SECONDS: &str = "50";
const KILL_AFTER: &str = "--kill-after=5";
/// Most files that are listed of the cache.
const FILES_MAX: usize = 50_000;
/// What the daemon answers, and the file for the answer.
const ANSWERS: [(&str, &str); 4] = [
    ("/v1/status", "daemon/status.json"),
    ("/v1/exports", "daemon/exports.json"),
    ("/v1/memory", "daemon/memory.json"),
    ("/metrics", "daemon/metrics.txt"),
];
/// Programs, and the file for the output of each. `systemctl show` names the properties, as the environment is one.
const PROGRAMS: [(&str, &str, &[&str]); 7] = [
    (
        "system/journal.txt",
        "journalctl",
        &["--unit=glidefs", "--lines=20000", "--output=short-iso-precise", "--no-pager", "--utc"],
    ),
    (
        "system/kernel.txt",
        "journalctl",
        &["--dmesg", "--boot", "--lines=5000", "--output=short-iso-precise", "--no-pager", "--utc"],
    ),
    (
        "system/service.txt",
        "systemctl",
        &[
            "show",
            "glidefs",
            "--no-pager",
            "--property=ActiveState,SubState,Result,NRestarts,ExecMainPID,ExecMainStatus,ExecMainStartTimestamp,MemoryCurrent,\
             TasksCurrent,LimitNOFILE,LimitMEMLOCK,FragmentPath,DropInPaths,WatchdogUSec",
        ],
    ),
    ("system/udev.txt", "udevadm", &["info", "--export-db"]),
    (
        "system/disks.txt",
        "lsblk",
        &["--output", "NAME,MAJ:MIN,SIZE,TYPE,FSTYPE,MOUNTPOINTS,MODEL,ROTA,SCHED", "--bytes"],
    ),
    ("system/space.txt", "df", &["--print-type", "--block-size=1"]),
    ("system/kernel-version.txt", "uname", &["--all"]),
];
/// Files of the kernel and of the host.
const FILES: [&str; 9] = [
    "/etc/os-release",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/self/mountinfo",
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/sys/module/ublk_drv/parameters/ublks_max",
    "/sys/devices/system/cpu/online",
];

/// A file of the bundle: its text, or why there is none.
pub(super) struct Part {
    /// The name, with a folder.
    pub name: String,
    pub content: Result<String, String>,
}

impl Part {
    fn new(name: &str, content: Result<String, String>) -> Self {
        Self { name: name.to_owned(), content }
    }
}

/// All parts, for the daemon that `client` reaches and the configuration file at `config`.
pub(super) async fn gather(client: &Client, config: &Path, now: DateTime<Utc>) -> Vec<Part> {
    let answers = ANSWERS.map(async |(path, name)| {
        let answer = tokio::time::timeout(PATIENCE, client.get_text(path)).await;
        Part::new(
            name,
            answer.map_or_else(|_| Err(silence()), |answer| answer.map_err(|error| chain(&error))),
        )
    });
    let programs = PROGRAMS.map(async |(name, program, arguments)| {
        let printed = within_patience(move || output(program, arguments)).await;
        Part::new(name, printed.map(|text| of_interest(program, text)))
    });
    let files = FILES.map(async |path| {
        Part::new(&format!("host{path}"), within_patience(move || read(Path::new(path))).await)
    });
    let (file, folder) = (config.to_owned(), config.to_owned());
    let (answers, programs, files, report, file, list) = tokio::join!(
        join_all(answers),
        join_all(programs),
        join_all(files),
        doctor::examine(config),
        within_patience(move || read(&file)),
        within_patience(move || list(&cache_of(&folder))),
    );
    let report = serde_json::to_string_pretty(&report).map_err(|error| error.to_string());
    let mut parts = vec![Part::new("about.txt", Ok(about(now))), Part::new("doctor.json", report)];
    parts.extend([Part::new("glidefs.toml", file), Part::new("cache.txt", list)]);
    parts.extend(answers.into_iter().chain(programs).chain(files));
    parts
}

/// The part for a file that may have secrets, and was not read in time.
pub(super) fn unread(path: &Path) -> Part {
    let reason = "no answer in time: where a secret of this file is in another part, it is removed only if it looks like one";
    Part::new(&path.display().to_string(), Err(reason.into()))
}

/// The main process of the service, if one runs.
pub(super) fn daemon() -> Option<u32> {
    let shown = output("systemctl", &["show", "glidefs", "--property=MainPID", "--value"]).ok()?;
    shown.trim().parse().ok().filter(|pid| *pid != 0)
}

/// Of the output of `program`, the part about this host's block devices. The kernel's command line may have passwords in any form.
fn of_interest(program: &str, text: String) -> String {
    match program {
        "udevadm" => {
            let devices = text.split_inclusive("\n\n");
            devices.filter(|device| device.contains("\nE: SUBSYSTEM=block\n")).collect()
        }
        "journalctl" => {
            let is_shown = |line: &&str| !["ommand line:", "EXECVE"].iter().any(|mark| line.contains(mark));
            text.split_inclusive('\n').filter(is_shown).collect()
        }
        _ => text,
    }
}

fn about(now: DateTime<Utc>) -> String {
    let time = now.to_rfc3339_opts(SecondsFormat::Secs, true);
    format!("glidefs {}\ncollected {time}\n", env!("CARGO_PKG_VERSION"))
}

fn silence() -> String {
    format!("no answer within {} s", PATIENCE.as_secs())
}

/// The answer to a question that may block, or that there was none in time.
async fn within_patience(
    question: impl FnOnce() -> Result<String, String> + Send + 'static,
) -> Result<String, String> {
    match tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(question)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => Err(silence()),
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(path: &Path) -> Result<String, String> {
    fs::read(path).map(|bytes| text_of(&bytes)).map_err(|error| error.to_string())
}

/// What a program prints, and how it ends if that is not well.
fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("timeout");
    let output =
        command.args([KILL_AFTER, PROGRAM_SECONDS, program]).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let complaint = text_of(&output.stderr);
    if !output.status.success() && output.stdout.is_empty() {
        return Err(format!("{program}: {}: {}", output.status, complaint.trim()));
    }
    Ok(text_of(&output.stdout) + &complaint)
}

/// The directory of the cache of the configuration at `path`, or the usual one.
fn cache_of(path: &Path) -> PathBuf {
    Config::load(path).unwrap_or_default().cache.dir
}

/// The files below `folder` with sizes in bytes, one a line.
fn list(folder: &Path) -> Result<String, String> {
    let (mut text, mut files, mut open) = (String::new(), 0, vec![folder.to_owned()]);
    while let Some(folder) = open.pop() {
        let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut entries = entries.collect::<io::Result<Vec<_>>>().map_err(|error| error.to_string())?;
        entries.sort_unstable_by_key(fs::DirEntry::file_name);
        for entry in entries {
            if files == FILES_MAX {
                return Ok(text + "and more\n");
            }
            files += 1;
            let path = entry.path();
            // Writing to a string does not fail.
            let _ = match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => {
                    open.push(path);
                    Ok(())
                }
                Ok(metadata) => writeln!(text, "{:>16} {}", metadata.len(), path.display()),
                Err(error) => writeln!(text, "{error}: {}", path.display()),
            };
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::DaemonArgs;

    #[test]
    fn of_logs_and_of_udev_only_what_is_of_interest_is_kept() {
        let log =
            "a: Command line: rd.password=x\nb: Kernel command line: x\nc: ublk\nd: audit: EXECVE a1=\"x\"\n";
        assert_eq!(of_interest("journalctl", log.into()), "c: ublk\n");
        let devices = "P: /a\nE: SUBSYSTEM=net\nE: X=1\n\nP: /b\nE: SUBSYSTEM=block\nE: X=2\n\n";
        assert_eq!(of_interest("udevadm", devices.into()), "P: /b\nE: SUBSYSTEM=block\nE: X=2\n\n");
        assert_eq!(of_interest("df", log.into()), log);
    }

    #[test]
    fn the_files_of_a_folder_are_listed_with_their_sizes() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("segments")).unwrap();
        fs::write(folder.path().join("segments/00000000.seg"), "12345").unwrap();
        fs::write(folder.path().join("catalog"), "1").unwrap();
        let listed = list(folder.path()).unwrap();
        let sizes: Vec<_> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(sizes, ["1", "5"]);
        assert!(list(&folder.path().join("nowhere")).is_err());
    }

    #[test]
    fn a_program_that_is_not_there_or_fails_is_a_reason_and_no_text() {
        assert!(output("glidefs-no-such-program", &[]).unwrap_err().contains("glidefs-no-such-program"));
        assert!(output("false", &[]).unwrap_err().contains("exit status: 1"));
        assert_eq!(output("echo", &["a", "b"]), Ok("a b\n".into()));
    }

    #[tokio::test]
    async fn without_a_daemon_every_other_part_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("glidefs.toml");
        fs::write(&config, format!("[cache]\ndir = \"{}\"\n", folder.path().display())).unwrap();
        let socket = folder.path().join("no-socket");
        let client = DaemonArgs { socket, api: None, token_file: None }.client().unwrap();
        let parts = gather(&client, &config, Utc::now()).await;
        let content = |name: &str| &parts.iter().find(|part| part.name == name).unwrap().content;
        assert!(content("daemon/status.json").as_ref().unwrap_err().contains("not running"));
        assert!(content("glidefs.toml").as_ref().unwrap().contains("[cache]"));
        assert!(content("cache.txt").as_ref().unwrap().contains("glidefs.toml"));
        assert!(content("host/proc/meminfo").as_ref().unwrap().contains("MemTotal"));
        assert!(content("doctor.json").as_ref().unwrap().contains("\"findings\""));
    }
}
