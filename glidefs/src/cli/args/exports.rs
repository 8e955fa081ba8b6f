//! The arguments of `glidefs export`, `snapshot` and `import`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::bulk::{BulkNames, COUNT_MAX};
use super::common::{DeviceArgs, Name, OutputArgs, SnapshotName, size};
use super::settings::PropertyArgs;
use crate::router::{ExportName, ExportSize};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ExportCommand {
    /// Make an export and a block device
    #[command(after_help = "Examples:\n  \
        glidefs export create vm-1 --size 10GiB\n  \
        glidefs export create db --size 1TiB --queues 4 --queue-depth 128 --json\n  \
        glidefs export create spare --size 10GiB --detached && glidefs export attach spare\n  \
        glidefs export create guest --size 10GiB --read-iops 5000 --write-bps 100MiB --weight 200\n  \
        glidefs export create vm --count 500 --size 10GiB     vm-1 to vm-500\n  \
        seq -f disk-%g 100 | glidefs export create - --size 1GiB --json\n\n\
        Creating an export that exists with the same parameters is no error. Several exports are made at once. If some fail, the \
        others are made all the same, each failure is a line on standard error, and the exit status is 1. With several names, `-` or \
        --count, --json prints an array, in which a failure is an object with `name` and `error`.\n\n\
        Without limits nothing of an export waits; --burst is 100ms and --weight 100 where left out.")]
    Create {
        #[command(flatten)]
        names: BulkNames,
        /// Make the exports NAME-1 to NAME-N, without leading zeroes: a larger N later makes the rest
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=COUNT_MAX))]
        count: Option<u32>,
        /// Size in bytes, or with KiB, MiB, GiB or TiB
        #[arg(long, value_parser = size)]
        size: ExportSize,
        /// Make no block device: `glidefs export attach` makes one later
        #[arg(long)]
        detached: bool,
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Open an export from the store, on this host
    #[command(after_help = "Examples:\n  \
        glidefs export open vm-1\n  \
        glidefs export open vm-1 --take-over     from a host that is lost\n  \
        glidefs export list --store              exports that can be opened\n\n\
        A host releases an export when the export is detached, or when the daemon stops and removes all devices. An export that was \
        not released is opened with --take-over only: the export stops on the host that had it, and data which that host had not \
        written back stays in that host's cache. Opening an export that is open here is no error.\n\n\
        Durability, on-unreachable, limits and weight are those of the volume, unless options name others.\n\n\
        With --discard-local, an export that stopped because another host has it, or because the store has another history, goes \
        on with the data and the properties in the store.")]
    Open {
        #[command(flatten)]
        names: BulkNames,
        /// Take the export over from a host that has not released it
        #[arg(long)]
        take_over: bool,
        /// Give up data that is only on this host, of an export that another host has or that has two histories
        #[arg(long)]
        discard_local: bool,
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Bring a deleted export back, and open it on this host
    #[command(after_help = "Examples:\n  \
        glidefs export list --deleted            which exports can be undeleted, and until when\n  \
        glidefs export undelete vm-1\n  \
        glidefs export undelete vm-1 --as vm-1-old\n\n\
        The export comes back with its snapshots, durability, on-unreachable, limits and weight, in the state that was last written \
        back. Of several deleted exports with one name the one deleted last comes back. If the name is taken, --as gives another \
        name.")]
    Undelete {
        #[command(flatten)]
        name: Name,
        /// New name of the export
        #[arg(long = "as", value_name = "NEW", value_parser = ExportName::new)]
        new: Option<ExportName>,
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Make an export with the content of another one
    #[command(after_help = "Examples:\n  \
        glidefs export fork golden vm-2\n  \
        glidefs export fork golden vm-3 --snapshot monday\n  \
        glidefs export fork vm-1 vm-1-here --local   the data on this host of an export that was lost\n  \
        glidefs export fork vm-1 vm-1-here --local --manifest 41   the same, where manifest 42 is damaged\n\n\
        No data is copied, whatever the size. Durability, on-unreachable, limits and weight are those of the origin, unless options \
        name others. Changes to one export do not show in the other, and either can be deleted.")]
    Fork {
        #[command(flatten)]
        name: Name,
        /// Name of the new export
        #[arg(value_name = "NEW", value_parser = ExportName::new)]
        new: ExportName,
        /// Snapshot to begin with [default: the newest state]
        #[arg(long, value_name = "NAME", value_parser = ExportName::new)]
        snapshot: Option<ExportName>,
        /// Begin with the data on this host, of an export that another host has or that has two histories
        #[arg(long, conflicts_with = "snapshot")]
        local: bool,
        /// With --local: begin with this older manifest, as the newest one is damaged; what was written back after it is not in NEW
        #[arg(long, value_name = "N", requires = "local")]
        manifest: Option<u64>,
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Write back everything that was acknowledged, and wait until it is in the store
    #[command(
        after_help = "Examples:\n  glidefs export flush vm-1\n  glidefs export flush vm-1 --timeout 1min\n  glidefs export flush vm-1 vm-2 --no-wait\n  glidefs export flush - <names"
    )]
    Flush {
        #[command(flatten)]
        names: BulkNames,
        /// Begin only, and do not wait
        #[arg(long, conflicts_with = "timeout")]
        no_wait: bool,
    },
    /// Copy an export into a file
    #[command(after_help = "Examples:\n  \
        glidefs snapshot create vm-1 monday && glidefs export dump vm-1 vm-1.raw --snapshot monday\n  \
        glidefs export dump vm-1 vm-1.raw --resume\n  \
        glidefs export dump vm-1 - | zstd > vm-1.raw.zst\n\n\
        Run this as root on the daemon's host: the export's device is read. If the device is written to meanwhile, the copy is not of \
        one moment: dump a snapshot (--snapshot), or a fork. The file is sparse: zeroes take no space. The file is \
        called FILE.partial until it is complete; --resume finishes an interrupted dump.")]
    Dump(Box<DumpArgs>),
    /// List all exports
    #[command(after_help = "Examples:\n  glidefs export list\n  glidefs export list --store --json")]
    List {
        /// List the exports in the store, on whichever host they are open
        #[arg(long, conflicts_with = "deleted")]
        store: bool,
        /// List deleted exports that can be undeleted
        #[arg(long)]
        deleted: bool,
    },
    /// Show one export
    Show {
        #[command(flatten)]
        name: Name,
    },
    /// Make an export larger, also while in use
    #[command(after_help = "Example:\n  glidefs export resize vm-1 --size 20GiB")]
    Resize {
        #[command(flatten)]
        name: Name,
        /// New size in bytes, or with KiB, MiB, GiB or TiB
        #[arg(long, value_parser = size)]
        size: ExportSize,
    },
    /// Change durability, limits and weight of an export, also while in use
    #[command(
        mut_group("PropertyArgs", |group| group.required(true)),
        after_help = "Examples:\n  \
        glidefs export set vm-1 --durability store\n  \
        glidefs export set vm-1 --read-iops 5000 --write-iops 1000\n  \
        glidefs export set vm-1 --write-bps 100MiB --burst 2s\n  \
        glidefs export set vm-1 vm-2 --write-iops none --weight 200\n  \
        glidefs export set - --read-iops 5000 <names\n\n\
        Options that are left out stay as before. Requests that wait because of a limit have the new limits within a second. \
        DISCARD and WRITE_ZEROES count as write operations without bytes, FLUSH is free.\n\n\
        With a --durability other than local the command waits until the store has everything, for up to two minutes. It fails if the \
        store does not take that long: the durability counts on this host already, and the same command waits again. With \
        --durability local, FLUSHes that wait for the store end.")]
    Set {
        #[command(flatten)]
        names: BulkNames,
        #[command(flatten)]
        properties: PropertyArgs,
    },
    /// Give an export a block device
    #[command(after_help = "Examples:\n  glidefs export attach vm-1\n  \
        glidefs export attach - <names        the exports named in a file, one a line\n\n\
        Where the store cannot be asked whether this host still has the export, --unconfirmed serves the data in the cache, which \
        is old if another host took the export over meanwhile.")]
    Attach {
        #[command(flatten)]
        names: BulkNames,
        /// Also when the store cannot be asked which host has the export
        #[arg(long)]
        unconfirmed: bool,
    },
    /// Remove the block device of an export, keep the data, and let other hosts open the export
    #[command(after_help = "Examples:\n  glidefs export detach vm-1\n  glidefs export detach vm-1 vm-2\n\n\
        A device that is mounted, used as swap, part of another device or open exclusively stays, unless --force is given. \
        Waiting requests fail with an I/O error.")]
    Detach {
        #[command(flatten)]
        names: BulkNames,
        /// Also while the device is mounted or held in another way: I/O of its users fails from then on
        #[arg(long)]
        force: bool,
    },
    /// Delete an export: the block device and the data
    #[command(
        after_help = "Examples:\n  glidefs export delete vm-1 --yes\n  glidefs export delete - --yes <names\n\nDeleting an export that does not exist is no error. An export whose \
        device is mounted, used as swap, part of another device or open exclusively stays, unless --force is given. The same \
        command finishes a deletion that failed half-way. Within a day, `glidefs export undelete` brings the export back with the data in the store."
    )]
    Delete {
        #[command(flatten)]
        names: BulkNames,
        /// Do not ask on a terminal
        #[arg(long, short)]
        yes: bool,
        /// Also while the device is mounted or held in another way: I/O of its users fails from then on
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum SnapshotCommand {
    /// Keep the state of an export, with everything acknowledged before
    #[command(after_help = "Example:\n  glidefs snapshot create vm-1 before-upgrade")]
    Create {
        #[command(flatten)]
        snapshot: SnapshotName,
    },
    /// List the snapshots of an export
    List {
        #[command(flatten)]
        name: Name,
    },
    /// Give an export the content and size kept by a snapshot
    #[command(after_help = "Example:\n  \
        glidefs export detach vm-1 && glidefs snapshot rollback vm-1 before-upgrade && glidefs export attach vm-1\n\n\
        The export must be detached. Later writes are given up: make a snapshot first to keep them.")]
    Rollback {
        #[command(flatten)]
        snapshot: SnapshotName,
    },
    /// Delete a snapshot
    #[command(after_help = "Deleting a snapshot that does not exist is no error.")]
    Delete {
        #[command(flatten)]
        snapshot: SnapshotName,
    },
}

/// Arguments of `glidefs import`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ImportArgs {
    /// Raw image of a disk, or a block device; `-` is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Name of the export
    #[arg(long, value_parser = ExportName::new)]
    pub name: ExportName,
    /// Size of the export, if larger than FILE: bytes, or with KiB, MiB, GiB or TiB
    #[arg(long, value_parser = size, required_if_eq("file", "-"))]
    pub size: Option<ExportSize>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Go on with an existing export: write only blocks that differ from FILE
    #[arg(long)]
    pub resume: bool,
    /// Then write back, and wait until everything is in the store
    #[arg(long)]
    pub flush: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Arguments of `glidefs export dump`.
#[derive(Debug, Args)]
pub(in crate::cli) struct DumpArgs {
    #[command(flatten)]
    pub name: Name,
    /// File to write; `-` is standard output
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Dump this snapshot, by way of a temporary fork
    #[arg(long, value_name = "SNAPSHOT", value_parser = ExportName::new)]
    pub snapshot: Option<ExportName>,
    /// Go on with FILE.partial: write only blocks that differ
    #[arg(long)]
    pub resume: bool,
    /// Replace an existing FILE, and start FILE.partial anew
    #[arg(long)]
    pub force: bool,
}
