//! Every key of the configuration file, said once: meaning, type, default, and the allowed values in words.
//!
//! Owns the sections and their keys: the types that the daemon reads, and the table [`SECTIONS`], of which the file of `glidefs init`
//! and docs/configuration.md are made. Does not own the bounds (`check`).

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::values::{CpuList, Listen, TimeSpan};
use crate::cache::OnFull;
use crate::observe::metrics::ExportHistograms;
use crate::store::{Hours, StoreUrl};
use crate::units::ByteSize;
use crate::worker::engine::Engine;

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
    /// A value as TOML, where there is no default.
    pub example: Option<&'static str>,
    /// The allowed values.
    pub allowed: &'static str,
    /// The effect of the key, in sentences.
    pub help: &'static str,
}

/// `key: Type = default, "allowed values", example "a value as TOML";` below the documentation of the key. Only a key without a
/// default has an example.
macro_rules! sections {
    (@example) => { None };
    (@example $example:literal) => { Some($example) };
    ($(
        $(#[doc = $about:literal])* $section:ident: $Section:ident {
            $($(#[doc = $help:literal])* $key:ident: $Type:ty = $default:expr, $allowed:literal $(, example $example:literal)?;)*
        }
    )*) => {
        /// All settings of a daemon.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Config {
            $($(#[doc = $about])* pub $section: $Section,)*
            /// The path of the file; empty for a configuration that was not read from a file.
            #[serde(skip)]
            pub path: PathBuf,
            /// The text of the file, of today or of before.
            #[serde(skip)]
            pub source: String,
            /// Why the file of today is refused, where this is an earlier one.
            #[serde(skip)]
            pub refused: Option<String>,
            /// Keys of the file that have no effect, each as `[section] key`.
            #[serde(skip)]
            pub ignored: Vec<String>,
            /// Whether devices are started without user copy, with one stable buffer per tag.
            #[serde(skip)]
            pub bounce_mode: bool,
            /// The CPU of each worker; the length is the number of workers.
            #[serde(skip)]
            pub worker_cpus: Vec<usize>,
        }

        $(
            $(#[doc = $about])*
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            #[serde(deny_unknown_fields, default)]
            pub struct $Section {
                $($(#[doc = $help])* pub $key: $Type,)*
            }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $($key: $default,)* }
                }
            }
        )*

        /// Every section, in the order of the file.
        pub const SECTIONS: &[Section] = &[$(Section {
            name: stringify!($section),
            help: concat!($($about),*),
            keys: &[$(Key {
                name: stringify!($key),
                example: sections!(@example $($example)?),
                allowed: $allowed,
                help: concat!($($help),*),
            },)*],
        },)*];
    };
}

sections! {
    /// The local write cache.
    cache: CacheSection {
        /// The directory of the cache. Use a local SSD; one directory serves one daemon.
        dir: PathBuf = "/var/lib/glidefs".into(), "a directory, which must exist and be writable";
        /// Space for the log in the directory.
        size: ByteSize = ByteSize(16 << 30), "a size, at least (2 × workers + 3) × 64MiB";
        /// How a write behaves while the cache is full: wait for space, or fail with ENOSPC. With a store, a write of an
        /// export at its share of the log waits in any case.
        on_full: OnFull = OnFull::default(), "\"wait\" or \"enospc\"";
        /// How workers append to the log: through the page cache, or past it with O_DIRECT. `glidefs doctor` says which this
        /// disk likes. Names of glidefs 0.1 are read as well: "ring-fixed-direct" as "direct", all others as "buffered".
        engine: Engine = Engine::default(), "\"buffered\" or \"direct\"";
        /// Space in the directory for the block cache, which keeps data read from the store; in addition to size. Not used
        /// without a store.
        clean_size: ByteSize = ByteSize(4 << 30), "64MiB or more, or 0 for memory only";
        /// Most memory for stretches of the log that are read often, mapped and locked: reads there take no buffer, and do
        /// not read the file. Taken by 1 MiB, when within seconds as much of a stretch was read as it has. Not used by the
        /// engine "direct", nor in bounce mode.
        mapped_max: ByteSize = ByteSize(256 << 20), "1MiB to 16GiB, or 0 for none";
        /// Most memory for the indexes of all exports. When not set, a 32nd of size, and at least 64MiB: twice the need of a
        /// cache full of 4 KiB writes, and more. One export may have three times the unused part, by weight: at the default
        /// weight three quarters at most.
        index_max: Option<ByteSize> = None, "16MiB or more", example "\"512MiB\"";
        /// Most memory for the index of one export. When not set, only index_max bounds the index of an export.
        index_max_per_export: Option<ByteSize> = None, "1MiB or more", example "\"64MiB\"";
        /// Most space of the log for data of one export that is not in the store. Set or not, an export has a share: three
        /// times the part of the log which no export uses for such data, by weight; the lower of the two counts.
        log_max_per_export: Option<ByteSize> = None, "16MiB or more; only with a store", example "\"4GiB\"";
    }
    /// The object store.
    store: StoreSection {
        /// The object store that exports are written back to. When not set, data stays in the local cache only.
        url: Option<StoreUrl> = None,
            "file:///directory, s3://bucket/prefix, memory://, or, where built in, gs:// and az://",
            example "\"s3://bucket/prefix\"";
        /// An export without a write for so long is written back to the store.
        flush_interval: TimeSpan = TimeSpan(Duration::from_secs(2)), "10ms to 1h";
        /// An export is written back when the oldest data at risk has this age: at the next FLUSH, or half a second later.
        flush_age: TimeSpan = TimeSpan(Duration::from_secs(30)), "10ms to 24h";
        /// Time between garbage collections by a daemon that writes to the store. A collection removes objects that nothing
        /// has used for a day.
        gc_interval: TimeSpan = TimeSpan(Duration::from_hours(12)), "10min to 720h, or 0s for never";
        /// Most memory for packs. Packs being made and uploaded take at most two thirds, and at most 256MiB. Packs uploaded
        /// last stay in memory until they are merged, in the part which the former leave at present, and in at most 288MiB.
        /// Taken as needed.
        pack_memory: ByteSize = ByteSize(512 << 20), "256MiB or more";
        /// Most bytes a second that this host sends to the store, for all exports together. When not set, as many as the line takes.
        upload_bps: Option<ByteSize> = None, "16KiB or more", example "\"10MiB\"";
        /// The hours of the day, in UTC, in which upload_bps holds: from the beginning of the first to the beginning of the last, also
        /// over midnight. When not set, it always holds.
        upload_hours: Option<Hours> = None, "two hours such as 8-18 or 22-6; only with upload_bps", example "\"8-18\"";
        /// At the start, while the store cannot confirm that this host still has an export: the device waits, or serves the
        /// data in the cache, which is old if another host has taken the export over.
        unconfirmed: Unconfirmed = Unconfirmed::default(), "\"wait\" or \"serve\"";
    }
    /// The HTTP API, which the command line uses as well.
    api: ApiSection {
        /// TCP address of the API. A request without the token may only GET /healthz, /readyz, /metrics (on a loopback
        /// address), /openapi.json and, where there is a token, the files of the status page at /.
        listen: Listen = Listen(Some(([127, 0, 0, 1], 9470).into())),
            "IP:PORT or \"none\"; other than loopback only together with token_file";
        /// Unix socket of the API, for root, the user of the daemon and the members of group.
        socket: PathBuf = "/run/glidefs/glidefs.sock".into(), "a path of at most 107 bytes";
        /// Members of the group may use the socket, and so the whole API.
        group: Option<String> = None, "the name of a group of this host", example "\"glidefs\"";
        /// A request over TCP that carries this token ("Authorization: Bearer …") may do everything. A changed file is read
        /// again.
        token_file: Option<PathBuf> = None,
            "a file with the token in its first line, which only its owner may read", example "\"/etc/glidefs/token\"";
        /// Names of this host that are allowed in the header Host of requests over TCP without the token, besides localhost
        /// and the addresses of the host.
        hosts: Vec<String> = Vec::new(), "names without a port";
        /// Most connections over TCP at the same time, and most over the socket. At the limit, a connection without a request
        /// is closed for a newer one.
        connections_max: usize = 512, "8 to 65536";
        /// Exports with histograms on /metrics: those with a device that was used (more requests than a look for partitions
        /// and file systems), none, or all. A scrape may ask for another set: /metrics?histograms=all.
        export_histograms: ExportHistograms = ExportHistograms::default(), "\"busy\", \"none\" or \"all\"";
    }
    /// The threads that serve devices.
    workers: WorkersSection {
        /// Number of workers. When not set: one for each CPU that workers may use, and no more than the CPU quota of the
        /// control group (cpu.max) allows at full load, nor than the cache has room for.
        count: Option<u64> = None, "1 to 1024", example "4";
        /// CPUs that workers are pinned to. When not set: all CPUs that the daemon may use.
        cpus: Option<CpuList> = None, "CPU numbers and ranges", example "\"0-3,8\"";
    }
    /// Memory for requests in flight.
    buffers: BuffersSection {
        /// Slots of 128KiB per worker. This number times the workers is all the memory for requests, but in bounce mode.
        slots_per_worker: usize = 256, "4 to 65536";
    }
    /// Limits and defaults of exports.
    exports: ExportsSection {
        /// Most exports at the same time.
        max: usize = 20_000, "1 to 1000000";
        /// Most requests in flight per queue, for exports created without a queue depth.
        queue_depth: u16 = 64, "1 to 4096";
    }
    /// How the daemon deals with the kernel's devices.
    control: ControlSection {
        /// Time limit of one kernel command. A command that takes longer fails the operation, not the daemon.
        command_timeout: TimeSpan = TimeSpan(Duration::from_secs(10)), "a length of time from 1s to 10min";
        /// How devices behave when the daemon stops: they wait for the next daemon, or they are removed.
        on_stop: OnStop = OnStop::default(), "\"keep\" or \"remove\"";
        /// New devices also on a kernel that is known to crash at that. Devices that exist are served on every kernel.
        allow_broken_kernel: bool = false, "true or false";
    }
    /// The daemon's log.
    log: LogSection {
        /// The filter of log lines. The environment variable RUST_LOG takes precedence.
        filter: String = "info,libublk=warn".into(),
            "a level (error, warn, info, debug, trace) or directives such as \"info,glidefs::router=debug\"";
    }
}

/// How exports behave at the start while the store cannot confirm that this host still has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unconfirmed {
    /// The devices wait for the store.
    #[default]
    Wait,
    /// The exports are served from the cache.
    Serve,
}

/// How devices behave when the daemon stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnStop {
    /// The devices wait for the next daemon, and so do the requests.
    #[default]
    Keep,
    /// The devices are removed.
    Remove,
}
