//! Tests of names, with folders in place of the folders of kernel and host.

use super::*;
use crate::observe::chain;

const DEVICE: DeviceId = DeviceId(3);
const OTHER: DeviceId = DeviceId(4);

/// A host without udev, with folders in place of the kernel's.
struct Host {
    folder: tempfile::TempDir,
    names: Names,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let names = Names {
            run: at("run"),
            paths: at("dev/glidefs"),
            dev: at("dev"),
            sys_block: at("block"),
            sys_class: at("class"),
            patience: Duration::from_millis(100),
            vain: Arc::default(),
        };
        fs::create_dir(at("dev")).unwrap();
        Self { folder, names }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Shows the device of a number as a disk. A plain file has the number 0:0.
    fn start(&self, id: DeviceId, seq: u64) {
        let block = self.names.sys_block.join(node(id));
        fs::create_dir_all(&block).unwrap();
        fs::write(block.join("diskseq"), format!("{seq}\n")).unwrap();
        fs::write(block.join("dev"), "0:0\n").unwrap();
        fs::write(self.names.dev.join(node(id)), "").unwrap();
        self.add(id);
    }

    fn add(&self, id: DeviceId) {
        fs::create_dir_all(self.names.sys_class.join(format!("ublkc{}", id.0))).unwrap();
    }

    /// Removes a device behind the back of all daemons.
    fn remove(&self, id: DeviceId) {
        fs::remove_dir_all(self.names.sys_block.join(node(id))).unwrap();
        fs::remove_dir(self.names.sys_class.join(format!("ublkc{}", id.0))).unwrap();
        fs::remove_file(self.names.dev.join(node(id))).unwrap();
    }

    /// Attaches an export, as a daemon does.
    fn attach(&self, id: DeviceId, seq: u64, name: &str) -> Result<(), NamesError> {
        self.add(id);
        let _ = self.names.announce(id, name);
        self.start(id, seq);
        self.point(id, name)
    }

    fn point(&self, id: DeviceId, name: &str) -> Result<(), NamesError> {
        let named = self.names.settle(id, name)?;
        self.names.point(id, name, &named.disk)
    }

    /// Keeps the lock, as another process.
    fn keep_lock(&self) -> File {
        fs::create_dir_all(self.path("run/devices")).unwrap();
        let file = File::open(self.path("run/devices")).unwrap();
        file.lock().unwrap();
        file
    }

    fn paths(&self) -> Vec<(String, DeviceId)> {
        let mut paths: Vec<_> = names_in(&self.names.paths);
        paths.sort();
        paths.into_iter().map(|name| (name.clone(), self.names.target(&name).unwrap())).collect()
    }

    /// The file from which the rules for udev take the name on `add`, read as the rules read.
    fn seen_by_udev(&self, id: DeviceId, seq: u64) -> Option<String> {
        let starting = self.names.record(id, STARTING);
        self.names.record(id, &seq.to_string()).or(starting)
    }
}

#[test]
fn udev_finds_the_name_at_every_moment_from_before_the_start() {
    let host = Host::new();
    host.names.announce(DEVICE, "vm-1.disk_0").unwrap();
    assert_eq!(host.seen_by_udev(DEVICE, 7).as_deref(), Some("vm-1.disk_0"));
    host.start(DEVICE, 7);
    let named = host.names.settle(DEVICE, "vm-1.disk_0").unwrap();
    assert!(named.was_announced);
    assert_eq!(named.disk, Disk { seq: 7, number: "0:0".into() });
    assert_eq!(host.seen_by_udev(DEVICE, 7).as_deref(), Some("vm-1.disk_0"));
    assert_eq!(fs::read_to_string(host.path("run/devices/ublkb3/7")).unwrap(), "GLIDEFS_NAME=vm-1.disk_0\n");
    assert_eq!(host.names.record(DEVICE, STARTING), None, "the next device of the number is another one");
}

#[test]
fn the_daemon_makes_the_symlink_where_udev_does_not_and_leaves_udevs_alone() {
    let host = Host::new();
    host.attach(DEVICE, 7, "a").unwrap();
    assert_eq!(host.paths(), [("a".into(), DEVICE)]);
    assert_eq!(fs::read_link(host.path("dev/glidefs/a")).unwrap(), Path::new("../ublkb3"));
    assert_eq!(fs::metadata(host.path("dev/glidefs")).unwrap().permissions().mode() & 0o777, 0o755);
    let before = fs::symlink_metadata(host.path("dev/glidefs/a")).unwrap().ino();
    host.point(DEVICE, "a").unwrap();
    assert_eq!(fs::symlink_metadata(host.path("dev/glidefs/a")).unwrap().ino(), before);
}

