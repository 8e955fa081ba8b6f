//! The directory of the cache, its file system, its disk, and the catalog there.
//!
//! Does not own the checks of the catalog (`router`). Invariant: appends are measured in a locked directory of their own inside the
//! cache's, so that neither a daemon that starts nor another doctor meets the file; one that a killed command left is used and removed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::statfs::{self, statfs};
use nix::sys::statvfs::statvfs;
use uuid::Uuid;

use super::daemon::Host;
use super::{Finding, Verdict, failure, for_root, note, ok, warning};
use crate::config::Config;
use crate::observe::chain;
use crate::router::{Catalog, CatalogGlance};
use crate::ublk::DeviceState;
use crate::units::FRAME_BYTES;
use crate::worker::cpus::node_of;
use crate::worker::engine::Engine;

/// A FLUSH that takes longer than this is worth a note.
const SYNC_NOTED: Duration = Duration::from_millis(5);
/// A FLUSH that takes longer than this makes databases slow.
const SYNC_SLOW: Duration = Duration::from_millis(20);
/// Bytes of an append: a header and eight writes of 4 KiB.
const APPEND_BYTES: usize = 9 * FRAME_BYTES;
const APPENDS: usize = 25;
/// A disk whose appends take longer than this altogether is not measured to the end.
const MEASUREMENT_MAX: Duration = Duration::from_secs(2);
/// Appends directly to the disk may take longer than those to the page cache by this factor.
const LATER: f64 = 1.05;
/// Devices below each other that are followed: more than any stack of devices has.
const DEPTH_MAX: usize = 16;

/// Directory, file system, appends, space and disk.
pub(super) fn check(host: &Host) -> Vec<Finding> {
    let (config, path) = (&host.config, &host.config.cache.dir);
    let found = match directory(path, host.is_root) {
        Ok(found) => found.named("cache directory"),
        Err(unusable) => return vec![unusable.named("cache directory")],
    };
    let (buffered, direct) = measure(path);
    let (devices, rotates) = disk_of(path);
    let is_ours = devices.iter().any(|device| host.has_device(&format!("/dev/{device}")));
    let wants_direct = config.cache.engine == Engine::Direct;
    let workers: Vec<u64> = config.worker_cpus.iter().filter_map(|&cpu| node_of(cpu)).collect();
    vec![
        found,
        file_system(&type_of(path)).named("cache file system"),
        engine(&buffered, &direct, wants_direct, host.is_root).named("cache engine"),
        past_the_page_cache(&direct).named("cache O_DIRECT"),
        sync(&buffered).named("cache sync"),
        space(room(path), wanted_bytes(config)).named("cache space"),
        disk(&devices, rotates, is_ours).named("cache disk"),
        numa(&workers, devices.iter().find_map(|device| node_of_disk(device))).named("NUMA"),
    ]
}

/// The finding about the directory; `Err` if there is nothing more to see.
fn directory(path: &Path, is_root: bool) -> Result<Finding, Finding> {
    const WHY: &str = "the daemon does not start without the directory";
    let mode = fs::metadata(path).and_then(|found| fs::read_dir(path).map(|_| found.permissions().mode()));
    let path = path.display();
    let error = match mode {
        Ok(mode) if mode & 0o077 != 0 => {
            return Ok(note(format!("{path} has mode {:04o}", mode & 0o7777))
                .why("other users of this host may look at the files with the data of all exports")
                .mend(format!("chmod 700 {path}")));
        }
        Ok(_) => return Ok(ok(path.to_string())),
        Err(error) => error,
    };
    Err(match error.kind() {
        io::ErrorKind::NotFound => failure(format!("there is no {path}")).why(WHY).mend(format!(
            "install -d -m 700 {path}, on a local SSD; or mount its file system; or set [cache] dir"
        )),
        io::ErrorKind::NotADirectory => {
            failure(format!("{path} is no directory")).why(WHY).mend("set [cache] dir to a directory")
        }
        io::ErrorKind::PermissionDenied if !is_root => for_root(format!("{path}: {error}")),
        _ => {
            failure(format!("{path}: {error}")).why(WHY).mend("dmesg; then mend the disk or the file system")
        }
    })
}

