//! How busy a worker is: the CPU time of the thread, and the share of a CPU which the thread took of late.
//!
//! Reads the kernel's account of the thread, from outside. Does not own the moments at which a share is taken ([`LOAD_INTERVAL`], kept by the daemon).

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use crate::locks::MutexExt;

/// The time over which a share is taken.
pub const LOAD_INTERVAL: Duration = Duration::from_secs(5);

/// The clock which counts the CPU time of the calling thread, for any thread of this process to read.
pub fn cpu_clock() -> io::Result<ClockId> {
    let mut clock = MaybeUninit::uninit();
    // SAFETY: pthread_self names a living thread, the caller's, and the kernel's library writes one clock id to a place for one.
    match unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), clock.as_mut_ptr()) } {
        // SAFETY: the call has succeeded, and so has written the id.
        0 => Ok(ClockId::from_raw(unsafe { clock.assume_init() })),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The load of one worker, which has taken no time before the worker's thread [begins](Self::begin).
#[derive(Debug, Default)]
pub struct Load {
    clock: OnceLock<ClockId>,
    /// When the last share was taken, and the CPU time then.
    last: Mutex<Option<(Instant, Duration)>>,
    busy_percent: AtomicU64,
}

impl Load {
    /// Counts the CPU time of the calling thread from now on.
    pub fn begin(&self) -> io::Result<()> {
        let clock = cpu_clock()?;
        self.clock.get_or_init(|| clock);
        self.sample();
        Ok(())
    }

    /// CPU time which the thread has taken so far, in user space and in the kernel.
    pub fn cpu_time(&self) -> Duration {
        self.clock.get().and_then(|clock| clock_gettime(*clock).ok()).map_or(Duration::ZERO, Duration::from)
    }

    /// Takes the share of a CPU since the last call.
    pub fn sample(&self) {
        let now = (Instant::now(), self.cpu_time());
        if let Some(last) = self.last.lock_whole().replace(now) {
            self.busy_percent.store(share(last, now), Ordering::Relaxed);
        }
    }

    /// The share of a CPU at the last sample, per cent.
    pub fn busy_percent(&self) -> u64 {
        self.busy_percent.load(Ordering::Relaxed)
    }
}

/// CPU time in per cent of the time between two moments.
fn share(before: (Instant, Duration), now: (Instant, Duration)) -> u64 {
    let (busy, elapsed) = (now.1.saturating_sub(before.1), now.0.saturating_duration_since(before.0));
    let percent = (busy.as_nanos() * 100).checked_div(elapsed.as_nanos()).unwrap_or(0);
    u64::try_from(percent).unwrap_or(u64::MAX).min(100)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_share_is_cpu_time_in_time() {
        let begin = Instant::now();
        let (before, second) = ((begin, Duration::from_secs(7)), Duration::from_secs(1));
        let share_of = |elapsed, busy| share(before, (begin + elapsed, before.1 + busy));
        assert_eq!(share_of(4 * second, second), 25);
        assert_eq!(share_of(second, second), 100);
        assert_eq!(share_of(second, 2 * second), 100, "clocks of different grain");
        assert_eq!(share_of(second, Duration::ZERO), 0);
        assert_eq!(share_of(Duration::ZERO, second), 0, "no time has passed");
    }

    #[test]
    fn the_cpu_time_of_a_thread_is_read_from_another() {
        let load = Arc::new(Load::default());
        let (begun, has_begun) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let own = Arc::clone(&load);
        let thread = std::thread::spawn(move || {
            own.begin().unwrap();
            begun.send(()).unwrap();
            let mut sum = 0_u64;
            while ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
        });
        has_begun.recv().unwrap();
        let before = load.cpu_time();
        while load.cpu_time() < before + Duration::from_millis(5) {
            std::thread::yield_now();
        }
        // However little of the CPU the machine leaves for the thread, some sample shows the thread busy.
        while load.busy_percent() == 0 {
            load.sample();
        }
        end.send(()).unwrap();
        thread.join().unwrap();
    }
}
