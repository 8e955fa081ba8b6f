//! `glidefs import` and `glidefs export dump`: raw images into exports and out of exports, through the exports' block devices.
//!
//! Owns which files and devices are read and written, and the temporary fork of a dump. Does not own the copying (`copy`), nor the export:
//! the daemon makes it and names its device. Invariants: an existing export is written only with `--resume`; the FILE of a dump is
//! complete or unchanged; a fork made for a dump is deleted, however the dump ends.

mod copy;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

pub(super) use self::copy::CopyError;
use self::copy::{Before, Report, Source, copy};
use super::args::common::{OutputArgs, WaitArgs};
use super::args::exports::{DumpArgs, ImportArgs};
use super::error::CliError;
use super::print::{ProgressLine, answer, bytes};
use super::wait::{DaemonWait, GOES_ON};
use crate::api::wire::{
    CreateRequest, Deleted, Durability, Export, Flushed, ForkRequest, LimitsChange, ProblemCode,
};
use crate::client::{Client, ClientError, export_path};
use crate::config::ByteSize;
use crate::observe::chain;
use crate::router::{ExportName, ExportSize, NAME_CHARS_MAX};
use crate::units::SECTOR_BYTES;

/// How often progress is shown.
const SHOW_INTERVAL: Duration = Duration::from_millis(200);
const HEAD_BYTES: usize = 512;
/// What a file that is not raw holds, and where; its name; and what unpacks it, or nothing for `qemu-img`. No disk begins like this.
const FORMATS: [(usize, &[u8], &str, &str); 11] = [
    (0, b"QFI\xfb", "a qcow2 image", ""),
    (0, b"KDMV", "a VMDK image", ""),
    (0, b"conectix", "a VHD image", ""),
    (0, b"vhdxfile", "a VHDX image", ""),
    (0x40, b"\x7f\x10\xda\xbe", "a VDI image", ""),
    (0, b"\x1f\x8b\x08", "a gzip file", "gzip -dc"),
    (0, b"\xfd7zXZ\0", "an xz file", "xz -dc"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file", "zstd -dc"),
    (0, b"\x04\x22\x4d\x18", "an lz4 file", "lz4 -dc"),
    (4, b"1AY&SY", "a bzip2 file", "bzip2 -dc"),
    (257, b"ustar", "a tar archive", "tar -xOf"),
];

/// Opens a device, for writing if so asked: [`open_device`], except in tests.
type Open<'a> = &'a dyn Fn(&Path, bool) -> io::Result<File>;

/// What an import or a dump did, for `--json`.
#[derive(Debug, Serialize)]
struct Summary {
    export: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<String>,
    device: String,
    file: String,
    size_bytes: u64,
    #[serde(flatten)]
    report: Report,
    seconds: f64,
    /// With `--flush`: the store has everything up to this write.
    #[serde(skip_serializing_if = "Option::is_none")]
    flushed_sequence_number: Option<u64>,
}

impl Summary {
    fn text(&self, head: &str) -> String {
        let report = &self.report;
        let flushed = self.flushed_sequence_number;
        let flushed = flushed.map(|number| format!("\neverything up to write {number} is in the store"));
        format!(
            "{head}: {} copied, {} skipped as zero, {} equal, {} made zero, in {:.1} s{}",
            bytes(report.copied_bytes),
            bytes(report.zero_bytes),
            bytes(report.equal_bytes),
            bytes(report.zeroed_bytes),
            self.seconds,
            flushed.unwrap_or_default()
        )
    }
}

pub(super) async fn import(client: &Client, args: ImportArgs) -> Result<(), CliError> {
    import_to(client, args, &open_device).await
}

async fn import_to(client: &Client, args: ImportArgs, open: Open<'_>) -> Result<(), CliError> {
    check_local(client)?;
    let source = open_image(&args.file)?;
    let size = export_size(&args, source.length_bytes)?;
    let (export, before) = make(client, &args, size).await?;
    let (target, device) = match export_device(&export, true, open) {
        Ok(opened) => opened,
        Err(error) => {
            if before == Before::Zeroes {
                // The same command has to work once the reason is gone. If the deletion fails, it says that the export exists.
                let _: Result<Deleted, _> = client.delete(&export_path(&args.name, "")).await;
            }
            return Err(error);
        }
    };
    // After this the export may be anybody's, and stays.
    recheck(client, &export).await?;
    let (from, to) = (spoken(&args.file, "standard input"), device.display().to_string());
    let (started, head) = (Instant::now(), format!("{from} is export {}, {to}", args.name));
    let copied = copied(source, target, size.bytes(), before, args.output, Arc::default()).await;
    let report = copied.map_err(|source| CliError::Copy { from, to, hint: hint(before), source })?;
    let mut flushed_sequence_number = None;
    if args.flush {
        let path = export_path(&args.name, "/flush");
        let mut wait = DaemonWait::new(WaitArgs { timeout: None, output: args.output });
        let flushed: Flushed = wait.for_daemon(client, client.post(&path, &()), GOES_ON).await?;
        flushed_sequence_number = Some(flushed.sequence_number);
    }
    let summary = Summary {
        export: args.name.to_string(),
        snapshot: None,
        device: device.display().to_string(),
        file: args.file.display().to_string(),
        size_bytes: size.bytes(),
        report,
        seconds: started.elapsed().as_secs_f64(),
        flushed_sequence_number,
    };
    answer(args.output.json, &summary, |summary| summary.text(&head))
}

/// The image to import. Refuses what is not raw before anything is made.
fn open_image(path: &Path) -> Result<Source, CliError> {
    let failed = CliError::cannot("read", path);
    let mut head = vec![0; HEAD_BYTES];
    let mut source = if is_standard(path) {
        let input = io::stdin();
        if input.is_terminal() {
            return Err(CliError::Refused(
                "standard input is a terminal: give a file, or redirect it".into(),
            ));
        }
        Source::of_pipe(input.as_fd().try_clone_to_owned().map_err(&failed)?.into())
    } else {
        let kind = fs::metadata(path).map_err(&failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let what = if kind.is_dir() { "a directory" } else { "neither a file nor a block device" };
            return Err(CliError::Refused(format!(
                "{} is {what}: give a raw image, or `-` to read standard input",
                path.display()
            )));
        }
        File::open(path).and_then(Source::of_file).map_err(&failed)?
    };
    let read = source.read(&mut head, 0).map_err(&failed)?;
    head.truncate(read);
    if source.length_bytes.is_none() {
        // A pipe is read once.
        source.head.clone_from(&head);
    }
    if head.is_empty() {
        return Err(CliError::Refused(format!("{} is empty: there is nothing to import", path.display())));
    }
    let is = |(offset, magic, ..): &&(usize, &[u8], &str, &str)| {
        head.get(*offset..).is_some_and(|at| at.starts_with(magic))
    };
    let Some((_, _, name, unpack)) = FORMATS.iter().find(is) else { return Ok(source) };
    let file = path.display();
    let hint = match *unpack {
        "" => format!("make one with `qemu-img convert -O raw {file} {file}.raw`"),
        unpack => format!("unpack it on the way, with `{unpack} {file} | glidefs import - --size SIZE …`"),
    };
    Err(CliError::Refused(format!("{file} is {name}, not a raw image: {hint}")))
}

/// The size of the export for an image of `length_bytes`.
fn export_size(args: &ImportArgs, length_bytes: Option<u64>) -> Result<ExportSize, CliError> {
    let file = args.file.display();
    match (args.size, length_bytes) {
        (Some(size), Some(length)) if size.bytes() < length => Err(CliError::Refused(format!(
            "{file} has {length} bytes, more than the {} of --size: make --size larger, or leave it out",
            size.bytes()
        ))),
        (Some(size), _) => Ok(size),
        (None, Some(length)) => {
            let whole = length.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX);
            let refused = |error| CliError::Refused(format!("{file} cannot become an export: {error}"));
            ExportSize::new(whole).map_err(refused)
        }
        (None, None) => Err(CliError::Refused("say with --size how large the export is to be".into())),
    }
}

