//! Every read of hosts and every content of the store, against a model of the writes, through every way of a state: the
//! log, the store, snapshots, forks, rollbacks, other hosts, kills, power cuts and garbage collection, on disks and
//! with a store that fail.
//!
//! A history is a few hundred random steps with two hosts and one store. `twin` is the oracle for both images. `exports`
//! has the steps with snapshots, forks and other hosts. `faults` has the steps in which hosts, disks and the store fail.
//! `directories` has the steps in which cache directories are put back or copied.
//!
//! `GLIDEFS_HISTORIES` sets the number of histories. `GLIDEFS_HISTORY_SEED` runs the one history with this seed, with
//! the same steps, though the order of the store's requests may differ.

mod directories;
mod exports;
mod faults;
mod histories;

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::host::{Host, World, durable, request};
use super::sim::faults::Crash;
use super::twin::{Content, Twin};
use crate::cache::IoError;
use crate::cache::driver::{PATIENCE, bytes_of, number_of};
use crate::properties::Durability;
use crate::router::Users;
use crate::router::{CreateExport, ExportSize, InitialContent, RouterError};
use crate::store::gc::GcOptions;
use crate::store::volume::VolumeError;
use crate::units::{SECTOR_BYTES, SectorRange};

const HOSTS: usize = 2;
const EXPORTS_MAX: usize = 5;
const SECTORS: u64 = 4096;
const READ_SECTORS: u64 = 256;
/// How often an operation on a failing store is tried.
const ASKS_MAX: usize = 20;
/// Creations in a thousand that arrive late.
const LATE_PER_MILLE: u64 = 10;

/// How often each kind of event happened.
pub type Tally = BTreeMap<&'static str, u64>;

struct Run {
    world: World,
    hosts: Vec<Host>,
    twins: BTreeMap<String, Twin>,
    random: SmallRng,
    numbers: u64,
    names: u64,
    tally: Tally,
    /// The host with the failing disk, or the host that is about to crash.
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

    /// Asks until the answer is a success. A failed attempt may have been carried out all the same.
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

    /// Opens or creates an export. In one of three exports each FLUSH waits for the store; returns whether this export
    /// does.
    fn create(&mut self, content: InitialContent, name: &str, host: usize) -> bool {
        let router = self.hosts[host].router();
        let waits_for_store = self.random.random_bool(0.3);
        let durability = if waits_for_store { Durability::Store } else { Durability::Local };
        let request = CreateExport { properties: durable(durability), ..request(name, content.clone()) };
        let created = self.insist(|| router.create(request.clone()));
        match created {
            Ok(_) => {}
            // An earlier attempt that failed had created the export, from a state that has changed meanwhile.
            Err(RouterError::Store { source: VolumeError::NameTaken { .. }, .. })
                if content != InitialContent::TakeOver =>
            {
                let request = CreateExport { content: InitialContent::TakeOver, ..request };
                self.insist(|| router.create(request.clone())).unwrap();
            }
            Err(error) => panic!("{error:?}"),
        }
        waits_for_store
    }

    fn read(&mut self, name: &str, host: usize) -> Content {
        let volume = self.hosts[host].volume(name);
        let is_blank = self.hosts[host].router().show(name).is_ok_and(|info| info.is_blank);
        let mut content = Content::new();
        for start in (0..SECTORS).step_by(READ_SECTORS as usize) {
            let range = SectorRange::new(start, READ_SECTORS).unwrap();
            let mut asks = 0;
            let bytes = loop {
                match self.hosts[host].driver().read(&volume, range) {
                    Ok(bytes) => break bytes,
                    // A read fails while the store fails, and never returns wrong data.
                    Err(IoError::Store) if asks < ASKS_MAX => asks += 1,
                    Err(error) => panic!("reading {range:?} of {name} on host {host}: {error}"),
                }
            };
            content.extend(numbers(&bytes, start, name));
        }
        if is_blank {
            assert!(content.iter().all(|number| *number == 0), "{name} on host {host} is told to be blank");
            self.count("reads of blank exports");
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

    /// Notes the content of the store, as seen by a host without any other data.
    fn seen(&mut self, from: &str, name: &str, host: usize) -> Content {
        let found = self.read(name, host);
        self.twin(from).judge_store(&found);
        found
    }

    /// Judges the content of the store, as seen by an onlooker.
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
            690..740 => self.write_back(&name),
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
        let blank = InitialContent::Blank(ExportSize::new(SECTORS * SECTOR_BYTES).unwrap());
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
            // FUA that waits for the store is tested by FLUSH.
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

    /// A FLUSH, which waits for the store if the export has this durability.
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

    fn write_back(&mut self, name: &str) {
        let router = self.hosts[self.twins[name].host].router();
        let position = self.twins[name].position();
        self.insist(|| router.write_back(name)).unwrap();
        self.twin(name).stored(position);
        self.count("writebacks");
    }

    fn detach(&mut self, name: &str) {
        let router = self.hosts[self.twins[name].host].router();
        self.insist(|| router.detach(name, Users::Spare)).unwrap();
        self.insist(|| router.attach(name, true)).unwrap();
        self.check(name);
        self.count("detachments");
    }

    fn collect(&mut self) {
        let hours = self.random.random_range(1..30);
        // Some requests are in flight for hours, as those of a host that stood still.
        if self.random.random_range(0..4) > 0 {
            self.let_late_ones_arrive();
        }
        self.world.clock.advance(Duration::from_hours(hours));
        let host = self.random.random_range(0..HOSTS);
        let router = self.hosts[host].router();
        let options = GcOptions { grace: Duration::from_hours(7), ..GcOptions::default() };
        // A long listing meets many faults, and is tried again another time.
        if let Ok(report) = self.world.runtime.block_on(router.collect(options)) {
            self.add("packs removed", report.packs_removed);
        }
    }
}

/// Whether another attempt would be in vain.
fn is_final(error: &RouterError) -> bool {
    match error {
        RouterError::Writeback { .. } => true,
        RouterError::Store { source, .. } => {
            matches!(source, VolumeError::NameTaken { .. } | VolumeError::SnapshotExists { .. })
        }
        _ => false,
    }
}

/// The writes that the sectors from `first` on hold.
fn numbers(bytes: &[u8], first: u64, name: &str) -> Content {
    let sectors = (first..).zip(bytes.chunks_exact(SECTOR_BYTES as usize));
    let number = |(sector, bytes): (u64, &[u8])| {
        number_of(bytes, sector).unwrap_or_else(|| panic!("sector {sector} of {name} holds no write"))
    };
    sectors.map(number).collect()
}