/// The name of the file system of `path`.
fn type_of(path: &Path) -> String {
    let known = [
        (statfs::EXT4_SUPER_MAGIC, "ext4"),
        (statfs::XFS_SUPER_MAGIC, "XFS"),
        (statfs::TMPFS_MAGIC, "tmpfs"),
        (statfs::BTRFS_SUPER_MAGIC, "btrfs"),
        (statfs::OVERLAYFS_SUPER_MAGIC, "overlayfs"),
        (statfs::NFS_SUPER_MAGIC, "NFS"),
    ];
    let Ok(kind) = statfs(path).map(|figures| figures.filesystem_type()) else { return "unknown".into() };
    let name = known.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| (*name).to_owned());
    name.unwrap_or_else(|| format!("file system {:#x}", kind.0))
}

fn file_system(name: &str) -> Finding {
    let unfit = match name {
        "XFS" | "ext4" => return ok(name),
        "tmpfs" => "acknowledged data that is not in the store is gone when the host stops",
        "overlayfs" => "the directory is a layer of a container, and is removed with the container",
        "NFS" => "every write waits for the network, and a lock of the directory may not hold",
        _ => {
            return note(name)
                .why("the cache was made for XFS and ext4, and tried there; copy-on-write takes space and time for each rewrite")
                .mend("mkfs.xfs on a local SSD, and set [cache] dir to a directory there");
        }
    };
    warning(name).why(unfit).mend("set [cache] dir to a directory with XFS or ext4 on a local SSD")
}

/// Median times of an append, and of an append with a sync.
type Measured = io::Result<(Duration, Duration)>;

/// Measures appends through the page cache, and directly to the disk.
fn measure(directory: &Path) -> (Measured, Measured) {
    let inside = directory.join("doctor.tmp");
    // The lock lasts as long as the file is open.
    let _locked = match make_and_lock(&inside) {
        Ok(locked) => locked,
        Err(error) => return (Err(error.kind().into()), Err(error)),
    };
    let measured = (append(&inside, 0), append(&inside, libc::O_DIRECT));
    // A directory that stays is used by the next run.
    let _ = fs::remove_dir(&inside);
    measured
}

fn make_and_lock(directory: &Path) -> io::Result<File> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let file = File::open(directory)?;
    file.try_lock()?;
    Ok(file)
}

/// Appends to a file like a segment's, which is allocated and written once.
fn append(directory: &Path, flags: i32) -> Measured {
    let path = directory.join("appends.tmp");
    let file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&path)?;
    let appender = OpenOptions::new().write(true).custom_flags(flags).open(&path);
    fs::remove_file(&path)?;
    let appender = appender?;
    file.write_all_at(&vec![0; APPENDS * APPEND_BYTES], 0)?;
    file.sync_all()?;
    let memory = vec![0x5a; APPEND_BYTES + FRAME_BYTES];
    let aligned = &memory[memory.as_ptr().align_offset(FRAME_BYTES)..][..APPEND_BYTES];
    let began = Instant::now();
    let (mut appends, mut synced) = (Vec::new(), Vec::new());
    for number in 0..APPENDS {
        if began.elapsed() > MEASUREMENT_MAX {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the appends took more than 2 s"));
        }
        let began = Instant::now();
        appender.write_all_at(aligned, (number * APPEND_BYTES) as u64)?;
        appends.push(began.elapsed());
        appender.sync_data()?;
        synced.push(began.elapsed());
    }
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[APPENDS / 2]
    };
    Ok((median(appends), median(synced)))
}