/// Makes the export, or takes the existing one with `--resume`.
async fn make(client: &Client, args: &ImportArgs, size: ExportSize) -> Result<(Export, Before), CliError> {
    let (name, size) = (args.name.to_string(), ByteSize(size.bytes()));
    let request = CreateRequest { name, size, ..CreateRequest::default() }.with(args.device.choices());
    match client.make("/v1/exports", &request).await {
        Ok((true, export)) => Ok((export, Before::Zeroes)),
        Ok((false, export)) if args.resume => Ok((export, Before::Something)),
        Err(error) if args.resume || !is_other_export(&error) => Err(error.into()),
        Ok(_) | Err(_) => Err(CliError::Refused(format!(
            "export {} exists: choose another name, or use --resume to make it equal to the image, whatever it holds",
            args.name
        ))),
    }
}

/// Whether the daemon refused because the name is that of an export with other parameters.
fn is_other_export(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { code, .. } if code == ProblemCode::ExistsWithOtherParameters.as_str())
}

pub(super) async fn dump(client: &Client, args: DumpArgs, output: OutputArgs) -> Result<(), CliError> {
    dump_from(client, args, output, &open_device, &Arc::default()).await
}

async fn dump_from(
    client: &Client,
    args: DumpArgs,
    output: OutputArgs,
    open: Open<'_>,
    stop: &Arc<AtomicBool>,
) -> Result<(), CliError> {
    check_local(client)?;
    let is_stdout = is_standard(&args.file);
    if is_stdout && io::stdout().is_terminal() {
        return Err(CliError::Refused("standard output is a terminal: give a file, or redirect it".into()));
    }
    // Before a fork is made.
    let partial = if is_stdout { None } else { Some(partial_of(&args)?) };
    let dump = Dump { client, args: &args, output, partial, open, stop };
    let name = &args.name.name;
    let summary = match &args.snapshot {
        None => dump.export(&client.get(&export_path(name, "")).await?).await?,
        Some(snapshot) => dump.snapshot(snapshot).await?,
    };
    let of = args.snapshot.as_ref().map(|snapshot| format!("snapshot {snapshot} of ")).unwrap_or_default();
    let head = format!("{} is a copy of {of}{name}", spoken(&args.file, "standard output"));
    if is_stdout {
        // Standard output carries the image.
        let text = if output.json { serde_json::to_string_pretty(&summary)? } else { summary.text(&head) };
        return writeln!(io::stderr(), "{text}").map_err(CliError::Output);
    }
    answer(output.json, &summary, |summary| summary.text(&head))
}

