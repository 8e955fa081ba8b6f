//! The table of every key of the configuration file, and the texts made from the table.
//!
//! Owns the file written by `glidefs init` and the list of keys in docs/configuration.md. Invariant (tested): the table has
//! exactly the keys that [`Config`](super::Config) reads, with the same defaults.

use std::fmt::Write;

/// A section of the configuration file.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The name of the section.
    pub name: &'static str,
    /// The subject of the section, in a sentence.
    pub help: &'static str,
    /// The keys of the section.
    pub keys: &'static [Key],
}

/// A key of a section.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The name of the key.
    pub name: &'static str,
    /// The default as TOML; `None` if the key is not set by default.
    pub default: Option<&'static str>,
    /// A value as TOML; the default, or an example where there is no default.
    pub example: &'static str,
    /// The allowed values.
    pub allowed: &'static str,
    /// The effect of the key, in sentences.
    pub help: &'static str,
    /// Whether `glidefs init` writes the key as a setting rather than as a comment.
    pub set: bool,
}

const fn key(name: &'static str, default: &'static str, allowed: &'static str, help: &'static str) -> Key {
    Key { name, default: Some(default), example: default, allowed, help, set: false }
}

const fn optional(
    name: &'static str,
    example: &'static str,
    allowed: &'static str,
    help: &'static str,
) -> Key {
    Key { name, default: None, example, allowed, help, set: false }
}

const fn set(key: Key) -> Key {
    Key { set: true, ..key }
}

/// Keys of version 0.1 that no longer have an effect, by section and name; a section without a name is gone as a whole. Until
/// version 0.3 a file may still have them: they are ignored with a warning.
pub const REMOVED: &[(&str, &str)] =
    &[("workers", "move"), ("workers", "batch"), ("workers", "polling_percent")];

