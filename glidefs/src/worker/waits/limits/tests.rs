//! Limits in virtual time: random arrivals at several workers which serve queues of one export.

use proptest::prelude::*;

use super::*;
use crate::cache::Volume;
use crate::properties::limits::{Limit, Limits, Settings};
use crate::units::SectorRange;
use crate::worker::tag::TagId;

const WORKERS: usize = 3;
const WINDOW: Duration = Duration::from_secs(10);
const RUN: Duration = Duration::from_secs(21);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A request which has gone on: when, on which worker, and its number and bytes.
#[derive(Clone, Copy, Debug)]
struct Delivered {
    at: Duration,
    worker: usize,
    number: u16,
    bytes: u64,
}

/// A worker which turns when a request comes, when a request is due, and late by up to `late`.
struct World {
    start: Instant,
    now: Duration,
    export: Arc<Export>,
    workers: Vec<LimitedRequests>,
    delivered: Vec<Delivered>,
    number: u16,
}

fn export(id: u32) -> Arc<Export> {
    let id = ExportId(id);
    Arc::new(Export::new(id, "e".into(), 1 << 30, Arc::new(Volume::new(id))))
}

fn settings(rates: &[(Limit, u64)], burst: Duration) -> Settings {
    let mut settings = Settings { limits: Limits::unlimited(burst), ..Settings::default() };
    for (limit, rate) in rates {
        settings.limits.set_rate(*limit, Some(*rate));
    }
    settings
}

fn request(operation: Operation, number: u16, bytes: u64, started: Instant) -> TagRequest {
    let tag = TagId { queue_index: 0, tag: number };
    TagRequest {
        tag,
        operation,
        range: SectorRange::new(0, bytes / 512).unwrap(),
        fua: false,
        kept: None,
        promised: false,
        started,
    }
}

impl World {
    fn new(settings: &Settings) -> Self {
        let export = export(1);
        export.set_settings(settings);
        Self {
            start: Instant::now(),
            now: Duration::ZERO,
            export,
            workers: (0..WORKERS).map(|_| LimitedRequests::default()).collect(),
            delivered: Vec::new(),
            number: 0,
        }
    }

    fn instant(&self) -> Instant {
        self.start + self.now
    }

    fn go_on(&mut self, worker: usize, request: &TagRequest) {
        let (at, bytes) = (self.now, request.data_bytes() as u64);
        self.delivered.push(Delivered { at, worker, number: request.tag.tag, bytes });
    }

    fn arrive(&mut self, worker: usize, operation: Operation, bytes: u64) {
        let request = request(operation, self.number, bytes, self.instant());
        self.number = self.number.wrapping_add(1);
        let (now, export) = (self.instant(), Arc::clone(&self.export));
        if !self.workers[worker].holds_back(&request, &export, now) {
            self.go_on(worker, &request);
        }
    }

    fn turn(&mut self, worker: usize) {
        let now = self.instant();
        while let Some(request) = self.workers[worker].next(now) {
            self.go_on(worker, &request);
        }
    }

    fn waiting(&self) -> usize {
        self.workers.iter().flat_map(|worker| worker.lines.values()).map(|line| line.requests.len()).sum()
    }

    /// Most units which went on in any window that begins with a delivery.
    fn most_in_a_window(&self, units: impl Fn(&Delivered) -> u64) -> u64 {
        let mut most = 0;
        let (mut sum, mut end) = (0, 0);
        for begin in 0..self.delivered.len() {
            while end < self.delivered.len() && self.delivered[end].at < self.delivered[begin].at + WINDOW {
                sum += units(&self.delivered[end]);
                end += 1;
            }
            most = most.max(sum);
            sum -= units(&self.delivered[begin]);
        }
        most
    }

    fn between(&self, from: Duration, to: Duration, units: impl Fn(&Delivered) -> u64) -> u64 {
        self.delivered.iter().filter(|one| one.at >= from && one.at < to).map(units).sum()
    }
}

