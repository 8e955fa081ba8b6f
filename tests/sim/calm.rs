//! A cache with one shard which does one thing after the other, for tests of known structures on the disk.
//!
//! Owns the map from writes to structures on disk, read with the public decoders. Does not own the effects of damage.

use std::sync::{Arc, Mutex};

use glidefs::testing::cache::format::{EntryKind, Record, SegmentHeader, Trailer, decode_record};
use glidefs::testing::cache::{
    Admission, Budgets, Cache, CacheError, IoError, Keeper, Known, OnFull, Options, Recovered,
};
use glidefs::testing::units::{ExportId, SectorRange};

use super::content::{Content, fill};
use super::disk::{FakeClock, FakeDisk, Shared, machine};
use super::faults::Crash;
use super::file::FRAME;
use super::machine::Machine;
use super::request::{Kind, Request, SimToken};
use super::rig::{Completion, Rig};
use super::rng::Rng;

/// Size of a segment, bytes.
pub const SEGMENT: u64 = 256 * 1024;
pub const EXPORTS: [ExportId; 2] = [ExportId(1), ExportId(2)];

/// A computer with a calm disk.
pub struct CalmComputer {
    pub shared: Shared,
    next: Content,
}

/// A write which was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub export: ExportId,
    pub range: SectorRange,
    pub content: Content,
}

/// A segment, as the disk has the segment.
#[derive(Debug)]
pub struct Found {
    pub number: u32,
    pub trailer: Option<Trailer>,
    /// Without records which announce exports.
    pub records: Vec<FoundRecord>,
}

#[derive(Debug)]
pub struct FoundRecord {
    /// The frame of the header.
    pub frame: u32,
    pub record: Record,
}

impl CalmComputer {
    /// A computer with an empty cache directory.
    pub fn new() -> Self {
        Self { shared: Arc::new(Mutex::new(Machine::new(Rng::new(1)))), next: 0 }
    }

    /// A copy of the computer.
    pub fn copy(&self) -> Self {
        Self { shared: Arc::new(Mutex::new(machine(&self.shared).clone())), next: self.next }
    }

    pub fn open(&self) -> Result<Opened, CacheError> {
        let options = Options {
            size_bytes: 16 * SEGMENT,
            segment_bytes: SEGMENT,
            shards: 1,
            on_full: OnFull::Wait,
            checksums_bytes_max: 0,
            mapped_bytes_max: 0,
            budgets: Budgets::default(),
            hands: 1,
        };
        let disk = Arc::new(FakeDisk::new(&self.shared));
        let (cache, recovered) =
            Cache::open(disk, Arc::new(FakeClock::default()), options, Known::local(&EXPORTS))?;
        let (rig, keeper) = (Rig::new(cache.shard(0, Arc::default())), cache.keeper());
        Ok(Opened { cache, rig, keeper, recovered })
    }

    pub fn kill(&self, opened: Opened) {
        machine(&self.shared).crash_now(Crash::Kill);
        machine(&self.shared).reboot();
        drop(opened);
    }

    /// Writes `count` sectors from `start` of `export`.
    pub fn write(&mut self, opened: &mut Opened, export: ExportId, start: u64, count: u64) -> Written {
        self.next += 1;
        let written = Written { export, range: SectorRange::new(start, count).unwrap(), content: self.next };
        opened.run(&written, Kind::Write { fua: false }).unwrap();
        written
    }

    /// Fills several segments, makes them stable and lets the keeper seal them.
    pub fn fill_segments(&mut self, opened: &mut Opened) -> Vec<Written> {
        let mut all = Vec::new();
        for number in 0..40 {
            for export in EXPORTS {
                all.push(self.write(opened, export, number * 40, 30 + number % 10));
            }
        }
        for export in EXPORTS {
            opened.flush(export);
        }
        opened.keep();
        all
    }

