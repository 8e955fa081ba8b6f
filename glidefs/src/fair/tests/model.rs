//! The model of the order: a list of all keys, each looked at for each item.

use std::collections::VecDeque;

use super::super::{time_of, work_of};

/// One key of the model, remembered for ever.
#[derive(Debug)]
pub(super) struct ModelKey {
    pub(super) name: u8,
    weight: u16,
    /// When the first item starts, or the last one ended.
    start: u128,
    /// Counts keys in the order of their first items.
    number: u32,
    /// Number and cost of each item.
    pub(super) items: VecDeque<(u32, u64)>,
    /// How many of the first items are a bundle.
    bundle: usize,
}

impl ModelKey {
    /// End of the first bundle, and the key's number.
    fn turn(&self) -> (u128, u32) {
        let cost = self.items.iter().take(self.bundle).map(|(_, cost)| *cost).sum();
        (self.start + time_of(cost, self.weight), self.number)
    }

    /// Chooses the items of the first bundle.
    fn choose(&mut self, most: u64) {
        let fits = |count: &usize| self.items.iter().take(*count).map(|(_, cost)| *cost).sum::<u64>() <= most;
        self.bundle = (2..=self.items.len()).take_while(fits).last().unwrap_or(1);
    }
}

/// Weighted fair queueing over a list of all keys.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) keys: Vec<ModelKey>,
    now: u128,
    numbers: u32,
    /// The name of the key whose first item was seen.
    seen: Option<u8>,
    bundle_max: u64,
}

impl Model {
    pub(super) fn in_bundles(bundle_max: u64) -> Self {
        Self { bundle_max, ..Self::default() }
    }

    pub(super) fn push(&mut self, name: u8, weight: u16, (number, cost): (u32, u64)) {
        if !self.keys.iter().any(|key| key.name == name) {
            let items = VecDeque::new();
            self.keys.push(ModelKey { name, weight, start: 0, number: 0, items, bundle: 0 });
        }
        let key = self.keys.iter_mut().find(|key| key.name == name).unwrap();
        if key.items.is_empty() {
            (key.start, key.number, key.bundle) = (key.start.max(self.now), self.numbers, 1);
            self.numbers += 1;
        }
        key.weight = weight;
        key.items.push_back((number, cost.max(1)));
    }

    /// The index of the key with the next item of those for which `may` is true.
    pub(super) fn next(&self, may: impl Fn(u8) -> bool) -> Option<usize> {
        let allowed =
            || self.keys.iter().enumerate().filter(|(_, key)| !key.items.is_empty() && may(key.name));
        let (first, _) = allowed().min_by_key(|(_, key)| key.turn())?;
        allowed().find(|(_, key)| Some(key.name) == self.seen).map(|(seen, _)| seen).or(Some(first))
    }

    pub(super) fn peek(&mut self) -> Option<(u8, u32)> {
        let at = self.next(|_| true)?;
        self.seen = Some(self.keys[at].name);
        Some((self.keys[at].name, self.keys[at].items[0].0))
    }

    pub(super) fn pop(&mut self, may: impl Fn(u8) -> bool) -> Option<(u8, u32)> {
        let at = self.next(&may)?;
        let turn = self.keys[at].turn();
        let (name, (number, cost)) = (self.keys[at].name, self.keys[at].items[0]);
        let passed: Vec<u8> = self
            .keys
            .iter()
            .filter(|key| !key.items.is_empty() && key.turn() < turn && !may(key.name))
            .map(|key| key.name)
            .collect();
        let (start, left) = (self.keys[at].start, self.keys[at].bundle - 1);
        let rest: u64 = self.keys[at].items.iter().take(left + 1).skip(1).map(|(_, cost)| *cost).sum();
        self.keys[at].start = turn.0 - time_of(rest, self.keys[at].weight);
        self.remove(number);
        let now = self.now;
        let key = &mut self.keys[at];
        if key.items.is_empty() {
            key.start = key.start.min(now + time_of(cost.max(self.bundle_max), key.weight));
        } else if left > 0 {
            key.bundle = left;
        }
        for key in self.keys.iter_mut().filter(|key| passed.contains(&key.name)) {
            key.start = key.start.max(start);
        }
        self.pass(cost);
        Some((name, number))
    }

    /// Serves all keys at the same time, until keys without further items end.
    fn pass(&mut self, cost: u64) {
        let mut work = work_of(cost);
        loop {
            let active = || self.keys.iter().filter(|key| !key.items.is_empty() || key.start > self.now);
            let weights: u128 = active().map(|key| u128::from(key.weight)).sum::<u128>().max(1);
            let next = active().filter(|key| key.items.is_empty()).map(|key| key.start).min();
            match next.map(|end| (end, (end - self.now) * weights)) {
                Some((end, needed)) if needed <= work => (self.now, work) = (end, work - needed),
                _ => {
                    self.now += work / weights;
                    break;
                }
            }
        }
        let starts = self.keys.iter().filter(|key| !key.items.is_empty()).map(|key| key.start);
        self.now = self.now.max(starts.min().unwrap_or(0));
    }

    pub(super) fn remove(&mut self, number: u32) -> bool {
        let Some(key) = self.keys.iter_mut().find(|key| key.items.iter().any(|(known, _)| *known == number))
        else {
            return false;
        };
        if key.items[0].0 == number && self.seen == Some(key.name) {
            self.seen = None;
        }
        key.items.retain(|(known, _)| *known != number);
        key.choose(self.bundle_max);
        true
    }
}
