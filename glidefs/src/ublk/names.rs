//! Stable paths of devices: `/dev/glidefs/NAME` is a symlink to the device of the export NAME.
//!
//! The kernel knows no name of a ublk device, so the daemon leaves the name in files, where udev's rules look (`60-glidefs.rules`):
//!
//! ```text
//! /run/glidefs/devices/ublkb7/starting   GLIDEFS_NAME=vm1   from before START_DEV until the next file is there
//! /run/glidefs/devices/ublkb7/4711       GLIDEFS_NAME=vm1   for the disk with the kernel's sequence number 4711
//! /run/glidefs/names/vm1 -> ublkb7       the claim: the one device of this host with the name
//! ```
//!
//! Owns these files, the symlinks where udev makes none, and the removal of symlinks. Does not own the wait for udev
//! (`udev`). Blocks: waits for the lock up to two seconds, `sweep` for each leftover; to be run off the workers. Invariants: the kernel
//! repeats no sequence number, so no file names a later device of the same number; all daemons of a host with one `/run/glidefs` claim
//! names under one lock; of two devices with one name, those of two daemons, the first keeps the name; nothing of an earlier device is
//! left when a device of the same number is started, nor when the kernel may give the number away, also while another process keeps the
//! lock: until then the number is the caller's, and only claims need the lock.

mod udev;

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub use self::udev::Udev;
use super::driver::CLASS_PATH;
use crate::locks::MutexExt;
use crate::router::ExportName;
use crate::router::devices::{DeviceId, PATHS_FOLDER};

/// The key in the files, which the rules of udev know.
const KEY: &str = "GLIDEFS_NAME=";
/// The file of a device which is being started.
const STARTING: &str = "starting";
/// Longest content of a file, bytes.
const RECORD_BYTES_MAX: u64 = 256;
/// How long another daemon may keep the lock, at most.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// How long nobody waits for the lock after a wait in vain.
const LOCK_SILENCE: Duration = Duration::from_mins(1);
const LOCK_POLL: Duration = Duration::from_millis(1);
/// How often a symlink is tried, as udev removes the folder of the paths when the folder is empty.
const SYMLINK_TRIES: usize = 4;

/// Why a device has no stable path.
#[derive(Debug, thiserror::Error)]
pub enum NamesError {
    #[error("{} has the name. When that device is gone, `glidefs export attach` makes the path", .device.path())]
    Taken { device: DeviceId },
    #[error("{} was removed, and may be another device by now", .device.path())]
    Gone { device: DeviceId },
    #[error("another process keeps {} locked", .path.display())]
    Locked { path: PathBuf },
    #[error("{} is not a symlink, and stays: remove the file, then `glidefs export attach`", .path.display())]
    NotASymlink { path: PathBuf },
    #[error("{} is not the device: is /dev the host's?", .path.display())]
    NoNode { path: PathBuf },
    #[error("{what} {} failed", .path.display())]
    System {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A disk which the kernel shows for a live device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The kernel's sequence number, never given again in this boot.
    seq: u64,
    /// Number of the device file, `major:minor`, as sysfs shows the number.
    number: String,
}

/// A disk with its name in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub disk: Disk,
    /// Whether udev could know the name when the disk appeared.
    pub was_announced: bool,
}

/// Who may have a device of a number now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The caller's, which is not in service, or nobody's.
    Caller,
    /// Perhaps the device of another daemon or program.
    Unknown,
}

/// Where the files about names, the paths and the devices are.
#[derive(Clone, Debug)]
pub struct Names {
    run: PathBuf,
    paths: PathBuf,
    dev: PathBuf,
    sys_block: PathBuf,
    sys_class: PathBuf,
    /// How long to wait for the lock.
    patience: Duration,
    /// Held with the lock: the end of the last wait in vain. So the threads of this daemon wait in vain once together.
    vain: Arc<Mutex<Option<Instant>>>,
}

/// The right to change the files about names, until dropped.
#[expect(dead_code, reason = "unlocked when dropped")]
struct Locked<'a>(File, MutexGuard<'a, Option<Instant>>);

