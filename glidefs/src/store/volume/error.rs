//! Errors of volumes.
//!
//! Owns the wording of errors only.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat};

use super::limits::VOLUME_BYTES_MAX;
use super::notes::Divergence;
use super::types::Taker;
use crate::store::error::StoreError;
use crate::store::format::PushError;
use crate::store::ids::{HostName, StoreName, VolumeId};
use crate::units::SectorRange;

/// The host that has a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The name under which the volume was asked for.
    pub name: StoreName,
    /// Name of the host. `None`: the glidefs of that host did not say.
    pub host: Option<HostName>,
    /// Creation time of the host's newest manifest, by the host's clock, milliseconds since 1970-01-01 UTC.
    pub heard_unix_millis: u64,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heard = date(self.heard_unix_millis);
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

/// A time in milliseconds since 1970-01-01 UTC, as RFC 3339 to the second.
pub(super) fn date(unix_millis: u64) -> String {
    let date = i64::try_from(unix_millis).ok().and_then(DateTime::from_timestamp_millis);
    date.unwrap_or_default().to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// An error of a volume. Cheap to clone: readers that wait for the same bytes share the error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VolumeError {
    /// A request to the store failed.
    #[error(transparent)]
    Store(#[from] Arc<StoreError>),
    /// Another writer has taken the volume over. This writer cannot write any more; opening the volume again gives up everything
    /// this writer did not commit.
    #[error(
        "another writer took the volume over ({}): what was not written back before is not in it; open the export on one host only",
        .0
    )]
    Fenced(Taker),
    /// The store has another history of the volume than this host. Nothing was changed on either side.
    #[error(
        "the store and this host have two histories of volume {volume}: {divergence}. The cache directory or the store was \
         restored from a copy, or cloned; nothing is lost or overwritten on either side"
    )]
    Diverged {
        /// The volume with two histories.
        volume: VolumeId,
        /// The newest manifest on either side.
        divergence: Box<Divergence>,
    },
    /// The store lacks the manifest or a pack that this writer needs to go on.
    #[error(
        "the state of volume {volume} that this host goes on from is not in the store any more: data that is only on this host cannot be read \
         without it"
    )]
    Gone {
        /// The volume of this writer.
        volume: VolumeId,
    },
    /// Packs that are needed are in the store, and garbage collection may be about to remove the packs.
    #[error(
        "garbage collection may be removing data of volume {volume}, as {record} says: try again. If the answer stays the same for \
         more than a day, see the chapter on garbage collection in docs/operations.md"
    )]
    MayGo {
        /// The volume that needs the packs.
        volume: VolumeId,
        /// Key of the removal record.
        record: String,
    },
    /// The note on a manifest could not be taken, so the store was not asked to create the manifest.
    #[error(
        "the next manifest of a volume cannot be noted on disk before it is stored; make room on the disk of cache.dir"
    )]
    NotNoted(#[source] Arc<io::Error>),
    /// The name leads to another volume than the caller wants.
    #[error(
        "in the store {name} is volume {found}, not {wanted}: volume {wanted} was deleted, or has another name"
    )]
    OtherVolume {
        /// The name given by the caller.
        name: StoreName,
        /// The volume of that name.
        found: VolumeId,
        /// The volume wanted by the caller.
        wanted: VolumeId,
    },
    /// Another host has the volume, without having released the volume.
    #[error(
        "{0}: detach the export there, which releases it; or take it over with --take-over, which stops it there and gives up what \
         that host has not stored"
    )]
    Held(Box<Held>),
    /// No deleted volume of this name can be had back.
    #[error(
        "the store has nothing deleted under the name {name} that can be had back: `glidefs export list --deleted` lists what can"
    )]
    NotDeleted {
        /// The name given by the caller.
        name: StoreName,
    },
    /// Somebody deleted the volume from the store.
    #[error("volume {volume} was deleted from the store")]
    Deleted {
        /// The deleted volume, by identity.
        volume: VolumeId,
    },
    /// A volume of this name exists.
    #[error("{}", name_taken(name, held.as_deref()))]
    NameTaken {
        /// The name already in use.
        name: StoreName,
        /// The other host that has the volume of the name, as far as known.
        held: Option<Box<Held>>,
    },
    /// No volume has this name.
    #[error("the store has no volume named {name}")]
    NoSuchName {
        /// The name given by the caller.
        name: StoreName,
    },
    /// The store has no manifest of the volume: there never was such a volume, or creating the volume was not finished.
    #[error("the store has no state of volume {volume}")]
    NoSuchVolume {
        /// The volume named by the caller.
        volume: VolumeId,
    },
    /// The volume has a snapshot of this name.
    #[error("the volume has a snapshot named {name}: delete it, or choose another name")]
    SnapshotExists {
        /// The name already in use.
        name: StoreName,
    },
    /// The volume has a snapshot of this name, and a part of the content of the snapshot is gone.
    #[error(
        "snapshot {name} of the volume cannot be used, because a part of its content is gone: delete the snapshot, then take it again"
    )]
    SnapshotBroken {
        /// Name of the snapshot.
        name: StoreName,
    },
    /// The volume has no snapshot of this name.
    #[error("the volume has no snapshot named {name}")]
    NoSuchSnapshot {
        /// The name given by the caller.
        name: StoreName,
    },
    /// A host lost the content of sectors before the store had the content.
    #[error(
        "sectors {} to {} are damaged: a host lost their content before the store had it. They can be read once they were written \
         again or discarded, or from a snapshot made before",
        range.start(), range.end().saturating_sub(1)
    )]
    Damaged {
        /// The first run of damaged sectors in the range asked for. Not empty.
        range: SectorRange,
    },
    /// The damage has more ranges than a manifest can list. Nothing was committed.
    #[error(
        "sectors are damaged in {runs} places, and the store can note {}: write the damaged sectors again, or discard them; nothing of \
         the export is written back before that",
        crate::store::format::DAMAGED_RANGES_MAX
    )]
    TooDamaged {
        /// Number of damaged ranges in the state.
        runs: usize,
    },
    /// The local disk failed while a cut was read. Nothing was committed.
    #[error("data to be written back cannot be read from the cache")]
    Cut(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The cut cannot be made stable on this host. Nothing was committed.
    #[error("data cannot be made stable on this host before it is written back")]
    Unsettled(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// A cut breaks the rules of [`super::CutSource`]. Nothing was committed.
    #[error("a cut that cannot be stored: {0}")]
    BadCut(&'static str),
    /// A new pack is so old that garbage collection may remove the pack before any manifest names the pack. No manifest was
    /// created.
    #[error(
        "the operation took {} s, longer than garbage collection waits, and changed nothing: try again. If writeback takes so \
         long, make flush_interval shorter, or the connection to the store faster",
        elapsed.as_secs()
    )]
    TooSlow {
        /// Time since the first upload began, or since the manifest or snapshot to go on from was read.
        elapsed: Duration,
    },
    /// A release of the volume came into the store after the upload of a new pack, so garbage collection may remove the pack before any
    /// manifest names the pack. No manifest was created.
    #[error(
        "a release of volume {volume} arrived in the store while data was uploaded, and the operation changed nothing: try again"
    )]
    ReleasedMeanwhile {
        /// The volume of this writer.
        volume: VolumeId,
    },
    /// The packs of a volume of this size do not fit a manifest.
    #[error(
        "a volume of {size_bytes} bytes is too large for the store: {} bytes ({} TiB) is the most that a manifest can list; use \
         several exports",
        VOLUME_BYTES_MAX, VOLUME_BYTES_MAX >> 40
    )]
    TooLarge {
        /// The size wanted by the caller, bytes.
        size_bytes: u64,
    },
    /// The manifest has no room for another cut. Nothing was committed.
    #[error(
        "the volume has {packs} packs, and its manifest can list {}: writes wait until some of them are merged; if that does not \
         happen, copy the export to smaller ones",
        crate::store::format::PACKS_MAX
    )]
    TooManyPacks {
        /// Number of packs in the manifest.
        packs: usize,
    },
    /// The compressor could not be set up.
    #[error("zstd cannot be used: choose a compression level it knows")]
    Compressor(#[source] Arc<io::Error>),
    /// Another writer was faster in every try to create the next manifest.
    #[error("other writers keep taking volume {volume} over: open the export on one host only")]
    Contended {
        /// The volume for which the writers compete.
        volume: VolumeId,
    },
    /// The next merge needs packs that could not be read.
    #[error(
        "merging of volume {volume} waits for {packs} packs that are missing or damaged: restore them in the store; the log names them"
    )]
    PacksLeftOut {
        /// The volume with the packs.
        volume: VolumeId,
        /// Number of packs that are left out.
        packs: usize,
    },
    /// The runtime is shutting down.
    #[error("the daemon is stopping")]
    Stopping,
}

