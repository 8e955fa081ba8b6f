//! Reading the configuration: the file, the environment variable, and the CPUs of the process.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::accepted::Accepted;
use super::check::check;
use super::keys::REMOVED;
use super::sections::Config;
use crate::observe::chain;
use crate::worker::cpus::Usable;

/// The configuration file used when no other is named.
pub const DEFAULT_PATH: &str = "/etc/glidefs/glidefs.toml";
/// The environment variable that starts devices without user copy.
pub const BOUNCE_MODE_VARIABLE: &str = "GLIDEFS_BOUNCE_MODE";

/// Why the configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration {path}: `glidefs init {path}` writes one")]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the read.
        #[source]
        source: std::io::Error,
    },
    /// A line of the file is not allowed, or a setting is out of bounds.
    #[error("{path}:{line}: {message}")]
    Invalid {
        /// The path of the file.
        path: PathBuf,
        /// The line, counted from 1; 1 if the key is not in the file.
        line: usize,
        /// Key, value and allowed values.
        message: String,
    },
    /// `GLIDEFS_BOUNCE_MODE` has a value that means neither on nor off.
    #[error(
        "{BOUNCE_MODE_VARIABLE} is {value:?}: use 1, true, on or yes, or 0, false, off or no, or unset it"
    )]
    BounceMode {
        /// The value of the variable.
        value: String,
    },
    /// The kernel did not say which CPUs the daemon may use.
    #[error("cannot find out which CPUs may be used: set `[workers] cpus`")]
    Cpus(#[source] std::io::Error),
}

/// The cache directory of the file at `path`, if that is TOML at all.
fn named_cache(path: &Path) -> Option<PathBuf> {
    let table: toml::Table = std::fs::read_to_string(path).ok()?.parse().ok()?;
    let dir = table.get("cache").and_then(|cache| cache.get("dir"));
    Some(dir.map_or_else(|| Config::default().cache.dir, |dir| dir.as_str().unwrap_or_default().into()))
}

impl Config {
    /// Reads and checks the file at `path` and the environment, for the CPUs of this process.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let usable = Usable::find().map_err(ConfigError::Cpus)?;
        Self::load_for(path, &usable, std::env::var_os(BOUNCE_MODE_VARIABLE).as_deref())
    }

    /// As [`Self::load`], with `text` in place of the file's content of today, which is judged as well.
    pub fn load_again(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let usable = Usable::find().map_err(ConfigError::Cpus)?;
        let config = Self::of(path, text, &usable, std::env::var_os(BOUNCE_MODE_VARIABLE).as_deref())?;
        Ok(Self { refused: Self::load(path).err().map(|error| chain(&error)), ..config })
    }

    /// As [`Self::load`], for a daemon that has to serve: where the file is refused, the content with which a daemon served last, unless
    /// the file names another cache: what is in the cache of before is old where the cache was moved.
    pub fn load_or_accepted(path: &Path) -> Result<Self, ConfigError> {
        Self::load(path).or_else(|refusal| {
            let accepted = Accepted::of(path).and_then(|accepted| accepted.text());
            let config = accepted.and_then(|text| Self::load_again(path, &text).ok());
            config.filter(|config| named_cache(path).is_none_or(|dir| dir == config.cache.dir)).ok_or(refusal)
        })
    }

    /// Reads and checks the file at `path`, for a daemon that may use the CPUs `usable` and has `bounce` as its
    /// `GLIDEFS_BOUNCE_MODE`.
    pub fn load_for(path: &Path, usable: &Usable, bounce: Option<&OsStr>) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
        Self::of(path, &text, usable, bounce)
    }

    fn of(path: &Path, text: &str, usable: &Usable, bounce: Option<&OsStr>) -> Result<Self, ConfigError> {
        let bounce_mode = bounce_mode(bounce)?;
        let mut config = Self::parse(path, text, usable)?;
        config.bounce_mode = bounce_mode;
        (config.path, config.source) = (path.into(), text.into());
        Ok(config)
    }

    /// Reads and checks `text`, the content of `path`, for a daemon that may use the CPUs `usable`.
    pub fn parse(path: &Path, text: &str, usable: &Usable) -> Result<Self, ConfigError> {
        let read = without_removed(text, REMOVED)
            .and_then(|(file, ignored)| Ok(Self { ignored, ..Self::deserialize(file)? }));
        let mut config = read.map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let (line, key) = locate(text, at);
            let message = format!("{key}{}", error.message());
            ConfigError::Invalid { path: path.into(), line, message }
        })?;
        check(&mut config, usable).map_err(|refusal| {
            let line = line_of(text, refusal.section, refusal.key).unwrap_or(1);
            let message = format!("[{}] {}: {}", refusal.section, refusal.key, refusal.message);
            ConfigError::Invalid { path: path.into(), line, message }
        })?;
        Ok(config)
    }
}

/// The content of a file without the keys of `removed`, and those of them that the file had, as warnings name them. All other
/// keys keep their places. A pair without a key removes the whole section.
pub(super) fn without_removed<'a>(
    text: &'a str,
    removed: &[(&str, &str)],
) -> Result<(toml::Deserializer<'a>, Vec<String>), toml::de::Error> {
    let mut file = toml::de::DeTable::parse(text)?;
    let sections = file.get_mut();
    let mut ignored = Vec::new();
    for &(section, key) in removed {
        if key.is_empty() {
            ignored.extend(sections.remove(section).map(|_| format!("[{section}]")));
        } else if let Some(toml::de::DeValue::Table(keys)) =
            sections.get_mut(section).map(toml::Spanned::get_mut)
        {
            ignored.extend(keys.remove(key).map(|_| format!("[{section}] {key}")));
        }
    }
    Ok((toml::Deserializer::from(file), ignored))
}

/// The line (from 1) of the byte `at` of the file, and the key on that line, written `[section] key: `.
fn locate(text: &str, at: usize) -> (usize, String) {
    let at = text.floor_char_boundary(at);
    let line = text[..at].matches('\n').count() + 1;
    let here = text.lines().nth(line - 1).unwrap_or_default().trim();
    let header = |line: &str| line.trim().starts_with('[').then(|| line.trim().to_owned());
    let section = text.lines().take(line).filter_map(header).last();
    let key = here.split_once('=').map(|(key, _)| key.trim());
    let place = match (section, key) {
        (Some(section), Some(key)) => format!("{section} {key}: "),
        (Some(section), None) => format!("{section}: "),
        (None, Some(key)) => format!("{key}: "),
        (None, None) => String::new(),
    };
    (line, place)
}

/// The line of `key` in `section`.
fn line_of(text: &str, section: &str, key: &str) -> Option<usize> {
    let file = toml::de::DeTable::parse(text).ok()?;
    let (key, _) = file.get_ref().get(section)?.get_ref().as_table()?.get_key_value(key)?;
    Some(locate(text, key.span().start).0)
}

pub(super) fn bounce_mode(value: Option<&OsStr>) -> Result<bool, ConfigError> {
    let Some(value) = value else { return Ok(false) };
    match value.to_str() {
        Some("1" | "true" | "on" | "yes") => Ok(true),
        Some("0" | "false" | "off" | "no") => Ok(false),
        _ => Err(ConfigError::BounceMode { value: value.to_string_lossy().into_owned() }),
    }
}
