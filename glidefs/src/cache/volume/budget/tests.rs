//! The budgets: the bounds hold for any volumes, weights and orders of growth, of memory for indexes and of log space.

use std::time::Duration;

use proptest::prelude::*;

use super::super::durability::{PAUSE_MAX, Pace};
use super::*;
use crate::fair::WEIGHT_DEFAULT;

const MAX: u64 = 64 << 20;
const BOTH: [Resource; 2] = [Resource::Index, Resource::Log];

/// Budgets which allow `all` bytes of each resource, and `each` for a volume.
fn budget(all: u64, each: u64) -> Arc<Budget> {
    let budgets =
        Budgets { index_bytes_max: all, index_bytes_max_per_export: each, log_bytes_max_per_export: each };
    Arc::new(Budget::new(budgets, all, false))
}

fn of(bytes: u64) -> Claim {
    Claim { bytes, weight: WEIGHT_DEFAULT }
}

fn growth(resource: Resource) -> u64 {
    match resource {
        Resource::Index => INDEX_GROWTH_BYTES,
        Resource::Log => LOG_GROWTH_BYTES,
    }
}

impl Usage {
    /// Makes the use of one resource `bytes`.
    fn set(&self, resource: Resource, bytes: u64) {
        match resource {
            Resource::Index => self.note(bytes, self.bytes(Resource::Log)),
            Resource::Log => self.note(self.bytes(Resource::Index), bytes),
        }
    }
}

#[test]
fn growth_is_slowed_from_a_part_of_the_own_bound_on_and_stopped_at_the_bound() {
    for (resource, slow_from) in [(Resource::Index, MAX / 2), (Resource::Log, MAX / 8 * 7)] {
        let (budget, growth) = (budget(u64::MAX, MAX), growth(resource));
        let pool = budget.pool(resource);
        assert_eq!(pool.pace(of(slow_from - growth)), Pace::Go);
        let mut last = Duration::ZERO;
        for bytes in (slow_from..MAX - growth).step_by(MAX as usize / 64) {
            let Pace::Pause(pause) = pool.pace(of(bytes)) else { panic!("{bytes} bytes are not slowed") };
            assert!(pause > last && pause <= PAUSE_MAX);
            last = pause;
        }
        assert_eq!(pool.pace(of(MAX - growth + 1)), Pace::Wait);
    }
}

#[test]
fn one_volume_alone_gets_three_quarters_and_gives_way_when_others_come() {
    for resource in BOTH {
        let (budget, growth) = (budget(MAX, u64::MAX), growth(resource));
        let pool = budget.pool(resource);
        let (large, small) = (Usage::default(), Usage::default());
        large.join(&budget, 0, 0);
        small.join(&budget, 0, 0);
        while pool.pace(of(large.bytes(resource))) != Pace::Wait {
            large.set(resource, large.bytes(resource) + 4096);
        }
        let bytes = large.bytes(resource);
        assert!(bytes.abs_diff(MAX / 4 * 3) < 2 * growth, "{resource:?}: {bytes}");
        assert!(small.to_ask(resource, WEIGHT_DEFAULT).is_none(), "a small volume does not notice");
        assert!(large.to_ask(resource, WEIGHT_DEFAULT).is_some());
        small.set(resource, MAX / 16);
        assert_eq!(pool.target(of(MAX / 4 * 3)), Some(pool.allowed(WEIGHT_DEFAULT) / 2));
        assert_eq!(pool.pace(of(MAX / 16)), Pace::Go, "the small one is below the share of the large one");
        large.set(resource, 0);
        assert_eq!((pool.bytes(), pool.target(of(MAX / 16))), (MAX / 16, None));
    }
}

#[test]
fn a_volume_of_little_weight_with_nothing_goes_on_beside_busy_ones_while_anything_is_unused() {
    for (resource, max, others) in
        [(Resource::Log, 1 << 30, 100), (Resource::Log, 10 << 30, 1000), (Resource::Index, MAX, 1000)]
    {
        let budget = budget(max, u64::MAX);
        let pool = budget.pool(resource);
        let busy: Vec<Usage> = (0..others).map(|_| Usage::default()).collect();
        for usage in &busy {
            usage.join(&budget, 0, 0);
        }
        let mut grown = true;
        while std::mem::take(&mut grown) {
            for usage in &busy {
                if pool.pace(of(usage.bytes(resource))) != Pace::Wait {
                    usage.set(resource, usage.bytes(resource) + growth(resource));
                    grown = true;
                }
            }
        }
        assert_eq!(
            pool.pace(Claim { bytes: 0, weight: 1 }),
            Pace::Go,
            "{resource:?} of {max} beside {others}"
        );
    }
}