#[test]
fn after_a_kill_the_next_daemon_puts_right_what_is_missing_also_without_the_files() {
    let host = Host::new();
    host.attach(DEVICE, 7, "a").unwrap();
    fs::remove_file(host.path("dev/glidefs/a")).unwrap();
    host.names.sweep().unwrap();
    host.point(DEVICE, "a").unwrap();
    assert_eq!(host.paths(), [("a".into(), DEVICE)]);
    fs::remove_dir_all(host.path("run")).unwrap();
    host.names.sweep().unwrap();
    assert_eq!(
        host.paths(),
        [("a".into(), DEVICE)],
        "the device is there, and nothing says that the path is wrong"
    );
    assert!(!host.names.settle(DEVICE, "a").unwrap().was_announced, "udev is not worth waiting for");
    assert_eq!(host.seen_by_udev(DEVICE, 7).as_deref(), Some("a"));
}

#[test]
fn names_and_paths_that_a_taken_over_device_has_kept_are_told_from_all_others() {
    let host = Host::new();
    host.attach(DEVICE, 7, "a").unwrap();
    assert!(host.names.are_kept(DEVICE, "a"));
    assert!(!host.names.are_kept(DEVICE, "b"));
    assert!(!host.names.are_kept(OTHER, "a"));
    let changes: [&dyn Fn(); 7] = [
        &|| host.names.write(DEVICE, STARTING, "a").unwrap(),
        &|| host.names.write(DEVICE, "6", "b").unwrap(),
        &|| host.names.write(DEVICE, "7", "b").unwrap(),
        &|| fs::remove_file(host.path("run/devices/ublkb3/7")).unwrap(),
        &|| fs::remove_file(host.path("run/names/a")).unwrap(),
        &|| fs::remove_file(host.path("dev/glidefs/a")).unwrap(),
        &|| host.start(DEVICE, 8),
    ];
    for (number, change) in changes.iter().enumerate() {
        change();
        assert!(!host.names.are_kept(DEVICE, "a"), "change {number}");
        host.names.clear(DEVICE, Some("a"), Owner::Caller).unwrap();
        host.attach(DEVICE, 7, "a").unwrap();
        assert!(host.names.are_kept(DEVICE, "a"), "after change {number}");
    }
}

#[test]
fn a_kill_between_start_and_file_is_put_right_by_the_next_daemon() {
    let host = Host::new();
    host.names.announce(DEVICE, "a").unwrap();
    host.start(DEVICE, 7);
    host.names.sweep().unwrap();
    assert!(host.names.settle(DEVICE, "a").unwrap().was_announced);
    host.point(DEVICE, "a").unwrap();
    assert_eq!(host.paths(), [("a".into(), DEVICE)]);
}

#[test]
fn nothing_is_left_of_a_removed_device() {
    let host = Host::new();
    host.attach(DEVICE, 7, "a").unwrap();
    host.attach(OTHER, 8, "b").unwrap();
    host.names.clear(DEVICE, None, Owner::Caller).unwrap();
    assert_eq!(host.paths(), [("b".into(), OTHER)]);
    assert_eq!(names_in(&host.path("run/devices")), ["ublkb4"]);
    assert_eq!(names_in(&host.path("run/names")), ["b"]);
}

#[test]
fn a_number_used_again_never_has_the_name_of_the_device_before() {
    let host = Host::new();
    host.attach(DEVICE, 7, "a").unwrap();
    host.remove(DEVICE);
    // Another program's device.
    host.start(DEVICE, 9);
    assert_eq!(host.seen_by_udev(DEVICE, 9), None);
    host.remove(DEVICE);
    // Another daemon's device: the path is gone before the start.
    host.names.announce(DEVICE, "b").unwrap();
    assert_eq!(host.paths(), []);
    host.start(DEVICE, 10);
    host.point(DEVICE, "b").unwrap();
    assert_eq!(host.paths(), [("b".into(), DEVICE)]);
    // The daemon of the first export learns that the device is another one.
    host.names.clear(DEVICE, None, Owner::Unknown).unwrap();
    assert_eq!(host.paths(), [("b".into(), DEVICE)]);
    assert_eq!(host.seen_by_udev(DEVICE, 10).as_deref(), Some("b"));
    host.names.announce(OTHER, "a").unwrap();
}

#[test]
fn an_unknown_owner_keeps_the_name_of_a_device_that_is_being_started() {
    let host = Host::new();
    host.add(DEVICE);
    host.names.announce(DEVICE, "b").unwrap();
    host.names.clear(DEVICE, None, Owner::Unknown).unwrap();
    assert_eq!(host.seen_by_udev(DEVICE, 10).as_deref(), Some("b"));
    assert_eq!(host.names.holder("b"), Some(DEVICE));
}