/// Every section, in the order of the file.
pub const SECTIONS: &[Section] = &[
    Section {
        name: "cache",
        help: "The local write cache.",
        keys: &[
            set(key(
                "dir",
                "\"/var/lib/glidefs\"",
                "a directory, which must exist and be writable",
                "The directory of the cache. Use a local SSD; one directory serves one daemon.",
            )),
            set(key(
                "size",
                "\"16GiB\"",
                "a size, at least (2 × workers + 3) × 64MiB",
                "Space for the log in the directory.",
            )),
            key(
                "on_full",
                "\"wait\"",
                "\"wait\" or \"enospc\"",
                "How a write behaves while the cache is full: wait for space, or fail with ENOSPC. With a store, a write of an export at its share of the log waits in any case.",
            ),
            key(
                "engine",
                "\"auto\"",
                "\"auto\", \"pwrite\", \"ring\", \"ring-fixed\", \"ring-direct\" or \"ring-fixed-direct\"",
                "How workers append to the log; \"auto\" measures every engine in the directory at start and takes the best. On a full disk \"pwrite\" is used, whatever is set.",
            ),
            key(
                "clean_size",
                "\"4GiB\"",
                "64MiB or more, or 0 for memory only",
                "Space in the directory for the block cache, which keeps data read from the store; in addition to size. Not used without a store.",
            ),
            key("clean_memory", "\"64MiB\"", "16MiB or more", "Memory for the block cache."),
            key(
                "checksums_max",
                "\"64MiB\"",
                "1MiB to 64GiB",
                "Most memory for checksums of the log: 1 MiB for each GiB read again and again. Taken as needed; other checksums are read from the disk, beside the data.",
            ),
            key(
                "mapped_max",
                "\"256MiB\"",
                "1MiB to 16GiB, or 0 for none",
                "Most memory for stretches of the log that are read often, mapped and locked: reads there take no buffer, and do not read the file. Taken by 1 MiB, when within seconds as much of a stretch was read as it has. Not used by the engines \"ring-direct\" and \"ring-fixed-direct\", nor in bounce mode.",
            ),
            optional(
                "index_max",
                "\"512MiB\"",
                "16MiB or more",
                "Most memory for the indexes of all exports. When not set, a 32nd of size, and at least 64MiB: twice the need of a cache full of 4 KiB writes, and more. One export may have three times the unused part, by weight: at the default weight three quarters at most.",
            ),
            optional(
                "index_max_per_export",
                "\"64MiB\"",
                "1MiB or more",
                "Most memory for the index of one export. When not set, only index_max bounds the index of an export.",
            ),
            optional(
                "log_max_per_export",
                "\"4GiB\"",
                "16MiB or more; only with a store",
                "Most space of the log for data of one export that is not in the store. Set or not, an export has a share: three times the part of the log which no export uses for such data, by weight; the lower of the two counts.",
            ),
        ],
    },
    Section {
        name: "store",
        help: "The object store.",
        keys: &[
            optional(
                "url",
                "\"s3://bucket/prefix\"",
                "file:///directory, s3://bucket/prefix, memory://, or, where built in, gs:// and az://",
                "The object store that exports are written back to. When not set, data stays in the local cache only.",
            ),
            key(
                "flush_interval",
                "\"2s\"",
                "10ms to 1h",
                "An export without a write for so long is written back to the store.",
            ),
            key(
                "flush_age",
                "\"30s\"",
                "10ms to 24h",
                "An export is written back when the oldest data at risk has this age: at the next FLUSH, or half a second later.",
            ),
            key(
                "flush_size",
                "\"32MiB\"",
                "64KiB to 1TiB",
                "An export is written back when so much data is at risk.",
            ),
            key(
                "drain_timeout",
                "\"30s\"",
                "0s to 1h",
                "A daemon that removes its devices when stopping waits so long at most until all data is written back. systemd's TimeoutStopSec must be longer.",
            ),
            key(
                "gc_interval",
                "\"12h\"",
                "10min to 720h, or 0s for never",
                "Time between garbage collections by a daemon that writes to the store. A collection removes objects that nothing has used for a day.",
            ),
            key(
                "pack_memory",
                "\"512MiB\"",
                "256MiB or more",
                "Most memory for packs. Packs being made and uploaded take at most two thirds, and at most 256MiB. Packs uploaded last stay in memory until they are merged, in the part which the former leave at present, and in at most 288MiB. Taken as needed.",
            ),
            key(
                "read_memory",
                "\"64MiB\"",
                "4MiB or more",
                "Most memory for blocks that READs need from the store, from the block cache or from packs uploaded last. A quarter is for READs that need nothing from the store, three quarters for all others. Taken as needed; further READs wait. GETs under way, 64 at most, take memory of their own: up to 4MiB each. So do indexes of packs, while they are fetched and decoded: as much as this in all.",
            ),
            key(
                "unconfirmed",
                "\"wait\"",
                "\"wait\" or \"serve\"",
                "At the start, while the store cannot confirm that this host still has an export: the device waits, or serves the data in the cache, which is old if another host has taken the export over.",
            ),
        ],
    },
    Section {
        name: "api",
        help: "The HTTP API, which the command line uses as well.",
        keys: &[
            key(
                "listen",
                "\"127.0.0.1:9470\"",
                "IP:PORT or \"none\"; other than loopback only together with token_file",
                "TCP address of the API. A request without the token may only GET /healthz, /readyz, /metrics (on a loopback address), /openapi.json and, where there is a token, the files of the status page at /.",
            ),
            key(
                "socket",
                "\"/run/glidefs/glidefs.sock\"",
                "a path of at most 107 bytes",
                "Unix socket of the API, for root, the user of the daemon and the members of group.",
            ),
            optional(
                "group",
                "\"glidefs\"",
                "the name of a group of this host",
                "Members of the group may use the socket, and so the whole API.",
            ),
            optional(
                "token_file",
                "\"/etc/glidefs/token\"",
                "a file with the token in its first line, which only its owner may read",
                "A request over TCP that carries this token (\"Authorization: Bearer …\") may do everything. A changed file is read again.",
            ),
            key(
                "hosts",
                "[]",
                "names without a port",
                "Names of this host that are allowed in the header Host of requests over TCP without the token, besides localhost and the addresses of the host.",
            ),
            key(
                "connections_max",
                "512",
                "8 to 65536",
                "Most connections over TCP at the same time, and most over the socket. At the limit, a connection without a request is closed for a newer one.",
            ),
            key(
                "export_histograms",
                "\"busy\"",
                "\"busy\", \"none\" or \"all\"",
                "Exports with histograms on /metrics: those with a device that was used (more requests than a look for partitions and file systems), none, or all. A scrape may ask for another set: /metrics?histograms=all.",
            ),
        ],
    },
    Section {
        name: "workers",
        help: "The threads that serve devices.",
        keys: &[
            optional(
                "count",
                "4",
                "1 to 1024",
                "Number of workers. When not set: one for each CPU that workers may use, and no more than the CPU quota of the control group (cpu.max) allows at full load.",
            ),
            optional(
                "cpus",
                "\"0-3,8\"",
                "CPU numbers and ranges",
                "CPUs that workers are pinned to. When not set: all CPUs that the daemon may use.",
            ),
        ],
    },
    Section {
        name: "buffers",
        help: "Memory for requests in flight.",
        keys: &[key(
            "slots_per_worker",
            "256",
            "4 to 65536",
            "Slots of 128KiB per worker. This number times the workers is all the memory for requests, but in bounce mode.",
        )],
    },
    Section {
        name: "exports",
        help: "Limits and defaults of exports.",
        keys: &[
            key("max", "20000", "1 to 1000000", "Most exports at the same time."),
            key(
                "queue_depth",
                "64",
                "1 to 4096",
                "Most requests in flight per queue, for exports created without a queue depth.",
            ),
            key(
                "queues",
                "1",
                "1 to 128",
                "Queues per device, for exports created without a number of queues.",
            ),
            key(
                "on_unreachable",
                "\"wait\"",
                "\"wait\", or a time of at least 1s such as \"30s\"",
                "How a read behaves that needs a store that is away: wait, or fail after this time. For exports created without this choice.",
            ),
        ],
    },
    Section {
        name: "control",
        help: "How the daemon deals with the kernel's devices.",
        keys: &[
            key(
                "command_timeout",
                "\"10s\"",
                "a length of time from 1s to 10min",
                "Time limit of one kernel command. A command that takes longer fails the operation, not the daemon.",
            ),
            key(
                "on_stop",
                "\"keep\"",
                "\"keep\" or \"remove\"",
                "How devices behave when the daemon stops: they wait for the next daemon, or they are removed.",
            ),
        ],
    },
    Section {
        name: "traces",
        help: "Traces of requests, sent to an OpenTelemetry collector. Only for a glidefs built with `--features otel`; others refuse the keys.",
        keys: &[
            optional(
                "otlp_endpoint",
                "\"http://127.0.0.1:4318\"",
                "an http:// or https:// URL without user, query and the path /v1/traces, which is appended",
                "The collector that spans are sent to, by OTLP over HTTP with protobuf. When not set, nothing is sent.",
            ),
            optional(
                "otlp_headers_file",
                "\"/etc/glidefs/otlp-headers\"",
                "a file with a header a line, such as \"Authorization: Bearer …\", which only its owner may read",
                "Headers of each request to the collector. Read at start.",
            ),
            key("otlp_timeout", "\"10s\"", "100ms to 1min", "Time limit of one request to the collector."),
            key(
                "service_name",
                "\"glidefs\"",
                "1 to 255 printable characters",
                "The attribute service.name of all spans.",
            ),
            optional(
                "one_in",
                "1000",
                "1 to 1000000000",
                "One request of a device in so many is traced, on average. When not set, the daemon chooses for about 20 a second of the host and follows the load, or traces all where slower_than is set.",
            ),
            key(
                "slower_than",
                "\"0s\"",
                "0s to 1h",
                "Only requests of devices that took at least so long are sent. Requests to the store are all sent.",
            ),
        ],
    },
    Section {
        name: "log",
        help: "The daemon's log.",
        keys: &[
            key(
                "filter",
                "\"info,libublk=warn\"",
                "a level (error, warn, info, debug, trace) or directives such as \"info,glidefs::router=debug\"",
                "The filter of log lines. The environment variable RUST_LOG takes precedence.",
            ),
            key(
                "format",
                "\"auto\"",
                "\"auto\", \"text\" or \"journald\"",
                "Target and form of the log; \"auto\" is journald when run by systemd and text on standard error otherwise.",
            ),
        ],
    },
];

