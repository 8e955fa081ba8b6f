//! The volumes with data to write back, by the time of the next look.
//!
//! Owns the order of the looks. Does not own what a look decides (`due`, `engine`). Invariant: a volume in here has a cut on the way,
//! or a time for the next look; so between two looks a volume costs nothing.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::due::Watch;
use crate::cache::volume::Volume;
use crate::units::{ExportId, Seq};

/// A volume with data to write back.
#[derive(Debug)]
pub(super) struct Watched {
    pub volume: Arc<Volume>,
    pub watch: Watch,
    /// Somebody waits for all writes up to this number, or for a new size, to be in the store.
    pub asked: Option<Seq>,
    /// A cut is being carried.
    pub busy: bool,
    /// Time of the next look. `None` only from a look to the end of the look, and while a cut is being carried.
    due: Option<Duration>,
}

/// Each volume with data to write back.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    volumes: HashMap<ExportId, Watched>,
    due: BTreeSet<(Duration, ExportId)>,
}

impl Dirty {
    /// Takes note that a volume has data to write back, or has made a cut, or that somebody waits for the volume: a look is due at
    /// once, unless a cut is on the way.
    pub fn has_news(&mut self, volume: Arc<Volume>, asked: Option<Seq>, now: Duration) {
        let id = volume.id();
        let watched = self.volumes.entry(id).or_insert_with(|| Watched {
            volume,
            watch: Watch::new(now),
            asked: None,
            busy: false,
            due: None,
        });
        watched.asked = watched.asked.max(asked);
        self.set_due(id, Duration::ZERO);
    }

    pub fn get_mut(&mut self, id: ExportId) -> Option<&mut Watched> {
        self.volumes.get_mut(&id)
    }

    /// Sets the time of the next look, unless a cut is on the way.
    pub fn set_due(&mut self, id: ExportId, due: Duration) {
        let Some(watched) = self.volumes.get_mut(&id).filter(|watched| !watched.busy) else { return };
        if let Some(before) = watched.due.replace(due) {
            self.due.remove(&(before, id));
        }
        self.due.insert((due, id));
    }

    pub fn remove(&mut self, id: ExportId) {
        if let Some(due) = self.volumes.remove(&id).and_then(|watched| watched.due) {
            self.due.remove(&(due, id));
        }
    }

    /// The earliest time of a look.
    pub fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    /// The volumes to look at, in the order of their times: those whose look is due, or any without a cut on the way if `all`. Each
    /// needs a new time, a cut that is carried, or to be removed.
    pub fn take_due(&mut self, now: Duration, all: bool) -> Vec<ExportId> {
        let mut taken = Vec::new();
        while let Some((due, id)) = self.due.first().copied().filter(|(due, _)| all || *due <= now) {
            self.due.remove(&(due, id));
            if let Some(watched) = self.volumes.get_mut(&id) {
                watched.due = None;
            }
            taken.push(id);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn volume(id: u32) -> Arc<Volume> {
        Arc::new(Volume::new(ExportId(id)))
    }

    #[test]
    fn only_volumes_that_are_due_are_looked_at_and_in_the_order_of_their_times() {
        let mut dirty = Dirty::default();
        for id in 1..=3 {
            dirty.has_news(volume(id), None, at(0));
            assert_eq!(dirty.take_due(at(0), false), [ExportId(id)], "news are due at once");
            dirty.set_due(ExportId(id), at(100 - u64::from(id)));
        }
        assert_eq!((dirty.next_due(), dirty.take_due(at(96), false)), (Some(at(97)), Vec::new()));
        assert_eq!(dirty.take_due(at(98), false), [ExportId(3), ExportId(2)]);
        dirty.set_due(ExportId(2), at(500));
        let all = dirty.take_due(at(98), true);
        assert_eq!(all, [ExportId(1), ExportId(2)], "a full cache waits for nothing");
        assert_eq!((dirty.take_due(at(98), true), dirty.next_due()), (Vec::new(), None));
    }

    #[test]
    fn a_volume_with_a_cut_on_the_way_is_not_looked_at_and_what_was_asked_meanwhile_is_kept() {
        let mut dirty = Dirty::default();
        dirty.has_news(volume(1), Some(Seq(4)), at(0));
        let id = dirty.take_due(at(0), false)[0];
        let watched = dirty.get_mut(id).unwrap();
        (watched.busy, watched.asked) = (true, None);
        dirty.has_news(volume(1), Some(Seq(9)), at(1));
        dirty.has_news(volume(1), Some(Seq(7)), at(1));
        dirty.has_news(volume(1), None, at(1));
        assert_eq!(dirty.take_due(at(1), true), []);
        let watched = dirty.get_mut(id).unwrap();
        assert_eq!(watched.asked, Some(Seq(9)));
        watched.busy = false;
        dirty.set_due(id, Duration::ZERO);
        assert_eq!(dirty.take_due(at(1), false), [id]);
        dirty.remove(id);
        dirty.set_due(id, at(5));
        assert_eq!((dirty.take_due(at(9), true), dirty.next_due()), (Vec::new(), None));
    }
}
