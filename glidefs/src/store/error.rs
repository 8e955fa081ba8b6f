//! What can go wrong with a store.
//!
//! Owns wording only; `classify` judges what the store answered. Every message says what the user can do where that is known.

use std::error::Error;
use std::time::Duration;

use uuid::Uuid;

use super::format::FormatError;
use super::key::Key;
use super::stats::Operation;

/// An error from below, whose type does not matter.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why a request to the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The object does not exist.
    #[error("{key} is missing from the store")]
    Missing {
        /// Which object.
        key: String,
    },
    /// The object exists and is not what it should be. It was read twice.
    #[error("{key} is damaged; restore it from a copy of the store, or delete what refers to it")]
    Damaged {
        /// Which object.
        key: String,
        /// What is wrong with it.
        source: FormatError,
    },
    /// The object is not the one that this host created under that name.
    #[error(
        "{key} is another one than this host created: the store or the cache directory was restored or cloned"
    )]
    NotNoted {
        /// Which object.
        key: String,
    },
    /// The object is of a format that this glidefs does not know.
    #[error("{key} was written by another version of glidefs")]
    OtherVersion {
        /// Which object.
        key: String,
        /// Which version.
        source: FormatError,
    },
    /// The object would not be one that can be read, so it was not created.
    #[error("{key} cannot be created")]
    Unfit {
        /// Which object.
        key: String,
        /// What is wrong with it.
        source: FormatError,
    },
    /// The store knows us, or not, and does not let us.
    #[error("the store refused to {operation} {key}: {advice}")]
    Refused {
        /// What was tried.
        operation: Operation,
        /// With which object.
        key: String,
        /// What to do.
        advice: &'static str,
        /// What the store said.
        source: BoxError,
    },
    /// The store does not understand the request. Trying again would not help.
    #[error("the store cannot {operation} {key}")]
    Rejected {
        /// What was tried.
        operation: Operation,
        /// With which object.
        key: String,
        /// What the store said.
        source: BoxError,
    },
    /// No try succeeded in the time there was. A creation may or may not have happened.
    #[error(
        "could not {operation} {key}: the store did not answer well to {tries} tries in {} s; check that it is reachable",
        elapsed.as_secs()
    )]
    Unreachable {
        /// What was tried.
        operation: Operation,
        /// With which object.
        key: String,
        /// How often.
        tries: u32,
        /// For how long.
        elapsed: Duration,
        /// Why the last try failed.
        source: BoxError,
    },
    /// The daemon is stopping. A creation may or may not have happened.
    #[error("the daemon stopped before it could {operation} {key}")]
    ShuttingDown {
        /// What was tried.
        operation: Operation,
        /// With which object.
        key: String,
    },
    /// There is no marker.
    #[error(
        "there is no glidefs store at {location}: check store.url; a daemon that may write makes one when it starts"
    )]
    NotAStore {
        /// Where one was expected.
        location: String,
    },
    /// The directory of the store has no store in it.
    #[error("{location} holds no store at the moment: mount its file system, or correct store.url")]
    Away {
        /// Where the store was.
        location: String,
        /// Why the directory cannot be used, if it cannot.
        #[source]
        source: Option<BoxError>,
    },
    /// It is not the store that was used so far.
    #[error(
        "{location} {}, and what this host has flushed is in store {known}: set store.url to where that is now, or give \
         the exports up with another cache.dir",
        found.map_or("holds no store".into(), |found| format!("holds store {found}"))
    )]
    Another {
        /// Where it was expected.
        location: String,
        /// What is there.
        found: Option<Uuid>,
        /// What was expected.
        known: Uuid,
    },
    /// The marker is not one this glidefs can use.
    #[error("{location} holds no store that this glidefs can use; nothing was changed")]
    Foreign {
        /// Where it is.
        location: String,
        /// What is wrong with the marker.
        source: FormatError,
    },
    /// The store does not honour the condition of a creation.
    #[error(
        "{location} replaces objects that it is asked to create only if they are absent: the server ignores the header \
         If-None-Match, and two hosts could overwrite each other's volumes; use a server with conditional creation (Amazon \
         S3, Google Cloud Storage, Azure Blob Storage, Cloudflare R2, current MinIO or Ceph), or a directory (file://)"
    )]
    Replaces {
        /// Where it is.
        location: String,
    },
    /// The location cannot be used as it is configured.
    #[error("the store {location} cannot be used: {advice}")]
    Setup {
        /// Where it should be.
        location: String,
        /// What is wrong, and what to do.
        advice: String,
        /// Details.
        source: Option<BoxError>,
    },
}

/// An object that could not be read is not created.
pub(super) fn unfit(key: &Key, source: FormatError) -> StoreError {
    StoreError::Unfit { key: key.to_string(), source }
}

impl StoreError {
    /// Whether the object is just not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    /// Whether it says nothing of the object: an outage, credentials that are refused, or a store that does not understand. All of
    /// that can be mended.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Refused { .. } | Self::Rejected { .. })
    }

    /// Whether the same request may succeed later: the store was unreachable, or this daemon was stopping.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::ShuttingDown { .. } | Self::Away { .. })
    }
}