/// Runs a world in steps of a millisecond with random arrivals until [`RUN`]. Each worker turns late, by up to `late` milliseconds.
fn run(world: &mut World, arrivals: &[(u8, u8, u8)], late: u64) {
    let mut arrivals = arrivals.iter().cycle();
    let mut asleep = [0_u64; WORKERS];
    while world.now < RUN {
        for (worker, asleep) in asleep.iter_mut().enumerate() {
            let &(count, size, pause) = arrivals.next().unwrap();
            // Demand is kept up: a closed loop of clients with many tags.
            for _ in 0..count {
                if world.waiting() >= 512 {
                    break;
                }
                world.arrive(worker, Operation::Write, (u64::from(size) % 32 + 1) * 4096);
            }
            if *asleep == 0 {
                world.turn(worker);
                *asleep = u64::from(pause) % (late + 1);
            } else {
                *asleep -= 1;
            }
        }
        world.now += MILLISECOND;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn no_window_exceeds_the_limits_and_demand_gets_what_the_tighter_one_allows(
        iops in 50_u64..4000,
        bytes_per_second in (1_u64 << 20)..(64 << 20),
        burst_millis in 10_u64..1000,
        late in 0_u64..6,
        arrivals in prop::collection::vec((1_u8..16, any::<u8>(), any::<u8>()), 8..64),
    ) {
        let burst = Duration::from_millis(burst_millis);
        let rates = [(Limit::WriteIops, iops), (Limit::WriteBytes, bytes_per_second)];
        let mut world = World::new(&settings(&rates, burst));
        run(&mut world, &arrivals, late);

        let workers = WORKERS as u64;
        let largest = 128 << 10;
        let burst_part = |rate: u64| rate * burst_millis / 1000;
        let operations = world.most_in_a_window(|_| 1);
        prop_assert!(operations <= iops * 10 + burst_part(iops).max(1) + workers + 1, "{operations} of {iops}");
        let bytes = world.most_in_a_window(|one| one.bytes);
        let bound = bytes_per_second * 10 + burst_part(bytes_per_second).max(largest) + (workers + 1) * largest;
        prop_assert!(bytes <= bound, "{bytes} of {bytes_per_second}");

        let (from, to) = (Duration::from_secs(10), Duration::from_secs(20));
        let used = |units: u64, rate: u64| units * 1000 / (rate * 10);
        let part = used(world.between(from, to, |_| 1), iops)
            .max(used(world.between(from, to, |one| one.bytes), bytes_per_second));
        let demand = arrivals.iter().map(|arrival| u64::from(arrival.0)).sum::<u64>() * 1000 * workers / arrivals.len() as u64;
        prop_assert!(part >= 950 || demand < 2 * iops, "{part} ‰ of the tighter limit, {iops} IOPS, {bytes_per_second} B/s");
    }

    #[test]
    fn requests_of_one_queue_go_on_in_the_order_of_arrival(
        iops in 50_u64..5000,
        arrivals in prop::collection::vec((0_u8..20, any::<u8>(), any::<u8>()), 1..32),
    ) {
        let mut world = World::new(&settings(&[(Limit::WriteIops, iops)], Limits::BURST_DEFAULT));
        run(&mut world, &arrivals, 2);
        for worker in 0..WORKERS {
            let numbers: Vec<u16> =
                world.delivered.iter().filter(|one| one.worker == worker).map(|one| one.number).collect();
            prop_assert!(numbers.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) < 1 << 15));
        }
    }
}

#[test]
fn workers_which_serve_one_export_share_the_limit_evenly() {
    let mut world = World::new(&settings(&[(Limit::WriteIops, 1000)], Limits::BURST_DEFAULT));
    run(&mut world, &[(20, 0, 0)], 0);
    for worker in 0..WORKERS {
        let part = world.delivered.iter().filter(|one| one.worker == worker).count() * WORKERS;
        assert!((part as u64).abs_diff(world.delivered.len() as u64) * 10 < world.delivered.len() as u64);
    }
}

