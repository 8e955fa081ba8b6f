//! Rules which the compiler does not check: who imports whom, how comments are written, and documents beside the code.
//!
//! This file holds the rules, as tables and limits. The folder `tidy` holds the checks:
//!
//! ```text
//! sources ── all files, as text
//!    ├── modules ── names, imports and paths of each module ── graph ── which file imports which
//!    │                                                           ├── folders    LAYERS, FLOORS, APART, OWNERS
//!    │                                                           └── cycles     three or more files in a circle
//!    ├── comments ── pronouns, stubs
//!    ├── files ───── openings, lengths, reasons of `unsafe`
//!    ├── documents ─ metrics, faults, configuration, codes of the API
//!    ├── questions ─ docs/questions.md
//!    ├── dashboard ─ docs/grafana, and queries of documents ── queries ── metrics and labels of a query, answers
//!    ├── figures ─── figures in documents, from benches/baselines ── figure_tables
//!    └── counts ──── all figures in one table
//! ```
//!
//! A violation fails with file, line and a remedy. `GLIDEFS_BLESS=1` rewrites the parts of documents which are made from
//! the code.

#![expect(
    clippy::expect_used,
    reason = "a test which cannot read the sources has to fail, wherever the failure shows"
)]

mod tidy {
    mod comments;
    mod counts;
    mod cycles;
    mod dashboard;
    mod documents;
    mod figure_tables;
    mod figures;
    mod files;
    mod folders;
    mod graph;
    mod modules;
    mod queries;
    mod questions;
    mod sources;
}

/// The layers, highest first: each imports only those after it.
const LAYERS: &[&str] = &[
    "testing",
    "daemon",
    "otlp",
    "cli",
    "csi",
    "doctor",
    "bench",
    "client",
    "api",
    "config",
    "handover",
    "ublk",
    "worker",
    "router",
    "export",
    "cache",
    "store",
    "buffer",
    "observe",
    "properties",
    "fair",
    "checksum",
    "units",
    "locks",
    "private_file",
    "tasks",
];

/// The floors inside a layer, lowest first: each imports only those before it. The rest of the layer is the highest floor.
const FLOORS: &[(&str, &[&str])] = &[("cache", &["log", "volume"])];

/// A folder, and a lower layer which the folder must not import all the same.
const APART: &[(&str, &str)] = &[("cache/log", "store")];

/// External crates, and the only layers to use each.
const OWNERS: &[(&str, &[&str])] = &[
    ("libublk", &["ublk"]),
    ("io_uring", &["ublk", "worker"]),
    ("object_store", &["store"]),
    ("arc_swap", &["cache"]),
    ("async_trait", &["store"]),
    ("aws_config", &["store"]),
    ("aws_credential_types", &["store"]),
    ("aws_runtime", &["store"]),
    ("aws_types", &["store"]),
    ("blake3", &["csi", "router", "store"]),
    ("crc_fast", &["checksum"]),
    ("chrono", &["api", "cli", "csi", "store"]),
    ("zstd", &["cli", "store"]),
    ("foyer_common", &["store"]),
    ("foyer_memory", &["store"]),
    ("redb", &["router"]),
    ("clap", &["cli"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("comfy_table", &["cli"]),
    ("indicatif", &["cli"]),
    ("ratatui", &["cli"]),
    ("hdrhistogram", &["bench"]),
    ("plotters", &["bench"]),
    ("reqwest", &["otlp"]),
    ("opentelemetry_proto", &["otlp"]),
    ("hyper", &["client", "api"]),
    ("hyper_util", &["client", "api"]),
    ("http_body_util", &["client"]),
    ("tonic", &["csi"]),
    ("prost_types", &["csi"]),
    ("axum", &["api"]),
    ("utoipa", &["api"]),
    ("utoipa_axum", &["api"]),
    ("subtle", &["api"]),
    ("toml", &["config"]),
    ("prometheus", &["observe"]),
    ("tracing_subscriber", &["observe"]),
    ("tracing_journald", &["observe"]),
];

/// Longest file, lines.
const FILE_LINES_MAX: usize = 600;
/// How far above `unsafe` the reason may begin, lines.
const SAFETY_LINES_MAX: usize = 12;

/// Words in [`PRONOUNS`] of 1,000 words of comments, for each folder.
const PRONOUNS_MAX: usize = 30;
/// `what` of 1,000 words of comments, for each folder.
const WHAT_MAX: usize = 3;
/// Words which stand for a noun: the noun itself reads better.
const PRONOUNS: &[&str] = &["it", "its", "they", "them", "that"];
/// A folder with fewer words of comments is not judged: one word would decide.
const JUDGED_WORDS_MIN: usize = 300;

/// Longest doc comment which counts as a stub, words.
const STUB_WORDS_MAX: usize = 4;
/// Most stubs in all sources.
const STUBS_MAX: usize = 300;

/// Fewest rows of docs/questions.md.
const QUESTIONS_MIN: usize = 20;
/// Most files which the answer to a question may name.
const ANSWER_FILES_MAX: usize = 2;
