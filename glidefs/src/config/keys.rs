//! The table of every key of the configuration file, and the texts made from it.
//!
//! Owns what `glidefs init` writes and what docs/configuration.md lists. Invariant (tested): the table has exactly the keys
//! that [`Config`](super::Config) reads, with the defaults that it has.

use std::fmt::Write;

/// One section of the file.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub help: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

/// One key of a section.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its default as TOML; `None` when it is not set by default.
    pub default: Option<&'static str>,
    /// A value as TOML that shows how it is written, where there is no default.
    pub example: &'static str,
    /// What is allowed.
    pub allowed: &'static str,
    /// What it does.
    pub help: &'static str,
    /// Whether `glidefs init` writes it as a setting rather than as a comment.
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
                "Where the cache lives. Use a local SSD; one directory serves one daemon.",
            )),
            set(key(
                "size",
                "\"16GiB\"",
                "a size, at least (2 × workers + 3) × 64MiB",
                "Space the cache may use in its directory.",
            )),
            key(
                "on_full",
                "\"wait\"",
                "\"wait\" or \"enospc\"",
                "What a write does when the cache is full: wait for space, or fail with ENOSPC.",
            ),
            key(
                "engine",
                "\"auto\"",
                "\"auto\", \"pwrite\", \"ring\", \"ring-fixed\", \"ring-direct\" or \"ring-fixed-direct\"",
                "How the cache appends to its files; \"auto\" measures all in the directory at start and takes the best.",
            ),
            key(
                "clean_size",
                "\"4GiB\"",
                "64MiB or more, or 0 for memory only",
                "Space in the directory for data that was read back from the store, besides size. Without a store it is not used.",
            ),
            key(
                "clean_memory",
                "\"64MiB\"",
                "16MiB or more",
                "Memory for data that was read back from the store.",
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
                "Where exports are copied to. When it is not set, data stays in the local cache only.",
            ),
            key(
                "flush_interval",
                "\"2s\"",
                "10ms to 1h",
                "An export that nobody has written to for so long is flushed to the store.",
            ),
            key(
                "flush_age",
                "\"30s\"",
                "10ms to 24h",
                "An export is flushed at the latest when its oldest data that are not in the store have this age.",
            ),
            key(
                "flush_size",
                "\"32MiB\"",
                "64KiB to 1TiB",
                "An export is flushed when it has this much data that are not in the store.",
            ),
            key(
                "drain_timeout",
                "\"30s\"",
                "0s to 1h",
                "A daemon that removes its devices when it stops waits so long for the store to have everything. systemd's TimeoutStopSec must be longer.",
            ),
            key(
                "gc_interval",
                "\"12h\"",
                "10min to 720h, or 0s for never",
                "How often a daemon that writes to the store removes from it what nothing has used for a day.",
            ),
            key(
                "unconfirmed",
                "\"wait\"",
                "\"wait\" or \"serve\"",
                "At the start, while the store cannot confirm that this host still has an export: its device waits, or what is in the cache is served, which is old if another host took the export over.",
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
                "TCP address of the API. Without the token it serves GET of /healthz, /readyz, /metrics (on a loopback address) and /openapi.json only.",
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
                "Its members may use the socket, and so all of the API.",
            ),
            optional(
                "token_file",
                "\"/etc/glidefs/token\"",
                "a file with the token in its first line, which only its owner may read",
                "A request over TCP that carries this token (\"Authorization: Bearer …\") may do everything. The file is read again when it changes.",
            ),
            key(
                "hosts",
                "[]",
                "names without a port",
                "Names of this host that requests over TCP without the token may name in their header Host, besides localhost and its addresses.",
            ),
            key(
                "connections_max",
                "512",
                "8 to 65536",
                "Connections over TCP at the same time, and as many over the socket. When there are as many, one without a request is closed for a newer one.",
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
                "How many there are. When it is not set: one for each CPU they may use.",
            ),
            optional(
                "cpus",
                "\"0-3,8\"",
                "CPU numbers and ranges",
                "CPUs that they are pinned to. When it is not set: all that the daemon may use.",
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
            "Buffers of 128KiB a worker has. This times the workers is all the memory that requests may take.",
        )],
    },
    Section {
        name: "exports",
        help: "Limits and defaults of exports.",
        keys: &[
            key("max", "20000", "1 to 1000000", "Exports that may exist at the same time."),
            key("queue_depth", "64", "1 to 4096", "Requests in flight a queue, for exports that do not say."),
            key("queues", "1", "1 to 128", "Queues of a device, for exports that do not say."),
            key(
                "on_unreachable",
                "\"wait\"",
                "\"wait\", or a time of at least 1s such as \"30s\"",
                "What a read does that needs a store that is away, for exports that do not say: wait, or fail after this time.",
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
                "Time limit of one kernel command. One that takes longer fails its operation, not the daemon.",
            ),
            key(
                "on_stop",
                "\"keep\"",
                "\"keep\" or \"remove\"",
                "What happens to devices when the daemon stops: they wait for the next one, or they are removed.",
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
                "What is logged. The environment variable RUST_LOG takes precedence.",
            ),
            key(
                "format",
                "\"auto\"",
                "\"auto\", \"text\" or \"journald\"",
                "How it is logged; \"auto\" is journald when run by systemd and text on standard error otherwise.",
            ),
        ],
    },
];

/// The file that `glidefs init` writes.
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

/// The part of docs/configuration.md that lists the keys.
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
