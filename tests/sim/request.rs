//! A request of the simulation, and the token which stands for the request in the cache.

use std::fmt;
use std::sync::Arc;

use glidefs::testing::cache::{Token, Volume};
use glidefs::testing::units::{ExportId, SectorRange};

use super::content::{Content, fill};
use super::file::FRAME;
use super::oracle::Moment;

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

    fn bytes(&self) -> usize {
        usize::try_from(self.range.bytes().unwrap()).unwrap()
    }

    /// The token for the cache. Bytes without data are set to a value which no sector holds.
    pub fn token(&self) -> SimToken {
        let mut buffer = match self.kind {
            Kind::Read | Kind::Write { .. } => vec![0xdd; self.bytes().next_multiple_of(FRAME)],
            Kind::Zero { .. } | Kind::Flush => Vec::new(),
        };
        if self.data_bytes() > 0 {
            let bytes = self.bytes();
            fill(&mut buffer[..bytes], self.id, self.export(), self.range.start());
        }
        SimToken { id: self.id, address: buffer.as_ptr() as usize, buffer }
    }
}

/// The cache's hold on a request.
#[derive(Debug)]
pub struct SimToken {
    pub id: Content,
    /// Address of the buffer at the time of handing out.
    address: usize,
    buffer: Vec<u8>,
}

impl SimToken {
    /// The data of a READ of `range` which came back.
    pub fn data(&self, range: SectorRange) -> &[u8] {
        assert_eq!(self.buffer.as_ptr() as usize, self.address, "a token came back with another buffer");
        &self.buffer[..usize::try_from(range.bytes().unwrap()).unwrap()]
    }
}

impl Token for SimToken {
    type Part = Vec<u8>;

    fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    fn lend(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let mut part = std::mem::take(&mut self.buffer);
        part.truncate(bytes);
        Some(part)
    }
}
