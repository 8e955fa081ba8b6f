//! The table of traced requests against a model, and the choice of requests.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::observe::trace::{Ask, Kinds};

fn session(export: Option<&str>, one_in: u32, slower_than: Duration) -> Arc<Session> {
    let ask = Ask { kinds: Kinds::All, export: export.map(Into::into), slower_than, one_in };
    Arc::new(Session::new(ask, 2))
}

fn table() -> Table {
    Table { worker: 1, watching: Default::default(), rows: Vec::new(), free: Vec::new(), random: 0 }
}

/// A host with two exports.
struct Exports {
    _directory: tempfile::TempDir,
    exports: [Arc<Export>; 2],
}

impl Exports {
    fn new() -> Self {
        use crate::cache::{Cache, Directory, Known, MonotonicClock, OnFull, Options};
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            size_bytes: 8 << 20,
            segment_bytes: 1 << 20,
            shards: 1,
            on_full: OnFull::Wait,
            checksums_bytes_max: 1 << 20,
            mapped_bytes_max: 0,
            budgets: crate::cache::Budgets::default(),
            hands: 1,
        };
        let disk = Arc::new(Directory::new(directory.path()));
        let known = Known::local(&[]);
        let (cache, _) = Cache::open(disk, Arc::new(MonotonicClock::default()), options, known).unwrap();
        let exports = [1, 2].map(|id| {
            let id = crate::units::ExportId(id);
            Arc::new(Export::new(id, format!("vm-{}", id.0), 1 << 20, cache.volume(id)))
        });
        Self { _directory: directory, exports }
    }

    fn arrival(&self, export: usize, tag: u16, began: Instant) -> Arrival<'_> {
        Arrival {
            export: &self.exports[export],
            ids: (7, 0),
            tag,
            operation: Operation::Read,
            range: SectorRange::new(8, 8).unwrap(),
            fua: false,
            began,
            unseen_max: Duration::ZERO,
        }
    }
}

#[test]
fn a_reader_gets_the_requests_of_its_export_and_only_slow_ones_where_told() {
    let exports = Exports::new();
    let (all, one, slow) = (
        session(None, 1, Duration::ZERO),
        session(Some("vm-2"), 1, Duration::ZERO),
        session(None, 1, Duration::from_millis(1)),
    );
    let mut table = table();
    for session in [&all, &one, &slow] {
        table.watch(Arc::clone(session));
    }
    let began = Instant::now();
    for (export, micros) in [(0, 10), (1, 20), (0, 3000)] {
        let number = table.begin(&exports.arrival(export, 1, began)).unwrap();
        table.end(number, "ok", began + Duration::from_micros(micros));
    }
    let took = |session: &Session| {
        let ring = &session.worker(1).unwrap().ring;
        std::iter::from_fn(|| ring.pop())
            .map(|trace| (trace.export.to_string(), trace.steps.total().as_micros()))
            .collect::<Vec<_>>()
    };
    let of = |name: &str, micros| (name.to_owned(), micros);
    assert_eq!(took(&all), [of("vm-1", 10), of("vm-2", 20), of("vm-1", 3000)]);
    assert_eq!(took(&one), [of("vm-2", 20)]);
    assert_eq!(took(&slow), [of("vm-1", 3000)]);
    assert_eq!(one.sum(|side| &side.requests), 1);
    assert_eq!(all.workers()[0].requests.get(), 0, "the other worker has counts of its own");
}

#[test]
fn a_reader_that_does_not_read_costs_traces_and_is_told_the_number() {
    let exports = Exports::new();
    let reader = session(None, 1, Duration::ZERO);
    let mut table = table();
    table.watch(Arc::clone(&reader));
    let began = Instant::now();
    let mut taken = 0;
    for _ in 0..5000 {
        let number = table.begin(&exports.arrival(0, 1, began)).unwrap();
        table.end(number, "ok", began);
    }
    while reader.worker(1).unwrap().ring.pop().is_some() {
        taken += 1;
    }
    let side = reader.worker(1).unwrap();
    assert_eq!(side.dropped.get() + taken, 5000);
    assert_eq!((side.requests.get(), side.sampled.get()), (5000, 5000));
    assert!(taken >= 64, "{taken}");
}

#[test]
fn requests_beyond_the_table_are_counted_and_served_without_a_trace() {
    let exports = Exports::new();
    let reader = session(None, 1, Duration::ZERO);
    let mut table = table();
    table.watch(Arc::clone(&reader));
    let began = Instant::now();
    let numbers: Vec<_> = (0..300).filter_map(|tag| table.begin(&exports.arrival(0, tag, began))).collect();
    let most = usize::from(ROWS_MAX - ROWS_KEPT);
    assert_eq!(numbers.len(), most);
    assert_eq!(reader.sum(|side| &side.not_traced), 300 - most as u64);
    // The requests of one export which are stuck leave rows to others.
    let others = (0..300).filter(|tag| table.begin(&exports.arrival(1, *tag, began)).is_some()).count();
    assert_eq!(others, usize::from(ROWS_KEPT));
}

