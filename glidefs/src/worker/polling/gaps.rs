//! How long news takes to come, and for how long looking for news pays.
//!
//! Keeps how many of the last waits ended within each of a few times, with the weight of a wait falling by a [`FADE`]th part with each
//! later one. For each of these times as the window the recent waits tell the cost: a wait which ends in the window costs the time polled, any other
//! the window and a sleep. The window with the lowest cost is the best; where no window beats sleeping at once, there is none.

use std::time::Duration;

/// The times that are told apart, nanoseconds. Each is also a window.
const TIMES: [u32; 8] = [1_000, 2_000, 4_000, 8_000, 12_000, 20_000, 32_000, 50_000];
/// The longest window: no poll is meant to last longer.
pub const WINDOW_MAX: Duration = Duration::from_nanos(TIMES[TIMES.len() - 1] as u64);
/// Time worth polling to save a sleep, nanoseconds: about what the sleep and the wake-up of a thread take in a virtual machine. Where CPUs are
/// awake sooner, the CPU time of the operator's budget buys less.
const SLEEP: u64 = TIMES[TIMES.len() - 1] as u64;
/// The weight of a wait that has just ended.
const WEIGHT: u32 = 1 << 12;
/// The part of all weights that fades with each wait.
const FADE: u32 = 16;

/// How soon news came in the recent waits.
#[derive(Debug, Default)]
pub struct Gaps {
    /// Weights of waits with news within each of [`TIMES`], and not sooner.
    within: [u32; TIMES.len()],
    /// Weight of all other waits.
    beyond: u32,
    best: Option<Duration>,
}

impl Gaps {
    /// Takes note of a wait with news after `gap`, or after more than [`WINDOW_MAX`] or an unknown time.
    pub fn record(&mut self, gap: Option<Duration>) {
        for weight in self.within.iter_mut().chain([&mut self.beyond]) {
            *weight -= weight.div_ceil(FADE);
        }
        let place =
            gap.and_then(|gap| TIMES.iter().position(|&time| gap <= Duration::from_nanos(time.into())));
        *place.map_or(&mut self.beyond, |place| &mut self.within[place]) += WEIGHT;
        self.best = self.cheapest();
    }

    /// The window which would have cost the recent waits least; `None` where sleeping at once would.
    pub fn best(&self) -> Option<Duration> {
        self.best
    }

    fn cheapest(&self) -> Option<Duration> {
        let all: u64 = self.within.iter().chain([&self.beyond]).map(|&weight| u64::from(weight)).sum();
        let (mut best, mut least) = (None, all * SLEEP);
        let (mut ended, mut polled) = (0, 0);
        for (time, weight) in TIMES.into_iter().map(u64::from).zip(self.within.map(u64::from)) {
            ended += weight;
            polled += weight * time;
            let cost = polled + (all - ended) * (time + SLEEP);
            if cost < least {
                (best, least) = (Some(Duration::from_nanos(time)), cost);
            }
        }
        best
    }
}
