//! Rules that the compiler does not check: layers, and documents that agree with the code.
//!
//! This file holds the tables, the folder `tidy` the checks. A violation fails with file, line and a remedy. `GLIDEFS_BLESS=1`
//! rewrites the parts of documents that are made from the code.

#![expect(
    clippy::expect_used,
    reason = "a test which cannot read the sources has to fail, wherever the failure shows"
)]

mod tidy {
    mod commands;
    mod documents;
    mod layers;
    mod queries;
    mod questions;
    mod sources;
}

/// The layers, highest first: each imports only those after it.
const LAYERS: &[&str] = &[
    "testing",
    "daemon",
    "cli",
    "csi",
    "doctor",
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
    "tasks",
    "units",
    "locks",
];

/// A folder, and a lower layer which the folder must not import all the same.
const APART: &[(&str, &str)] = &[("cache/log", "store")];

/// External crates, and the only layers to use each.
const OWNERS: &[(&str, &[&str])] = &[
    ("libublk", &["ublk"]),
    ("io_uring", &["ublk", "worker"]),
    ("object_store", &["store"]),
    ("arc_swap", &["cache"]),
    ("async_trait", &["store", "router", "daemon", "ublk", "api"]),
    ("aws_config", &["store"]),
    ("aws_credential_types", &["store"]),
    ("aws_runtime", &["store"]),
    ("aws_smithy_http_client", &["store"]),
    ("aws_types", &["store"]),
    ("blake3", &["csi", "router", "store"]),
    ("crc_fast", &["checksum"]),
    ("chrono", &["api", "cli", "csi", "store"]),
    ("zstd", &["cli", "store"]),
    ("foyer_common", &["store"]),
    ("foyer_memory", &["store"]),
    ("redb", &["router"]),
    ("reqwest", &["store"]),
    ("rustls", &["store"]),
    ("clap", &["cli"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("comfy_table", &["cli"]),
    ("terminal_size", &["cli"]),
    ("hyper", &["client", "api", "store"]),
    ("hyper_util", &["client", "api"]),
    ("http_body_util", &["client", "store"]),
    ("tonic", &["csi"]),
    ("prost_types", &["csi"]),
    ("axum", &["api"]),
    ("utoipa", &["api", "cache", "observe", "properties", "store"]),
    ("utoipa_axum", &["api"]),
    ("subtle", &["api"]),
    ("toml", &["config"]),
    ("prometheus", &["observe"]),
    ("tracing_subscriber", &["observe"]),
];

/// Fewest rows of docs/questions.md.
const QUESTIONS_MIN: usize = 20;
/// Most files which the answer to a question may name.
const ANSWER_FILES_MAX: usize = 2;
