//! What is measured adds up, what is read is what was written, and files that were there stay as they are.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::BenchError;
use super::compare::{Compared, Pair, tables};
use super::figures::{CpuTime, Group, Latencies, Run, Spread};
use super::machine::Machine;
use super::plan::{BLOCK_BYTES, Case, Engine, Load, Mode, Settings, cases};
use super::published::Published;
use super::report::{self, Table};
use super::run::run;
use super::session::{self, Step};
use super::target::{Places, TestFile, is_stamped, stamp};

const SIZE: u64 = 1 << 20;

const ENGINES: [&str; 8] = [
    "pread",
    "threads:3",
    "ring",
    "ring-fixed",
    "ring-vectored",
    "ring-vectored-fixed",
    "ring-fixed+sqpoll",
    "ring+shared",
];
const MODES: [Mode; 4] = [Mode::Read, Mode::Write, Mode::Randread, Mode::Randwrite];

fn engine(name: &str) -> Engine {
    name.parse().unwrap()
}

fn load(mode: Mode) -> Load {
    Load { mode, block_bytes: 8192, numjobs: 2, iodepth: 4 }
}

fn settings(dir: &Path) -> Settings {
    Settings {
        file: None,
        dir: dir.into(),
        overwrite: false,
        size_bytes: SIZE,
        direct: false,
        duration: Duration::from_millis(50),
        warmup: Duration::from_millis(2),
        repeat: 1,
        verify: true,
    }
}

fn case(engine: &str, mode: Mode) -> Case {
    cases(&[self::engine(engine)], &[mode], &[8192], &[2], &[4]).remove(0)
}