fn engine(buffered: &Measured, direct: &Measured, wants_direct: bool, is_root: bool) -> Finding {
    let base = match buffered {
        Ok(times) => times,
        Err(error) => {
            let found = format!("not measured: {error}");
            return match error.kind() {
                io::ErrorKind::TimedOut => note(found)
                    .why("the daemon starts, and appends through the page cache; FLUSHes take seconds")
                    .mend("iostat -x shows whether others use the disk"),
                io::ErrorKind::PermissionDenied if !is_root => for_root(found),
                // Another doctor had the lock, or has just removed the directory.
                io::ErrorKind::WouldBlock | io::ErrorKind::NotFound => {
                    note(found).why("another glidefs doctor measures").mend("glidefs doctor, a moment later")
                }
                _ => failure(found)
                    .why("the daemon cannot append to the log there")
                    .mend("make room, mend the file system, or mount it writable"),
            };
        }
    };
    match direct {
        Ok(direct) => {
            let likes_direct = direct.0.as_secs_f64() <= base.0.as_secs_f64() * LATER && direct.1 < base.1;
            let liked = if likes_direct { "direct" } else { "buffered" };
            let times =
                format!("an append takes {} buffered and {} direct", millis(base.0), millis(direct.0));
            ok(format!("{times}: this disk likes {liked}"))
        }
        Err(error) if wants_direct => failure(format!("appends past the page cache: {error}"))
            .why("the daemon does not start with this cache.engine")
            .mend("remove [cache] engine from the configuration"),
        Err(_) => ok("buffered"),
    }
}

fn past_the_page_cache(direct: &Measured) -> Finding {
    match direct {
        Ok((_, synced)) => ok(format!("works; {} an append with a sync", millis(*synced))),
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            warning(error.to_string())
                .why("a write whose FLUSH is expected cannot go past the page cache, so each FLUSH is a sync of its own")
                .mend("set [cache] dir to a directory with XFS or ext4 on a local SSD")
        }
        Err(_) => unmeasured(),
    }
}

fn unmeasured() -> Finding {
    note("not measured").why("nothing could be written, or not in time").mend("see cache engine")
}

fn sync(buffered: &Measured) -> Finding {
    let Ok((_, time)) = buffered else { return unmeasured() };
    let found = format!("{} an append with a sync", millis(*time));
    let finding = match *time {
        time if time > SYNC_SLOW => warning(found),
        time if time > SYNC_NOTED => note(found),
        _ => return ok(found),
    };
    finding.why("each FLUSH of a guest takes this time at least").mend(
        "use a drive with power-loss protection, which syncs in microseconds; iostat -x shows whether others use the disk",
    )
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

/// Free space for others than root and the space of the cache, bytes.
fn room(directory: &Path) -> u64 {
    let Ok(figures) = statvfs(directory) else { return 0 };
    let free = figures.blocks_available().saturating_mul(figures.fragment_size());
    let taken = |directory: &Path| -> u64 {
        let entries = fs::read_dir(directory).into_iter().flatten();
        let files = entries.filter_map(|entry| entry.ok()?.metadata().ok()).filter(fs::Metadata::is_file);
        files.map(|file| file.blocks().saturating_mul(512)).sum()
    };
    free.saturating_add(taken(directory)).saturating_add(taken(&directory.join("segments")))
}

/// The sizes of the configuration, bytes.
fn wanted_bytes(config: &Config) -> u64 {
    let clean = if config.store.url.is_some() { config.cache.clean_size.0 } else { 0 };
    config.cache.size.0.saturating_add(clean)
}

fn space(has: u64, wanted: u64) -> Finding {
    let rounded = |bytes: u64| match bytes >> 30 {
        10.. => format!("{} GiB", bytes >> 30),
        _ => format!("{} MiB", bytes >> 20),
    };
    let found = format!("room for {}, and the sizes add up to {}", rounded(has), rounded(wanted));
    let finding = if has < wanted {
        warning(found).why("the log cannot grow to its size: when the file system is full, writes wait as if the cache were full")
    } else if has < wanted.saturating_add(wanted / 20) {
        note(found).why("the catalog and the checkpoint need room as well: 5 % beyond the sizes")
    } else {
        return ok(found);
    };
    finding.mend("make room, move the cache to a larger file system, or lower [cache] size or clean_size")
}

fn disk(devices: &[String], rotates: bool, is_ours: bool) -> Finding {
    let found = devices.join(" on ");
    if is_ours {
        return failure(found)
            .why("the cache lies on a device of one of its own exports: the daemon waits for itself")
            .mend("set [cache] dir to a directory on a local disk");
    }
    if devices.is_empty() {
        return note("not known")
            .why("the kernel shows no block device under the file system, so nothing is known about the disk")
            .mend("df the directory, and look at the disk by hand");
    }
    if rotates {
        return note(format!("{found}, which says that it rotates"))
            .why("a disk that rotates has a hundredth of the operations a second of an SSD; a virtual disk may say so without rotating")
            .mend("set [cache] dir to a directory on a local SSD");
    }
    ok(found)
}

/// The block devices under the file system of `path`, from the file system's down, and whether the last one rotates.
fn disk_of(path: &Path) -> (Vec<String>, bool) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut devices = Vec::new();
    if let Some(first) = number_of(path).and_then(|number| device_of(Path::new("/sys"), &number, &mounts)) {
        follow(Path::new("/sys"), &first, &mounts, &mut devices);
    }
    let rotates =
        devices.last().and_then(|device| attribute(device, "queue/rotational")).as_deref() == Some("1");
    (devices, rotates)
}