#[test]
fn a_change_of_the_limits_reaches_waiting_requests_within_a_second() {
    for faster in [Some(1000), None] {
        let mut world = World::new(&settings(&[(Limit::WriteIops, 1)], Limits::BURST_DEFAULT));
        for _ in 0..200 {
            world.arrive(0, Operation::Write, 4096);
        }
        world.turn(0);
        assert_eq!(world.delivered.len(), 1);
        let rates: Vec<_> = faster.map(|rate| (Limit::WriteIops, rate)).into_iter().collect();
        world.export.set_settings(&settings(&rates, Limits::BURST_DEFAULT));
        world.arrive(0, Operation::Write, 4096);
        assert_eq!(world.delivered.len(), 1, "a newcomer does not overtake");
        while world.waiting() > 0 {
            let due = world.workers[0].due().unwrap();
            world.now = world.now.max(due - world.start);
            world.turn(0);
        }
        assert!(world.now < Duration::from_secs(1), "{faster:?}: {:?}", world.now);
    }
}

#[test]
fn a_large_request_is_not_kept_waiting_by_small_ones_of_another_worker() {
    let mut world = World::new(&settings(&[(Limit::WriteBytes, 1 << 20)], Limits::BURST_MIN));
    for _ in 0..64 {
        world.arrive(0, Operation::Write, 4096);
    }
    world.arrive(1, Operation::Write, 128 << 10);
    while world.delivered.iter().all(|one| one.worker == 0) {
        assert!(world.now < Duration::from_secs(1), "the large request was overtaken again and again");
        for worker in 0..2 {
            world.turn(worker);
        }
        world.arrive(0, Operation::Write, 4096);
        world.now += MILLISECOND;
    }
}

#[test]
fn reads_do_not_wait_behind_writes_nor_other_exports_behind_a_limited_one() {
    let mut world = World::new(&settings(&[(Limit::WriteIops, 1)], Limits::BURST_DEFAULT));
    for operation in [Operation::Write, Operation::Discard, Operation::WriteZeroes] {
        world.arrive(0, operation, 4096);
    }
    assert_eq!((world.delivered.len(), world.waiting()), (1, 2));
    world.arrive(0, Operation::Read, 4096);
    world.arrive(0, Operation::Flush, 0);
    assert_eq!(world.delivered.len(), 3);
    let other = export(2);
    let now = world.instant();
    assert!(!world.workers[0].holds_back(&request(Operation::Write, 9, 4096, now), &other, now));
}

#[test]
fn requests_of_an_export_whose_waits_are_ended_are_given_back_in_order_and_later_ones_do_not_wait() {
    let mut world = World::new(&settings(&[(Limit::WriteIops, 1)], Limits::BURST_DEFAULT));
    for _ in 0..4 {
        world.arrive(0, Operation::Write, 4096);
    }
    let (other, now) = (export(2), world.instant());
    other.set_settings(&settings(&[(Limit::ReadIops, 1)], Limits::BURST_DEFAULT));
    assert!(!world.workers[0].holds_back(&request(Operation::Read, 7, 4096, now), &other, now));
    assert!(world.workers[0].holds_back(&request(Operation::Read, 8, 4096, now), &other, now));
    assert_eq!(world.workers[0].stop().len(), 0, "no waits are ended");
    world.export.volume().end_waits();
    let stopped: Vec<u16> = world.workers[0].stop().iter().map(|request| request.tag.tag).collect();
    assert_eq!(stopped, [1, 2, 3]);
    world.arrive(0, Operation::Write, 4096);
    assert_eq!(world.delivered.len(), 2);
    assert_eq!(world.waiting(), 1, "the other export goes on waiting");
    assert!(world.workers[0].due().is_some());
}

#[test]
fn what_waited_is_counted_for_the_limit_which_made_it_wait() {
    let mut world =
        World::new(&settings(&[(Limit::WriteIops, 10), (Limit::WriteBytes, 1 << 30)], Limits::BURST_DEFAULT));
    for _ in 0..3 {
        world.arrive(0, Operation::Write, 4096);
    }
    while world.waiting() > 0 {
        world.now = world.workers[0].due().unwrap() - world.start;
        world.turn(0);
    }
    let figures: Vec<_> = world.export.throttle().unwrap().figures().collect();
    assert_eq!((figures[0].limit, figures[0].throttled), (Limit::WriteIops, 2));
    assert!(figures[0].waited_nanos >= 300_000_000, "{figures:?}");
    assert_eq!(figures[1].throttled, 0);
}