fn content(file: &TestFile) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(SIZE).unwrap()];
    let plain =
        std::fs::File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&**file.file())))
            .unwrap();
    plain.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn every_engine_does_every_mode(direct: bool) {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let settings = Settings { direct, ..settings(dir.path()) };
    for name in ENGINES {
        for mode in MODES {
            let case = case(name, mode);
            let file = TestFile::prepare(&settings, &[case], |_, _| ()).unwrap();
            assert!(is_stamped(&content(&file), 0));
            if mode.writes() {
                // Nothing but the run can have put stamps there.
                let plain =
                    TestFile::prepare(&super::tests::settings(dir.path()), &[case], |_, _| ()).unwrap();
                plain
                    .file()
                    .write_all_at(&content(&plain).iter().map(|_| 0).collect::<Vec<u8>>(), 0)
                    .unwrap();
                check_run(case, &plain, &Settings { direct: false, ..settings.clone() });
                let blocks: Vec<_> = content(&plain).chunks(BLOCK_BYTES).map(<[u8]>::to_vec).collect();
                let stamped = |at: usize| is_stamped(&blocks[at], (at * BLOCK_BYTES) as u64);
                assert!((0..blocks.len()).any(stamped), "{case}: nothing was written");
                let neither =
                    (0..blocks.len()).find(|&at| !stamped(at) && blocks[at].iter().any(|&byte| byte != 0));
                assert_eq!(neither, None, "{case}: a block holds what belongs elsewhere");
            }
            check_run(case, &file, &settings);
            assert!(is_stamped(&content(&file), 0), "{case}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "test files have no names");
}

fn check_run(case: Case, file: &TestFile, settings: &Settings) {
    let measure = |settings: &Settings| {
        run(case, file, settings).unwrap_or_else(|error| panic!("{case}: {}", crate::observe::chain(&error)))
    };
    let mut run = measure(settings);
    for seconds in [1, 10] {
        // On a busy machine one operation may take longer than a short run lasts.
        if run.operations == 0 {
            run = measure(&Settings { duration: Duration::from_secs(seconds), ..settings.clone() });
        }
    }
    assert!(run.operations > 0, "{case}");
    assert_eq!(run.bytes, run.operations * case.load.block_bytes as u64, "{case}");
    let latency = run.latency_nanos;
    let rising = [latency.p50, latency.p95, latency.p99, latency.p999, latency.max];
    assert!(
        rising.is_sorted() && latency.p50 > 0 && latency.avg <= latency.max as f64,
        "{case}: {latency:?}"
    );
}

#[test]
fn every_engine_does_every_mode_through_the_page_cache() {
    every_engine_does_every_mode(false);
}

#[test]
fn every_engine_does_every_mode_past_the_page_cache() {
    every_engine_does_every_mode(true);
}

#[test]
fn a_block_that_holds_something_else_fails_the_run() {
    let dir = tempfile::tempdir().unwrap();
    // The failure ends it.
    let settings = Settings { duration: Duration::from_hours(1), ..settings(dir.path()) };
    for name in ENGINES {
        let case = case(name, Mode::Read);
        let file = TestFile::prepare(&settings, &[case], |_, _| ()).unwrap();
        file.file().write_all_at(&[0; BLOCK_BYTES], BLOCK_BYTES as u64).unwrap();
        let error = run(case, &file, &settings).unwrap_err();
        assert!(matches!(error, BenchError::Corrupt { offset: 0 | 4096, .. }), "{name}: {error}");
    }
}

#[test]
fn a_failing_operation_ends_all_jobs_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { duration: Duration::from_hours(1), ..settings(dir.path()) };
    for name in ["pread", "ring"] {
        let case = case(name, Mode::Read);
        let file = TestFile::prepare(&settings, &[case], |_, _| ()).unwrap();
        file.file().set_len(SIZE / 2).unwrap();
        let error = run(case, &file, &settings).unwrap_err();
        assert!(matches!(error, BenchError::Short { .. }), "{name}: {error}");
    }
}

#[test]
fn polling_for_completions_works_or_says_that_it_cannot() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let case = case("ring+iopoll", Mode::Randread);
    let direct = Settings { direct: true, ..settings(dir.path()) };
    match session::measure(&[case], &direct, &mut |_| ()) {
        Ok(groups) => assert!(groups[0].runs[0].operations > 0),
        Err(error) => assert!(error.to_string().contains("leave out +iopoll"), "{error}"),
    }
    let refused = session::measure(&[case], &settings(dir.path()), &mut |_| ()).unwrap_err();
    assert!(refused.to_string().contains("--direct"), "{refused}");
}

fn named(path: PathBuf) -> Settings {
    Settings { file: Some(path.clone()), ..settings(path.parent().unwrap()) }
}

#[test]
fn a_file_that_was_there_is_written_only_with_leave() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    let precious = vec![7; usize::try_from(SIZE).unwrap()];
    std::fs::write(&path, &precious).unwrap();
    let settings = Settings { verify: false, ..named(path.clone()) };
    let measure = |mode, settings: &Settings| session::measure(&[case("pread", mode)], settings, &mut |_| ());
    let error = measure(Mode::Randwrite, &settings).unwrap_err();
    assert!(
        matches!(&error, BenchError::Exists { .. }) && error.to_string().contains("--overwrite"),
        "{error}"
    );
    assert!(measure(Mode::Randread, &settings).unwrap()[0].runs[0].operations > 0);
    let longer = Settings { size_bytes: 2 * SIZE, ..settings.clone() };
    assert!(matches!(measure(Mode::Read, &longer), Err(BenchError::TooShort { bytes: SIZE, .. })));
    assert_eq!(std::fs::read(&path).unwrap(), precious);

    measure(Mode::Randwrite, &Settings { overwrite: true, ..settings.clone() }).unwrap();
    assert!(is_stamped(&std::fs::read(&path).unwrap(), 0));
    // It was filled with stamps, so it can be verified now.
    measure(Mode::Randread, &Settings { verify: true, ..settings }).unwrap();
}

#[test]
fn a_file_that_was_named_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new");
    let mut steps = Vec::new();
    session::measure(&[case("ring", Mode::Randwrite)], &named(path.clone()), &mut |step| steps.push(step))
        .unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE);
    assert!(matches!(steps[0], Step::Filling { done: SIZE, total: SIZE }));
    assert!(matches!(steps[1], Step::Running { number: 1, of: 1, .. }));
}

#[test]
fn a_file_system_without_direct_io_is_named_with_what_to_do() {
    // Every machine has a sysfs, and that has no direct I/O.
    let settings = Settings { direct: true, size_bytes: 0, ..named("/sys/kernel/uevent_seqnum".into()) };
    let error = TestFile::prepare(&settings, &[case("pread", Mode::Read)], |_, _| ()).unwrap_err();
    assert!(error.to_string().contains("use --buffered"), "{error}");
}

