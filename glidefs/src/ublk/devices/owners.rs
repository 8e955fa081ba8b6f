//! A question to many devices, some of which may hang.
//!
//! Owns how many devices are asked at once. Does not own the question (`devices`), nor how long one device is waited for (`steps`).
//! Invariants: a device that hangs or fails costs no other device's answer; up to [`AT_ONCE_MAX`] devices that hang cost the time of one.

use std::future::ready;

use futures_util::{StreamExt, stream};

use crate::observe::chain;
use crate::router::devices::{DeviceError, DeviceId};

/// Devices asked at once, each on a thread.
const AT_ONCE_MAX: usize = 64;

/// The answers to `ask` of those `devices` which are there and answer, in the order of their numbers. An error is logged.
pub(super) async fn answered<T, A>(devices: Vec<DeviceId>, ask: impl Fn(DeviceId) -> A) -> Vec<(DeviceId, T)>
where
    A: Future<Output = Result<Option<T>, DeviceError>>,
{
    let asked = devices.into_iter().map(|id| {
        let answer = ask(id);
        async move { (id, answer.await) }
    });
    let heard = stream::iter(asked).buffer_unordered(AT_ONCE_MAX).filter_map(|(id, answer)| {
        let answer = answer.unwrap_or_else(|error| {
            tracing::error!(
                device_id = id.0,
                error = %chain(&error),
                "the kernel does not say whose a device is: if the device is an export's of this host, and the catalog has another \
                 number, the export gets a second device"
            );
            None
        });
        ready(answer.map(|answer| (id, answer)))
    });
    let mut answers: Vec<_> = heard.collect().await;
    answers.sort_unstable_by_key(|(id, _)| id.0);
    answers
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// As a kernel in which every second device hangs, device 5 fails, and device 7 is gone.
    async fn answer(id: DeviceId) -> Result<Option<u32>, DeviceError> {
        match id.0 {
            5 => Err(DeviceError::NoDriver),
            7 => Ok(None),
            number if number.is_multiple_of(2) => {
                sleep(LIMIT).await;
                Err(DeviceError::NoDriver)
            }
            number => Ok(Some(number)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn devices_that_hang_or_fail_cost_no_answer_of_another_device_and_the_time_of_one() {
        let begun = Instant::now();
        let devices = (1..=11).rev().map(DeviceId).collect();
        let heard = answered(devices, answer).await;
        assert_eq!(heard, [1, 3, 9, 11].map(|number| (DeviceId(number), number)));
        assert_eq!(begun.elapsed().as_secs(), LIMIT.as_secs());
    }
}
