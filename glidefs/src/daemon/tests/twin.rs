//! One export in the model: its history, and the contents that host and store may have.
//!
//! Owns the oracle for both images. Does not own how the history came about. Invariants: the host holds every
//! acknowledged write after a kill, and every write before the last answered FLUSH after a power cut; the store holds
//! the history up to a cut, which never moves back and is never ahead of the image of the host.

use std::collections::BTreeMap;

use crate::units::SectorRange;

/// The number of the write that each sector holds; 0 means zeroes.
pub type Content = Vec<u64>;

/// One event in the history of an export on its host.
#[derive(Clone, Debug)]
enum Change {
    /// A write was answered. A failed write may take effect sector by sector, also after the next crash.
    Write { range: SectorRange, number: u64, acknowledged: bool, through: bool },
    /// The host crashed, and this content was left.
    Left(Content),
}

/// The writes that each sector may hold.
#[derive(Clone, Debug)]
struct State {
    newest: Content,
    /// Numbers of writes that may have taken effect after the newest one.
    or: BTreeMap<usize, Vec<u64>>,
}

impl State {
    fn of(content: Content) -> Self {
        Self { newest: content, or: BTreeMap::new() }
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { range, number, acknowledged: true, .. } => {
                for sector in sectors(*range) {
                    self.newest[sector] = *number;
                    self.or.remove(&sector);
                }
            }
            Change::Write { range, number, .. } => self.perhaps(*range, *number),
            Change::Left(left) => *self = Self::of(left.clone()),
        }
    }

    /// Applies `change`, of which a power cut may have left any part.
    fn apply_perhaps(&mut self, change: &Change) {
        match change {
            Change::Write { acknowledged: true, through: true, .. } => self.apply(change),
            Change::Write { range, number, .. } => self.perhaps(*range, *number),
            // A kill leaves the result of writes that are judged one by one.
            Change::Left(_) => {}
        }
    }

    fn perhaps(&mut self, range: SectorRange, number: u64) {
        for sector in sectors(range) {
            self.or.entry(sector).or_default().push(number);
        }
    }

    fn allows(&self, sector: usize, number: u64) -> bool {
        self.newest[sector] == number || self.or.get(&sector).is_some_and(|or| or.contains(&number))
    }

    /// How many sectors of `found` hold a write that is not allowed.
    fn wrong(&self, found: &Content) -> usize {
        (0..found.len()).filter(|sector| !self.allows(*sector, found[*sector])).count()
    }

    fn require(&self, found: &Content, about: &str) {
        assert_eq!(found.len(), self.newest.len(), "{about}");
        let Some(first) = (0..found.len()).find(|sector| !self.allows(*sector, found[*sector])) else {
            return;
        };
        let or = self.or.get(&first).map_or(&[][..], Vec::as_slice);
        panic!(
            "{about}: {} sectors, sector {first} holds {} and neither {} nor one of {or:?}",
            self.wrong(found),
            found[first],
            self.newest[first]
        );
    }
}

fn sectors(range: SectorRange) -> std::ops::Range<usize> {
    range.start() as usize..range.end() as usize
}

/// An export in the model.
#[derive(Clone, Debug)]
pub struct Twin {
    name: String,
    /// The host with the export.
    pub host: usize,
    /// Whether FLUSH waits for the store.
    pub waits_for_store: bool,
    /// The content of each snapshot.
    pub snapshots: BTreeMap<String, Content>,
    /// Hosts that have lost the export and still list it.
    pub lost: Vec<usize>,
    base: Content,
    /// Number of changes that are forgotten because `base` has their effect.
    folded: usize,
    changes: Vec<Change>,
    /// Number of changes that survive a power cut, forgotten ones included.
    durable: usize,
    /// Least number of changes in the store, forgotten ones included.
    in_store: usize,
    now: State,
}