#[test]
fn settings_that_measure_nothing_are_refused() {
    let good = settings(Path::new("."));
    let of = |load: Load| [Case { engine: engine("ring"), load }];
    let load = load(Mode::Read);
    assert!(good.check(&of(load)).is_ok());
    for bad in [
        Load { block_bytes: 512, ..load },
        Load { block_bytes: 0, ..load },
        Load { block_bytes: 1 << 18, ..load },
        Load { numjobs: 0, ..load },
        Load { iodepth: 0, ..load },
        Load { iodepth: 5000, ..load },
        Load { numjobs: 129, ..load },
    ] {
        assert!(good.check(&of(bad)).is_err(), "{bad:?}");
    }
    assert!(Settings { repeat: 0, ..good.clone() }.check(&of(load)).is_err());
    assert!(Settings { duration: Duration::ZERO, ..good }.check(&of(load)).is_err());
}

#[test]
fn engines_are_written_as_they_are_read() {
    for name in ENGINES.into_iter().chain(["ring-fixed+sqpoll+iopoll+shared", "threads:128"]) {
        assert_eq!(engine(name).to_string(), name);
    }
    for name in [
        "",
        "rings",
        "threads",
        "threads:0",
        "threads:x",
        "threads:5000",
        "ring+",
        "ring+fast",
        "pread+sqpoll",
    ] {
        let error = name.parse::<Engine>().unwrap_err();
        assert!(error.contains("threads:N"), "{name}: {error}");
    }
    for mode in MODES {
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
    assert!("rw".parse::<Mode>().is_err());
}

#[test]
fn cases_differ_in_what_their_engine_has() {
    let engines = [engine("pread"), engine("threads:8"), engine("ring")];
    let cases = cases(&engines, &[Mode::Read], &[4096], &[1, 2], &[1, 16]);
    let shapes = |name: &str| -> Vec<(usize, usize)> {
        let own = cases.iter().filter(|case| case.engine == engine(name));
        own.map(|case| (case.load.numjobs, case.load.iodepth)).collect()
    };
    assert_eq!(shapes("pread"), [(1, 1), (2, 1)]);
    assert_eq!(shapes("threads:8"), [(8, 1)]);
    assert_eq!(shapes("ring"), [(1, 1), (1, 16), (2, 1), (2, 16)]);
}

#[test]
fn sequential_jobs_share_the_file_and_random_ones_reach_all_of_it() {
    let blocks = SIZE / 8192;
    let mut seen = vec![0; usize::try_from(blocks).unwrap()];
    for job in 0..2 {
        let mut places = Places::new(&case("ring", Mode::Read), job, SIZE);
        for _ in 0..blocks / 2 {
            seen[usize::try_from(places.next_offset() / 8192).unwrap()] += 1;
        }
    }
    assert!(seen.iter().all(|&times| times == 1));
    let mut places = Places::new(&case("ring", Mode::Randread), 0, SIZE);
    for _ in 0..blocks * 40 {
        let offset = places.next_offset();
        assert!(offset.is_multiple_of(8192) && offset + 8192 <= SIZE);
        seen[usize::try_from(offset / 8192).unwrap()] += 1;
    }
    assert!(seen.iter().all(|&times| times > 1));
}

#[test]
fn a_stamp_belongs_to_one_block() {
    let mut bytes = vec![0; 4 * BLOCK_BYTES];
    assert!(!is_stamped(&bytes, 0));
    stamp(&mut bytes, 8192);
    assert!(is_stamped(&bytes, 8192) && !is_stamped(&bytes, 0) && !is_stamped(&bytes, 4096));
    bytes[3 * BLOCK_BYTES] ^= 1;
    assert!(!is_stamped(&bytes, 8192) && is_stamped(&bytes[..3 * BLOCK_BYTES], 8192));
}

/// A run that did so many operations in a second, each in so many nanoseconds.
fn made_up(case: Case, operations: u64) -> Run {
    let mut latencies = Latencies::default();
    for _ in 0..operations {
        latencies.record(Duration::from_nanos(1_000_000_000 / operations));
    }
    let cpu = CpuTime { user: Duration::from_millis(250), system: Duration::from_millis(500) };
    Run::new(case, Duration::from_secs(1), &latencies, operations * case.load.block_bytes as u64, cpu)
}

fn compared(before: &[u64], after: &[u64]) -> Compared {
    let pair = Pair::new(engine("ring"), engine("ring-fixed"), load(Mode::Randread));
    let group = |case, counts: &[u64]| Group {
        case,
        runs: counts.iter().map(|&count| made_up(case, count)).collect(),
    };
    Compared { before: group(pair.before, before), after: group(pair.after, after), unavailable: None }
}

#[test]
fn sides_take_turns() {
    let pair = Pair::new(engine("ring"), engine("pread"), load(Mode::Read));
    let order: String = pair.order(3).map(|case| if case == pair.before { 'A' } else { 'B' }).collect();
    assert_eq!(order, "ABBAAB");
    let mut number = 0;
    let done = Compared::run(pair, 4, false, |case| {
        number += 1;
        Ok(made_up(case, 1000 + number))
    })
    .unwrap();
    assert_eq!((done.before.runs.len(), done.after.runs.len()), (4, 4));
    assert_eq!(
        done.before.runs.iter().map(|run| run.operations).collect::<Vec<_>>(),
        [1001, 1004, 1005, 1008]
    );
}

#[test]
fn a_difference_counts_when_it_is_larger_than_the_spread() {
    let iops = |run: &Run| run.iops;
    assert_eq!(compared(&[1000, 1100], &[1200, 1300]).verdict(iops), "differs");
    assert_eq!(compared(&[1000, 1200], &[1100, 1300]).verdict(iops), "within the spread");
    assert_eq!(compared(&[1000], &[2000]).verdict(iops), "one run: no spread");
    let (before, after) = compared(&[900, 1100], &[1250, 1250]).spreads(iops);
    assert_eq!((before, before.percent()), (Spread { mean: 1000.0, half_range: Some(100.0) }, Some(10.0)));
    assert_eq!(before.change_percent(after), 25.0);
}

#[test]
fn tables_of_differences_show_both_sides() {
    let [throughput, latency, cpu] = tables(&[compared(&[1000, 1000], &[1250, 1250])]).try_into().unwrap();
    let row = throughput.rows[0].join(" | ");
    assert!(
        row.starts_with(
            "ring → ring-fixed | 2 | 4 | randread | 8k | 1000 | 1250 | +25.0% | 7.8 MiB/s | 9.8 MiB/s"
        ),
        "{row}"
    );
    assert!(row.ends_with("±0.0% | ±0.0% | differs"), "{row}");
    // A million nanoseconds to three digits.
    assert!(
        latency.rows[0][6].contains("µs → 800.") && latency.rows[0][6].contains("(−20.0%)"),
        "{:?}",
        latency.rows[0]
    );
    assert!(cpu.rows[0][5].contains("25% → 25% (+0.0%)"), "{:?}", cpu.rows[0]);
    for table in [throughput, latency, cpu] {
        assert!(table.rows.iter().all(|row| row.len() == table.header.len()), "{}", table.title);
    }
}

#[test]
fn what_a_machine_cannot_do_is_noted_in_a_published_set_up_and_fails_otherwise() {
    let pair = Pair::new(engine("ring"), engine("ring+iopoll"), load(Mode::Read));
    let cannot = |case: Case| {
        let source = std::io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        Err(BenchError::Operation { engine: case.engine.to_string(), offset: 0, hint: "", source })
    };
    assert!(Compared::run(pair, 1, false, cannot).is_err());
    let compared = Compared::run(pair, 1, true, cannot).unwrap();
    let throughput = &tables(&[compared])[0];
    assert_eq!(throughput.rows[0].len(), throughput.header.len());
    assert!(throughput.notes[0].contains("not on this machine"), "{:?}", throughput.notes);
}

#[test]
fn every_published_figure_has_one_of_this_machine_beside_it() {
    for (name, published) in Published::ALL {
        for cpus in [1, 2, 96] {
            let set_up = published.set_up(cpus);
            let settings = Settings { direct: true, size_bytes: 1 << 30, ..settings(Path::new(".")) };
            let cases: Vec<Case> = set_up.pairs.iter().flat_map(|pair| [pair.before, pair.after]).collect();
            settings.check(&cases).unwrap_or_else(|error| panic!("{name}: {error}"));
            let results: Vec<Compared> = set_up
                .pairs
                .iter()
                .map(|&pair| Compared::run(pair, 2, false, |case| Ok(made_up(case, 1000))).unwrap())
                .collect();
            let table = set_up.side_by_side(&results);
            assert!(!table.rows.is_empty() && table.notes[0].contains(set_up.source));
            for row in &table.rows {
                assert!(row[2].contains('→') && row[3] == "within the spread", "{name}: {row:?}");
            }
        }
    }
}

#[test]
fn markdown_is_aligned() {
    let mut table = Table::new("T", &["a", "Δ"]);
    table.rows.push(vec!["long".into(), "µ".into()]);
    table.notes.push("note".into());
    assert_eq!(table.markdown(), "### T\n\n| a    | Δ   |\n| ---- | --- |\n| long | µ   |\n\nnote\n");
}

#[test]
fn figures_are_written_as_people_say_them() {
    assert_eq!([999.4, 12_345.0, 185_400.0].map(report::iops), ["999", "12.3k", "185k"]);
    assert_eq!(
        [390.0, 5_390.0, 12_000_000.0, 2e9].map(report::latency),
        ["0.39 µs", "5.39 µs", "12.00 ms", "2.00 s"]
    );
    assert_eq!([4.31, -20.06, -0.04, 0.0].map(report::change), ["+4.3%", "−20.1%", "+0.0%", "+0.0%"]);
    assert_eq!(report::bandwidth(756_023_296.0), "721.0 MiB/s");
}

/// A ring at two depths and blocking reads, two runs each.
fn two_engines() -> Vec<Group> {
    cases(&[engine("ring"), engine("pread")], &[Mode::Randread], &[4096], &[1], &[1, 16])
        .into_iter()
        .map(|case| Group { case, runs: vec![made_up(case, 1000), made_up(case, 1200)] })
        .collect()
}

#[test]
fn the_table_of_runs_has_a_row_for_every_case() {
    let groups = two_engines();
    let table = report::runs(&groups);
    assert_eq!(table.rows.len(), 3);
    assert!(table.rows.iter().all(|row| row.len() == table.header.len()));
    assert_eq!(table.rows[0][5..7], ["1100", "±9.1%"]);
}

#[cfg(feature = "plots")]
#[test]
fn the_picture_names_every_engine() {
    use super::plot;
    let svg = plot::svg(&two_engines()).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("ring randread 4k") && svg.contains("pread randread 4k"));
    assert!(plot::svg(&[]).unwrap().starts_with("<svg"));
}

