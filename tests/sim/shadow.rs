//! Starts on copies of one computer: with the checkpoint and without, which must find the same content in the same places, and on one
//! thread and on several, which must find and write the same.
//!
//! Does not own the content that is legal (`oracle`): a checkpoint may be wrong long before a reader can tell. Invariant: the computer
//! itself stays as it was.

use std::sync::{Arc, Mutex};

use glidefs::testing::cache::format::{Kept, KeptExtent};
use glidefs::testing::cache::{Cache, CacheError, Recovered};
use glidefs::testing::units::{ExportId, SectorRange};

use super::disk::Shared;
use super::faults::Faults;
use super::machine::Machine;

/// The findings of a start: the content of each export, or whether the cache can be opened.
type Findings = Result<Vec<Vec<KeptExtent>>, String>;

/// Opens copies of `machine`, with the checkpoint and without, and compares the indexes of `exports`. Returns the number of segments
/// covered.
pub fn compare(
    machine: &Machine,
    exports: &[ExportId],
    open: impl Fn(&Shared) -> Result<(Cache, Recovered), CacheError>,
) -> u64 {
    if !machine.has_checkpoint() {
        return 0;
    }
    let start = |with_checkpoint: bool| {
        let mut copy = calm(machine);
        if !with_checkpoint {
            copy.forget_checkpoint();
        }
        findings(open(&Arc::new(Mutex::new(copy))), exports)
    };
    let (with, covered) = start(true);
    if covered > 0 {
        let (without, _) = start(false);
        assert!(with == without, "a start from the checkpoint differs: {}", difference(&with, &without));
    }
    covered
}

/// The error with which a start on a copy of `machine` is refused, if any.
pub fn error(
    machine: &Machine,
    open: impl Fn(&Shared) -> Result<(Cache, Recovered), CacheError>,
) -> Option<String> {
    open(&Arc::new(Mutex::new(calm(machine)))).err().map(|error| error.to_string())
}

/// A copy of `machine` without faults, for a start of this program.
fn calm(machine: &Machine) -> Machine {
    let mut copy = machine.clone();
    // A start finds the losses of a segment only where the segment is read.
    copy.heal();
    copy.calm();
    copy.faults = Faults::default();
    copy.run_older(false);
    copy
}

/// Opens copies of `machine`, damaged as the disk is, on one thread and on several, and compares the findings and the files left
/// behind.
pub fn compare_hands(
    machine: &Machine,
    exports: &[ExportId],
    open: impl Fn(&Shared, usize) -> Result<(Cache, Recovered), CacheError>,
) {
    // Each new cache has another id.
    if machine.is_blank() {
        return;
    }
    let start = |hands| {
        let mut copy = machine.clone();
        copy.calm();
        copy.faults = Faults::default();
        let shared = Arc::new(Mutex::new(copy));
        let opened = open(&shared, hands);
        let found = opened.as_ref().ok().map(|(_, found)| Recovered { seconds: 0.0, ..*found });
        // The entries of doubt about several exports have no order.
        let has_order = found.is_some_and(|found| found.doubted <= 1);
        let left = has_order.then(|| super::disk::machine(&shared).copy());
        (findings(opened, exports).0, found, left)
    };
    let (content, found, left) = start(1);
    let (content_of_many, found_by_many, left_by_many) = start(4);
    assert_eq!(found, found_by_many, "a start on several threads differs");
    assert!(content == content_of_many, "{}", difference(&content, &content_of_many));
    assert!(left == left_by_many, "a start on several threads leaves other files");
}

fn difference(with: &Findings, without: &Findings) -> String {
    let (Ok(with), Ok(without)) = (with, without) else {
        return format!("{:?}, {:?}", with.as_ref().err(), without.as_ref().err());
    };
    let extents = |all: &[Vec<KeptExtent>]| -> Vec<String> {
        let each = |(export, extents): (usize, &Vec<KeptExtent>)| {
            extents.iter().map(|extent| format!("{export}: {extent:?}")).collect::<Vec<_>>()
        };
        all.iter().enumerate().flat_map(each).collect()
    };
    let (with, without) = (extents(with), extents(without));
    let only =
        |all: &[String], others: &[String]| all.iter().find(|extent| !others.contains(extent)).cloned();
    format!("only with {:?}, only without {:?}", only(&with, &without), only(&without, &with))
}

fn findings(opened: Result<(Cache, Recovered), CacheError>, exports: &[ExportId]) -> (Findings, u64) {
    match opened {
        Ok((cache, found)) => {
            let content = exports.iter().map(|export| joined(&cache.volume(*export).content()));
            (Ok(content.collect()), found.covered)
        }
        // A cache that cannot be made smaller has been read. Both starts must say so, whether segments are covered or not.
        Err(error) => (Err(error.to_string()), 1),
    }
}

/// `extents` with the pieces of one place joined.
fn joined(extents: &[KeptExtent]) -> Vec<KeptExtent> {
    let mut found: Vec<KeptExtent> = Vec::new();
    for next in extents {
        if let Some(last) = found.last_mut()
            && let Some(whole) = join(last, next)
        {
            *last = whole;
        } else {
            found.push(*next);
        }
    }
    found
}

fn join(one: &KeptExtent, next: &KeptExtent) -> Option<KeptExtent> {
    let count = one.range.count();
    let follows = match (one.content, next.content) {
        (Kept::Data(place), Kept::Data(after)) => u64::from(place) + count == u64::from(after),
        (content, after) => content == after,
    };
    let is_one_write = (one.number, one.seq, one.range.end()) == (next.number, next.seq, next.range.start());
    let range = SectorRange::new(one.range.start(), count + next.range.count())?;
    (follows && is_one_write).then_some(KeptExtent { range, ..*one })
}