impl Twin {
    /// An export of `host` that begins with `content`, which is in the store.
    pub fn new(name: &str, host: usize, content: Content) -> Self {
        Self {
            name: name.to_owned(),
            host,
            waits_for_store: false,
            snapshots: BTreeMap::new(),
            lost: Vec::new(),
            now: State::of(content.clone()),
            base: content,
            folded: 0,
            changes: Vec::new(),
            durable: 0,
            in_store: 0,
        }
    }

    /// The end of the history so far.
    pub fn position(&self) -> usize {
        self.folded + self.changes.len()
    }

    /// Notes the answer of a write.
    pub fn wrote(&mut self, range: SectorRange, number: u64, acknowledged: bool, through: bool) {
        self.push(Change::Write { range, number, acknowledged, through });
    }

    fn push(&mut self, change: Change) {
        self.now.apply(&change);
        self.changes.push(change);
    }

    /// Notes the answer of a FLUSH that was sent at `position`.
    pub fn synced(&mut self, position: usize) {
        self.durable = self.durable.max(position);
        self.fold();
    }

    /// Notes the answer of a writeback that was requested at `position`.
    pub fn stored(&mut self, position: usize) {
        self.in_store = self.in_store.max(position);
        // The store is told of a cut only when the cut is stable on the host.
        self.synced(position);
    }

    /// Has the history go on from `content`, which is in the store.
    pub fn begins_with(&mut self, content: Content) {
        self.now = State::of(content.clone());
        self.base = content;
        self.folded = self.position();
        self.changes.clear();
        (self.durable, self.in_store) = (self.folded, self.folded);
    }

    /// Forgets the changes that can neither be lost nor be missing in the store.
    fn fold(&mut self) {
        let end = self.position();
        if self.durable == end && self.in_store == end && self.now.or.is_empty() {
            self.begins_with(self.now.newest.clone());
        }
    }

    /// The writes that each sector may hold after so many changes.
    fn after(&self, position: usize) -> State {
        let mut state = State::of(self.base.clone());
        self.changes[..position - self.folded].iter().for_each(|change| state.apply(change));
        state
    }

    /// Judges the content that the host reads.
    pub fn judge_host(&self, found: &Content) {
        self.now.require(found, &format!("{} on host {}", self.name, self.host));
    }

    /// As [`Self::judge_host`], for some sectors.
    pub fn judge_part(&self, range: SectorRange, found: &[u64]) {
        for (sector, number) in sectors(range).zip(found) {
            let legal = self.now.allows(sector, *number);
            assert!(legal, "{} on host {}: sector {sector} holds {number}", self.name, self.host);
        }
    }

    /// Judges the content of the store: the history up to a cut no older than any cut seen before.
    pub fn judge_store(&mut self, found: &Content) {
        if let Some(position) = self.find_in_history(found) {
            self.in_store = position;
            return;
        }
        let since = self.after(self.in_store);
        panic!(
            "{}: the store holds no state since change {} of {}: {} sectors differ from that one, {} from the newest",
            self.name,
            self.in_store,
            self.position(),
            since.wrong(found),
            self.now.wrong(found)
        );
    }

    /// The number of changes after which the export had the content found, not less than the store had before.
    pub fn find_in_history(&self, found: &Content) -> Option<usize> {
        let mut state = State::of(self.base.clone());
        let mut wrong = state.wrong(found);
        for position in self.folded..=self.position() {
            if wrong == 0 && position >= self.in_store {
                return Some(position);
            }
            let Some(change) = self.changes.get(position - self.folded) else { break };
            let touched = if let Change::Write { range, .. } = change { Some(sectors(*range)) } else { None };
            let count = |state: &State| {
                let range = touched.clone().unwrap_or(0..found.len());
                range.filter(|sector| !state.allows(*sector, found[*sector])).count()
            };
            wrong -= count(&state);
            state.apply(change);
            wrong += count(&state);
        }
        None
    }

