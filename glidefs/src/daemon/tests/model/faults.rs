//! The steps of a history in which a host, its disk or the store fails.
//!
//! Owns which faults meet which requests. Does not own which results are legal afterwards. Invariant: after each crash
//! the store is read before a daemon runs again, and each export of the host is read before any other request.

use std::time::Duration;

use rand::RngExt;

use super::{PATIENCE, Run};
use crate::cache::IoError;
use crate::daemon::tests::sim::faults::{Crash, Faults};
use crate::router::RouterError;

/// Data at risk when the store goes away, bytes: the log has room for more.
const DIRTY_BYTES_MAX: u64 = 3 << 20;

impl Run {
    /// A crash while no request is in flight.
    pub(super) fn crash(&mut self, host: usize, crash: Crash) {
        let crash = self.go_down(host, crash);
        let crash = self.come_up(host, crash);
        self.judge_left(host, crash);
    }

    pub(super) fn go_down(&mut self, host: usize, crash: Crash) -> Crash {
        let crash = self.hosts[host].go_down(crash);
        self.hosts[host].objects().go_on();
        self.hosts[host].objects().delay_every(None);
        self.failing = None;
        self.count(if crash == Crash::Kill { "kills" } else { "power cuts" });
        // A request of the dead daemon may arrive before or after the first request of the next daemon.
        if self.random.random_bool(0.5) {
            self.let_late_ones_arrive();
        }
        for name in self.names_on(host) {
            self.look_at_store(&name);
        }
        crash
    }

    /// Starts a daemon, which may need a second attempt.
    pub(super) fn come_up(&mut self, host: usize, before: Crash) -> Crash {
        if self.random.random_bool(0.3) {
            let crash = self.any_crash();
            let changes = self.random.random_range(0..4);
            self.hosts[host].machine().arm(changes, crash);
        }
        // The next program of an upgrade knows what the one before served. The result is the same as after any other start.
        let crashes = if before == Crash::Kill && self.random.random_bool(0.3) {
            self.count("upgrades");
            self.hosts[host].succeed(&self.world)
        } else {
            self.hosts[host].come_up(&self.world)
        };
        self.add("crashes while opening", crashes.len() as u64);
        if crashes.contains(&Crash::PowerCut) { Crash::PowerCut } else { before }
    }

    pub(super) fn judge_left(&mut self, host: usize, crash: Crash) {
        for name in self.names_on(host) {
            let left = self.read(&name, host);
            match crash {
                Crash::Kill => self.twin(&name).killed(left),
                Crash::PowerCut => {
                    let lost = self.twin(&name).lost_power(left);
                    self.add("sectors lost with power", lost as u64);
                }
            }
        }
    }

    fn any_crash(&mut self) -> Crash {
        if self.random.random_bool(0.5) { Crash::Kill } else { Crash::PowerCut }
    }

    pub(super) fn any_on(&mut self, host: usize) -> Option<String> {
        let names = self.names_on(host);
        (!names.is_empty()).then(|| names[self.random.random_range(0..names.len())].clone())
    }

    /// A crash at a random change of the disk or request of the store, with a writeback running.
    pub(super) fn crash_amid(&mut self, host: usize) {
        let (Some(name), crash) = (self.any_on(host), self.any_crash()) else { return };
        self.failing = Some(host);
        match self.random.random_range(0..3) {
            0 => {
                let (requests, arrives) = (self.random.random_range(0..6), self.random.random_bool(0.5));
                self.hosts[host].objects().end_after(requests, arrives);
            }
            // The last manifest of the dead daemon arrives after the daemon's death.
            1 => self.hosts[host].objects().delay_every(Some("manifest")),
            _ => {
                let changes = self.random.random_range(0..40);
                self.hosts[host].machine().arm(changes, crash);
            }
        }
        let position = self.twins[&name].position();
        let writeback = self.ask_writeback(&name);
        for _ in 0..self.random.random_range(1..6) {
            if !self.hosts[host].machine().dead() {
                self.write_or_flush(host);
            }
        }
        std::thread::sleep(Duration::from_millis(self.random.random_range(0..15)));
        if self.hosts[host].objects().has_ended() {
            self.count("hosts lost at a request");
        }
        if self.hosts[host].machine().dead() {
            self.count("crashes amid requests");
        }
        self.hosts[host].machine().crash_now(crash);
        if self.end(writeback) == Some(Ok(())) {
            self.twin(&name).stored(position);
        }
        let crash = self.go_down(host, crash);
        let crash = self.come_up(host, crash);
        self.judge_left(host, crash);
    }

    /// Asks for writeback without waiting.
    fn ask_writeback(&mut self, name: &str) -> tokio::task::JoinHandle<Result<(), RouterError>> {
        let (router, name) = (self.hosts[self.twins[name].host].router(), name.to_owned());
        self.world.runtime.spawn(async move { router.write_back(&name).await.map(drop) })
    }

