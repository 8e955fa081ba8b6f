//! One computer from the first start through a number of crashes: open, compare everything, work, crash, again.
//!
//! Owns the volumes and the course of a life. Does not own which content is legal. Invariant: after each crash every sector of every
//! volume is read and judged before anything else is asked of the cache.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use glidefs::testing::cache::{
    Budgets, Cache, CacheError, CheckpointPace, Known, OnFull, Options, Recovered, Volume,
};
use glidefs::testing::units::{ExportId, SectorRange};

use super::catalog::FakeCatalog;
use super::content::Content;
use super::disk::{FakeClock, FakeDisk, Shared, machine};
use super::faults::{Crash, Faults};
use super::machine::{Copy, Machine};
use super::oracle::{Before, Moment, Oracle};
use super::process::{Process, Rest};
use super::request::{Kind, Request};
use super::rng::Rng;
use super::shadow;
use super::tally::{Event, Tally};
use super::workload::Mix;
use super::world::World;

/// Size of a segment, bytes.
pub const SEGMENT: u64 = 256 * 1024;
const FRAMES_PER_SEGMENT: u64 = SEGMENT / 4096;
/// Of so many starts one is made on several threads as well.
const STARTS_A_COMPARISON: u64 = 4;

pub struct Episode {
    world: World,
    clock: Arc<FakeClock>,
    segments: u64,
    shards: usize,
    shards_max: u64,
    on_full: OnFull,
    /// The volumes hold more than the cache can.
    too_large: bool,
    /// The disk loses frames between lives.
    bad_disk: bool,
    exports: Vec<ExportId>,
    next_export: u32,
    next_content: Content,
    saved: Option<Saved>,
    /// The checkpoint may be newer than the log, which was put back.
    may_have_newer_checkpoint: bool,
}

/// A copy of the cache directory and of the catalog, and the state to be found after the copy is put back.
struct Saved {
    directory: Copy,
    start: (u32, Option<u32>),
    oracle: Oracle,
    doubted: BTreeMap<ExportId, Moment>,
    exports: Vec<ExportId>,
    segments: u64,
    before: Before,
}

/// A pace for checkpoints, mostly so slow that much happens meanwhile.
fn pace(rng: &mut Rng) -> CheckpointPace {
    let mut few = || usize::try_from(rng.within(1..5)).unwrap();
    let (segments, slices) = (few(), few());
    CheckpointPace { segments, slices, extents: [1, 4, 16, 2048][rng.index(4)] }
}

impl Episode {
    /// A computer with a fate drawn from `seed`.
    pub fn new(seed: u64, trace: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut machine = Machine::new(rng.fork());
        machine.trace = trace;
        let machine = Arc::new(Mutex::new(machine));
        let shards_max = rng.within(1..5);
        let too_large = rng.permille(150);
        let bad_disk = rng.permille(250);
        let world = World {
            machine,
            oracle: Oracle::default(),
            rng,
            tally: Tally::default(),
            doubted: BTreeMap::new(),
            given_up: false,
            trace,
        };
        let mut episode = Self {
            world,
            clock: Arc::default(),
            segments: 0,
            shards: 1,
            shards_max,
            on_full: OnFull::Wait,
            too_large,
            bad_disk,
            exports: Vec::new(),
            next_export: 1,
            next_content: 1,
            saved: None,
            may_have_newer_checkpoint: false,
        };
        let rng = &mut episode.world.rng;
        if rng.permille(if too_large { 500 } else { 150 }) {
            episode.on_full = OnFull::Enospc;
        }
        episode.segments = 2 * shards_max + 8 + rng.within(0..10);
        let volumes = rng.within(2..5);
        let sectors = episode.segments * FRAMES_PER_SEGMENT * 8;
        let sectors = if too_large { sectors * 3 / 2 } else { sectors / 8 };
        for _ in 0..volumes {
            let odd = episode.world.rng.within(0..64);
            episode.add_volume(sectors / volumes + odd);
        }
        episode
    }

    /// Makes the computer's disk answer every sync without syncing.
    pub fn let_syncs_lie(&mut self) {
        machine(&self.world.machine).syncs_lie = true;
    }

    fn add_volume(&mut self, sectors: u64) {
        let id = ExportId(self.next_export);
        self.next_export += 1;
        self.exports.push(id);
        self.world.oracle.add(id, sectors);
    }