fn name_taken(name: &StoreName, held: Option<&Held>) -> String {
    match held {
        Some(held) => format!(
            "{held}: choose another name; or detach the export there, and open it here (`glidefs export open {name}`)"
        ),
        None => format!(
            "the store has a volume named {name}: open it (`glidefs export open {name}`), or choose another name"
        ),
    }
}

impl VolumeError {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::TooSlow { .. }
            | Self::MayGo { .. }
            | Self::ReleasedMeanwhile { .. }
            | Self::TooManyPacks { .. }
            | Self::Contended { .. }
            | Self::Stopping
            | Self::Cut(_)
            | Self::Unsettled(_)
            | Self::NotNoted(_) => true,
            _ => false,
        }
    }

    /// Whether the error only says that the store cannot be reached, or refuses this host: nothing is known to be wrong with the
    /// volume.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unreachable())
    }

    /// Whether this writer can never write the volume again.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Fenced(_) | Self::Deleted { .. } | Self::Diverged { .. })
    }

    /// Whether the store refuses this host, for all volumes alike. The store's client has logged such an error already.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Store(error) if matches!(**error, StoreError::Refused { .. }))
    }

    /// Whether the error only says that this daemon is stopping.
    pub fn is_stopping(&self) -> bool {
        match self {
            Self::Store(error) => matches!(**error, StoreError::ShuttingDown { .. }),
            Self::Stopping => true,
            _ => false,
        }
    }

    pub(super) fn is_damaged(&self) -> bool {
        matches!(self, Self::Store(error) if matches!(**error, StoreError::Damaged { .. }))
    }

    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_missing())
    }
}

impl From<StoreError> for VolumeError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

/// An error of the pack builder. No checked cut causes one, because a pack ends as soon as the builder is full.
pub(super) fn bad_cut(error: PushError) -> VolumeError {
    VolumeError::BadCut(match error {
        PushError::Order => "its extents do not ascend",
        PushError::Unfit => "an extent is not in whole sectors",
        PushError::Full => "an extent does not fit into a pack",
    })
}

/// Runs `work` on a thread that may block. A panic of `work` goes on in the caller.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(VolumeError::Stopping),
        },
    }
}
