//! An exhaustive model of what hosts and collections do to one volume in the store.
//!
//! Owns the model only; `glidefs/src/store` has the protocol. Every host may stand still between any two of its requests, for any
//! time and without noticing, and every creation and deletion may arrive again at any later time. So nothing here has a clock:
//! a collection may free a manifest as soon as there is a newer one. The model has two hosts that take the volume over from each
//! other, commit, and delete it; a collection; a host that creates a volume of the same name; and snapshots. Every state within
//! reach is visited. Each deliberate fault takes one rule away, and must be found: otherwise the model proves nothing.

#![allow(clippy::unwrap_used, reason = "tests panic")]
#![allow(clippy::struct_excessive_bools, reason = "a state of the model is what is there and what is not")]

use std::collections::HashSet;

/// Manifests of the volume have the numbers 1 to this one.
const NUMBERS: u8 = 6;
const HOSTS: usize = 3;

/// A rule that the protocol lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A collection frees the number with which a host took the volume over.
    NoFence,
    /// A taker creates its manifest before its fence.
    FenceAfterManifest,
    /// A collection lists the fences before the manifests.
    FencesListedFirst,
    /// Nothing outlives a volume.
    NoGrave,
    /// A collection removes the volume before it makes the grave.
    GraveAfterRemoval,
    /// A creator that adopts the id of a name looks for the grave only before it creates the first manifest.
    GraveReadOnlyBefore,
    /// A taker concludes from a listing that the volume is still there.
    TakerTrustsListing,
    /// A collection leaves a volume without its name.
    NameStaysLost,
    /// The key of a snapshot is its name.
    SnapshotKeyUsedAgain,
}

/// The rules that the store's protocol did not have before fences and graves.
const BEFORE: [Fault; 5] = [
    Fault::NoFence,
    Fault::NoGrave,
    Fault::TakerTrustsListing,
    Fault::NameStaysLost,
    Fault::SnapshotKeyUsedAgain,
];

/// Who takes part, and how far the exploration goes.
#[derive(Clone, Copy, Debug)]
struct Cast {
    /// The first of these has the volume at the beginning; the others may take it over.
    hosts: usize,
    commits: bool,
    deletes: bool,
    creates: bool,
    snapshots: bool,
    depth_max: u8,
}

const NOTHING: Cast =
    Cast { hosts: 1, commits: false, deletes: false, creates: false, snapshots: false, depth_max: 40 };