    /// The segments on the disk that hold records.
    pub fn survey(&self) -> Vec<Found> {
        let machine = machine(&self.shared);
        let mut found = Vec::new();
        for (number, bytes) in (0..16).filter_map(|number| Some((number, machine.bytes_of(number)?))) {
            let Ok(header) = SegmentHeader::decode(&bytes[..FRAME]) else { continue };
            let key = header.key();
            let trailer = Trailer::decode(&bytes[bytes.len() - FRAME..], &key, SEGMENT).ok();
            let (mut records, mut position) = (Vec::new(), 1);
            while let Some(frame) = bytes.get(position * FRAME..(position + 1) * FRAME)
                && let Ok(record) = decode_record(frame, &key, u32::try_from(position).unwrap())
            {
                let next = position + 1 + record.crcs.len();
                if record.entries[0].kind != EntryKind::Announced {
                    records.push(FoundRecord { frame: u32::try_from(position).unwrap(), record });
                }
                position = next;
            }
            if !records.is_empty() {
                found.push(Found { number, trailer, records });
            }
        }
        found
    }

    pub fn sealed(&self) -> Found {
        self.survey().into_iter().find(|found| found.trailer.is_some()).expect("no segment was sealed")
    }

    /// Flips a bit of byte `at` of segment file `number`. Two flips cancel out.
    pub fn flip(&self, number: u32, at: u64) {
        machine(&self.shared).rot(number, |bytes| bytes[usize::try_from(at).unwrap()] ^= 0x10);
    }

    /// Removes the checkpoint: the next start reads all of the log.
    pub fn forget_checkpoint(&self) {
        machine(&self.shared).forget_checkpoint();
    }

    pub fn image(&self) -> Vec<Option<Vec<u8>>> {
        let machine = machine(&self.shared);
        (0..20).map(|number| machine.bytes_of(number).map(<[u8]>::to_vec)).collect()
    }
}

pub struct Opened {
    pub cache: Cache,
    rig: Rig<SimToken>,
    keeper: Keeper,
    /// The report of the opening.
    pub recovered: Recovered,
}

impl Opened {
    fn run(&mut self, what: &Written, kind: Kind) -> Result<Vec<u8>, IoError> {
        let volume = self.cache.volume(what.export);
        let request = Request { id: what.content, volume, kind, range: what.range, issued: 0 };
        let (token, shard) = (request.token(), &mut self.rig.shard);
        match kind {
            Kind::Read => shard.read(&request.volume, request.range, None, token),
            Kind::Flush => shard.flush(&request.volume, token),
            Kind::Zero { .. } => panic!("not used"),
            Kind::Write { fua } => {
                let room = loop {
                    match shard.admit(request.data_bytes()) {
                        Admission::Accept(room) => break room,
                        _ => assert!(self.keeper.step(), "there is no room"),
                    }
                };
                shard.write(&request.volume, request.range, fua, room, token);
            }
        }
        let Self { rig, keeper, .. } = self;
        let mut rounds = 0;
        let mut completed = rig.settle(|| {
            keeper.step();
            rounds += 1;
            rounds < 100
        });
        let Completion { token, result } =
            completed.pop().unwrap_or_else(|| panic!("{request:?} never came back"));
        result.map(|()| token.data(request.bytes()).to_vec())
    }

    /// Makes everything written to `export` stable.
    pub fn flush(&mut self, export: ExportId) {
        let all = Written { export, range: SectorRange::new(0, 0).unwrap(), content: 0 };
        self.run(&all, Kind::Flush).unwrap();
    }

    /// Runs the keeper until the keeper has no work left.
    pub fn keep(&mut self) {
        let mut steps = 0;
        while self.keeper.step() {
            steps += 1;
            assert!(steps < 10_000, "the keeper never rests");
        }
    }

    /// Reads `count` sectors from `start` on of the write `written`; `Ok` tells whether the content is right.
    pub fn reads_back(&mut self, written: &Written, start: u64, count: u64) -> Result<bool, IoError> {
        let part = Written { range: SectorRange::new(start, count).unwrap(), ..*written };
        let found = self.run(&part, Kind::Read)?;
        let mut expected = vec![0; found.len()];
        fill(&mut expected, written.content, written.export, start);
        Ok(found == expected)
    }

    /// Requires all of `written` to be readable.
    pub fn require_all<'a>(&mut self, written: impl IntoIterator<Item = &'a Written>) {
        for written in written {
            let found = self.reads_back(written, written.range.start(), written.range.count());
            assert_eq!(found, Ok(true), "{written:?}");
        }
    }
}
