//! A neighbour of an export that floods the worker: how much of the flood is served between the arrival of the neighbour's
//! request and the answer. Counted in bytes, not in time.

use super::watched::{Flood, Watched, Watcher};
use super::*;
use crate::worker::waits::ready::TURN_COST;

const LARGE_BYTES: u64 = 128 << 10;
const LARGE_SECTORS: u64 = LARGE_BYTES / 512;
/// Queues of the flood: 128 requests at the same time.
const QUEUES: u64 = 128 / DEPTH as u64;
/// Requests of the neighbour, one after the other.
const ROUNDS: u64 = 20;
/// Bytes of a segment of [`Bench`].
const SEGMENT_BYTES: u64 = 1 << 20;

/// What the worker did, in the order in which the worker did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    FloodCopied,
    FloodServed,
    NeighbourSeen,
    NeighbourServed,
}

/// The events, and whether the flood goes on.
#[derive(Default)]
struct Watch {
    events: Mutex<Vec<Event>>,
    is_over: AtomicBool,
    /// How long copying a request of the flood takes.
    copying: Duration,
    /// Queues of the flood, instead of [`QUEUES`].
    queues: Option<u64>,
}

/// Notes events of a queue. Requests of the flood are sent again once answered.
struct Notes {
    watch: Arc<Watch>,
    /// Sends requests again, for queues of the flood.
    again: Option<Flood>,
}

impl Notes {
    fn note(&self, event: Event) {
        self.watch.events.lock().unwrap().push(event);
    }
}

impl Watcher for Notes {
    fn answer(
        &mut self,
        queue: &mut PipeQueue,
        tag: u16,
        fixed: u32,
        result: Result<u32, &Failure>,
    ) -> squeue::Entry {
        let is_over = self.watch.is_over.load(Ordering::Acquire);
        let Some(flood) = &mut self.again else {
            self.note(Event::NeighbourServed);
            return queue.answer(tag, fixed, result);
        };
        let entry = flood.answer(queue, (tag, fixed), result, is_over);
        self.note(Event::FloodServed);
        entry
    }

    fn request(&self, queue: &PipeQueue, tag: u16) -> Result<Request, Failure> {
        if self.again.is_none() {
            self.note(Event::NeighbourSeen);
        }
        queue.request(tag)
    }

    fn copy_in(&self, queue: &PipeQueue, tag: u16, start: usize, buffer: &mut [u8]) -> io::Result<()> {
        if self.again.is_some() {
            self.note(Event::FloodCopied);
            std::thread::sleep(self.watch.copying);
        }
        queue.copy_in(tag, start, buffer)
    }

    fn copy_out(&self, queue: &PipeQueue, tag: u16, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if self.again.is_some() { Ok(()) } else { queue.copy_out(tag, parts) }
    }
}

/// The events of a neighbour's requests, one after the other, beside a flood.
async fn events_beside_a_flood(bench: &Bench, of_flood: Operation, of_neighbour: Operation) -> Vec<Event> {
    events_of(bench, (of_flood, of_neighbour), Watch::default()).await
}

async fn events_of(
    bench: &Bench,
    (of_flood, of_neighbour): (Operation, Operation),
    watch: Watch,
) -> Vec<Event> {
    let watch = Arc::new(watch);
    let (flooding, neighbour) = (bench.export(1), bench.export(2));
    let mut flood = Vec::new();
    for _ in 0..watch.queues.unwrap_or(QUEUES) {
        let client = Client::attach_with(&bench.worker, &flooding, |queue, pipes| {
            let notes = Notes { watch: Arc::clone(&watch), again: Some(Flood::new(pipes)) };
            Box::new(Watched { queue, watcher: notes })
        });
        flood.push(client.await.unwrap());
    }
    let client = Client::attach_with(&bench.worker, &neighbour, |queue, _| {
        Box::new(Watched { queue, watcher: Notes { watch: Arc::clone(&watch), again: None } })
    });
    let mut client = client.await.unwrap();
    for (number, queue) in (0..).zip(&mut flood) {
        for tag in 0..DEPTH {
            let place = (number * u64::from(DEPTH) + u64::from(tag)) * LARGE_SECTORS;
            queue.start(tag, of_flood, place % (1 << 15), LARGE_SECTORS, vec![1; LARGE_BYTES as usize]);
        }
    }
    for round in 0..ROUNDS {
        assert_eq!(client.run(of_neighbour, round * 8, 8, vec![2; 4096]).0, Ok(4096));
    }
    watch.is_over.store(true, Ordering::Release);
    for queue in &flood {
        for tag in 0..DEPTH {
            queue.finish(tag).0.unwrap();
        }
    }
    client.detach().await;
    for queue in flood {
        queue.detach().await;
    }
    let events = std::mem::take(&mut *watch.events.lock().unwrap());
    assert_eq!(events.iter().filter(|event| **event == Event::NeighbourSeen).count() as u64, ROUNDS);
    events
}