const TAKERS: Cast = Cast { hosts: HOSTS, commits: true, depth_max: 15, ..NOTHING };
const ENDINGS: Cast = Cast { hosts: 2, deletes: true, depth_max: 19, ..NOTHING };
const NAMES: Cast = Cast { deletes: true, creates: true, depth_max: 25, ..NOTHING };
const SNAPSHOTS: Cast = Cast { snapshots: true, ..NOTHING };
const ALL: Cast =
    Cast { hosts: HOSTS, commits: true, deletes: true, creates: true, snapshots: true, depth_max: 9 };

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Live,
    Deleted,
    ForGood,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Manifest {
    epoch: u8,
    writer: usize,
    /// The commits in this state of the volume, a bit each. The first bit is the creation.
    commits: u32,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Host {
    Away,
    /// Has read the newest manifest, and is about to create the next one in its own epoch.
    Chose(u8, Manifest),
    /// Has created the fence, where there are fences.
    Announced(u8, Manifest),
    /// Has created the manifest, and not yet its fence.
    CreatedFirst(u8, Manifest),
    /// Has created the manifest, and looks whether it is the newest.
    Looks(u8, Manifest),
    Owner(u8, Manifest),
    /// Has sent the next manifest.
    Sent(u8, Manifest),
    /// Has deleted the volume, and looks whether the name means it.
    Deleted,
    /// Has seen that the name means the volume, and is about to remove it.
    RemovesName,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Creator {
    Idle,
    /// Has given the name to a new volume.
    Named,
    /// Has read that the name means the first volume.
    ReadName,
    /// Has seen the first volume without a manifest.
    SawNoManifest,
    Adopts,
    /// Has created a first manifest of the first volume.
    Begun,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Collector {
    Rests,
    /// Has listed fences before anything else.
    SawFences(u8),
    /// Has listed manifests: a bit each.
    Listed(u8),
    /// The volume is gone for good, and these are its manifests.
    Buried(u8),
    /// Has found a volume alive, and without a name.
    Names,
    /// Has given the name back.
    LooksAgain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Volume {
    First,
    Second,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    manifests: [Option<Manifest>; NUMBERS as usize],
    fences: u8,
    grave: bool,
    name: Option<Volume>,
    is_second_live: bool,
    hosts: [Host; HOSTS],
    creator: Creator,
    collector: Collector,
    /// Manifests sent by each host, which may arrive again.
    sent: [[Option<Manifest>; NUMBERS as usize]; HOSTS],
    /// Manifests whose deletion was sent, and may arrive again.
    doomed: u8,
    is_name_doomed: bool,
    snapshots: u8,
    snapshots_doomed: u8,
    snapshots_made: u8,
    /// Snapshots that were made and not deleted.
    snapshots_wanted: u8,
    /// Acknowledged commits.
    acknowledged: u32,
    was_deleted: bool,
    /// The first manifest of the volume was removed.
    is_over: bool,
    /// A broken promise.
    broken: Option<&'static str>,
}

type Step = (&'static str, u8);

fn bit(number: u8) -> u8 {
    1 << (number - 1)
}

impl State {
    fn new() -> Self {
        // The name is there already, and the first manifest is on its way.
        let first = Manifest { epoch: 1, writer: 0, commits: 1, fate: Fate::Live };
        let mut sent = [[None; NUMBERS as usize]; HOSTS];
        sent[0][0] = Some(first);
        Self {
            manifests: [None; NUMBERS as usize],
            fences: 0,
            grave: false,
            name: Some(Volume::First),
            is_second_live: false,
            hosts: [Host::Sent(1, first), Host::Away, Host::Away],
            creator: Creator::Idle,
            collector: Collector::Rests,
            sent,
            doomed: 0,
            is_name_doomed: false,
            snapshots: 0,
            snapshots_doomed: 0,
            snapshots_made: 0,
            snapshots_wanted: 0,
            acknowledged: 0,
            was_deleted: false,
            is_over: false,
            broken: None,
        }
    }

    fn at(&self, number: u8) -> Option<Manifest> {
        self.manifests[usize::from(number) - 1]
    }

    fn put(&mut self, number: u8, manifest: Manifest) {
        self.manifests[usize::from(number) - 1] = Some(manifest);
        self.was_deleted |= manifest.fate != Fate::Live;
    }

    fn listed(&self) -> u8 {
        (1..=NUMBERS).filter(|number| self.at(*number).is_some()).map(bit).sum()
    }

    fn newest(&self) -> Option<(u8, Manifest)> {
        (1..=NUMBERS).rev().find_map(|number| Some((number, self.at(number)?)))
    }

    fn is_live(&self) -> bool {
        self.newest().is_some_and(|(_, newest)| newest.fate == Fate::Live) && !self.is_over
    }

    fn doom(&mut self, numbers: u8) {
        self.doomed |= numbers;
        self.is_over |= numbers & bit(1) != 0;
    }
}

struct Model<'a> {
    cast: Cast,
    faults: &'a [Fault],
}

impl Model<'_> {
    fn lacks(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// The number of states within reach, or the shortest way to a broken promise.
    fn explore(&self) -> Result<usize, (&'static str, Vec<Step>)> {
        let mut nodes: Vec<(State, usize, Step, u8)> = vec![(State::new(), 0, ("begin", 0), 0)];
        let mut seen = HashSet::from([nodes[0].0]);
        let mut next = 0;
        while let Some(&(state, _, _, depth)) = nodes.get(next) {
            if let Some(broken) = self.broken(&state) {
                let (mut way, mut at) = (Vec::new(), next);
                while at != 0 {
                    way.push(nodes[at].2);
                    at = nodes[at].1;
                }
                way.reverse();
                return Err((broken, way));
            }
            if depth < self.cast.depth_max {
                for (step, after) in self.steps(&state) {
                    if seen.insert(after) {
                        nodes.push((after, next, step, depth + 1));
                    }
                }
            }
            next += 1;
        }
        Ok(nodes.len())
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        let newest = state.newest().map(|(_, newest)| newest);
        let is_lost = |newest: Manifest| state.acknowledged & !newest.commits != 0;
        if !state.was_deleted && newest.map_or(state.acknowledged != 0, is_lost) {
            return Some("an acknowledged commit is lost");
        }
        if state.snapshots_wanted & !state.snapshots != 0 {
            return Some("a snapshot is lost");
        }
        if self.is_nameless(*state) {
            return Some("a live volume stays without a name");
        }
        state.broken
    }

    /// Whether a live volume has no name after a collection with which nothing interferes.
    fn is_nameless(&self, mut state: State) -> bool {
        if state.name.is_some() || !(state.is_live() || state.is_second_live) {
            return false;
        }
        state.collector = Collector::Rests;
        for _ in 0..4 {
            let mut found = Vec::new();
            self.collect(&state, &mut found);
            if let Some((_, after)) = found.first() {
                state = *after;
            }
        }
        state.name.is_none()
    }

    fn steps(&self, state: &State) -> Vec<(Step, State)> {
        let mut found = Vec::new();
        for host in 0..self.cast.hosts {
            self.host(state, host, &mut found);
        }
        self.collect(state, &mut found);
        self.arrive_again(state, &mut found);
        if self.cast.creates {
            self.create(state, &mut found);
        }
        if self.cast.snapshots {
            self.snapshots(state, &mut found);
        }
        found
    }

    fn host(&self, state: &State, host: usize, found: &mut Vec<(Step, State)>) {
        let mut add = |step: &'static str, number: u8, change: &dyn Fn(&mut State) -> Host| {
            let mut after = *state;
            after.hosts[host] = change(&mut after);
            found.push(((step, number), after));
        };
        let send = |after: &mut State, number: u8, manifest: Manifest| {
            after.sent[host][usize::from(number) - 1] = Some(manifest);
        };
        match state.hosts[host] {
            Host::Away => {
                if let Some((number, newest)) = state.newest()
                    && newest.fate == Fate::Live
                    && number < NUMBERS
                {
                    let next = Manifest { epoch: newest.epoch + 1, writer: host, ..newest };
                    add("a taker chooses", number + 1, &|_| Host::Chose(number + 1, next));
                }
            }
            Host::Chose(number, manifest) => {
                let announces = !self.lacks(Fault::NoFence) && !self.lacks(Fault::FenceAfterManifest);
                add("a taker announces", number, &|after| {
                    after.fences |= if announces { bit(number) } else { 0 };
                    send(after, number, manifest);
                    Host::Announced(number, manifest)
                });
            }
            Host::Announced(number, manifest) => add("a taker creates", number, &|after| {
                if after.at(number).is_some_and(|there| there != manifest) {
                    return Host::Away;
                }
                after.put(number, manifest);
                if self.lacks(Fault::FenceAfterManifest) {
                    Host::CreatedFirst(number, manifest)
                } else {
                    Host::Looks(number, manifest)
                }
            }),
            Host::CreatedFirst(number, manifest) => add("a taker announces late", number, &|after| {
                after.fences |= bit(number);
                Host::Looks(number, manifest)
            }),
            Host::Looks(number, manifest) => add("a taker looks", number, &|after| {
                let is_gone = if self.lacks(Fault::TakerTrustsListing) {
                    after.listed() & (bit(number) - 1) == 0
                } else {
                    after.grave
                };
                if after.newest().is_some_and(|(newest, _)| newest > number) {
                    Host::Away
                } else if is_gone {
                    after.doomed |= bit(number);
                    Host::Done
                } else {
                    if after.is_over {
                        after.broken = Some("a host takes a volume over that is gone");
                    }
                    Host::Owner(number, manifest)
                }
            }),
            Host::Owner(number, manifest) if number < NUMBERS => {
                let next = number + 1;
                let mut change = |step: &'static str, manifest: Manifest| {
                    add(step, next, &|after| {
                        send(after, next, manifest);
                        Host::Sent(next, manifest)
                    });
                };
                if self.cast.commits {
                    let commit = 1 << (8 * host + usize::from(number));
                    change("an owner commits", Manifest { commits: manifest.commits | commit, ..manifest });
                }
                if self.cast.deletes {
                    change("an owner deletes", Manifest { fate: Fate::Deleted, ..manifest });
                }
            }
            Host::Sent(number, manifest) => add("an owner is answered", number, &|after| {
                if after.at(number).is_some_and(|there| there != manifest) {
                    return Host::Away;
                }
                after.put(number, manifest);
                if number == 1 && after.grave {
                    after.doomed |= bit(1);
                    return Host::Done;
                }
                if number == 1 && after.is_over {
                    after.broken = Some("an id is used again");
                }
                if manifest.fate == Fate::Deleted {
                    return Host::Deleted;
                }
                after.acknowledged |= manifest.commits;
                Host::Owner(number, manifest)
            }),
            Host::Deleted => add("a deleter reads the name", 0, &|after| match after.name {
                Some(Volume::First) => Host::RemovesName,
                _ => Host::Done,
            }),
            Host::RemovesName => add("a deleter removes the name", 0, &|after| {
                (after.name, after.is_name_doomed) = (None, true);
                Host::Done
            }),
            Host::Owner(..) | Host::Done => {}
        }
    }

    fn collect(&self, state: &State, found: &mut Vec<(Step, State)>) {
        let mut add = |step: &'static str, change: &dyn Fn(&mut State) -> Collector| {
            let mut after = *state;
            after.collector = change(&mut after);
            found.push(((step, 0), after));
        };
        // What follows for a name; `is_live`: the first volume was alive when it was read.
        let then = |after: &State, is_live: bool| {
            let is_due = after.name.is_none() && (is_live || after.is_second_live);
            if is_due && !self.lacks(Fault::NameStaysLost) { Collector::Names } else { Collector::Rests }
        };
        match state.collector {
            Collector::Rests if self.lacks(Fault::FencesListedFirst) => {
                add("a collection lists fences", &|after| Collector::SawFences(after.fences));
            }
            Collector::Rests | Collector::SawFences(_) => add("a collection lists", &|after| {
                let Some((number, newest)) = after.newest() else { return then(after, false) };
                let listed = after.listed();
                if listed & bit(1) == 0 && after.grave {
                    return Collector::Buried(listed);
                }
                match (newest.fate, after.collector) {
                    (Fate::Live, Collector::SawFences(fences)) => {
                        after.doom(listed & !bit(number) & !bit(1) & !fences);
                        then(after, true)
                    }
                    (Fate::Live, _) => Collector::Listed(listed),
                    (Fate::Deleted, _) => {
                        if number < NUMBERS {
                            after.put(number + 1, Manifest { fate: Fate::ForGood, ..newest });
                        }
                        then(after, false)
                    }
                    (Fate::ForGood, _) => {
                        after.grave |= !self.lacks(Fault::NoGrave) && !self.lacks(Fault::GraveAfterRemoval);
                        Collector::Buried(listed)
                    }
                }
            }),
            Collector::Listed(listed) => add("a collection frees", &|after| {
                let newest = u8::try_from(listed.ilog2()).unwrap() + 1;
                let fences = if self.lacks(Fault::NoFence) { 0 } else { after.fences };
                after.doom(listed & !bit(newest) & !bit(1) & !fences);
                then(after, true)
            }),
            Collector::Buried(listed) => add("a collection removes", &|after| {
                after.doom(listed);
                after.grave |= self.lacks(Fault::GraveAfterRemoval) && after.listed() == 0;
                if after.name == Some(Volume::First) {
                    (after.name, after.is_name_doomed) = (None, true);
                }
                then(after, false)
            }),
            Collector::Names => add("a collection gives a name back", &|after| {
                let volume = if after.is_second_live { Volume::Second } else { Volume::First };
                after.name = after.name.or(Some(volume));
                Collector::LooksAgain
            }),
            Collector::LooksAgain => add("a collection looks again", &|after| {
                let is_deleted = after.newest().is_some_and(|(_, newest)| newest.fate != Fate::Live);
                if after.name == Some(Volume::First) && is_deleted {
                    (after.name, after.is_name_doomed) = (None, true);
                }
                Collector::Rests
            }),
        }
    }

    fn arrive_again(&self, state: &State, found: &mut Vec<(Step, State)>) {
        for number in (1..=NUMBERS).filter(|number| state.at(*number).is_some()) {
            if state.doomed & bit(number) != 0 {
                let mut after = *state;
                after.manifests[usize::from(number) - 1] = None;
                found.push((("a deletion arrives", number), after));
            }
        }
        for sent in state.sent {
            for number in (1..=NUMBERS).filter(|number| state.at(*number).is_none()) {
                if let Some(manifest) = sent[usize::from(number) - 1] {
                    let mut after = *state;
                    after.put(number, manifest);
                    found.push((("a creation arrives late", number), after));
                }
            }
        }
        if state.is_name_doomed && state.name.is_some() {
            found.push((("the deletion of the name arrives late", 0), State { name: None, ..*state }));
        }
        if self.cast.creates && state.name.is_none() {
            let name = Some(Volume::First);
            found.push((("the creation of the name arrives late", 0), State { name, ..*state }));
        }
        if state.snapshots & state.snapshots_doomed != 0 {
            let snapshots = state.snapshots & !state.snapshots_doomed;
            found.push((("the deletion of a snapshot arrives late", 0), State { snapshots, ..*state }));
        }
    }

    fn create(&self, state: &State, found: &mut Vec<(Step, State)>) {
        let mut add = |step: &'static str, change: &dyn Fn(&mut State) -> Creator| {
            let mut after = *state;
            after.creator = change(&mut after);
            found.push(((step, 0), after));
        };
        let reads_grave = !self.lacks(Fault::NoGrave);
        match state.creator {
            Creator::Idle => add("a creator gives the name", &|after| match after.name {
                None => {
                    after.name = Some(Volume::Second);
                    Creator::Named
                }
                Some(Volume::First) => Creator::ReadName,
                Some(Volume::Second) => Creator::Done,
            }),
            Creator::Named => add("a creator creates a volume", &|after| {
                after.is_second_live = true;
                Creator::Done
            }),
            Creator::ReadName => add("a creator lists", &|after| match after.newest() {
                None => Creator::SawNoManifest,
                Some((_, newest)) if newest.fate == Fate::Live => Creator::Done,
                Some(_) => {
                    (after.name, after.is_name_doomed) = (None, true);
                    Creator::Idle
                }
            }),
            Creator::SawNoManifest => add("a creator looks for the grave", &|after| {
                if reads_grave && after.grave {
                    (after.name, after.is_name_doomed) = (None, true);
                    return Creator::Idle;
                }
                Creator::Adopts
            }),
            Creator::Adopts => add("a creator begins the volume", &|after| {
                if after.at(1).is_some() {
                    return Creator::Done;
                }
                after.put(1, Manifest { epoch: 1, writer: HOSTS, commits: 0, fate: Fate::Live });
                Creator::Begun
            }),
            Creator::Begun => add("a creator looks for the grave again", &|after| {
                if reads_grave && !self.lacks(Fault::GraveReadOnlyBefore) && after.grave {
                    after.doomed |= bit(1);
                } else if after.is_over {
                    after.broken = Some("an id is used again");
                }
                Creator::Done
            }),
            Creator::Done => {}
        }
    }

    fn snapshots(&self, state: &State, found: &mut Vec<(Step, State)>) {
        let mut add = |step: &'static str, change: &dyn Fn(&mut State)| {
            let mut after = *state;
            change(&mut after);
            found.push(((step, 0), after));
        };
        if state.snapshots == 0 && state.snapshots_made < 3 {
            add("a snapshot is made", &|after| {
                let made = 1 << after.snapshots_made;
                after.snapshots_made += 1;
                (after.snapshots, after.snapshots_wanted) = (made, made);
            });
        }
        if state.snapshots_wanted != 0 {
            add("a snapshot is deleted", &|after| {
                // Without a unique part, the deletion is one of all snapshots of the name, also of those to come.
                let all = self.lacks(Fault::SnapshotKeyUsedAgain);
                after.snapshots_doomed |= if all { u8::MAX } else { after.snapshots };
                (after.snapshots, after.snapshots_wanted) = (0, 0);
            });
        }
    }
}

