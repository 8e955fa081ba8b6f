//! What hosts read, against a model of what they wrote, through every way a state can go: the log, the store, snapshots,
//! forks, rollbacks, other hosts, kills and garbage collection, with a store that fails.
//!
//! The oracle: a host reads what it acknowledged, whatever happened to its daemon, and what it acknowledged before the last
//! FLUSH when it has lost power; a host that takes an export over reads a state the export had, not older than the last
//! completed flush; snapshots and forks read what they were made of.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::host::{Host, World};
use super::sim::faults::Crash;
use crate::cache::driver::{PATIENCE, bytes_of, number_of};
use crate::cache::{Durability, IoError};
use crate::router::{CreateExport, ExportName, ExportSize, RouterError, Source};
use crate::store::faulty::Fault;
use crate::store::gc::GcOptions;
use crate::store::volume::VolumeError;
use crate::units::{SECTOR_BYTES, SectorRange};

const HOSTS: usize = 2;
const EXPORTS_MAX: usize = 5;
const SECTORS: u64 = 4096;
const READ_SECTORS: u64 = 256;
/// How often something is asked for of a store that fails.
const ASKS_MAX: usize = 20;

/// The number of the write that each sector holds; 0 is zeroes.
type Content = Vec<u64>;

/// What becomes of an export on its host.
enum Change {
    /// A write was acknowledged.
    Write(SectorRange, u64),
    /// Power was lost, and this was left.
    PowerCut(Content),
}

/// An export as the model has it.
struct Twin {
    host: usize,
    /// What the store had when the last flush completed.
    flushed: Content,
    /// What became of it since then, on its host.
    since: Vec<Change>,
    /// How much of that survives a loss of power.
    durable: usize,
    snapshots: BTreeMap<String, Content>,
    /// Hosts that have lost the export and still list it.
    lost: Vec<usize>,
}

impl Twin {
    fn new(host: usize, content: Content) -> Self {
        Self {
            host,
            flushed: content,
            since: Vec::new(),
            durable: 0,
            snapshots: BTreeMap::new(),
            lost: Vec::new(),
        }
    }

    fn content(&self) -> Content {
        self.states().last().unwrap()
    }

    /// Every state the store may have.
    fn states(&self) -> impl Iterator<Item = Content> {
        let mut content = self.flushed.clone();
        let later = self.since.iter().map(move |change| {
            match change {
                Change::Write(range, number) => fill(&mut content, *range, *number),
                Change::PowerCut(left) => content.clone_from(left),
            }
            content.clone()
        });
        std::iter::once(self.flushed.clone()).chain(later)
    }

    fn all_is_flushed(&mut self) {
        self.is_in_store(self.content());
    }

    fn is_in_store(&mut self, content: Content) {
        self.flushed = content;
        self.since.clear();
        self.durable = 0;
    }

    /// Takes note of what a loss of power has left, which may be missing writes since the last FLUSH. How many sectors are.
    fn lose_power(&mut self, left: Content, name: &str) -> u64 {
        let flushed = self.states().nth(self.durable).unwrap();
        let mut may_hold: Vec<Vec<u64>> = flushed.into_iter().map(|number| vec![number]).collect();
        for change in &self.since[self.durable..] {
            let Change::Write(range, number) = change else { unreachable!("what was left was durable") };
            for sector in range.start()..range.end() {
                may_hold[sector as usize].push(*number);
            }
        }
        let mut lost = 0;
        for (sector, (number, may_hold)) in left.iter().zip(&may_hold).enumerate() {
            assert!(
                may_hold.contains(number),
                "{name}: sector {sector} holds {number}, not one of {may_hold:?}"
            );
            lost += u64::from(Some(number) != may_hold.last());
        }
        self.since.push(Change::PowerCut(left));
        self.durable = self.since.len();
        lost
    }
}

fn fill(content: &mut Content, range: SectorRange, number: u64) {
    content[range.start() as usize..range.end() as usize].fill(number);
}

struct Run {
    world: World,
    hosts: Vec<Host>,
    twins: BTreeMap<String, Twin>,
    random: SmallRng,
    numbers: u64,
    names: u64,
    counts: BTreeMap<&'static str, u64>,
}

fn export_name(name: &str) -> ExportName {
    ExportName::new(name).unwrap()
}

