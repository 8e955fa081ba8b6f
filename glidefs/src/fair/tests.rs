//! The order of service against a model that runs round after round, and the guarantees that open the module.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;

const QUANTUM: u64 = 100;

/// One key of the model.
#[derive(Debug)]
struct ModelKey {
    name: u8,
    weight: u64,
    deficit: u64,
    /// Number and cost of each item.
    items: VecDeque<(u32, u64)>,
}

/// Deficit round robin as the textbook has it: no round is skipped.
#[derive(Debug, Default)]
struct Model {
    keys: VecDeque<ModelKey>,
    has_share: bool,
}

impl Model {
    fn push(&mut self, name: u8, weight: u16, item: (u32, u64)) {
        let weight = u64::from(weight);
        if !self.keys.iter().any(|key| key.name == name) {
            self.keys.push_back(ModelKey { name, weight, deficit: 0, items: VecDeque::new() });
        }
        let key = self.keys.iter_mut().find(|key| key.name == name).unwrap();
        key.weight = weight;
        key.items.push_back(item);
    }

    fn settle(&mut self, may: impl Fn(u8) -> bool) -> bool {
        if !self.keys.iter().any(|key| may(key.name)) {
            return false;
        }
        while let Some(key) = self.keys.front_mut() {
            if !may(key.name) {
                if self.has_share {
                    key.deficit = key.deficit.saturating_sub(QUANTUM * key.weight);
                    self.has_share = false;
                }
                self.keys.rotate_left(1);
                continue;
            }
            if !std::mem::replace(&mut self.has_share, true) {
                key.deficit += QUANTUM * key.weight;
            }
            if key.items[0].1 * u64::from(WEIGHT_DEFAULT) <= key.deficit {
                return true;
            }
            self.keys.rotate_left(1);
            self.has_share = false;
        }
        false
    }

    fn pop(&mut self, may: impl Fn(u8) -> bool) -> Option<(u8, u32)> {
        if !self.settle(may) {
            return None;
        }
        let (name, (number, cost)) = (self.keys[0].name, self.keys[0].items[0]);
        self.keys[0].deficit -= cost * u64::from(WEIGHT_DEFAULT);
        self.remove(number);
        Some((name, number))
    }

    fn remove(&mut self, number: u32) -> bool {
        let Some(at) = self.keys.iter().position(|key| key.items.iter().any(|(known, _)| *known == number))
        else {
            return false;
        };
        self.keys[at].items.retain(|(known, _)| *known != number);
        if self.keys[at].items.is_empty() {
            self.keys.remove(at);
            self.has_share &= at != 0;
        }
        true
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push { key: u8, weight: u16, cost: u64 },
    Peek,
    Pop,
    PopSome(u8),
    Remove(prop::sample::Index),
    RemoveAll(u32),
}

fn weight() -> impl Strategy<Value = u16> {
    prop_oneof![Just(1), Just(WEIGHT_DEFAULT), Just(WEIGHT_MAX), 1..=WEIGHT_MAX]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..5_u8, weight(), prop_oneof![0..5_u64, 0..400_u64])
            .prop_map(|(key, weight, cost)| Step::Push { key, weight, cost }),
        1 => Just(Step::Peek),
        4 => Just(Step::Pop),
        2 => (0..32_u8).prop_map(Step::PopSome),
        1 => any::<prop::sample::Index>().prop_map(Step::Remove),
        1 => (2..6_u32).prop_map(Step::RemoveAll),
    ]
}

/// A queue of numbered items, which serves keys that are never empty.
struct Backlogged {
    fair: Fair<u8, u64>,
    served: BTreeMap<u8, u64>,
}

impl Backlogged {
    fn new(keys: &[(u16, u64)]) -> Self {
        let mut fair = Fair::new(QUANTUM);
        for (name, &(weight, cost)) in (0..).zip(keys) {
            fair.push(name, weight, cost, cost);
            fair.push(name, weight, cost, cost);
        }
        Self { fair, served: (0..).zip(keys).map(|(name, _)| (name, 0)).collect() }
    }

    /// Serves one item, and gives the key another one.
    fn serve(&mut self, keys: &[(u16, u64)]) -> u8 {
        let (name, _) = self.fair.peek().unwrap();
        let cost = self.fair.pop().unwrap();
        *self.served.get_mut(&name).unwrap() += cost;
        self.fair.push(name, keys[usize::from(name)].0, cost, cost);
        name
    }
}

