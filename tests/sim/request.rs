//! A request of the simulation, with the token which stands for the request in the cache.

use std::fmt;
use std::sync::Arc;

use glidefs::testing::cache::Volume;
use glidefs::testing::units::{ExportId, SectorRange};

use super::content::{Content, fill};
use super::oracle::Moment;
use super::rig::MemoryToken;

/// The cache's hold on a request. The name is the request's id.
pub type SimToken = MemoryToken<Content>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write {
        /// Stable before the acknowledgement.
        fua: bool,
    },
    /// DISCARD or WRITE_ZEROES.
    Zero {
        /// Stable before the acknowledgement.
        fua: bool,
    },
    Flush,
}

#[derive(Clone)]
pub struct Request {
    /// Never used twice in an episode.
    pub id: Content,
    pub volume: Arc<Volume>,
    pub kind: Kind,
    /// Empty for FLUSH.
    pub range: SectorRange,
    /// When the cache got the request.
    pub issued: Moment,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, kind, range, .. } = self;
        write!(
            f,
            "request {id} ({kind:?} of sectors {} + {} of export {})",
            range.start(),
            range.count(),
            self.export()
        )
    }
}

impl Request {
    pub fn export(&self) -> ExportId {
        self.volume.id()
    }

    /// Bytes of data of a WRITE; 0 for others.
    pub fn data_bytes(&self) -> usize {
        if matches!(self.kind, Kind::Write { .. }) { self.bytes() } else { 0 }
    }

    /// Whether the request needs room in the log.
    pub fn changes(&self) -> bool {
        matches!(self.kind, Kind::Write { .. } | Kind::Zero { .. })
    }

    /// Bytes of the range.
    pub fn bytes(&self) -> usize {
        usize::try_from(self.range.bytes().unwrap()).unwrap()
    }

    /// The token for the cache. Bytes without data are set to a value which no sector holds.
    pub fn token(&self) -> SimToken {
        match self.kind {
            Kind::Read => MemoryToken::reading(self.id, self.bytes()),
            Kind::Write { .. } => {
                let mut data = vec![0; self.bytes()];
                fill(&mut data, self.id, self.export(), self.range.start());
                MemoryToken::writing(self.id, &data)
            }
            Kind::Zero { .. } | Kind::Flush => MemoryToken::without_data(self.id),
        }
    }
}
