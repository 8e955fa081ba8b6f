//! What hosts read and what the store holds, against a model of what was written, through every way a state can go: the log,
//! the store, snapshots, forks, rollbacks, other hosts, kills, power cuts and garbage collection, on disks and with a store that
//! fail.
//!
//! A history is a few hundred random steps with two hosts and one store. `twin` is the oracle for both images; `faults` has the
//! steps in which hosts, disks and the store fail, `directories` those in which cache directories are put back or copied.
//!
//! `GLIDEFS_HISTORIES` sets how many histories there are. `GLIDEFS_HISTORY_SEED` runs the one with that seed; its steps are the
//! same again, but not which requests of the store's come first.

mod directories;
mod faults;
mod histories;

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::host::{Host, World, name as export_name, request};
use super::sim::faults::Crash;
use super::twin::{Content, Twin};
use crate::cache::driver::{PATIENCE, bytes_of, number_of};
use crate::cache::{Durability, IoError};
use crate::router::{CreateExport, ExportSize, RouterError, Source};
use crate::store::gc::GcOptions;
use crate::store::volume::VolumeError;
use crate::units::{SECTOR_BYTES, SectorRange};

const HOSTS: usize = 2;
const EXPORTS_MAX: usize = 5;
const SECTORS: u64 = 4096;
const READ_SECTORS: u64 = 256;
/// How often something is asked for of a store that fails.
const ASKS_MAX: usize = 20;
/// How many of a thousand creations arrive late.
const LATE_PER_MILLE: u64 = 10;

/// How often each thing happened.
pub type Tally = BTreeMap<&'static str, u64>;

