//! Tests of the configuration as a whole.

use std::ffi::OsStr;
use std::path::Path;

use super::keys::commented_config;
use super::load::{bounce_mode, without_removed};
use super::sections::SECTIONS;
use super::{ByteSize, Config, ConfigError};
use crate::worker::cpus::Usable;

fn usable(cpus: Vec<usize>, quota: Option<usize>) -> Usable {
    Usable { cpus, quota }
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("glidefs.toml"), text, &usable(vec![0, 1], None))
        .map_err(|error| error.to_string())
}

#[test]
fn refusals_name_file_line_key_value_and_what_is_allowed() {
    for (text, says) in [
        ("[cache]\nsize = \"10GB\"\n", ["glidefs.toml:2: [cache] size: ", "\"10GB\" is not a size"]),
        ("[cache]\nsize = -1\n", ["glidefs.toml:2: [cache] size: ", "such as \"10GiB\""]),
        ("[cache]\nsise = 1\n", ["glidefs.toml:2: [cache] sise: ", "expected one of `dir`, `size`"]),
        ("\n[cach]\n", ["glidefs.toml:2: ", "unknown field `cach`"]),
        ("[cache]\nsize = \"64MiB\"\n", ["glidefs.toml:2: [cache] size: 64MiB", "at least 320MiB"]),
        ("[cache]\non_full = \"drop\"\n", ["glidefs.toml:2: [cache] on_full: ", "`wait` or `enospc`"]),
        ("[api]\n\nlisten = \"0.0.0.0:1\"\n", ["glidefs.toml:3: [api] listen: 0.0.0.0:1", "set token_file"]),
        ("[api]\nlisten = \"here\"\n", ["glidefs.toml:2: [api] listen: \"here\"", "IP:PORT"]),
        ("[api]\nhosts = [\"a:1\"]\n", ["glidefs.toml:2: [api] hosts: \"a:1\"", "without a port"]),
        ("[api]\nconnections_max = 1\n", ["glidefs.toml:2: [api] connections_max: 1", "8 to 65536"]),
        (
            "[cache]\nlog_max_per_export = \"4GiB\"\n",
            [
                "glidefs.toml:2: [cache] log_max_per_export: data leaves the log for a store only",
                "set [store] url",
            ],
        ),
        (
            "[cache]\nlog_max_per_export = \"1MiB\"\n",
            ["glidefs.toml:2: [cache] log_max_per_export: 1MiB", "16MiB"],
        ),
        ("[workers]\ncount = 0\n", ["glidefs.toml:2: [workers] count: 0", "1 to 1024"]),
        ("[workers]\ncpus = \"1-2\"\n", ["glidefs.toml:2: [workers] cpus: CPU 2", "[0, 1]"]),
        ("[exports]\nqueue_depth = 5000\n", ["glidefs.toml:2: [exports] queue_depth: 5000", "1 to 4096"]),
        ("[exports]\nqueue_depth = 70000\n", ["glidefs.toml:2: [exports] queue_depth: ", "70000"]),
        (
            "[buffers]\nslots_per_worker = 1\n",
            ["glidefs.toml:2: [buffers] slots_per_worker: 1", "4 to 65536"],
        ),
        (
            "[control]\ncommand_timeout = \"0s\"\n",
            ["glidefs.toml:2: [control] command_timeout: 0ms", "1s to 10min"],
        ),
        ("[store]\nurl = \"ftp://x\"\n", ["glidefs.toml:2: [store] url: \"ftp://x\"", "s3://bucket/prefix"]),
        ("[store]\nupload_bps = 100\n", ["glidefs.toml:2: [store] upload_bps: 100", "16KiB"]),
        ("[store]\nupload_hours = \"8-18\"\n", ["glidefs.toml:2: [store] upload_hours: ", "set upload_bps"]),
        ("[store]\nupload_hours = \"8\"\n", ["glidefs.toml:2: [store] upload_hours: ", "such as 8-18"]),
        ("[log]\nfilter = \"a=b=c\"\n", ["glidefs.toml:2: [log] filter: ", "\"a=b=c\" is not valid"]),
        ("[cache\n", ["glidefs.toml:1: ", ""]),
    ] {
        let message = parse(text).unwrap_err();
        assert!(says.iter().all(|part| message.contains(part)), "{text}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn a_bound_on_the_log_of_an_export_is_taken_with_a_store() {
    let text = "[cache]\nlog_max_per_export = \"4GiB\"\n[store]\nurl = \"file:///srv/store\"\n";
    assert_eq!(parse(text).unwrap().cache.log_max_per_export, Some(ByteSize(4 << 30)));
}

#[test]
fn a_non_loopback_address_is_taken_with_a_token() {
    assert!(parse("[api]\nlisten = \"0.0.0.0:9470\"\ntoken_file = \"/t\"\n").is_ok());
    assert!(parse("[api]\nlisten = \"[::1]:9470\"\n").is_ok());
    assert_eq!(parse("[api]\nlisten = \"none\"\n").unwrap().api.listen.0, None);
}

#[test]
fn a_quota_of_cpu_time_limits_workers_unless_their_number_is_set() {
    let workers = |text: &str| {
        let usable = usable((0..8).collect(), Some(3));
        Config::parse(Path::new("glidefs.toml"), text, &usable).unwrap().worker_cpus
    };
    assert_eq!(workers(""), [0, 1, 2]);
    assert_eq!(workers("[workers]\ncpus = \"4-7\"\n"), [4, 5, 6]);
    assert_eq!(workers("[workers]\ncpus = \"6-7\"\n"), [6, 7]);
    assert_eq!(workers("[workers]\ncount = 5\n"), [0, 1, 2, 3, 4]);
}

#[test]
fn workers_are_spread_over_the_cpus_they_may_use() {
    assert_eq!(parse("").unwrap().worker_cpus, [0, 1]);
    assert_eq!(
        parse("[cache]\nsize = \"447MiB\"\n").unwrap().worker_cpus,
        [0],
        "as many as the cache has room for"
    );
    assert!(
        parse("[cache]\nsize = \"447MiB\"\n[workers]\ncount = 2\n").unwrap_err().contains("at least 448MiB")
    );
    assert_eq!(parse("[workers]\ncount = 1\n").unwrap().worker_cpus, [0]);
    assert_eq!(parse("[workers]\ncount = 3\n").unwrap().worker_cpus, [0, 1, 0]);
    assert_eq!(parse("[workers]\ncpus = \"1\"\n").unwrap().worker_cpus, [1]);
}

/// The text of `glidefs init`, with those commented keys set for which `keep` is true.
fn uncommented(keep: impl Fn(&str) -> bool) -> String {
    let mut section = "";
    let mut text = String::new();
    for line in commented_config().leak().lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        }
        let setting = line.strip_prefix("# ").filter(|rest| {
            let key = rest.split(" = ").next().unwrap_or_default();
            SECTIONS.iter().any(|s| s.name == section && s.keys.iter().any(|k| k.name == key && keep(key)))
        });
        text.push_str(setting.unwrap_or(line));
        text.push('\n');
    }
    text
}