/// The bytes of events `of_flood` between the arrival of each request of the neighbour and the answer, the fewest first.
fn bytes_between(events: &[Event], of_flood: Event) -> Vec<u64> {
    let (mut all, mut bytes, mut is_waiting) = (Vec::new(), 0, false);
    for event in events {
        match event {
            Event::NeighbourSeen => (bytes, is_waiting) = (0, true),
            Event::NeighbourServed => {
                all.push(bytes);
                is_waiting = false;
            }
            event if *event == of_flood && is_waiting => bytes += LARGE_BYTES,
            Event::FloodCopied | Event::FloodServed => {}
        }
    }
    all.sort_unstable();
    all
}

fn most_between(events: &[Event], of_flood: Event) -> u64 {
    bytes_between(events, of_flood).last().copied().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_beside_a_flood_of_reads_is_answered_within_the_turn_in_which_it_was_seen() {
    // Memory for the whole flood.
    let bench = Bench::sized(Engine::default(), Known::local(&[]), 160);
    let events = events_beside_a_flood(&bench, Operation::Read, Operation::Read).await;
    let served = most_between(&events, Event::FloodServed);
    assert!(served <= TURN_COST, "{served} bytes of the flood came first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_beside_a_flood_from_one_queue_is_answered_within_the_turn_in_which_it_was_seen() {
    let bench = Bench::sized(Engine::default(), Known::local(&[]), 160);
    let watch = Watch { queues: Some(1), ..Watch::default() };
    let events = events_of(&bench, (Operation::Read, Operation::Read), watch).await;
    let served = most_between(&events, Event::FloodServed);
    assert!(served <= TURN_COST, "{served} bytes of the flood came first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_beside_a_flood_of_writes_waits_for_a_few_turns_where_log_space_and_slots_are_short() {
    let bench = Bench::new();
    let events = events_beside_a_flood(&bench, Operation::Write, Operation::Write).await;
    let served = most_between(&events, Event::FloodServed);
    // A segment of writes that were admitted before. Then the write is ready three times: when new, with log space, with a slot;
    // each time during a turn.
    assert!(served <= SEGMENT_BYTES + 3 * TURN_COST, "{served} bytes of the flood came first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_comes_together_with_the_writes_of_a_flood_is_answered_before_these() {
    // Memory for the whole flood.
    let bench = Bench::sized(Engine::default(), Known::local(&[]), 160);
    let mut client = Client::attach(&bench.worker, &bench.export(2)).await;
    for round in 0..ROUNDS {
        assert_eq!(client.run(Operation::Write, round * 8, 8, vec![2; 4096]).0, Ok(4096));
    }
    client.detach().await;
    let events = events_beside_a_flood(&bench, Operation::Write, Operation::Read).await;
    let copied = bytes_between(&events, Event::FloodCopied);
    // Most rounds: a page that has left the page cache makes a READ wait for the disk.
    assert_eq!(copied[copied.len() / 2], 0, "{copied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_a_write_does_not_wait_for_the_full_turn_that_comes_next() {
    // The ring appends.
    let bench = Bench::sized(Engine::Direct, Known::local(&[]), 160);
    // Time for the appends before to end.
    let watch = Watch { copying: Duration::from_millis(3), ..Watch::default() };
    let events = events_of(&bench, (Operation::Write, Operation::Write), watch).await;
    let copied = bytes_between(&events, Event::FloodCopied);
    // One write of the flood is copied while the kernel appends. A busy machine may append late.
    assert!(copied[0] <= LARGE_BYTES, "{copied:?}");
}
