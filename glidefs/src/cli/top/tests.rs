//! Rates, order, keys and the screen.

use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::draw::{Frame, Paint, draw};
use super::line;
use super::rates::{Rates, Sample, quantile};
use super::view::{Mode, Next, View};
use crate::api::wire::{Alert, Top, TopExport, TopIo, TopRequests};
use crate::cli::args::top::{SortKey, TopArgs};
use crate::config::TimeSpan;
use std::time::Duration;

const BOUNDS: [u64; 3] = [10, 100, 1000];

fn requests(operations: u64) -> TopRequests {
    TopRequests {
        operations,
        bytes: operations * 4096,
        errors: operations / 10,
        latency_nanoseconds: operations * 50,
        latency: vec![0, operations],
    }
}

fn export(name: &str, id: u32, operations: u64) -> TopExport {
    let (read, write) = (requests(operations), requests(operations / 2));
    let io = TopIo { id, read, write, ..TopIo::default() };
    TopExport { name: name.into(), state: "serving".into(), io: Some(io), ..TopExport::default() }
}

fn top(seconds: u64, exports: Vec<TopExport>) -> Top {
    Top {
        pid: 7,
        instance: "first".into(),
        uptime_nanoseconds: seconds * 1_000_000_000,
        latency_bounds_nanoseconds: BOUNDS.to_vec(),
        exports,
        ..Top::default()
    }
}

fn args() -> TopArgs {
    TopArgs {
        interval: TimeSpan(Duration::from_secs(2)),
        sort: SortKey::Iops,
        filter: String::new(),
        once: false,
        json: false,
    }
}

#[test]
fn rates_are_the_growth_over_the_time_between_two_answers() {
    let sample = Sample::of(Some(&top(10, vec![export("a", 1, 100)])), &top(12, vec![export("a", 1, 300)]));
    let one = &sample.exports[0];
    assert_eq!(sample.seconds, Some(2.0));
    assert_eq!(
        (one.iops, one.read_bytes, one.written_bytes),
        (Some(150.0), Some(409_600.0), Some(204_800.0))
    );
    assert_eq!((one.mean_nanoseconds, one.errors), (Some(50.0), Some(15.0)));
    assert_eq!((sample.host.reads, sample.host.writes), (Some(100.0), Some(50.0)));
    let p99 = one.p99_nanoseconds.unwrap();
    assert!((99.0..=99.2).contains(&p99), "{p99}");
}

#[test]
fn counters_that_began_anew_give_no_rate_instead_of_a_wrong_one() {
    let before = top(10, vec![export("a", 1, 100)]);
    let same = top(12, vec![export("a", 1, 100)]);
    assert_eq!(Sample::of(Some(&before), &same).exports[0].iops, Some(0.0));
    // Another daemon, whose clock may be ahead or behind.
    for seconds in [1, 10, 12] {
        let restarted = Top { instance: "second".into(), ..top(seconds, vec![export("a", 1, 500)]) };
        let sample = Sample::of(Some(&before), &restarted);
        assert_eq!((sample.seconds, sample.exports[0].iops, sample.host.reads), (None, None, None));
    }
    // An answer asked for before, or twice the same.
    for seconds in [9, 10] {
        assert_eq!(Sample::of(Some(&before), &top(seconds, vec![export("a", 1, 500)])).seconds, None);
    }
    // Another export of the same name, and counters that went back.
    for export in [export("a", 2, 500), export("a", 1, 99)] {
        let sample = Sample::of(Some(&before), &top(12, vec![export]));
        assert_eq!((sample.exports[0].iops, sample.host.reads), (None, Some(0.0)));
    }
    // An export that begins to be used: its requests before are not known.
    let unused = TopExport { io: None, ..export("a", 1, 0) };
    assert_eq!(Sample::of(Some(&top(10, vec![unused.clone()])), &same).exports[0].iops, None);
    assert_eq!(Sample::of(Some(&before), &top(12, vec![unused])).exports[0].iops, Some(0.0));
}

/// Counters of an export in two answers, and its ids there.
type Pair = (u16, u16, u32, u32);

