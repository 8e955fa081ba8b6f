//! The oracle on histories of one sector.

use super::*;
use crate::sim::content::fill;

const EXPORT: ExportId = ExportId(1);

/// An oracle of one sector.
struct One(Oracle);

impl One {
    fn new() -> Self {
        let mut oracle = Oracle::default();
        oracle.add(EXPORT, 1);
        Self(oracle)
    }

    fn range() -> SectorRange {
        SectorRange::new(0, 1).unwrap()
    }

    fn issue(&mut self, id: Content) {
        self.0.issue(EXPORT, Self::range(), id, false);
    }

    fn end(&mut self, id: Content, ok: bool) {
        self.0.end(EXPORT, Self::range(), id, ok, false);
    }

    fn write(&mut self, id: Content) {
        self.issue(id);
        self.end(id, true);
    }

    fn flush(&mut self) {
        let issued = self.0.tick();
        self.0.flushed(EXPORT, issued, issued);
    }

    fn bytes(id: Content) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        if id > 0 {
            fill(&mut bytes, id, EXPORT, 0);
        }
        bytes
    }

    fn reads(&mut self, issued: Moment, id: Content) -> bool {
        self.0.check(EXPORT, Self::range(), issued, &Self::bytes(id)).is_ok()
    }

    fn observes(&mut self, before: Before, id: Content) -> bool {
        if before != Before::Rest {
            self.0.crashed();
        }
        self.0.observe(EXPORT, Self::range(), before, &Self::bytes(id)).is_ok()
    }
}

#[test]
fn a_read_returns_the_newest_acknowledged_write_or_one_beside_it() {
    let mut one = One::new();
    one.write(1);
    one.write(2);
    let issued = one.0.tick();
    one.issue(3);
    assert_eq!([0, 1, 2, 3, 4].map(|id| one.reads(issued, id)), [false, false, true, true, false]);
    one.end(3, true);
    assert_eq!([1, 2, 3].map(|id| one.reads(issued, id)), [false, true, true]);
    let issued = one.0.tick();
    assert_eq!([1, 2, 3].map(|id| one.reads(issued, id)), [false, false, true]);
}

#[test]
fn a_kill_loses_nothing_acknowledged_and_may_keep_what_was_in_flight() {
    for (found, legal) in [(0, false), (1, false), (2, true), (3, true), (4, false)] {
        let mut one = One::new();
        one.write(1);
        one.write(2);
        one.issue(3);
        assert_eq!(one.observes(Before::Kill, found), legal, "{found}");
    }
}

#[test]
fn a_power_cut_loses_nothing_that_a_flush_covered() {
    for (found, legal) in [(0, false), (1, false), (2, true), (3, true), (4, true), (5, false)] {
        let mut one = One::new();
        one.write(1);
        one.write(2);
        one.flush();
        one.write(3);
        one.issue(4);
        assert_eq!(one.observes(Before::PowerCut, found), legal, "{found}");
    }
}

#[test]
fn a_flush_does_not_cover_a_write_that_was_acknowledged_after_it_was_issued() {
    let mut one = One::new();
    one.issue(1);
    let issued = one.0.tick();
    one.end(1, true);
    one.0.flushed(EXPORT, issued, issued);
    assert!(one.observes(Before::PowerCut, 0));
}

#[test]
fn what_a_kill_kept_is_durable_only_after_the_next_flush() {
    let mut one = One::new();
    one.write(1);
    assert!(one.observes(Before::Kill, 1));
    assert!(one.observes(Before::PowerCut, 0));
    one.write(2);
    assert!(one.observes(Before::Kill, 2));
    one.flush();
    assert!(!one.observes(Before::PowerCut, 0));
    assert!(one.observes(Before::PowerCut, 2));
}

#[test]
fn what_was_lost_never_comes_back() {
    let mut one = One::new();
    one.write(1);
    one.issue(2);
    assert!(one.observes(Before::PowerCut, 1));
    assert!(!one.observes(Before::PowerCut, 2));
    one.issue(3);
    assert!(one.observes(Before::Kill, 1));
    assert!(!one.observes(Before::Kill, 3));
}

#[test]
fn a_failed_write_leaves_old_or_new_until_something_newer_is_acknowledged() {
    let mut one = One::new();
    one.write(1);
    one.issue(2);
    one.end(2, false);
    let issued = one.0.tick();
    assert_eq!([0, 1, 2].map(|id| one.reads(issued, id)), [false, true, true]);
    one.write(3);
    let issued = one.0.tick();
    assert_eq!([1, 2, 3].map(|id| one.reads(issued, id)), [false, false, true]);
}

#[test]
fn a_failed_write_under_a_newer_one_may_come_to_light_after_a_power_cut_only() {
    for (before, legal) in [(Before::PowerCut, true), (Before::Kill, false)] {
        let mut one = One::new();
        one.issue(1);
        one.end(1, false);
        one.write(2);
        assert!(one.observes(Before::Rest, 2));
        assert_eq!(one.observes(before, 1), legal);
    }
}

#[test]
fn a_read_that_began_before_a_flush_may_still_return_what_the_flush_made_history() {
    let mut one = One::new();
    let read = one.0.tick();
    one.write(1);
    let flush = one.0.tick();
    one.0.flushed(EXPORT, flush, read);
    assert!(one.reads(read, 0) && one.reads(read, 1) && !one.reads(flush, 0));
}

#[test]
fn a_sector_that_fails_after_a_power_cut_may_be_found_later_without_what_was_not_flushed() {
    for (before, legal) in [(Before::PowerCut, true), (Before::Kill, false)] {
        let mut one = One::new();
        one.write(1);
        one.flush();
        one.write(2);
        one.0.crashed();
        one.0.unseen(EXPORT, One::range(), before);
        let issued = one.0.tick();
        assert_eq!([0, 1, 2].map(|id| one.reads(issued, id)), [false, legal, true]);
        one.write(3);
        let issued = one.0.tick();
        assert_eq!([1, 2, 3].map(|id| one.reads(issued, id)), [false, false, true]);
    }
}
