//! The longest hold of a volume's lock by each kind of work: requests of the volume wait so long on a worker. The goal is a
//! millisecond. `scripts/bench-holds` measures it on a volume of ten million extents.
//!
//! Owns the works on a volume of a given size. Does not own the clock: the caller does. The time of a call with one hold stands
//! for the hold, since nobody else wants the lock.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::Volume;
use super::appends::WriteKind;
use super::budget::{Budget, Budgets};
use super::extent::{Backing, Extent};
use super::hold::{self, EXTENTS_MAX, MOVED_MAX};
use super::layers::SeqMarks;
use super::loading::{GainedRefs, Loading};
use super::ranks::Ranks;
use super::zeroes::{Carving, Zeroing};
use crate::cache::log::table::{Place, SegmentTable};
use crate::observe::memory::tune_allocator;
use crate::units::{ExportId, FRAME_SECTORS, SectorRange, Seq};

const PLACE: Place = Place { number: 0, segment_id: 1, end: 9 };

/// The longest hold of one kind.
#[derive(Clone, Copy, Debug)]
struct LongestHold {
    /// The work done with the lock held.
    kind: &'static str,
    /// How often the lock was taken.
    holds: u64,
    /// By the clock of the caller.
    longest: Duration,
}

/// The longest holds of each kind of work on a volume of `blocks` extents. `now` is a clock.
fn longest_holds(blocks: u32, now: impl Fn() -> Duration) -> Vec<LongestHold> {
    let table = SegmentTable::new(2, 2, [0; 16], 64);
    table.get(0).begin_use(1, 1);
    let works = Works { volume: volume(Seq(0)), table, blocks: u64::from(blocks), now, done: Vec::new() };
    works.all()
}

/// An empty volume which is in the store up to `stored`.
fn volume(stored: Seq) -> Volume {
    let volume = Volume::at(ExportId(1), SeqMarks { stored, ..SeqMarks::default() });
    // The memory of an index is noted where there is a budget.
    volume.join(&Arc::new(Budget::new(Budgets::default(), u64::MAX, false)));
    volume
}

struct Works<N> {
    volume: Volume,
    table: SegmentTable,
    blocks: u64,
    now: N,
    done: Vec<LongestHold>,
}

impl<N: Fn() -> Duration> Works<N> {
    fn all(mut self) -> Vec<LongestHold> {
        self.clock_alone();
        let everything = (0, self.blocks);
        self.fill("write");
        self.once("cut: made", |works| works.volume.cut_now());
        let mut from = Some(0);
        self.repeat("cut: some extents read", |works| {
            from = works.volume.lock().layers.frozen_from(from.unwrap_or(u64::MAX), EXTENTS_MAX).1;
            from.is_none()
        });
        self.fill("write above a cut");
        self.repeat("cut: some taken back", |works| works.volume.undo_some(&works.table, MOVED_MAX));
        self.volume.cut_now();
        self.thaw("cut: some made clean");
        let stored = self.volume.figures().stored;
        self.evict("some evicted", stored);
        self.fill("write again");
        self.volume.cut_now();
        self.thaw("cut: some made clean again");
        let (mark, mut from) = (self.volume.figures().stored, Some(0));
        self.repeat("index: some evicted", |works| {
            from = works.volume.evict_from(&works.table, mark, (from.unwrap_or(u64::MAX), 0), EXTENTS_MAX);
            from.is_none()
        });
        self.fill("write after eviction");
        self.discard(everything);
        self.volume.cut_now();
        self.thaw("zeroes: made clean");
        self.fill("write above zeroes");
        self.volume.cut_now();
        self.thaw("cut: some put above zeroes");
        self.load(Seq(0));
        self.volume.cut_now();
        self.thaw("loaded: some made clean");
        self.load(self.volume.figures().last_seq);
        // Each in a leaf of its own.
        self.fill_every("write above what was loaded", 64);
        self.volume.cut_now();
        self.thaw("cut: some put above what was loaded");
        self.load(self.volume.figures().last_seq);
        let (mark, mut from) = (self.volume.figures().stored, Some(0));
        self.repeat("loaded: some evicted", |works| {
            from = works.volume.evict_from(&works.table, mark, (from.unwrap_or(u64::MAX), 0), EXTENTS_MAX);
            from.is_none()
        });
        self.fill("write at the end");
        // Extents out of use are dropped without the lock.
        let mut longest = Duration::ZERO;
        let gone = self.time(&mut longest, |works| works.volume.remove(&works.table));
        drop(gone);
        self.note("deleted", 1, longest);
        self.done
    }