proptest! {
    #[test]
    fn a_rate_is_never_negative_and_the_host_does_what_its_exports_do(
        pairs in prop::collection::vec((any::<u16>(), any::<u16>(), 0..3_u32, 0..3_u32), 0..20),
        times in (0..100_u64, 0..100_u64),
    ) {
        let name = |place: usize| format!("vm-{place}");
        let all = |pick: fn(&Pair) -> (u16, u32)| {
            let exports = pairs.iter().enumerate().map(|(place, pair)| {
                let (operations, id) = pick(pair);
                export(&name(place), id, operations.into())
            });
            exports.collect::<Vec<_>>()
        };
        let before = top(times.0, all(|pair| (pair.0, pair.2)));
        let now = top(times.1, all(|pair| (pair.1, pair.3)));
        let sample = Sample::of(Some(&before), &now);
        prop_assert_eq!(sample.seconds.is_some(), times.1 > times.0);
        let mut iops = 0.0;
        for (one, pair) in sample.exports.iter().zip(&pairs) {
            let is_known = times.1 > times.0 && pair.2 == pair.3 && pair.1 >= pair.0;
            prop_assert_eq!(one.iops.is_some(), is_known, "{:?} {:?}", one, pair);
            let rates = [one.iops, one.read_bytes, one.written_bytes, one.wait_nanoseconds, one.errors];
            prop_assert!(rates.into_iter().flatten().all(|rate| rate >= 0.0), "{:?}", one);
            prop_assert!(one.mean_nanoseconds.is_none_or(|mean| mean > 0.0 && mean <= 1000.0), "{:?}", one);
            iops += one.iops.unwrap_or(0.0);
        }
        if let (Some(reads), Some(writes)) = (sample.host.reads, sample.host.writes) {
            prop_assert!((reads + writes - iops).abs() < 1e-6 * (1.0 + iops));
        }
    }

    #[test]
    fn a_quantile_lies_in_the_bucket_of_its_request(buckets in prop::collection::vec(0..50_u64, 4), share in 0.01..1.0_f64) {
        let total: u64 = buckets.iter().sum();
        let found = quantile(share, &buckets, &BOUNDS);
        prop_assert_eq!(found.is_some(), total > 0);
        if let Some(found) = found {
            let rank = share * total as f64;
            let mut below = 0.0;
            let place = buckets.iter().position(|count| { below += *count as f64; below >= rank }).unwrap_or(3);
            let low = if place == 0 { 0.0 } else { BOUNDS[place.min(3) - 1] as f64 };
            let high = BOUNDS[place.min(2)] as f64;
            prop_assert!(low - 1e-6 <= found && found <= high + 1e-6, "{} not in {}..{}", found, low, high);
        }
    }
}

fn rates(name: &str, iops: Option<f64>) -> Rates {
    Rates { name: name.into(), state: "serving".into(), iops, ..Rates::default() }
}

fn names(view: &View, sample: &Sample) -> String {
    view.exports(sample).iter().map(|export| export.name.as_str()).collect::<Vec<_>>().join(" ")
}

fn press(view: &mut View, keys: &str) -> Next {
    let mut next = Next::Go;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            key => KeyCode::Char(key),
        };
        next = view.press(KeyEvent::from(code));
    }
    next
}

#[test]
fn exports_are_sorted_by_the_key_and_unknown_figures_come_last_in_either_order() {
    let sample = Sample {
        exports: vec![rates("b", Some(1.0)), rates("d", None), rates("a", Some(5.0)), rates("c", Some(1.0))],
        ..Sample::default()
    };
    let mut view = View::new(&args());
    assert_eq!(names(&view, &sample), "a b c d");
    press(&mut view, "o");
    assert_eq!(names(&view, &sample), "b c a d");
    press(&mut view, "n");
    assert_eq!(names(&view, &sample), "a b c d");
    press(&mut view, "o");
    assert_eq!(names(&view, &sample), "d c b a");
    for (key, sort) in [
        ("i", SortKey::Iops),
        ("b", SortKey::Bandwidth),
        ("l", SortKey::Latency),
        ("d", SortKey::Dirty),
        ("r", SortKey::Risk),
        ("w", SortKey::Waits),
    ] {
        press(&mut view, key);
        assert_eq!((view.sort, view.is_reversed), (sort, false));
    }
}

