//! The steps of a history in which a cache directory is put back to an earlier state, or copied.
//!
//! Does not own the oracle. Invariant: an export goes on from a directory only if the directory has the state in the
//! store as well; otherwise nothing of the export is served, and the store keeps its content. Two histories are never
//! mixed.

use std::collections::BTreeMap;

use rand::RngExt;

use super::{HOSTS, LATE_PER_MILLE, READ_SECTORS, Run};
use crate::cache::IoError;
use crate::daemon::tests::host::{Copy, Host};
use crate::daemon::tests::sim::faults::Crash;
use crate::daemon::tests::twin::Twin;
use crate::router::Users;
use crate::router::{InitialContent, RouterError};
use crate::units::SectorRange;

/// A backup of a host.
pub(super) struct Backup {
    copy: Copy,
    /// The exports of the host, and the newest manifest of each.
    twins: BTreeMap<String, (Twin, Option<u64>)>,
    /// The exports that the host had lost.
    lost: Vec<String>,
}

impl Run {
    pub(super) fn back_up(&mut self, host: usize) {
        let crash = self.go_down(host, Crash::Kill);
        let names = self.names_on(host);
        let twin = |name: &String| (self.twins[name].clone(), self.world.manifest_number(name));
        let twins = names.iter().map(|name| (name.clone(), twin(name))).collect();
        let lost = self.twins.iter().filter(|(_, twin)| twin.lost.contains(&host));
        let lost = lost.map(|(name, _)| name.clone()).collect();
        self.backups[host] = Some(Backup { copy: self.hosts[host].copy(), twins, lost });
        let crash = self.come_up(host, crash);
        self.judge_left(host, crash);
        self.count("backups");
    }

    /// Puts the backup of a host back, and has every export go on or end as allowed.
    pub(super) fn restore(&mut self, host: usize) {
        let Some(backup) = self.backups[host].take() else { return };
        self.go_down(host, Crash::Kill);
        // Requests of the dead daemon that are still in flight belong to the history that ends here.
        self.let_late_ones_arrive();
        self.hosts[host].put(&backup.copy);
        let had = self.names_on(host);
        let numbers: BTreeMap<_, _> =
            backup.twins.keys().map(|name| (name.clone(), self.world.manifest_number(name))).collect();
        self.come_up(host, Crash::Kill);
        for twin in self.twins.values_mut() {
            twin.lost.retain(|lost| *lost != host);
        }
        for name in &backup.lost {
            self.restored_elsewhere(name, host);
        }
        for (name, (twin, number)) in backup.twins {
            if had.contains(&name) {
                let is_unmoved = number.is_some() && number == numbers[&name];
                self.restored(&name, host, twin, is_unmoved);
            } else {
                self.restored_elsewhere(&name, host);
            }
        }
        for name in had {
            if self.hosts[host].knows(&name) {
                self.check(&name);
            } else {
                self.open_from_store(&name, host);
            }
        }
        self.count("backups put back");
    }

    /// An export that the host had until the backup was put back.
    fn restored(&mut self, name: &str, host: usize, mut backup: Twin, is_unmoved: bool) {
        let image = self.image(name, None);
        let has_image = backup.find_in_history(&image).is_some();
        match self.write_to_store(name, host, Some(&mut backup)) {
            Ok(()) => {
                assert!(has_image, "{name} went on from a backup that does not have what is in the store");
                self.replace(name, backup, host);
                self.look_at_store(name);
                self.count("exports that went on from a backup");
            }
            Err(error) => {
                assert!(!is_unmoved, "{name} was refused although the store is as it was: {error:?}");
                self.refused(name, host, &error);
                self.open_from_store(name, host);
                self.count("exports of a backup that were refused");
            }
        }
    }

    /// An export that has moved to another host, or was deleted, since the backup.
    fn restored_elsewhere(&mut self, name: &str, host: usize) {
        let error = self.write_to_store(name, host, None).expect_err("the export is not here any more");
        self.refused(name, host, &error);
        let router = self.hosts[host].router();
        self.insist(|| router.delete(name, Users::Spare)).unwrap();
        self.count("exports of a backup that were refused");
    }

    /// Has `twin` be the history of an export of `host` from now on.
    fn replace(&mut self, name: &str, twin: Twin, host: usize) {
        let old = self.twins.remove(name).unwrap();
        let mut twin = twin;
        (twin.snapshots, twin.lost, twin.host) = (old.snapshots, old.lost, host);
        self.twins.insert(name.to_owned(), twin);
    }