    /// Puts a volume with the same content in the place of the volume, as a start from a checkpoint makes one; the store has
    /// everything up to `stored`.
    fn load(&mut self, stored: Seq) {
        let new = volume(stored);
        let (mut loading, mut refs) = (Loading::of(&new), GainedRefs::default());
        let mut from = Some(0);
        while let Some(sector) = from {
            let slice = self.volume.slice(sector, EXTENTS_MAX, |_| true);
            slice.extents.iter().for_each(|extent| loading.add(extent, &mut refs));
            loading.gave_out(slice.last);
            from = slice.next;
        }
        new.load(&self.table, &Ranks::default(), loading, &mut refs);
        self.volume = new;
    }

    fn note(&mut self, kind: &'static str, holds: u64, longest: Duration) {
        self.done.push(LongestHold { kind, holds, longest });
    }

    fn time<T>(&mut self, longest: &mut Duration, work: impl FnOnce(&mut Self) -> T) -> T {
        let begin = (self.now)();
        let done = work(self);
        *longest = (*longest).max((self.now)().saturating_sub(begin));
        done
    }

    /// Nothing, as often as there are extents: what the machine itself adds to a time now and then.
    fn clock_alone(&mut self) {
        let mut longest = Duration::ZERO;
        for _ in 0..self.blocks {
            self.time(&mut longest, |_| ());
        }
        self.note("nothing, the clock alone", self.blocks, longest);
    }

    fn once(&mut self, kind: &'static str, work: impl FnOnce(&mut Self)) {
        let mut longest = Duration::ZERO;
        self.time(&mut longest, work);
        self.note(kind, 1, longest);
    }

    /// Calls `work` until the work is done.
    fn repeat(&mut self, kind: &'static str, mut work: impl FnMut(&mut Self) -> bool) {
        let (mut holds, mut longest) = (1, Duration::ZERO);
        while !self.time(&mut longest, &mut work) {
            holds += 1;
        }
        self.note(kind, holds, longest);
    }

    fn range(block: u64, blocks: u64) -> Option<SectorRange> {
        SectorRange::new(block * FRAME_SECTORS, blocks * FRAME_SECTORS)
    }

    /// Writes each block. No two neighbours merge.
    fn fill(&mut self, kind: &'static str) {
        self.fill_every(kind, 1);
    }

    /// Writes one of each `step` blocks.
    fn fill_every(&mut self, kind: &'static str, step: usize) {
        let (mut holds, mut longest) = (0, Duration::ZERO);
        for range in (0..self.blocks).step_by(step).filter_map(|block| Self::range(block, 1)) {
            holds += 1;
            self.time(&mut longest, |works| {
                let Ok(seq) = works.volume.next_seqs(1) else { return };
                // Neighbours lie more than a block apart.
                let sector = u32::try_from(seq.0 % (1 << 20)).unwrap_or(0) * 1024;
                let extent = Extent { range, seq, backing: Backing::Data { number: 0, sector } };
                if works.volume.appended(&works.table, (seq, 1), [extent].into_iter(), PLACE).is_err() {
                    works.volume.failed(seq, 1, WriteKind::Data);
                }
            });
        }
        self.note(kind, holds, longest);
    }

    fn thaw(&mut self, kind: &'static str) {
        let (mut holds, mut longest) = (0, Duration::ZERO);
        loop {
            holds += 1;
            // Extents out of use are forgotten without the lock.
            let (is_last, dead) =
                self.time(&mut longest, |works| works.volume.thaw_some(&works.table, MOVED_MAX));
            dead.forget(&self.table);
            if is_last {
                break;
            }
        }
        self.note(kind, holds, longest);
    }