#[test]
fn letters_of_a_filter_are_no_commands_and_escape_ends_the_filter() {
    let sample = Sample { exports: vec![rates("db-1", None), rates("WEB-1", None)], ..Sample::default() };
    let mut view = View::new(&args());
    assert_eq!(press(&mut view, "/webq\x08"), Next::Go);
    assert_eq!(names(&view, &sample), "WEB-1");
    assert_eq!(view.mode, Mode::Filter);
    press(&mut view, "\n");
    assert_eq!((view.mode, view.filter.as_str()), (Mode::List, "web"));
    press(&mut view, "\x1b");
    assert_eq!(names(&view, &sample), "WEB-1 db-1");
    assert_eq!(press(&mut view, "q"), Next::End);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    press(&mut view, "/");
    assert_eq!(view.press(control_c), Next::End, "also while a filter is typed");
}

#[test]
fn the_place_stays_inside_the_list() {
    let mut view = View::new(&args());
    view.press(KeyEvent::from(KeyCode::End));
    view.fit(100, 20);
    assert_eq!(view.first, 80);
    view.press(KeyEvent::from(KeyCode::PageUp));
    assert_eq!(view.first, 60);
    view.fit(5, 20);
    assert_eq!(view.first, 0);
    view.press(KeyEvent::from(KeyCode::Up));
    assert_eq!(view.first, 0);
}

fn painted(now: &Top, sample: &Sample, view: &mut View, paint: &Paint, size: (u16, u16)) -> (String, bool) {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    let frame = Frame { now, sample, trouble: None, interval: Duration::from_secs(2) };
    terminal.draw(|screen| draw(screen, &frame, view, paint)).unwrap();
    let buffer = terminal.backend().buffer();
    let has_colours = buffer.content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
    let cells = buffer.content().chunks(usize::from(size.0));
    let lines = cells.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>());
    (lines.collect::<Vec<_>>().join("\n"), has_colours)
}

#[test]
fn eighty_columns_and_twenty_four_lines_have_room_for_every_column_and_colours_are_optional() {
    let many = |operations| (0..100).map(|id| export(&format!("vm-{id:03}"), id, operations)).collect();
    let (before, now) = (top(10, many(100)), top(12, many(300)));
    let alert = Alert { name: "GlidefsExportFailed".into(), severity: "critical".into(), ..Alert::default() };
    let now = Top { alerts: vec![alert], ..now };
    let sample = Sample::of(Some(&before), &now);
    let mut view = View::new(&args());
    let (text, has_colours) = painted(&now, &sample, &mut view, &Paint::new(true), (80, 24));
    assert!(has_colours);
    for word in line::HEADS.into_iter().chain([
        "NAME",
        "vm-000",
        "150",
        "critical GlidefsExportFailed",
        "1-18 of 100",
    ]) {
        assert!(text.contains(word), "{word} is missing:\n{text}");
    }
    assert!(!painted(&now, &sample, &mut view, &Paint::new(false), (80, 24)).1);
    press(&mut view, "?");
    assert!(painted(&now, &sample, &mut view, &Paint::new(true), (80, 24)).0.contains("by bytes a second"));
    for size in [(1, 1), (10, 3), (200, 60)] {
        painted(&now, &sample, &mut view, &Paint::new(true), size);
    }
}

#[test]
fn one_sample_as_text_has_a_line_for_each_export_that_the_filter_leaves() {
    let now = top(12, vec![export("db-1", 1, 300), export("web-1", 2, 100)]);
    let sample = Sample::of(Some(&top(10, vec![export("db-1", 1, 100), export("web-1", 2, 100)])), &now);
    let text = line::text(&now, &sample, &View::new(&TopArgs { filter: "db".into(), ..args() }));
    let row: Vec<_> = text.lines().find(|line| line.contains("db-1")).unwrap().split_whitespace().collect();
    assert_eq!(row, ["db-1", "150", "400K", "200K", "50ns", "99ns", "0", "0B", "0s", "0"]);
    assert!(!text.contains("web-1"), "{text}");
}
