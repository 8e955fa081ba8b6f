//! The errors with which opening a cache ends.
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
        /// Path of the missing directory.
        directory: String,
    },
    /// The directory cannot be written.
    #[error(
        "cache directory {directory} is not writable: run as the owner of the directory, or change the owner or cache.dir"
    )]
    NotWritable {
        /// Path of the cache directory.
        directory: String,
        /// Answer of the kernel.
        #[source]
        source: io::Error,
    },
    /// Another process has the cache open.
    #[error(
        "cache directory {directory} is in use by {holder}: stop that daemon or choose another cache.dir"
    )]
    InUse {
        /// Path of the cache directory.
        directory: String,
        /// The process with the lock, in words.
        holder: String,
    },
    /// The cache was written by a newer glidefs.
    #[error(
        "the cache in {directory} has format {found}, this glidefs knows formats up to {known}: start the glidefs \
         that wrote the cache, or a newer one; nothing was changed"
    )]
    TooNew {
        /// Path of the cache directory.
        directory: String,
        /// Format version of the cache.
        found: u16,
        /// Highest format version that this program reads.
        known: u16,
    },
    /// Something that recovery has to write does not fit the format of the log.
    #[error(
        "the log in {directory} cannot be continued ({what}): put the whole cache directory back from one copy, or move it away, start \
         with an empty one, and open exports from the store"
    )]
    Exhausted {
        /// Path of the cache directory.
        directory: String,
        /// The limit that was reached.
        what: &'static str,
    },
    /// Bytes that were stable are wrong. Going on could serve stale data.
    #[error(
        "{file} is damaged at byte {offset_bytes} ({what}): data that was stable cannot be read. Put the whole cache directory \
         back from one copy, or move it away and start with an empty one; nothing was changed"
    )]
    Damaged {
        /// Path of the damaged file.
        file: String,
        /// Place of the damage in the file, in bytes.
        offset_bytes: u64,
        /// Which structure is damaged, and how.
        what: String,
    },
    /// The log and the catalog were last written in different starts: one of the two was put back from a copy.
    #[error(
        "in {directory}, the log (cache.meta, segments/) is of start {log} and the catalog (catalog.redb) of start {catalog}: the \
         {} is an older copy, and both together would mix old and new data. Put the newer copy back, or the whole directory from \
         one copy; or move the directory away, start with an empty one, and open exports from the store; nothing was changed",
        if log < catalog { "log" } else { "catalog" }
    )]
    OtherAges {
        /// Path of the cache directory.
        directory: String,
        /// Start in which the log was last written.
        log: u32,
        /// Start in which the catalog was last written.
        catalog: u32,
    },
    /// The log has data of an export with an id that the catalog has not given out: the catalog is an older copy.
    #[error(
        "in {directory}, the log (segments/) has data of the export with id {export}, and in the catalog (catalog.redb) the next id is \
         {next_export}: the catalog is an older copy, and would give an id out again whose data is in the log. Put the newer copy back, \
         or the whole directory from one copy; or move the directory away, start with an empty one, and open exports from the store; \
         nothing was changed"
    )]
    OlderCatalog {
        /// Path of the cache directory.
        directory: String,
        /// Highest id of an export with data in the log.
        export: u32,
        /// The id that the catalog would give to the next export.
        next_export: u32,
    },
    /// An option does not fit the cache.
    #[error("{0}")]
    BadOptions(String),
    /// `cache.size` was lowered below the space in use.
    #[error(
        "cache.size leaves room for {segments} segments, but segment file {file} beyond them still holds data: set cache.size to \
         at least {size_bytes_min} bytes, or remove exports first"
    )]
    CannotShrink {
        /// Number of segments that `cache.size` allows.
        segments: u32,
        /// First segment file beyond that number that holds data.
        file: String,
        /// Smallest `cache.size` that keeps all data, in bytes.
        size_bytes_min: u64,
    },
    /// A system call on the cache's disk failed.
    #[error(
        "{operation} of {file} failed: see whether the disk has errors (dmesg) or is full, and start again; if the next start fails too, \
         \"Damaged data\" in operations.md says what to do"
    )]
    Disk {
        /// Operation that failed, for the message.
        operation: &'static str,
        /// Path of the file or directory.
        file: String,
        /// Answer of the kernel.
        #[source]
        source: io::Error,
    },
}