/// The number of the device that `path` lies on.
fn number_of(path: &Path) -> Option<String> {
    let device = fs::metadata(path).ok()?.dev();
    Some(format!("{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device)))
}

/// The name of the block device of the file system with `number`. A file system over several devices has a number of its own, and is
/// known by the source of its mount.
fn device_of(sys: &Path, number: &str, mounts: &str) -> Option<String> {
    if let Ok(link) = fs::read_link(sys.join("dev/block").join(number)) {
        return Some(link.file_name()?.to_str()?.to_owned());
    }
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(number))?;
    let source = mount.split_once(" - ")?.1.split(' ').nth(1)?;
    let device = fs::canonicalize(source).ok()?;
    device.strip_prefix("/dev").ok()?;
    Some(device.file_name()?.to_str()?.to_owned())
}

/// Adds `device` and all devices below: the disk of a partition, the parts of a device of LVM, MD or device mapper, and the disk of
/// the file behind a loop device.
fn follow(sys: &Path, device: &str, mounts: &str, devices: &mut Vec<String>) {
    if devices.len() >= DEPTH_MAX || devices.iter().any(|known| known == device) {
        return;
    }
    devices.push(device.to_owned());
    let folder = sys.join("class/block").join(device);
    let mut below = Vec::new();
    if folder.join("partition").exists() {
        let disk =
            fs::canonicalize(&folder).ok().and_then(|path| Some(path.parent()?.file_name()?.to_owned()));
        below.extend(disk);
    }
    let parts = fs::read_dir(folder.join("slaves")).into_iter().flatten();
    below.extend(parts.flatten().map(|entry| entry.file_name()));
    if let Ok(file) = fs::read_to_string(folder.join("loop/backing_file")) {
        let number = number_of(Path::new(file.trim()));
        below.extend(number.and_then(|number| device_of(sys, &number, mounts)).map(Into::into));
    }
    for name in below.iter().filter_map(|name| name.to_str()) {
        follow(sys, name, mounts, devices);
    }
}

fn attribute(device: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new("/sys/class/block").join(device).join(name)).ok()?;
    Some(text.trim().to_owned())
}

/// The NUMA node of the controller of `device`; `None` where the kernel knows none.
fn node_of_disk(device: &str) -> Option<u64> {
    ["device/numa_node", "device/device/numa_node"]
        .iter()
        .find_map(|name| attribute(device, name)?.parse().ok())
}