impl Run {
    fn new(seed: u64) -> Self {
        let world = World::new(seed, 4);
        let hosts = (0..HOSTS).map(|_| Host::new(&world)).collect();
        let random = SmallRng::seed_from_u64(seed);
        Self { world, hosts, twins: BTreeMap::new(), random, numbers: 0, names: 0, counts: BTreeMap::new() }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Asks until it is done. What failed before may have been done all the same.
    fn insist<T, F: Future<Output = Result<T, RouterError>>>(
        &self,
        mut ask: impl FnMut() -> F,
    ) -> Result<T, RouterError> {
        let mut failed = None;
        for _ in 0..ASKS_MAX {
            let asked = async { tokio::time::timeout(PATIENCE, ask()).await.expect("an answer") };
            match self.world.runtime.block_on(asked) {
                Ok(done) => return Ok(done),
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => failed = Some(error),
            }
        }
        panic!("it never came to be: {failed:?}");
    }

    fn pick(&mut self) -> Option<String> {
        let at = self.random.random_range(0..self.twins.len().max(1));
        self.twins.keys().nth(at).cloned()
    }

    fn create(&mut self, source: Source, name: &str, host: usize) {
        let router = self.hosts[host].router();
        let request = CreateExport {
            name: export_name(name),
            source: source.clone(),
            durability: Durability::Local,
            queues: None,
            queue_depth: None,
        };
        let created = self.insist(|| router.create(request.clone()));
        match created {
            Ok(_) => {}
            // It was made by an ask that failed, of a state that has changed meanwhile.
            Err(RouterError::Store { source: VolumeError::NameTaken { .. }, .. })
                if source != Source::Store =>
            {
                let request = CreateExport { source: Source::Store, ..request };
                self.insist(|| router.create(request.clone())).unwrap();
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn read(&mut self, name: &str, host: usize) -> Content {
        let volume = self.hosts[host].volume(name);
        let mut content = Content::new();
        for start in (0..SECTORS).step_by(READ_SECTORS as usize) {
            let range = SectorRange::new(start, READ_SECTORS).unwrap();
            let mut asks = 0;
            let bytes = loop {
                match self.hosts[host].driver().read(&volume, range) {
                    Ok(bytes) => break bytes,
                    // A read fails when the store does; it never lies.
                    Err(IoError::Store) if asks < ASKS_MAX => asks += 1,
                    Err(error) => panic!("reading {range:?} of {name} on host {host}: {error}"),
                }
            };
            for (sector, bytes) in (start..).zip(bytes.chunks_exact(SECTOR_BYTES as usize)) {
                let number = number_of(bytes, sector);
                content.push(number.unwrap_or_else(|| panic!("sector {sector} of {name} holds no write")));
            }
        }
        content
    }

    fn check(&mut self, name: &str) {
        let host = self.twins[name].host;
        let found = self.read(name, host);
        same(&found, &self.twins[name].content(), name);
    }

    /// Takes note of what the store has of an export, as a host sees it that has nothing else.
    fn seen(&mut self, from: &str, name: &str, host: usize) -> Content {
        let found = self.read(name, host);
        let states = self.twins[from].states();
        let flushed = self.twins[from].flushed.clone();
        if !states.into_iter().any(|state| state == found) {
            same(&found, &flushed, name);
        }
        found
    }

    fn step(&mut self) {
        let Some(name) = self.pick().filter(|_| !self.random.random_bool(0.02)) else {
            return self.create_blank();
        };
        let host = self.twins[&name].host;
        match self.random.random_range(0..1000) {
            0..680 => self.write(&name),
            680..750 => {
                let volume = self.hosts[host].volume(&name);
                self.hosts[host].driver().flush(&volume).unwrap();
                let twin = self.twins.get_mut(&name).unwrap();
                twin.durable = twin.since.len();
            }
            750..800 => self.flush_to_store(&name),
            800..830 => self.snapshot(&name),
            830..860 => self.fork(&name),
            860..885 => self.rollback(&name),
            885..910 => self.open_elsewhere(&name),
            910..930 => self.delete(&name),
            930..945 => self.use_lost(&name),
            945..958 => {
                self.hosts[host].restart(&self.world);
                self.count("restarts");
            }
            958..971 => self.lose_power(host),
            971..984 => self.collect(),
            _ => self.check(&name),
        }
    }

    fn create_blank(&mut self) {
        if self.twins.len() >= EXPORTS_MAX {
            return;
        }
        let (name, host) = (self.new_name(), self.random.random_range(0..HOSTS));
        self.create(Source::Blank(ExportSize::new(SECTORS * SECTOR_BYTES).unwrap()), &name, host);
        self.twins.insert(name, Twin::new(host, vec![0; SECTORS as usize]));
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("e{}", self.names)
    }

    fn range(&mut self) -> SectorRange {
        let longest = if self.random.random_bool(0.4) { 256 } else { 16 };
        let count = self.random.random_range(1..=longest);
        SectorRange::new(self.random.random_range(0..=SECTORS - count), count).unwrap()
    }

    fn write(&mut self, name: &str) {
        let host = self.twins[name].host;
        for _ in 0..self.random.random_range(1..8) {
            let range = self.range();
            self.numbers += 1;
            let number = if self.random.random_bool(0.1) { 0 } else { self.numbers };
            self.write_at(name, host, range, number).unwrap();
            self.twins.get_mut(name).unwrap().since.push(Change::Write(range, number));
        }
    }

    fn write_at(&mut self, name: &str, host: usize, range: SectorRange, number: u64) -> Result<(), IoError> {
        let volume = self.hosts[host].volume(name);
        let data: Vec<u8> =
            (range.start()..range.end()).flat_map(|sector| bytes_of(number, sector)).collect();
        self.hosts[host].driver().write(&volume, range, (number != 0).then_some(&data[..]))
    }

    fn flush_to_store(&mut self, name: &str) {
        let router = self.hosts[self.twins[name].host].router();
        self.insist(|| router.flush(name)).unwrap();
        self.twins.get_mut(name).unwrap().all_is_flushed();
        self.count("flushes");
    }

    fn snapshot(&mut self, name: &str) {
        let (router, snapshot) = (self.hosts[self.twins[name].host].router(), self.new_name());
        let mut asks = 0;
        let taken = self.insist(|| {
            asks += 1;
            let (router, snapshot) = (router.clone(), export_name(&snapshot));
            async move { router.snapshot(name, &snapshot).await }
        });
        match taken {
            Ok(_) => {}
            Err(RouterError::Store { source: VolumeError::SnapshotExists { .. }, .. }) if asks > 1 => {}
            Err(error) => panic!("{error:?}"),
        }
        let twin = self.twins.get_mut(name).unwrap();
        twin.all_is_flushed();
        twin.snapshots.insert(snapshot, twin.flushed.clone());
        self.count("snapshots");
    }

    fn any_snapshot(&mut self, name: &str) -> Option<(String, Content)> {
        let snapshots = &self.twins[name].snapshots;
        let at = self.random.random_range(0..snapshots.len().max(1));
        snapshots.iter().nth(at).map(|(snapshot, content)| (snapshot.clone(), content.clone()))
    }

    fn fork(&mut self, of: &str) {
        if self.twins.len() >= EXPORTS_MAX {
            return;
        }
        let snapshot = self.any_snapshot(of).filter(|_| self.random.random_bool(0.5));
        let (name, host) = (self.new_name(), self.random.random_range(0..HOSTS));
        // A host that has lost the export does not know what it would flush.
        if self.twins[of].lost.contains(&host) {
            return;
        }
        let from = snapshot.as_ref().map(|(snapshot, _)| export_name(snapshot));
        self.create(Source::Fork { of: export_name(of), snapshot: from }, &name, host);
        let content = match snapshot {
            Some((_, content)) => content,
            None => self.seen(of, &name, host),
        };
        let found = self.read(&name, host);
        same(&found, &content, &name);
        self.twins.insert(name, Twin::new(host, content));
        self.count("forks");
    }

    fn rollback(&mut self, name: &str) {
        let Some((snapshot, content)) = self.any_snapshot(name) else { return };
        let router = self.hosts[self.twins[name].host].router();
        let refused = self.world.runtime.block_on(router.rollback(name, export_name(&snapshot)));
        assert!(matches!(refused, Err(RouterError::NotDetached { .. })), "{refused:?}");
        self.insist(|| router.detach(name)).unwrap();
        if self.random.random_bool(0.5) {
            self.insist(|| router.rollback(name, export_name(&snapshot))).unwrap();
        } else {
            // The first ask may fail; then attaching finishes what it began, or there was nothing begun.
            let asked = self.world.runtime.block_on(router.rollback(name, export_name(&snapshot)));
            let host = self.twins[name].host;
            drop(router);
            self.hosts[host].restart(&self.world);
            if asked.is_err() {
                let router = self.hosts[host].router();
                self.insist(|| router.rollback(name, export_name(&snapshot))).unwrap();
            }
        }
        let router = self.hosts[self.twins[name].host].router();
        self.insist(|| router.attach(name)).unwrap();
        self.twins.get_mut(name).unwrap().is_in_store(content);
        self.check(name);
        self.count("rollbacks");
    }

    fn open_elsewhere(&mut self, name: &str) {
        let (before, host) = (self.twins[name].host, (self.twins[name].host + 1) % HOSTS);
        if self.twins[name].lost.contains(&host) {
            self.forget_lost(name, host);
        }
        self.create(Source::Store, name, host);
        let content = self.seen(name, name, host);
        let twin = self.twins.get_mut(name).unwrap();
        twin.is_in_store(content);
        twin.host = host;
        twin.lost.push(before);
        self.count("take-overs");
    }

    /// A host that has lost an export finds out when it flushes, and has what it did not flush until it deletes it.
    fn use_lost(&mut self, name: &str) {
        let Some(host) = self.twins[name].lost.first().copied() else { return };
        let range = self.range();
        self.numbers += 1;
        if self.write_at(name, host, range, self.numbers).is_ok() {
            let router = self.hosts[host].router();
            let flushed = self.insist(|| router.flush(name));
            assert!(
                matches!(flushed, Err(RouterError::Flush { source: IoError::Fenced, .. })),
                "{flushed:?}"
            );
            let volume = self.hosts[host].volume(name);
            assert!(volume.figures().dirty_bytes >= range.count() * SECTOR_BYTES, "it is kept");
        }
        assert_eq!(self.write_at(name, host, range, self.numbers), Err(IoError::Fenced));
        self.forget_lost(name, host);
        self.check(name);
        self.count("fenced");
    }

    fn forget_lost(&mut self, name: &str, host: usize) {
        let router = self.hosts[host].router();
        self.insist(|| router.delete(name)).unwrap();
        self.twins.get_mut(name).unwrap().lost.retain(|lost| *lost != host);
    }

    fn delete(&mut self, name: &str) {
        if self.twins.len() < 3 {
            return;
        }
        for host in self.twins[name].lost.clone() {
            self.forget_lost(name, host);
        }
        let router = self.hosts[self.twins[name].host].router();
        self.insist(|| router.delete(name)).unwrap();
        self.twins.remove(name);
        self.count("deletions");
    }

    fn lose_power(&mut self, host: usize) {
        self.hosts[host].crash(&self.world, Crash::PowerCut);
        let names: Vec<String> =
            self.twins.iter().filter(|(_, twin)| twin.host == host).map(|(name, _)| name.clone()).collect();
        for name in names {
            let left = self.read(&name, host);
            let lost = self.twins.get_mut(&name).unwrap().lose_power(left, &name);
            *self.counts.entry("sectors lost with power").or_default() += lost;
        }
        self.count("power cuts");
    }

    fn collect(&mut self) {
        let hours = self.random.random_range(1..30);
        self.world.clock.advance(Duration::from_hours(hours));
        let host = self.random.random_range(0..HOSTS);
        let router = self.hosts[host].router();
        let options = GcOptions { grace: Duration::from_hours(7), ..GcOptions::default() };
        // A long listing meets many faults: it is made again another time.
        if let Ok(report) = self.world.runtime.block_on(router.collect(options)) {
            *self.counts.entry("packs removed").or_default() += report.packs_removed;
        }
    }
}

/// Whether asking again is in vain.
fn is_final(error: &RouterError) -> bool {
    match error {
        RouterError::Flush { .. } => true,
        RouterError::Store { source, .. } => {
            matches!(source, VolumeError::NameTaken { .. } | VolumeError::SnapshotExists { .. })
        }
        _ => false,
    }
}

fn same<T: PartialEq + Debug>(found: &[T], expected: &[T], name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let wrong: Vec<_> = (0..found.len()).filter(|at| found[*at] != expected[*at]).collect();
    if let Some(first) = wrong.first() {
        let (found, expected) = (&found[*first], &expected[*first]);
        panic!("{name}: {} sectors, sector {first} holds {found:?} and not {expected:?}", wrong.len());
    }
}

#[test]
fn every_host_reads_what_it_may_whatever_becomes_of_hosts_and_store() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut silent = Fault::PASSING.to_vec();
    silent.extend([Fault::Truncated, Fault::FlippedBit]);
    // How many requests there are to fail is not for the seed alone to say, and a rare fault may need some more.
    for seed in 0..16 {
        if seed >= 4 && silent.is_empty() {
            break;
        }
        println!("seed {seed}");
        let mut run = Run::new(seed);
        for _ in 0..300 {
            run.step();
        }
        run.world.faults.set_all(&Fault::ALL, 0);
        for name in run.twins.keys().cloned().collect::<Vec<_>>() {
            run.check(&name);
            run.flush_to_store(&name);
            run.open_elsewhere(&name);
        }
        for host in &mut run.hosts {
            *counts.entry("evicted bytes").or_default() += host.driver().cache.stats().evicted_bytes;
        }
        run.counts.iter().for_each(|(what, count)| *counts.entry(what).or_default() += count);
        silent.retain(|fault| run.world.faults.fired(*fault) == 0);
    }
    println!("{counts:?}");
    assert_eq!(silent, [], "these faults never fired");
    assert!(
        counts.len() >= 10 && counts.values().all(|count| *count > 0),
        "not everything happened: {counts:?}"
    );
}
