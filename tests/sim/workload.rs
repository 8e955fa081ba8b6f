//! The requests of a life: mixed sizes and alignments, with enough overlap for most sectors to have a past.
//!
//! Does not own the time of arrival. Invariant: READs and WRITEs lie inside their export and are no larger than 128 KiB.

use std::sync::Arc;

use glidefs::testing::cache::Volume;
use glidefs::testing::units::SectorRange;

use super::content::Content;
use super::request::{Kind, Request};
use super::rng::Rng;

/// Sectors in the largest READ or WRITE.
const REQUEST_SECTORS_MAX: u64 = 256;

/// The mix of a life: how many requests of 1000 are of each kind.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub reads: u32,
    pub flushes: u32,
    pub zeroes: u32,
    /// Of 1000 WRITEs and zeroings, those with FUA.
    pub fua: u32,
    /// Only a few places are touched, again and again.
    pub hot: bool,
}

impl Mix {
    pub fn random(rng: &mut Rng) -> Self {
        Self {
            reads: [50, 200, 400][rng.index(3)],
            flushes: [5, 30, 120][rng.index(3)],
            zeroes: [0, 60, 200][rng.index(3)],
            fua: [0, 20, 150][rng.index(3)],
            hot: rng.permille(300),
        }
    }

    pub fn overwriting(rng: &mut Rng) -> Self {
        Self { reads: 30, flushes: 20, zeroes: 20, fua: 10, hot: rng.permille(300) }
    }

    /// The next request for `volume`, which has `sectors` sectors.
    pub fn request(&self, rng: &mut Rng, id: Content, volume: &Arc<Volume>, sectors: u64) -> Request {
        let fua = rng.permille(self.fua);
        let dice = u32::try_from(rng.within(0..1000)).unwrap();
        let kind = if dice < self.reads {
            Kind::Read
        } else if dice < self.reads + self.flushes {
            Kind::Flush
        } else if dice < self.reads + self.flushes + self.zeroes {
            Kind::Zero { fua }
        } else {
            Kind::Write { fua }
        };
        let range = match kind {
            Kind::Flush => SectorRange::new(0, 0).unwrap(),
            Kind::Zero { .. } => self.zero_range(rng, sectors),
            _ => self.data_range(rng, sectors),
        };
        Request { id, volume: Arc::clone(volume), kind, range, issued: 0 }
    }

    fn data_range(&self, rng: &mut Rng, sectors: u64) -> SectorRange {
        let (align, count) = match rng.index(10) {
            0..4 => (8, 8 * rng.within(1..9)),
            4..6 => (1, rng.within(1..17)),
            6..8 => (1, rng.within(1..REQUEST_SECTORS_MAX + 1)),
            8 => (8, 8 * rng.within(1..33)),
            _ => (8, REQUEST_SECTORS_MAX),
        };
        self.place(rng, sectors, align, count)
    }

    fn zero_range(&self, rng: &mut Rng, sectors: u64) -> SectorRange {
        match rng.index(20) {
            0 => SectorRange::new(0, sectors).unwrap(),
            // Several entries: one holds 2^32 - 1 sectors at most. Sectors beyond the export are never compared.
            1 => SectorRange::new(rng.within(0..sectors), (1 << 32) * rng.within(1..4)).unwrap(),
            2..10 => {
                let count = 8 * rng.within(1..33);
                self.place(rng, sectors, 8, count)
            }
            _ => {
                let count = rng.within(1..sectors + 1);
                self.place(rng, sectors, 1, count)
            }
        }
    }

    fn place(&self, rng: &mut Rng, sectors: u64, align: u64, count: u64) -> SectorRange {
        let count = count.min(sectors);
        let last = if self.hot { (sectors - count).min(64) } else { sectors - count };
        let start = rng.within(0..last + 1) / align * align;
        SectorRange::new(start, count).unwrap()
    }
}
