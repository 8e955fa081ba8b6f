//! Errors of a store.
//!
//! Owns wording only; `classify` judges the answers of a store. Every message says how the user can mend the cause, where known.

use std::error::Error;
use std::time::Duration;

use uuid::Uuid;

use super::format::{FormatError, Marker};
use super::key::Key;
use super::stats::Operation;

/// An error of a library or of a caller, of any type.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why a request to the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The object does not exist.
    #[error("{key} is missing from the store")]
    Missing {
        /// Key of the missing object.
        key: String,
    },
    /// The object exists, in a class of the store that does not answer at once.
    #[error(
        "{key} is in an archive of the store: restore it there, and let no lifecycle rule move objects of glidefs to an archive"
    )]
    Archived {
        /// Key of the archived object.
        key: String,
        /// Answer of the store.
        source: BoxError,
    },
    /// The object exists and failed the check twice.
    #[error(
        "{key} is damaged; restore it from a copy of the store, or delete what refers to it. If it is a manifest that none of your \
         hosts wrote, delete it alone"
    )]
    Damaged {
        /// Key of the damaged object.
        key: String,
        /// The check that failed.
        source: FormatError,
    },
    /// The name has another object than this host created.
    #[error(
        "{key} is another one than this host created: the store or the cache directory was restored or cloned"
    )]
    NotNoted {
        /// Key of the unexpected object.
        key: String,
    },
    /// The object has a format that this glidefs does not know.
    #[error("{key} was written by another version of glidefs")]
    OtherVersion {
        /// Key of the unreadable object.
        key: String,
        /// Version or section that is unknown.
        source: FormatError,
    },
    /// The object was not created, since no glidefs could read the object.
    #[error("{key} cannot be created")]
    Unfit {
        /// Key of the object.
        key: String,
        /// The limit that the object breaks.
        source: FormatError,
    },
    /// The store refuses the request because of credentials, permissions or the region.
    #[error("the store refused to {operation} {key}: {advice}")]
    Refused {
        /// The request that the store refused.
        operation: Operation,
        /// Key of the object of the request.
        key: String,
        /// How the user can mend the cause.
        advice: &'static str,
        /// Answer of the store.
        source: BoxError,
    },
    /// The store does not understand the request. Trying again would not help.
    #[error("the store cannot {operation} {key}")]
    Rejected {
        /// The request that the store rejected.
        operation: Operation,
        /// Key of the object of the request.
        key: String,
        /// Answer of the store.
        source: BoxError,
    },
    /// No try succeeded in the time there was. A creation may or may not have happened.
    #[error(
        "could not {operation} {key}: the store did not answer well to {tries} tries in {} s; check that it is reachable",
        elapsed.as_secs()
    )]
    Unreachable {
        /// The request that had no answer.
        operation: Operation,
        /// Key of the object of the request.
        key: String,
        /// Number of tries.
        tries: u32,
        /// Time from the first try to the last.
        elapsed: Duration,
        /// Failure of the last try.
        source: BoxError,
    },
    /// The daemon is stopping. A creation may or may not have happened.
    #[error("the daemon stopped before it could {operation} {key}")]
    ShuttingDown {
        /// The request that was given up.
        operation: Operation,
        /// Key of the object of the request.
        key: String,
    },
    /// The place has no marker.
    #[error(
        "there is no glidefs store at {location}: check store.url; a daemon that may write makes one when it starts"
    )]
    NotAStore {
        /// Where a store was expected.
        location: String,
    },
    /// The place has volumes and no marker.
    #[error(
        "{location} has volumes, and its {} is gone, so nothing was changed: restore that object from a copy; or restart the daemon \
         of a host with exports in this store: its log then has the line to write to that object",
        Key::Marker
    )]
    Unmarked {
        /// Where a store was to be made.
        location: String,
    },
    /// The place is no store, and has something else.
    #[error(
        "{location} has {found}, which is not of glidefs, so no store was made there: set store.url to a prefix or directory of its own, \
         which is empty"
    )]
    Occupied {
        /// Where a store was to be made.
        location: String,
        /// What is there.
        found: String,
    },
    /// The place shows no usable marker at present, and this host has used a store there.
    #[error(
        "{location} does not show store {known} of this host at the moment: mount its file system, or correct store.url; or, if \
         the volumes are there and only the {} is gone or damaged, write this line to that object: {}",
        Key::Marker,
        String::from_utf8_lossy(&Marker::restored(*known).encode()).trim_end()
    )]
    Away {
        /// Where the store was found before.
        location: String,
        /// Identity of the store that this host has used.
        known: Uuid,
        /// Why the place cannot be used; `None` for a place without a marker.
        #[source]
        source: Option<BoxError>,
    },
    /// The place shows the marker of a newer glidefs, and this host has used a store there.
    #[error(
        "{location} has the marker of a newer glidefs: run that version on this host; the marker must not be changed"
    )]
    Newer {
        /// Location of the store whose marker it is.
        location: String,
        /// The format of the marker.
        source: FormatError,
    },
    /// The place holds another store than this host has used so far.
    #[error(
        "{location} holds store {found}, and this host has written back to store {known}: set store.url to the place of that \
         store, or give the exports up with another cache.dir"
    )]
    Another {
        /// Where the store was expected.
        location: String,
        /// Identity of the store that is there.
        found: Uuid,
        /// Identity of the store that was expected.
        known: Uuid,
    },
    /// The marker is not one this glidefs can use.
    #[error("{location} holds no store that this glidefs can use; nothing was changed")]
    Foreign {
        /// Where the marker is.
        location: String,
        /// Why the marker cannot be used.
        source: FormatError,
    },
    /// The store does not honour the condition of a creation.
    #[error(
        "{location} replaces objects that it is asked to create only if they are absent: the server ignores the header \
         If-None-Match, at least of requests that race, and two hosts could overwrite each other's volumes; use a server with conditional creation (Amazon \
         S3, Google Cloud Storage, Azure Blob Storage, Cloudflare R2, current MinIO or Ceph), or a directory (file://)"
    )]
    Replaces {
        /// Where the store is.
        location: String,
    },
    /// The configured location cannot be used.
    #[error("the store {location} cannot be used: {advice}")]
    Setup {
        /// The configured location.
        location: String,
        /// The cause, and how the user can mend the cause.
        advice: String,
        /// The error of the library or of the system.
        source: Option<BoxError>,
    },
}

/// The error for an object that no glidefs could read, and that is therefore not created.
pub(super) fn unfit(key: &Key, source: FormatError) -> StoreError {
    StoreError::Unfit { key: key.to_string(), source }
}

impl StoreError {
    /// Whether the object is just not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    /// Whether the error says nothing of the object: an outage, refused credentials, or a request that the store does not
    /// understand. All of these causes can be mended.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Refused { .. } | Self::Rejected { .. })
    }

    /// Whether the same request may succeed later: the store was unreachable, its place was not in order, or this daemon was
    /// stopping.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::ShuttingDown { .. }
                | Self::Away { .. }
                | Self::Newer { .. }
                | Self::Another { .. }
        )
    }
}
