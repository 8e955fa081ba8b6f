//! The file written by `glidefs init`, which is made from the table of keys; and the keys that are gone.
//!
//! Does not own the keys (`sections`).

use std::fmt::Write;

use super::sections::{Config, Key};

pub use super::sections::SECTIONS;

/// Keys of version 0.1 that no longer have an effect, by section and name; a section without a name is gone as a whole. Until
/// version 0.3 a file may still have them: they are ignored with a warning.
pub const REMOVED: &[(&str, &str)] = &[
    ("cache", "checksums_max"),
    ("cache", "clean_memory"),
    ("exports", "on_unreachable"),
    ("exports", "queues"),
    ("log", "format"),
    ("store", "drain_timeout"),
    ("store", "flush_size"),
    ("store", "read_memory"),
    ("traces", ""),
    ("workers", "batch"),
    ("workers", "move"),
    ("workers", "polling_percent"),
];

/// The default of each key as TOML; a key without a default is missing.
pub fn defaults() -> toml::Table {
    // A configuration is text, numbers and lists, all of which TOML has.
    toml::Table::try_from(Config::default()).unwrap_or_default()
}

/// The default of `key`, as TOML.
pub fn default_of(defaults: &toml::Table, section: &str, key: &Key) -> Option<String> {
    Some(defaults.get(section)?.get(key.name)?.to_string())
}

/// The text of the file written by `glidefs init`.
pub fn commented_config() -> String {
    let mut text = String::from(
        "# Configuration of glidefs. Keys that are commented out show their default or, where they are not set by\n\
         # default, an example. Sizes are bytes or have a unit (KiB, MiB, GiB, TiB), lengths of time as well (ms, s,\n\
         # min, h).\n",
    );
    let defaults = defaults();
    for section in SECTIONS {
        // Writing to a string does not fail.
        let _ = write!(text, "\n#{}\n[{}]\n", section.help, section.name);
        for key in section.keys {
            let default = default_of(&defaults, section.name, key);
            let comment =
                if section.name == "cache" && ["dir", "size"].contains(&key.name) { "" } else { "# " };
            let unset = if default.is_none() { " Not set by default." } else { "" };
            let value = default.as_deref().or(key.example).unwrap_or_default();
            let _ = write!(
                text,
                "#{}{unset}\n# Allowed: {}.\n{comment}{} = {value}\n",
                key.help, key.allowed, key.name
            );
        }
    }
    text
}