#[test]
fn what_init_writes_are_the_defaults() {
    let defaults = parse("").unwrap();
    assert_eq!(parse(&commented_config()).unwrap(), defaults);
    let with_default =
        |key: &str| SECTIONS.iter().flat_map(|s| s.keys).any(|k| k.name == key && k.example.is_none());
    assert_eq!(parse(&uncommented(with_default)).unwrap(), defaults);
}

#[test]
fn every_example_is_valid_and_only_keys_without_a_default_have_one() {
    let text = uncommented(|_| true);
    Config::parse(Path::new("x"), &text, &usable((0..16).collect(), None)).unwrap();
    let defaults = toml::Table::try_from(Config::default()).unwrap();
    for section in SECTIONS {
        for key in section.keys {
            let has_default = defaults[section.name].get(key.name).is_some();
            assert_ne!(has_default, key.example.is_some(), "[{}] {}", section.name, key.name);
        }
    }
}

#[test]
fn bounce_mode_is_on_off_or_an_error() {
    let mode = |value: &str| bounce_mode(Some(OsStr::new(value)));
    for value in ["1", "true", "on", "yes"] {
        assert!(mode(value).unwrap(), "{value}");
    }
    for value in ["0", "false", "off", "no"] {
        assert!(!mode(value).unwrap(), "{value}");
    }
    assert!(!bounce_mode(None).unwrap());
    for value in ["", "2", "TRUE", "maybe"] {
        assert!(matches!(mode(value), Err(ConfigError::BounceMode { .. })), "{value}");
    }
}

#[test]
fn a_missing_file_says_how_to_make_one() {
    let message = Config::load(Path::new("/nonexistent.toml")).unwrap_err().to_string();
    assert!(message.contains("glidefs init /nonexistent.toml"), "{message}");
}

#[test]
fn a_removed_key_is_ignored_and_named_and_a_later_fault_keeps_its_place() {
    let text = "[cache]\nold = 1\nsize = \"10GB\"\n[gone]\na = { b = 1 }\n";
    let (file, ignored) =
        without_removed(text, &[("cache", "old"), ("cache", "never"), ("gone", "")]).unwrap();
    assert_eq!(ignored, ["[cache] old", "[gone]"]);
    let error = <Config as serde::Deserialize>::deserialize(file).unwrap_err();
    assert_eq!(error.span().map(|span| &text[span]), Some("\"10GB\""));
}

#[test]
fn every_key_and_engine_of_the_version_before_still_starts() {
    let before = r#"
        [cache]
        clean_memory = "64MiB"
        checksums_max = "64MiB"
        [store]
        flush_size = "32MiB"
        drain_timeout = "30s"
        read_memory = "64MiB"
        [workers]
        move = false
        batch = false
        polling_percent = 0
        [exports]
        queues = 1
        on_unreachable = "wait"
        [traces]
        otlp_endpoint = "http://127.0.0.1:4318"
        otlp_headers_file = "/etc/glidefs/otlp-headers"
        otlp_timeout = "10s"
        service_name = "glidefs"
        one_in = 1000
        slower_than = "0s"
        [log]
        format = "auto"
    "#;
    parse(before).unwrap();
    for engine in ["auto", "pwrite", "ring", "ring-fixed", "ring-direct", "ring-fixed-direct"] {
        parse(&format!("[cache]\nengine = \"{engine}\"\n")).unwrap();
    }
}
