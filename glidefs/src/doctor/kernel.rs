//! The kernel and its ublk driver: version, known defects, abilities, the limit of devices.
//!
//! Owns the judgement. Does not own the list of broken drivers nor the question to the driver (`ublk`).

use super::finding::Finding;
use crate::ublk::{DeviceLimit, Features, defect_of};

/// The version of the kernel: major and minor number.
type Version = (u32, u32);

/// The first kernel whose devices outlive the daemon.
const OLDEST: Version = (6, 1);
/// The first kernel whose limit of devices holds for unprivileged ones only.
const LIMITS_UNPRIVILEGED: Version = (6, 15);
/// The first kernel in which a daemon can die while it takes a device over, and the next one takes the device.
const RECOMMENDED: Version = (7, 1);

/// The kernel, and how the configuration wants to use the kernel.
#[derive(Clone, Debug)]
pub(super) struct KernelFacts {
    /// As `uname -r` prints the release.
    pub release: String,
    pub driver: Driver,
    pub limit: Option<DeviceLimit>,
    /// Most exports, and so most devices.
    pub exports_max: usize,
    /// Whether devices are to be started without user copy.
    pub bounce: bool,
}

/// The answer of the ublk driver.
#[derive(Clone, Debug)]
pub(super) enum Driver {
    /// There is no driver, or the module is not loaded.
    Missing,
    /// Only root may ask the driver.
    Forbidden,
    Failed(String),
    Answers(Features),
}

/// All findings about the kernel.
pub(super) fn check(facts: &KernelFacts) -> Vec<Finding> {
    vec![kernel(facts), driver(facts), features(facts), limit(facts)]
}

fn version(release: &str) -> Option<Version> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel(facts: &KernelFacts) -> Finding {
    const CHECK: &str = "kernel";
    const MEND: &str = "install Linux 7.1 or later, and reboot";
    let found = format!("Linux {}", facts.release);
    let Some(version) = version(&facts.release) else {
        return Finding::note(CHECK, found, "the release has no version that glidefs knows", MEND);
    };
    if let Some(defect) = defect_of(&facts.release) {
        return Finding::failure(
            CHECK,
            found,
            format!("this kernel's ublk driver is broken: {defect}"),
            MEND,
        );
    }
    let has_user_copy = matches!(facts.driver, Driver::Answers(features) if features.user_copy());
    // Distributions bring the driver to older kernels as well.
    if version < OLDEST && !has_user_copy {
        let why = "before Linux 6.1 there is no ublk, or none whose devices survive the daemon";
        return Finding::failure(CHECK, found, why, MEND);
    }
    if version < RECOMMENDED {
        let why = "before Linux 7.1 a daemon that dies while it takes a device over may leave a device that no daemon can take over";
        return Finding::note(CHECK, found, why, MEND);
    }
    Finding::ok(CHECK, found)
}

fn driver(facts: &KernelFacts) -> Finding {
    const CHECK: &str = "ublk driver";
    match &facts.driver {
        Driver::Missing => Finding::failure(
            CHECK,
            "there is no /dev/ublk-control",
            "without the driver no export gets a device, and the daemon does not start",
            "modprobe ublk_drv, and echo ublk_drv > /etc/modules-load.d/glidefs.conf; in a container, pass the device through",
        ),
        Driver::Forbidden => Finding::note(
            CHECK,
            "this command may not open /dev/ublk-control",
            "the daemon needs the driver, and nothing more is known about it",
            "sudo glidefs doctor",
        ),
        Driver::Failed(error) => Finding::failure(
            CHECK,
            error,
            "the daemon does not start while the driver does not answer",
            "dmesg | grep ublk; in a container, permit the device; then modprobe -r ublk_drv && modprobe ublk_drv while no device exists",
        ),
        Driver::Answers(_) => Finding::ok(CHECK, "/dev/ublk-control answers"),
    }
}

fn features(facts: &KernelFacts) -> Finding {
    const CHECK: &str = "ublk features";
    const NEWER: &str = "install Linux 7.1 or later, and reboot";
    let Driver::Answers(driver) = facts.driver else {
        return Finding::note(CHECK, "not known", "the driver was not asked", "see ublk driver");
    };
    if !driver.user_copy() {
        let why = "devices are served in bounce mode: each device takes its queue depth times 128 KiB of memory, and bytes are copied twice";
        return Finding::warning(CHECK, "no user copy (Linux 6.5)", why, NEWER);
    }
    if facts.bounce {
        let why = "each device takes its queue depth times 128 KiB of memory, and bytes are copied twice; this kernel has user copy";
        let mend = "unset GLIDEFS_BOUNCE_MODE, and attach the exports again";
        return Finding::note(CHECK, "bounce mode by GLIDEFS_BOUNCE_MODE", why, mend);
    }
    if !driver.update_size() {
        let why = "before Linux 6.16 an export grows when detached and attached, not live";
        return Finding::note(CHECK, "user copy, no live resize", why, NEWER);
    }
    Finding::ok(CHECK, "user copy, live resize")
}

