//! Every operation on volumes, in any order, against a model that only knows the content of sectors.
//!
//! The store loses answers, fails for a while, and stops for good in the middle of a change. Daemons restart and take volumes
//! from each other. Time passes and garbage is collected. A volume must read as the model says. Where a change stopped half-way,
//! both outcomes are legal until the next change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::compact::plan::{LEVEL_RUNS_MAX, MergeLimits};
use super::support::*;
use crate::store::backend::Backend;
use crate::store::block_cache::{BlockCache, BlockCacheOptions};
use crate::store::faulty::{Fault, Faults, FaultyStore, Seeded};
use crate::store::gc::{GcError, GcOptions, collect};
use crate::store::ids::{Entropy, StoreName, VolumeId};
use crate::store::volume::{Resume, StatePoint, VolumeError, VolumeWriter};
use crate::units::SectorRange;

const SECTORS_MAX: u64 = 700;
const VOLUMES_MAX: usize = 4;
const GRACE: Duration = Duration::from_hours(24);
/// Steps end early, young data is merged soon, packs of a few blocks stay as they are, and a merge has few entries of indexes in memory.
const LIMITS: MergeLimits = MergeLimits {
    step_bytes_max: 20_000,
    young_bytes_min: 30_000,
    move_bytes_min: 200,
    pack_bytes: Some(6000),
    windows_bytes_max: 20_000,
    loaded_bytes_max: 10_000,
};

type Content = Vec<Tag>;

/// A volume in the model.
struct Model {
    name: StoreName,
    daemon: Daemon,
    writer: u8,
    volume: VolumeWriter,
    /// State on the disk of the daemon.
    resume: Resume,
    /// States that the store may have: the last known one, and those tried since.
    states: Vec<Content>,
    /// Sectors written but not committed.
    dirty: BTreeMap<u64, Tag>,
    size: u64,
    seq: u64,
    snapshots: BTreeMap<StoreName, Content>,
}

struct Run {
    world: World,
    entropy: Seeded,
    faults: Arc<Faults>,
    /// One cache for all daemons: a block has the same content everywhere.
    block_cache: Option<BlockCache>,
    volumes: Vec<Model>,
    /// Volumes whose writer was fenced.
    fenced: Vec<(Daemon, VolumeWriter)>,
    names: u64,
    counts: BTreeMap<&'static str, u64>,
}

fn read_as(extent: &[u8]) -> Vec<[u8; 512]> {
    extent.as_chunks().0.to_vec()
}

impl Run {
    async fn new(seed: u64) -> Self {
        let faults = Faults::new(seed);
        faults.set_all(&Fault::PASSING, 4);
        let (world, entropy) = (World::seeded(seed), Seeded::new(!seed));
        let (volumes, fenced, counts) = (Vec::new(), Vec::new(), BTreeMap::new());
        let options = BlockCacheOptions { directory: None, memory_bytes_max: 1 << 20, disk_bytes_max: 0 };
        let block_cache = BlockCache::open(options).await.ok().filter(|_| seed.is_multiple_of(2));
        Self { world, entropy, faults, block_cache, volumes, fenced, names: 0, counts }
    }

    fn below(&self, bound: u64) -> u64 {
        self.entropy.next_u64() % bound
    }

    fn daemon(&self, writer: u8) -> Daemon {
        let faulty = FaultyStore::new(self.world.objects.clone(), self.faults.clone());
        self.world.daemon_with(
            writer,
            Backend::over(Arc::new(faulty), true),
            20_000,
            self.block_cache.clone(),
        )
    }

