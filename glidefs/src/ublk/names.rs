//! Stable paths of devices: udev makes `/dev/glidefs/NAME`, a symlink to the device of the export NAME.
//!
//! The kernel knows no name of a ublk device, so the daemon leaves the name in a file, where udev's rules look (`60-glidefs.rules`):
//!
//! ```text
//! /run/glidefs/names/ublkb7   GLIDEFS_NAME=vm1   from before START_DEV until udev has the name in its database
//! ```
//!
//! Owns these files and the wait for udev. Does not own the symlinks: without udev there are none. Invariants: a file is written for a
//! device of the caller only, and goes before the kernel gives the number away; of two devices with one name, those of two daemons, the
//! first keeps the path; a udev that is stuck or without the rules costs all devices [`PATIENCE`], and then nothing for [`SILENCE`]; one
//! that is slow makes them wait as long as it makes paths.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::driver::CLASS_PATH;
use crate::locks::MutexExt;
use crate::router::devices::{DeviceId, PATHS_FOLDER};

/// How long udev may take for a device, from the last path that it made.
const PATIENCE: Duration = Duration::from_secs(5);
/// No device waits for this time after a wait without success.
const SILENCE: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(5);
/// The keys in the file and in udev's database, as the rules write them.
const NAME_KEY: &str = "GLIDEFS_NAME=";
const SEQ_KEY: &str = "E:GLIDEFS_DISKSEQ=";

/// The names that are left for udev, and where udev shows what it has done.
#[derive(Debug)]
pub struct Names {
    run: PathBuf,
    paths: PathBuf,
    udev: PathBuf,
    sys_block: PathBuf,
    sys_class: PathBuf,
    /// When the last wait without success ended.
    silent_since: Mutex<Option<Instant>>,
    /// When udev was last seen to have made a path that was waited for.
    made_at: Mutex<Option<Instant>>,
}

impl Names {
    /// The names of this host.
    pub fn of_this_host() -> Self {
        Self {
            run: "/run/glidefs/names".into(),
            paths: PATHS_FOLDER.into(),
            udev: "/run/udev".into(),
            sys_block: "/sys/block".into(),
            sys_class: CLASS_PATH.into(),
            silent_since: Mutex::default(),
            made_at: Mutex::default(),
        }
    }

    /// Leaves the name of a device for udev, in place of any earlier name for the number.
    ///
    /// # Errors
    /// With the reason why the device gets no path.
    pub fn announce(&self, id: DeviceId, name: &str) -> Result<(), String> {
        let target = fs::read_link(self.paths.join(name)).ok();
        let holder = target.as_deref().and_then(Path::file_name).and_then(|node| node.to_str());
        if let Some(holder) =
            holder.filter(|holder| *holder != node(id) && self.sys_block.join(holder).exists())
        {
            self.forget(id);
            return Err(format!(
                "/dev/{holder} has the name. When that device is gone, `glidefs export attach` makes the path"
            ));
        }
        let (path, text) = (self.run.join(node(id)), format!("{NAME_KEY}{name}\n"));
        // udev may be reading the file of a live device.
        if fs::read_to_string(&path).is_ok_and(|found| found == text) {
            return Ok(());
        }
        let made = fs::create_dir_all(&self.run);
        let written = made.and_then(|()| fs::write(&path, text));
        written.map_err(|error| format!("writing {} failed: {error}", path.display()))
    }

    /// Removes the name that was left for udev.
    pub fn forget(&self, id: DeviceId) {
        let _ = fs::remove_file(self.run.join(node(id)));
    }