    /// Judges the content after a kill.
    pub fn killed(&mut self, left: Content) {
        self.now.require(&left, &format!("{} after kill -9 of host {}", self.name, self.host));
        if !self.now.or.is_empty() {
            self.push(Change::Left(left));
        }
    }

    /// Judges the content after a power cut, when the store is judged already. Returns how many sectors are older than
    /// the newest acknowledged write.
    pub fn lost_power(&mut self, left: Content) -> usize {
        let kept = self.durable.max(self.in_store);
        let mut state = self.after(kept);
        self.changes[kept - self.folded..].iter().for_each(|change| state.apply_perhaps(change));
        state.require(&left, &format!("{} after a power cut of host {}", self.name, self.host));
        let lost = self.now.wrong(&left);
        self.push(Change::Left(left));
        self.durable = self.position();
        lost
    }

    /// Judges a copy of the newest state.
    pub fn judge_newest(&self, found: &Content, of: &str) {
        self.now.require(found, &format!("{of} of {}", self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, count: u64) -> SectorRange {
        SectorRange::new(start, count).unwrap()
    }

    /// Two sectors: write 1 is written back, 2 covers both sectors, 3 covers the second.
    fn twin() -> Twin {
        let mut twin = Twin::new("vm", 0, vec![0; 2]);
        twin.wrote(range(0, 1), 1, true, false);
        twin.synced(1);
        twin.wrote(range(0, 2), 2, true, false);
        twin.wrote(range(1, 1), 3, true, false);
        twin
    }

    fn passes(judge: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(judge).is_ok()
    }

    #[test]
    fn the_store_holds_a_prefix_of_the_history_and_never_an_older_one_than_before() {
        for (found, legal) in
            [([0, 0], true), ([1, 0], true), ([2, 2], true), ([2, 3], true), ([1, 3], false)]
        {
            assert_eq!(passes(move || twin().judge_store(&found.to_vec())), legal, "{found:?}");
        }
        let older = || {
            let mut twin = twin();
            twin.judge_store(&vec![2, 2]);
            twin.judge_store(&vec![1, 0]);
        };
        assert!(!passes(older));
        let answered = || {
            let mut twin = twin();
            twin.stored(2);
            twin.judge_store(&vec![1, 0]);
        };
        assert!(!passes(answered));
    }

    #[test]
    fn a_kill_loses_nothing_and_a_power_cut_nothing_that_a_flush_or_the_store_has() {
        for (left, kill, cut) in [([2, 3], true, true), ([1, 3], false, true), ([0, 0], false, false)] {
            assert_eq!(passes(move || twin().killed(left.to_vec())), kill, "{left:?}");
            assert_eq!(passes(move || assert!(twin().lost_power(left.to_vec()) <= 2)), cut, "{left:?}");
        }
        let behind_the_store = || {
            let mut twin = twin();
            twin.judge_store(&vec![2, 2]);
            twin.lost_power(vec![1, 0]);
        };
        assert!(!passes(behind_the_store));
        let written_through = |left: [u64; 2]| {
            let mut twin = twin();
            twin.wrote(range(1, 1), 4, true, true);
            twin.lost_power(left.to_vec());
        };
        assert!(passes(move || written_through([1, 4])));
        assert!(!passes(move || written_through([2, 3])));
    }

    #[test]
    fn a_write_that_failed_may_be_there_or_not_and_after_a_crash_what_is_there_stays() {
        let failed = |left: u64, then: u64| {
            let mut twin = twin();
            twin.wrote(range(0, 1), 4, false, false);
            twin.judge_host(&vec![left, 3]);
            twin.killed(vec![left, 3]);
            twin.judge_host(&vec![then, 3]);
        };
        for (left, then, legal) in [(2, 2, true), (4, 4, true), (2, 4, false), (4, 2, false), (1, 1, false)] {
            assert_eq!(passes(move || failed(left, then)), legal, "{left} {then}");
        }
    }
}
