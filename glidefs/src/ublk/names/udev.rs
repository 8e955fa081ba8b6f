//! The wait for udev, which makes the symlinks where udev runs.
//!
//! Owns how long a device is waited for. Does not own the symlinks. Invariants: a udev that is away, stuck or without the rules costs a
//! batch of devices [`PATIENCE`] together, and then nothing for [`SILENCE`]; a slow one costs all devices [`BUDGET`] of waits in that time.
//!
//! A symlink alone does not say that udev is done: the symlink may be one of an earlier device of the same name and number, which udev is
//! about to remove. So the rules note the sequence number of the disk in udev's database as well.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Disk;
use crate::locks::MutexExt;

/// How long udev may take for a device.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody waits after a wait in vain.
const SILENCE: Duration = Duration::from_mins(1);
/// Sum of the waits of all devices in a period as long, before nobody waits any more. A start makes eight devices at a time.
const BUDGET: Duration = Duration::from_secs(20);
/// Time between two looks, the first and the longest.
const POLL: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(64);
/// The key of the sequence number in udev's database, as the rules write the key.
pub(super) const KEY: &str = "E:GLIDEFS_DISKSEQ=";

/// The udev of this host, and whether to wait for udev.
#[derive(Debug)]
pub struct Udev {
    run: PathBuf,
    waits: Mutex<Waits>,
}

/// The waits of a period of [`SILENCE`].
#[derive(Debug, Default)]
struct Waits {
    since: Option<Instant>,
    sum: Duration,
}

impl Udev {
    pub fn of_this_host() -> Self {
        Self::at("/run/udev".into())
    }

    fn at(run: PathBuf) -> Self {
        Self { run, waits: Mutex::default() }
    }

    /// Returns when udev has seen to the disk, or is not worth waiting for. Returns whether udev has.
    pub async fn sees(&self, disk: &Disk) -> bool {
        let entry = self.run.join("data").join(format!("b{}", disk.number));
        let (begun, mut pause) = (Instant::now(), POLL);
        loop {
            if has_seen(&entry, disk).await {
                self.waits.lock_whole().sum += begun.elapsed();
                return true;
            }
            let runs = tokio::fs::try_exists(self.run.join("control")).await.unwrap_or(false);
            // Others have waited at the same time.
            if !runs || self.is_spent() {
                return false;
            }
            if begun.elapsed() >= PATIENCE {
                *self.waits.lock_whole() = Waits { since: Some(Instant::now()), sum: BUDGET };
                tracing::warn!(
                    seconds = PATIENCE.as_secs(),
                    "udev has not seen to a new device in time: the daemon makes the paths of new devices for a minute. Are the rules \
                     60-glidefs.rules of this version installed?"
                );
                return false;
            }
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(POLL_MAX);
        }
    }

    /// Whether nobody is to wait any more in this period.
    fn is_spent(&self) -> bool {
        let mut waits = self.waits.lock_whole();
        if waits.since.is_none_or(|since| since.elapsed() >= SILENCE) {
            *waits = Waits { since: Some(Instant::now()), sum: Duration::ZERO };
        }
        waits.sum >= BUDGET
    }
}

async fn has_seen(entry: &Path, disk: &Disk) -> bool {
    let seq = disk.seq.to_string();
    let text = tokio::fs::read_to_string(entry).await.unwrap_or_default();
    text.lines().any(|line| line.strip_prefix(KEY) == Some(&seq))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udev() -> (tempfile::TempDir, Udev) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        std::fs::write(folder.path().join("control"), "").unwrap();
        let udev = Udev::at(folder.path().into());
        (folder, udev)
    }

    fn disk(seq: u64) -> Disk {
        Disk { seq, number: "259:3".into() }
    }

    fn note(folder: &tempfile::TempDir, seq: u64) {
        let text = format!("I:12345\nE:ID_X=1\n{KEY}{seq}\nG:systemd\n");
        std::fs::write(folder.path().join("data/b259:3"), text).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn udev_is_waited_for_until_udev_has_seen_this_disk_and_not_an_earlier_one_of_the_number() {
        let (folder, udev) = udev();
        note(&folder, 7);
        let disk = disk(8);
        let late = async {
            sleep(PATIENCE / 2).await;
            note(&folder, 8);
        };
        let begun = Instant::now();
        let (seen, ()) = tokio::join!(udev.sees(&disk), late);
        assert!(seen && begun.elapsed() >= PATIENCE / 2 && begun.elapsed() < PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_udev_costs_many_devices_the_time_of_one_and_then_nothing_for_a_minute() {
        let (folder, udev) = udev();
        let begun = Instant::now();
        let disks: Vec<_> = (0..64).map(disk).collect();
        let seen = futures_util::future::join_all(disks.iter().map(|disk| udev.sees(disk))).await;
        assert!(!seen.into_iter().any(|seen| seen));
        assert!(begun.elapsed() < PATIENCE + POLL_MAX * 2);
        let begun = Instant::now();
        for disk in &disks {
            assert!(!udev.sees(disk).await);
        }
        assert!(begun.elapsed().is_zero());
        note(&folder, 5);
        assert!(udev.sees(&disk(5)).await, "a look costs nothing");
        tokio::time::advance(SILENCE).await;
        let begun = Instant::now();
        assert!(!udev.sees(&disk(6)).await);
        assert!(begun.elapsed() >= PATIENCE, "udev may be well again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_udev_is_waited_for_within_a_budget() {
        let (folder, udev) = udev();
        let (begun, slow) = (Instant::now(), PATIENCE / 2);
        let mut seen = 0;
        for seq in 0..1000 {
            let disk = disk(seq);
            let late = async {
                sleep(slow).await;
                note(&folder, seq);
                std::future::pending::<bool>().await
            };
            seen += usize::from(tokio::select! { seen = udev.sees(&disk) => seen, late = late => late });
        }
        let spent = begun.elapsed();
        assert!(seen > 0 && spent >= BUDGET && spent < BUDGET + PATIENCE, "{seen} in {spent:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_where_no_udev_runs() {
        let (folder, udev) = udev();
        std::fs::remove_file(folder.path().join("control")).unwrap();
        let begun = Instant::now();
        assert!(!udev.sees(&disk(1)).await);
        assert!(begun.elapsed().is_zero());
        assert!(!udev.is_spent());
    }
}