/// Cost served to a key of `weight` in a round, rounded up.
fn share_of(weight: u16) -> u64 {
    (QUANTUM * u64::from(weight)).div_ceil(u64::from(WEIGHT_DEFAULT))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_is_that_of_the_model_and_nothing_is_lost(steps in prop::collection::vec(step(), 0..150)) {
        let (mut fair, mut model) = (Fair::new(QUANTUM), Model::default());
        let mut places: Vec<(u32, Place)> = Vec::new();
        for (number, step) in (0..).zip(steps) {
            match step {
                Step::Push { key, weight, cost } => {
                    places.push((number, fair.push(key, weight, cost, number)));
                    model.push(key, weight, (number, cost));
                }
                Step::Peek => {
                    let next = fair.peek().map(|(key, number)| (key, *number));
                    let expected = model.settle(|_| true).then(|| (model.keys[0].name, model.keys[0].items[0].0));
                    prop_assert_eq!(next, expected);
                    // A newcomer changes nothing.
                    places.push((number, fair.push(9, WEIGHT_MAX, 0, number)));
                    model.push(9, WEIGHT_MAX, (number, 0));
                    prop_assert!(next.is_none() || fair.peek().map(|(key, number)| (key, *number)) == next);
                }
                Step::Pop => {
                    let popped = fair.pop();
                    prop_assert_eq!(popped, model.pop(|_| true).map(|(_, number)| number));
                    places.retain(|(number, _)| Some(*number) != popped);
                }
                Step::PopSome(set) => {
                    let popped = fair.pop_where(|key| set.checked_shr((*key).into()).unwrap_or(0) & 1 == 1);
                    prop_assert_eq!(popped, model.pop(|key| set.checked_shr(key.into()).unwrap_or(0) & 1 == 1));
                    places.retain(|(number, _)| popped.is_none_or(|(_, popped)| *number != popped));
                }
                Step::Remove(index) if !places.is_empty() => {
                    let (number, place) = places.swap_remove(index.index(places.len()));
                    prop_assert_eq!(fair.remove(&place), Some(number));
                    prop_assert!(model.remove(number));
                }
                Step::Remove(_) => {}
                Step::RemoveAll(part) => {
                    let mut out = Vec::new();
                    fair.remove_all(|number| number % part == 0, |number| out.push(number));
                    for number in &out {
                        prop_assert!(number % part == 0 && model.remove(*number));
                    }
                    places.retain(|(number, _)| number % part != 0);
                }
            }
            prop_assert_eq!(fair.items.len(), places.len());
        }
        let rest: Vec<u32> = std::iter::from_fn(|| fair.pop()).collect();
        prop_assert_eq!(rest, std::iter::from_fn(|| model.pop(|_| true)).map(|(_, number)| number).collect::<Vec<_>>());
        prop_assert!(fair.is_empty() && fair.keys.is_empty() && fair.places.is_empty());
    }

    #[test]
    fn an_item_waits_for_no_more_than_the_guarantee_says(
        others in prop::collection::vec((weight(), 1..400_u64), 1..6),
        own in (weight(), 1..400_u64),
        before in 0..50_usize,
    ) {
        let mut busy = Backlogged::new(&others);
        for _ in 0..before {
            busy.serve(&others);
        }
        busy.served.values_mut().for_each(|served| *served = 0);
        let (own_weight, own_cost) = own;
        busy.fair.push(200, own_weight, own_cost, own_cost);
        while busy.fair.peek().is_some_and(|(name, _)| name != 200) {
            busy.serve(&others);
        }
        let rounds = (own_cost * u64::from(WEIGHT_DEFAULT)).div_ceil(QUANTUM * u64::from(own_weight));
        for (name, (weight, cost)) in (0..).zip(others) {
            let most = (rounds + 1) * share_of(weight) + cost;
            prop_assert!(busy.served[&name] <= most, "key {name} was served {} of {most}", busy.served[&name]);
        }
    }

    #[test]
    fn keys_that_always_have_items_are_served_by_weight(
        keys in prop::collection::vec((weight(), 1..400_u64), 2..5),
        items in 1..2000_usize,
    ) {
        let mut busy = Backlogged::new(&keys);
        for _ in 0..items {
            busy.serve(&keys);
        }
        for (name, (weight, cost)) in (0_u8..).zip(&keys) {
            for (other, (other_weight, other_cost)) in (0_u8..).zip(&keys) {
                // Service a weight, in hundredths; rounded so that the bound holds for whole numbers.
                let per = |served: u64, weight: u16| served * 100_000 / u64::from(weight);
                let slack = 2 * QUANTUM * 1000 + per(*cost, *weight) + per(*other_cost, *other_weight) + 2;
                let (own, others) = (per(busy.served[&name], *weight), per(busy.served[&other], *other_weight));
                prop_assert!(own.abs_diff(others) <= slack, "{own} and {others}, {slack} apart at most");
            }
        }
    }
}

#[test]
fn items_of_one_key_are_served_as_they_came() {
    let mut fair = Fair::new(QUANTUM);
    for number in 0..10_u64 {
        fair.push((), 1, (number * 7919) % 300, number);
    }
    assert_eq!(std::iter::from_fn(|| fair.pop()).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

#[test]
fn the_lightest_key_alone_is_served_at_once() {
    let mut fair = Fair::new(1);
    fair.push(1, 1, u64::MAX / 200, "huge");
    assert_eq!(fair.pop(), Some("huge"));
}

#[test]
fn a_place_whose_item_was_served_takes_nothing_out() {
    let mut fair = Fair::new(QUANTUM);
    let place = fair.push(1, 100, 1, "first");
    assert_eq!(fair.pop(), Some("first"));
    assert_eq!(fair.remove(&place), None);
}