    fn describe(&self) {
        let Self { segments, shards_max, on_full, too_large, exports, .. } = self;
        eprintln!(
            "== {segments} segments, up to {shards_max} shards, {on_full:?}, too large: {too_large}, {exports:?}"
        );
    }

    /// Lives through `lives` lives, each ended by the crash which `crash` names, and checks the state left behind.
    pub fn run(mut self, lives: u64, mut crash: impl FnMut(&mut Rng) -> Crash) -> Tally {
        if self.world.trace {
            self.describe();
        }
        let mut before = Before::Rest;
        for _ in 0..lives {
            let mut process = self.start(&mut before);
            self.verify(&mut process, before);
            let crash = crash(&mut self.world.rng);
            before = Before::Rest;
            self.live(&mut process, crash);
            // The machine goes down first, so nothing done by the drop of `process` reaches the disk.
            self.reboot(&mut before);
            self.put_back(&mut before);
        }
        let mut process = self.start(&mut before);
        self.verify(&mut process, before);
        let mut tally = self.world.tally;
        tally.merge(&self.world.oracle.tally);
        tally.merge(&machine(&self.world.machine).tally);
        tally
    }

    /// Starts the machine again; `before` becomes the expectation of the reads after the start.
    fn reboot(&mut self, before: &mut Before) {
        self.world.oracle.crashed();
        let gone = machine(&self.world.machine).has_gone_pages();
        let crash = machine(&self.world.machine).reboot();
        if self.bad_disk && self.world.rng.permille(900) {
            for _ in 0..[1, 1, 5][self.world.rng.index(3)] {
                machine(&self.world.machine).lose_some_frame();
            }
        }
        if self.world.rng.permille(60) {
            machine(&self.world.machine).damage_checkpoint();
        }
        if self.world.trace {
            eprintln!("== {crash:?}");
        }
        *before = match (crash, *before) {
            (Some(Crash::PowerCut), _) | (_, Before::PowerCut) => Before::PowerCut,
            // Pages hidden from readers by a failed sync are lost to the next process as well.
            _ if gone => Before::PowerCut,
            (Some(Crash::Kill) | None, _) => Before::Kill,
        };
    }

    /// Saves a copy of the cache directory, or puts the copy back. The checkpoint of the newer directory stays.
    fn put_back(&mut self, before: &mut Before) {
        if self.bad_disk {
            return;
        }
        let mut machine = machine(&self.world.machine);
        if self.world.rng.permille(150) {
            self.saved = Some(Saved {
                directory: machine.copy(),
                start: machine.start(),
                oracle: self.world.oracle.clone(),
                doubted: self.world.doubted.clone(),
                exports: self.exports.clone(),
                segments: self.segments,
                before: *before,
            });
        } else if self.world.rng.permille(200)
            && let Some(saved) = self.saved.take()
        {
            self.world.tally.hit(Event::PutBack);
            machine.put_without_checkpoint(&saved.directory, saved.start);
            self.may_have_newer_checkpoint = true;
            let oracle = std::mem::replace(&mut self.world.oracle, saved.oracle);
            self.world.oracle.tally = oracle.tally;
            (self.world.doubted, self.exports, self.segments) =
                (saved.doubted, saved.exports, saved.segments);
            *before = saved.before;
        }
    }