fn limit(facts: &KernelFacts) -> Finding {
    const CHECK: &str = "ublks_max";
    let Some(limit) = facts.limit else { return Finding::ok(CHECK, "no limit, or no driver") };
    let DeviceLimit { devices_max, devices } = limit;
    if version(&facts.release).is_some_and(|version| version >= LIMITS_UNPRIVILEGED) {
        return Finding::ok(
            CHECK,
            format!("{devices_max}, for unprivileged devices only; devices there are: {devices}"),
        );
    }
    let found = format!("{devices_max}; devices there are: {devices}");
    let mend = format!(
        "echo {0} > /sys/module/ublk_drv/parameters/ublks_max, and the line \"options ublk_drv ublks_max={0}\" in \
         /etc/modprobe.d/glidefs.conf",
        facts.exports_max.max(devices_max)
    );
    if limit.is_reached() {
        return Finding::failure(CHECK, found, "the kernel makes no further device", mend);
    }
    if devices_max < facts.exports_max {
        let why = format!(
            "before Linux 6.15 the limit counts all devices, and [exports] max is {}",
            facts.exports_max
        );
        return Finding::warning(CHECK, found, why, mend);
    }
    Finding::ok(CHECK, found)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{self, Failure, Note, Ok, Warning};
    use super::*;
    use crate::ublk::feature_bits::{QUIESCE, SHMEM_ZC, UPDATE_SIZE, USER_COPY};

    /// A driver with all features but `lacking`.
    fn without(lacking: &[u32]) -> Driver {
        let mut bits = vec![QUIESCE, SHMEM_ZC, UPDATE_SIZE, USER_COPY];
        bits.retain(|bit| !lacking.contains(bit));
        Driver::Answers(Features::of(&bits))
    }

    fn facts() -> KernelFacts {
        KernelFacts {
            release: "7.3.4+deb13-amd64".into(),
            driver: without(&[]),
            limit: Some(DeviceLimit { devices_max: 64, devices: 3 }),
            exports_max: 20_000,
            bounce: false,
        }
    }

    fn verdict(facts: &KernelFacts, check_name: &str) -> Verdict {
        check(facts).into_iter().find(|finding| finding.check == check_name).unwrap().verdict
    }

    #[test]
    fn a_current_kernel_with_its_driver_is_well() {
        assert!(check(&facts()).iter().all(|finding| finding.verdict == Ok));
    }

    #[test]
    fn a_broken_or_too_old_kernel_is_a_failure_and_one_before_the_recommended_a_note() {
        for (release, expected) in [
            ("6.18.4-1-generic", Failure),
            ("7.0.14", Failure),
            ("6.0.9", Failure),
            ("5.15.0-91-generic", Failure),
            ("6.1.0-21-amd64", Note),
            ("7.0.2", Note),
            ("7.1", Ok),
            ("unknown", Note),
        ] {
            let driver = Driver::Missing;
            let facts = KernelFacts { release: release.into(), driver, ..facts() };
            assert_eq!(verdict(&facts, "kernel"), expected, "{release}");
        }
        let ported = KernelFacts { release: "5.14.0-570.el9".into(), ..facts() };
        assert_eq!(verdict(&ported, "kernel"), Note);
    }

    #[test]
    fn a_driver_that_is_missing_or_does_not_answer_is_a_failure() {
        let with = |driver| verdict(&KernelFacts { driver, ..facts() }, "ublk driver");
        assert_eq!(with(Driver::Missing), Failure);
        assert_eq!(with(Driver::Failed("EIO".into())), Failure);
        assert_eq!(with(Driver::Forbidden), Note);
        assert_eq!(verdict(&KernelFacts { driver: Driver::Missing, ..facts() }, "ublk features"), Note);
    }

    #[test]
    fn bounce_mode_is_a_warning_where_the_kernel_forces_it_and_a_note_where_the_user_does() {
        let old = KernelFacts { driver: without(&[USER_COPY]), ..facts() };
        assert_eq!(verdict(&old, "ublk features"), Warning);
        assert_eq!(verdict(&KernelFacts { bounce: true, ..facts() }, "ublk features"), Note);
    }

    #[test]
    fn a_kernel_without_live_resize_is_a_note() {
        let without_resize = KernelFacts { driver: without(&[UPDATE_SIZE]), ..facts() };
        assert_eq!(verdict(&without_resize, "ublk features"), Note);
        assert_eq!(features(&facts()).found, "user copy, live resize");
    }

    #[test]
    fn the_limit_of_devices_counts_on_kernels_where_it_holds_for_all_devices() {
        let with = |release: &str, devices_max, devices| {
            let limit = Some(DeviceLimit { devices_max, devices });
            verdict(&KernelFacts { release: release.into(), limit, ..facts() }, "ublks_max")
        };
        assert_eq!(with("6.12.107", 64, 3), Warning);
        assert_eq!(with("6.12.107", 64, 64), Failure);
        assert_eq!(with("6.12.107", 20_000, 64), Ok);
        assert_eq!(with("6.15.1", 64, 64), Ok);
        assert_eq!(verdict(&KernelFacts { limit: None, ..facts() }, "ublks_max"), Ok);
    }

    #[test]
    fn the_advice_on_the_limit_is_a_command_with_the_number_wanted() {
        let facts = KernelFacts { release: "6.12.1".into(), ..facts() };
        let mend = limit(&facts).mend.unwrap();
        assert!(mend.starts_with("echo 20000 > /sys/module/ublk_drv/parameters/ublks_max"), "{mend}");
    }
}
