//! Tables of Markdown from result files: one table for each shape of `results`.
//!
//! Does not know where a table goes: `figures` does.

use std::fmt::Write;

use serde_json::Value;

/// Rows of the report on many exports: keys of `results`, and their titles.
const DENSITY: [(&str, &str); 29] = [
    ("exports", "exports"),
    ("devices", "with devices"),
    ("workers", "workers"),
    ("queue_depth", "depth of a queue"),
    ("engine", "engine of the cache"),
    ("bounce_mode", "bounce mode"),
    ("setup_ms", "create all with devices"),
    ("setup_detached_ms", "create all without"),
    ("resident_kib", "resident memory"),
    ("arenas_kib", "of that, arenas"),
    ("locked_kib", "of that, mapped"),
    ("rest_kib", "the rest"),
    ("started_rest_kib", "the rest before the first export"),
    ("recovered_rest_kib", "the rest after recovery"),
    ("detached_bytes", "an export without a device"),
    ("kernel_device_kib", "kernel memory a device"),
    ("threads", "threads"),
    ("descriptors", "descriptors"),
    ("busy", "busy devices"),
    ("write_iops", "their random writes of 4 KiB a second"),
    ("read_iops", "their random reads of 4 KiB a second"),
    ("list_ms", "list over the API"),
    ("list_bytes", "its size"),
    ("list_command_ms", "`glidefs export list --json`"),
    ("scrape_ms", "scrape of `/metrics`"),
    ("scrape_cpu_ms", "its processor time"),
    ("scrape_bytes", "its size"),
    ("recovery_ms", "`kill -9` to all devices served again"),
    ("delete_ms", "delete all"),
];
/// Rows of the report on back-pressure at its worst.
const WORST: [(&str, &str); 13] = [
    ("devices", "devices, all tags busy"),
    ("slots_per_worker", "slots a worker"),
    ("cache_mib", "cache, MiB"),
    ("outage_s", "store away, seconds"),
    ("load_s", "until all requests were answered, seconds"),
    ("errors", "errors"),
    ("cached_before_iops", "reads of cached exports a second, alone"),
    ("cached_meanwhile_iops", "the same beside the load, the store away"),
    ("cached_after_iops", "the same after the load, evicted"),
    ("arenas_kib", "arenas"),
    ("resident_before_kib", "resident memory before the load"),
    ("resident_peak_kib", "its peak"),
    ("resident_bound_kib", "its bound as configured"),
];
/// Columns of the tables with one row a measurement: keys of a row, and their titles.
const COLUMNS: [(&str, &str); 11] = [
    ("depth", "Depth"),
    ("extents", "Extents"),
    ("holds", "Holds"),
    ("longest_us", "Longest, µs"),
    ("kernel_kib_a_device", "Kernel memory a device, KiB"),
    ("iops", "Requests a second"),
    ("read_p99_us", "99 % of reads within, µs"),
    ("write_p99_us", "99 % of writes within, µs"),
    ("greedy_iops", "Requests of the greedy one a second"),
    ("deep_kib_per_second", "Depth 128, KiB a second"),
    ("shallow_kib_per_second", "Depth 8, KiB a second"),
];
/// Targets of the comparison of devices, in the order of columns.
const TARGETS: [&str; 8] =
    ["glidefs", "glidefs-bounce", "glidefs-store", "rublk", "loop", "nbd", "ram", "null"];
/// Those with which the first one is compared by a ratio.
const PEERS: [&str; 3] = ["glidefs-bounce", "rublk", "loop"];

/// The table of `files`, which have one shape, with the rows of `keys`, or with all rows.
pub fn table(files: &[&Value], keys: &[&str]) -> Result<String, String> {
    let results: Vec<&Value> = files.iter().map(|file| &file["results"]).collect();
    if results.iter().all(|result| result.is_object()) {
        return objects(files, keys);
    }
    let [Value::Array(rows)] = results[..] else {
        return Err("a table of several files needs figures by name".to_owned());
    };
    let has = |key: &str| rows.first().is_some_and(|row| !row[key].is_null());
    match () {
        () if has("ratio") => Ok(ratios(rows)),
        () if has("instructions") => Ok(instructions(rows)),
        () if ["read_p99_us", "kernel_kib_a_device", "longest_us"].into_iter().any(has) => {
            Ok(measurements(rows))
        }
        () if has("iops") => Ok(devices(rows)),
        () => Err("results have no shape of which a table is known".to_owned()),
    }
}