    /// Opens the cache, through any number of crashes and failures.
    fn start(&mut self, before: &mut Before) -> Process {
        let shards = usize::try_from(self.world.rng.within(1..self.shards_max + 1)).unwrap();
        self.world.tally.add(Event::ShardsChanged, u64::from(shards != self.shards));
        self.shards = shards;
        let segments = self.segments;
        match self.world.rng.index(12) {
            0 => self.segments += self.world.rng.within(1..4),
            1 | 2 => self.segments -= self.world.rng.within(1..4).min(segments - 2 * self.shards_max - 4),
            _ => {}
        }
        self.remove_a_newer_checkpoint();
        let copy = machine(&self.world.machine).clone();
        self.compare_starts(&copy);
        if copy.generation().is_multiple_of(STARTS_A_COMPARISON) {
            shadow::compare_hands(&copy, &self.exports, |machine, hands| {
                self.open_with(machine, Arc::default(), hands)
            });
        }
        let mut tries = 0;
        loop {
            tries += 1;
            {
                let rng = &mut self.world.rng;
                let mut machine = machine(&self.world.machine);
                machine.run_older(rng.permille(100));
                // The very first start is also worth a crash: it writes the superblock.
                let first = self.next_content == 1;
                if rng.permille(if first { 400 } else { 150 }) {
                    let crash = if rng.coin() { Crash::Kill } else { Crash::PowerCut };
                    machine.arm(rng.within(0..if first { 2 } else { 60 }), crash);
                }
                if rng.permille(150) {
                    machine.faults =
                        Faults { write: 30, sync: 30, gone: 0, read: 5, open: 30, would_block: 0 };
                }
            }
            let is_left_over = machine(&self.world.machine).has_checkpoint_left_over();
            let opened = self.open(&self.world.machine);
            let (dead, injected) = {
                let mut machine = machine(&self.world.machine);
                machine.calm();
                (machine.dead(), machine.injected().iter().sum::<u64>())
            };
            if self.world.trace {
                eprintln!(
                    "== open: {:?}, crashed: {dead}, {injected} faults",
                    opened.as_ref().map(|(_, found)| found)
                );
            }
            match opened {
                _ if dead => {
                    self.world.tally.hit(Event::CrashInOpen);
                    self.reboot(before);
                }
                Ok((cache, found)) => {
                    assert!(found.covered == 0 || !is_left_over, "an older checkpoint was used: {found:?}");
                    let stays = {
                        let machine = machine(&self.world.machine);
                        machine.has_checkpoint() && !machine.is_older()
                    };
                    assert!(!stays, "a later start may use the checkpoint again: {found:?}");
                    self.may_have_newer_checkpoint &= machine(&self.world.machine).is_older();
                    if machine(&self.world.machine).has_gone_pages() {
                        *before = Before::PowerCut;
                    }
                    self.count(&cache, &found, segments, tries);
                    let appends = self.world.rng.index(5);
                    let mut process = Process::new(cache, Arc::clone(&self.clock), self.shards, appends);
                    process.pace_checkpoints(pace(&mut self.world.rng));
                    return process;
                }
                Err(CacheError::CannotShrink { size_bytes_min, .. }) if self.segments < segments => {
                    assert!(size_bytes_min <= segments * SEGMENT && size_bytes_min > self.segments * SEGMENT);
                    self.world.tally.hit(Event::ShrinkRefused);
                    self.segments = segments;
                }
                Err(CacheError::Disk { .. }) if injected > 0 => {
                    self.world.tally.hit(Event::OpenFailedCleanly);
                    self.reboot(before);
                }
                Err(error) => panic!("the cache does not open: {error}, {error:?}"),
            }
        }
    }

    /// Does what the error of a start asks for where a copy was put back beside a newer checkpoint: nothing tells such a log from one
    /// that has lost its newest segments.
    fn remove_a_newer_checkpoint(&mut self) {
        if !self.may_have_newer_checkpoint {
            return;
        }
        let copy = machine(&self.world.machine).clone();
        let error = shadow::error(&copy, |machine| self.open(machine));
        if error.is_some_and(|error| error.contains("remove index.ckpt")) {
            machine(&self.world.machine).forget_checkpoint();
        }
    }

    /// Compares the start with the checkpoint to the start without, on copies of `computer`.
    fn compare_starts(&mut self, computer: &Machine) {
        let covered = shadow::compare(computer, &self.exports, |machine| self.open(machine));
        self.world.tally.add(Event::StartsCompared, u64::from(covered > 0));
    }

    fn open(&self, machine: &Shared) -> Result<(Cache, Recovered), CacheError> {
        self.open_with(machine, Arc::clone(&self.clock), 1)
    }

    fn open_with(
        &self,
        machine: &Shared,
        clock: Arc<FakeClock>,
        hands: usize,
    ) -> Result<(Cache, Recovered), CacheError> {
        let options = Options {
            size_bytes: self.segments * SEGMENT,
            segment_bytes: SEGMENT,
            shards: self.shards,
            on_full: self.on_full,
            checksums_bytes_max: 0,
            mapped_bytes_max: 0,
            budgets: Budgets::default(),
            hands,
        };
        let disk = Arc::new(FakeDisk::new(machine));
        let catalog = Arc::new(FakeCatalog::new(machine));
        let known = Known { catalog, ..Known::local(&self.exports) };
        Cache::open(disk, clock, options, known)
    }

