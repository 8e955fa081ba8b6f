//! `glidefs support-bundle`: what a bug report needs of this host, in one compressed archive.
//!
//! Owns what is in it. Invariants: a part that cannot be had is named in `missing.txt` and ends nothing; no part has a secret of the configuration,
//! as the files with tokens that it names are not read, and users and passwords in URLs are removed; only the user may read the archive.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::process::Command;
use tokio::time::timeout;

use super::args::DaemonArgs;
use super::block_on;
use super::error::CliError;
use super::print::answer;
use crate::client::Client;
use crate::config::Config;
use crate::doctor;
use crate::observe::chain;

/// How long one part is waited for.
const PATIENCE: Duration = Duration::from_mins(1);
const REMOVED: &str = "[removed]";
/// What the daemon answers, and the file for the answer.
const ANSWERS: [(&str, &str); 4] = [
    ("/v1/status", "status.json"),
    ("/v1/exports", "exports.json"),
    ("/v1/memory", "memory.json"),
    ("/metrics", "metrics.txt"),
];
/// Programs, and the file for the output of each. `systemctl show` names the properties, as the environment is one.
const PROGRAMS: [(&str, &str); 7] = [
    ("journal.txt", "journalctl --unit=glidefs --lines=20000 --output=short-iso-precise --no-pager --utc"),
    ("kernel.txt", "journalctl --dmesg --boot --lines=5000 --output=short-iso-precise --no-pager --utc"),
    (
        "service.txt",
        "systemctl show glidefs --no-pager --property=ActiveState,SubState,Result,NRestarts,ExecMainPID,ExecMainStatus,\
         ExecMainStartTimestamp,MemoryCurrent,TasksCurrent,LimitNOFILE,LimitMEMLOCK,FragmentPath,DropInPaths,WatchdogUSec",
    ),
    ("disks.txt", "lsblk --bytes --output NAME,MAJ:MIN,SIZE,TYPE,FSTYPE,MOUNTPOINTS,MODEL,ROTA,SCHED"),
    ("space.txt", "df --print-type --block-size=1"),
    ("kernel-version.txt", "uname --all"),
    (
        "host.txt",
        "tail -n +1 /etc/os-release /proc/meminfo /proc/loadavg /proc/self/mountinfo /proc/pressure/cpu /proc/pressure/io \
         /proc/pressure/memory /sys/module/ublk_drv/parameters/ublks_max /sys/devices/system/cpu/online",
    ),
];

/// Name and text of a part, or why there is none.
type Part = (String, Result<String, String>);

/// A bundle that was written.
#[derive(Debug, Serialize)]
struct Bundle {
    path: PathBuf,
    bytes: u64,
    parts: Vec<String>,
    /// The parts that could not be had, each with the reason.
    missing: Vec<String>,
}

/// Writes the bundle of this host to `out`, or to a file in the current directory.
pub(super) fn run(
    daemon: &DaemonArgs,
    config: &Path,
    out: Option<PathBuf>,
    json: bool,
) -> Result<(), CliError> {
    let client = daemon.client()?;
    let now = Utc::now();
    let default = || format!("glidefs-support-{}.tar.zst", now.format("%Y%m%dT%H%M%SZ")).into();
    let path = out.unwrap_or_else(default);
    if path.exists() {
        return Err(in_the_way(&path));
    }
    let parts = block_on(gather(&client, config, now))?;
    // Complete before the file is made.
    let cannot = CliError::cannot("write", &path);
    let (archive, parts, missing) = archive(parts, now).map_err(&cannot)?;
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = made.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => in_the_way(&path),
        _ => cannot(source),
    })?;
    file.write_all(&archive).and_then(|()| file.sync_all()).map_err(cannot)?;
    answer(json, &Bundle { bytes: archive.len() as u64, path, parts, missing }, lines)
}

fn in_the_way(path: &Path) -> CliError {
    CliError::Refused(format!("{} exists and stays as it is: name another file", path.display()))
}

/// All parts, for the daemon that `client` reaches and the configuration file at `config`, all asked for at once.
async fn gather(client: &Client, config: &Path, now: DateTime<Utc>) -> Vec<Part> {
    let answers = ANSWERS.map(async |(path, name)| {
        let answer = within_patience(client.get_text(path)).await;
        (name.to_owned(), answer.and_then(|answer| answer.map_err(|error| chain(&error))))
    });
    let programs = PROGRAMS.map(async |(name, line)| (name.to_owned(), printed(line.split(' ')).await));
    let text = within_patience(tokio::fs::read_to_string(config)).await;
    let text = text.and_then(|text| text.map_err(|error| error.to_string()));
    let parsed = text.as_ref().ok().and_then(|_| Config::load(config).ok());
    let cache = parsed.unwrap_or_default().cache.dir;
    let cache = cache.to_str().unwrap_or_default();
    let (answers, programs, report, files) = tokio::join!(
        join_all(answers),
        join_all(programs),
        doctor::examine(config),
        printed(["ls", "-lR", cache].into_iter()),
    );
    let time = now.to_rfc3339_opts(SecondsFormat::Secs, true);
    let about = format!("glidefs {}\ncollected {time}\n", env!("CARGO_PKG_VERSION"));
    let report = serde_json::to_string_pretty(&report).map_err(|error| error.to_string());
    let own =
        [("about.txt", Ok(about)), ("doctor.json", report), ("glidefs.toml", text), ("cache.txt", files)];
    own.map(|(name, text)| (name.to_owned(), text)).into_iter().chain(answers).chain(programs).collect()
}

