//! What may be typed: commands, options and their help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::bench::BenchCommand;
use super::transfer::{DumpArgs, ImportArgs};
use crate::api::wire::Durability;
use crate::config::{ByteSize, DEFAULT_PATH, OnUnreachable, TimeSpan};
use crate::router::{ExportName, ExportSize, QUEUE_DEPTH_MAX, QUEUES_MAX};

/// Fast local block devices from object storage.
#[derive(Debug, Parser)]
#[command(
    name = "glidefs",
    version,
    about,
    after_help = "Examples:\n  \
        glidefs init                                  write /etc/glidefs/glidefs.toml\n  \
        glidefs run --config /etc/glidefs/glidefs.toml\n  \
        glidefs export create vm-1 --size 10GiB       make a volume; prints its /dev/ublkbN\n  \
        glidefs export list --json\n\n\
        Exit status: 0 done, 1 failed, 2 arguments or configuration refused, 3 the wait of --timeout ended and the work goes on."
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
    /// Address of the daemon's API, instead of its socket: http://HOST:PORT
    #[arg(long, global = true, value_name = "URL")]
    pub api: Option<String>,
    /// File with the token for --api
    #[arg(long, global = true, value_name = "PATH", requires = "api")]
    pub token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the daemon in the foreground
    Run {
        /// Configuration file; `glidefs init` writes one
        #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
        config: PathBuf,
        /// Remove all devices when the daemon stops, instead of leaving them to the next one
        #[arg(long)]
        remove_devices: bool,
    },
    /// Write a configuration file with every key explained
    #[command(
        after_help = "Examples:\n  glidefs init\n  glidefs init ./glidefs.toml\n  glidefs init -      print it"
    )]
    Init {
        /// Where to; `-` is standard output
        #[arg(value_name = "FILE", default_value = DEFAULT_PATH)]
        path: PathBuf,
        /// Replace the file if it exists
        #[arg(long)]
        force: bool,
    },
    /// Make, list, change and delete exports
    Export {
        #[command(subcommand)]
        command: ExportCommand,
    },
    /// Make, list and delete snapshots of exports
    Snapshot {
        #[command(subcommand)]
        command: SnapshotCommand,
    },
    /// Make an export from the image of a disk
    #[command(after_help = "Examples:\n  \
        glidefs import debian.raw --name vm-1\n  \
        glidefs import debian.raw --name vm-1 --size 20GiB --flush\n  \
        zstd -dc debian.raw.zst | glidefs import - --name vm-1 --size 10GiB\n\n\
        To be run as root on the daemon's host: the image is written to the export's device. Holes and zeroes are not \
        written. An import that was cut off is finished by the same command with --resume; run again, it changes nothing. \
        Other formats are made raw with `qemu-img convert -O raw`.")]
    Import(Box<ImportArgs>),
    /// Bring everything that any export has acknowledged to the store, and let other hosts open what has no device
    #[command(after_help = "Examples:\n  \
        glidefs drain && poweroff      before a host is given up\n  \
        glidefs drain --timeout 10min  exit status 3 when it takes longer; it goes on then")]
    Drain {
        #[command(flatten)]
        limit: Limit,
        #[command(flatten)]
        output: Output,
    },
    /// Remove from the store what nothing uses any more
    #[command(after_help = "Examples:\n  \
        glidefs gc --dry-run\n  \
        glidefs gc --grace 12h --json\n\n\
        Any number of daemons may collect at once, beside all other use of the store. What is not in use is seen so by a \
        first run and removed by a later one, when the grace period is over. What the last four hours of an export that is not \
        detached have left waits for its next flush.")]
    Gc {
        /// Change nothing, say what would go
        #[arg(long)]
        dry_run: bool,
        /// How long something stays that is not in use: 6h or more [default: 24h]
        #[arg(long, value_name = "TIME")]
        grace: Option<TimeSpan>,
        #[command(flatten)]
        output: Output,
    },
    /// Show how the daemon is
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Measure what this machine can do
    Bench {
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Print a completion script
    #[command(after_help = "Example:\n  glidefs completions bash > /etc/bash_completion.d/glidefs")]
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(after_help = "Examples:\n  glidefs man | man -l -\n  glidefs man --dir /usr/share/man/man1")]
    Man {
        /// Write the pages of all commands into this directory instead
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ExportCommand {
    /// Make an export and its block device
    #[command(after_help = "Examples:\n  \
        glidefs export create vm-1 --size 10GiB\n  \
        glidefs export create db --size 1TiB --queues 4 --queue-depth 128 --json\n  \
        glidefs export create spare --size 10GiB --detached && glidefs export attach spare\n\n\
        Creating what exists with the same parameters is no error. Several names make several exports; with --json they \
        are printed as an array.")]
    Create {
        #[command(flatten)]
        names: Names,
        /// Size in bytes, or with KiB, MiB, GiB or TiB
        #[arg(long, value_parser = size)]
        size: ExportSize,
        /// Make no block device: `glidefs export attach` makes it later
        #[arg(long)]
        detached: bool,
        #[command(flatten)]
        device: Device,
        #[command(flatten)]
        output: Output,
    },
    /// Open an export from the store, on this host
    #[command(after_help = "Examples:\n  \
        glidefs export open vm-1\n  \
        glidefs export open vm-1 --take-over     from a host that is lost\n  \
        glidefs export list --store              what there is to open\n\n\
        A host releases an export when it detaches it, or when its daemon stops and removes its devices. One that was not released is opened with --take-over only: \
        the export stops on the host that had it, and what that host had not flushed stays in its cache. Opening what is open \
        here is no error.\n\n\
        An export that stopped because another host has it, or because the store has another history, goes on with what the \
        store has when it is opened with --discard-local.")]
    Open {
        #[command(flatten)]
        names: Names,
        /// Take it over from a host that has not released it
        #[arg(long)]
        take_over: bool,
        /// Give up what is only here of an export that another host has, or with two histories
        #[arg(long)]
        discard_local: bool,
        #[command(flatten)]
        device: Device,
        #[command(flatten)]
        output: Output,
    },
    /// Have an export back that was deleted, and open it on this host
    #[command(after_help = "Examples:\n  \
        glidefs export list --deleted            what can be had back, and until when\n  \
        glidefs export undelete vm-1\n  \
        glidefs export undelete vm-1 --as vm-1-old\n\n\
        It comes back as it was when it was last flushed, with its snapshots. Of several of one name the one that was deleted \
        last comes back. If the name is taken, --as gives another one.")]
    Undelete {
        #[command(flatten)]
        name: Name,
        /// Its new name
        #[arg(long = "as", value_name = "NEW", value_parser = ExportName::new)]
        new: Option<ExportName>,
        #[command(flatten)]
        device: Device,
        #[command(flatten)]
        output: Output,
    },
    /// Make an export with the content of another one
    #[command(after_help = "Examples:\n  \
        glidefs export fork golden vm-2\n  \
        glidefs export fork golden vm-3 --snapshot monday\n  \
        glidefs export fork vm-1 vm-1-here --local   what is here of an export that was lost\n\n\
        No data is copied, whatever the size. Both go their own way from then on, and either can be deleted.")]
    Fork {
        #[command(flatten)]
        name: Name,
        /// Name of the new export
        #[arg(value_name = "NEW", value_parser = ExportName::new)]
        new: ExportName,
        /// Snapshot to begin with [default: the newest state]
        #[arg(long, value_name = "NAME", value_parser = ExportName::new)]
        snapshot: Option<ExportName>,
        /// Begin with what is here of an export that another host has, or with two histories
        #[arg(long, conflicts_with = "snapshot")]
        local: bool,
        #[command(flatten)]
        device: Device,
        #[command(flatten)]
        output: Output,
    },
    /// Bring everything that was acknowledged to the store, and wait until it is there
    #[command(
        after_help = "Examples:\n  glidefs export flush vm-1\n  glidefs export flush vm-1 --timeout 1min\n  glidefs export flush vm-1 vm-2 --no-wait"
    )]
    Flush {
        #[command(flatten)]
        names: Names,
        /// Wait until it is there, as it does anyway
        #[arg(long, hide = true, conflicts_with = "no_wait")]
        wait: bool,
        /// Only have it begin
        #[arg(long, conflicts_with = "timeout")]
        no_wait: bool,
        #[command(flatten)]
        limit: Limit,
        #[command(flatten)]
        output: Output,
    },
    /// Copy an export into a file
    #[command(after_help = "Examples:\n  \
        glidefs snapshot create vm-1 monday && glidefs export dump vm-1 vm-1.raw --snapshot monday\n  \
        glidefs export dump vm-1 vm-1.raw --resume\n  \
        glidefs export dump vm-1 - | zstd > vm-1.raw.zst\n\n\
        To be run as root on the daemon's host: the export's device is read. If it is written to meanwhile, the copy is not of one \
        moment: dump a snapshot (--snapshot), or a fork. The file is sparse: zeroes take no space. It is \
        called FILE.partial until it is complete; one that was cut off is finished with --resume.")]
    Dump(Box<DumpArgs>),
    /// List all exports
    #[command(after_help = "Examples:\n  glidefs export list\n  glidefs export list --store --json")]
    List {
        /// List what the store holds, whoever has it open
        #[arg(long, conflicts_with = "deleted")]
        store: bool,
        /// List what was deleted from the store and can be had back
        #[arg(long)]
        deleted: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Show one export
    Show {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        output: Output,
    },
    /// Make an export larger while it is used
    #[command(after_help = "Example:\n  glidefs export resize vm-1 --size 20GiB")]
    Resize {
        #[command(flatten)]
        name: Name,
        /// New size in bytes, or with KiB, MiB, GiB or TiB
        #[arg(long, value_parser = size)]
        size: ExportSize,
        #[command(flatten)]
        output: Output,
    },
    /// Give an export a block device
    #[command(after_help = "Example:\n  glidefs export attach vm-1\n\n\
        Where the store cannot be asked whether this host still has the export, --unconfirmed serves what is in the cache: it is \
        old if another host took the export over meanwhile.")]
    Attach {
        #[command(flatten)]
        name: Name,
        /// Also when the store cannot be asked whose the export is
        #[arg(long)]
        unconfirmed: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Remove an export's block device, keep its data, and let other hosts open it
    #[command(after_help = "Example:\n  glidefs export detach vm-1\n\n\
        A device that is mounted, used as swap, part of another device or open exclusively stays, unless --force is given. \
        Requests that wait fail with an I/O error.")]
    Detach {
        #[command(flatten)]
        name: Name,
        /// Also while the device is mounted or held in another way: what its users do next fails
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Delete an export: its block device and its data
    #[command(
        after_help = "Example:\n  glidefs export delete vm-1 --yes\n\nDeleting what does not exist is no error. An export whose \
        device is mounted, used as swap, part of another device or open exclusively stays, unless --force is given. What failed \
        half-way is finished by the same command. What is in the store can be had back for a day: `glidefs export undelete`."
    )]
    Delete {
        #[command(flatten)]
        names: Names,
        /// Do not ask on a terminal
        #[arg(long, short)]
        yes: bool,
        /// Also while the device is mounted or held in another way: what its users do next fails
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum SnapshotCommand {
    /// Keep the state of an export, with all that was acknowledged before
    #[command(after_help = "Example:\n  glidefs snapshot create vm-1 before-upgrade")]
    Create {
        #[command(flatten)]
        snapshot: SnapshotName,
        #[command(flatten)]
        limit: Limit,
        #[command(flatten)]
        output: Output,
    },
    /// List the snapshots of an export
    List {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        output: Output,
    },
    /// Give an export the content and size that a snapshot kept
    #[command(after_help = "Examples:\n  \
        glidefs export detach vm-1 && glidefs snapshot rollback vm-1 before-upgrade && glidefs export attach vm-1\n\n\
        The export must be detached. What was written since is given up: make a snapshot of it first if it may be wanted.")]
    Rollback {
        #[command(flatten)]
        snapshot: SnapshotName,
        #[command(flatten)]
        output: Output,
    },
    /// Give a snapshot up
    #[command(after_help = "Deleting what does not exist is no error.")]
    Delete {
        #[command(flatten)]
        snapshot: SnapshotName,
        #[command(flatten)]
        output: Output,
    },
}

/// A snapshot of an export.
#[derive(Debug, Args)]
pub(super) struct SnapshotName {
    /// Name of the export
    #[arg(value_name = "NAME", value_parser = ExportName::new)]
    pub name: ExportName,
    /// Name of the snapshot
    #[arg(value_name = "SNAPSHOT", value_parser = ExportName::new)]
    pub snapshot: ExportName,
}

/// What a new export is like, besides its content.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Device {
    /// What an acknowledged FLUSH survives: loss of power (local), or of the host (store); or how much may be lost with the host
    #[arg(long, value_parser = durability, value_name = "local|store|bounded:SIZE,TIME", default_value = "local")]
    pub durability: Durability,
    /// What a read does that needs a store that is away: wait, or fail after this time [default: as configured]
    #[arg(long, value_name = "wait|TIME")]
    pub on_unreachable: Option<OnUnreachable>,
    /// Queues of the device [default: as configured]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    pub queues: Option<u16>,
    /// Requests in flight a queue [default: as configured]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUE_DEPTH_MAX)))]
    pub queue_depth: Option<u16>,
}

#[derive(Debug, Args)]
pub(super) struct Name {
    /// Name of the export
    #[arg(value_name = "NAME", value_parser = ExportName::new)]
    pub name: ExportName,
}

/// Names of exports.
#[derive(Debug, Args)]
pub(super) struct Names {
    /// Name of the export; several may be given
    #[arg(value_name = "NAME", value_parser = ExportName::new, required = true)]
    pub names: Vec<ExportName>,
}

/// How long is waited.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Limit {
    /// Wait for at most so long: exit status 3 then, and the work goes on
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<TimeSpan>,
}

#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Output {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "local" => Ok(Durability::Local),
        "store" => Ok(Durability::Store),
        _ => bounded(text).ok_or_else(|| "use local, store, or as bounded:64MiB,30s".into()),
    }
}

fn bounded(text: &str) -> Option<Durability> {
    let (size, time) = text.strip_prefix("bounded:")?.split_once(',')?;
    let (size, time): (ByteSize, TimeSpan) = (size.parse().ok()?, time.parse().ok()?);
    Some(Durability::Bounded { max_bytes: size.0, max_age_seconds: time.0.as_secs() })
}

pub(super) fn size(text: &str) -> Result<ExportSize, String> {
    let bytes: ByteSize = text.parse().map_err(|error: crate::config::ValueError| error.to_string())?;
    ExportSize::new(bytes.0).map_err(|error| error.to_string())
}
