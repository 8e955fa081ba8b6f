//! Why the catalog could not be opened, read or written.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::encoding::DecodeError;
use super::tables::SCHEMA_VERSION;

/// Why the catalog could not be opened, read or written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CatalogError {
    /// Another process has the file open.
    #[error("the catalog {path} is in use by {holder}: stop that daemon or choose another cache.dir")]
    InUse {
        path: PathBuf,
        /// The process with the lock, in words.
        holder: String,
    },
    /// The file could not be opened or created.
    #[error("cannot open the catalog {path}: check that the cache directory exists and is writable")]
    Open {
        path: PathBuf,
        /// The error of the database.
        #[source]
        source: Arc<redb::Error>,
    },
    /// A later version of glidefs wrote the catalog.
    #[error(
        "the catalog {path} has schema version {found}, this glidefs knows {SCHEMA_VERSION}: \
         run the newer glidefs that wrote it (nothing was changed)"
    )]
    Newer {
        path: PathBuf,
        /// The schema version in the file.
        found: u64,
    },
    /// The tables could not be read.
    #[error("cannot read the catalog {path}")]
    Read {
        path: PathBuf,
        /// The error of the database.
        #[source]
        source: Arc<redb::Error>,
    },
    /// A later version of glidefs wrote the entry of an export.
    #[error(
        "the entry of export id {id} in the catalog {path} was written by a newer version of glidefs: run that one (nothing was \
         changed)"
    )]
    NewerEntry {
        path: PathBuf,
        id: u32,
        /// The field or version unknown to this glidefs.
        #[source]
        source: Arc<DecodeError>,
    },
    /// The entry of an export is damaged.
    #[error(
        "the entry of export id {id} in the catalog {path} is damaged: put the whole cache directory back from one copy, or move it \
         away and open the exports from the store"
    )]
    Damaged {
        path: PathBuf,
        id: u32,
        #[source]
        source: Arc<DecodeError>,
    },
    /// Entries contradict each other, or break a rule on names or sizes.
    #[error(
        "the catalog {path} contradicts itself ({what}): put the whole cache directory back from one copy, or move it away and open \
         the exports from the store"
    )]
    Inconsistent {
        path: PathBuf,
        /// The contradiction, in a sentence.
        what: String,
    },
    /// A change could not be written.
    #[error("cannot write the catalog {path}: nothing was changed; make room on its disk, and try again")]
    Write {
        path: PathBuf,
        /// The error of the database.
        #[source]
        source: Arc<redb::Error>,
    },
    /// The catalog's writer thread has ended.
    #[error("the catalog {path} is closed: the daemon is stopping")]
    Closed { path: PathBuf },
}

impl From<CatalogError> for io::Error {
    fn from(error: CatalogError) -> Self {
        let kind = match &error {
            CatalogError::Write { source, .. } => match &**source {
                redb::Error::Io(source) => source.kind(),
                _ => io::ErrorKind::Other,
            },
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