    /// Evicts by ranges so short that a call holds the lock once.
    fn evict(&mut self, kind: &'static str, stored: Seq) {
        let (mut holds, mut longest) = (0, Duration::ZERO);
        let step = EXTENTS_MAX as u64;
        for block in (0..self.blocks).step_by(EXTENTS_MAX) {
            let Some(range) = Self::range(block, step.min(self.blocks - block)) else { continue };
            holds += 1;
            self.time(&mut longest, |works| works.volume.evict(&works.table, range, stored, 0));
        }
        self.note(kind, holds, longest);
    }

    fn discard(&mut self, (block, blocks): (u64, u64)) {
        let Some(range) = Self::range(block, blocks) else { return };
        let mut longest = Duration::ZERO;
        let begun = self.time(&mut longest, |works| works.volume.begin_zeroes(range, false, EXTENTS_MAX));
        self.note("discard: a look", 1, longest);
        let Ok((Zeroing::Record(first, range), _)) = begun else { return };
        let mut carving = Carving::new(first, range, PLACE);
        self.repeat("discard: some put in", |works| {
            let carved = works.volume.carve_some(&works.table, &mut carving, EXTENTS_MAX);
            carved.map_or(true, |(_, is_done)| is_done)
        });
    }
}

#[test]
fn each_kind_of_work_is_measured_hold_by_hold() {
    let ticks = Cell::new(0);
    let clock = || {
        ticks.set(ticks.get() + 1);
        Duration::from_micros(ticks.get())
    };
    hold::take_most();
    let blocks = 20_000;
    let holds = longest_holds(blocks, clock);
    assert!(hold::take_most() <= 4 * EXTENTS_MAX);
    let of = |kind: &str| holds.iter().find(|hold| hold.kind == kind).expect(kind).holds;
    for kind in [
        "cut: some extents read",
        "cut: some taken back",
        "cut: some made clean",
        "some evicted",
        "index: some evicted",
        "loaded: some made clean",
        "loaded: some evicted",
        "discard: some put in",
    ] {
        assert!(of(kind) >= u64::from(blocks) / EXTENTS_MAX as u64, "{kind}: {holds:?}");
    }
    // Each of these extents opens a leaf.
    assert!(
        of("cut: some put above what was loaded") > 4 * u64::from(blocks) / 64 / EXTENTS_MAX as u64,
        "{holds:?}"
    );
    // The clock ticks when asked: the figures are of one call, not of several in a row. `hold` counts what a call looks at.
    assert!(holds.iter().all(|hold| hold.longest == Duration::from_micros(1)), "{holds:?}");
}

/// `GLIDEFS_BENCH_EXTENTS` sets the number of extents. The clock is the CPU time of the thread: other programs do not count. The figures
/// go to the file that `GLIDEFS_BENCH_FIGURES` names.
#[test]
#[ignore = "a measurement: scripts/bench-holds"]
fn the_longest_holds_of_a_large_volume() {
    let extents = std::env::var("GLIDEFS_BENCH_EXTENTS").map_or(10_000_000, |text| text.parse().unwrap());
    // As the daemon does; a test has a thread of its own, as workers have.
    tune_allocator();
    let holds = longest_holds(extents, || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into());
    println!("{extents} extents\n{:<28} {:>10} {:>14}", "kind", "holds", "longest, µs");
    for hold in &holds {
        println!("{:<28} {:>10} {:>14.1}", hold.kind, hold.holds, hold.longest.as_secs_f64() * 1e6);
    }
    let rows: Vec<_> = holds
        .iter()
        .map(|hold| {
            json!({"case": hold.kind, "extents": extents, "holds": hold.holds, "longest_us": hold.longest.as_micros()})
        })
        .collect();
    if let Some(path) = std::env::var_os("GLIDEFS_BENCH_FIGURES") {
        std::fs::write(path, serde_json::to_string_pretty(&rows).unwrap()).unwrap();
    }
}