struct Run {
    world: World,
    hosts: Vec<Host>,
    twins: BTreeMap<String, Twin>,
    random: SmallRng,
    numbers: u64,
    names: u64,
    tally: Tally,
    /// The host whose disk fails, or that is about to crash.
    failing: Option<usize>,
    /// A backup of each host.
    backups: Vec<Option<directories::Backup>>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let world = World::new(seed, 4);
        let hosts: Vec<Host> = (0..HOSTS).map(|_| Host::apart(&world)).collect();
        for host in &hosts {
            host.objects().delay_some(LATE_PER_MILLE);
        }
        let random = SmallRng::seed_from_u64(seed);
        Self {
            world,
            hosts,
            twins: BTreeMap::new(),
            random,
            numbers: 0,
            names: 0,
            tally: Tally::default(),
            failing: None,
            backups: (0..HOSTS).map(|_| None).collect(),
        }
    }

    fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    fn add(&mut self, what: &'static str, times: u64) {
        *self.tally.entry(what).or_default() += times;
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

    fn names_on(&self, host: usize) -> Vec<String> {
        self.twins.iter().filter(|(_, twin)| twin.host == host).map(|(name, _)| name.clone()).collect()
    }

    /// Opens or makes an export; one of three waits for the store with each FLUSH. Whether this one does.
    fn create(&mut self, source: Source, name: &str, host: usize) -> bool {
        let router = self.hosts[host].router();
        let waits_for_store = self.random.random_bool(0.3);
        let durability = if waits_for_store { Durability::Store } else { Durability::Local };
        let request = CreateExport { durability, ..request(name, source.clone()) };
        let created = self.insist(|| router.create(request.clone()));
        match created {
            Ok(_) => {}
            // It was made by an ask that failed, of a state that has changed meanwhile.
            Err(RouterError::Store { source: VolumeError::NameTaken { .. }, .. })
                if source != Source::TakeOver =>
            {
                let request = CreateExport { source: Source::TakeOver, ..request };
                self.insist(|| router.create(request.clone())).unwrap();
            }
            Err(error) => panic!("{error:?}"),
        }
        waits_for_store
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
            content.extend(numbers(&bytes, start, name));
        }
        content
    }

    fn check(&mut self, name: &str) {
        let host = self.twins[name].host;
        let found = self.read(name, host);
        self.twins[name].judge_host(&found);
    }

    fn twin(&mut self, name: &str) -> &mut Twin {
        self.twins.get_mut(name).unwrap()
    }

    /// Takes note of what the store has of an export, as a host sees it that has nothing else.
    fn seen(&mut self, from: &str, name: &str, host: usize) -> Content {
        let found = self.read(name, host);
        self.twin(from).judge_store(&found);
        found
    }

    /// What the store holds, as an onlooker sees it.
    fn image(&self, name: &str, snapshot: Option<&str>) -> Content {
        let bytes = self.world.image(name, snapshot);
        numbers(&bytes.unwrap_or_else(|| panic!("the store does not know {name}")), 0, name)
    }

    fn look_at_store(&mut self, name: &str) {
        let found = self.image(name, None);
        self.twin(name).judge_store(&found);
        self.count("looks at the store");
    }

    fn step(&mut self) {
        let Some(name) = self.pick().filter(|_| !self.random.random_bool(0.02)) else {
            return self.create_blank();
        };
        let host = self.twins[&name].host;
        match self.random.random_range(0..1000) {
            0..620 => self.write(&name),
            620..690 => self.flush(&name),
            690..740 => self.flush_to_store(&name),
            740..765 => self.snapshot(&name),
            765..790 => self.fork(&name),
            790..810 => self.rollback(&name),
            810..835 => self.open_elsewhere(&name),
            835..850 => self.delete(&name),
            850..865 => self.use_lost(&name),
            865..875 => self.detach(&name),
            875..890 => self.look_at_store(&name),
            890..900 => self.collect(),
            900..910 => self.let_late_ones_arrive(),
            910..925 => self.crash(host, Crash::Kill),
            925..935 => self.crash(host, Crash::PowerCut),
            935..960 => self.crash_amid(host),
            960..970 => self.fail_disk(host),
            970..975 => self.fail_manifests(host),
            975..981 => self.outage(),
            981..986 => self.back_up(host),
            986..994 => self.restore(host),
            994..996 => self.clone_host(host),
            996..998 => self.lose_host(host),
            _ => self.check(&name),
        }
    }

    fn create_blank(&mut self) {
        if self.twins.len() >= EXPORTS_MAX {
            return;
        }
        let (name, host) = (self.new_name(), self.random.random_range(0..HOSTS));
        let blank = Source::Blank(ExportSize::new(SECTORS * SECTOR_BYTES).unwrap());
        let waits_for_store = self.create(blank, &name, host);
        self.adopt(&name, host, vec![0; SECTORS as usize], waits_for_store);
    }

    fn adopt(&mut self, name: &str, host: usize, content: Content, waits_for_store: bool) {
        let mut twin = Twin::new(name, host, content);
        twin.waits_for_store = waits_for_store;
        self.twins.insert(name.to_owned(), twin);
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
            // FUA that waits for the store is tried by FLUSH.
            let through = !self.twins[name].waits_for_store && self.random.random_bool(0.05);
            let written = self.write_at(name, host, range, number, through);
            let explained =
                self.failing == Some(host) && matches!(written, Err(IoError::Write | IoError::Sync));
            assert!(written.is_ok() || explained, "writing {range:?} of {name} on host {host}: {written:?}");
            self.twin(name).wrote(range, number, written.is_ok(), through);
            self.count(if written.is_ok() { "writes" } else { "writes that failed" });
            if self.hosts[host].volume(name).figures().cuts > 1 {
                self.count("writes behind several cuts");
            }
        }
    }

    fn write_at(
        &mut self,
        name: &str,
        host: usize,
        range: SectorRange,
        number: u64,
        through: bool,
    ) -> Result<(), IoError> {
        let volume = self.hosts[host].volume(name);
        let data: Vec<u8> =
            (range.start()..range.end()).flat_map(|sector| bytes_of(number, sector)).collect();
        self.hosts[host].driver().write_as(&volume, range, (number != 0).then_some(&data[..]), through)
    }

    /// A FLUSH, which waits for the store where the export wants that.
    fn flush(&mut self, name: &str) {
        let host = self.twins[name].host;
        let (volume, position) = (self.hosts[host].volume(name), self.twins[name].position());
        let flushed = self.hosts[host].driver().flush(&volume);
        let explained = self.failing == Some(host) && matches!(flushed, Err(IoError::Write | IoError::Sync));
        assert!(flushed.is_ok() || explained, "FLUSH of {name} on host {host}: {flushed:?}");
        let twin = self.twin(name);
        match (flushed, twin.waits_for_store) {
            (Err(_), _) => self.count("FLUSHes that failed"),
            (Ok(()), false) => {
                twin.synced(position);
                self.count("FLUSHes");
            }
            (Ok(()), true) => {
                twin.stored(position);
                self.look_at_store(name);
                self.count("FLUSHes that waited for the store");
            }
        }
    }

    fn flush_to_store(&mut self, name: &str) {
        let router = self.hosts[self.twins[name].host].router();
        let position = self.twins[name].position();
        self.insist(|| router.flush(name)).unwrap();
        self.twin(name).stored(position);
        self.count("flushes to the store");
    }

    fn detach(&mut self, name: &str) {
        let router = self.hosts[self.twins[name].host].router();
        self.insist(|| router.detach(name)).unwrap();
        self.insist(|| router.attach(name)).unwrap();
        self.check(name);
        self.count("detachments");
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
        let held = self.image(name, Some(&snapshot));
        let twin = self.twin(name);
        twin.judge_newest(&held, &snapshot);
        twin.stored(twin.position());
        twin.snapshots.insert(snapshot, held);
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
        let source = Source::Fork { of: export_name(of), snapshot: from };
        let waits_for_store = self.create(source, &name, host);
        let found = self.read(&name, host);
        match snapshot {
            Some((_, content)) => Twin::new(&name, host, content).judge_host(&found),
            None => self.twin(of).judge_store(&found),
        }
        self.adopt(&name, host, found, waits_for_store);
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
        self.twin(name).begins_with(content);
        self.check(name);
        self.count("rollbacks");
    }

    fn open_elsewhere(&mut self, name: &str) {
        let (before, host) = (self.twins[name].host, (self.twins[name].host + 1) % HOSTS);
        if self.twins[name].lost.contains(&host) {
            self.forget_lost(name, host);
        }
        let waits_for_store = self.create(Source::TakeOver, name, host);
        let content = self.seen(name, name, host);
        let twin = self.twin(name);
        twin.begins_with(content);
        (twin.host, twin.waits_for_store) = (host, waits_for_store);
        twin.lost.push(before);
        self.count("take-overs");
    }

    /// A host that has lost an export finds out when it flushes, and has what it did not flush until it deletes it.
    fn use_lost(&mut self, name: &str) {
        let Some(host) = self.twins[name].lost.first().copied() else { return };
        let range = self.range();
        self.numbers += 1;
        if self.write_at(name, host, range, self.numbers, false).is_ok() {
            let router = self.hosts[host].router();
            let flushed = self.insist(|| router.flush(name));
            assert!(
                matches!(flushed, Err(RouterError::Flush { source: IoError::Fenced, .. })),
                "{flushed:?}"
            );
            let volume = self.hosts[host].volume(name);
            assert!(volume.figures().dirty_bytes >= range.count() * SECTOR_BYTES, "it is kept");
        }
        assert_eq!(self.write_at(name, host, range, self.numbers, false), Err(IoError::Fenced));
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

    fn collect(&mut self) {
        let hours = self.random.random_range(1..30);
        // No request is on its way for hours.
        self.let_late_ones_arrive();
        self.world.clock.advance(Duration::from_hours(hours));
        let host = self.random.random_range(0..HOSTS);
        let router = self.hosts[host].router();
        let options = GcOptions { grace: Duration::from_hours(7), ..GcOptions::default() };
        // A long listing meets many faults: it is made again another time.
        if let Ok(report) = self.world.runtime.block_on(router.collect(options)) {
            self.add("packs removed", report.packs_removed);
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

/// Which writes the sectors from `first` on hold.
fn numbers(bytes: &[u8], first: u64, name: &str) -> Content {
    let sectors = (first..).zip(bytes.chunks_exact(SECTOR_BYTES as usize));
    let number = |(sector, bytes): (u64, &[u8])| {
        number_of(bytes, sector).unwrap_or_else(|| panic!("sector {sector} of {name} holds no write"))
    };
    sectors.map(number).collect()
}