#[test]
fn json_names_the_case_and_its_figures() {
    let case = case("ring-fixed", Mode::Randread);
    let group = Group { case, runs: vec![made_up(case, 1000)] };
    let value = serde_json::to_value(group).unwrap();
    assert_eq!(
        (&value["engine"], &value["mode"], &value["bs"]),
        (&"ring-fixed".into(), &"randread".into(), &8192.into())
    );
    let run = &value["runs"][0];
    assert_eq!((&run["operations"], &run["iops"]), (&1000.into(), &1000.0.into()));
    assert!(run["latency_nanos"]["p99.9"].is_u64());
}

#[test]
fn the_machine_is_named() {
    let machine = Machine::here(Path::new("/dev/shm/not/there")).to_string();
    assert!(
        machine.contains("CPUs (") && machine.contains("Linux ") && machine.ends_with("tmpfs"),
        "{machine}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn latencies_are_those_of_a_plain_sort_to_three_digits(mut nanos in prop::collection::vec(1_u64..10_000_000_000, 1..400)) {
        let mut latencies = Latencies::default();
        let mut other = Latencies::default();
        for (at, &value) in nanos.iter().enumerate() {
            if at % 2 == 0 { &mut latencies } else { &mut other }.record(Duration::from_nanos(value));
        }
        latencies.add(&other);
        nanos.sort_unstable();
        let figures = latencies.figures();
        prop_assert_eq!(latencies.count(), nanos.len() as u64);
        let near = |measured: f64, exact: f64| (measured - exact).abs() <= exact / 1000.0 + 1.0;
        for (measured, quantile) in
            [(figures.p50, 0.5), (figures.p95, 0.95), (figures.p99, 0.99), (figures.p999, 0.999), (figures.max, 1.0)]
        {
            let rank = (1..=nanos.len()).find(|&rank| rank as f64 >= quantile * nanos.len() as f64).unwrap();
            prop_assert!(near(measured as f64, nanos[rank - 1] as f64), "{} at {}", measured, quantile);
        }
        let mean = nanos.iter().map(|&value| value as f64).sum::<f64>() / nanos.len() as f64;
        prop_assert!(near(figures.avg, mean), "{} is not {}", figures.avg, mean);
    }
}