/// The text of the file written by `glidefs init`.
pub fn commented_config() -> String {
    let mut text = String::from(
        "# Configuration of glidefs. Keys that are commented out show their default or, where they are not set by\n\
         # default, an example. Sizes are bytes or have a unit (KiB, MiB, GiB, TiB), lengths of time as well (ms, s,\n\
         # min, h).\n",
    );
    for section in SECTIONS {
        // Writing to a string does not fail.
        let _ = write!(text, "\n# {}\n[{}]\n", section.help, section.name);
        for key in section.keys {
            let comment = if key.set { "" } else { "# " };
            let unset = if key.default.is_none() { " Not set by default." } else { "" };
            let _ = write!(
                text,
                "# {}{unset}\n# Allowed: {}.\n{comment}{} = {}\n",
                key.help, key.allowed, key.name, key.example
            );
        }
    }
    text
}

/// The part of docs/configuration.md with the list of keys.
pub fn markdown() -> String {
    let mut text = String::new();
    for section in SECTIONS {
        let _ = write!(
            text,
            "### `[{}]`\n\n{}\n\n| Key | Default | Allowed | Meaning |\n|---|---|---|---|\n",
            section.name, section.help
        );
        for key in section.keys {
            let default = key.default.map_or_else(|| "not set".to_owned(), |value| format!("`{value}`"));
            let _ = writeln!(text, "| `{}` | {default} | {} | {} |", key.name, key.allowed, key.help);
        }
        text.push('\n');
    }
    text
}