/// A number with a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count of thousandths of a unit, with one decimal where small.
fn scaled(value: f64, per: f64, unit: &str) -> String {
    let value = value / per;
    if value < 100.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// A figure; the end of the key is the unit.
fn shown(key: &str, value: &Value) -> String {
    let (Some(number), Some(whole)) = (value.as_f64(), value.as_i64()) else {
        return match value {
            Value::Bool(flag) => (if *flag { "yes" } else { "no" }).to_owned(),
            Value::String(text) => format!("`{text}`"),
            _ => "–".to_owned(),
        };
    };
    let scales: &[(f64, &str)] = match key {
        key if key.ends_with("_kib") => &[(1_048_576.0, "GiB"), (1024.0, "MiB"), (1.0, "KiB")],
        key if key.ends_with("_bytes") => &[(1_048_576.0, "MiB"), (1024.0, "KiB"), (1.0, "bytes")],
        key if key.ends_with("_ms") => &[(600_000.0, "min"), (1000.0, "s"), (1.0, "ms")],
        _ => return u64::try_from(whole).map_or_else(|_| whole.to_string(), grouped),
    };
    match scales.iter().find(|(from, _)| number >= *from) {
        Some((_, "min")) => scaled(number, 60_000.0, "min"),
        Some((per, unit)) if *per > 1.0 => scaled(number, *per, unit),
        _ => format!("{whole} {}", scales[scales.len() - 1].1),
    }
}

/// One column a file, one row a figure.
fn objects(files: &[&Value], keys: &[&str]) -> Result<String, String> {
    let rows = match files {
        [file] if file["results"]["outage_s"].is_number() => &WORST[..],
        _ => &DENSITY[..],
    };
    if let Some(key) = keys.iter().find(|key| !rows.iter().any(|(known, _)| known == *key)) {
        return Err(format!("there is no row {key}"));
    }
    let mut text = "|".to_owned();
    for file in files {
        text.extend([" | ", file["figures"].as_str().unwrap_or_default()]);
    }
    text.extend([" |\n|---", &"|---:".repeat(files.len()), "|\n"]);
    for (key, title) in rows.iter().filter(|(key, _)| keys.is_empty() || keys.contains(key)) {
        let cells: Vec<String> = files.iter().map(|file| shown(key, &file["results"][key])).collect();
        if cells.iter().any(|cell| cell != "–") {
            writeln!(text, "| {title} | {} |", cells.join(" | ")).expect("writing to a string does not fail");
        }
    }
    Ok(text)
}

/// One row a measurement, with the columns that any row has.
fn measurements(rows: &[Value]) -> String {
    let columns = || COLUMNS.iter().filter(|(key, _)| rows.iter().any(|row| !row[key].is_null()));
    let titles: Vec<&str> = columns().map(|(_, title)| *title).collect();
    let mut text = format!("| Case | {} |\n|---{}|\n", titles.join(" | "), "|---:".repeat(titles.len()));
    for row in rows {
        let cells: Vec<String> = columns().map(|(key, _)| shown("", &row[key])).collect();
        let case = row["case"].as_str().unwrap_or_default();
        writeln!(text, "| `{case}` | {} |", cells.join(" | ")).expect("writing to a string does not fail");
    }
    text
}

fn nanos(value: &Value) -> String {
    let value = value.as_f64().unwrap_or_default();
    match value {
        ..1e3 => format!("{value:.1} ns"),
        1e3..1e6 => format!("{:.2} µs", value / 1e3),
        1e6..1e9 => format!("{:.2} ms", value / 1e6),
        _ => format!("{:.2} s", value / 1e9),
    }
}

fn ratios(rows: &[Value]) -> String {
    let mut text = "| Case | Time | Floor | Times the floor |\n|---|---:|---|---:|\n".to_owned();
    for row in rows {
        let case = row["id"].as_str().unwrap_or_default().replace('/', ", ").replace('_', " ");
        let (time, floor) = (nanos(&row["nanos"]), nanos(&row["floor_nanos"]));
        let (of, ratio) =
            (row["floor"].as_str().unwrap_or_default(), row["ratio"].as_f64().unwrap_or_default());
        writeln!(text, "| {case} | {time} | {of}, {floor} | {ratio:.2} |")
            .expect("writing to a string does not fail");
    }
    text
}

fn rounded(number: f64) -> String {
    let whole = format!("{number:.0}");
    whole.parse().map_or(whole, grouped)
}

/// Instructions a request, and those of checksums.
fn instructions(rows: &[Value]) -> String {
    let mut text =
        "| Case | Instructions a request | Of them checksums of data |\n|---|---:|---:|\n".to_owned();
    for row in rows {
        let functions = row["functions"].as_array().into_iter().flatten();
        // The library's function, or one of `checksum.rs`.
        let is_sum = |name: &str| name.contains("crc32_iscsi") || name.contains("glidefs::checksum::");
        let sums = functions.filter(|f| f["function"].as_str().is_some_and(is_sum));
        let sums =
            sums.filter_map(|function| function["instructions"].as_f64()).fold(0.0, |sum, one| sum + one);
        let case = row["case"].as_str().unwrap_or_default();
        let all = row["instructions"].as_f64().unwrap_or_default();
        let [all, sums] = [all, sums].map(rounded);
        writeln!(text, "| `{case}` | {all} | {sums} |").expect("writing to a string does not fail");
    }
    text
}

/// Requests a second of each target, and the ratios of glidefs; one table for each number of devices.
fn devices(rows: &[Value]) -> String {
    let mut counts: Vec<u64> = rows.iter().filter_map(|row| row["devices"].as_u64()).collect();
    counts.dedup();
    let mut text = String::new();
    for count in counts {
        let of_count = || rows.iter().filter(move |row| row["devices"] == count);
        let iops = |target: &str, case: &Value| {
            let row = of_count().find(|row| row["target"] == target && row["case"] == *case);
            row.and_then(|row| row["iops"].as_u64())
        };
        let ratios: Vec<String> = PEERS.iter().map(|peer| format!("/ {peer}")).collect();
        let title = if count == 1 { "1 device".to_owned() } else { format!("{count} devices") };
        let gap = if text.is_empty() { "" } else { "\n" };
        text.extend([
            gap,
            "| ",
            &title,
            " | ",
            &TARGETS.join(" | "),
            " | glidefs ",
            &ratios.join(" | "),
            " |\n",
        ]);
        text.extend(["|---", &"|---:".repeat(TARGETS.len() + PEERS.len()), "|\n"]);
        for row in of_count().filter(|row| row["target"] == TARGETS[0]) {
            let case = &row["case"];
            let figures = TARGETS.map(|target| iops(target, case).map_or_else(|| "–".to_owned(), grouped));
            let ratio = |peer: &&str| {
                let (own, other) = (row["iops"].as_f64()?, iops(peer, case)?.max(1));
                Some(format!("{:.2}", own / u32::try_from(other).map(f64::from).ok()?))
            };
            let ratios: Vec<String> =
                PEERS.iter().map(|peer| ratio(peer).unwrap_or_else(|| "–".to_owned())).collect();
            let case = case.as_str().unwrap_or_default();
            text.extend(["| `", case, "` | ", &figures.join(" | "), " | ", &ratios.join(" | "), " |\n"]);
        }
    }
    text
}

#[test]
fn a_figure_is_shown_in_the_unit_of_its_key() {
    for (key, value, text) in [
        ("rest_kib", "14336", "14.0 MiB"),
        ("rest_kib", "3219128", "3.1 GiB"),
        ("rest_kib", "177", "177 KiB"),
        ("setup_ms", "42123", "42.1 s"),
        ("setup_ms", "1620000", "27.0 min"),
        ("setup_ms", "47", "47 ms"),
        ("scrape_bytes", "6400000", "6.1 MiB"),
        ("detached_bytes", "812", "812 bytes"),
        ("exports", "5025", "5,025"),
        ("exports", "25", "25"),
        ("kernel_device_kib", "-3", "-3 KiB"),
        ("bounce_mode", "false", "no"),
        ("engine", "\"ring\"", "`ring`"),
        ("threads", "null", "–"),
    ] {
        assert_eq!(shown(key, &serde_json::from_str(value).expect("the test writes JSON")), text);
    }
}

#[test]
fn every_shape_of_results_has_its_table() {
    let made = |results: &str| {
        let file: Value =
            serde_json::from_str(&format!(r#"{{"figures": "f", "results": {results}}}"#)).expect("JSON");
        table(&[&file], &[])
    };
    let last = |results: &str| made(results).map(|text| text.lines().last().unwrap_or_default().to_owned());
    let ratio = r#"[{"id": "a/b_c", "nanos": 1500, "floor": "memcpy", "floor_nanos": 10, "ratio": 150}]"#;
    assert_eq!(last(ratio), Ok("| a, b c | 1.50 µs | memcpy, 10.0 ns | 150.00 |".to_owned()));
    let count = r#"[{"case": "read", "instructions": 30.2, "functions": [{"function": "crc32_iscsi_x", "instructions": 9}]}]"#;
    assert_eq!(last(count), Ok("| `read` | 30 | 9 |".to_owned()));
    let device = r#"[{"target": "glidefs", "devices": 1, "case": "r", "iops": 1000}, {"target": "loop", "devices": 1, "case": "r", "iops": 2000}]"#;
    assert_eq!(last(device), Ok("| `r` | 1,000 | – | – | – | 2,000 | – | – | – | – | – | 0.50 |".to_owned()));
    assert_eq!(last(r#"{"threads": 7}"#), Ok("| threads | 7 |".to_owned()));
    assert!(made("[]").is_err());
}

#[test]
fn every_figure_of_the_report_on_many_exports_has_a_row() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/density");
    let script = std::fs::read_to_string(path).expect("the script is there");
    let figures = script.lines().filter_map(|line| line.strip_prefix("figure ")?.split(' ').next());
    let added = script.lines().filter_map(|line| line.strip_prefix("FIGURES+=("));
    let added = added.flat_map(|line| line.split('"').filter_map(|word| Some(word.split_once('=')?.0)));
    let keys: Vec<&str> = figures.chain(added).filter(|key| !key.starts_with('$')).collect();
    assert!(keys.len() > 20, "{keys:?}");
    for key in keys {
        assert!(DENSITY.iter().any(|(known, _)| *known == key), "{key} has no row");
    }
}
