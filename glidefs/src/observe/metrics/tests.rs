//! The text of a scrape, from counters to lines, and the judgement of Prometheus' own checker.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use proptest::prelude::*;

use super::table::{Definition, Kind, all};
use super::*;
use crate::observe::counter::{Histogram, IO_SIZE_BOUNDS_BYTES, LATENCY_BOUNDS_NANOS};
use crate::observe::io::{QueueStats, WorkerStats};

/// No export may have such a name, but the text must survive each.
pub(super) const AWKWARD_NAMES: [&str; 6] =
    ["plain", "quote\"d", "back\\slash\\", "two\nlines", "{le=\"4096\"} 1 # HELP", "naïve 磁盘\u{1f4bf}"];

/// A scrape of what `collect` adds.
fn scrape(collect: impl FnOnce(&mut Samples)) -> String {
    encode(ExportHistograms::Busy, collect).unwrap()
}

fn used_queue() -> Arc<QueueStats> {
    let stats = QueueStats::default();
    for bytes in [512, 4096, 4097, 131_072] {
        stats.read_size.record(bytes);
        stats.read_latency.record(10_000);
    }
    stats.write_size.record(8192);
    stats.write_latency.record(2_000_000_000);
    stats.flushes.add(3);
    stats.zeroes.add(2);
    stats.zero_bytes.add(1 << 20);
    stats.write_errors.add(5);
    stats.in_flight.add(7);
    Arc::new(stats)
}

fn figures(name: &str) -> ExportFigures<'_> {
    ExportFigures {
        name,
        size_bytes: 10 << 30,
        is_used: false,
        dirty_bytes: Some(4096),
        at_risk_nanos: Some(1_500_000_000),
        damaged_bytes: Some(512),
        packs: Some(Packs { fan_out: 3, count: 40, slows_writes: false }),
        cut: Some((8192, 4096)),
        index_held_nanos: 2_500_000_000,
        log: Some(LogFigures { bytes: 8192, held_nanos: 1_500_000_000 }),
        limits: &[("write_iops", 2_500_000_000), ("read_iops", 1_000_000_000)],
        io: None,
    }
}

/// Adds an export with this many used queues.
fn used_export(name: &str, queues: usize, out: &mut Samples) {
    let queues: Vec<_> = (0..queues).map(|_| used_queue()).collect();
    let io = QueueStats::sum(queues.iter().map(Arc::as_ref));
    export(&ExportFigures { is_used: true, io: Some(&io), ..figures(name) }, out);
}

/// The text of one export.
fn text_of(figures: ExportFigures<'_>, histograms: ExportHistograms) -> String {
    encode(histograms, |out| export(&figures, out)).unwrap()
}

/// A sample of every metric of the table, with labels that are hard to write.
fn everything() -> String {
    scrape(|out| {
        for Definition { metric, kind, labels, .. } in all() {
            for name in AWKWARD_NAMES.into_iter().take(if labels.is_empty() { 1 } else { usize::MAX }) {
                let labels = vec![name; labels.len()];
                match kind {
                    Kind::Counter | Kind::Gauge => out.value(*metric, &labels, u64::MAX),
                    Kind::SizeHistogram => {
                        out.histogram(*metric, &labels, &size_histogram(&[1, 9000, 1 << 40]));
                    }
                    Kind::LatencyHistogram => {
                        let latency = Histogram::new(&LATENCY_BOUNDS_NANOS);
                        latency.record(123);
                        out.histogram(*metric, &labels, &latency);
                    }
                }
            }
        }
    })
}

fn size_histogram(values: &[u64]) -> Histogram<6> {
    let histogram = Histogram::new(&IO_SIZE_BOUNDS_BYTES);
    for value in values {
        histogram.record(*value);
    }
    histogram
}

/// The lines of one metric, with HELP and TYPE.
fn lines<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let family = move |line: &&str| {
        let line = line.trim_start_matches("# HELP ").trim_start_matches("# TYPE ");
        let word = line.split(['{', ' ']).next().unwrap_or_default();
        word.strip_prefix(name).is_some_and(|rest| ["", "_bucket", "_sum", "_count"].contains(&rest))
    };
    text.lines().filter(family).collect()
}

