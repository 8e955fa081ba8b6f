//! The parts of a bundle: what is asked of the daemon, of systemd and of the kernel.
//!
//! Does not own the removal of secrets (`secrets`). Invariants: no question takes longer than [`PATIENCE`], and none but that of the
//! doctor changes anything; a part is text of at most [`PART_BYTES_MAX`], the end of a longer one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};

use crate::cli::client::Client;
use crate::config::Config;
use crate::doctor;
use crate::observe::chain;

/// How long one part is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most bytes of a part.
const PART_BYTES_MAX: usize = 32 << 20;
/// Most files that are listed of the cache.
const FILES_MAX: usize = 50_000;
/// What the daemon answers, and the file for the answer.
const ANSWERS: [(&str, &str); 5] = [
    ("/v1/status", "daemon/status.json"),
    ("/v1/exports", "daemon/exports.json"),
    ("/v1/memory", "daemon/memory.json"),
    ("/metrics", "daemon/metrics.txt"),
    ("/openapi.json", "daemon/openapi.json"),
];
/// Programs, and the file for what they print. `systemctl show` names the properties, as the environment is one.
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
    ("system/udev.txt", "udevadm", &["info", "--export-db", "--subsystem-match=block"]),
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
        Self { name: name.to_owned(), content: content.map(end_of) }
    }
}

/// All parts, for the daemon that `client` reaches and the configuration file at `config`.
pub(super) async fn gather(client: &Client, config: &Path, now: DateTime<Utc>) -> Vec<Part> {
    let mut parts = vec![Part::new("about.txt", Ok(about(now)))];
    for (path, name) in ANSWERS {
        let answer = tokio::time::timeout(PATIENCE, client.get_text(path)).await;
        let answer = answer.map_or_else(|_| Err(silence()), |answer| answer.map_err(|error| chain(&error)));
        parts.push(Part::new(name, answer));
    }
    let report = tokio::time::timeout(5 * PATIENCE, doctor::examine(config)).await.map_err(|_| silence());
    let report =
        report.and_then(|report| serde_json::to_string_pretty(&report).map_err(|error| error.to_string()));
    parts.push(Part::new("doctor.json", report));
    for (name, program, arguments) in PROGRAMS {
        parts.push(Part::new(name, within_patience(move || output(program, arguments)).await));
    }
    for path in FILES {
        let name = format!("host{path}");
        parts.push(Part::new(&name, within_patience(move || read(Path::new(path))).await));
    }
    let (file, folder) = (config.to_owned(), cache_of(config));
    parts.push(Part::new("glidefs.toml", within_patience(move || read(&file)).await));
    parts.push(Part::new("cache.txt", within_patience(move || list(&folder)).await));
    parts
}

fn about(now: DateTime<Utc>) -> String {
    let time = now.to_rfc3339_opts(SecondsFormat::Secs, true);
    format!("glidefs {}\ncollected {time}\n", env!("CARGO_PKG_VERSION"))
}

fn silence() -> String {
    format!("no answer within {} s", PATIENCE.as_secs())
}

/// The end of `text` that a part has room for.
fn end_of(text: String) -> String {
    let Some(start) = text.len().checked_sub(PART_BYTES_MAX).filter(|start| *start > 0) else { return text };
    let start = (start..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    format!("[{start} bytes before this are left out]\n{}", &text[start..])
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
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
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
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => open.push(path),
                Ok(metadata) => text.push_str(&format!("{:>16} {}\n", metadata.len(), path.display())),
                Err(error) => text.push_str(&format!("{error}: {}\n", path.display())),
            }
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::DaemonArgs;

    #[test]
    fn of_a_long_text_the_end_is_kept() {
        let text = "ä".repeat(PART_BYTES_MAX / 2 + 3) + "end";
        let kept = end_of(text);
        assert!(kept.starts_with("[10 bytes before this are left out]\nä"), "{}", &kept[..60]);
        assert!(kept.ends_with("end"));
        assert_eq!(end_of("short".into()), "short");
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
        let client = Client::new(&DaemonArgs { socket, api: None, token_file: None }).unwrap();
        let parts = gather(&client, &config, Utc::now()).await;
        let content = |name: &str| &parts.iter().find(|part| part.name == name).unwrap().content;
        assert!(content("daemon/status.json").as_ref().unwrap_err().contains("not running"));
        assert!(content("glidefs.toml").as_ref().unwrap().contains("[cache]"));
        assert!(content("cache.txt").as_ref().unwrap().contains("glidefs.toml"));
        assert!(content("host/proc/meminfo").as_ref().unwrap().contains("MemTotal"));
        assert!(content("doctor.json").as_ref().unwrap().contains("\"findings\""));
    }
}