    /// Checks that nothing is served of a refused export.
    fn refused(&mut self, name: &str, host: usize, error: &RouterError) {
        let says_why = matches!(
            error,
            RouterError::Writeback { source: IoError::Fenced | IoError::Diverged, .. }
                | RouterError::Lost { .. }
        );
        assert!(says_why, "{name}: {error:?}");
        let volume = self.hosts[host].volume(name);
        let start = self.random.random_range(0..super::SECTORS / READ_SECTORS) * READ_SECTORS;
        let range = SectorRange::new(start, READ_SECTORS).unwrap();
        let read = self.hosts[host].driver().read(&volume, range);
        assert!(matches!(read, Err(IoError::Fenced | IoError::Diverged)), "{name}: {read:?}");
    }

    /// Gives up this host's data of an export, if any, and goes on with the content of the store.
    fn open_from_store(&mut self, name: &str, host: usize) {
        if self.hosts[host].knows(name) {
            let router = self.hosts[host].router();
            self.insist(|| router.delete(name, Users::Spare)).unwrap();
        }
        let waits_for_store = self.create(InitialContent::TakeOver, name, host);
        let content = self.seen(name, name, host);
        let twin = self.twin(name);
        twin.begins_with(content);
        (twin.host, twin.waits_for_store) = (host, waits_for_store);
    }

    /// A host is lost with all its data, and a new host takes its place. The exports are opened from the store.
    pub(super) fn lose_host(&mut self, host: usize) {
        self.go_down(host, Crash::PowerCut);
        self.hosts[host] = Host::apart(&self.world);
        self.hosts[host].objects().delay_some(LATE_PER_MILLE);
        for twin in self.twins.values_mut() {
            twin.lost.retain(|lost| *lost != host);
        }
        for name in self.names_on(host) {
            let other = self.random.random_range(0..HOSTS);
            if self.twins[&name].lost.contains(&other) {
                self.forget_lost(&name, other);
            }
            self.open_from_store(&name, other);
        }
        self.count("hosts lost with all they had");
    }

    /// Two hosts have the same directory. Both write to one of its exports and write back; one of the hosts goes on.
    pub(super) fn clone_host(&mut self, host: usize) {
        let Some(name) = self.any_on(host) else { return };
        for name in self.names_on(host) {
            self.write_back(&name);
        }
        let crash = self.go_down(host, Crash::Kill);
        let copy = self.hosts[host].copy();
        let crash = self.come_up(host, crash);
        self.judge_left(host, crash);
        let clone = self.hosts.len();
        self.hosts.push(Host::of_copy(&self.world, &copy));
        let mut twins = [self.twins[&name].clone(), self.twins[&name].clone()];

        let first = usize::from(self.random.random_bool(0.5));
        let mut went_on = Vec::new();
        for at in [first, 1 - first] {
            let place = [host, clone][at];
            match self.write_to_store(&name, place, Some(&mut twins[at])) {
                Ok(()) => went_on.push(at),
                Err(error) => self.refused(&name, place, &error),
            }
        }
        assert_eq!(went_on.len(), 1, "{name}: so many of two clones went on");
        let [of_host, of_clone] = twins;
        self.replace(&name, if went_on == [0] { of_host } else { of_clone }, host);
        self.hosts.pop().unwrap().go_down(Crash::PowerCut);
        self.count("exports that went on at one of two clones");

        // The clone may have committed a manifest of any export, for example because packs were merged.
        for name in self.names_on(host) {
            let mut twin = self.twins[&name].clone();
            match self.write_to_store(&name, host, Some(&mut twin)) {
                Ok(()) => {
                    self.replace(&name, twin, host);
                    self.check(&name);
                }
                Err(error) => {
                    self.refused(&name, host, &error);
                    self.open_from_store(&name, host);
                }
            }
        }
        self.count("clones of a host");
    }

    /// Writes to an export and writes the export back, so that the host notices a loss. `twin` takes note.
    fn write_to_store(
        &mut self,
        name: &str,
        host: usize,
        twin: Option<&mut Twin>,
    ) -> Result<(), RouterError> {
        let range = self.range();
        self.numbers += 1;
        let number = self.numbers;
        let written = self.write_at(name, host, range, number, false);
        let router = self.hosts[host].router();
        self.insist(|| router.write_back(name))?;
        written.unwrap();
        if let Some(twin) = twin {
            twin.wrote(range, number, true, false);
            twin.stored(twin.position());
        }
        Ok(())
    }
}
