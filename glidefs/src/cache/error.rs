//! What can go wrong in the cache: with one request ([`IoError`]) and with opening it ([`CacheError`]).
//!
//! Owns wording only. Mapping to errno is done once, at the device boundary. The details of a failed request (file,
//! offset, what the kernel said) are in the log line written where it failed, so that the per-request error is small.

use std::io;

use crate::units::ExportId;

/// Why a request failed. Small and `Copy`: one failed append fails every request that shared it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// Bytes on the cache disk do not match the checksum made when they were acknowledged.
    #[error("cached data does not match its checksum; the log names the segment file and the offset")]
    Corrupt,
    /// A cache disk, of this host or of an earlier one, lost the data for good.
    #[error("a cache disk lost this data; these sectors fail until they are written again or discarded")]
    Damaged,
    /// The cache disk failed to read.
    #[error("reading from the cache disk failed; the log names the segment file and the offset")]
    Read,
    /// The cache disk failed to take an append; nothing of this request was kept.
    #[error("writing to the cache disk failed; the log names the segment file and the offset")]
    Write,
    /// The cache disk failed to make data stable; what this FLUSH covers may be lost at a power cut.
    #[error("the cache disk failed to make data stable; the log names the segment file")]
    Sync,
    /// The request is longer than the cache takes at once, or than its buffer.
    #[error("the request is longer than the cache takes at once")]
    TooLarge,
    /// What the request needs is in the store: fetch it, and ask again.
    #[error("the data is in the store")]
    Remote,
    /// The store could not be read, or there is none.
    #[error("reading from the store failed; the log says why")]
    Store,
    /// Data that is not in the store was lost here, or cannot be read now, so the store does not get it.
    #[error(
        "data that has to be flushed was lost here, or cannot be read; the log names the segment file and the offset. What was \
         lost fails until it is written again or discarded; everything else is flushed"
    )]
    Unreadable,
    /// Another writer has the volume now.
    #[error("another host has taken the export over; what this one had not flushed stays in its cache")]
    Fenced,
    /// The export's device is being removed, and the request would have had to wait.
    #[error("the device of the export is being removed, and the request would have had to wait")]
    Detached,
    /// The store has another history of the volume.
    #[error(
        "the store and this host have two histories of the export: the cache directory or the store was restored or cloned; what \
         this host had not flushed stays in its cache"
    )]
    Diverged,
    /// The export was removed while the request was under way.
    #[error("export {0} was removed")]
    Removed(ExportId),
}

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
        "cache.size leaves room for {slots} segments, but segment file {file} beyond them still holds data: set cache.size to \
         at least {size_bytes_min} bytes, or remove exports first"
    )]
    CannotShrink {
        /// Segments that `cache.size` allows.
        slots: u32,
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