#[test]
fn a_change_of_one_in_so_many_holds_from_the_next_request_on() {
    let exports = Exports::new();
    let reader = session(None, 1_000_000, Duration::ZERO);
    let mut table = table();
    table.watch(Arc::clone(&reader));
    let began = Instant::now();
    // A distance is drawn with the first request.
    for tag in 0..3 {
        let _ = table.begin(&exports.arrival(0, tag, began));
    }
    reader.set_one_in(1);
    assert!(table.begin(&exports.arrival(0, 9, began)).is_some());
}

#[test]
fn the_last_request_of_the_last_reader_gives_the_memory_back() {
    let exports = Exports::new();
    let reader = session(None, 1, Duration::ZERO);
    let mut table = table();
    table.watch(Arc::clone(&reader));
    let number = table.begin(&exports.arrival(0, 1, Instant::now())).unwrap();
    table.unwatch(&reader);
    table.end(number, "ok", Instant::now());
    assert!(table.rows.is_empty() && table.free.is_empty());
}

#[test]
fn the_table_of_the_last_reader_gives_its_memory_back() {
    let exports = Exports::new();
    let reader = session(None, 1, Duration::ZERO);
    let mut table = table();
    table.watch(Arc::clone(&reader));
    let number = table.begin(&exports.arrival(0, 1, Instant::now())).unwrap();
    table.unwatch(&reader);
    assert!(!table.is_watched() && !table.rows.is_empty(), "a request still has a number");
    // Another reader comes and goes, and the request goes on.
    table.watch(Arc::clone(&reader));
    table.end(number, "ok", Instant::now());
    assert!(reader.worker(1).unwrap().ring.pop().is_none(), "the new reader did not choose the request");
    table.unwatch(&reader);
    assert!(table.rows.is_empty() && table.free.is_empty());
    assert_eq!(Arc::strong_count(&reader), 1);
}

#[test]
fn of_many_requests_one_in_so_many_is_chosen_and_no_kind_of_a_pattern_is_left_out() {
    let mut random = 7;
    for one_in in [1, 2, 3, 10, 1000] {
        let (mut chosen, mut even) = (0_u64, 0_u64);
        let mut at = 0_u64;
        while at < 1_000_000 {
            chosen += 1;
            even += u64::from(at.is_multiple_of(2));
            at += 1 + u64::from(next_skip(one_in, &mut random));
        }
        let expected = 1_000_000 / u64::from(one_in);
        assert!(chosen.abs_diff(expected) <= expected / 10 + 1, "one in {one_in}: {chosen}");
        assert!(even > chosen / 3 && even < chosen * 2 / 3 + 1, "one in {one_in}: {even} of {chosen}");
    }
    assert!(next_skip(u32::MAX, &mut random) > 0);
}

proptest! {
    // Whatever comes and goes, a request has one row, each row one request, and each trace is of its request.
    #[test]
    fn the_table_agrees_with_a_map_of_requests(
        steps in prop::collection::vec((0..6_u8, 0..200_u16, any::<prop::sample::Index>()), 1..400),
    ) {
        let exports = Exports::new();
        let readers: Vec<_> = (0..SESSIONS_MAX).map(|_| session(None, 1, Duration::ZERO)).collect();
        let mut table = table();
        let mut open: BTreeMap<u8, u16> = BTreeMap::new();
        let mut watching = [false; SESSIONS_MAX];
        let mut seen = Vec::new();
        let mut expected = Vec::new();
        let began = Instant::now();
        // The first reader stays, and chose every request.
        table.watch(Arc::clone(&readers[0]));
        for (what, tag, index) in steps {
            let number = (!open.is_empty()).then(|| *open.keys().nth(index.index(open.len())).unwrap());
            match (what, number) {
                // The same tag may be traced twice: a queue which is gone, and one with the same number.
                (0 | 1, _) => match table.begin(&exports.arrival(usize::from(tag % 2), tag, began)) {
                    Some(number) => prop_assert!(open.insert(number.0.get(), tag).is_none(), "a number given twice"),
                    None => prop_assert!(open.len() >= usize::from(ROWS_MAX - ROWS_KEPT)),
                },
                // The request is answered, or fails as the device is removed.
                (2, Some(number)) => {
                    expected.push(open.remove(&number).unwrap());
                    table.end(RowNumber(NonZeroU8::new(number).unwrap()), "ok", began);
                }
                // The request is put aside, to be begun anew.
                (3, Some(number)) => {
                    open.remove(&number);
                    drop(table.take(RowNumber(NonZeroU8::new(number).unwrap())));
                }
                (4, _) => {
                    let reader = 1 + index.index(SESSIONS_MAX - 1);
                    if std::mem::replace(&mut watching[reader], true) {
                        table.unwatch(&readers[reader]);
                        watching[reader] = false;
                    } else {
                        table.watch(Arc::clone(&readers[reader]));
                    }
                }
                (5, Some(number)) => {
                    let number = RowNumber(NonZeroU8::new(number).unwrap());
                    table.row(number).unwrap().trace.steps.enter(Part::Log, began);
                }
                _ => {}
            }
            seen.extend(std::iter::from_fn(|| readers[0].worker(1).unwrap().ring.pop()).map(|trace| trace.tag));
            prop_assert_eq!(table.free.len() + open.len(), usize::from(ROWS_MAX));
        }
        prop_assert_eq!(seen, expected);
    }
}