/// A dump, with FILE looked at.
struct Dump<'a> {
    client: &'a Client,
    args: &'a DumpArgs,
    output: OutputArgs,
    /// The name of the file until the dump is complete; `None` for standard output.
    partial: Option<PathBuf>,
    open: Open<'a>,
    stop: &'a Arc<AtomicBool>,
}

impl Dump<'_> {
    /// Forks `snapshot`, dumps the fork and deletes it. The first signal stops the copy, and the second does not wait for the deletion.
    async fn snapshot(&self, snapshot: &ExportName) -> Result<Summary, CliError> {
        let Self { client, args, stop, .. } = *self;
        let tail = format!("-dump-{:08x}", rand::random::<u32>());
        // Names are ASCII.
        let of = args.name.name.as_str();
        let fork = format!("{}{tail}", &of[..of.len().min(NAME_CHARS_MAX - tail.len())]);
        let fork = ExportName::new(&fork).map_err(|error| CliError::Refused(error.to_string()))?;
        let left =
            format!("the temporary export {fork} may exist, `glidefs export delete {fork}` deletes it");
        let signals = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
        for mut signals in signals.into_iter().flatten() {
            let (stop, left) = (Arc::clone(stop), left.clone());
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    if stop.swap(true, Ordering::Relaxed) {
                        eprintln!("glidefs: stopped: {left}");
                        std::process::exit(1);
                    }
                }
            });
        }
        let request = ForkRequest {
            name: fork.to_string(),
            snapshot: Some(snapshot.to_string()),
            durability: Some(Durability::Local),
            // The origin's limits are for its clients, not for the dump.
            limits: LimitsChange {
                read_iops: Some(None),
                write_iops: Some(None),
                read_bytes_per_second: Some(None),
                write_bytes_per_second: Some(None),
                burst_milliseconds: None,
            },
            ..ForkRequest::default()
        };
        let taken =
            || CliError::Refused(format!("there is an export {fork} already: try again, for another name"));
        let dumped = match client.make(&export_path(&args.name.name, "/fork"), &request).await {
            Ok((true, export)) => self.export(&export).await,
            Ok((false, _)) => return Err(taken()),
            Err(ref error) if is_other_export(error) => return Err(taken()),
            Err(
                error @ (ClientError::NotRunning { .. }
                | ClientError::NoPermission { .. }
                | ClientError::Stranger { .. }),
            ) => {
                return Err(error.into());
            }
            // The fork may exist in spite of the error.
            Err(error) => Err(error.into()),
        };
        if let Err(error) = client.delete::<Deleted>(&export_path(&fork, "")).await {
            let left = CliError::Refused(format!("{left} ({})", chain(&error)));
            if dumped.is_ok() {
                return Err(left);
            }
            // The returned error says why the dump failed.
            eprintln!("glidefs: {left}");
        }
        dumped
    }

    /// Dumps the device of `export` into `partial` and then FILE, or to standard output.
    async fn export(&self, export: &Export) -> Result<Summary, CliError> {
        let Self { client, args, open, .. } = *self;
        let partial = self.partial.as_deref();
        let (file, device) = export_device(export, false, open)?;
        recheck(client, export).await?;
        let source = Source::of_file(file).map_err(CliError::cannot("read", &device))?;
        let (target, before) = match partial {
            Some(path) => open_partial(path, export.size_bytes, args.resume)?,
            None => {
                let stdout = io::stdout().as_fd().try_clone_to_owned();
                (stdout.map_err(CliError::Output)?.into(), Before::Stream)
            }
        };
        let started = Instant::now();
        let (from, to) = (device.display().to_string(), spoken(&args.file, "standard output"));
        let stop = Arc::clone(self.stop);
        let copied = copied(source, target, export.size_bytes, before, self.output, stop).await;
        let report = copied.map_err(|source| CliError::Copy { from, to, hint: hint(before), source })?;
        if let Some(partial) = partial {
            check_file(&args.file, args.force)?;
            fs::rename(partial, &args.file).map_err(CliError::cannot("create", &args.file))?;
            let parent = args.file.parent().filter(|parent| !parent.as_os_str().is_empty());
            let synced = File::open(parent.unwrap_or(Path::new("."))).and_then(|parent| parent.sync_all());
            synced.map_err(CliError::cannot("sync the folder of", &args.file))?;
        }
        Ok(Summary {
            export: args.name.name.to_string(),
            snapshot: args.snapshot.as_ref().map(ToString::to_string),
            device: device.display().to_string(),
            file: args.file.display().to_string(),
            size_bytes: export.size_bytes,
            report,
            seconds: started.elapsed().as_secs_f64(),
            flushed_sequence_number: None,
        })
    }
}