    fn count(&mut self, cache: &Cache, found: &Recovered, segments_before: u64, tries: u32) {
        let [writes, syncs, _] = machine(&self.world.machine).injected();
        self.world.given_up = writes + syncs > 0 && cache.stats().segments_poisoned > 0;
        let now = self.world.oracle.tick();
        let doubted = self.exports.iter().filter(|export| cache.volume(**export).figures().doubted);
        let doubted: Vec<ExportId> = doubted.copied().collect();
        self.world.doubted.retain(|export, _| doubted.contains(export));
        for export in doubted {
            assert!(
                machine(&self.world.machine).is_hurt(export),
                "{export} is in doubt, and lost nothing: {found:?}"
            );
            // An earlier try to open may have found the doubt.
            if found.doubted > 0 || tries > 1 || !self.world.doubted.contains_key(&export) {
                self.world.doubted.insert(export, now);
            }
        }
        let tally = &mut self.world.tally;
        tally.add(Event::ExportDoubted, found.doubted);
        tally.add(Event::TornTail, found.torn_tails);
        tally.add(Event::Footer, found.footers);
        tally.add(Event::Scan, found.scans);
        tally.add(Event::Covered, found.covered);
        tally.add(Event::PartlyCovered, u64::from(found.covered > 0 && found.covered < found.segments));
        tally.add(Event::CheckpointRefused, found.checkpoints_refused);
        tally.add(Event::SizeGrown, u64::from(self.segments > segments_before));
        tally.add(Event::SizeShrunk, u64::from(self.segments < segments_before));
    }

    /// Reads every sector of every volume and judges the content, without faults. Only other READs are under way.
    fn verify(&mut self, process: &mut Process, before: Before) {
        let would_block = [0, 100, 1000][self.world.rng.index(3)];
        machine(&self.world.machine).faults = Faults { would_block, ..Faults::default() };
        for export in self.exports.clone() {
            let (volume, sectors) = (process.cache.volume(export), self.world.oracle.sectors(export));
            let step = self.world.rng.within(1..257);
            for start in (0..sectors).step_by(usize::try_from(step).unwrap()) {
                let range = SectorRange::new(start, step.min(sectors - start)).unwrap();
                self.look(process, &volume, range, before);
            }
        }
    }

    /// Reads `range`, in ever smaller parts where the read fails.
    fn look(&mut self, process: &mut Process, volume: &Arc<Volume>, range: SectorRange, before: Before) {
        let request =
            Request { id: self.content(), volume: Arc::clone(volume), kind: Kind::Read, range, issued: 0 };
        let lane = self.world.rng.index(process.lanes());
        if process.observe(&mut self.world, lane, request, before) {
            return;
        }
        let half = range.count() / 2;
        if half == 0 {
            self.world.tally.hit(Event::SectorFailed);
            self.world.oracle.unseen(volume.id(), range, before);
            return;
        }
        for (start, count) in [(range.start(), half), (range.start() + half, range.count() - half)] {
            self.look(process, volume, SectorRange::new(start, count).unwrap(), before);
        }
    }

    fn content(&mut self) -> Content {
        self.next_content += 1;
        self.next_content
    }

    /// Works until the machine crashes, or until everything was stopped cleanly.
    fn live(&mut self, process: &mut Process, crash: Crash) {
        let rng = &mut self.world.rng;
        let long = rng.permille(40);
        let steps = if long { rng.within(3000..9000) } else { rng.within(20..900) };
        let mix = if long { Mix::overwriting(rng) } else { Mix::random(rng) };
        let clean = rng.permille(80);
        {
            let mut machine = machine(&self.world.machine);
            machine.faults = Faults::random(rng);
            if self.world.trace {
                eprintln!("== {:?}", machine.faults);
            }
            if !clean && rng.permille(850) {
                machine.arm(rng.within(0..steps / 2 + 4), crash);
            }
        }
        let depth = 1 + rng.index(24);
        let lazy_keeper = rng.permille(100);
        for _ in 0..steps {
            self.step(process, &mix, depth, lazy_keeper);
            if self.world.dead() {
                break;
            }
        }
        let written = process.written_bytes;
        self.world.tally.add(Event::Overwritten, u64::from(written > 3 * self.segments * SEGMENT));
        let mut at_rest = false;
        if !self.world.dead() && (clean || self.world.rng.permille(300)) {
            at_rest = self.settle(process);
            if at_rest {
                self.verify(process, Before::Rest);
            }
        }
        if clean && at_rest {
            process.stop();
            self.world.tally.hit(Event::CleanStop);
        } else {
            machine(&self.world.machine).crash_now(crash);
        }
    }

