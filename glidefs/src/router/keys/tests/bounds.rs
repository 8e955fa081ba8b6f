//! Bounds on keys and answers, and which keys go first.

use super::*;

fn small(keys_max: usize, under_way_max: usize, bytes_max: u64) -> KeyLimits {
    KeyLimits { keys_max, under_way_max, bytes_max }
}

#[tokio::test]
async fn beyond_the_number_of_keys_the_oldest_answers_go_first_and_nothing_else() {
    let mut kept = Kept::with(small(4, 4, u64::MAX));
    drop(kept.begin("unknown", "u").await);
    for key in ["a", "b", "c"] {
        kept.carry_out(key, key).await;
        kept.hands.pass(1);
    }
    let under_way = kept.begin("d", "d").await;
    assert_eq!(kept.says("unknown", "u"), "unknown");
    assert_eq!((kept.says("b", "b"), kept.says("c", "c")), ("done", "done"));
    let second = kept.begin("e", "e").await;
    let third = kept.begin("f", "f").await;
    for key in ["a", "b", "c", "g"] {
        assert_eq!(kept.says(key, key), "full", "the rest is under way, or of an unknown outcome");
    }
    under_way.free().await;
    assert_eq!(kept.says("g", "g"), "admitted");
    drop((second, third));
    assert_eq!(kept.records(), 3, "keys that went have left the disk");
}

#[tokio::test]
async fn an_unknown_outcome_goes_for_the_room_once_the_same_request_came_with_another_key() {
    let mut kept = Kept::with(small(4, 4, u64::MAX));
    for key in ["first", "second", "third"] {
        drop(kept.begin(key, "create vm").await);
        kept.hands.pass(1);
    }
    drop(kept.begin("other", "create other").await);
    assert_eq!(kept.says("first", "create vm"), "unknown", "there is room");
    kept.restart();
    kept.carry_out("new", "create new").await;
    kept.hands.pass(1);
    kept.carry_out("newer", "create newer").await;
    assert_eq!((kept.says("third", "create vm"), kept.says("other", "create other")), ("unknown", "unknown"));
    assert_eq!((kept.says("new", "create new"), kept.says("newer", "create newer")), ("done", "done"));
    assert_eq!(kept.records(), 4, "keys that went have left the disk");
    kept.carry_out("fourth", "create vm").await;
    assert_eq!(kept.says("newer", "create newer"), "done", "the oldest answer has gone");
    kept.carry_out("fifth", "create fifth").await;
    assert_eq!(kept.says("newer", "create newer"), "done", "the third key has gone");
    assert_eq!((kept.says("other", "create other"), kept.says("fourth", "create vm")), ("unknown", "done"));
}

#[tokio::test]
async fn requests_under_way_are_bounded_apart_from_keys() {
    let kept = Kept::with(small(100, 2, u64::MAX));
    let (first, _second) = (kept.begin("a", "a").await, kept.begin("b", "b").await);
    assert_eq!(kept.says("c", "c"), "full");
    first.done(answer("a")).await;
    assert_eq!(kept.says("c", "c"), "admitted");
}

#[tokio::test]
async fn the_bytes_of_answers_are_bounded_and_an_answer_of_any_length_is_kept_at_first() {
    let kept = Kept::with(small(100, 100, 10_000));
    let long = "x".repeat(4000);
    for key in ["a", "b", "c"] {
        let under_way = kept.begin(key, &long).await;
        under_way.done(answer(&long)).await;
        kept.hands.pass(1);
        assert!(kept.keys().memory_bytes() <= 10_000);
    }
    assert_eq!((kept.says("c", &long), kept.says("b", &long)), ("done", "done"));
    assert_eq!(kept.says("a", &long), "admitted");
    let huge = "x".repeat(20_000);
    kept.carry_out("huge", &huge).await;
    assert_eq!(kept.says("huge", &huge), "done");
    assert_eq!(kept.says("b", &long), "admitted");
}

#[tokio::test]
async fn a_start_with_smaller_bounds_forgets_the_oldest_answers() {
    let mut kept = Kept::new();
    for key in ["a", "b", "c"] {
        kept.carry_out(key, key).await;
        kept.hands.pass(1);
    }
    kept.limits = small(2, 2, u64::MAX);
    kept.restart();
    assert_eq!(kept.keys().count(), 2);
    assert_eq!((kept.says("c", "c"), kept.says("b", "b")), ("done", "done"));
    assert_eq!(kept.records(), 2);
}

#[test]
fn a_call_removes_a_bounded_number_of_old_keys() {
    let mut table = Table::new(small(1000, 1000, u64::MAX));
    for number in 0..100_u32 {
        let key = RequestKey::of(&number.to_string());
        table.insert_done(key, None, answer(""), u64::from(number));
        table.insert_unknown(RequestKey::of(&format!("unknown {number}")), None, u64::from(number));
    }
    let mut calls = 0;
    while table.keys() > 2 {
        let (verdict, gone) = table.admit(RequestKey::of("same"), fingerprint(""), 98);
        assert!(gone.len() <= 32, "{}", gone.len());
        assert_eq!(verdict, Verdict::Admitted);
        table.free(RequestKey::of("same"));
        calls += 1;
        assert!(calls < 10);
    }
    assert_eq!(table.keys(), 2, "those of 99 stay");
    assert_eq!(table.under_way(), 0);
}
