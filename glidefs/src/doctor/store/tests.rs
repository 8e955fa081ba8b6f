//! Each finding about a store, from facts.

use super::super::finding::Verdict::{self, Failure, Note, Ok, Warning};
use super::*;
use crate::store::StoreError;

const STORE: Marker = Marker::Store(Uuid::from_u128(7));

fn trial() -> Trial {
    Trial {
        replaces: false,
        winners: 1,
        put: Duration::from_millis(30),
        get: Duration::from_millis(20),
        clock_ahead_millis: 0,
        removed: Result::Ok(()),
    }
}

fn answers(marker: Marker, trial: Option<Result<Trial, Trouble>>) -> Answers {
    let variables = VariablesOf::Daemon;
    Answers {
        location: "s3://bucket/prefix".into(),
        variables,
        marker,
        trial,
        has_started: true,
        shares_disk: false,
    }
}

fn refused() -> Trouble {
    Trouble::Refused { text: "says".into(), advice: "the clock of this host is wrong: set it" }
}

fn findings(trial: Trial) -> Vec<Finding> {
    check(&StoreFacts::Asked(Box::new(answers(STORE, Some(Result::Ok(trial))))))
}

fn verdict(trial: Trial, check_name: &str) -> Verdict {
    findings(trial).into_iter().find(|finding| finding.check == check_name).unwrap().verdict
}

#[test]
fn a_store_that_answers_and_keeps_its_conditions_is_well() {
    let findings = findings(trial());
    assert!(findings.len() == 5 && findings.iter().all(|finding| finding.verdict == Ok), "{findings:?}");
}

#[test]
fn a_store_that_is_not_there_or_cannot_be_set_up_has_one_finding() {
    let unusable = |is_made| {
        let error = "no directory".into();
        StoreFacts::Unusable { error, is_made, variables: VariablesOf::Nobody }
    };
    for (facts, expected) in [
        (StoreFacts::NotSet, Note),
        (StoreFacts::Unknown, Note),
        (StoreFacts::Memory, Warning),
        (StoreFacts::Forbidden, Note),
        (unusable(true), Note),
        (unusable(false), Failure),
    ] {
        let findings = check(&facts);
        assert!(findings.len() == 1 && findings[0].verdict == expected, "{facts:?}");
    }
}

#[test]
fn a_place_that_refuses_does_not_answer_or_is_something_else_is_a_failure() {
    for trouble in [refused(), Trouble::Unreachable("says".into()), Trouble::Unfit("says".into())] {
        let findings = check(&StoreFacts::Asked(Box::new(answers(Marker::Trouble(trouble), None))));
        assert!(findings.len() == 1 && findings[0].verdict == Failure, "{findings:?}");
    }
}

#[test]
fn a_refusal_is_mended_by_its_cause_and_first_with_the_variables_of_the_service() {
    let mend = |variables| {
        let answers = Answers { variables, ..answers(Marker::Trouble(refused()), None) };
        check(&StoreFacts::Asked(Box::new(answers))).remove(0).mend.unwrap()
    };
    assert!(mend(VariablesOf::Daemon).starts_with("the clock of this host is wrong"));
    assert!(mend(VariablesOf::Command).starts_with("once more with the service's variables"));
}

#[test]
fn a_place_without_a_store_is_a_note_before_the_first_start_and_a_warning_after() {
    let with = |has_started| {
        let answers = Answers { has_started, ..answers(Marker::Nothing, None) };
        check(&StoreFacts::Asked(Box::new(answers)))[0].verdict
    };
    assert_eq!([with(false), with(true)], [Note, Warning]);
}

#[test]
fn a_store_on_the_disk_of_the_cache_is_a_note() {
    let answers = Answers { shares_disk: true, ..answers(STORE, None) };
    let findings = check(&StoreFacts::Asked(Box::new(answers)));
    assert!(findings.iter().any(|finding| finding.check == "store disk" && finding.verdict == Note));
}

#[test]
fn a_store_that_may_be_read_and_not_written_or_not_cleaned_is_told_apart() {
    let facts = StoreFacts::Asked(Box::new(answers(STORE, Some(Err(refused())))));
    let last = check(&facts).pop().unwrap();
    assert_eq!((last.check, last.verdict), ("store writes", Failure));
    let kept = Err(StoreError::Missing { key: "k".into() });
    assert_eq!(verdict(Trial { removed: kept, ..trial() }, "store writes"), Warning);
}

#[test]
fn a_store_that_replaces_objects_alone_or_in_a_race_is_a_failure() {
    let check_name = "store conditional PUT";
    assert_eq!(verdict(Trial { replaces: true, ..trial() }, check_name), Failure);
    assert_eq!(verdict(Trial { winners: 2, ..trial() }, check_name), Failure);
    // The answer to the winner of a race may have been lost.
    assert_eq!(verdict(Trial { winners: 0, ..trial() }, check_name), Ok);
}

#[test]
fn a_slow_store_is_a_note_and_a_very_slow_one_a_warning() {
    let with = |millis| {
        let slow = Duration::from_millis(millis);
        [Trial { get: slow, ..trial() }, Trial { put: slow, ..trial() }]
            .map(|trial| verdict(trial, "store latency"))
    };
    assert_eq!([with(250), with(300), with(1001)], [[Ok; 2], [Note; 2], [Warning; 2]]);
}

#[test]
fn a_clock_that_differs_is_a_warning_and_a_failure_where_stores_refuse() {
    let with = |seconds: i64| verdict(Trial { clock_ahead_millis: seconds * 1000, ..trial() }, "store clock");
    assert_eq!([5, -5, 6, -60, 901, -901].map(with), [Ok, Ok, Warning, Warning, Failure, Failure]);
}
