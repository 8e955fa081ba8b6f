//! The decisions against a model of a worker whose news comes after given times.

use proptest::prelude::*;

use super::*;

const MICRO: Duration = Duration::from_micros(1);
/// What a sleep takes longer than the news takes to come.
const WAKE_UP: Duration = Duration::from_micros(40);

/// The decisions of a worker, with the clock of the model.
struct Model {
    polling: Polling,
    now: Instant,
    /// Begin and length of each poll.
    polls: Vec<(Instant, Duration)>,
    found: usize,
    in_vain: Duration,
}

impl Model {
    fn new(percent: u8) -> Self {
        let now = Instant::now();
        let polling = Polling::new(NonZeroU8::new(percent).unwrap(), now);
        Self { polling, now, polls: Vec::new(), found: 0, in_vain: Duration::ZERO }
    }

    /// A wait whose news comes after `gap`. Returns whether the worker polled.
    fn wait(&mut self, awaited: Awaited, gap: Duration) -> bool {
        let Some(window) = self.polling.window(awaited, None, self.now) else {
            self.now += gap + WAKE_UP;
            self.polling.slept(awaited, gap + WAKE_UP);
            return false;
        };
        let found = gap <= window;
        let took = gap.min(window);
        self.polls.push((self.now, took));
        self.polling.polled(awaited, took, found);
        self.now += if found { gap } else { gap + WAKE_UP };
        self.found += usize::from(found);
        self.in_vain += if found { Duration::ZERO } else { took };
        true
    }

    /// So many waits of the same kind. Returns the number of polls.
    fn waits(&mut self, count: usize, gap: Duration) -> usize {
        let before = self.polls.len();
        for _ in 0..count {
            self.wait(Awaited::Clients, gap);
            self.now += 10 * MICRO;
        }
        self.polls.len() - before
    }
}

#[test]
fn a_worker_whose_news_comes_soon_polls_and_not_much_longer_than_the_news_takes() {
    for gap in [Duration::ZERO, MICRO, 5 * MICRO, 18 * MICRO, 31 * MICRO] {
        let mut model = Model::new(100);
        model.waits(20, gap);
        assert_eq!(model.waits(1000, gap), 1000, "{gap:?}");
        let window = model.polling.window(Awaited::Clients, None, model.now).unwrap();
        assert!(window >= gap && window <= (2 * gap).max(MICRO), "{window:?} for {gap:?}");
    }
}

#[test]
fn an_idle_worker_stops_polling_and_does_not_begin_again() {
    let mut model = Model::new(100);
    assert_eq!(model.waits(1000, Duration::from_millis(10)), 0, "nothing ever came soon");
    model.waits(1000, 5 * MICRO);
    assert!(model.waits(100, Duration::from_millis(10)) < 50);
    assert_eq!(model.waits(10_000, Duration::from_millis(10)), 0);
    assert!(model.waits(100, 5 * MICRO) > 80, "requests come again");
}

#[test]
fn news_that_comes_after_every_window_is_polled_for_ever_more_rarely() {
    let mut model = Model::new(100);
    model.waits(1000, 5 * MICRO);
    model.waits(1000, 80 * MICRO);
    assert!(model.waits(100 * 256, 80 * MICRO) <= 101);
    assert!(model.waits(300, 5 * MICRO) > 0, "a try finds that news comes sooner");
    assert_eq!(model.waits(1000, 5 * MICRO), 1000);
}

#[test]
fn a_slow_disk_is_not_polled_for_between_requests_that_come_soon() {
    let mut model = Model::new(100);
    let mut polls = [0; 2];
    for _ in 0..10_000 {
        for (number, awaited, gap) in [(0, Awaited::Disk, 120 * MICRO), (1, Awaited::Clients, 5 * MICRO)] {
            polls[number] += usize::from(model.wait(awaited, gap));
        }
    }
    assert!(polls[0] < 50 && polls[1] > 9_900, "{polls:?}");
}

#[test]
fn some_late_news_among_news_that_comes_soon_costs_a_short_window() {
    let mut model = Model::new(100);
    for _ in 0..1000 {
        model.waits(4, 5 * MICRO);
        model.waits(1, Duration::from_millis(1));
    }
    assert!(model.found > 3900, "{}", model.found);
    assert!(model.in_vain < 1000 * 10 * MICRO, "{:?}", model.in_vain);
}

#[test]
fn no_poll_outlasts_the_patience_of_the_wait() {
    let mut model = Model::new(100);
    model.waits(100, 5 * MICRO);
    let window = model.polling.window(Awaited::Clients, None, model.now).unwrap();
    let mut with = |patience| model.polling.window(Awaited::Clients, Some(patience), model.now);
    assert_eq!(with(window), Some(window));
    assert_eq!(with(window.saturating_sub(MICRO / 10)), None);
    assert_eq!(with(Duration::ZERO), None);
}

/// Waits: how long the news takes, and the work afterwards.
fn waits() -> impl Strategy<Value = Vec<(Duration, Duration)>> {
    let gap = prop_oneof![3 => 0..20_000_u64, 2 => 20_000..100_000_u64, 1 => 100_000..3_000_000_u64];
    let run = (gap, 0..30_000_u64, 1..60_usize);
    prop::collection::vec(run, 1..20).prop_map(|runs| {
        let wait = |(gap, work, count)| {
            std::iter::repeat_n((Duration::from_nanos(gap), Duration::from_nanos(work)), count)
        };
        runs.into_iter().flat_map(wait).collect()
    })
}

proptest! {
    #[test]
    fn no_sequence_of_waits_makes_a_worker_poll_beyond_its_percentage(percent in 1..=100_u8, waits in waits()) {
        let mut model = Model::new(percent);
        for (gap, work) in waits {
            model.wait(Awaited::Clients, gap);
            model.now += work;
        }
        // Hundredths of the most that was polled, up to a poll, beyond the share of the time since some poll before.
        let (mut excess, mut before) = (Duration::ZERO, model.now);
        for (at, took) in model.polls {
            excess = excess.saturating_sub(at.saturating_duration_since(before) * percent.into()) + took * 100;
            prop_assert!(excess <= BURST * percent.into(), "{excess:?} at {percent} %");
            before = at;
        }
    }

    #[test]
    fn time_polled_in_vain_is_bounded_by_what_polling_has_saved(waits in waits()) {
        let mut model = Model::new(100);
        let count = u32::try_from(waits.len()).unwrap();
        for (gap, work) in waits {
            model.wait(Awaited::Clients, gap);
            model.now += work;
        }
        let saved = WINDOW_MAX * u32::try_from(model.found + 1).unwrap();
        prop_assert!(model.in_vain <= 10 * saved + WINDOW_MAX * count / TRY_PAUSE_MAX);
    }
}
