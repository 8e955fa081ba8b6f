//! Checkpoints made while the content of a volume goes from layer to layer: between two slices of a gathering, cuts are made, thawed,
//! taken back and evicted, and segments are cleaned.

use std::io;
use std::sync::{Arc, Mutex};

use futures_util::future::{BoxFuture, ready};

use super::*;
use crate::cache::CacheCatalog;
use crate::cache::volume::cuts::CutState;
use crate::store::volume::Resume;

/// Cuts at most at one time: each may keep older content of all sectors in the log.
const CUTS_MAX: usize = 3;

/// The catalog of A alone.
#[derive(Debug, Default)]
struct Marks(Mutex<SeqMarks>);

impl CacheCatalog for Marks {
    fn evicted(&self, marks: &[(ExportId, Seq)]) -> io::Result<()> {
        let mut own = self.0.lock().unwrap();
        own.evicted = marks.iter().fold(own.evicted, |evicted, (_, mark)| evicted.max(*mark));
        Ok(())
    }

    fn stored(&self, _: ExportId, _: &Resume, _: Seq) -> BoxFuture<'static, io::Result<()>> {
        Box::pin(ready(Ok(())))
    }
}

#[derive(Clone, Debug)]
enum Move {
    Write(u64, u64),
    Zero(u64, u64),
    Keep,
    KeepOnce(u8),
    Cut,
    /// The store has the first cut, and so many of the cut's extents become clean.
    Thaw(usize),
    /// The first cut is taken back, so many extents at a time.
    Undo(usize),
    /// Content in the store is forgotten from this sector on.
    Evict(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Move> {
    prop_oneof![
        10 => (0..SECTORS - 256, 1..256_u64).prop_map(|(start, count)| Move::Write(start, count)),
        1 => (0..SECTORS - 400, 1..400_u64).prop_map(|(start, count)| Move::Zero(start, count)),
        1 => Just(Move::Keep),
        6 => (1..6_u8).prop_map(Move::KeepOnce),
        2 => Just(Move::Cut),
        4 => (1..9_usize).prop_map(Move::Thaw),
        1 => (1..9_usize).prop_map(Move::Undo),
        1 => (0..SECTORS).prop_map(Move::Evict),
        1 => Just(Move::Restart),
    ]
}

/// A volume with cuts, and the computer around.
struct Life {
    history: History,
    marks: Arc<Marks>,
    driver: Driver,
    pace: CheckpointPace,
    number: u8,
    cuts: usize,
    /// Some of the first cut is clean.
    is_thawing: bool,
    /// Number of checkpoints of which starts were compared.
    compared: u64,
    covered: u64,
    /// How often a cut was made, thawed or taken back while a checkpoint was under way.
    moved: u64,
}

impl Life {
    fn new(pace: CheckpointPace) -> Self {
        let history = History {
            directory: tempfile::tempdir().unwrap(),
            segments: 12,
            exports: vec![(A, SeqMarks::default())],
        };
        let marks = Arc::default();
        let driver = start(&history, &marks, pace);
        let (number, cuts, is_thawing) = (0, 0, false);
        let (compared, covered, moved) = (0, 0, 0);
        Self { history, marks, driver, pace, number, cuts, is_thawing, compared, covered, moved }
    }

    fn step(mut self, step: &Move) -> Self {
        let written = self.written();
        let is_gathering = self.driver.makes_checkpoint();
        let volume = self.driver.cache.volume(A);
        let shared = Arc::clone(&self.driver.cache.shared);
        let table = &shared.table;
        match *step {
            Move::Write(start, count) => {
                self.number = self.number.wrapping_add(1);
                let data = vec![self.number; usize::try_from(count * 512).unwrap()];
                self.driver.write(&volume, range(start, count), Some(&data)).unwrap();
            }
            Move::Zero(start, count) => self.driver.write(&volume, range(start, count), None).unwrap(),
            Move::Keep => self.driver.keep(),
            Move::KeepOnce(times) => (0..times).for_each(|_| self.driver.keep_once()),
            Move::Cut => {
                if self.cuts < CUTS_MAX {
                    volume.cut_once_more();
                    self.cuts += 1;
                    self.moved += u64::from(is_gathering);
                }
            }
            Move::Thaw(limit) => {
                if let CutState::Complete(last) = volume.cut_state() {
                    self.marks.0.lock().unwrap().stored = last;
                    let (is_done, dead) = volume.thaw_some(table, limit);
                    shared.bury(dead);
                    self.is_thawing = !is_done;
                    self.cuts -= usize::from(is_done);
                    self.moved += u64::from(is_gathering);
                }
            }
            Move::Undo(limit) => {
                if !self.is_thawing && volume.cut_state() != CutState::None {
                    while !volume.undo_some(table, limit) {
                        self.driver.keep_once();
                    }
                    self.cuts -= 1;
                    self.moved += u64::from(is_gathering);
                }
            }
            Move::Evict(from) => {
                let mark = volume.figures().stored;
                self.marks.evicted(&[(A, mark)]).unwrap();
                volume.evict_from(table, mark, (from, 0), 16);
            }
            Move::Restart => {
                drop((volume, shared));
                self.compare();
                self.driver.kill();
                self.driver = start(&self.history, &self.marks, self.pace);
                (self.cuts, self.is_thawing) = (0, false);
                return self;
            }
        }
        if self.written() > written {
            self.compare();
        }
        self
    }

    fn written(&self) -> u64 {
        self.driver.cache.shared.figures.checkpoints_written.load(Ordering::Relaxed)
    }

    fn compare(&mut self) {
        self.history.exports = vec![(A, *self.marks.0.lock().unwrap())];
        self.covered += self.history.compare().0.covered;
        self.compared += 1;
    }
}

fn start(history: &History, marks: &Arc<Marks>, pace: CheckpointPace) -> Driver {
    let known = Known { catalog: Arc::clone(marks) as _, ..history.known() };
    let disk = Faulty::new(history.directory.path());
    let mut driver = Driver::new(disk.open_with(history.segments, known).unwrap().0);
    driver.pace_checkpoints(pace);
    driver
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn layers_that_move_while_extents_are_gathered_cost_no_content(
        steps in prop::collection::vec(step(), 50..250),
        (segments, slices) in (1..5_usize, 1..3_usize),
        extents in prop::sample::select(vec![1, 3, 20, 300]),
    ) {
        let life = Life::new(CheckpointPace { segments, slices, extents });
        steps.iter().fold(life, Life::step).driver.kill();
    }
}

#[test]
fn layers_move_while_extents_are_gathered() {
    let round = |number: u64| {
        let write =
            |nth: u64| Move::Write((number * 997 + nth * 331) % (SECTORS - 256), 1 + (number * 61) % 255);
        let few = 1 + usize::try_from(number % 5).unwrap();
        let last = if number % 7 == 3 { Move::Undo(few) } else { Move::Thaw(few) };
        [Move::Cut, write(0), write(1), Move::KeepOnce(3), Move::Thaw(few), write(2), Move::KeepOnce(3), last]
    };
    let steps: Vec<Move> = (0..60).flat_map(round).chain([Move::Restart]).collect();
    let life = Life::new(CheckpointPace { segments: 2, slices: 1, extents: 3 });
    let Life { driver, compared, covered, moved, .. } = steps.iter().fold(life, Life::step);
    driver.kill();
    assert!(
        compared > 3 && covered > 3 && moved > 30,
        "{compared} compared, {covered} covered, {moved} moved"
    );
}