/// `workers`: the node of each worker, where the kernel knows nodes.
fn numa(workers: &[u64], disk: Option<u64>) -> Finding {
    let mut nodes = workers.to_vec();
    nodes.sort_unstable();
    let counts = nodes.chunk_by(|a, b| a == b).map(|on| format!("{} on node {}", on.len(), on[0]));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let found = if nodes.is_empty() { "no nodes".into() } else { format!("workers: {counts}") };
    let Some(disk) = disk else { return ok(found) };
    let found = format!("{found}; the disk of the cache is on node {disk}");
    if nodes.is_empty() || nodes.contains(&disk) {
        return ok(found);
    }
    note(found)
        .why("every append and every read of the log crosses the link between the nodes")
        .mend(format!("[workers] cpus = the list in /sys/devices/system/node/node{disk}/cpulist"))
}

/// The catalog of exports, beside the store of the configuration.
pub(super) fn catalog(host: &Host) -> Vec<Finding> {
    let is_served = !host.devices(DeviceState::Live).is_empty();
    let glance = match glance(&host.config.cache.dir) {
        Ok(glance) => glance,
        // The copy may be torn by a daemon whose locks are not seen here.
        Err(finding) if is_served => return vec![finding.at_most(Verdict::Warning).named("catalog")],
        Err(finding) => return vec![finding.named("catalog")],
    };
    vec![beside_store(&glance, host.config.store.url.is_some(), host.store_id).named("catalog")]
}

/// A look at the catalog in `directory`; `Err`: the finding where there is nothing to compare.
fn glance(directory: &Path) -> Result<CatalogGlance, Finding> {
    let path = directory.join("catalog.redb");
    match File::open(&path).map_err(|error| error.kind()) {
        Err(io::ErrorKind::NotFound) => return Err(ok("none yet")),
        Err(io::ErrorKind::PermissionDenied) => return Err(for_root("not known")),
        _ => {}
    }
    // A daemon takes both locks before it writes, so a copy is whole if there is no lock behind it.
    let glance = Catalog::glance(&path);
    if [&path, &directory.join("LOCK")].into_iter().any(|file| is_locked(file)) {
        return Err(ok("in use by the daemon"));
    }
    glance.map_err(|error| {
        failure(chain(&error))
            .why("the daemon does not start")
            .mend("docs/operations.md, \"The daemon does not start\"")
    })
}