impl Names {
    /// Names for steps which are waited for at most `limit`.
    pub fn of_this_host(limit: Duration) -> Self {
        Self {
            run: "/run/glidefs".into(),
            paths: PATHS_FOLDER.into(),
            dev: "/dev".into(),
            sys_block: "/sys/block".into(),
            sys_class: CLASS_PATH.into(),
            patience: LOCK_PATIENCE.min(limit / 4),
            vain: Arc::default(),
        }
    }

    /// Leaves the name of an added device for udev, before the device is started.
    pub fn announce(&self, id: DeviceId, name: &str) -> Result<(), NamesError> {
        let lock = self.lock();
        self.clear_with(lock.as_ref().ok(), id, Some(name), Owner::Caller);
        let lock = lock?;
        self.claim(&lock, id, name)?;
        self.write(id, STARTING, name)
    }

    /// Whether name and path of a live device are as they should be already. Takes no lock.
    pub fn are_kept(&self, id: DeviceId, name: &str) -> bool {
        let Ok(disk) = self.disk(id) else { return false };
        let current = disk.seq.to_string();
        names_in(&self.folder(id)) == [current.as_str()]
            && self.record(id, &current).as_deref() == Some(name)
            && self.holder(name) == Some(id)
            && self.target(name) == Some(id)
            && self.is_node(id, &disk)
    }

    /// Leaves the name of a live device under the sequence number of the disk, in place of all other names for the number.
    pub fn settle(&self, id: DeviceId, name: &str) -> Result<Named, NamesError> {
        // No file may stay for whoever has the number next. Without the lock the file of an unchanged disk stays.
        let lock = self.lock().inspect_err(|_| drop(fs::remove_file(self.folder(id).join(STARTING))))?;
        let disk = self.disk(id).and_then(|disk| self.claim(&lock, id, name).map(|()| disk));
        let disk = disk.inspect_err(|_| self.clear_but(Some(&lock), id, Some(name), &[]))?;
        let current = disk.seq.to_string();
        let was_announced = self.record(id, STARTING).as_deref() == Some(name);
        if self.record(id, &current).as_deref() != Some(name) {
            self.write(id, &current, name)?;
        }
        // Only now: udev looks for this file first, and finds one of the two.
        self.clear_but(Some(&lock), id, None, &[&current]);
        Ok(Named { disk, was_announced })
    }