#[test]
fn of_two_devices_with_one_name_the_first_keeps_the_name_until_the_device_is_gone() {
    let host = Host::new();
    host.attach(DEVICE, 7, "a").unwrap();
    let refused = host.attach(OTHER, 8, "a").unwrap_err();
    assert!(chain(&refused).contains("/dev/ublkb3 has the name"), "{refused}");
    assert_eq!(host.seen_by_udev(OTHER, 8), None, "udev makes no symlink");
    assert_eq!(host.paths(), [("a".into(), DEVICE)]);
    host.names.clear(OTHER, None, Owner::Caller).unwrap();
    assert_eq!(host.paths(), [("a".into(), DEVICE)]);
    host.remove(DEVICE);
    host.point(OTHER, "a").unwrap();
    assert_eq!(host.paths(), [("a".into(), OTHER)]);
    host.names.clear(DEVICE, None, Owner::Unknown).unwrap();
    assert_eq!(
        host.paths(),
        [("a".into(), OTHER)],
        "what is left of the first does not touch the path of the second"
    );
    assert_eq!(host.names.holder("a"), Some(OTHER));
}

#[test]
fn two_devices_that_start_at_the_same_time_do_not_both_get_the_name() {
    let host = Host::new();
    host.add(DEVICE);
    host.add(OTHER);
    host.names.announce(DEVICE, "a").unwrap();
    assert!(matches!(host.names.announce(OTHER, "a"), Err(NamesError::Taken { device: DEVICE })));
}

#[test]
fn a_sweep_removes_what_devices_have_left_that_went_without_a_daemon() {
    let host = Host::new();
    for (id, seq, name) in [(DEVICE, 7, "a"), (OTHER, 8, "b"), (DeviceId(5), 9, "c")] {
        host.attach(id, seq, name).unwrap();
    }
    host.remove(DEVICE);
    host.remove(OTHER);
    host.start(OTHER, 20);
    symlink("../ublkb77", host.path("dev/glidefs/old")).unwrap();
    symlink("../ublkb5", host.path("dev/glidefs/wrong")).unwrap();
    symlink("/dev/null", host.path("dev/glidefs/foreign")).unwrap();
    host.names.sweep().unwrap();
    fs::remove_file(host.path("dev/glidefs/foreign")).expect("symlinks to other devices are left alone");
    assert_eq!(host.paths(), [("c".into(), DeviceId(5))]);
    assert_eq!(names_in(&host.path("run/names")), ["c"]);
    assert_eq!(names_in(&host.path("run/devices")), ["ublkb5"]);
}

#[test]
fn a_file_in_the_place_of_a_path_stays_and_is_named() {
    let host = Host::new();
    fs::create_dir_all(host.path("dev/glidefs")).unwrap();
    fs::write(host.path("dev/glidefs/a"), "data").unwrap();
    let refused = host.attach(DEVICE, 7, "a").unwrap_err();
    assert!(matches!(refused, NamesError::NotASymlink { .. }));
    assert_eq!(fs::read_to_string(host.path("dev/glidefs/a")).unwrap(), "data");
}

#[test]
fn a_device_file_of_another_number_is_not_the_device() {
    let host = Host::new();
    host.start(DEVICE, 7);
    fs::write(host.path("block/ublkb3/dev"), "259:3\n").unwrap();
    assert!(matches!(host.point(DEVICE, "a"), Err(NamesError::NoNode { .. })));
    assert!(!host.path("dev/glidefs").exists());
}

#[test]
fn a_runtime_directory_that_cannot_be_written_is_named() {
    let host = Host::new();
    fs::write(host.path("run"), "").unwrap();
    let refused = host.attach(DEVICE, 7, "a").unwrap_err();
    assert!(chain(&refused).contains("run/devices failed"), "{}", chain(&refused));
}

#[test]
fn a_lock_that_another_process_keeps_is_waited_for_once() {
    let host = Host::new();
    host.start(DEVICE, 7);
    let lock = host.keep_lock();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| assert!(matches!(host.names.settle(DEVICE, "a"), Err(NamesError::Locked { .. }))));
        }
    });
    assert!(begun.elapsed() >= host.names.patience && begun.elapsed() < host.names.patience * 30);
    drop(lock);
    host.point(DEVICE, "a").unwrap();
}

#[test]
fn no_name_passes_to_the_next_device_of_the_number_while_another_process_keeps_the_lock() {
    let host = Host::new();
    host.attach(DEVICE, 7, "a").unwrap();
    let lock = host.keep_lock();
    host.names.clear(DEVICE, Some("a"), Owner::Caller).unwrap();
    assert_eq!((host.paths(), host.seen_by_udev(DEVICE, 7)), (vec![], None));
    drop(lock);
    host.remove(DEVICE);
    host.attach(DEVICE, 8, "a").unwrap();
    // Another program's device, after that another one of this daemon.
    host.remove(DEVICE);
    let lock = host.keep_lock();
    assert!(matches!(host.names.announce(DEVICE, "b"), Err(NamesError::Locked { .. })));
    assert_eq!((host.paths(), host.seen_by_udev(DEVICE, 9)), (vec![], None));
    drop(lock);
    host.names.announce(DEVICE, "b").unwrap();
    let _lock = host.keep_lock();
    host.start(DEVICE, 9);
    assert!(host.point(DEVICE, "b").is_err());
    assert_eq!(
        host.seen_by_udev(DEVICE, 10),
        None,
        "a removal behind the daemon's back leaves nothing for the next"
    );
}