    /// Stops waiting for a writeback. Returns the answer, if there is one; `()` stands for any error.
    fn end(&self, writeback: tokio::task::JoinHandle<Result<(), RouterError>>) -> Option<Result<(), ()>> {
        writeback.abort();
        self.world.runtime.block_on(writeback).ok().map(|written| written.map_err(drop))
    }

    /// A request to an export of `host` that does not wait for the store.
    fn write_or_flush(&mut self, host: usize) {
        let Some(name) = self.any_on(host) else { return };
        if self.twins[&name].waits_for_store || self.random.random_bool(0.7) {
            self.write(&name);
        } else {
            self.flush(&name);
        }
    }

    /// The disk of a host fails for a while.
    pub(super) fn fail_disk(&mut self, host: usize) {
        let Some(name) = self.any_on(host) else { return };
        let none = Faults::default();
        let faults = match self.random.random_range(0..4) {
            0 => Faults { write: 200, ..none },
            1 => Faults { sync: 300, ..none },
            2 => Faults { read: 200, ..none },
            _ => Faults { write: 50, sync: 50, gone: 0, read: 50, open: 50, would_block: 200 },
        };
        self.failing = Some(host);
        self.hosts[host].machine().faults = faults;
        let position = self.twins[&name].position();
        let writeback = self.ask_writeback(&name);
        for _ in 0..self.random.random_range(2..8) {
            self.write_or_flush(host);
            self.read_some(host);
        }
        let failures: u64 = self.hosts[host].machine().injected().iter().sum();
        self.add("failures of the disk", failures);
        let crash = self.any_crash();
        let crashes = self.random.random_bool(0.5);
        if crashes {
            self.hosts[host].machine().crash_now(crash);
        }
        if self.end(writeback) == Some(Ok(())) {
            self.twin(&name).stored(position);
        }
        self.hosts[host].machine().calm();
        self.count("spells of a failing disk");
        if crashes {
            let crash = self.go_down(host, crash);
            let crash = self.come_up(host, crash);
            self.judge_left(host, crash);
            return;
        }
        self.failing = None;
        self.names_on(host).iter().for_each(|name| self.check(name));
    }

    /// The store takes packs of a host, and refuses the manifests that would list these packs, or takes the manifests
    /// without an answer.
    pub(super) fn fail_manifests(&mut self, host: usize) {
        let Some(name) = self.any_on(host) else { return };
        let (times, arrive) = (self.random.random_range(1..3), self.random.random_bool(0.5));
        self.hosts[host].objects().fail_creations("manifests", times, arrive);
        if !self.twins[&name].waits_for_store {
            self.write(&name);
        }
        self.write_back(&name);
        self.hosts[host].objects().fail_creations("", 0, false);
        self.count("manifests that failed");
    }

    /// A READ, which may fail together with the disk.
    fn read_some(&mut self, host: usize) {
        let Some(name) = self.any_on(host) else { return };
        let (volume, range) = (self.hosts[host].volume(&name), self.range());
        match self.hosts[host].driver().read(&volume, range) {
            Ok(bytes) => {
                let found = super::numbers(&bytes, range.start(), &name);
                self.twins[&name].judge_part(range, &found);
            }
            Err(IoError::Read) => self.count("READs that failed with the disk"),
            Err(IoError::Store) => {}
            Err(error) => panic!("reading {range:?} of {name} on host {host}: {error}"),
        }
    }

    /// The store is away for a while. Writes go on, a host may start without the store, READs and writeback end when
    /// the store is back.
    pub(super) fn outage(&mut self) {
        self.world.store_goes_away();
        let host = self.random.random_range(0..self.hosts.len());
        for _ in 0..self.random.random_range(1..8) {
            if self.hosts[host].driver().cache.stats().dirty_bytes < DIRTY_BYTES_MAX {
                self.write_or_flush(host);
            }
        }
        let crash = self.random.random_bool(0.5).then(|| {
            let crash = self.any_crash();
            let crash = self.go_down(host, crash);
            self.count("starts without the store");
            self.come_up(host, crash)
        });
        let asked =
            self.any_on(host).map(|name| (self.twins[&name].position(), self.ask_writeback(&name), name));
        let millis = self.random.random_range(0..40);
        self.world.store_comes_back_in(millis);
        match crash {
            Some(crash) => self.judge_left(host, crash),
            None => self.names_on(host).iter().for_each(|name| self.check(name)),
        }
        if let Some((position, writeback, name)) = asked {
            let written =
                self.world.runtime.block_on(async { tokio::time::timeout(PATIENCE, writeback).await });
            written.expect("a writeback ends when the store is back").unwrap().unwrap();
            self.twin(&name).stored(position);
        }
        self.world.store_comes_back();
        self.count("outages of the store");
    }

    pub(super) fn let_late_ones_arrive(&mut self) {
        let arrivals = self.hosts.iter().map(|host| self.world.runtime.block_on(host.objects().arrive()));
        let arrived: usize = arrivals.sum();
        self.add("creations that arrived late", arrived as u64);
    }
}