async fn within_patience<T>(question: impl Future<Output = T>) -> Result<T, String> {
    let silence = |_| format!("no answer within {} s", PATIENCE.as_secs());
    timeout(PATIENCE, question).await.map_err(silence)
}

/// What a program prints. The kernel's command line and those that are audited are left out, as they may hold anything.
async fn printed(mut line: impl Iterator<Item = &str>) -> Result<String, String> {
    let program = line.next().unwrap_or_default();
    let mut command = Command::new(program);
    let output = command.args(line).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = within_patience(output).await?.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() && output.stdout.is_empty() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program}: {}: {}", output.status, complaint.trim()));
    }
    let is_shown = |line: &&str| !["ommand line:", "EXECVE"].iter().any(|mark| line.contains(mark));
    Ok(String::from_utf8_lossy(&output.stdout).split_inclusive('\n').filter(is_shown).collect())
}

/// `text` without users and passwords in URLs. Either may have any sign, so all up to the last `@` of the word goes.
fn without_users(text: &str) -> String {
    let mut parts = text.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|sign: char| sign.is_whitespace() || "\"'".contains(sign));
        let (url, rest) = part.split_at(end.unwrap_or(part.len()));
        clean.push_str("://");
        match url.rsplit_once('@') {
            Some((_, host)) => clean.extend([REMOVED, "@", host]),
            None => clean.push_str(url),
        }
        clean.push_str(rest);
    }
    clean
}

/// An archive of `parts`, the names of those in it, and of the others with the reasons.
fn archive(parts: Vec<Part>, now: DateTime<Utc>) -> io::Result<(Vec<u8>, Vec<String>, Vec<String>)> {
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    let mut archive = tar::Builder::new(zstd::Encoder::new(Vec::new(), 0)?);
    let mut append = |name: String, text: &str| {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(now.timestamp()).unwrap_or(0));
        archive.append_data(&mut header, Path::new("glidefs-support").join(&name), text.as_bytes())?;
        there.push(name);
        io::Result::Ok(())
    };
    for (name, text) in parts {
        match text {
            Ok(text) => append(name, &without_users(&text))?,
            Err(reason) => missing.push(without_users(&format!("{name}: {reason}"))),
        }
    }
    append("missing.txt".into(), &missing.join("\n"))?;
    Ok((archive.into_inner()?.finish()?, there, missing))
}

fn lines(bundle: &Bundle) -> String {
    let path = bundle.path.display();
    let mut text = format!(
        "{path} ({} bytes, {} files)\nIt has no data of exports, no keys and no tokens; names of exports, hosts, stores and files are in it. Look at \
         it before you send it: tar --zstd -xf {path}",
        bundle.bytes,
        bundle.parts.len(),
    );
    for missing in &bundle.missing {
        text.push_str("\nmissing: ");
        text.push_str(missing);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn read(path: &Path) -> BTreeMap<String, String> {
        let file = std::fs::File::open(path).unwrap();
        let mut archive = tar::Archive::new(zstd::Decoder::new(file).unwrap());
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            (name, text)
        });
        entries.collect()
    }

    #[test]
    fn without_a_daemon_all_else_is_there_and_no_secret_of_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (config, out) = (at("glidefs.toml"), at("bundle.tar.zst"));
        std::fs::write(at("token"), "open-sesame").unwrap();
        std::fs::set_permissions(at("token"), std::fs::Permissions::from_mode(0o600)).unwrap();
        // The store is refused, which is said in the findings of the doctor.
        let text = format!(
            "[cache]\ndir = {0:?}\n[store]\nurl = \"s3://us:open-sesame@bucket\"\n[api]\ntoken_file = \"{1}\"\n\
             # 'https://open@sesame:open-sesame@host/x' or http://open-sesame@y\n",
            folder.path(),
            at("token").display()
        );
        std::fs::write(&config, text).unwrap();
        let daemon = DaemonArgs { socket: at("no-socket"), api: None, token_file: None };
        run(&daemon, &config, Some(out.clone()), true).unwrap();
        let files = read(&out);
        for (name, has) in [
            ("about.txt", "collected"),
            ("doctor.json", "\"findings\""),
            ("glidefs.toml", "url = \"s3://[removed]@bucket\""),
            ("glidefs.toml", "'https://[removed]@host/x' or http://[removed]@y"),
            ("host.txt", "MemTotal"),
            ("missing.txt", "status.json: the glidefs daemon is not running"),
        ] {
            assert!(files[name].contains(has), "{name}: {}", files[name]);
        }
        for (name, text) in &files {
            assert!(!text.contains("open-sesame") && !text.contains("open@"), "{name}: {text}");
        }
        assert_eq!(std::fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = run(&daemon, &config, Some(out), true).unwrap_err();
        assert!(refused.to_string().contains("stays as it is"), "{refused}");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_or_fails_is_a_reason_and_command_lines_stay_out() {
        assert!(printed(["glidefs-none"].into_iter()).await.unwrap_err().contains("glidefs-none"));
        assert!(printed(["false"].into_iter()).await.unwrap_err().contains("exit status: 1"));
        let log = "a: Kernel command line: rd.password=x\nb: ublk\nc: audit: EXECVE a1=\"x\"\n";
        assert_eq!(printed(["printf", log].into_iter()).await, Ok("b: ublk\n".into()));
    }
}