    /// Removes the names of devices that are gone.
    pub fn sweep(&self) {
        for entry in fs::read_dir(&self.run).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("ublkb"));
            if number.is_none_or(|number| !self.sys_class.join(format!("ublkc{number}")).exists()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Returns when udev has made the path of a live device.
    ///
    /// # Errors
    /// With the reason why there is no path.
    pub async fn made(&self, id: DeviceId, name: &str) -> Result<(), String> {
        if self.is_made(id, name) {
            self.forget(id);
            return Ok(());
        }
        self.announce(id, name)?;
        if !self.udev.join("control").exists() {
            return Err("no udev runs on this host, so devices have numbers only".into());
        }
        let began = Instant::now();
        // A slow udev has hundreds of devices before this one. No device waits for longer than the silence after it.
        let has_time = || {
            let from = self.made_at.lock_whole().map_or(began, |made| made.max(began));
            from.elapsed() < PATIENCE && began.elapsed() < SILENCE
        };
        let is_silent = || self.silent_since.lock_whole().is_some_and(|since| since.elapsed() < SILENCE);
        while has_time() && !is_silent() {
            sleep(POLL).await;
            if self.is_made(id, name) {
                *self.made_at.lock_whole() = Some(Instant::now());
                self.forget(id);
                return Ok(());
            }
        }
        if !is_silent() {
            *self.silent_since.lock_whole() = Some(Instant::now());
        }
        Err("udev has not made the path: are the rules 60-glidefs.rules of this version installed? Then `udevadm trigger`, and \
             `glidefs export attach`"
            .into())
    }

    /// Whether udev has seen this disk, and the path leads there. The path alone may be that of an earlier device of the number, which
    /// udev is about to remove.
    fn is_made(&self, id: DeviceId, name: &str) -> bool {
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let attribute = |name| read(self.sys_block.join(node(id)).join(name)).trim().to_owned();
        let noted = read(self.udev.join("data").join(format!("b{}", attribute("dev"))));
        let seq = attribute("diskseq");
        noted.lines().any(|line| line.strip_prefix(SEQ_KEY) == Some(&seq))
            && fs::read_link(self.paths.join(name)).is_ok_and(|target| target.ends_with(node(id)))
    }
}

fn node(id: DeviceId) -> String {
    format!("ublkb{}", id.0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const DEVICE: DeviceId = DeviceId(7);
    const OTHER: DeviceId = DeviceId(8);

    /// A host with udev and the disks 7 and 8.
    fn host() -> (tempfile::TempDir, Names) {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (id, seq) in [(DEVICE, 47), (OTHER, 48)] {
            fs::create_dir_all(at("block").join(node(id))).unwrap();
            fs::write(at("block").join(node(id)).join("diskseq"), format!("{seq}\n")).unwrap();
            fs::write(at("block").join(node(id)).join("dev"), format!("259:{}\n", id.0)).unwrap();
            fs::create_dir_all(at("class").join(format!("ublkc{}", id.0))).unwrap();
        }
        fs::create_dir_all(at("udev/data")).unwrap();
        fs::write(at("udev/control"), "").unwrap();
        fs::create_dir(at("paths")).unwrap();
        let names = Names {
            run: at("run/names"),
            paths: at("paths"),
            udev: at("udev"),
            sys_block: at("block"),
            sys_class: at("class"),
            silent_since: Mutex::default(),
            made_at: Mutex::default(),
        };
        (folder, names)
    }

    impl Names {
        /// What udev does about disk `seq` of the number.
        fn udev_sees(&self, id: DeviceId, seq: u32, name: &str) {
            let text = format!("I:12345\n{SEQ_KEY}{seq}\nG:systemd\n");
            fs::write(self.udev.join("data").join(format!("b259:{}", id.0)), text).unwrap();
            let _ = fs::remove_file(self.paths.join(name));
            symlink(format!("../{}", node(id)), self.paths.join(name)).unwrap();
        }

        fn left(&self, id: DeviceId) -> Option<String> {
            fs::read_to_string(self.run.join(node(id))).ok()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_left_until_udev_has_seen_this_disk_and_not_an_earlier_one_of_the_number() {
        let (_folder, names) = host();
        names.announce(DEVICE, "vm1").unwrap();
        assert_eq!(names.left(DEVICE).as_deref(), Some("GLIDEFS_NAME=vm1\n"));
        names.udev_sees(DEVICE, 46, "vm1");
        let late = async {
            sleep(PATIENCE / 2).await;
            assert!(names.left(DEVICE).is_some());
            names.udev_sees(DEVICE, 47, "vm1");
        };
        let (made, ()) = tokio::join!(names.made(DEVICE, "vm1"), late);
        assert_eq!((made, names.left(DEVICE)), (Ok(()), None));
        assert_eq!(names.made(DEVICE, "vm1").await, Ok(()), "a device that is taken over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_udev_costs_many_devices_the_time_of_one_and_then_nothing_for_a_minute() {
        let (_folder, names) = host();
        let begun = Instant::now();
        let made = futures_util::future::join_all((0..64).map(|_| names.made(DEVICE, "vm1"))).await;
        assert!(made.iter().all(Result::is_err) && begun.elapsed() < PATIENCE + POLL * 2);
        let begun = Instant::now();
        assert!(names.made(DEVICE, "vm1").await.unwrap_err().contains("60-glidefs.rules"));
        assert!(begun.elapsed().is_zero());
        assert!(names.left(DEVICE).is_some(), "udev may be well again");
        tokio::time::advance(SILENCE).await;
        assert!(names.made(DEVICE, "vm1").await.is_err() && begun.elapsed() >= SILENCE + PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_udev_is_waited_for_as_long_as_it_makes_paths() {
        let (_folder, names) = host();
        let slow = async {
            sleep(PATIENCE * 3 / 4).await;
            names.udev_sees(OTHER, 48, "vm2");
            sleep(PATIENCE * 3 / 4).await;
            names.udev_sees(DEVICE, 47, "vm1");
        };
        let (first, second, ()) = tokio::join!(names.made(DEVICE, "vm1"), names.made(OTHER, "vm2"), slow);
        assert_eq!((first, second), (Ok(()), Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn without_udev_there_are_only_numbers_and_nobody_waits() {
        let (_folder, names) = host();
        fs::remove_file(names.udev.join("control")).unwrap();
        let begun = Instant::now();
        assert!(names.made(DEVICE, "vm1").await.unwrap_err().contains("no udev"));
        assert!(begun.elapsed().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_devices_with_one_name_the_first_keeps_the_path_until_the_device_is_gone() {
        let (_folder, names) = host();
        names.udev_sees(DEVICE, 47, "vm1");
        assert!(names.made(OTHER, "vm1").await.unwrap_err().contains("/dev/ublkb7"));
        assert_eq!(names.left(OTHER), None);
        fs::remove_dir_all(names.sys_block.join(node(DEVICE))).unwrap();
        names.announce(OTHER, "vm1").unwrap();
        names.udev_sees(OTHER, 48, "vm1");
        assert_eq!(names.made(OTHER, "vm1").await, Ok(()));
    }

    #[test]
    fn a_number_used_again_does_not_have_the_name_of_the_device_before() {
        let (_folder, names) = host();
        names.announce(DEVICE, "vm1").unwrap();
        names.announce(DEVICE, "vm2").unwrap();
        assert_eq!(names.left(DEVICE).as_deref(), Some("GLIDEFS_NAME=vm2\n"));
        names.announce(OTHER, "vm1").unwrap();
        fs::remove_dir(names.sys_class.join("ublkc8")).unwrap();
        names.sweep();
        assert_eq!([DEVICE, OTHER].map(|id| names.left(id).is_some()), [true, false]);
        names.forget(DEVICE);
        assert_eq!(names.left(DEVICE), None);
    }

    #[test]
    fn a_runtime_directory_that_cannot_be_written_is_named() {
        let (folder, names) = host();
        fs::write(folder.path().join("run"), "").unwrap();
        let reason = names.announce(DEVICE, "vm1").unwrap_err();
        assert!(reason.contains("run/names/ublkb7"), "{reason}");
    }
}