/// Data of a volume which is lost to this host, or of a backlog which a start found, may be all that the log has room for.
#[test]
fn with_nothing_unused_a_volume_with_little_in_the_log_goes_on_and_no_index_grows() {
    let budget = budget(MAX, u64::MAX);
    let (large, small) = (Usage::default(), Usage::default());
    large.join(&budget, 2 * MAX, 2 * MAX);
    small.join(&budget, 0, 0);
    for _ in 0..LOG_KEPT_BYTES / LOG_GROWTH_BYTES {
        assert_ne!(budget.log.pace(of(small.bytes(Resource::Log))), Pace::Wait);
        small.set(Resource::Log, small.bytes(Resource::Log) + LOG_GROWTH_BYTES);
    }
    assert_eq!(budget.log.pace(of(small.bytes(Resource::Log))), Pace::Wait);
    assert_eq!(budget.index.pace(of(0)), Pace::Wait);
}

#[test]
fn data_about_to_be_used_counts_for_all_and_is_the_own_use_of_one_volume() {
    let budget = budget(MAX, u64::MAX);
    let pace = |own, all| budget.log.pace_behind(of(0), Coming { own, all });
    assert_eq!(pace(0, MAX - LOG_KEPT_BYTES), Pace::Go, "others use nearly all");
    assert_eq!(pace(MAX / 2, MAX / 2), Pace::Go);
    assert_eq!(pace(MAX / 5 * 4, MAX / 5 * 4), Pace::Wait, "above the share");
}

proptest! {
    #[test]
    fn no_sum_exceeds_the_budget_and_no_volume_below_the_limit_waits(
        resource in prop::sample::select(BOTH.to_vec()),
        steps in prop::collection::vec((0..12_usize, 1..800_u64, 0..20_u8), 1..300),
        weights in prop::collection::vec(1..1000_u16, 12),
    ) {
        let growth = growth(resource);
        let max = 1024 * growth;
        let each = max / 2;
        let budget = budget(max, each);
        let pool = budget.pool(resource);
        let usages: Vec<Usage> = weights.iter().map(|_| Usage::default()).collect();
        for usage in &usages {
            usage.join(&budget, 0, 0);
        }
        let slow_part = |limit: u64| if resource == Resource::Index { limit / 2 } else { limit / 8 * 7 };
        for (at, rounds, kind) in steps {
            let (usage, weight) = (&usages[at], weights[at]);
            if kind == 0 {
                usage.set(resource, usage.bytes(resource) / 2);
            }
            for _ in 0..rounds {
                let own = Claim { bytes: usage.bytes(resource), weight };
                let pace = pool.pace(own);
                prop_assert_eq!(pace == Pace::Wait, own.bytes + growth > pool.allowed(weight));
                let has_to_ask = usage.to_ask(resource, weight).is_some();
                if !has_to_ask {
                    let late = 3 * growth * u64::from(weight) / 100;
                    prop_assert!(own.bytes <= slow_part(pool.allowed(weight)) + late + 8, "the first look is on the safe side");
                }
                if pace != Pace::Wait || !has_to_ask {
                    usage.set(resource, usage.bytes(resource) + growth);
                }
            }
            let sum: u64 = usages.iter().map(|usage| usage.bytes(resource)).sum();
            let uncounted = 12 * 4096;
            prop_assert!(pool.bytes() <= sum && sum - pool.bytes() <= uncounted);
            let kept = if resource == Resource::Log { 12 * LOG_KEPT_BYTES } else { 0 };
            prop_assert!(sum <= max + growth + uncounted + kept, "{} of {}", sum, max);
            prop_assert!(usages.iter().all(|usage| usage.bytes(resource) <= each + growth));
        }
    }

    /// All volumes grow by turns, whatever was before: the larger of two of the same weight is held back first.
    #[test]
    fn a_volume_never_waits_while_a_larger_one_of_no_more_weight_goes_on(
        sizes in prop::collection::vec((0..MAX / 4, 1..1000_u16), 2..12),
    ) {
        for resource in BOTH {
            let budget = budget(MAX, u64::MAX);
            let usages: Vec<Usage> = sizes.iter().map(|_| Usage::default()).collect();
            for (usage, (bytes, _)) in usages.iter().zip(&sizes) {
                usage.join(&budget, *bytes, *bytes);
            }
            let waits = |(bytes, weight): &(u64, u16)| {
                budget.pool(resource).pace(Claim { bytes: *bytes, weight: *weight }) == Pace::Wait
            };
            for small in &sizes {
                for large in sizes.iter().filter(|large| large.0 >= small.0 && large.1 <= small.1) {
                    prop_assert!(!waits(small) || waits(large), "{small:?} waits, and {large:?} does not");
                }
            }
        }
    }
}
