//! The order of service against a model, and the guarantees that open the module.

mod model;

use std::collections::BTreeMap;

use proptest::prelude::*;

use self::model::Model;
use super::*;

#[derive(Clone, Debug)]
enum Step {
    Push { key: u8, weight: u16, cost: u64 },
    Peek,
    Pop,
    PopSome(u8),
    PopIf(u32),
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
        1 => (1..4_u32).prop_map(Step::PopIf),
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
    fn new(keys: &[(u16, u64)], bundle_max: u64) -> Self {
        let mut fair = Fair::in_bundles(bundle_max);
        for (name, &(weight, cost)) in (0..).zip(keys) {
            (0..8).for_each(|_| _ = fair.push(name, weight, cost, cost));
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

#[test]
fn a_queue_is_at_rest_when_every_key_has_paid_for_what_it_was_served_ahead() {
    let mut fair = Fair::in_bundles(0);
    assert!(fair.is_at_rest());
    // No quotient is whole.
    for cost in [12_288, 4097, 1] {
        fair.push('a', 99, cost, ());
        assert!(!fair.is_at_rest());
        fair.pop();
        assert!(fair.is_at_rest(), "a key that is served alone is not ahead of anybody");
    }
    fair.push('b', 1, 1000, ());
    fair.peek();
    fair.push('a', 1000, 1, ());
    while fair.pop().is_some() {}
    let mut paid = 0;
    while !fair.is_at_rest() {
        fair.push('a', 1000, 1000, ());
        fair.pop();
        paid += 1000;
    }
    assert!(
        (990_000..=1_010_000).contains(&paid),
        "{paid}: at a weight of one, as much as its cost for each weight of the others"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_is_that_of_the_model_and_nothing_is_lost(
        steps in prop::collection::vec(step(), 0..150),
        bundle_max in prop_oneof![Just(0), 0..800_u64],
    ) {
        let (mut fair, mut model) = (Fair::in_bundles(bundle_max), Model::in_bundles(bundle_max));
        let mut places: Vec<(u32, Place)> = Vec::new();
        for (number, step) in (0..).zip(steps) {
            match step {
                Step::Push { key, weight, cost } => {
                    places.push((number, fair.push(key, weight, cost, number)));
                    model.push(key, weight, (number, cost));
                }
                Step::Peek => {
                    let next = fair.peek().map(|(key, number)| (key, *number));
                    prop_assert_eq!(next, model.peek());
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
                    let popped = fair.pop_where(|key, _| set.checked_shr((*key).into()).unwrap_or(0) & 1 == 1);
                    prop_assert_eq!(popped, model.pop(|key| set.checked_shr(key.into()).unwrap_or(0) & 1 == 1));
                    places.retain(|(number, _)| popped.is_none_or(|(_, popped)| *number != popped));
                }
                Step::PopIf(part) => {
                    let next = model.next(|_| true).map(|at| &model.keys[at]);
                    let name = next.map(|key| key.name);
                    let fits = next.map(|key| key.items[0].0).filter(|number| number.is_multiple_of(part));
                    let fit = |key: &u8, number: &u32| Some(*key) == name && number.is_multiple_of(part);
                    prop_assert_eq!(fair.pop_if(fit), fits);
                    if fits.is_some() {
                        model.pop(|_| true);
                    }
                    places.retain(|(number, _)| Some(*number) != fits);
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
            prop_assert_eq!(fair.keys.len(), fair.turns.len() + fair.resting.len());
            prop_assert_eq!(fair.keys.len(), fair.places.len());
            prop_assert_eq!(fair.turns.len(), fair.starts.len());
            prop_assert_eq!(fair.weights, fair.keys.iter().map(|(_, key)| u128::from(key.weight)).sum::<u128>());
            prop_assert!(fair.resting.iter().all(|(end, _)| end > fair.now));
        }
        let rest: Vec<u32> = std::iter::from_fn(|| fair.pop()).collect();
        prop_assert_eq!(rest, std::iter::from_fn(|| model.pop(|_| true)).map(|(_, number)| number).collect::<Vec<_>>());
        prop_assert!(fair.is_empty() && fair.turns.is_empty() && fair.seen.is_none());
    }

    #[test]
    fn an_item_waits_for_no_more_than_the_guarantee_says(
        others in prop::collection::vec((weight(), 1..400_u64), 1..6),
        (own_weight, own_cost) in (weight(), 1..400_u64),
        (earlier, is_seen, before) in (prop::option::of(1..400_u64), any::<bool>(), 0..500_usize),
        bundle_max in prop_oneof![Just(0), 0..1600_u64],
    ) {
        let mut busy = Backlogged::new(&others, bundle_max);
        for _ in 0..before {
            busy.serve(&others);
        }
        // A service of the key just before.
        if let Some(cost) = earlier {
            busy.fair.push(200, own_weight, cost, cost);
            while busy.fair.peek().is_some_and(|(name, _)| name != 200) {
                busy.serve(&others);
            }
            busy.fair.pop();
        }
        let end = busy.fair.resting.first().map_or(0, |(end, _)| end - busy.fair.now);
        let ahead = u64::try_from((end * busy.fair.weights).div_ceil(TIME_SCALE.into())).unwrap();
        if is_seen {
            busy.fair.peek();
        }
        busy.served.values_mut().for_each(|served| *served = 0);
        busy.fair.push(200, own_weight, own_cost, own_cost);
        while busy.fair.peek().is_some_and(|(name, _)| name != 200) {
            busy.serve(&others);
        }
        let sum: u64 = others.iter().map(|(weight, _)| u64::from(*weight)).sum::<u64>() + u64::from(own_weight);
        let largest = others.iter().map(|(_, cost)| *cost).max().unwrap_or(0).max(own_cost).max(bundle_max);
        let most = (own_cost * sum).div_ceil(own_weight.into()) + largest * (1 + u64::from(is_seen)) + ahead;
        let served: u64 = busy.served.values().sum();
        prop_assert!(served <= most, "the others were served {served} of {most}");
    }

    #[test]
    fn keys_that_always_have_items_are_served_by_weight(
        keys in prop::collection::vec((weight(), 1..400_u64), 2..5),
        items in 1..2000_usize,
        bundle_max in prop_oneof![Just(0), 0..1600_u64],
    ) {
        let mut busy = Backlogged::new(&keys, bundle_max);
        for _ in 0..items {
            busy.serve(&keys);
        }
        for (name, (weight, cost)) in (0_u8..).zip(&keys) {
            for (other, (other_weight, other_cost)) in (0_u8..).zip(&keys) {
                // Service a weight, in hundredths; rounded so that the bound holds for whole numbers.
                let per = |served: u64, weight: u16| served * 100_000 / u64::from(weight);
                let slack = per(bundle_max.max(*cost), *weight) + per(bundle_max.max(*other_cost), *other_weight) + 2;
                let (own, others) = (per(busy.served[&name], *weight), per(busy.served[&other], *other_weight));
                prop_assert!(own.abs_diff(others) <= slack, "{own} and {others}, {slack} apart at most");
            }
        }
    }
}

#[test]
fn a_key_that_asks_for_little_is_served_next_however_many_others_ask_for_much() {
    let mut fair = Fair::new();
    for name in 0..20 {
        for _ in 0..100 {
            fair.push(name, WEIGHT_DEFAULT, 1000, 1000);
        }
    }
    for round in 0..50 {
        assert_eq!(fair.pop(), Some(1000));
        fair.push(99, WEIGHT_DEFAULT, 10, 10);
        assert_eq!(fair.pop(), Some(10), "round {round}");
    }
}

#[test]
fn the_items_of_a_key_are_served_in_bundles() {
    let mut fair = Fair::in_bundles(30);
    for name in (0..6).flat_map(|_| 0..2) {
        fair.push(name, WEIGHT_DEFAULT, 10, name);
    }
    // The first item of each came alone.
    let order: Vec<_> = std::iter::from_fn(|| fair.pop()).collect();
    assert_eq!(order, [0, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1]);
}

#[test]
fn an_item_that_comes_alone_is_served_before_the_bundles_of_others() {
    let mut fair = Fair::in_bundles(40);
    for name in (0..80).flat_map(|_| 0..7) {
        fair.push(name, WEIGHT_DEFAULT, 10, name);
    }
    for round in 0..100 {
        let busy = fair.pop();
        assert!(busy.is_some_and(|name| name < 7), "round {round}");
        fair.push(7, WEIGHT_DEFAULT, 1, 7);
        assert_eq!(fair.pop(), Some(7), "round {round}");
    }
}

/// What a key gets which has `burst` items and, once these are served, `burst` more, beside `busy` keys which always have items: in
/// hundredths of the key's part.
fn part_beside_busy_keys(busy: usize, burst: usize) -> usize {
    let mut fair = Fair::in_bundles(40);
    for name in (0..8).flat_map(|_| 0..busy) {
        fair.push(name, WEIGHT_DEFAULT, 10, name);
    }
    let (rounds, mut served) = (20_000, 0);
    for _ in 0..rounds {
        if !fair.has(&busy) {
            (0..burst).for_each(|_| _ = fair.push(busy, WEIGHT_DEFAULT, 10, busy));
        }
        let name = fair.pop().unwrap();
        served += usize::from(name == busy);
        if name < busy {
            fair.push(name, WEIGHT_DEFAULT, 10, name);
        }
    }
    served * (busy + 1) * 100 / rounds
}

#[test]
fn a_key_that_asks_again_once_it_was_served_gets_its_part_whether_its_items_fill_bundles_or_not() {
    for (busy, burst) in [1, 7, 31].into_iter().flat_map(|busy| (1..=9).map(move |burst| (busy, burst))) {
        let part = part_beside_busy_keys(busy, burst);
        let told = format!("{part} hundredths of its part with {burst} items at a time, beside {busy} keys");
        assert!((95..=105).contains(&part), "{told}");
    }
}

#[test]
fn a_key_that_was_passed_over_gets_nothing_later_for_the_turns_it_missed() {
    let mut fair = Fair::new();
    for number in 0..20 {
        fair.push(number % 2, WEIGHT_DEFAULT, 10, number);
    }
    for _ in 0..8 {
        assert_eq!(fair.pop_where(|key, _| *key == 0).map(|(key, _)| key), Some(0));
    }
    let order: Vec<_> =
        std::iter::from_fn(|| fair.pop_where(|_, _| true)).map(|(key, _)| key).take(4).collect();
    assert_eq!(order, [1, 0, 1, 0]);
}

#[test]
fn a_key_that_begins_short_queues_again_and_again_does_not_pay_for_all_of_them_later() {
    const LARGE: u64 = 1 << 20;
    const SMALL: u64 = 4096;
    let mut fair = Fair::new();
    for _ in 0..10_000 {
        // As slots are waited for: seen at once, and the queue is empty again when both are served.
        fair.push(1, WEIGHT_DEFAULT, LARGE, 0);
        fair.peek();
        fair.push(2, WEIGHT_DEFAULT, SMALL, SMALL);
        assert_eq!((fair.pop(), fair.pop(), fair.is_empty()), (Some(0), Some(SMALL), true));
    }
    // A flood of the other key, which always has items.
    fair.push(2, WEIGHT_DEFAULT, SMALL, SMALL);
    fair.push(2, WEIGHT_DEFAULT, SMALL, SMALL);
    fair.push(1, WEIGHT_DEFAULT, SMALL, 0);
    let mut served = 0;
    while let Some(cost) = fair.pop().filter(|cost| *cost > 0) {
        served += cost;
        fair.push(2, WEIGHT_DEFAULT, cost, cost);
    }
    // The item, the last large item, and one item of the other key.
    assert!(served <= 2 * SMALL + 2 * LARGE + SMALL, "{served} bytes of the flood came first");
}

#[test]
fn an_empty_queue_remembers_a_bounded_number_of_keys() {
    let mut fair = Fair::new();
    for key in 0..5 * RESTING_MAX {
        fair.push(key, 1, 10, key);
        assert_eq!(fair.pop(), Some(key));
        assert!(fair.keys.len() <= RESTING_MAX && fair.places.len() == fair.keys.len());
    }
}

#[test]
fn items_of_one_key_are_served_as_they_came() {
    let mut fair = Fair::new();
    for number in 0..10_u64 {
        fair.push((), 1, (number * 7919) % 300, number);
    }
    assert_eq!(std::iter::from_fn(|| fair.pop()).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

#[test]
fn the_lightest_key_alone_is_served_at_once() {
    let mut fair = Fair::new();
    fair.push(1, 1, u64::MAX / 200, "huge");
    assert_eq!(fair.pop(), Some("huge"));
}

#[test]
fn a_place_whose_item_was_served_takes_nothing_out() {
    let mut fair = Fair::new();
    let place = fair.push(1, 100, 1, "first");
    assert_eq!(fair.pop(), Some("first"));
    assert_eq!(fair.remove(&place), None);
}
