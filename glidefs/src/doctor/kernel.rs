//! The kernel and its ublk driver, and the host around the daemon: udev, LVM and the clock.
//!
//! Owns the judgement. Does not own the list of broken drivers nor the question to the driver (`ublk`), nor the skew between this clock and
//! the store's (`store`).

use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Command, Stdio};

use super::daemon::Host;
use super::{Finding, failure, for_root, note, ok, warning};
use crate::observe::chain;
use crate::router::DeviceError;
use crate::store::StoreUrl;
use crate::ublk::{DeviceLimit, Features, defect_of};

/// The first kernel whose devices outlive the daemon.
const OLDEST: (u32, u32) = (6, 1);
/// The first kernel whose limit of devices holds for unprivileged ones only.
const LIMITS_UNPRIVILEGED: (u32, u32) = (6, 15);
/// The first kernel in which a daemon can die while it takes a device over, and the next one takes the device.
const RECOMMENDED: (u32, u32) = (7, 1);
const NEWER: &str = "install Linux 7.1 or later, and reboot";

/// The rules of udev that belong to this version.
const RULES: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd/60-glidefs.rules"));
/// Where rules may be; the first file of a name counts.
const RULES_PATHS: [&str; 4] = [
    "/etc/udev/rules.d/60-glidefs.rules",
    "/run/udev/rules.d/60-glidefs.rules",
    "/usr/local/lib/udev/rules.d/60-glidefs.rules",
    "/usr/lib/udev/rules.d/60-glidefs.rules",
];

/// What the ublk driver says: its features, an error, or why there is no answer.
pub(super) type Driver = Result<Result<Features, DeviceError>, String>;

