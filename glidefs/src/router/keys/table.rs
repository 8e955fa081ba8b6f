//! The requests with an idempotency key in memory: which key is in which state, and which keys go first when there is no room.
//!
//! Owns no clock, no disk and no lock. Invariants: a key whose request is under way stays; a key with an unknown outcome stays for
//! [`KEEP_MILLIS`], unless the same request came with another key later; then, and of requests that were carried out, the oldest go
//! first; the work of a call is bounded.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::router::catalog::request_record::{Fingerprint, KeptAnswer, RequestKey};

/// How long a key is kept after the end of the request, or after the start that found the outcome unknown.
pub(super) const KEEP_MILLIS: u64 = 24 * 60 * 60 * 1000;
/// Most keys that one call removes because of their age, of each kind.
const EXPIRED_MAX: usize = 16;
/// Bytes of a key and a record apart from the answer: in memory, and about as many on disk.
const ENTRY_BYTES: u64 = 400;

/// The bounds on keys and answers together.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyLimits {
    /// Most keys at once, in any state.
    pub keys_max: usize,
    /// Most requests under way at once.
    pub under_way_max: usize,
    /// Most bytes of keys and answers.
    pub bytes_max: u64,
}

/// The answer to the question whether a request is to be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request is under way now, and is to be carried out.
    Admitted,
    /// The request was carried out before, with this answer.
    Done(Arc<KeptAnswer>),
    /// The request is under way.
    InUse,
    /// The key belongs to another request.
    Reused,
    /// Nobody knows whether the request was carried out.
    Unknown,
    /// There is no room for another key.
    Full,
}

/// The place of a key among those to go: when it goes, and a number that tells equal times apart.
type Place = (u64, u64, RequestKey);

#[derive(Debug)]
enum EntryState {
    UnderWay,
    Done(Arc<KeptAnswer>, Place),
    Unknown(Place),
}

#[derive(Debug)]
struct Entry {
    /// `None` where a damaged record does not tell: the key then belongs to every request.
    fingerprint: Option<Fingerprint>,
    state: EntryState,
}

impl Entry {
    /// The answer to the request `fingerprint` with the key of this entry.
    fn verdict(&self, fingerprint: Fingerprint) -> Verdict {
        match &self.state {
            _ if self.fingerprint.is_some_and(|other| other != fingerprint) => Verdict::Reused,
            EntryState::UnderWay => Verdict::InUse,
            EntryState::Done(answer, _) => Verdict::Done(Arc::clone(answer)),
            EntryState::Unknown(_) => Verdict::Unknown,
        }
    }
}

/// The requests with an idempotency key.
#[derive(Debug)]
pub(super) struct Table {
    limits: KeyLimits,
    entries: HashMap<RequestKey, Entry>,
    done: BTreeSet<Place>,
    unknown: BTreeSet<Place>,
    /// Those with an unknown outcome whose request came again with another key: the client has looked, and asked anew. So a store that
    /// is away for long, and clients that try again with new keys, do not take the keys of everybody else.
    superseded: BTreeSet<Place>,
    /// The key with which each request came last.
    latest: HashMap<Fingerprint, RequestKey>,
    under_way: usize,
    bytes: u64,
    next: u64,
}

