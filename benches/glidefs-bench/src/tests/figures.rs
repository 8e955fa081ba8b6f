//! The arithmetic of figures, and the tables, the picture and the JSON made of figures.

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use proptest::prelude::*;

use super::support::{case, engine, load, settings};
use crate::compare::{Compared, Pair, tables};
use crate::error::BenchError;
use crate::figures::{CaseRuns, CpuTime, Latencies, MeasuredRun, Spread};
use crate::machine::ThisMachine;
use crate::plan::{Case, Mode, Settings, cases};
use crate::plot;
use crate::published::Published;
use crate::report::{self, Table};

/// A run with so many operations in one second, all of the same latency.
fn made_up(case: Case, operations: u64) -> MeasuredRun {
    let mut latencies = Latencies::default();
    for _ in 0..operations {
        latencies.record(Duration::from_nanos(1_000_000_000 / operations));
    }
    let cpu = CpuTime { user: Duration::from_millis(250), system: Duration::from_millis(500) };
    MeasuredRun::new(case, Duration::from_secs(1), &latencies, operations * case.load.block_bytes as u64, cpu)
}

fn compared(before: &[u64], after: &[u64]) -> Compared {
    let pair = Pair::new(engine("ring"), engine("ring-fixed"), load(Mode::Randread));
    let group = |case, counts: &[u64]| CaseRuns {
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
    let iops = |run: &MeasuredRun| run.iops;
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
    for published in Published::value_variants() {
        for cpus in [1, 2, 96] {
            let set_up = published.set_up(cpus);
            let settings = Settings { direct: true, size_bytes: 1 << 30, ..settings(Path::new(".")) };
            let cases: Vec<Case> = set_up.pairs.iter().flat_map(|pair| [pair.before, pair.after]).collect();
            settings.check(&cases).unwrap_or_else(|error| panic!("{published:?}: {error}"));
            let results: Vec<Compared> = set_up
                .pairs
                .iter()
                .map(|&pair| Compared::run(pair, 2, false, |case| Ok(made_up(case, 1000))).unwrap())
                .collect();
            let table = set_up.side_by_side(&results);
            assert!(!table.rows.is_empty() && table.notes[0].contains(set_up.source));
            for row in &table.rows {
                assert!(row[2].contains('→') && row[3] == "within the spread", "{published:?}: {row:?}");
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
fn two_engines() -> Vec<CaseRuns> {
    cases(&[engine("ring"), engine("pread")], &[Mode::Randread], &[4096], &[1], &[1, 16])
        .into_iter()
        .map(|case| CaseRuns { case, runs: vec![made_up(case, 1000), made_up(case, 1200)] })
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

#[test]
fn the_picture_names_every_engine() {
    let svg = plot::svg(&two_engines()).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("ring randread 4k") && svg.contains("pread randread 4k"));
    assert!(plot::svg(&[]).unwrap().starts_with("<svg"));
}

#[test]
fn json_names_the_case_and_its_figures() {
    let case = case("ring-fixed", Mode::Randread);
    let group = CaseRuns { case, runs: vec![made_up(case, 1000)] };
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
    let machine = ThisMachine::here(Path::new("/dev/shm/not/there")).to_string();
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