/// Kernel, driver, udev and clock.
pub(super) fn check(host: &Host) -> Vec<Finding> {
    let uname = nix::sys::utsname::uname();
    let release = uname.map(|uname| uname.release().to_string_lossy().into_owned()).unwrap_or_default();
    let udev_runs = Path::new("/run/udev/control").exists();
    let rules = RULES_PATHS.iter().find_map(|path| Some((*path, fs::read_to_string(path).ok()?)));
    let url = host.config.store.url.as_ref();
    let has_remote_store = url.is_some_and(|url| !matches!(url, StoreUrl::File(_) | StoreUrl::Memory));
    vec![
        kernel(&release, &host.driver).named("kernel"),
        driver(&host.driver, host.is_root).named("ublk driver"),
        features(&host.driver, host.config.bounce_mode).named("ublk features"),
        limit(&release, DeviceLimit::read(), host.config.exports.max).named("ublks_max"),
        udev(udev_runs, rules.as_ref().map(|(path, text)| (*path, text.as_str()))).named("udev rules"),
        hung_tasks(sysctl("hung_task_panic"), sysctl("hung_task_timeout_secs")).named("hung tasks"),
        lvm(lvm_settings().as_deref(), Path::new("/etc/lvm/devices/system.devices").exists()).named("LVM"),
        clock(clock_is_kept(), has_remote_store).named("clock"),
    ]
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel(release: &str, driver: &Driver) -> Finding {
    let found = format!("Linux {release}");
    let Some(version) = version(release) else {
        return note(found).why("the release has no version that glidefs knows").mend(NEWER);
    };
    if let Some(defect) = defect_of(release) {
        return failure(found).why(format!("this kernel's ublk driver is broken: {defect}")).mend(NEWER);
    }
    // Distributions bring the driver to older kernels as well.
    if version < OLDEST && !matches!(driver, Ok(Ok(features)) if features.user_copy()) {
        return failure(found)
            .why("before Linux 6.1 there is no ublk, or none whose devices survive the daemon")
            .mend(NEWER);
    }
    if version < RECOMMENDED {
        return note(found)
            .why("before Linux 7.1 a daemon that dies while it takes a device over may leave a device that no daemon can take over")
            .mend(NEWER);
    }
    ok(found)
}

fn driver(driver: &Driver, is_root: bool) -> Finding {
    let error = match driver {
        Ok(Ok(_)) => return ok("/dev/ublk-control answers"),
        Ok(Err(DeviceError::NoDriver)) => {
            return failure("there is no /dev/ublk-control")
                .why("without the driver no export gets a device, and the daemon does not start")
                .mend(
                    "modprobe ublk_drv, and echo ublk_drv > /etc/modules-load.d/glidefs.conf; on Ubuntu first apt install \
                     linux-modules-extra-$(uname -r); in a container, pass the device through",
                );
        }
        Ok(Err(DeviceError::NoPermission)) if !is_root => {
            return for_root("this command may not open /dev/ublk-control");
        }
        Ok(Err(error)) => chain(error),
        Err(silence) => silence.clone(),
    };
    failure(error)
        .why("the daemon does not start while the driver does not answer")
        .mend("dmesg | grep ublk; in a container, permit the device; then modprobe -r ublk_drv && modprobe ublk_drv while no device exists")
}

fn features(driver: &Driver, bounce: bool) -> Finding {
    let Ok(Ok(driver)) = driver else {
        return note("not known").why("the driver was not asked").mend("see ublk driver");
    };
    if !driver.user_copy() {
        return warning("no user copy (Linux 6.5)")
            .why("devices are served in bounce mode: each device takes its queue depth times 128 KiB of memory, and bytes are copied twice")
            .mend(NEWER);
    }
    if bounce {
        return note("bounce mode by GLIDEFS_BOUNCE_MODE")
            .why("each device takes its queue depth times 128 KiB of memory, and bytes are copied twice; this kernel has user copy")
            .mend("unset GLIDEFS_BOUNCE_MODE, and attach the exports again");
    }
    if !driver.update_size() {
        return note("user copy, no live resize")
            .why("before Linux 6.16 an export grows when detached and attached, not live")
            .mend(NEWER);
    }
    ok("user copy, live resize")
}

fn limit(release: &str, limit: Option<DeviceLimit>, exports_max: usize) -> Finding {
    let Some(limit) = limit else { return ok("no limit, or no driver") };
    let DeviceLimit { devices_max, devices } = limit;
    if version(release).is_some_and(|version| version >= LIMITS_UNPRIVILEGED) {
        return ok(format!("{devices_max}, for unprivileged devices only; devices there are: {devices}"));
    }
    let found = format!("{devices_max}; devices there are: {devices}");
    let finding = if limit.is_reached() {
        failure(found).why("the kernel makes no further device")
    } else if devices_max < exports_max {
        let why = "before Linux 6.15 the limit counts all devices, and [exports] max is";
        warning(found).why(format!("{why} {exports_max}"))
    } else {
        return ok(found);
    };
    finding.mend(format!(
        "echo {0} > /sys/module/ublk_drv/parameters/ublks_max, and the line \"options ublk_drv ublks_max={0}\" in \
         /etc/modprobe.d/glidefs.conf",
        exports_max.max(devices_max)
    ))
}

fn udev(runs: bool, rules: Option<(&str, &str)>) -> Finding {
    let finding = match rules {
        _ if !runs => return ok("no udev runs, so devices have numbers and no /dev/glidefs/NAME"),
        Some((path, RULES)) => return ok(path),
        Some((path, _)) => note(format!("{path} differs from the rules of this version"))
            .why("rules of another version may let udev open the devices, or make no /dev/glidefs/NAME"),
        None => warning("60-glidefs.rules is not installed").why(
            "udev, blkid, LVM and MD open the devices: a probe waits while the daemon is away, and delays a removal; each device also \
             gets an I/O scheduler, which takes 30 KB; and there is no /dev/glidefs/NAME",
        ),
    };
    finding.mend("in the source of this version: install -m 644 systemd/60-glidefs.rules /etc/udev/rules.d/ && udevadm control --reload")
}

/// The number in `kernel.NAME`; `None` where the kernel has no such setting.
fn sysctl(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok()
}

/// What happens to a task that waits for a device for longer than the kernel's limit.
fn hung_tasks(panic: Option<u64>, limit_seconds: Option<u64>) -> Finding {
    match (panic, limit_seconds) {
        (_, None | Some(0)) => ok("not looked for"),
        (None | Some(0), Some(seconds)) => ok(format!("reported after {seconds} s, without a panic")),
        (Some(_), Some(seconds)) => failure(format!("the kernel panics when a task waits for {seconds} s"))
            .why("a read waits as long as the store is away, and every request as long as the daemon is away: the host would reboot")
            .mend("sysctl -w kernel.hung_task_panic=0, and write the same into /etc/sysctl.d"),
    }
}

/// What LVM heeds when it chooses devices; `None` without LVM. The program reads files only.
fn lvm_settings() -> Option<String> {
    let settings = ["devices/global_filter", "devices/filter", "devices/use_devicesfile"];
    let asked =
        Command::new("lvmconfig").args(["--typeconfig", "full"]).args(settings).stdin(Stdio::null()).output();
    Some(String::from_utf8_lossy(&asked.ok()?.stdout).into_owned())
}

/// Whether LVM of this host opens the devices of exports. `settings`: as `lvmconfig` prints them. `has_list`: LVM has a list of its devices.
fn lvm(settings: Option<&str>, has_list: bool) -> Finding {
    match settings {
        None => ok("not installed"),
        Some(settings) if has_list && settings.contains("use_devicesfile=1") => ok("opens the devices of its list only"),
        Some(settings) if settings.contains("ublkb") => ok("has a filter for ublk devices"),
        Some(_) => warning("opens the devices of exports")
            .why("pvs and its like wait as long as the daemon or the store is away, and show the volume groups of guests as this host's")
            .mend(r#"write devices { global_filter = [ "r|^/dev/(ublkb|glidefs/)|" ] } into /etc/lvm/lvmlocal.conf"#),
    }
}

/// Whether the kernel counts the clock as kept by a time service; `None` where the kernel does not tell.
fn clock_is_kept() -> Option<bool> {
    let mut clock = MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: `clock` is a valid `timex` of zeroes, which asks for the state and changes nothing; the kernel writes the state there.
    let state = unsafe { libc::adjtimex(clock.as_mut_ptr()) };
    (state >= 0).then_some(state != libc::TIME_ERROR)
}

fn clock(is_kept: Option<bool>, has_remote_store: bool) -> Finding {
    const BY_NONE: &str = "kept by no time service";
    let finding = match is_kept {
        Some(true) => return ok("kept by a time service"),
        Some(false) if has_remote_store => warning(BY_NONE).why(
            "a store refuses requests whose time is a quarter of an hour off: then nothing is written back",
        ),
        Some(false) => {
            note(BY_NONE).why("times in the log and in snapshots may be wrong; no data depends on them")
        }
        None => note("not known").why("the kernel does not tell whether a time service runs"),
    };
    finding.mend("timedatectl set-ntp true, or install chrony; a chrony that runs needs the line rtcsync in its chrony.conf to tell the kernel")
}

#[cfg(test)]
mod tests {
    use super::super::Verdict::{Failure, Note, Ok, Warning};
    use super::*;
    use crate::ublk::feature_bits::{UPDATE_SIZE, USER_COPY};

    #[expect(clippy::unnecessary_wraps, reason = "what a driver answered, as the checks take it")]
    fn having(bits: &[u32]) -> Driver {
        Result::Ok(Result::Ok(Features::of(bits)))
    }

    #[test]
    fn a_broken_or_too_old_kernel_is_a_failure_and_one_before_the_recommended_a_note() {
        for (release, expected) in [
            ("6.18.4-1-generic", Failure),
            ("7.0.14", Failure),
            ("6.17.0-1017-aws", Failure),
            ("6.0.9", Failure),
            ("5.15.0-91-generic", Failure),
            ("6.1.0-21-amd64", Note),
            ("7.0.2", Note),
            ("7.1", Ok),
            ("7.3.4+deb13-amd64", Ok),
            ("unknown", Note),
        ] {
            assert_eq!(kernel(release, &having(&[])).verdict, expected, "{release}");
        }
        assert_eq!(kernel("5.14.0-570.el9", &having(&[USER_COPY])).verdict, Note, "ported");
    }

    #[test]
    fn a_driver_that_is_missing_or_does_not_answer_is_a_failure() {
        let verdict = |answer, is_root| driver(&answer, is_root).verdict;
        assert_eq!(verdict(Result::Ok(Err(DeviceError::NoDriver)), true), Failure);
        assert_eq!(verdict(Result::Ok(Err(DeviceError::LimitReached)), true), Failure);
        assert_eq!(verdict(Err("no answer".into()), true), Failure);
        let forbidden = || Result::Ok(Err(DeviceError::NoPermission));
        assert_eq!([true, false].map(|is_root| verdict(forbidden(), is_root)), [Failure, Note]);
        assert_eq!(verdict(having(&[]), true), Ok);
    }

    #[test]
    fn bounce_mode_is_a_warning_where_the_kernel_forces_it_and_a_note_where_the_user_does() {
        let verdict = |bits: &[u32], bounce| features(&having(bits), bounce).verdict;
        assert_eq!(verdict(&[UPDATE_SIZE], false), Warning);
        assert_eq!(verdict(&[USER_COPY, UPDATE_SIZE], true), Note);
        assert_eq!(verdict(&[USER_COPY], false), Note, "no live resize");
        assert_eq!(verdict(&[USER_COPY, UPDATE_SIZE], false), Ok);
        assert_eq!(features(&Err("no answer".into()), false).verdict, Note);
    }

    #[test]
    fn the_limit_of_devices_counts_on_kernels_where_it_holds_for_all_devices() {
        let with = |release, devices_max, devices| {
            limit(release, Some(DeviceLimit { devices_max, devices }), 20_000)
        };
        assert_eq!(with("6.12.107", 64, 3).verdict, Warning);
        assert_eq!(with("6.12.107", 64, 64).verdict, Failure);
        assert_eq!(with("6.12.107", 20_000, 64).verdict, Ok);
        assert_eq!(with("6.15.1", 64, 64).verdict, Ok);
        assert_eq!(limit("6.12.107", None, 20_000).verdict, Ok);
        let mend = with("6.12.107", 64, 3).mend.unwrap();
        assert!(mend.starts_with("echo 20000 > /sys/module/ublk_drv/parameters/ublks_max"), "{mend}");
    }

    #[test]
    fn missing_rules_are_a_warning_where_udev_runs_and_other_rules_a_note() {
        let verdict = |runs, text| udev(runs, text).verdict;
        assert_eq!([true, false].map(|runs| verdict(runs, None)), [Warning, Ok]);
        assert_eq!(verdict(true, Some(("/x", "# mine\n"))), Note);
        assert_eq!(verdict(true, Some(("/x", RULES))), Ok);
    }

    #[test]
    fn a_kernel_that_panics_when_a_device_waits_is_a_failure() {
        let verdict = |panic, limit| hung_tasks(panic, limit).verdict;
        assert_eq!([verdict(Some(1), Some(120)), verdict(Some(0), Some(120))], [Failure, Ok]);
        assert_eq!([verdict(Some(1), Some(0)), verdict(None, None)], [Ok, Ok], "the kernel does not look");
    }

    #[test]
    fn a_clock_that_nobody_keeps_counts_more_with_a_store_that_looks_at_the_time() {
        assert!(clock_is_kept().is_some(), "every user may ask");
        let verdict = |is_kept, has_remote_store| clock(is_kept, has_remote_store).verdict;
        assert_eq!([true, false].map(|remote| verdict(Some(false), remote)), [Warning, Note]);
        assert_eq!([verdict(None, true), verdict(Some(true), true)], [Note, Ok]);
    }

    #[test]
    fn lvm_is_to_keep_away_from_the_devices_of_exports() {
        let all = "global_filter=[\"a|.*|\"]\nfilter=[\"a|.*|\"]\n";
        let verdict = |text: &str, has_list| lvm(Some(text), has_list).verdict;
        assert_eq!(lvm(None, false).verdict, Ok);
        assert_eq!(verdict(&format!("{all}use_devicesfile=0\n"), true), Warning);
        assert_eq!(verdict(&format!("{all}use_devicesfile=1\n"), false), Warning);
        assert_eq!(verdict(&format!("{all}use_devicesfile=1\n"), true), Ok);
        assert_eq!(verdict("global_filter=[\"r|^/dev/(ublkb|glidefs/)|\"]\nuse_devicesfile=0\n", false), Ok);
    }
}
