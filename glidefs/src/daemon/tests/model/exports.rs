//! The steps of a history with snapshots, forks, rollbacks, take-overs and deletions.
//!
//! Does not own the oracle.

use rand::RngExt;

use super::{EXPORTS_MAX, HOSTS, Run};
use crate::cache::IoError;
use crate::daemon::tests::host::name as export_name;
use crate::daemon::tests::twin::{Content, Twin};
use crate::router::Users;
use crate::router::{InitialContent, RouterError};
use crate::store::volume::VolumeError;
use crate::units::SECTOR_BYTES;

impl Run {
    pub(super) fn snapshot(&mut self, name: &str) {
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

    pub(super) fn fork(&mut self, of: &str) {
        if self.twins.len() >= EXPORTS_MAX {
            return;
        }
        let snapshot = self.any_snapshot(of).filter(|_| self.random.random_bool(0.5));
        let (name, host) = (self.new_name(), self.random.random_range(0..HOSTS));
        // A host that has lost the export does not know which data it would write back.
        if self.twins[of].lost.contains(&host) {
            return;
        }
        let from = snapshot.as_ref().map(|(snapshot, _)| export_name(snapshot));
        let content = InitialContent::Fork { of: export_name(of), snapshot: from };
        let waits_for_store = self.create(content, &name, host);
        let found = self.read(&name, host);
        match snapshot {
            Some((_, content)) => Twin::new(&name, host, content).judge_host(&found),
            None => self.twin(of).judge_store(&found),
        }
        self.adopt(&name, host, found, waits_for_store);
        self.count("forks");
    }

    pub(super) fn rollback(&mut self, name: &str) {
        let Some((snapshot, content)) = self.any_snapshot(name) else { return };
        let router = self.hosts[self.twins[name].host].router();
        let refused = self.world.runtime.block_on(router.rollback(name, export_name(&snapshot)));
        assert!(matches!(refused, Err(RouterError::NotDetached { .. })), "{refused:?}");
        self.insist(|| router.detach(name, Users::Spare)).unwrap();
        if self.random.random_bool(0.5) {
            self.insist(|| router.rollback(name, export_name(&snapshot))).unwrap();
        } else {
            // A restart after one attempt. A rollback that failed before the restart is repeated afterwards.
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
        self.insist(|| router.attach(name, true)).unwrap();
        self.twin(name).begins_with(content);
        self.check(name);
        self.count("rollbacks");
    }

    pub(super) fn open_elsewhere(&mut self, name: &str) {
        let (before, host) = (self.twins[name].host, (self.twins[name].host + 1) % HOSTS);
        if self.twins[name].lost.contains(&host) {
            self.forget_lost(name, host);
        }
        let waits_for_store = self.create(InitialContent::TakeOver, name, host);
        let content = self.seen(name, name, host);
        let twin = self.twin(name);
        twin.begins_with(content);
        (twin.host, twin.waits_for_store) = (host, waits_for_store);
        twin.lost.push(before);
        self.count("take-overs");
    }

    /// A host that has lost an export notices at the next writeback, and keeps the data at risk until the export is
    /// deleted here.
    pub(super) fn use_lost(&mut self, name: &str) {
        let Some(host) = self.twins[name].lost.first().copied() else { return };
        let range = self.range();
        self.numbers += 1;
        if self.write_at(name, host, range, self.numbers, false).is_ok() {
            let router = self.hosts[host].router();
            let written = self.insist(|| router.write_back(name));
            assert!(
                matches!(written, Err(RouterError::Writeback { source: IoError::Fenced, .. })),
                "{written:?}"
            );
            let volume = self.hosts[host].volume(name);
            assert!(volume.figures().dirty_bytes >= range.count() * SECTOR_BYTES, "the data at risk is kept");
        }
        assert_eq!(self.write_at(name, host, range, self.numbers, false), Err(IoError::Fenced));
        self.forget_lost(name, host);
        self.check(name);
        self.count("fenced");
    }

    pub(super) fn forget_lost(&mut self, name: &str, host: usize) {
        let router = self.hosts[host].router();
        self.insist(|| router.delete(name, Users::Spare)).unwrap();
        self.twins.get_mut(name).unwrap().lost.retain(|lost| *lost != host);
    }

    pub(super) fn delete(&mut self, name: &str) {
        if self.twins.len() < 3 {
            return;
        }
        for host in self.twins[name].lost.clone() {
            self.forget_lost(name, host);
        }
        let router = self.hosts[self.twins[name].host].router();
        self.insist(|| router.delete(name, Users::Spare)).unwrap();
        self.twins.remove(name);
        self.count("deletions");
    }
}
