//! The arguments: commands, options and help texts.

pub(super) mod bulk;
pub(super) mod common;
pub(super) mod csi;
pub(super) mod exports;
pub(super) mod settings;
pub(super) mod top;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use self::common::{OutputArgs, WaitArgs};
use self::csi::CsiArgs;
use self::exports::{ExportCommand, ImportArgs, SnapshotCommand};
use self::top::TopArgs;
use crate::client::{Client, ClientError};
use crate::config::{DEFAULT_PATH, TimeSpan};
use crate::router::ExportName;
use crate::store::StoreUrl;

/// Fast local block devices from object storage.
#[derive(Debug, Parser)]
#[command(
    name = "glidefs",
    version,
    about,
    after_help = "Examples:\n  \
        glidefs init                                  write /etc/glidefs/glidefs.toml\n  \
        glidefs run --config /etc/glidefs/glidefs.toml\n  \
        glidefs export create vm-1 --size 10GiB       make a volume at /dev/glidefs/vm-1\n  \
        glidefs export list --json\n\n\
        Exit status:\n  \
        0  done\n  \
        1  failed; of several exports: some failed\n  \
        2  arguments, a value or the configuration refused\n  \
        3  the wait of --timeout ended, and the work goes on\n  \
        4  there is no such export, volume or snapshot\n  \
        5  not as things are: it exists with other parameters, another host has it, its state does not allow it\n  \
        6  its device is in use\n  \
        7  daemon or store do not answer, or not yet: try again\n\
        With --json each failure is a line of JSON on standard error: {\"error\": {\"code\": …, \"message\": …}}, with the name where \
        there are several."
)]
pub(super) struct Cli {
    #[command(flatten)]
    pub daemon: DaemonArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// Where the daemon is.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where the daemon is")]
pub(super) struct DaemonArgs {
    /// Unix socket of the daemon
    #[arg(
        long,
        global = true,
        env = "GLIDEFS_SOCKET",
        value_name = "PATH",
        default_value = "/run/glidefs/glidefs.sock"
    )]
    pub socket: PathBuf,
    /// Address of the daemon's API: http://HOST:PORT; used instead of the socket
    #[arg(long, global = true, value_name = "URL")]
    pub api: Option<String>,
    /// File with the token for --api
    #[arg(long, global = true, value_name = "PATH", requires = "api")]
    pub token_file: Option<PathBuf>,
}

impl DaemonArgs {
    /// A client of the daemon at this place.
    pub fn client(&self) -> Result<Client, ClientError> {
        match &self.api {
            Some(url) => Client::of_url(url, self.token_file.as_deref()),
            None => Ok(Client::of_socket(&self.socket)),
        }
    }
}

/// Which requests to show, and how.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct TraceArgs {
    /// The only export to show [default: all]
    #[arg(value_name = "EXPORT", value_parser = ExportName::new)]
    pub export: Option<ExportName>,
    /// Show only requests that took at least so long
    #[arg(long, value_name = "TIME")]
    pub slower_than: Option<TimeSpan>,
    /// Go on with requests that end from now on, until Ctrl-C
    #[arg(long)]
    pub follow: bool,
    /// Print a line of JSON for each request
    #[arg(long)]
    pub json: bool,
}