    fn new_name(&mut self) -> StoreName {
        self.names += 1;
        name(&format!("n{}", self.names))
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// In one case of four, has the store stop for good within some requests. Returns whether.
    fn maybe_stop(&self) -> bool {
        let stops = self.below(4) == 0;
        if stops {
            self.world.objects.end_after(self.below(8), self.below(2) == 0);
        }
        stops
    }

    fn add(&mut self, name: StoreName, writer: u8, daemon: Daemon, volume: VolumeWriter, state: Content) {
        let (resume, size) = (volume.state(), state.len() as u64);
        let (dirty, snapshots) = (BTreeMap::new(), BTreeMap::new());
        let states = vec![state];
        self.volumes.push(Model {
            name,
            daemon,
            writer,
            volume,
            resume,
            states,
            dirty,
            size,
            seq: 0,
            snapshots,
        });
    }

    async fn step(&mut self) {
        if self.volumes.is_empty() || (self.volumes.len() < VOLUMES_MAX && self.below(40) == 0) {
            return self.create_or_fork().await;
        }
        let at = self.below(self.volumes.len() as u64) as usize;
        match self.below(120) {
            0..20 => self.write(at),
            20..60 => {
                self.write(at);
                self.commit(at).await;
            }
            60..64 => self.snapshot(at).await,
            64..67 => self.delete_snapshot(at).await,
            67 => self.roll_back(at).await,
            68 => self.delete(at).await,
            69..85 => self.compact(at).await,
            85..91 => self.collect().await,
            91..99 => {
                let millis = self.below(10 * 3_600_000);
                self.world.clock.advance(Duration::from_millis(millis));
            }
            99..101 => self.take_over(at).await,
            101..104 => self.restart(at),
            104..106 => self.write_as_fenced().await,
            106..108 => self.look_from_elsewhere(at).await,
            _ => {
                let (start, count) = (self.below(SECTORS_MAX), self.below(100) + 1);
                self.check(at, start, count).await;
            }
        }
    }

    async fn create_or_fork(&mut self) {
        let name = self.new_name();
        let writer = self.below(3) as u8 + 1;
        let daemon = self.daemon(writer);
        if self.volumes.is_empty() || self.below(3) == 0 {
            self.count("create");
            let size = self.below(SECTORS_MAX) + 1;
            let volume = daemon.volumes.create(&name, size).await.unwrap();
            return self.add(name, writer, daemon, volume, vec![0; size as usize]);
        }
        self.count("fork");
        let from = &self.volumes[self.below(self.volumes.len() as u64) as usize];
        let kept = from.snapshots.iter().nth(self.below(3) as usize);
        let (snapshot, states) = match kept {
            Some((name, content)) => (Some(name.clone()), vec![content.clone()]),
            None => (None, from.states.clone()),
        };
        let point = StatePoint { volume: from.volume.id(), snapshot };
        let volume = daemon.volumes.fork(&point, &name).await.unwrap();
        let state = content(&volume, &states).await;
        self.add(name, writer, daemon, volume, state);
    }

    fn write(&mut self, at: usize) {
        let size = self.volumes[at].size;
        let (start, count) = (self.below(size), self.below(150) + 1);
        let lost = self.below(8) == 0;
        let tag = if lost { LOST } else { self.below(4) * (2 * self.below(1000) + 1) };
        let model = &mut self.volumes[at];
        model.seq += 1;
        model.dirty.extend((start..(start + count).min(size)).map(|at| (at, tag)));
    }

    async fn commit(&mut self, at: usize) {
        let resizes = self.below(6) == 0;
        let size = if resizes { self.below(SECTORS_MAX) + 1 } else { self.volumes[at].size };
        let stops = self.maybe_stop();
        let model = &mut self.volumes[at];
        model.size = size;
        model.dirty.retain(|sector, _| *sector < size);
        // Zeroes where the last state is longer, whichever of the states the store has.
        let mut next: Vec<Content> = model.states.clone();
        for state in &mut next {
            state.resize(size as usize, 0);
            model.dirty.iter().for_each(|(sector, tag)| state[*sector as usize] = *tag);
        }
        let result = model.volume.commit(MemoryCut::of(model.seq, &model.dirty), size).await;
        let stopped = self.world.objects.go_on();
        match result {
            Ok(committed) => {
                let damages = model.dirty.values().any(|tag| *tag == LOST);
                next.dedup();
                model.states = next;
                model.resume = committed.resume;
                model.dirty.clear();
                self.count("commit");
                if damages {
                    self.count("commit of damage");
                }
            }
            Err(error) => {
                assert!(stops && stopped, "{error}");
                model.states.extend(next);
                self.count("commit that stopped");
                if self.below(2) == 0 {
                    self.restart(at);
                }
            }
        }
        self.settle(at).await;
    }

    /// With several states possible, finds out which one the store has: the writer knows after asking.
    async fn settle(&mut self, at: usize) {
        if self.volumes[at].states.len() == 1 || self.below(3) == 0 {
            return;
        }
        let model = &mut self.volumes[at];
        let Ok(()) = model.volume.check_newest().await else { panic!("it is the writer") };
        let state = content(&model.volume, &model.states).await;
        model.states = vec![state];
        model.resume = model.volume.state();
    }

    async fn snapshot(&mut self, at: usize) {
        let snapshot = self.new_name();
        let model = &mut self.volumes[at];
        model.volume.snapshot(&snapshot).await.unwrap();
        let point = StatePoint { volume: model.volume.id(), snapshot: Some(snapshot.clone()) };
        let fork = model.daemon.volumes.view(&point).await.unwrap();
        let found = patched(range(0, SECTORS_MAX), |at| fork.read(at)).await;
        let state = content_of(&found, &model.states);
        model.snapshots.insert(snapshot, state);
        self.count("snapshot");
    }

    async fn delete_snapshot(&mut self, at: usize) {
        let model = &mut self.volumes[at];
        let Some((snapshot, _)) = model.snapshots.pop_first() else { return };
        model.volume.delete_snapshot(&snapshot).await.unwrap();
        self.count("delete a snapshot");
    }

    async fn roll_back(&mut self, at: usize) {
        let model = &mut self.volumes[at];
        let Some((snapshot, content)) = model.snapshots.first_key_value() else { return };
        let committed = model.volume.rollback(snapshot).await.unwrap();
        model.size = committed.resume.size_sectors;
        assert_eq!(model.size, content.len() as u64);
        model.states = vec![content.clone()];
        model.dirty.clear();
        model.resume = committed.resume;
        self.count("rollback");
    }

    async fn delete(&mut self, at: usize) {
        let model = self.volumes.swap_remove(at);
        model.volume.delete().await.unwrap();
        self.count("delete");
    }

    async fn compact(&mut self, at: usize) {
        let (stops, all) = (self.maybe_stop(), self.below(2) == 0);
        loop {
            match self.volumes[at].volume.compact_within(&LIMITS).await {
                Ok(Some(compacted)) => {
                    self.volumes[at].resume = compacted.resume;
                    self.count("compaction");
                }
                Ok(None) => {
                    let fan_out = self.volumes[at].volume.crowd().map(|crowd| crowd.fan_out);
                    let most = 3 * (LEVEL_RUNS_MAX - 1);
                    assert!(fan_out.is_none_or(|packs| packs <= most), "{fan_out:?} packs to look in");
                    break;
                }
                Err(error) => {
                    assert!(stops && self.world.objects.go_on(), "{error}");
                    self.count("compaction that stopped");
                    break;
                }
            }
            if !all {
                break;
            }
        }
        self.world.objects.go_on();
        let model = &mut self.volumes[at];
        // The writer may have found a commit whose answer was lost.
        if model.states.len() > 1 {
            model.volume.check_newest().await.unwrap();
            model.states = vec![content(&model.volume, &model.states).await];
            model.resume = model.volume.state();
        }
    }

    async fn collect(&mut self) {
        let daemon = self.daemon(9);
        let stops = self.maybe_stop();
        let options = GcOptions { grace: GRACE, ..GcOptions::default() };
        let result = collect(daemon.volumes.store(), &*self.world.clock, &options).await;
        let stopped = self.world.objects.go_on();
        match result {
            Ok(report) => {
                self.count("collection");
                *self.counts.entry("packs removed").or_default() += report.packs_removed;
            }
            // A long listing meets many faults.
            Err(GcError::Store(error)) if error.is_transient() => {}
            Err(error) => assert!(stops && stopped, "{error}"),
        }
    }

    /// Another host opens the volume; writes that were not committed are lost.
    async fn take_over(&mut self, at: usize) {
        let writer = self.volumes[at].writer % 3 + 1;
        let daemon = self.daemon(writer);
        let model = &mut self.volumes[at];
        let volume = daemon.volumes.take_over(&model.name).await.unwrap();
        model.states = vec![content(&volume, &model.states).await];
        model.size = volume.size_sectors();
        model.resume = volume.state();
        model.writer = writer;
        model.dirty.clear();
        let old = std::mem::replace(&mut model.volume, volume);
        let old_daemon = std::mem::replace(&mut model.daemon, daemon);
        self.fenced.push((old_daemon, old));
        self.count("take-over");
    }

    /// The daemon of a volume ends and begins again with the state on its disk.
    fn restart(&mut self, at: usize) {
        let daemon = self.daemon(self.volumes[at].writer);
        let without = self.below(2) == 0;
        let model = &mut self.volumes[at];
        let manifest = model.resume.manifest.clone().filter(|_| !without);
        model.volume = daemon.volumes.resume(&Resume { manifest, ..model.resume.clone() });
        model.daemon = daemon;
        self.count("restart");
    }

    async fn write_as_fenced(&mut self) {
        let Some((_daemon, volume)) = self.fenced.pop() else { return };
        let error = volume.commit(MemoryCut::new(1_000_000, &[(0, 1, 99)]), SECTORS_MAX).await.unwrap_err();
        assert!(error.is_fatal(), "{error}");
        self.count("fenced");
    }

    async fn look_from_elsewhere(&mut self, at: usize) {
        let daemon = self.daemon(8);
        let model = &self.volumes[at];
        let point = StatePoint { volume: model.volume.id(), snapshot: None };
        let view = daemon.volumes.view(&point).await.unwrap();
        let found = patched(range(0, SECTORS_MAX), |at| view.read(at)).await;
        content_of(&found, &model.states);
    }

    async fn check(&self, at: usize, start: u64, count: u64) {
        let model = &self.volumes[at];
        let at = range(start, count);
        let expected: Vec<Vec<Tag>> = model
            .states
            .iter()
            .map(|state| {
                (start..start + count).map(|at| state.get(at as usize).copied().unwrap_or(0)).collect()
            })
            .collect();
        let found = read(&model.volume, at).await;
        content_of(&found, &expected);
        if !model.volume.covers(at) {
            assert!(found.iter().all(|byte| *byte == 0));
        }
    }

    /// Deletes everything, and has garbage collection remove everything.
    async fn end(&mut self) {
        for at in 0..self.volumes.len() {
            self.check(at, 0, SECTORS_MAX).await;
            for (snapshot, kept) in &self.volumes[at].snapshots {
                let point =
                    StatePoint { volume: self.volumes[at].volume.id(), snapshot: Some(snapshot.clone()) };
                let view = self.volumes[at].daemon.volumes.view(&point).await.unwrap();
                let found = patched(range(0, SECTORS_MAX), |at| view.read(at)).await;
                content_of(&found, std::slice::from_ref(kept));
            }
        }
        while !self.volumes.is_empty() {
            self.delete(0).await;
        }
        let daemon = self.world.daemon(9);
        for _ in 0..5 {
            let options = GcOptions { grace: GRACE, ..GcOptions::default() };
            collect(daemon.volumes.store(), &*self.world.clock, &options).await.unwrap();
            self.world.clock.advance(GRACE);
        }
        let left = keys_in(daemon.volumes.store()).await;
        assert!(left.is_empty(), "{left:?}");
        for (_, volume) in self.fenced.drain(..) {
            let error = volume.read_waiting(range(0, 1), &[range(0, 1)]).await;
            let legal = match &error {
                Ok(_) | Err(VolumeError::Deleted { .. } | VolumeError::Damaged { .. }) => true,
                Err(error) => error.is_missing(),
            };
            assert!(legal, "{error:?}");
        }
    }
}

/// The bytes of `at` in a volume, once the store can be reached.
async fn read(volume: &VolumeWriter, at: SectorRange) -> Vec<u8> {
    patched(at, |at| async move { volume.read_waiting(at, &[at]).await }).await
}

/// Which of `states` a volume has.
async fn content(volume: &VolumeWriter, states: &[Content]) -> Content {
    let found = read(volume, range(0, SECTORS_MAX)).await;
    let state = content_of(&found, states);
    assert!(volume.size_sectors() <= SECTORS_MAX);
    let mut state = state;
    state.resize(volume.size_sectors() as usize, 0);
    state
}

/// Which of `states` the bytes are.
fn content_of(found: &[u8], states: &[Content]) -> Content {
    let sectors = read_as(found);
    let is = |state: &&Content| {
        let tags = state.iter().copied().chain(std::iter::repeat(0));
        sectors.iter().zip(tags).all(|(found, tag)| *found == sector(tag))
    };
    let state = states.iter().find(is);
    state.unwrap_or_else(|| panic!("none of {} states", states.len())).clone()
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_volumes_are_what_the_model_says() {
    let seeds: Vec<u64> = match std::env::var("GLIDEFS_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..16).collect(),
    };
    let steps = 600;
    let all = seeds.len() > 1;
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut silent = Fault::PASSING.to_vec();
    for seed in seeds {
        println!("GLIDEFS_SEED={seed}");
        let mut run = Run::new(seed).await;
        for _ in 0..steps {
            run.step().await;
        }
        run.end().await;
        let hits = run.block_cache.as_ref().map_or(0, |block_cache| block_cache.counters().memory_hits.get());
        *counts.entry("block cache hit").or_default() += hits;
        run.counts.iter().for_each(|(what, count)| *counts.entry(what).or_default() += count);
        silent.retain(|fault| run.faults.fired(*fault) == 0);
    }
    println!("{counts:?}");
    if all {
        assert_eq!(silent, [], "these faults never fired");
        for what in [
            "commit",
            "commit that stopped",
            "commit of damage",
            "snapshot",
            "delete a snapshot",
            "rollback",
            "fork",
            "delete",
            "compaction",
            "compaction that stopped",
            "collection",
            "packs removed",
            "take-over",
            "restart",
            "fenced",
            "block cache hit",
        ] {
            assert!(counts.get(what).is_some_and(|count| *count >= 10), "{what}: {counts:?}");
        }
    }
}

/// The same seed makes the same identities.
#[test]
fn volumes_of_a_seed_are_the_same_again() {
    let ids = || VolumeId::random(&Seeded::new(5));
    assert_eq!(ids(), ids());
}
