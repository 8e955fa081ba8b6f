//! The wait between two turns: looking at the ring for as long as that pays, then asleep.
//!
//! Does not own how long looking pays ([`Polling`](crate::worker::polling::Polling)).

use std::io;
use std::time::{Duration, Instant};

use super::Loop;
use crate::worker::polling::Awaited;

/// Looks at the ring between two looks at the clock.
const LOOKS: usize = 8;

impl Loop {
    /// Gives the queued entries to the kernel, and waits for completions, at most for `patience`. Returns the moment of the end.
    pub(super) fn wait(&mut self, patience: Option<Duration>) -> io::Result<Instant> {
        let Self { ring, polling, stats, .. } = self;
        let may_poll = polling.as_mut().filter(|_| patience != Some(Duration::ZERO) && !ring.has_news());
        let Some(polling) = may_poll else {
            ring.submit_and_wait(patience)?;
            return Ok(Instant::now());
        };
        // The read of the inbox is always under way.
        let awaited = if ring.operations() > 1 { Awaited::Disk } else { Awaited::Clients };
        let begin = Instant::now();
        let Some(window) = polling.window(awaited, patience, begin) else {
            ring.submit_and_wait(patience)?;
            let now = Instant::now();
            let took = now.saturating_duration_since(begin);
            if patience.is_none_or(|patience| took < patience) {
                polling.slept(awaited, took);
            }
            return Ok(now);
        };
        // The kernel has to have the answers before: clients send the next requests when they have these.
        ring.submit()?;
        let lookout = ring.lookout();
        // News which came with the submit would have ended a wait at once, so it says nothing of polls.
        if !lookout.had_news() {
            let (took, found) = poll(window, || lookout.has_news());
            polling.polled(awaited, took, found);
            stats.polls.add(1);
            stats.polls_with_news.add(u64::from(found));
            stats.poll_nanos.add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
        drop(lookout);
        // After news as well: the kernel finishes deferred completions only in a call.
        ring.submit_and_wait(patience.map(|patience| patience.saturating_sub(begin.elapsed())))?;
        Ok(Instant::now())
    }
}

/// Asks `has_news` until the answer is yes, or `window` has passed. Returns the time taken, and the answer. The time is never above
/// `window`: what goes beyond is time in which the thread did not have the CPU.
fn poll(window: Duration, has_news: impl Fn() -> bool) -> (Duration, bool) {
    let begin = Instant::now();
    loop {
        let found = (0..LOOKS).any(|_| {
            // In a virtual machine this may let the other CPUs run.
            std::hint::spin_loop();
            has_news()
        });
        let took = begin.elapsed();
        if found || took >= window {
            return (took.min(window), found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_during_which_the_thread_loses_the_cpu_takes_its_window_and_no_longer() {
        let window = Duration::from_micros(50);
        for found in [false, true] {
            let lose_the_cpu = || {
                std::thread::sleep(Duration::from_millis(2));
                found
            };
            assert_eq!(poll(window, lose_the_cpu), (window, found));
        }
    }

    #[test]
    fn a_poll_ends_with_the_news() {
        let (took, found) = poll(Duration::from_hours(1), || true);
        assert!(found && took < Duration::from_hours(1));
    }
}
