//! How long a worker looks at its ring before the worker sleeps.
//!
//! A sleeping worker learns of news late: the kernel first has to wake the thread, and often the CPU, and whoever brings the news pays for
//! a part of that. A worker which looks at the ring, *polls*, learns at once, and takes CPU time meanwhile. So a worker polls
//! while news is likely to come soon ([`Gaps`]), and sleeps at once otherwise:
//!
//! ```text
//!  a wait of the ring           teaches
//!  ───────────────────────────  ───────────────────────────────────────────────────────────────────────────
//!  polled, and news came        how long news takes
//!  polled in vain, then slept   news takes long
//!  slept for long ([`FAR`])     news takes long
//!  slept for a short time       nothing, as the wake-up may have taken most of the time; from time to time such a
//!                               sleep is followed by a try: a poll of the longest window
//! ```
//!
//! Whatever the waits teach, the time polled is at most a part of a CPU ([`Budget`]). That is also the bound on what other threads on the
//! worker's CPU lose: a poll does not give way to these.
//!
//! Owns the decision. Does not own the look at the ring (`run/wait.rs`), clocks, nor the choice of the configuration.

mod gaps;
#[cfg(test)]
mod tests;

use std::num::NonZeroU8;
use std::time::{Duration, Instant};

use gaps::{Gaps, WINDOW_MAX};

/// News is far when a sleep took so long: even where the wake-up took several windows, a poll would have found nothing.
const FAR: Duration = Duration::from_micros(250);
/// Most short sleeps between two tries.
const TRY_PAUSE_MAX: u32 = 256;

/// What a wait is for. The two take different times, so a worker learns about each apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Requests of clients, and nothing else.
    Clients,
    /// An operation on the disk, or a request.
    Disk,
}

/// The decisions of one worker, and what they rest on.
#[derive(Debug)]
pub struct Polling {
    budget: Budget,
    clients: Habit,
    disk: Habit,
}

impl Polling {
    /// For a worker which may poll for so many per cent of the time.
    pub fn new(percent: NonZeroU8, now: Instant) -> Self {
        Self {
            budget: Budget { percent, left: Duration::ZERO, at: now },
            clients: Habit::default(),
            disk: Habit::default(),
        }
    }

    /// How long to poll before a wait of at most `patience`; `None` to sleep at once. Tell the end of the wait to
    /// [`polled`](Self::polled) or [`slept`](Self::slept).
    pub fn window(&mut self, awaited: Awaited, patience: Option<Duration>, now: Instant) -> Option<Duration> {
        let window = self.habit(awaited).window()?;
        let ends_before = patience.is_some_and(|patience| patience < window);
        (!ends_before && self.budget.has(window, now)).then_some(window)
    }

    /// Learns from a poll of length `took`, at most the window.
    pub fn polled(&mut self, awaited: Awaited, took: Duration, found: bool) {
        self.budget.take(took);
        self.habit(awaited).polled(took, found);
    }

    /// Learns from a sleep of length `took`, before which nothing was polled, and which news has ended.
    pub fn slept(&mut self, awaited: Awaited, took: Duration) {
        self.habit(awaited).slept(took);
    }

    fn habit(&mut self, awaited: Awaited) -> &mut Habit {
        match awaited {
            Awaited::Clients => &mut self.clients,
            Awaited::Disk => &mut self.disk,
        }
    }
}

/// What the waits of one kind have taught the worker.
#[derive(Debug, Default)]
struct Habit {
    gaps: Gaps,
    /// Short sleeps since the last poll.
    short_sleeps: u32,
    /// Short sleeps before the next try: twice as many after each one in vain.
    try_pause: u32,
    /// Whether the last poll found news.
    has_found: bool,
}

impl Habit {
    fn window(&self) -> Option<Duration> {
        let tries = self.has_found || self.short_sleeps > self.try_pause;
        self.gaps.best().or(tries.then_some(WINDOW_MAX))
    }

    fn polled(&mut self, took: Duration, found: bool) {
        if found {
            self.try_pause = 0;
        } else if self.gaps.best().is_none() {
            self.try_pause = (2 * self.try_pause).clamp(1, TRY_PAUSE_MAX);
        }
        self.short_sleeps = 0;
        self.has_found = found;
        self.gaps.record(found.then_some(took));
    }

    fn slept(&mut self, took: Duration) {
        if took >= FAR {
            self.gaps.record(None);
        } else {
            self.short_sleeps = self.short_sleeps.saturating_add(1);
        }
    }
}

/// The time over which an unused budget adds up.
const BURST: Duration = Duration::from_millis(10);

/// The time that may be polled: a token bucket. In any time `t` a worker polls for `percent` of `t + BURST` at most.
#[derive(Debug)]
struct Budget {
    percent: NonZeroU8,
    left: Duration,
    /// The moment for which `left` is right.
    at: Instant,
}

impl Budget {
    fn has(&mut self, window: Duration, now: Instant) -> bool {
        let share = |time: Duration| time * u32::from(self.percent.get()) / 100;
        // A fraction of a nanosecond of the share is lost with each call, in favour of the bound.
        let elapsed = now.saturating_duration_since(self.at).min(BURST);
        self.left = (self.left + share(elapsed)).min(share(BURST));
        self.at = self.at.max(now);
        self.left >= window
    }

    fn take(&mut self, took: Duration) {
        self.left = self.left.saturating_sub(took);
    }
}
