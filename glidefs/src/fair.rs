//! A queue for items of many keys: weighted deficit round robin over the keys, first in, first out within a key.
//!
//! Owns the order. Does not own the resource for which items wait: the caller looks at the next item with [`Fair::peek`], and
//! takes the item with [`Fair::pop`] when the resource suffices. Until then nobody overtakes the next item, however small.
//!
//! Each round serves a key for at most the quantum times weight ÷ [`WEIGHT_DEFAULT`]; the part of the share too small for the next
//! item is kept for the next round. A key without items loses the rest of the share, and begins behind all other keys.
//!
//! # Guarantees
//!
//! Let `share(k)` be the cost served to key `k` in a round, and `rounds` = ⌈cost ÷ `share(k)`⌉ of an item of `k`.
//!
//! - Between the moment at which the item becomes the first of `k` and the item's turn, each other key `j` is served for at most
//!   (`rounds` + 1) × `share(j)` + the largest cost of an item of `j`.
//! - Of keys that always have items, each pair is served in proportion to the weights, within a share and an item of each.
//! - There is a next item whenever there is an item.
//!
//! Each call takes constant time where the share of each key suffices for one item. Otherwise [`Fair::peek`] may look at each
//! key twice: rounds without a served item are skipped at once. Calls allocate nothing once there is room for as many items and
//! keys as wait at the same time.

use std::collections::HashMap;
use std::hash::Hash;

use slab::Slab;

/// Weight of a key without preference.
pub(crate) const WEIGHT_DEFAULT: u16 = 100;
/// Largest weight; the smallest is 1.
pub(crate) const WEIGHT_MAX: u16 = 1000;

/// Items of many keys, in the order of service.
#[derive(Debug)]
pub(crate) struct Fair<K, T> {
    items: Slab<Linked<Item<T>>>,
    keys: Slab<Linked<Key<K>>>,
    places: HashMap<K, usize>,
    /// Keys in the order of turns. None is without items.
    turns: Ends,
    /// The first key has got the share of this round.
    has_share: bool,
    /// Cost served to a key of the default weight in a round.
    quantum: u64,
}

/// The place of an item, good until the item is taken out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place(usize);

#[derive(Debug)]
struct Item<T> {
    value: T,
    /// In hundredths, as a share is.
    cost: u64,
    key: usize,
}

#[derive(Debug)]
struct Key<K> {
    name: K,
    weight: u16,
    /// The part of the share not used yet.
    deficit: u64,
    items: Ends,
}

/// An element of a slab, in a list.
#[derive(Debug)]
struct Linked<V> {
    value: V,
    before: Option<usize>,
    behind: Option<usize>,
}

/// The ends of a list of elements of a slab.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    first: Option<usize>,
    last: Option<usize>,
}