/// The name of the file until the dump is complete. Refuses to replace anything without being asked to.
fn partial_of(args: &DumpArgs) -> Result<PathBuf, CliError> {
    check_file(&args.file, args.force)?;
    let mut name = args.file.clone().into_os_string();
    name.push(".partial");
    let path = PathBuf::from(name);
    if fs::symlink_metadata(&path).is_ok() && !args.resume && !args.force {
        return Err(CliError::Refused(format!(
            "{} was left by a dump that did not end: use --resume to go on with it, or --force to start anew",
            path.display()
        )));
    }
    Ok(path)
}

/// Refuses a FILE that cannot become the dump.
fn check_file(file: &Path, may_replace: bool) -> Result<(), CliError> {
    let refused = |why: &str| Err(CliError::Refused(format!("{} {why}", file.display())));
    match fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(CliError::cannot("look at", file)(source)),
        Ok(metadata) if !metadata.is_file() => {
            refused("is not a file: give the name of a file, or `-` for standard output")
        }
        Ok(_) if may_replace => Ok(()),
        Ok(_) => refused("exists: use --force to replace it"),
    }
}

/// Opens the file that becomes the dump, `length_bytes` long, and keeps its content with `resume`.
fn open_partial(path: &Path, length_bytes: u64, resume: bool) -> Result<(File, Before), CliError> {
    let cannot = CliError::cannot("write", path);
    let refused = |why: &str| CliError::Refused(format!("{} {why}", path.display()));
    let open = |is_new: bool| {
        let mut options = OpenOptions::new();
        // Only the owner may read the copy of a device, and a link may lead to any file.
        options.mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
        options.read(true).write(true).create_new(is_new).open(path)
    };
    let locked = |file: File| {
        let is_locked = matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock));
        let opened = file.metadata().map_err(&cannot)?;
        // The dump that had the lock may have renamed the file since it was opened here.
        if is_locked || !fs::symlink_metadata(path).is_ok_and(|now| now.ino() == opened.ino()) {
            return Err(refused("is being written by another dump"));
        }
        Ok((file, opened))
    };
    let is_link = |error: &io::Error| error.raw_os_error() == Some(Errno::ELOOP as i32);
    let old = match open(false) {
        Ok(file) => Some(locked(file)?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) if is_link(&error) && resume => return Err(refused("is a link: delete it")),
        Err(error) if is_link(&error) => None,
        Err(error) => return Err(cannot(error)),
    };
    let (file, before) = match old {
        Some((_, old)) if resume && old.uid() != geteuid().as_raw() => {
            return Err(refused("is another user's file: delete it, or use --force to start anew"));
        }
        Some((file, old)) if resume && old.len() > 0 => (file, Before::Something),
        // The old file stays locked until the new one is, so that no other dump takes either for its own.
        _old => {
            match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(cannot(error)),
                _ => {}
            }
            (locked(open(true).map_err(&cannot)?)?.0, Before::Zeroes)
        }
    };
    file.set_len(length_bytes).map_err(&cannot)?;
    Ok((file, before))
}

