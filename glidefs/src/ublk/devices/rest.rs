//! How long a device stays with its workers after a move, or after a try to move the device.
//!
//! Owns the rests of all devices, also of a device on the way. Does not own the choice of a device (`placement::moves`). Invariants: a
//! moved device rests, unless nobody has used the device since; a failed move doubles the next rests of the device, until a move
//! succeeds.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::DeviceKey;
use crate::locks::MutexExt;

/// How long a device rests, and the longest rest after moves that failed.
const REST: Duration = Duration::from_mins(1);
const REST_MAX: Duration = Duration::from_hours(1);

#[derive(Clone, Copy, Debug)]
struct Rest {
    since: Instant,
    /// Moves that failed since the last one that succeeded.
    failures: u32,
    /// Requests of the export before the device was moved. `None` where the device could not be moved.
    requests: Option<u64>,
}

impl Rest {
    fn begin(failures: u32, requests: Option<u64>) -> Self {
        Self { since: Instant::now(), failures, requests }
    }

    fn is_over(&self) -> bool {
        let length = REST.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.since.elapsed() >= length.min(REST_MAX)
    }
}

#[derive(Debug, Default)]
pub(super) struct Rests(Mutex<HashMap<DeviceKey, Rest>>);

impl Rests {
    /// Begins the rest of a moved device, whose export had so many `requests` before.
    pub fn moved(&self, key: DeviceKey, requests: u64) {
        self.0.lock_whole().insert(key, Rest::begin(0, Some(requests)));
    }

    /// Begins the rest of a device that was to be moved, and stayed because of requests under way.
    pub fn stayed(&self, key: DeviceKey) {
        let mut rests = self.0.lock_whole();
        let failures = rests.get(&key).map_or(0, |rest| rest.failures);
        rests.insert(key, Rest::begin(failures, None));
    }

    /// Begins the rest of a device whose move failed.
    pub fn failed(&self, key: DeviceKey) {
        let mut rests = self.0.lock_whole();
        let failures = rests.get(&key).map_or(0, |rest| rest.failures);
        rests.insert(key, Rest::begin(failures.saturating_add(1), None));
    }

    /// Whether a device rests. `requests` tells the requests of the export so far; `None` for a device with a load.
    pub fn is_resting(&self, key: DeviceKey, requests: impl FnOnce() -> Option<u64>) -> bool {
        let Some(rest) = self.0.lock_whole().get(&key).copied() else { return false };
        let is_unused = || rest.requests.is_some() && rest.requests == requests();
        !rest.is_over() && !is_unused()
    }

    /// Drops the rest of a device which is being removed.
    pub fn forget(&self, key: DeviceKey) {
        self.0.lock_whole().remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::devices::DeviceId;
    use crate::units::ExportId;

    const KEY: DeviceKey = (ExportId(1), DeviceId(7));

    #[tokio::test(start_paused = true)]
    async fn a_moved_device_rests_for_a_minute_unless_nobody_has_used_the_device() {
        let rests = Rests::default();
        assert!(!rests.is_resting(KEY, || Some(5)));
        rests.moved(KEY, 5);
        assert!(!rests.is_resting(KEY, || Some(5)));
        assert!(rests.is_resting(KEY, || Some(6)), "one request is enough");
        assert!(rests.is_resting(KEY, || None), "the device had a load before the move");
        tokio::time::advance(REST).await;
        assert!(!rests.is_resting(KEY, || Some(6)));
        rests.stayed(KEY);
        assert!(rests.is_resting(KEY, || Some(6)), "the device was to be moved in vain");
        rests.forget(KEY);
        assert!(!rests.is_resting(KEY, || None));
    }

    #[tokio::test(start_paused = true)]
    async fn each_failed_move_doubles_the_rest_up_to_an_hour() {
        let rests = Rests::default();
        let mut minutes = Vec::new();
        for _ in 0..8 {
            rests.failed(KEY);
            let begun = Instant::now();
            while rests.is_resting(KEY, || None) {
                tokio::time::advance(REST).await;
            }
            minutes.push(begun.elapsed().as_secs() / 60);
        }
        assert_eq!(minutes, [2, 4, 8, 16, 32, 60, 60, 60]);
        rests.stayed(KEY);
        tokio::time::advance(REST).await;
        assert!(rests.is_resting(KEY, || None), "no move has succeeded since");
        rests.moved(KEY, 0);
        tokio::time::advance(REST).await;
        assert!(!rests.is_resting(KEY, || None));
    }
}
