//! What can go wrong with a volume.
//!
//! Owns wording only.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat};

use super::{Divergence, Fence, VOLUME_BYTES_MAX};
use crate::store::error::{BoxError, StoreError};
use crate::store::ids::{HostName, StoreName, VolumeId};
use crate::units::SectorRange;

/// Who has a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its name.
    pub name: StoreName,
    /// The host. `None`: the host's glidefs did not say.
    pub host: Option<HostName>,
    /// When the host was last heard of, milliseconds since 1970-01-01 UTC by its clock.
    pub heard_unix_millis: u64,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = i64::try_from(self.heard_unix_millis).ok();
        let heard = millis.and_then(DateTime::from_timestamp_millis).unwrap_or_default();
        let heard = heard.to_rfc3339_opts(SecondsFormat::Secs, true);
        match &self.host {
            Some(host) => write!(f, "host {host} has {}, and was last heard of at {heard}", self.name),
            None => write!(
                f,
                "a host that did not say its name has {}, and was last heard of at {heard}",
                self.name
            ),
        }
    }
}

/// Why something could not be done with a volume. Cheap to clone: readers that wait for the same bytes share it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VolumeError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Arc<StoreError>),
    /// Another writer has taken the volume over. This one cannot write any more; it has to open the volume again, which gives
    /// up what it did not commit.
    #[error(
        "another writer took the volume over ({}): what was not stored before is not in it; open the export on one host only",
        .0
    )]
    Fenced(Fence),
    /// The store has another history of the volume than this host. Nothing was changed on either side.
    #[error(
        "the store and this host have two histories of volume {volume}: {divergence}. The cache directory or the store was \
         restored from a copy, or cloned; nothing is lost or overwritten on either side"
    )]
    Diverged {
        /// Which volume.
        volume: VolumeId,
        /// What both have.
        divergence: Box<Divergence>,
    },
    /// What this writer knows of the volume is not in the store any more.
    #[error(
        "the state of volume {volume} that this host goes on from is not in the store any more: what is only here cannot be read \
         without it"
    )]
    Gone {
        /// Which volume.
        volume: VolumeId,
    },
    /// What was about to be stored could not be written down here, so the store was not asked.
    #[error("what is about to be stored cannot be written down; make room on the disk of cache.dir")]
    NotNoted(#[source] Arc<io::Error>),
    /// The name means another volume than the one that was asked for.
    #[error(
        "in the store {name} is volume {found}, not {wanted}: the other one was deleted, or has another name"
    )]
    OtherVolume {
        /// The name.
        name: StoreName,
        /// The volume of that name.
        found: VolumeId,
        /// The volume that was asked for.
        wanted: VolumeId,
    },
    /// Another host has the volume and has not released it.
    #[error(
        "{0}: detach the export there, which releases it; or take it over with --take-over, which stops it there and gives up what \
         that host has not stored"
    )]
    Held(Box<Held>),
    /// Nothing that was deleted has the name, or can still be had back.
    #[error(
        "the store has nothing deleted under the name {name} that can be had back: `glidefs export list --deleted` lists what can"
    )]
    NotDeleted {
        /// The name.
        name: StoreName,
    },
    /// The volume was deleted.
    #[error("volume {volume} was deleted from the store")]
    Deleted {
        /// Which volume.
        volume: VolumeId,
    },
    /// A volume of this name exists.
    #[error("the store has a volume named {name}: open it, delete it, or choose another name")]
    NameTaken {
        /// The name.
        name: StoreName,
    },
    /// There is no volume of this name.
    #[error("the store has no volume named {name}")]
    NoSuchName {
        /// The name.
        name: StoreName,
    },
    /// There is no such volume, or it was never finished.
    #[error("the store has no state of volume {volume}")]
    NoSuchVolume {
        /// Which volume.
        volume: VolumeId,
    },
    /// A snapshot of this name exists.
    #[error("the volume has a snapshot named {name}: delete it, or choose another name")]
    SnapshotExists {
        /// The name.
        name: StoreName,
    },
    /// There is no snapshot of this name.
    #[error("the volume has no snapshot named {name}")]
    NoSuchSnapshot {
        /// The name.
        name: StoreName,
    },
    /// The content of sectors was lost before the store had it.
    #[error(
        "sectors {} to {} are damaged: a host lost their content before the store had it. They can be read once they were written \
         again or discarded, or from a snapshot made before",
        range.start(), range.end().saturating_sub(1)
    )]
    Damaged {
        /// The first run of them in what was asked for. Not empty.
        range: SectorRange,
    },
    /// There is more damage than a manifest can list. Nothing was stored.
    #[error(
        "sectors are damaged in {runs} places, and the store can note {}: write the damaged sectors again, or discard them; nothing of \
         the export is flushed before that",
        crate::store::format::DAMAGED_RANGES_MAX
    )]
    TooDamaged {
        /// Runs of damaged sectors.
        runs: usize,
    },
    /// A cut could not be read where it came from. Nothing was stored.
    #[error("the data to be stored cannot be read")]
    Cut(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// A cut is not what a cut must be. Nothing was stored.
    #[error("a cut that cannot be stored: {0}")]
    BadCut(&'static str),
    /// What was uploaded became so old that garbage collection may take it. Nothing was committed.
    #[error(
        "storing took {} s, longer than garbage collection waits for it: make the flush interval shorter, or the \
         connection to the store faster",
        elapsed.as_secs()
    )]
    TooSlow {
        /// Since the first upload.
        elapsed: Duration,
    },
    /// The volume cannot fit its manifest.
    #[error(
        "a volume of {size_bytes} bytes is too large for the store: {} bytes ({} TiB) is the most that a manifest can list; use \
         several exports",
        VOLUME_BYTES_MAX, VOLUME_BYTES_MAX >> 40
    )]
    TooLarge {
        /// The size asked for.
        size_bytes: u64,
    },
    /// The manifest has no room for another cut. Nothing was stored.
    #[error(
        "the volume has {packs} packs, and its manifest can list {}: writes wait until some of them are merged; if that does not \
         happen, copy the export to smaller ones",
        crate::store::format::PACKS_MAX
    )]
    TooManyPacks {
        /// How many it has.
        packs: usize,
    },
    /// The compressor could not be set up.
    #[error("zstd cannot be used: choose a compression level it knows")]
    Compressor(#[source] Arc<io::Error>),
    /// Whenever this writer wanted to take the volume over, another one was faster.
    #[error("other writers keep taking volume {volume} over: open the export on one host only")]
    Contended {
        /// Which volume.
        volume: VolumeId,
    },
    /// It cannot be a name in the store.
    #[error(transparent)]
    Name(crate::store::ids::NameError),
    /// The runtime is shutting down.
    #[error("the daemon is stopping")]
    Stopping,
}

impl VolumeError {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::TooSlow { .. }
            | Self::TooManyPacks { .. }
            | Self::Contended { .. }
            | Self::Stopping
            | Self::Cut(_)
            | Self::NotNoted(_) => true,
            _ => false,
        }
    }

    /// Whether only the way to the store is in the way, or what the store allows: nothing is known to be wrong with the volume.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unreachable())
    }

    /// Whether the volume can never be written by this writer again.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Fenced(_) | Self::Deleted { .. } | Self::Diverged { .. })
    }

    /// Whether the store does not let this host, whatever the volume: then `store` has logged that already.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Store(error) if matches!(**error, StoreError::Refused { .. }))
    }

    /// Whether it only says that this daemon is stopping.
    pub fn is_stopping(&self) -> bool {
        match self {
            Self::Store(error) => matches!(**error, StoreError::ShuttingDown { .. }),
            Self::Stopping => true,
            _ => false,
        }
    }

    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_missing())
    }

    pub(super) fn cut(source: BoxError) -> Self {
        Self::Cut(source.into())
    }
}

impl From<crate::store::ids::NameError> for VolumeError {
    fn from(error: crate::store::ids::NameError) -> Self {
        Self::Name(error)
    }
}

impl From<StoreError> for VolumeError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}
