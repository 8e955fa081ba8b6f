//! What may be typed after `glidefs export` and `glidefs snapshot`.

use clap::Subcommand;

use super::common::{DeviceArgs, Limit, Name, Names, OutputArgs, SnapshotName, size};
use super::transfer::DumpArgs;
use crate::router::{ExportName, ExportSize};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ExportCommand {
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
        device: DeviceArgs,
        #[command(flatten)]
        output: OutputArgs,
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
        device: DeviceArgs,
        #[command(flatten)]
        output: OutputArgs,
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
        device: DeviceArgs,
        #[command(flatten)]
        output: OutputArgs,
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
        device: DeviceArgs,
        #[command(flatten)]
        output: OutputArgs,
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
        output: OutputArgs,
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
        output: OutputArgs,
    },
    /// Show one export
    Show {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        output: OutputArgs,
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
        output: OutputArgs,
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
        output: OutputArgs,
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
        output: OutputArgs,
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
        output: OutputArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum SnapshotCommand {
    /// Keep the state of an export, with all that was acknowledged before
    #[command(after_help = "Example:\n  glidefs snapshot create vm-1 before-upgrade")]
    Create {
        #[command(flatten)]
        snapshot: SnapshotName,
        #[command(flatten)]
        limit: Limit,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// List the snapshots of an export
    List {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Give an export the content and size that a snapshot kept
    #[command(after_help = "Examples:\n  \
        glidefs export detach vm-1 && glidefs snapshot rollback vm-1 before-upgrade && glidefs export attach vm-1\n\n\
        The export must be detached. What was written since is given up: make a snapshot of it first if it may be wanted.")]
    Rollback {
        #[command(flatten)]
        snapshot: SnapshotName,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Give a snapshot up
    #[command(after_help = "Deleting what does not exist is no error.")]
    Delete {
        #[command(flatten)]
        snapshot: SnapshotName,
        #[command(flatten)]
        output: OutputArgs,
    },
}
