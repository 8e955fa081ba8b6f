//! The state of one volume's writer in a process, shared by all handles of the volume.
//!
//! Owns the locks under which the state changes. Does not own the changes.

use std::collections::HashMap;
use std::sync::atomic::AtomicU16;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use crate::fair::WEIGHT_DEFAULT;
use crate::properties::Properties;
use crate::store::format::Manifest;
use crate::store::ids::{PackId, VolumeId};
use crate::store::volume::damage;
use crate::store::volume::notes::Loss;
use crate::store::volume::types::{Fence, Resume};
use crate::store::volume::view::readahead::Streams;
use crate::store::volume::view::rows::LoadedManifest;
use crate::units::Seq;

#[derive(Debug)]
pub(in crate::store::volume) struct WriterState {
    pub id: VolumeId,
    /// Held while the next manifest is made.
    pub change: tokio::sync::Mutex<()>,
    /// Held during a step of compaction.
    pub compaction: tokio::sync::Mutex<Compaction>,
    /// Streams of reads, for reading ahead.
    pub streams: Mutex<Streams>,
    pub head: Mutex<Head>,
    /// Share of the volume among others, in GETs and in time for uploads.
    pub weight: AtomicU16,
    /// The properties that every manifest of this writer names.
    pub properties: Mutex<NextProperties>,
    /// The newest manifest, if the cache of manifests has the manifest: saves locking the cache, which all volumes share.
    pub here: Mutex<Weak<LoadedManifest>>,
}

/// The properties for the next manifest. Usual ones, which most volumes have, take no memory.
#[derive(Debug, Default)]
pub(in crate::store::volume) enum NextProperties {
    /// Those of the manifest before.
    #[default]
    AsBefore,
    Usual,
    These(Box<Properties>),
}

impl NextProperties {
    pub fn of(properties: Properties) -> Self {
        if properties == Properties::default() { Self::Usual } else { Self::These(Box::new(properties)) }
    }

    /// The properties; `None`: those of the manifest before.
    pub fn get(&self) -> Option<Properties> {
        match self {
            Self::AsBefore => None,
            Self::Usual => Some(Properties::default()),
            Self::These(properties) => Some(**properties),
        }
    }
}

impl WriterState {
    pub fn new(id: VolumeId, head: Head) -> Self {
        Self {
            id,
            change: tokio::sync::Mutex::default(),
            compaction: tokio::sync::Mutex::default(),
            streams: Mutex::default(),
            head: Mutex::new(head),
            weight: AtomicU16::new(WEIGHT_DEFAULT),
            properties: Mutex::default(),
            here: Mutex::default(),
        }
    }
}

/// What steps of compaction have seen.
#[derive(Debug, Default)]
pub(in crate::store::volume) struct Compaction {
    /// Number of discarded bytes of the oldest run.
    pub discarded_bytes: u64,
    /// Packs that could not be read, each with the time since boot at which a step found that out.
    pub left_out: HashMap<PackId, Duration>,
}

/// The newest manifest as its writer remembers it. The manifest itself is in the cache of all volumes.
#[derive(Clone, Debug)]
pub(in crate::store::volume) struct Head {
    /// This writer and its epoch.
    pub own: Fence,
    pub number: u64,
    pub size_sectors: u64,
    pub cut: Seq,
    /// When the manifest was certainly the newest. `None`: not certain in this process.
    pub known: Option<Duration>,
    /// When the store first said that the manifest is missing, since it was last found.
    pub missing_since: Option<Duration>,
    /// Why this writer cannot write the volume any more.
    pub lost: Option<Loss>,
    /// Number of damaged sectors in the manifest.
    pub damaged_sectors: u64,
}

impl Head {
    /// Goes on from `resume`, which may not be the newest, on a volume not known to be lost.
    pub fn of(resume: &Resume) -> Self {
        Self {
            own: Fence { epoch: resume.epoch, writer: resume.writer },
            number: resume.number,
            size_sectors: resume.size_sectors,
            cut: resume.cut,
            known: None,
            missing_since: None,
            lost: None,
            damaged_sectors: resume.damaged_sectors,
        }
    }

    /// The store said at `begun` or later that the manifest is the newest.
    pub fn found(&mut self, begun: Duration) {
        (self.known, self.missing_since) = (Some(begun), None);
    }

    /// Goes on from `manifest`, which was the newest at `known`.
    pub fn follow(&mut self, manifest: &Manifest, known: Option<Duration>) {
        self.number = manifest.number;
        self.size_sectors = manifest.size_sectors;
        self.cut = manifest.cut;
        (self.known, self.missing_since) = (known, None);
        self.damaged_sectors = damage::sectors(&manifest.sections.damaged);
    }
}