/// Whether some process holds a lock of `file`. Nothing is locked to find out, so no daemon fails to start.
fn is_locked(file: &Path) -> bool {
    let Ok(found) = fs::metadata(file) else { return false };
    // The last part is the inode; some file systems have another device number there than in their metadata.
    let inode = format!(":{}", found.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.split_whitespace().any(|field| field.ends_with(&inode))
}

fn beside_store(glance: &CatalogGlance, has_store: bool, store_id: Option<Uuid>) -> Finding {
    let found = format!("{} exports, {} of these in a store", glance.exports, glance.stored_exports);
    if glance.stored_exports > 0 && !has_store {
        return failure(format!("{found}; [store] url is not set"))
            .why("the daemon does not start")
            .mend("set [store] url to the place of the store with the data of the exports");
    }
    match (glance.store_id, store_id) {
        (Some(known), Some(other)) if known != other => {
            failure(format!("{found}: in store {known}, and [store] url has store {other}"))
                .why("nothing is written back or fetched, and exports wait at the start until their store confirms them")
                .mend("set [store] url to the place of the first one, or give the exports up with another [cache] dir")
        }
        _ => ok(found),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::Verdict::{Failure, Note, Ok, Warning};
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "what was measured, as the checks take it")]
    fn times(append_micros: u64, sync_micros: u64) -> Measured {
        Result::Ok((Duration::from_micros(append_micros), Duration::from_micros(sync_micros)))
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_a_failure_and_one_open_to_others_a_note() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(directory(&folder.path().join("none"), true).unwrap_err().verdict, Failure);
        assert_eq!(directory(&file, true).unwrap_err().verdict, Failure);
        for (mode, expected) in [(0o700, Ok), (0o755, Note)] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(directory(folder.path(), true).unwrap().verdict, expected);
        }
    }

    #[test]
    fn a_file_system_without_a_local_disk_is_a_warning_and_an_untried_one_a_note() {
        let verdict = |name| file_system(name).verdict;
        assert_eq!(["tmpfs", "NFS", "overlayfs"].map(verdict), [Warning; 3]);
        assert_eq!(["btrfs", "file system 0x2fc12fc1", "ext4", "XFS"].map(verdict), [Note, Note, Ok, Ok]);
        assert_eq!(type_of(Path::new("/proc")), "file system 0x9fa0");
    }

    #[test]
    fn the_engine_that_the_disk_likes_is_named() {
        let liked = |buffered, direct| engine(&buffered, &direct, false, true).found;
        assert!(liked(times(5, 900), times(500, 700)).ends_with("likes buffered"));
        assert!(liked(times(16, 54), times(25, 26)).ends_with("likes buffered"));
        assert!(liked(times(10, 40), times(8, 20)).ends_with("likes direct"));
    }

    #[test]
    fn a_directory_that_takes_no_append_is_a_failure_and_one_not_measured_for_another_reason_a_note() {
        let verdicts = |kind: io::ErrorKind, is_root| {
            let refused = || Err(kind.into());
            let of_engine = engine(&refused(), &refused(), false, is_root).verdict;
            assert_eq!(
                [past_the_page_cache(&Err(io::ErrorKind::Other.into())), sync(&refused())].map(|f| f.verdict),
                [Note; 2]
            );
            of_engine
        };
        for kind in
            [io::ErrorKind::StorageFull, io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::PermissionDenied]
        {
            assert_eq!(verdicts(kind, true), Failure);
        }
        assert_eq!(verdicts(io::ErrorKind::PermissionDenied, false), Note);
        assert_eq!(verdicts(io::ErrorKind::TimedOut, true), Note, "the daemon starts");
        assert_eq!(verdicts(io::ErrorKind::WouldBlock, true), Note, "another doctor");
    }

    #[test]
    fn writes_that_cannot_go_past_the_page_cache_are_a_warning_and_a_failure_where_they_are_wanted() {
        let refused = || Err(io::ErrorKind::InvalidInput.into());
        assert_eq!(past_the_page_cache(&refused()).verdict, Warning);
        let verdict = |wants_direct| engine(&times(5, 9), &refused(), wants_direct, true).verdict;
        assert_eq!([false, true].map(verdict), [Ok, Failure]);
    }

    #[test]
    fn a_slow_sync_is_a_note_and_a_very_slow_one_a_warning() {
        let verdict = |millis: u64| sync(&times(5, millis * 1000)).verdict;
        assert_eq!([5, 6, 21].map(verdict), [Ok, Note, Warning]);
    }

    #[test]
    fn a_file_system_smaller_than_the_cache_is_a_warning_and_one_without_reserve_a_note() {
        let verdict = |has: u64| space(has << 30, 20 << 30).verdict;
        assert_eq!([19, 20, 21].map(verdict), [Warning, Note, Ok]);
    }

    #[test]
    fn a_cache_on_a_device_of_its_own_is_a_failure_and_one_on_a_disk_that_rotates_a_note() {
        let verdict = |devices: &[&str], rotates, is_ours| {
            let devices: Vec<String> = devices.iter().map(|&name| name.into()).collect();
            disk(&devices, rotates, is_ours).verdict
        };
        assert_eq!(verdict(&["loop0", "ublkb3"], false, true), Failure);
        assert_eq!(verdict(&["ublkb3"], false, false), Ok, "another server's");
        assert_eq!(verdict(&["sda1", "sda"], true, false), Note);
        assert_eq!(verdict(&[], false, false), Note);
    }

    #[test]
    fn a_disk_on_a_node_without_workers_is_a_note() {
        let verdict = |workers: &[u64], disk| numa(workers, disk).verdict;
        assert_eq!([Some(2), Some(1), None].map(|disk| verdict(&[0, 0, 1], disk)), [Note, Ok, Ok]);
        assert_eq!(verdict(&[], Some(2)), Ok);
        assert!(numa(&[0, 1, 0], None).found.starts_with("workers: 2 on node 0, 1 on node 1"));
    }

    #[test]
    fn the_directory_is_measured_and_left_as_it_was_and_not_beside_another_measurement() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("catalog.redb"), [1; 8192]).unwrap();
        // A command that was killed has left its directory.
        fs::create_dir(directory.path().join("doctor.tmp")).unwrap();
        let (buffered, _) = measure(directory.path());
        assert!(buffered.unwrap().1 > Duration::ZERO);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(room(directory.path()) > 8192);
        let _other = make_and_lock(&directory.path().join("doctor.tmp")).unwrap();
        assert_eq!(measure(directory.path()).0.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    /// A `/sys` with a partition on a ublk device, under LVM.
    #[test]
    fn devices_are_followed_down_to_the_disk() {
        let sys = tempfile::tempdir().unwrap();
        let at = |path: &str| sys.path().join(path);
        for folder in ["devices/ublkb3/ublkb3p1", "devices/dm-0/slaves/ublkb3p1", "class/block", "dev/block"]
        {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("devices/ublkb3/ublkb3p1/partition"), "1\n").unwrap();
        for (name, folder) in [("dm-0", "dm-0"), ("ublkb3p1", "ublkb3/ublkb3p1"), ("ublkb3", "ublkb3")] {
            symlink(at("devices").join(folder), at("class/block").join(name)).unwrap();
        }
        symlink("../../devices/dm-0", at("dev/block/253:0")).unwrap();
        assert_eq!(device_of(sys.path(), "253:0", ""), Some("dm-0".into()));
        let mut devices = Vec::new();
        follow(sys.path(), "dm-0", "", &mut devices);
        assert_eq!(devices, ["dm-0", "ublkb3p1", "ublkb3"]);
    }

    #[test]
    fn a_file_system_over_several_devices_is_found_by_its_mount() {
        let sys = tempfile::tempdir().unwrap();
        let mounts = "31 22 0:77 / /data rw - btrfs /dev/null rw\n32 22 0:78 / /t rw - tmpfs tmpfs rw\n";
        assert_eq!(device_of(sys.path(), "0:77", mounts), Some("null".into()));
        assert_eq!(device_of(sys.path(), "0:78", mounts), None);
        assert_eq!(device_of(sys.path(), "0:79", mounts), None);
    }

    #[test]
    fn a_catalog_is_read_without_being_opened_and_not_judged_while_somebody_has_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalog.redb");
        let without_glance = || glance(folder.path()).unwrap_err();
        assert_eq!(without_glance().found, "none yet");
        let open = Catalog::open(&path).unwrap();
        assert_eq!(without_glance().found, "in use by the daemon");
        drop(open);
        assert_eq!(glance(folder.path()).unwrap().exports, 0);
        fs::write(&path, "nonsense").unwrap();
        for (mut host, expected) in [(Host::example(), Failure), (Host::with_served_device(), Warning)] {
            host.config.cache.dir = folder.path().into();
            assert_eq!(catalog(&host)[0].verdict, expected);
        }
        let lock = File::create(folder.path().join("LOCK")).unwrap();
        lock.lock().unwrap();
        assert_eq!(without_glance().verdict, Ok, "a daemon is starting");
    }

    #[test]
    fn exports_of_another_store_or_of_none_are_a_failure() {
        let [store, other] = [1, 2].map(|id| Some(Uuid::from_u128(id)));
        let glance = |stored_exports, store_id| CatalogGlance { exports: 3, stored_exports, store_id };
        let verdict = |has_store, found| beside_store(&glance(2, store), has_store, found).verdict;
        assert_eq!([verdict(true, store), verdict(true, None)], [Ok, Ok], "the store may be away");
        assert_eq!([verdict(false, None), verdict(true, other)], [Failure, Failure]);
        assert_eq!(beside_store(&glance(0, None), false, None).verdict, Ok);
    }
}
