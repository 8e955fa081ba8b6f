//! The parts which outlive a process: the computer, the judge, and chance.
//!
//! Owns the verdict on a request which came back. Invariant: a request fails only for an injected reason.

use std::collections::BTreeMap;

use glidefs::testing::cache::IoError;
use glidefs::testing::units::{ExportId, SectorRange};

use super::disk::{Shared, machine};
use super::oracle::{Moment, Oracle};
use super::request::{Kind, Request, SimToken};
use super::rng::Rng;
use super::tally::{Event, Tally};

pub struct World {
    pub machine: Shared,
    pub oracle: Oracle,
    pub rng: Rng,
    pub tally: Tally,
    /// Exports with a record lost, perhaps, and the moment of finding out: reads of older content may fail.
    pub doubted: BTreeMap<ExportId, Moment>,
    /// Opening could not close a segment because a write or a sync failed: a FLUSH fails until the content of the
    /// segment has moved.
    pub given_up: bool,
    pub trace: bool,
}

impl World {
    /// Whether the process is dead, and answers count no more.
    pub fn dead(&self) -> bool {
        machine(&self.machine).dead()
    }

    /// Whether READs of `range` issued at `issued` may fail because the disk lost content of the range.
    pub fn may_fail(&self, export: ExportId, range: SectorRange, issued: Moment) -> bool {
        let is_old = |found: &Moment| !self.oracle.is_durable(export, range, *found, issued);
        self.doubted.get(&export).is_some_and(is_old) || machine(&self.machine).may_fail(export, range)
    }

    /// Judges a request which came back. `oldest_read` is the moment of issue of the oldest READ under way.
    pub fn judge(
        &mut self,
        request: &Request,
        token: &SimToken,
        result: Result<(), IoError>,
        oldest_read: Option<Moment>,
    ) {
        let export = request.export();
        let removed = self.oracle.sectors(export) == 0;
        let [writes, syncs, reads] = machine(&self.machine).injected();
        if let Err(error) = result {
            let fua = matches!(request.kind, Kind::Write { fua: true } | Kind::Zero { fua: true });
            let explained = match error {
                IoError::Removed(id) => removed && id == export,
                IoError::Read => {
                    request.kind == Kind::Read
                        && (reads > 0 || self.may_fail(export, request.range, request.issued))
                }
                IoError::Damaged | IoError::Corrupt => {
                    request.kind == Kind::Read && self.may_fail(export, request.range, request.issued)
                }
                IoError::Write => request.changes() && writes > 0,
                IoError::Sync => (fua || request.kind == Kind::Flush) && (syncs > 0 || self.given_up),
                IoError::TooLarge
                | IoError::IndexFull
                | IoError::Remote
                | IoError::Store
                | IoError::Unreadable
                | IoError::Fenced
                | IoError::Diverged
                | IoError::NoSequenceNumber
                | IoError::Detached => false,
            };
            assert!(explained, "{request:?} failed for no reason: {error:?}");
            self.tally.hit(Event::RequestFailed);
        }
        let ok = result.is_ok();
        match request.kind {
            Kind::Read if ok => {
                let data = token.data(request.bytes());
                if let Err(violation) = self.oracle.check(export, request.range, request.issued, data) {
                    panic!("READ {} of {:?}: {violation}", request.id, request.range);
                }
            }
            Kind::Read => {}
            Kind::Write { fua } | Kind::Zero { fua } => {
                self.oracle.end(export, request.range, request.id, ok, fua);
                self.tally.add(Event::WrittenThrough, u64::from(ok && fua));
            }
            Kind::Flush if ok => {
                let reads_since = oldest_read.unwrap_or(u64::MAX);
                self.oracle.flushed(export, request.issued, reads_since);
                self.tally.hit(Event::Flushed);
            }
            Kind::Flush => {}
        }
    }
}