#[test]
fn a_size_histogram_has_inclusive_cumulative_buckets_that_end_at_infinity() {
    let text = scrape(|out| used_export("vm-1", 1, out));
    let expected = "\
# HELP glidefs_read_io_size_bytes Sizes of completed READs.
# TYPE glidefs_read_io_size_bytes histogram
glidefs_read_io_size_bytes_bucket{export=\"vm-1\",le=\"4096\"} 2
glidefs_read_io_size_bytes_bucket{export=\"vm-1\",le=\"8192\"} 3
glidefs_read_io_size_bytes_bucket{export=\"vm-1\",le=\"16384\"} 3
glidefs_read_io_size_bytes_bucket{export=\"vm-1\",le=\"32768\"} 3
glidefs_read_io_size_bytes_bucket{export=\"vm-1\",le=\"65536\"} 3
glidefs_read_io_size_bytes_bucket{export=\"vm-1\",le=\"131072\"} 4
glidefs_read_io_size_bytes_bucket{export=\"vm-1\",le=\"+Inf\"} 4
glidefs_read_io_size_bytes_sum{export=\"vm-1\"} 139777
glidefs_read_io_size_bytes_count{export=\"vm-1\"} 4";
    assert_eq!(lines(&text, "glidefs_read_io_size_bytes").join("\n"), expected);
}

#[test]
fn latency_is_shown_in_seconds() {
    let text = scrape(|out| used_export("e", 1, out));
    for line in [
        "glidefs_export_latency_seconds_bucket{export=\"e\",operation=\"read\",le=\"0.00001\"} 4",
        "glidefs_export_latency_seconds_bucket{export=\"e\",operation=\"write\",le=\"1\"} 0",
        "glidefs_export_latency_seconds_bucket{export=\"e\",operation=\"write\",le=\"+Inf\"} 1",
        "glidefs_export_latency_seconds_sum{export=\"e\",operation=\"read\"} 0.00004",
        "glidefs_export_latency_seconds_sum{export=\"e\",operation=\"write\"} 2",
        "glidefs_export_latency_seconds_count{export=\"e\",operation=\"flush\"} 0",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
}

#[test]
fn the_queues_of_an_export_are_summed() {
    let text = scrape(|out| used_export("e", 3, out));
    for line in [
        "glidefs_read_io_size_bytes_count{export=\"e\"} 12",
        "glidefs_read_io_size_bytes_bucket{export=\"e\",le=\"4096\"} 6",
        "glidefs_export_operations_total{export=\"e\",operation=\"read\"} 12",
        "glidefs_export_operations_total{export=\"e\",operation=\"write\"} 3",
        "glidefs_export_operations_total{export=\"e\",operation=\"flush\"} 9",
        "glidefs_export_operations_total{export=\"e\",operation=\"zero\"} 6",
        "glidefs_export_bytes_total{export=\"e\",operation=\"read\"} 419331",
        "glidefs_export_bytes_total{export=\"e\",operation=\"zero\"} 3145728",
        "glidefs_export_errors_total{export=\"e\",operation=\"read\"} 0",
        "glidefs_export_errors_total{export=\"e\",operation=\"write\"} 15",
        "glidefs_export_in_flight_requests{export=\"e\"} 21",
        "glidefs_export_index_held_seconds_total{export=\"e\"} 2.5",
        "glidefs_export_log_bytes{export=\"e\"} 8192",
        "glidefs_export_log_held_seconds_total{export=\"e\"} 1.5",
        "glidefs_export_throttled_seconds_total{export=\"e\",limit=\"write_iops\"} 2.5",
        "glidefs_export_size_bytes{export=\"e\"} 10737418240",
        "glidefs_export_dirty_bytes{export=\"e\"} 4096",
        "glidefs_export_at_risk_seconds{export=\"e\"} 1.5",
        "glidefs_export_damaged_bytes{export=\"e\"} 512",
        "glidefs_export_fan_out_packs{export=\"e\"} 3",
        "glidefs_export_packs{export=\"e\"} 40",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
}

/// An export with nothing at risk and nothing in trouble.
fn at_rest(name: &str) -> ExportFigures<'_> {
    let packs = Some(Packs { fan_out: 9, count: 4000, slows_writes: false });
    let none = Some(0);
    ExportFigures {
        dirty_bytes: none,
        at_risk_nanos: none,
        damaged_bytes: none,
        packs,
        cut: None,
        index_held_nanos: 0,
        log: Some(LogFigures { bytes: 8192, held_nanos: 0 }),
        ..figures(name)
    }
}

#[test]
fn an_export_whose_device_nobody_uses_costs_at_most_300_bytes_of_a_scrape() {
    let io = QueueStats::sum([&*used_queue()]);
    // The longest name that an export may have.
    let (first, second) = ("a".repeat(128), "b".repeat(128));
    for io in [None, Some(&io)] {
        for histograms in [ExportHistograms::Busy, ExportHistograms::None] {
            let quiet = |name| ExportFigures { io, size_bytes: u64::MAX, ..at_rest(name) };
            let both = encode(histograms, |out| {
                export(&quiet(&first), out);
                export(&quiet(&second), out);
            });
            let both = both.unwrap();
            let bytes = both.len() - text_of(quiet(&first), histograms).len();
            assert!(bytes <= 300, "{bytes} bytes: {both}");
            assert!(both.contains("glidefs_export_size_bytes{"), "{both}");
        }
    }
}

#[test]
fn an_export_that_is_not_busy_shows_what_is_at_risk_or_in_trouble() {
    let text = text_of(figures("quiet"), ExportHistograms::Busy);
    for name in [
        "glidefs_export_dirty_bytes",
        "glidefs_export_at_risk_seconds",
        "glidefs_export_damaged_bytes",
        "glidefs_export_cut_bytes",
        "glidefs_export_cut_uploaded_bytes",
    ] {
        assert!(!lines(&text, name).is_empty(), "{name} is not in\n{text}");
    }
    assert!(lines(&text, "glidefs_export_fan_out_packs").is_empty());
    let packs = Some(Packs { fan_out: 70, count: 90, slows_writes: true });
    let crowded = text_of(ExportFigures { packs, ..at_rest("quiet") }, ExportHistograms::Busy);
    assert!(crowded.contains("glidefs_export_fan_out_packs{export=\"quiet\"} 70\n"), "{crowded}");
    let unknown = text_of(ExportFigures { dirty_bytes: None, ..figures("quiet") }, ExportHistograms::All);
    assert!(lines(&unknown, "glidefs_export_dirty_bytes").is_empty(), "{unknown}");
}

#[test]
fn a_used_export_shows_each_counter_whatever_its_requests_were() {
    let requests: [fn(&QueueStats); 7] = [
        |queue| queue.in_flight.add(1),
        |queue| queue.read_size.record(512),
        |queue| queue.write_size.record(1 << 40),
        |queue| queue.flushes.add(1),
        |queue| queue.zeroes.add(1),
        |queue| queue.read_errors.add(1),
        |queue| queue.flush_errors.add(1),
    ];
    for request in requests {
        let queue = QueueStats::default();
        request(&queue);
        let io = QueueStats::sum([&QueueStats::default(), &queue]);
        let text =
            text_of(ExportFigures { is_used: true, io: Some(&io), ..at_rest("e") }, ExportHistograms::Busy);
        // Each counter from the first request on, so that a rate is known from the second scrape on.
        assert_eq!(lines(&text, "glidefs_export_operations_total").len(), 2 + 4, "{text}");
        assert_eq!(lines(&text, "glidefs_export_errors_total").len(), 2 + 3, "{text}");
        assert_eq!(lines(&text, "glidefs_export_dirty_bytes").len(), 2 + 1, "{text}");
        assert_eq!(lines(&text, "glidefs_read_io_size_bytes").len(), 2 + 9, "{text}");
    }
}

#[test]
fn histograms_are_for_those_who_ask() {
    let io = QueueStats::sum([&*used_queue()]);
    let has = |is_used, io, histograms| {
        let text = text_of(ExportFigures { is_used, io, ..at_rest("e") }, histograms);
        let count = |name| !lines(&text, name).is_empty();
        (count("glidefs_export_operations_total"), count("glidefs_export_latency_seconds"))
    };
    for (is_used, io) in [(true, Some(&io)), (false, Some(&io)), (false, None)] {
        assert_eq!(has(is_used, io, ExportHistograms::Busy), (is_used, is_used));
        assert_eq!(has(is_used, io, ExportHistograms::None), (is_used, false));
        assert_eq!(has(is_used, io, ExportHistograms::All), (true, true));
    }
}

#[test]
fn workers_are_told_apart_and_those_with_an_arena_counted() {
    let first = WorkerStats::default();
    first.pool.acquires.add(9);
    first.pool.waits.add(2);
    first.pool.live_bytes_max.raise(8192);
    first.pool.wait_nanos.add(1_500_000_000);
    first.pool.arena_bytes.add(32 << 20);
    let text = scrape(|out| workers(&[Arc::new(first), Arc::default()], out));
    for line in [
        "glidefs_ublk_buffer_pool_backpressure_waits_total{worker=\"0\"} 2",
        "glidefs_ublk_buffer_pool_wait_seconds_total{worker=\"0\"} 1.5",
        "glidefs_ublk_buffer_pool_acquires_total{worker=\"0\"} 9",
        "glidefs_ublk_buffer_pool_live_bytes{worker=\"0\"} 0",
        "glidefs_ublk_buffer_pool_live_bytes_max{worker=\"0\"} 8192",
        "glidefs_ublk_buffer_pool_workers_initialized 1",
        "glidefs_ublk_buffer_pool_arena_bytes{worker=\"0\"} 33554432",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
}

#[test]
fn every_state_is_shown_even_when_no_export_is_in_it() {
    let text = scrape(|out| states(&["serving", "failed"], &[2, 0], out));
    assert!(text.contains("glidefs_router_exports{state=\"serving\"} 2\n"), "{text}");
    assert!(text.contains("glidefs_router_exports{state=\"failed\"} 0\n"), "{text}");
}

#[test]
fn the_process_tells_its_version_memory_and_files() {
    let text = scrape(|out| process(std::time::SystemTime::now(), out));
    assert!(text.contains(concat!("{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1\n")), "{text}");
    let value = |name: &str| -> f64 {
        let line = *lines(&text, name).last().unwrap();
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    assert!(value("glidefs_process_resident_memory_bytes") > 100_000.0);
    assert!(value("glidefs_process_open_fds") >= 3.0);
    assert!(value("glidefs_process_start_time_seconds") > 1.7e9);
}

#[test]
fn help_and_type_stand_once_and_directly_above_the_samples_of_their_metric() {
    let text = scrape(|out| {
        used_export("a", 1, out);
        workers(&[Arc::default()], out);
        used_export("b", 1, out);
    });
    let mut rest = text.as_str();
    let mut seen = 0;
    for Definition { name, help, kind, .. } in all() {
        let family = lines(&text, name);
        if family.is_empty() {
            continue;
        }
        assert_eq!(family[0], format!("# HELP {name} {help}"));
        assert_eq!(family[1], format!("# TYPE {name} {}", kind.type_name()));
        assert!(family.len() > 2 && !family[2..].iter().any(|line| line.starts_with('#')), "{family:?}");
        rest =
            rest.strip_prefix(&(family.join("\n") + "\n")).expect("the lines of a metric follow each other");
        seen += 1;
    }
    assert_eq!(rest, "");
    assert!(seen > 15);
}

#[test]
fn without_sources_there_is_no_text() {
    assert_eq!(scrape(|_| {}), "");
}

#[test]
fn a_sample_that_does_not_fit_the_table_fails_a_test() {
    let sources: [fn(&mut Samples); 4] = [
        |out| out.value(Metric::ExportErrors, &["e"], 1),
        |out| out.value(Metric::ReadIoSize, &["e"], 1),
        |out| out.histogram(Metric::ExportSize, &["e"], &size_histogram(&[])),
        |out| out.histogram(Metric::ExportLatency, &["e", "read"], &size_histogram(&[])),
    ];
    for source in sources {
        let collect = || source(&mut Samples::new(ExportHistograms::Busy));
        assert!(std::panic::catch_unwind(collect).is_err());
    }
}

#[test]
fn promtool_accepts_every_metric_with_awkward_labels() {
    const INSTALL: &str =
        "promtool is missing: apt-get install -y prometheus && systemctl disable --now prometheus";
    let text = everything();
    for definition in all() {
        assert!(!lines(&text, definition.name).is_empty(), "{} has no sample", definition.name);
    }
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect(INSTALL);
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.is_empty(), "{}: {said}\n{text}", output.status);
}

#[test]
fn alerts_name_metrics_that_exist_and_fire_when_they_should() {
    const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/glidefs.rules.yml");
    const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/lib/system/rules-test.yml");
    let rules = std::fs::read_to_string(RULES).unwrap();
    let ident = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names: Vec<&str> = rules.split(|c| !ident(c)).filter(|word| word.starts_with("glidefs_")).collect();
    assert!(names.len() > 20);
    for name in names {
        let exists = all().any(|metric| {
            name.strip_prefix(metric.name)
                .is_some_and(|rest| ["", "_bucket", "_sum", "_count"].contains(&rest))
        });
        assert!(exists, "the rules name {name}, which does not exist: the alert would never fire");
    }
    for (kind, file) in [("check", RULES), ("test", CASES)] {
        let output = Command::new("promtool").args([kind, "rules", file]).output();
        let output = output.expect("promtool is missing: apt-get install -y prometheus");
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
}

/// The labels and the value of a line, parsed by the specification of the text format.
fn parse(line: &str) -> (BTreeMap<String, String>, f64) {
    let (labels, value) = line[line.find('{').unwrap() + 1..].rsplit_once("} ").unwrap();
    let mut rest = labels;
    let mut parsed = BTreeMap::new();
    while let Some((name, after)) = rest.split_once("=\"") {
        let mut text = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => text.push(match chars.next().unwrap().1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => text.push(other),
            }
        };
        parsed.insert(name.trim_start_matches(',').to_owned(), text);
        rest = &after[end + 1..];
    }
    (parsed, value.parse().unwrap())
}

proptest! {
    #[test]
    fn a_scrape_tells_what_was_recorded_under_the_name_it_was_recorded_for(
        recorded in prop::collection::btree_map(
            any::<String>(),
            prop::collection::vec(prop_oneof![0..300_000_u64, Just(4096), Just(131_072)], 0..40),
            1..6,
        )
    ) {
        let text = scrape(|out| {
            for (name, values) in &recorded {
                out.histogram(Metric::WriteIoSize, &[name], &size_histogram(values));
            }
        });
        let mut shown = BTreeMap::<String, Vec<f64>>::new();
        for line in text.split('\n').filter(|line| line.starts_with("glidefs_")) {
            let (labels, value) = parse(line);
            if let Some(bound) = labels.get("le") {
                let values = &recorded[&labels["export"]];
                let bound: f64 = bound.parse().unwrap();
                let expected = values.iter().filter(|&&value| value as f64 <= bound).count();
                prop_assert_eq!(value, expected as f64, "{}", line);
            }
            shown.entry(labels["export"].clone()).or_default().push(value);
        }
        prop_assert_eq!(shown.len(), recorded.len());
        for (name, values) in &recorded {
            let lines = &shown[name];
            prop_assert_eq!(lines.len(), IO_SIZE_BOUNDS_BYTES.len() + 3);
            prop_assert_eq!(lines[lines.len() - 2], values.iter().sum::<u64>() as f64);
            prop_assert_eq!(lines[lines.len() - 1], values.len() as f64);
        }
    }
}