/// Copies on a thread, so that signals are served meanwhile.
async fn copied(
    mut source: Source,
    mut target: File,
    length_bytes: u64,
    before: Before,
    output: OutputArgs,
    stop: Arc<AtomicBool>,
) -> Result<Report, CopyError> {
    let progress = ProgressLine::new(!output.json);
    let mut next_show = Instant::now();
    let show = move |done_bytes| {
        if next_show <= Instant::now() {
            next_show = Instant::now() + SHOW_INTERVAL;
            progress.show(&format!("{} of {}", bytes(done_bytes), bytes(length_bytes)));
        }
    };
    let copying = move || copy(&mut source, &mut target, length_bytes, before, &stop, show);
    match tokio::task::spawn_blocking(copying).await {
        Ok(copied) => copied,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

/// How a copy that has failed goes on.
fn hint(before: Before) -> &'static str {
    if before == Before::Stream { "" } else { " (the same command with --resume goes on)" }
}

fn check_local(client: &Client) -> Result<(), CliError> {
    if client.is_local() {
        return Ok(());
    }
    Err(CliError::Refused(
        "images are copied through the export's device: run this on the daemon's host, and leave --api out"
            .into(),
    ))
}

/// Opens a block device past the page cache where that is possible; for writing, only if nothing else has it mounted or claimed.
fn open_device(path: &Path, writes: bool) -> io::Result<File> {
    let exclusive = if writes { OFlag::O_EXCL } else { OFlag::empty() };
    let with =
        |flags: OFlag| OpenOptions::new().read(true).write(writes).custom_flags(flags.bits()).open(path);
    match with(exclusive | OFlag::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => with(exclusive),
        opened => opened,
    }
}

/// Opens the device of `export`, and refuses one that is not as large as the export. Returns its path as well.
fn export_device(export: &Export, writes: bool, open: Open<'_>) -> Result<(File, PathBuf), CliError> {
    let name = &export.name;
    let Some(path) = export.device.as_ref().map(PathBuf::from) else {
        let reason = export.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        return Err(CliError::Refused(format!(
            "export {name} has no device, it is {}{reason}: `glidefs export attach {name}` gives it one",
            export.state
        )));
    };
    let shown = path.display();
    let opened = open(&path, writes).and_then(|file| {
        let length_bytes = Source::of_file(file.try_clone()?)?.length_bytes;
        Ok((file, length_bytes.unwrap_or(0)))
    });
    let (file, found_bytes) = opened.map_err(|source| {
        let hint = match source.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EBUSY) => "it is in use: unmount it, or stop what uses it",
            Some(Errno::ENOENT | Errno::ENXIO | Errno::ENODEV) => {
                "run this on the daemon's host, outside of containers"
            }
            Some(Errno::EACCES | Errno::EPERM) => "run this as root on the daemon's host",
            _ => "see the log of the kernel",
        };
        CliError::System { what: format!("cannot open {shown} ({hint})"), source }
    })?;
    if found_bytes != export.size_bytes {
        return Err(CliError::Refused(format!(
            "{shown} has {found_bytes} bytes and the export {}: run this on the daemon's host; after a resize, detach and attach the \
             export",
            export.size_bytes
        )));
    }
    Ok((file, path))
}

/// Refuses an export that has another device by now than in the answer `export`. The device is open: as long as it is, its number goes to
/// no other export.
async fn recheck(client: &Client, export: &Export) -> Result<(), CliError> {
    let name = &export.name;
    let now: Export = client.get(&format!("/v1/exports/{name}")).await?;
    if (now.id, &now.device) == (export.id, &export.device) {
        return Ok(());
    }
    let device = export.device.as_deref().unwrap_or("-");
    Err(CliError::Refused(format!(
        "{device} is not the device of export {name} any more: run the command again"
    )))
}

/// `path` in messages, or `standard` for standard input or output.
fn spoken(path: &Path, standard: &str) -> String {
    if is_standard(path) { standard.into() } else { path.display().to_string() }
}

fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}