impl<K: Copy + Eq + Hash, T> Fair<K, T> {
    /// An empty queue. A round serves items of cost `quantum` to each key of weight [`WEIGHT_DEFAULT`].
    pub fn new(quantum: u64) -> Self {
        Self {
            items: Slab::new(),
            keys: Slab::new(),
            places: HashMap::new(),
            turns: Ends::default(),
            has_share: false,
            quantum: quantum.max(1),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn has(&self, key: &K) -> bool {
        self.places.contains_key(key)
    }

    /// Adds an item behind all others of `key`. The weight holds for all items of the key from now on.
    pub fn push(&mut self, key: K, weight: u16, cost: u64, value: T) -> Place {
        let weight = weight.clamp(1, WEIGHT_MAX);
        let cost = cost.saturating_mul(u64::from(WEIGHT_DEFAULT));
        let place = match self.places.get(&key) {
            Some(&place) => place,
            None => {
                let new = Key { name: key, weight, deficit: 0, items: Ends::default() };
                let place = self.turns.append(&mut self.keys, new);
                self.places.insert(key, place);
                place
            }
        };
        let key = &mut self.keys[place].value;
        key.weight = weight;
        Place(key.items.append(&mut self.items, Item { value, cost, key: place }))
    }

    /// The next item, with the key. The answer stays the same until items are taken out, whatever is added.
    pub fn peek(&mut self) -> Option<(K, &T)> {
        let item = self.settle(|_| true)?;
        let Item { value, key, .. } = &self.items[item].value;
        Some((self.keys[*key].value.name, value))
    }

    /// Takes the next item out.
    pub fn pop(&mut self) -> Option<T> {
        self.pop_where(|_| true).map(|(_, item)| item)
    }

    /// Takes the next item of the keys out for which `may` is true. Other keys wait on.
    pub fn pop_where(&mut self, may: impl Fn(&K) -> bool) -> Option<(K, T)> {
        let item = self.settle(may)?;
        let Item { cost, key, .. } = self.items[item].value;
        let key = &mut self.keys[key].value;
        // `settle` has compared the two.
        key.deficit -= cost;
        Some((key.name, self.take(item)))
    }

    /// Takes any item out, without a turn.
    pub fn remove(&mut self, place: &Place) -> Option<T> {
        self.items.contains(place.0).then(|| self.take(place.0))
    }

    /// Takes all items out for which `is_out` is true, and gives the items to `out`; within a key oldest first.
    pub fn remove_all(&mut self, mut is_out: impl FnMut(&T) -> bool, mut out: impl FnMut(T)) {
        let mut key = self.turns.first;
        while let Some(place) = key {
            // The key may be gone with its last item.
            key = self.keys[place].behind;
            let mut item = self.keys[place].value.items.first;
            while let Some(place) = item {
                item = self.items[place].behind;
                if is_out(&self.items[place].value.value) {
                    out(self.take(place));
                }
            }
        }
    }

    /// Goes on to the key with the next item, of the keys for which `may` is true, and returns the item's place. Other keys are
    /// treated as if without items, but keep the part of a share saved for the next item. Changes nothing if there is no such key.
    fn settle(&mut self, may: impl Fn(&K) -> bool) -> Option<usize> {
        let mut candidate = self.turns.first?;
        while !may(&self.keys[candidate].value.name) {
            candidate = self.keys[candidate].behind?;
        }
        let mut passed = 0;
        loop {
            let first = self.turns.first?;
            let item = self.keys[first].value.items.first?;
            let share = self.share(first);
            let key = &mut self.keys[first].value;
            if may(&key.name) {
                if !std::mem::replace(&mut self.has_share, true) {
                    key.deficit = key.deficit.saturating_add(share);
                }
                if self.items[item].value.cost <= key.deficit {
                    return Some(item);
                }
            } else if self.has_share {
                key.deficit = key.deficit.saturating_sub(share);
            }
            self.rotate();
            passed += 1;
            if passed == self.keys.len() {
                self.skip_rounds(&may);
                passed = 0;
            }
        }
    }

    /// Gives each key the shares of the rounds which would serve nobody. Called between two rounds.
    fn skip_rounds(&mut self, may: impl Fn(&K) -> bool) {
        let missing = self.keys.iter().filter(|(_, key)| may(&key.value.name)).filter_map(|(place, key)| {
            let cost = self.items[key.value.items.first?].value.cost;
            Some(cost.saturating_sub(key.value.deficit).div_ceil(self.share(place)))
        });
        let skipped = missing.min().unwrap_or(0).saturating_sub(1);
        let quantum = self.quantum;
        for (_, key) in self.keys.iter_mut().filter(|(_, key)| may(&key.value.name)) {
            let key = &mut key.value;
            key.deficit = key.deficit.saturating_add(share(quantum, key.weight).saturating_mul(skipped));
        }
    }

    /// Ends the turn of the first key.
    fn rotate(&mut self) {
        if let Some(first) = self.turns.first {
            self.turns.unlink(&mut self.keys, first);
            self.turns.link_last(&mut self.keys, first);
        }
        self.has_share = false;
    }

    fn take(&mut self, place: usize) -> T {
        let key = self.items[place].value.key;
        self.keys[key].value.items.unlink(&mut self.items, place);
        let item = self.items.remove(place).value;
        if self.keys[key].value.items.first.is_none() {
            if self.turns.first == Some(key) {
                self.has_share = false;
            }
            self.turns.unlink(&mut self.keys, key);
            let key = self.keys.remove(key).value;
            self.places.remove(&key.name);
        }
        item.value
    }

    fn share(&self, key: usize) -> u64 {
        share(self.quantum, self.keys[key].value.weight)
    }
}

/// Hundredths of cost served in a round to a key of this weight.
fn share(quantum: u64, weight: u16) -> u64 {
    quantum.saturating_mul(u64::from(weight))
}

impl Ends {
    /// Adds an element at the end of the list.
    fn append<V>(&mut self, slab: &mut Slab<Linked<V>>, value: V) -> usize {
        let place = slab.insert(Linked { value, before: None, behind: None });
        self.link_last(slab, place);
        place
    }

    fn link_last<V>(&mut self, slab: &mut Slab<Linked<V>>, place: usize) {
        let last = self.last;
        self.join(slab, last, Some(place));
        self.join(slab, Some(place), None);
    }

    fn unlink<V>(&mut self, slab: &mut Slab<Linked<V>>, place: usize) {
        let Linked { before, behind, .. } = slab[place];
        self.join(slab, before, behind);
    }

    /// Makes two elements neighbours; none stands for an end of the list.
    fn join<V>(&mut self, slab: &mut Slab<Linked<V>>, before: Option<usize>, behind: Option<usize>) {
        match before {
            Some(before) => slab[before].behind = behind,
            None => self.first = behind,
        }
        match behind {
            Some(behind) => slab[behind].before = before,
            None => self.last = before,
        }
    }
}

#[cfg(test)]
mod tests;
