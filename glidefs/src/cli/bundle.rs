//! `glidefs support-bundle`: what a bug report needs of this host, in one file.
//!
//! Owns the file: a tar archive, compressed by zstd. Does not own the content (`parts`), nor the secrets that stay out (`secrets`). Invariants:
//! a part that cannot be had is named in `missing.txt` and ends nothing; every part went through `secrets`, then has a bounded size; only
//! the user may read the file.

mod parts;
mod secrets;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::Serialize;

use self::parts::Part;
use self::secrets::Secrets;
use super::args::DaemonArgs;
use super::deadline::{self, PATIENCE};
use super::error::CliError;
use super::print::answer;

/// Most bytes of a part: of a longer one the end is left.
const PART_BYTES_MAX: usize = 64 << 20;

/// A bundle that was written.
#[derive(Debug, Serialize)]
struct Bundle {
    path: PathBuf,
    bytes: u64,
    /// The files of the archive.
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
    let late = || format!("the token file was not read within {} s: name another one", PATIENCE.as_secs());
    let client = deadline::or_end(late(), || daemon.client())?;
    let now = Utc::now();
    let path = out.unwrap_or_else(|| default_name(now));
    // Before the work: a file that cannot be made is told at once. Not kept: whoever is tired of waiting leaves no empty file.
    drop(make(&path)?);
    let remove = |source| {
        // What is there of the file is of no use.
        let _ = std::fs::remove_file(&path);
        CliError::Write { path: path.clone(), source }
    };
    std::fs::remove_file(&path).map_err(remove)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    let mut parts = runtime.block_on(parts::gather(&client, config, now));
    // Threads of questions without an answer are left behind, and end with the process.
    runtime.shutdown_background();
    let secrets = Secrets::of_this_host(daemon.token_file.as_deref(), config, parts::daemon(), PATIENCE);
    parts.extend(secrets.unread().iter().map(|path| parts::unread(path)));
    // Complete before the file is made.
    let mut archive = Vec::new();
    let written = write(&mut archive, &secrets, parts, now);
    let (parts, missing) = written.map_err(|source| CliError::Write { path: path.clone(), source })?;
    let mut file = make(&path)?;
    file.write_all(&archive).and_then(|()| file.sync_all()).map_err(remove)?;
    answer(json, &Bundle { bytes: archive.len() as u64, path, parts, missing }, lines)
}

fn default_name(now: DateTime<Utc>) -> PathBuf {
    PathBuf::from(format!("glidefs-support-{}.tar.zst", now.format("%Y%m%dT%H%M%SZ")))
}

/// Makes the file. An existing one is left as it is.
fn make(path: &Path) -> Result<File, CliError> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|source| {
        match source.kind() {
            io::ErrorKind::AlreadyExists => CliError::InTheWay { path: path.into() },
            _ => CliError::Write { path: path.into(), source },
        }
    })
}

/// Writes `parts` to `file` as an archive. Returns the names of those that are there, and of the others with the reasons.
fn write(
    file: impl Write,
    secrets: &Secrets,
    parts: Vec<Part>,
    now: DateTime<Utc>,
) -> io::Result<(Vec<String>, Vec<String>)> {
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    let mut archive = tar::Builder::new(zstd::Encoder::new(file, 0)?);
    for Part { name, content } in parts {
        match content {
            Ok(content) => {
                append(&mut archive, &name, end_of(secrets.remove(&content)).as_bytes(), now)?;
                there.push(name);
            }
            Err(reason) => missing.push(format!("{name}: {}", secrets.remove(&reason))),
        }
    }
    let text: String = missing.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    append(&mut archive, "missing.txt", text.as_bytes(), now)?;
    there.push("missing.txt".into());
    archive.into_inner()?.finish()?.flush()?;
    Ok((there, missing))
}

/// The end of `text` that a part has room for.
fn end_of(text: String) -> String {
    let Some(start) = text.len().checked_sub(PART_BYTES_MAX).filter(|start| *start > 0) else { return text };
    let start = (start..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    format!("[{start} bytes before this are left out]\n{}", &text[start..])
}

fn append(
    archive: &mut tar::Builder<impl Write>,
    name: &str,
    content: &[u8],
    now: DateTime<Utc>,
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o600);
    header.set_mtime(u64::try_from(now.timestamp()).unwrap_or(0));
    archive.append_data(&mut header, Path::new("glidefs-support").join(name), content)
}

fn lines(bundle: &Bundle) -> String {
    let mut text = format!(
        "{} ({} bytes, {} files)\nIt has no data of exports. Keys and tokens that are known are removed; names of exports, hosts, stores and files are \
         not. Look at it before you send it: tar --zstd -xf {}",
        bundle.path.display(),
        bundle.bytes,
        bundle.parts.len(),
        bundle.path.display()
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

    use super::*;

    fn read(path: &Path) -> BTreeMap<String, String> {
        let mut archive = tar::Archive::new(zstd::Decoder::new(File::open(path).unwrap()).unwrap());
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            (name, text)
        });
        entries.collect()
    }

    #[test]
    fn the_archive_has_every_part_without_secrets_and_says_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle.tar.zst");
        let part = |name: &str, content: Result<&str, &str>| Part {
            name: name.into(),
            content: content.map(Into::into).map_err(Into::into),
        };
        let parts = vec![
            part("a/one.txt", Ok("the word is open-sesame, they say")),
            part("two.txt", Err("no answer from open-sesame")),
        ];
        let secrets = Secrets::of_values(["open-sesame".to_owned()]);
        let (there, missing) = write(&mut make(&path).unwrap(), &secrets, parts, Utc::now()).unwrap();
        assert_eq!(there, ["a/one.txt", "missing.txt"]);
        assert_eq!(missing, ["two.txt: no answer from [removed]"]);
        let files = read(&path);
        assert_eq!(files["glidefs-support/a/one.txt"], "the word is [removed], they say");
        assert_eq!(files["glidefs-support/missing.txt"], "two.txt: no answer from [removed]\n");
    }

    #[test]
    fn of_a_long_text_the_end_is_kept() {
        let text = "ä".repeat(PART_BYTES_MAX / 2 + 3) + "end";
        let kept = end_of(text);
        assert!(kept.starts_with("[10 bytes before this are left out]\nä"), "{}", &kept[..60]);
        assert!(kept.ends_with("end"));
        assert_eq!(end_of("short".into()), "short");
    }

    #[test]
    fn an_existing_file_is_left_as_it_is_and_a_new_one_is_for_the_user_only() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle.tar.zst");
        let made = make(&path).unwrap();
        assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(make(&path), Err(CliError::InTheWay { .. })));
    }
}