fn explore(cast: Cast, faults: &[Fault]) -> Result<usize, (&'static str, Vec<Step>)> {
    Model { cast, faults }.explore()
}

#[test]
fn no_host_and_no_collection_breaks_a_promise_however_long_each_stands_still() {
    for cast in [TAKERS, ENDINGS, NAMES, SNAPSHOTS, ALL] {
        match explore(cast, &[]) {
            Ok(states) => {
                println!("{states} states of {cast:?}");
                assert!(states > 5, "{cast:?}");
            }
            Err((broken, way)) => panic!("{broken}: {way:#?}"),
        }
    }
}

#[test]
fn the_protocol_without_fences_and_graves_breaks_each_promise() {
    for (cast, promise) in [
        (TAKERS, "an acknowledged commit is lost"),
        (ENDINGS, "an id is used again"),
        (NAMES, "a live volume stays without a name"),
        (SNAPSHOTS, "a snapshot is lost"),
    ] {
        assert_eq!(explore(cast, &BEFORE).unwrap_err().0, promise);
    }
    assert_eq!(explore(NAMES, &[Fault::NoGrave]).unwrap_err().0, "an id is used again");
    let trusting = explore(ENDINGS, &[Fault::TakerTrustsListing]);
    assert_eq!(trusting.unwrap_err().0, "a host takes a volume over that is gone");
}

#[test]
fn each_rule_of_the_protocol_is_needed() {
    for (fault, cast) in [
        (Fault::NoFence, TAKERS),
        (Fault::FenceAfterManifest, TAKERS),
        (Fault::FencesListedFirst, TAKERS),
        (Fault::NoGrave, NAMES),
        (Fault::GraveAfterRemoval, NAMES),
        (Fault::GraveReadOnlyBefore, NAMES),
        (Fault::TakerTrustsListing, ENDINGS),
        (Fault::NameStaysLost, NAMES),
        (Fault::SnapshotKeyUsedAgain, SNAPSHOTS),
    ] {
        let found = explore(cast, &[fault]);
        println!("{fault:?}: {:?}", found.as_ref().map_err(|(broken, way)| (broken, way.len())));
        assert!(found.is_err(), "{fault:?} breaks nothing in {found:?} states");
    }
}