#[test]
fn a_live_device_keeps_the_path_while_another_process_keeps_the_lock() {
    let host = Host::new();
    host.attach(DEVICE, 7, "a").unwrap();
    let _lock = host.keep_lock();
    assert!(host.point(DEVICE, "a").is_err());
    assert_eq!(
        (host.paths(), host.seen_by_udev(DEVICE, 7).as_deref()),
        (vec![("a".into(), DEVICE)], Some("a"))
    );
}

#[test]
fn a_device_that_was_replaced_before_the_symlink_does_not_give_the_path_to_the_next_of_the_number() {
    let host = Host::new();
    host.names.announce(DEVICE, "a").unwrap();
    host.start(DEVICE, 7);
    let named = host.names.settle(DEVICE, "a").unwrap();
    // By another program.
    host.remove(DEVICE);
    host.start(DEVICE, 9);
    assert!(matches!(host.names.point(DEVICE, "a", &named.disk), Err(NamesError::Gone { device: DEVICE })));
    // By another daemon.
    host.remove(DEVICE);
    host.attach(DEVICE, 10, "b").unwrap();
    assert!(matches!(host.names.point(DEVICE, "a", &named.disk), Err(NamesError::Gone { device: DEVICE })));
    assert_eq!(host.paths(), [("b".into(), DEVICE)]);
}

#[test]
fn the_path_of_a_removed_device_goes_also_when_the_files_are_lost() {
    let host = Host::new();
    host.attach(DEVICE, 7, "a").unwrap();
    host.attach(OTHER, 8, "b").unwrap();
    fs::remove_dir_all(host.path("run")).unwrap();
    host.names.clear(DEVICE, Some("a"), Owner::Caller).unwrap();
    // Not this device's path.
    host.names.clear(DEVICE, Some("b"), Owner::Caller).unwrap();
    assert_eq!(host.paths(), [("b".into(), OTHER)]);
}

#[test]
fn folders_have_their_modes_also_when_they_were_made_with_others() {
    let host = Host::new();
    for folder in ["run/devices", "run/names", "dev/glidefs"] {
        fs::create_dir_all(host.path(folder)).unwrap();
        fs::set_permissions(host.path(folder), Permissions::from_mode(0o750)).unwrap();
    }
    host.attach(DEVICE, 7, "a").unwrap();
    let mode = |folder| fs::metadata(host.path(folder)).unwrap().mode() & 0o777;
    assert_eq!([mode("run/devices"), mode("run/names"), mode("dev/glidefs")], [0o700, 0o700, 0o755]);
}

#[test]
fn the_rules_of_udev_have_the_words_of_the_daemon() {
    let rules = include_str!("../../../../systemd/60-glidefs.rules");
    let names = Names::of_this_host(Duration::from_secs(10));
    let (devices, key) = (names.run.join("devices"), KEY.trim_end_matches('='));
    let noted = udev::KEY.strip_prefix("E:").unwrap().trim_end_matches('=');
    let paths = names.paths.strip_prefix(&names.dev).unwrap();
    for words in [
        format!(r#"ACTION=="add", IMPORT{{file}}="{}/$kernel/{STARTING}""#, devices.display()),
        format!(r#"IMPORT{{file}}="{}/$kernel/$env{{DISKSEQ}}""#, devices.display()),
        format!(
            r#"ENV{{{key}}}=="?*", SYMLINK+="{}/$env{{{key}}}", ENV{{{noted}}}="$env{{DISKSEQ}}""#,
            paths.display()
        ),
    ] {
        assert!(rules.contains(&words), "{words}");
    }
}

#[test]
fn torn_and_foreign_files_are_no_names() {
    let host = Host::new();
    host.start(DEVICE, 7);
    fs::create_dir_all(host.path("run/devices/ublkb3")).unwrap();
    for text in
        ["", "GLIDEFS_NAME=a", "GLIDEFS_NAME=../a\n", "GLIDEFS_NAME=a\nX=y\n", "NAME=a\n", "GLIDEFS_NAME=\n"]
    {
        fs::write(host.path("run/devices/ublkb3/7"), text).unwrap();
        assert_eq!(host.names.name_of(DEVICE), None, "{text:?}");
    }
    host.point(DEVICE, "a").unwrap();
    assert_eq!(host.names.name_of(DEVICE).as_deref(), Some("a"));
}
