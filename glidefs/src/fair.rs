//! A queue for items of many keys: weighted fair queueing over the keys, first in, first out within a key.
//!
//! Owns the order. Does not own the resource for which items wait: the caller looks at the next item with [`Fair::peek`], and
//! takes the item with [`Fair::pop`] when the resource suffices. Once seen with `peek`, the next item stays the next one, however
//! small a newcomer is.
//!
//! The order is that of virtual finish times: of the moments at which the items would end if all keys were served at the same time,
//! each at a rate in proportion to the weight (generalized processor sharing). Virtual time is the cost which a key of weight one, had
//! the key always had items, would have been served.
//! A key's first item starts at the virtual finish time of the key's last item, or now if later, and ends cost ÷ weight later. So a
//! key which asks for little is served at once, however many others ask for much, as long as the key stays within its part by weight
//! (weighted fair queueing: Demers, Keshav and Shenker, 1989). Virtual time never lags behind the earliest start of a waiting item (as
//! in WF²Q+: Bennett and Zhang, 1997).
//!
//! With bundles ([`Fair::in_bundles`]) the first items of a key, up to a given cost, count as one item for the order: so they are
//! served one after another, except that an item of another key goes between them if it ends before the bundle does. A bundle is chosen
//! when the one before has ended, or when an item is removed; so the first item of a key that had none is a bundle alone. Compared to
//! single items, keys that ask for little wait less on average; a key that asks for all of its part may wait for a bundle of each other
//! key once it was served a bundle ahead.
//!
//! # Guarantees
//!
//! With bundles, an item is here a bundle, and the turn of an item that of its first one.
//!
//! - Between the moment at which an item becomes the first of a key and the item's turn, all other keys together are served for at
//!   most the cost of the item times the sum of the weights ÷ the key's weight, and the largest cost of an item; one item more if a
//!   caller has seen the item. A key served more than its part by weight pays the surplus back first.
//! - The surplus of a key without items is cut to the cost of the last item served, or of the largest bundle allowed if that is more,
//!   times the sum of the weights ÷ the key's weight, and lasts until others are served. What is cut the other keys with items are
//!   owed still, at most about an item each, and a newcomer may wait for that too.
//! - Of keys which always have items, each pair is served in proportion to the weights, within an item of each.
//! - There is a next item whenever there is an item.
//!
//! The guarantees are those of [`Fair::pop`]. A key passed over by [`Fair::pop_where`] waits for as long as the caller passes over the
//! key.
//!
//! `push`, `pop` and `remove` take time in the logarithm of the number of keys; `pop_where` takes as much for each key passed over, and
//! `remove_all` looks at each item.

mod order;

use std::collections::HashMap;
use std::hash::Hash;

use slab::Slab;

use self::order::Order;

/// Weight of a key without preference.
pub(crate) const WEIGHT_DEFAULT: u16 = 100;
/// Largest weight; the smallest is 1.
pub(crate) const WEIGHT_MAX: u16 = 1000;

/// Time for a cost of one at weight one. Larger than any weight, so that the rounding of a quotient is small.
const TIME_SCALE: u64 = 1 << 20;
/// Most keys without items that an empty queue remembers. Beyond this number the queue forgets all of these, and the surplus of each.
const RESTING_MAX: usize = 1024;

/// Virtual time. 128 bits do not run out: a cost has 64.
type Time = u128;

/// Items of many keys, in the order of service.
#[derive(Debug)]
pub(crate) struct Fair<K, T> {
    items: Slab<Item<T>>,
    keys: Slab<Key<K>>,
    places: HashMap<K, usize>,
    /// The keys with items by the end of the first bundle; of equal ends, the key which has had items for longer comes first.
    turns: Order<(Time, u64, usize)>,
    /// The same keys by the start of the first item.
    starts: Order<(Time, usize)>,
    /// The keys without items which were served ahead of the others, by the end of the last item.
    resting: Order<(Time, usize)>,
    now: Time,
    /// The sum of the weights of all keys.
    weights: u128,
    /// The number of the next key that gets items.
    number: u64,
    /// The key of the next item, once a caller has seen the item.
    seen: Option<usize>,
    /// Most cost of a bundle of more than one item.
    bundle_max: u64,
}

