//! Why the cache could not be opened.
//!
//! Owns wording only.

use std::io;

/// Why the cache could not be opened. Every message says what the user can do.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The directory does not exist.
    #[error(
        "cache directory {directory} does not exist: create it (mkdir -p {directory}) or change cache.dir"
    )]
    DirectoryMissing {
        /// Where the cache should be.
        directory: String,
    },
    /// The directory cannot be written.
    #[error(
        "cache directory {directory} is not writable: run as its owner, or change its owner or cache.dir"
    )]
    NotWritable {
        /// Where the cache is.
        directory: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Another process has the cache open.
    #[error(
        "cache directory {directory} is in use by another glidefs daemon: stop that one or choose another cache.dir"
    )]
    InUse {
        /// Where the cache is.
        directory: String,
    },
    /// The cache was written by a newer glidefs.
    #[error(
        "the cache in {directory} has format {found}, this glidefs knows formats up to {known}: start the glidefs \
         that wrote it, or a newer one; nothing was changed"
    )]
    TooNew {
        /// Where the cache is.
        directory: String,
        /// Format found.
        found: u16,
        /// Highest format this program reads.
        known: u16,
    },
    /// What recovery has to write does not fit the format of the log.
    #[error(
        "the log in {directory} cannot go on ({what}): put the whole cache directory back from one copy, or move it away, start \
         with an empty one, and open exports from the store"
    )]
    Exhausted {
        /// Where the cache is.
        directory: String,
        /// What does not fit.
        what: &'static str,
    },
    /// Bytes that were stable are wrong. Serving on could show stale data.
    #[error(
        "{file} is damaged at byte {offset_bytes} ({what}): data that was stable cannot be read. Put the whole cache directory \
         back from one copy, or move it away and start with an empty one; nothing was changed"
    )]
    Damaged {
        /// Which file.
        file: String,
        /// Where in it, bytes.
        offset_bytes: u64,
        /// Which structure, and what is wrong with it.
        what: String,
    },
    /// The log and the catalog were last written in different starts: one of them was put back from a copy.
    #[error(
        "in {directory}, the log (cache.meta, segments/) is of start {log} and the catalog (catalog.redb) of start {catalog}: the \
         {} is an older copy, and both together would mix old and new data. Put the newer one back, or the whole directory from \
         one copy; or move the directory away, start with an empty one, and open exports from the store; nothing was changed",
        if log < catalog { "log" } else { "catalog" }
    )]
    OtherAges {
        /// Where the cache is.
        directory: String,
        /// Start that the log is of.
        log: u32,
        /// Start that the catalog is of.
        catalog: u32,
    },
    /// An option does not fit the cache.
    #[error("{0}")]
    BadOptions(String),
    /// `cache.size` was lowered below what is in use.
    #[error(
        "cache.size leaves room for {segments} segments, but segment file {file} beyond them still holds data: set cache.size to \
         at least {size_bytes_min} bytes, or remove exports first"
    )]
    CannotShrink {
        /// Segments that `cache.size` allows.
        segments: u32,
        /// First file in the way.
        file: String,
        /// Smallest size that keeps all data, bytes.
        size_bytes_min: u64,
    },
    /// The disk failed.
    #[error(
        "{operation} of {file} failed: see whether its disk has errors (dmesg) or is full, and start again; if that fails too, \
         \"A damaged segment\" in operations.md says what to do"
    )]
    Disk {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        file: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}
