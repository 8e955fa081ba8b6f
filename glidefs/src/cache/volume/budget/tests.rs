//! The budget of indexes: the bounds hold for any volumes, weights and orders of growth.

use proptest::prelude::*;

use super::*;

const MAX: u64 = 1 << 20;

fn budget(all: u64, each: u64) -> Arc<Budget> {
    Arc::new(Budget::new(Budgets { index_bytes_max: all, index_bytes_max_per_export: each }, false))
}

fn of(bytes: u64) -> Claim {
    Claim { bytes, weight: WEIGHT_DEFAULT }
}

#[test]
fn growth_is_slowed_from_half_of_the_own_bound_on_and_stopped_at_the_bound() {
    let budget = budget(u64::MAX, MAX);
    assert_eq!(budget.pace(of(MAX / 2 - GROWTH_BYTES)), Pace::Go);
    let mut last = Duration::ZERO;
    for bytes in (MAX / 2..MAX - GROWTH_BYTES).step_by(MAX as usize / 16) {
        let Pace::Pause(pause) = budget.pace(of(bytes)) else { panic!("{bytes} bytes are not slowed") };
        assert!(pause > last && pause <= PAUSE_MAX);
        last = pause;
    }
    assert_eq!(budget.pace(of(MAX - GROWTH_BYTES + 1)), Pace::Wait);
}

#[test]
fn one_volume_alone_gets_three_quarters_and_gives_way_when_others_come() {
    let budget = budget(MAX, u64::MAX);
    let (large, small) = (Usage::default(), Usage::default());
    large.join(&budget, 0);
    small.join(&budget, 0);
    while budget.pace(of(large.index_bytes())) != Pace::Wait {
        large.note(large.index_bytes() + 64);
    }
    assert!(large.index_bytes().abs_diff(MAX / 4 * 3) < 2 * GROWTH_BYTES, "{}", large.index_bytes());
    assert!(small.to_ask(WEIGHT_DEFAULT).is_none(), "a small volume does not notice");
    assert!(large.to_ask(WEIGHT_DEFAULT).is_some());
    small.note(MAX / 16);
    assert_eq!(budget.target(of(MAX / 4 * 3)), Some(budget.limit(WEIGHT_DEFAULT) / 2));
    large.note(0);
    assert_eq!((budget.bytes(), budget.target(of(MAX / 16))), (MAX / 16, None));
}

proptest! {
    #[test]
    fn no_sum_exceeds_the_budget_and_no_volume_below_the_limit_waits(
        steps in prop::collection::vec((0..12_usize, 1..800_u64, 0..20_u8), 1..300),
        weights in prop::collection::vec(1..1000_u16, 12),
    ) {
        let (each, growth) = (MAX / 2, GROWTH_BYTES);
        let budget = budget(MAX, each);
        let usages: Vec<Usage> = weights.iter().map(|_| Usage::default()).collect();
        for usage in &usages {
            usage.join(&budget, 0);
        }
        for (at, rounds, kind) in steps {
            let (usage, weight) = (&usages[at], weights[at]);
            if kind == 0 {
                usage.note(usage.index_bytes() / 2);
            }
            for _ in 0..rounds {
                let own = Claim { bytes: usage.index_bytes(), weight };
                let pace = budget.pace(own);
                prop_assert_eq!(pace == Pace::Wait, own.bytes + growth > budget.limit(weight));
                if usage.to_ask(weight).is_none() {
                    prop_assert!(own.bytes <= budget.limit(weight) / 2 + 2 * growth * u64::from(weight) / 100, "the first look is on the safe side");
                }
                if pace != Pace::Wait || usage.to_ask(weight).is_none() {
                    usage.note(usage.index_bytes() + growth);
                }
            }
            let sum: u64 = usages.iter().map(Usage::index_bytes).sum();
            prop_assert_eq!(sum, budget.bytes());
            prop_assert!(sum <= MAX + growth, "{} of {}", sum, MAX);
            prop_assert!(usages.iter().all(|usage| usage.index_bytes() <= each + growth));
        }
    }
}