/// How to run the daemon.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Configuration file; `glidefs init` writes one
    #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub config: PathBuf,
    /// Remove all devices when the daemon stops; devices are otherwise left to the next daemon
    #[arg(long)]
    pub remove_devices: bool,
    /// Start nothing: check the configuration file, the log filter, the group and token of the API, and the format of the cache, and
    /// print what a daemon that runs has to have in common with this one for an upgrade
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the daemon in the foreground
    Run(RunArgs),
    /// Replace the running daemon by the program that was installed, without removing a device
    #[command(after_help = "Examples:\n  \
        install -m 755 glidefs /usr/bin/glidefs && glidefs upgrade\n  \
        glidefs upgrade --binary /opt/glidefs-next/glidefs --json\n\n\
        The daemon has the new program check configuration and cache, and then goes on as that program, in the same process and with \
        the same arguments. Devices pause meanwhile; no request fails. Where the new program fails, the daemon goes on or serves again, \
        and the exit status is 1. `systemctl reload glidefs` does the same.")]
    Upgrade {
        /// The new program; only for root and the user of the daemon, over the socket [default: the file that is now where the daemon's
        /// program was]
        #[arg(long, value_name = "PATH", conflicts_with = "api")]
        binary: Option<PathBuf>,
        /// Take the socket of the daemon from this configuration file
        #[arg(long, value_name = "FILE", conflicts_with = "api")]
        config: Option<PathBuf>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Write a configuration file with every key explained
    #[command(
        after_help = "Examples:\n  glidefs init\n  glidefs init ./glidefs.toml\n  glidefs init -      print it"
    )]
    Init {
        /// File to write; `-` is standard output
        #[arg(value_name = "FILE", default_value = DEFAULT_PATH)]
        path: PathBuf,
        /// Replace an existing FILE
        #[arg(long)]
        force: bool,
    },
    /// Make, list, change and delete exports
    Export {
        #[command(flatten)]
        wait: WaitArgs,
        #[command(subcommand)]
        command: ExportCommand,
    },
    /// Make, list and delete snapshots of exports
    Snapshot {
        #[command(flatten)]
        wait: WaitArgs,
        #[command(subcommand)]
        command: SnapshotCommand,
    },
    /// Make an export from the image of a disk
    #[command(after_help = "Examples:\n  \
        glidefs import debian.raw --name vm-1\n  \
        glidefs import debian.raw --name vm-1 --size 20GiB --flush\n  \
        zstd -dc debian.raw.zst | glidefs import - --name vm-1 --size 10GiB\n\n\
        Run this as root on the daemon's host: the image is written to the export's device. Holes and zeroes are not \
        written. The same command with --resume finishes an interrupted import, and changes nothing when the import was complete. \
        `qemu-img convert -O raw` makes other formats raw.")]
    Import(Box<ImportArgs>),
    /// Write back everything that any export has acknowledged, and let other hosts open exports without a device
    #[command(after_help = "Examples:\n  \
        glidefs drain && poweroff      before a host is given up\n  \
        glidefs drain --timeout 10min  exit status 3 when the drain takes longer; the drain goes on")]
    Drain {
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Remove unused objects from the store
    #[command(after_help = "Examples:\n  \
        glidefs gc --dry-run\n  \
        glidefs gc --grace 12h --json\n\n\
        Any number of daemons may collect at once, beside all other use of the store. A first run finds an unused object, and a \
        later run removes the object when the grace period is over. Objects that an export left behind in its last four hours stay \
        until the export is written back again or detached.")]
    Gc {
        /// Change nothing, and print the objects to remove
        #[arg(long)]
        dry_run: bool,
        /// How long an unused object stays: 6h or more [default: 24h]
        #[arg(long, value_name = "TIME")]
        grace: Option<TimeSpan>,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Show the state of the daemon, and where its memory is
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the exports that do most, as they do it
    #[command(after_help = "Examples:\n  \
        glidefs top\n  \
        glidefs top --sort dirty --interval 5s\n  \
        glidefs top --once\n  \
        glidefs top --json | jq '.exports[] | select(.iops > 1000) | .name'\n\n\
        Rates are of the last interval; a rate that is not known yet is shown as -. Latency is that of READ, WRITE and FLUSH from the \
        device to the answer; P99 is interpolated inside a bucket of the metrics. FLY is requests under way, RISK the age of the oldest \
        data that is not in the store, WAIT/s in each second the time that requests waited for limits, or writes for index and log.")]
    Top(TopArgs),
    /// Show requests live, and where the time of each goes
    #[command(after_help = "Examples:\n  \
    glidefs trace                           slow requests of late, and a sample of the others\n  \
    glidefs trace vm-1 --slower-than 50ms   the slow requests of one export\n  \
    glidefs trace --follow --json           each as it ends\n\n\
    QUEUE: waits for the worker. WAIT: for a limit of the export, for log space or another bound, or for memory. COPY: the bytes go to \
    or come from the client. LOG: the local log is written or read. SYNC: data becomes stable on the local disk. STORE: the store \
    is waited for. The columns add up to TOTAL; --json has each part.\n\n\
    The daemon always keeps the last 2,048 requests that took at least 10 ms or were sampled: about ten a second of each worker.")]
    Trace(TraceArgs),
    /// Check this host: kernel, limits, cache, store, configuration, and what dead daemons left
    #[command(after_help = "Examples:\n  \
        glidefs doctor\n  \
        glidefs doctor --config ./glidefs.toml --json\n\n\
        Run this as root; the daemon may run or not. A line for each check; for what is not ok, why it matters and how to mend it. \
        Nothing is changed: a measurement in the directory of the cache and the objects of a trial in the store are removed again. \
        Limits are those of the daemon while one runs.\n\n\
        Exit status: 0 nothing worse than a note, 1 warnings, 2 failures.")]
    Doctor {
        /// Configuration file of the daemon
        #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
        config: PathBuf,
        /// Print the findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Try a store, or make one
    Store {
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Collect what a bug report needs of this host into one file, without data and secrets
    #[command(after_help = "Examples:\n  \
        glidefs support-bundle\n  \
        glidefs support-bundle --out /tmp/report.tar.zst --json\n\n\
        Run this as root, with or without a daemon. The file has the findings of `glidefs doctor`, answers and metrics of the daemon, \
        its configuration and log, lines of the kernel's log, and lists of disks, mounts and files of the cache: names of exports, \
        hosts and stores are in it, users and passwords in URLs are not: look at the file before you send it. \
        Parts that cannot be had are named.")]
    SupportBundle {
        /// Configuration file of the daemon
        #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
        config: PathBuf,
        /// File to write, which must not exist [default: glidefs-support-TIME.tar.zst]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Print path, size and parts as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run the driver of the container storage interface (CSI), for Kubernetes and other orchestrators
    #[command(after_help = "Examples:\n  \
        glidefs csi\n  \
        glidefs csi --endpoint unix:///csi/csi.sock --node-id worker-3\n  \
        glidefs csi --shared-store prod                volumes move between the hosts that share the store\n\n\
        Run this as root, beside the daemon of the host, where kubelet's mounts are: docs/kubernetes.md. The driver needs blkid, mount, \
        umount, e2fsprogs and xfsprogs, and remembers nothing: it may be killed and started at any time.")]
    Csi(CsiArgs),
    /// Print the manual page
    #[command(after_help = "Examples:\n  glidefs man | man -l -\n  glidefs man --dir /usr/share/man/man1")]
    Man {
        /// Write the pages of all commands into this directory instead, with completions for bash, zsh and fish, and the description
        /// of the HTTP API in the format of OpenAPI 3.1, for makers of clients
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum StoreCommand {
    /// Find out what a server does, and which promises of glidefs hold there
    #[command(after_help = "Examples:\n  \
        glidefs store test                        the store of this host\n  \
        glidefs store test s3://bucket/prefix     before it is used\n  \
        set -a; . /etc/default/glidefs; glidefs store test s3://bucket/prefix --json\n\n\
        Objects glidefs-doctor-* are made in the place, raced for, read, listed (1,001, which is more than a page), and removed; \
        one of 16 MiB tells how fast transfers are. A line for each finding, with why it matters and how to mend it, and a line for \
        each promise of the README. Credentials are those of the daemon where one runs, else the AWS_ \
        variables of this command. glidefs doctor tries the same with fewer objects.\n\n\
        Exit status: 0 nothing worse than a note, 1 warnings, 2 failures.")]
    Test {
        /// Store to try [default: that of the configuration file]
        #[arg(value_name = "URL")]
        url: Option<StoreUrl>,
        /// Configuration file of the daemon
        #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
        config: PathBuf,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Make a new store in an empty place
    #[command(after_help = "Examples:\n  \
        glidefs store init s3://bucket/prefix\n  \
        glidefs store init file:///srv/glidefs-store    makes the directory, and those above it\n\n\
        The place must be empty, and its server must create objects only if they are absent, also in a race. The first start of a \
        daemon without exports makes a store as well, and says so in its log. Making a store that is there is no error.")]
    Init {
        /// Place of the store
        #[arg(value_name = "URL")]
        url: StoreUrl,
    },
}