    /// Lets everything come to an end and returns whether the end came.
    fn settle(&mut self, process: &mut Process) -> bool {
        machine(&self.world.machine).calm();
        let rest = process.settle(&mut self.world);
        if rest == (Rest { withdrawn: 0, stuck: 0 }) {
            return true;
        }
        let live = self.world.oracle.live_frames();
        let quarantined = process.cache.stats().segments_quarantined;
        let room = (self.segments - 2 * self.shards_max - 4).saturating_sub(quarantined) * FRAMES_PER_SEGMENT;
        assert!(
            self.too_large || live > room / 2 || room == 0,
            "{rest:?}: writes wait for ever although all data takes {live} frames of {room}: {:?}",
            process.cache.stats()
        );
        rest.stuck == 0
    }

    /// Carries out one step of the life, drawn from `mix`.
    fn step(&mut self, process: &mut Process, mix: &Mix, depth: usize, lazy_keeper: bool) {
        let lane = self.world.rng.index(process.lanes());
        // The checkpoint is complete before anybody syncs the write.
        let is_reused = machine(&self.world.machine).has_write_in_reused();
        if is_reused && self.world.rng.permille(900) {
            return self.keep(process);
        }
        match self.world.rng.index(100) {
            0..40 => {
                self.request(process, lane, mix, depth);
            }
            40..50 => while process.admit(&mut self.world, lane) {},
            50..62 => {
                let cancel = self.world.rng.permille(30);
                let all = self.world.rng.coin();
                while process.fill_held(&mut self.world, lane, cancel) && all {}
            }
            62..74 => {
                process.turn(lane);
                process.look_again(lane);
            }
            74..84 => {
                process.advance(&mut self.world, lane, Rng::index);
            }
            84..90 => {
                process.collect(&mut self.world, lane);
            }
            90..96 => {
                if !lazy_keeper || self.world.rng.permille(50) {
                    self.keep(process);
                }
            }
            96..99 => {
                let time = [1, 100, 10_000, 1_000_000][self.world.rng.index(4)];
                process.sleep(Duration::from_micros(time));
            }
            _ => {
                if self.world.rng.permille(60) {
                    self.replace_volume(process);
                }
            }
        }
    }

    /// A request drawn from `mix` arrives at worker `lane`, unless the worker has `depth` requests.
    fn request(&mut self, process: &mut Process, lane: usize, mix: &Mix, depth: usize) {
        if process.load(lane) < depth {
            let export = self.exports[self.world.rng.index(self.exports.len())];
            let (volume, sectors) = (process.cache.volume(export), self.world.oracle.sectors(export));
            let id = self.content();
            let request = mix.request(&mut self.world.rng, id, &volume, sectors);
            process.arrive(&mut self.world, lane, request);
        }
        process.admit(&mut self.world, lane);
    }

    /// The keeper does one pass. Were a checkpoint complete and power lost at once, the next start must find everything.
    fn keep(&mut self, process: &mut Process) {
        let written = |episode: &Self| {
            let machine = machine(&episode.world.machine);
            machine.tally.get(Event::CheckpointWritten)
        };
        let before = written(self);
        process.keep(&mut self.world);
        if written(self) > before {
            let copy = machine(&self.world.machine).without_power();
            self.compare_starts(&copy);
        }
    }

    /// Removes a volume for ever and makes a new one of the same size.
    fn replace_volume(&mut self, process: &Process) {
        let index = self.world.rng.index(self.exports.len());
        let export = self.exports.swap_remove(index);
        let sectors = self.world.oracle.sectors(export);
        self.world.tally.hit(Event::VolumeRemoved);
        self.world.tally.add(Event::VolumeRemovedBusy, u64::from(process.is_busy(export)));
        process.cache.remove(export);
        self.world.oracle.remove(export);
        if self.world.trace {
            eprintln!("== export {export} is removed");
        }
        self.add_volume(sectors);
    }
}
