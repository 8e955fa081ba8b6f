//! Exports that the daemon has died of.
//!
//! Owns the file `deaths` in the cache's directory: a line for each panic in work for an export (`tasks`). Does not own what becomes of
//! such an export (`recovery`). Invariants: a minute of service takes an export's lines away, so that of two lines the second is a death
//! within a minute of taking the export up; at most [`LINES_MAX`] lines count; without the file, or with one that cannot be read or written,
//! every export is served as if there had been no deaths.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::locks::MutexExt;
use crate::tasks;
use crate::units::ExportId;

/// How long an export is served until its deaths do not count any more.
pub(super) const PROBATION: Duration = Duration::from_mins(1);
/// With so many deaths an export is held back.
const DEATHS_MAX: usize = 2;
/// Most deaths known: the newest.
const LINES_MAX: usize = 64;
/// Most characters of a reason.
const REASON_CHARS_MAX: usize = 300;

/// The deaths that count. Without a directory there are none.
#[derive(Debug, Default)]
pub struct Deaths {
    path: Option<PathBuf>,
    /// A process dies once, also when several threads panic.
    is_noted: AtomicBool,
    /// Each export and why the daemon died, the newest death last.
    known: Mutex<Vec<(ExportId, String)>>,
}

impl Deaths {
    /// The deaths of the daemons before in the cache's `directory`, which no other daemon uses. From now on a panic of this process is
    /// noted there.
    pub fn watch(directory: &Path) -> Arc<Self> {
        let (this, before) = (Arc::new(Self::read(directory)), std::panic::take_hook());
        let deaths = Arc::clone(&this);
        std::panic::set_hook(Box::new(move |panic| {
            // After an upgrade that failed this does not return: the program before serves on, and nothing died for its clients.
            before(panic);
            deaths.note(&panic.to_string());
        }));
        this
    }

    /// As [`Self::watch`], for a process whose panics are not noted.
    pub fn read(directory: &Path) -> Self {
        let path = directory.join("deaths");
        let text = match fs::read(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn(&error, &path);
                None
            }
            read => Some(String::from_utf8_lossy(&read.unwrap_or_default()).into_owned()),
        };
        let mut known = parse(text.as_deref().unwrap_or_default());
        known.drain(..known.len().saturating_sub(LINES_MAX));
        let is_torn = text.is_some_and(|text| text != lines(&known));
        let this = Self { path: Some(path), ..Self::default() };
        if is_torn {
            this.write(&known);
        }
        *this.known.lock_whole() = known;
        this
    }

    /// Notes the death of this daemon, if the calling thread works for an export.
    pub(super) fn note(&self, reason: &str) {
        let (Some(path), Some(export)) = (&self.path, tasks::export()) else { return };
        if self.is_noted.swap(true, Ordering::Relaxed) {
            return;
        }
        let line = lines(&[(export, reason.to_owned())]);
        let file = OpenOptions::new().append(true).create(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            warn(&error, path);
        }
    }

    /// The reason of the newest death, if the daemon has died twice.
    pub(super) fn holds_back(&self, export: ExportId) -> Option<String> {
        let known = self.known.lock_whole();
        let mut deaths = known.iter().rev().filter(|(id, _)| *id == export).map(|(_, reason)| reason);
        let newest = deaths.next()?;
        (deaths.count() >= DEATHS_MAX - 1).then(|| newest.clone())
    }

    /// Whether the daemon has died of this export at all.
    pub(super) fn knows(&self, export: ExportId) -> bool {
        self.known.lock_whole().iter().any(|(id, _)| *id == export)
    }

    /// Forgets the deaths of an export but for the newest `kept`: none once it was served for a minute, and one when it is attached on
    /// purpose, so that another start serves it and another death does not. May block.
    pub(super) fn forget(&self, export: ExportId, kept: usize) {
        let mut known = self.known.lock_whole();
        let of_export = known.iter().filter(|(id, _)| *id == export).count();
        let mut gone = of_export.saturating_sub(kept);
        known.retain(|(id, _)| {
            let goes = *id == export && gone > 0;
            gone -= usize::from(goes);
            !goes
        });
        self.write(&known);
    }

    fn write(&self, known: &[(ExportId, String)]) {
        let Some(path) = &self.path else { return };
        let new = path.with_extension("new");
        if let Err(error) = fs::write(&new, lines(known)).and_then(|()| fs::rename(&new, path)) {
            warn(&error, path);
        }
    }
}

fn warn(error: &io::Error, path: &Path) {
    tracing::warn!(
        error = error as &dyn std::error::Error,
        path = %path.display(),
        "deaths of the daemon cannot be noted: exports that end it are served by every start"
    );
}

/// A line for each death.
fn lines(known: &[(ExportId, String)]) -> String {
    let line = |(export, reason): &(ExportId, String)| {
        let words = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        format!(
            "{export} {}\n",
            words.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect::<String>()
        )
    };
    known.iter().map(line).collect()
}

/// The deaths of whole lines.
fn parse(text: &str) -> Vec<(ExportId, String)> {
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let death = |line: &str| {
        let (export, reason) = line.split_once(' ')?;
        Some((ExportId(export.parse().ok()?), reason.to_owned()))
    };
    whole.filter_map(death).collect()
}