    /// Points the path to a settled device, unless udev has done so.
    pub fn point(&self, id: DeviceId, name: &str, disk: &Disk) -> Result<(), NamesError> {
        let is_settled = || self.holder(name) == Some(id) && self.disk(id).is_ok_and(|found| found == *disk);
        if self.target(name) == Some(id) && is_settled() && self.is_node(id, disk) {
            return Ok(());
        }
        let _lock = self.lock()?;
        if let Some(device) = self.holder(name).filter(|&device| device != id) {
            return Err(NamesError::Taken { device });
        }
        if !is_settled() {
            return Err(NamesError::Gone { device: id });
        }
        if !self.is_node(id, disk) {
            return Err(NamesError::NoNode { path: self.dev.join(node(id)) });
        }
        let path = self.paths.join(name);
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_symlink()) {
            return Err(NamesError::NotASymlink { path });
        }
        let mut pointed = Ok(());
        for _ in 0..SYMLINK_TRIES {
            pointed = self.replace_symlink(&path, id);
            if pointed.is_ok() {
                break;
            }
        }
        pointed.map_err(|source| NamesError::System { what: "making the symlink", path, source })
    }

    /// Removes names and paths of a device which is gone, or stopped; with an unknown owner those which are certainly not the owner's.
    /// `name` is that of the device, where known: the path goes also when the files are lost.
    pub fn clear(&self, id: DeviceId, name: Option<&str>, owner: Owner) -> Result<(), NamesError> {
        let lock = self.lock();
        if owner == Owner::Caller {
            // A claim that is left without the lock is a dead one.
            self.clear_with(lock.as_ref().ok(), id, name, owner);
            return Ok(());
        }
        self.clear_with(Some(&lock?), id, name, owner);
        Ok(())
    }

    /// Removes the names and paths which devices have left that were removed while no daemon ran. Takes the lock only for leftovers.
    pub fn sweep(&self) -> Result<(), NamesError> {
        for id in names_in(&self.run.join("devices")).iter().filter_map(|name| number(name)) {
            let is_tidy = || names_in(&self.folder(id)).len() == 1 && self.name_of(id).is_some();
            if !self.exists(id) || !is_tidy() {
                let lock = self.lock()?;
                self.clear_with(Some(&lock), id, None, Owner::Unknown);
            }
        }
        let is_dead_claim = |name: &str| self.holder(name).is_none_or(|id| !self.has(id, name));
        self.sweep_folder(&self.run.join("names"), is_dead_claim)?;
        self.sweep_folder(&self.paths, |name| {
            // A device without a file may be named by other rules: the path is left alone.
            let is_stale = |id| !self.exists(id) || (self.name_of(id).is_some() && !self.has(id, name));
            self.target(name).is_some_and(is_stale)
        })
    }

    /// Removes the files of a folder which are leftovers, also under the lock.
    fn sweep_folder(&self, folder: &Path, is_leftover: impl Fn(&str) -> bool) -> Result<(), NamesError> {
        for name in names_in(folder).into_iter().filter(|name| is_leftover(name)) {
            let _lock = self.lock()?;
            if is_leftover(&name) {
                let _ = fs::remove_file(folder.join(name));
            }
        }
        Ok(())
    }

    fn lock(&self) -> Result<Locked<'_>, NamesError> {
        let mut vain = self.vain.lock_whole();
        let path = self.run.join("devices");
        let failed = |what, path: &Path, source| NamesError::System { what, path: path.into(), source };
        // Nobody but root may open the file of the lock, nor learn the names.
        for folder in [&path, &self.run.join("names")] {
            make_folder(folder, 0o700).map_err(|source| failed("making", folder, source))?;
        }
        let file = File::open(&path).map_err(|source| failed("opening", &path, source))?;
        let waits = vain.is_none_or(|end| end.elapsed() >= LOCK_SILENCE);
        let deadline = Instant::now() + self.patience;
        loop {
            match file.try_lock() {
                Ok(()) => {
                    *vain = None;
                    return Ok(Locked(file, vain));
                }
                Err(TryLockError::WouldBlock) if waits && Instant::now() < deadline => {
                    std::thread::sleep(LOCK_POLL);
                }
                Err(TryLockError::WouldBlock) => {
                    if waits {
                        *vain = Some(Instant::now());
                    }
                    return Err(NamesError::Locked { path });
                }
                Err(TryLockError::Error(source)) => return Err(failed("locking", &path, source)),
            }
        }
    }

    /// Takes the name for a device, unless another device has the name.
    fn claim(&self, _lock: &Locked, id: DeviceId, name: &str) -> Result<(), NamesError> {
        match self.holder(name) {
            Some(holder) if holder == id => return Ok(()),
            Some(device) if self.has(device, name) => return Err(NamesError::Taken { device }),
            _ => {}
        }
        let path = self.run.join("names").join(name);
        let claimed = remove_if_there(&path).and_then(|()| symlink(node(id), &path));
        claimed.map_err(|source| NamesError::System { what: "writing", path, source })
    }

    fn clear_with(&self, lock: Option<&Locked>, id: DeviceId, name: Option<&str>, owner: Owner) {
        let current = self.disk(id).map(|disk| disk.seq.to_string()).unwrap_or_default();
        match owner {
            Owner::Caller => self.clear_but(lock, id, name, &[]),
            Owner::Unknown if self.exists(id) => self.clear_but(lock, id, name, &[STARTING, &current]),
            Owner::Unknown => self.clear_but(lock, id, name, &[&current]),
        }
    }

    /// Removes the files of a number except `kept`, with the paths, and under the lock the claims, of names which no kept file has: those
    /// in the files, and `name`.
    fn clear_but(&self, lock: Option<&Locked>, id: DeviceId, name: Option<&str>, kept: &[&str]) {
        let folder = self.folder(id);
        let kept_names: Vec<_> = kept.iter().filter_map(|file| self.record(id, file)).collect();
        let files = || names_in(&folder).into_iter().filter(|file| !kept.contains(&file.as_str()));
        let names = files().filter_map(|file| self.record(id, &file)).chain(name.map(str::to_owned));
        for name in names.filter(|name| !kept_names.contains(name)) {
            if self.target(&name) == Some(id) {
                let _ = fs::remove_file(self.paths.join(&name));
            }
            if lock.is_some() && self.holder(&name) == Some(id) {
                let _ = fs::remove_file(self.run.join("names").join(&name));
            }
        }
        for file in files() {
            let _ = fs::remove_file(folder.join(file));
        }
        // Fails, as wanted, while there is a file.
        let _ = fs::remove_dir(folder);
    }

    fn write(&self, id: DeviceId, file: &str, name: &str) -> Result<(), NamesError> {
        let (folder, path) = (self.folder(id), self.folder(id).join(file));
        let new = folder.join("new");
        let written = fs::create_dir_all(&folder)
            .and_then(|()| fs::write(&new, format!("{KEY}{name}\n")))
            .and_then(|()| fs::rename(&new, &path));
        written.map_err(|source| NamesError::System { what: "writing", path, source })
    }

    /// The name in a file of a number.
    fn record(&self, id: DeviceId, file: &str) -> Option<String> {
        let mut text = String::new();
        let opened = File::open(self.folder(id).join(file)).ok()?;
        opened.take(RECORD_BYTES_MAX).read_to_string(&mut text).ok()?;
        let name = text.strip_prefix(KEY)?.strip_suffix('\n')?;
        ExportName::new(name).ok().map(|name| name.as_str().to_owned())
    }

    /// The name of the disk which has the number now.
    fn name_of(&self, id: DeviceId) -> Option<String> {
        self.record(id, &self.disk(id).ok()?.seq.to_string())
    }

    /// Whether a device which exists has the name, or gets the name with its start.
    fn has(&self, id: DeviceId, name: &str) -> bool {
        let is_starting = || self.exists(id) && self.record(id, STARTING).as_deref() == Some(name);
        self.name_of(id).as_deref() == Some(name) || is_starting()
    }

    /// The device with the claim on the name.
    fn holder(&self, name: &str) -> Option<DeviceId> {
        number(fs::read_link(self.run.join("names").join(name)).ok()?.to_str()?)
    }

    /// The device to which the path of the name leads.
    fn target(&self, name: &str) -> Option<DeviceId> {
        let target = fs::read_link(self.paths.join(name)).ok()?;
        let target = target.to_str()?;
        number(target.strip_prefix("../").or_else(|| target.strip_prefix("/dev/"))?)
    }

    /// Whether the device file is that of the disk.
    fn is_node(&self, id: DeviceId, disk: &Disk) -> bool {
        let shown = |rdev| format!("{}:{}", libc::major(rdev), libc::minor(rdev));
        fs::metadata(self.dev.join(node(id))).is_ok_and(|found| shown(found.rdev()) == disk.number)
    }

    fn replace_symlink(&self, path: &Path, id: DeviceId) -> io::Result<()> {
        make_folder(&self.paths, 0o755)?;
        // No name of an export begins with a dot.
        let new = self.paths.join(".new");
        remove_if_there(&new)?;
        symlink(format!("../{}", node(id)), &new)?;
        fs::rename(new, path)
    }

    fn disk(&self, id: DeviceId) -> Result<Disk, NamesError> {
        let read = |attribute| {
            let path = self.sys_block.join(node(id)).join(attribute);
            let text = fs::read_to_string(&path).map(|text| text.trim().to_owned());
            text.map_err(|source| NamesError::System { what: "reading", path, source })
        };
        let seq = read("diskseq")?;
        let seq = seq.parse().map_err(|_| NamesError::System {
            what: "reading",
            path: self.sys_block.join(node(id)).join("diskseq"),
            source: io::ErrorKind::InvalidData.into(),
        })?;
        Ok(Disk { seq, number: read("dev")? })
    }

    fn exists(&self, id: DeviceId) -> bool {
        self.sys_class.join(format!("ublkc{}", id.0)).exists()
    }

    fn folder(&self, id: DeviceId) -> PathBuf {
        self.run.join("devices").join(node(id))
    }
}

fn node(id: DeviceId) -> String {
    format!("ublkb{}", id.0)
}

fn number(node: &str) -> Option<DeviceId> {
    node.strip_prefix("ublkb")?.parse().ok().map(DeviceId)
}

fn names_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// Makes a folder with this mode, whatever the umask and the mode of before.
fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|found| found.is_dir() && found.mode() & 0o777 == mode) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests;
