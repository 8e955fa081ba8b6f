//! The configuration file: keys, defaults and checks.
//!
//! Owns reading the file and the environment variable `GLIDEFS_BOUNCE_MODE`, once, at start, and a copy of the file for a start that refuses
//! the file. Does not own the effect of the settings. Invariant: a loaded [`Config`] has been checked as a whole; a refusal names file, line, key and allowed values.

mod accepted;
mod check;
pub mod keys;
mod load;
mod sections;
#[cfg(test)]
mod tests;
mod values;

pub use self::accepted::Accepted;
pub use self::load::{BOUNCE_MODE_VARIABLE, ConfigError, DEFAULT_PATH};
pub use self::sections::{CacheSection, Config, OnStop, Unconfirmed};
pub use self::values::{CpuList, TimeSpan, ValueError};
pub use crate::units::ByteSize;