impl Table {
    pub fn new(limits: KeyLimits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            done: BTreeSet::new(),
            unknown: BTreeSet::new(),
            superseded: BTreeSet::new(),
            latest: HashMap::new(),
            under_way: 0,
            bytes: 0,
            next: 0,
        }
    }

    /// Keys in memory, in any state.
    pub fn keys(&self) -> usize {
        self.entries.len()
    }

    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Bytes of keys and answers.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the request `fingerprint` with `key` is to be carried out at `now`. Also the keys that have gone.
    pub fn admit(
        &mut self,
        key: RequestKey,
        fingerprint: Fingerprint,
        now: u64,
    ) -> (Verdict, Vec<RequestKey>) {
        let mut gone = self.expire(now);
        if let Some(entry) = self.entries.get(&key) {
            return (entry.verdict(fingerprint), gone);
        }
        if self.under_way >= self.limits.under_way_max || !self.make_room(&mut gone) {
            return (Verdict::Full, gone);
        }
        self.insert(key, Entry { fingerprint: Some(fingerprint), state: EntryState::UnderWay });
        (Verdict::Admitted, gone)
    }

    /// Has the request with `key`, which is under way, count as carried out until `KEEP_MILLIS` after `now`. Returns the keys that have
    /// gone for the room.
    pub fn finish(&mut self, key: RequestKey, answer: KeptAnswer, now: u64) -> Vec<RequestKey> {
        let Some(entry) = self.remove(key) else { return Vec::new() };
        self.insert_done(key, entry.fingerprint, answer, now.saturating_add(KEEP_MILLIS));
        let mut gone = Vec::new();
        while self.bytes > self.limits.bytes_max && self.done.len() > 1 {
            gone.extend(self.remove_oldest_done());
        }
        gone
    }

    /// Has nobody know whether the request with `key`, which is under way, was carried out.
    pub fn lose(&mut self, key: RequestKey, now: u64) {
        if let Some(entry) = self.remove(key) {
            self.insert_unknown(key, entry.fingerprint, now.saturating_add(KEEP_MILLIS));
        }
    }

    /// Forgets `key`, whatever the state.
    pub fn free(&mut self, key: RequestKey) {
        self.remove(key);
    }

    /// Adds a request that was carried out, and whose key goes at `until`.
    pub fn insert_done(
        &mut self,
        key: RequestKey,
        fingerprint: Option<Fingerprint>,
        answer: KeptAnswer,
        until: u64,
    ) {
        let place = self.place(until, key);
        self.insert(key, Entry { fingerprint, state: EntryState::Done(Arc::new(answer), place) });
    }

    /// Adds a request with an unknown outcome, whose key goes at `until`.
    pub fn insert_unknown(&mut self, key: RequestKey, fingerprint: Option<Fingerprint>, until: u64) {
        let place = self.place(until, key);
        self.insert(key, Entry { fingerprint, state: EntryState::Unknown(place) });
    }

    /// Removes superseded requests and those that were carried out, the oldest first, while there are more keys or bytes than allowed.
    pub fn shrink(&mut self) -> Vec<RequestKey> {
        let mut gone = Vec::new();
        while self.entries.len() > self.limits.keys_max || self.bytes > self.limits.bytes_max {
            let Some(key) = self.remove_oldest() else { break };
            gone.push(key);
        }
        gone
    }

    fn place(&mut self, until: u64, key: RequestKey) -> Place {
        self.next = self.next.wrapping_add(1);
        (until, self.next, key)
    }

    /// Removes some of the keys whose time is over.
    fn expire(&mut self, now: u64) -> Vec<RequestKey> {
        let mut gone = Vec::new();
        for places in [&self.done, &self.unknown, &self.superseded] {
            let over = places.iter().take(EXPIRED_MAX).take_while(|(until, ..)| *until <= now);
            gone.extend(over.map(|(.., key)| *key));
        }
        for key in &gone {
            self.remove(*key);
        }
        gone
    }

    /// Whether there is room for one more key, once the oldest of those superseded or carried out has gone.
    fn make_room(&mut self, gone: &mut Vec<RequestKey>) -> bool {
        let is_full = |table: &Self| {
            table.entries.len() >= table.limits.keys_max
                || table.bytes.saturating_add(ENTRY_BYTES) > table.limits.bytes_max
        };
        while is_full(self) {
            let Some(key) = self.remove_oldest() else { return false };
            gone.push(key);
        }
        true
    }

    fn remove_oldest(&mut self) -> Option<RequestKey> {
        let Some((.., key)) = self.superseded.first().copied() else { return self.remove_oldest_done() };
        self.remove(key);
        Some(key)
    }

    fn remove_oldest_done(&mut self) -> Option<RequestKey> {
        let (.., key) = *self.done.first()?;
        self.remove(key);
        Some(key)
    }

    fn insert(&mut self, key: RequestKey, entry: Entry) {
        self.remove(key);
        if let Some(fingerprint) = entry.fingerprint
            && let Some(earlier) = self.latest.insert(fingerprint, key)
            && let Some(EntryState::Unknown(place)) = self.entries.get(&earlier).map(|entry| &entry.state)
            && self.unknown.remove(place)
        {
            self.superseded.insert(*place);
        }
        match &entry.state {
            EntryState::UnderWay => self.under_way = self.under_way.saturating_add(1),
            EntryState::Done(_, place) => drop(self.done.insert(*place)),
            EntryState::Unknown(place) => drop(self.unknown.insert(*place)),
        }
        self.bytes = self.bytes.saturating_add(bytes_of(&entry));
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: RequestKey) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        match &entry.state {
            EntryState::UnderWay => self.under_way = self.under_way.saturating_sub(1),
            EntryState::Done(_, place) => drop(self.done.remove(place)),
            EntryState::Unknown(place) => drop(self.unknown.remove(place) || self.superseded.remove(place)),
        }
        if let Some(fingerprint) = entry.fingerprint
            && self.latest.get(&fingerprint) == Some(&key)
        {
            self.latest.remove(&fingerprint);
        }
        self.bytes = self.bytes.saturating_sub(bytes_of(&entry));
        Some(entry)
    }
}

fn bytes_of(entry: &Entry) -> u64 {
    let answer = if let EntryState::Done(answer, _) = &entry.state { answer.bytes() } else { 0 };
    answer.saturating_add(ENTRY_BYTES)
}