/// The place of an item, good until the item is taken out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place(usize);

#[derive(Debug)]
struct Item<T> {
    value: T,
    cost: u64,
    key: usize,
    before: Option<usize>,
    behind: Option<usize>,
}

#[derive(Debug)]
struct Key<K> {
    name: K,
    weight: u16,
    number: u64,
    /// When the first item starts; without items, when the last one served ended.
    start: Time,
    first: Option<usize>,
    last: Option<usize>,
    /// Cost of the first items that are a bundle, without those served; `None` without items, or if the bundle is to be chosen.
    bundle: Option<u64>,
}

impl<K: Copy + Eq + Hash, T> Fair<K, T> {
    /// A queue in which each item is a bundle of its own.
    pub fn new() -> Self {
        Self::in_bundles(0)
    }

    /// A queue that serves the items of a key in bundles of a cost of at most `bundle_max`; one item alone may cost more.
    pub fn in_bundles(bundle_max: u64) -> Self {
        Self {
            items: Slab::new(),
            keys: Slab::new(),
            places: HashMap::new(),
            turns: Order::new(),
            starts: Order::new(),
            resting: Order::new(),
            now: 0,
            weights: 0,
            number: 0,
            seen: None,
            bundle_max,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no item, and no key without items was served ahead of others: so nothing is lost where the items of one key alone
    /// pass by the queue. Times are rounded, by less than a byte.
    pub fn is_at_rest(&self) -> bool {
        let last = self.resting.last().map(|(end, _)| end);
        self.items.is_empty() && last.is_none_or(|end| end <= self.now.saturating_add(Time::from(TIME_SCALE)))
    }

    pub fn has(&self, key: &K) -> bool {
        self.places.get(key).is_some_and(|&place| self.keys[place].first.is_some())
    }

    /// Adds an item behind all others of `key`. The weight holds for all items of the key from now on.
    pub fn push(&mut self, key: K, weight: u16, cost: u64, value: T) -> Place {
        let place = self.places.get(&key).copied().unwrap_or_else(|| {
            let (first, last, bundle) = (None, None, None);
            let new = Key { name: key, weight: 0, number: 0, start: self.now, first, last, bundle };
            let place = self.keys.insert(new);
            self.places.insert(key, place);
            place
        });
        let weight = weight.clamp(1, WEIGHT_MAX);
        // A stream of items without a cost would keep all other keys waiting.
        let cost = cost.max(1);
        let of_key = &mut self.keys[place];
        if let Some(before) = of_key.last.filter(|_| of_key.weight == weight) {
            // The first items of the key are chosen already, so the key keeps its place in all orders.
            let item = Item { value, cost, key: place, before: Some(before), behind: None };
            let item = self.items.insert(item);
            of_key.last = Some(item);
            self.items[before].behind = Some(item);
            return Place(item);
        }
        self.leave(place);
        let of_key = &mut self.keys[place];
        self.weights += u128::from(weight);
        self.weights -= u128::from(std::mem::replace(&mut of_key.weight, weight));
        let item = self.items.insert(Item { value, cost, key: place, before: of_key.last, behind: None });
        match of_key.last.replace(item) {
            Some(before) => self.items[before].behind = Some(item),
            None => {
                (of_key.first, of_key.number) = (Some(item), self.number);
                of_key.start = of_key.start.max(self.now);
                self.number += 1;
            }
        }
        self.enter(place);
        Place(item)
    }

    /// The next item, with the key. The answer stays the same until the item is taken out, whatever is added.
    pub fn peek(&mut self) -> Option<(K, &T)> {
        let key = self.head()?;
        self.seen = Some(key);
        let of_key = &self.keys[key];
        Some((of_key.name, &self.items[of_key.first?].value))
    }

    /// Takes the next item out.
    pub fn pop(&mut self) -> Option<T> {
        let key = self.head()?;
        self.serve(key, &[]).map(|(_, item)| item)
    }

    /// Takes the next item out if `fits` is true for the key and the item. A newcomer may be the next one then.
    pub fn pop_if(&mut self, fits: impl Fn(&K, &T) -> bool) -> Option<T> {
        let key = self.head()?;
        let of_key = &self.keys[key];
        fits(&of_key.name, &self.items[of_key.first?].value).then(|| self.pop()).flatten()
    }

    /// Takes the next item of the keys out for which `may` is true, asked with the first item of the key. Other keys wait on, and
    /// get nothing later for the turns they miss.
    pub fn pop_where(&mut self, may: impl Fn(&K, &T) -> bool) -> Option<(K, T)> {
        let key = self.next_of(&may)?;
        let before = self.turns.iter().map(|turn| turn.2).take_while(|&other| other != key);
        let passed_over: Vec<usize> = before.filter(|&other| !self.may(other, &may)).collect();
        self.serve(key, &passed_over)
    }

    /// Takes the first item of a key out, and moves the keys that were passed over to the start of the item.
    fn serve(&mut self, key: usize, passed_over: &[usize]) -> Option<(K, T)> {
        let first = self.keys[key].first?;
        let (name, cost, has_more) =
            (self.keys[key].name, self.items[first].cost, self.items[first].behind.is_some());
        let Key { start, weight, bundle, .. } = self.keys[key];
        let bundle = bundle.unwrap_or(cost);
        let left = bundle.saturating_sub(cost);
        let goes_on = left > 0 && has_more;
        if goes_on {
            // The bundle ends when it did before, so the key keeps its turn.
            self.starts.remove(&(start, key));
        } else {
            self.leave(key);
        }
        let of_key = &mut self.keys[key];
        // From the end back: so what is left of a bundle ends when the bundle does, whatever is rounded.
        of_key.start = start.saturating_add(time_of(bundle, weight)).saturating_sub(time_of(left, weight));
        let value = self.take(first);
        let surplus_max = cost.max(self.bundle_max);
        let of_key = &mut self.keys[key];
        of_key.bundle = Some(left).filter(|left| *left > 0);
        if of_key.first.is_none() {
            // A key that has one item again and again must not add up a surplus.
            of_key.start = of_key.start.min(self.now.saturating_add(time_of(surplus_max, of_key.weight)));
        }
        if goes_on {
            self.starts.insert((self.keys[key].start, key));
        } else {
            self.enter(key);
        }
        for &key in passed_over {
            self.leave(key);
            self.keys[key].start = self.keys[key].start.max(start);
            self.enter(key);
        }
        self.pass(cost);
        Some((name, value))
    }

    /// Takes any item out, without a turn.
    pub fn remove(&mut self, place: &Place) -> Option<T> {
        let key = self.items.get(place.0)?.key;
        self.leave(key);
        let value = self.take(place.0);
        self.enter(key);
        Some(value)
    }

    /// Takes all items out for which `is_out` is true, and gives the items to `out`; within a key oldest first.
    pub fn remove_all(&mut self, mut is_out: impl FnMut(&T) -> bool, mut out: impl FnMut(T)) {
        let keys: Vec<usize> = self.turns.iter().map(|turn| turn.2).collect();
        for key in keys {
            self.leave(key);
            let mut next = self.keys[key].first;
            while let Some(item) = next {
                next = self.items[item].behind;
                if is_out(&self.items[item].value) {
                    out(self.take(item));
                }
            }
            self.enter(key);
        }
    }

    /// The key of the next item.
    fn head(&self) -> Option<usize> {
        self.seen.or_else(|| self.turns.first().map(|turn| turn.2))
    }

    /// The key of the next item, of the keys for which `may` is true.
    fn next_of(&self, may: impl Fn(&K, &T) -> bool) -> Option<usize> {
        let seen = self.seen.filter(|&seen| self.may(seen, &may));
        seen.or_else(|| self.turns.iter().map(|turn| turn.2).find(|&key| self.may(key, &may)))
    }

    fn may(&self, key: usize, may: &impl Fn(&K, &T) -> bool) -> bool {
        let key = &self.keys[key];
        key.first.is_some_and(|first| may(&key.name, &self.items[first].value))
    }

    /// Takes an item out of the list of its key. Call between [`Self::leave`] and [`Self::enter`] of the key.
    fn take(&mut self, place: usize) -> T {
        let Item { value, key, before, behind, .. } = self.items.remove(place);
        match before {
            Some(before) => self.items[before].behind = behind,
            None => {
                self.keys[key].first = behind;
                self.seen = self.seen.filter(|seen| *seen != key);
            }
        }
        match behind {
            Some(behind) => self.items[behind].before = before,
            None => self.keys[key].last = before,
        }
        self.keys[key].bundle = None;
        value
    }

    /// When the first bundle of a key ends; `None` without items.
    fn end(&self, place: usize) -> Option<Time> {
        let key = &self.keys[place];
        Some(key.start.saturating_add(time_of(key.bundle?, key.weight)))
    }

    /// The cost of the items from `first` on that fit in a bundle; of `first` alone, if no more do.
    fn bundle_from(&self, first: usize) -> u64 {
        let (mut cost, mut next) = (self.items[first].cost, self.items[first].behind);
        while let Some(item) = next {
            let Some(sum) = cost.checked_add(self.items[item].cost).filter(|sum| *sum <= self.bundle_max)
            else {
                break;
            };
            (cost, next) = (sum, self.items[item].behind);
        }
        cost
    }

    /// Takes a key out of all orders, to be changed.
    fn leave(&mut self, place: usize) {
        let (start, number) = (self.keys[place].start, self.keys[place].number);
        if let Some(end) = self.end(place) {
            self.turns.remove(&(end, number, place));
            self.starts.remove(&(start, place));
        } else {
            self.resting.remove(&(start, place));
        }
    }

    /// Puts a key back into the orders, or forgets a key without items that nobody needs to catch up with.
    fn enter(&mut self, place: usize) {
        let Key { start, number, first, bundle, .. } = self.keys[place];
        self.keys[place].bundle = first.map(|first| bundle.unwrap_or_else(|| self.bundle_from(first)));
        if let Some(end) = self.end(place) {
            self.turns.insert((end, number, place));
            self.starts.insert((start, place));
        } else if start > self.now {
            self.resting.insert((start, place));
        } else {
            self.forget(place);
        }
        if self.turns.is_empty() && self.resting.len() > RESTING_MAX {
            for (_, place) in self.resting.take_all() {
                self.forget(place);
            }
        }
    }

    fn forget(&mut self, place: usize) {
        let key = self.keys.remove(place);
        self.places.remove(&key.name);
        self.weights -= u128::from(key.weight);
    }

    /// Moves the clock on by a service of cost `cost`, which all keys share by weight: a key without items only until its last item ends.
    fn pass(&mut self, cost: u64) {
        let mut work = work_of(cost);
        while let Some((end, _)) = self.resting.first() {
            let needed = end.saturating_sub(self.now).saturating_mul(self.weights);
            if needed > work {
                break;
            }
            work -= needed;
            self.advance(end);
        }
        self.advance(self.now.saturating_add(work / self.weights.max(1)));
        // Where the first items of all keys start later than now, no key was owed the time between.
        if let Some((start, _)) = self.starts.first() {
            self.advance(start);
        }
    }

    /// Sets the clock to `now`, if later.
    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some((end, place)) = self.resting.first().filter(|(end, _)| *end <= self.now) {
            self.resting.remove(&(end, place));
            self.forget(place);
        }
    }
}

/// Time which a service of this cost adds to the clock of a key of weight one.
fn work_of(cost: u64) -> Time {
    Time::from(cost).saturating_mul(Time::from(TIME_SCALE))
}

/// Time which an item of this cost takes on the clock.
fn time_of(cost: u64, weight: u16) -> Time {
    let weight = weight.max(1);
    let short = cost.checked_mul(TIME_SCALE).map(|work| Time::from(work.div_ceil(u64::from(weight))));
    short.unwrap_or_else(|| work_of(cost).div_ceil(Time::from(weight)))
}

#[cfg(test)]
mod tests;
