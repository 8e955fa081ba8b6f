//! A neighbour of an export that floods the worker: how much of the flood is served between the arrival of the neighbour's
//! request and the answer. Counted in bytes, not in time.

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
    FloodServed,
    NeighbourSeen,
    NeighbourServed,
}

/// The events, and whether the flood goes on.
#[derive(Default)]
struct Watch {
    events: Mutex<Vec<Event>>,
    is_over: AtomicBool,
}

/// A queue which notes events. A queue of the flood sends each request again once the request is answered.
struct WatchedQueue {
    queue: PipeQueue,
    watch: Arc<Watch>,
    /// For the flood: the client's ends of the pipes, each until the flood is over.
    again: Option<Vec<Option<File>>>,
}

impl WatchedQueue {
    fn note(&self, event: Event) {
        self.watch.events.lock().unwrap().push(event);
    }
}

impl QueueDriver for WatchedQueue {
    fn export(&self) -> &Arc<Export> {
        self.queue.export()
    }

    fn ids(&self) -> (u32, u16) {
        self.queue.ids()
    }

    fn depth(&self) -> u16 {
        self.queue.depth()
    }

    fn char_device(&self) -> RawFd {
        self.queue.char_device()
    }

    fn arm(&mut self, tag: u16, fixed: u32) -> squeue::Entry {
        self.queue.arm(tag, fixed)
    }

    fn answer(&mut self, tag: u16, fixed: u32, result: Result<u32, &Failure>) -> squeue::Entry {
        let Some(pipes) = &mut self.again else {
            self.note(Event::NeighbourServed);
            return self.queue.answer(tag, fixed, result);
        };
        let request = self.queue.request(tag).unwrap();
        let entry = self.queue.answer(tag, fixed, result);
        let pipe = &mut pipes[usize::from(tag)];
        if self.watch.is_over.load(Ordering::Acquire) {
            // The tag is gone when no end of the pipe is open.
            *pipe = None;
        }
        if let Some(pipe) = pipe {
            let mut tags = self.queue.shared.tags.lock().unwrap();
            let shared = &mut tags[usize::from(tag)];
            assert!(matches!(shared.result, Some(Ok(_))), "{:?}", shared.result);
            (shared.request, shared.result) = (Some(request), None);
            pipe.write_all(&[1]).unwrap();
        }
        self.note(Event::FloodServed);
        entry
    }

    fn event(&self, tag: u16, result: i32) -> TagEvent {
        self.queue.event(tag, result)
    }

    fn request(&self, tag: u16) -> Result<Request, Failure> {
        if self.again.is_none() {
            self.note(Event::NeighbourSeen);
        }
        self.queue.request(tag)
    }

    fn copy_in(&self, tag: u16, buffer: &mut [u8]) -> io::Result<()> {
        self.queue.copy_in(tag, buffer)
    }

    fn copy_out(&self, tag: u16, buffer: &[u8]) -> io::Result<()> {
        if self.again.is_some() { Ok(()) } else { self.queue.copy_out(tag, buffer) }
    }

    fn stable_buffer(&self, tag: u16) -> Option<NonNull<[u8]>> {
        self.queue.stable_buffer(tag)
    }
}

/// The most bytes of a flood of `operation` that were served between the arrival of a request of the neighbour and the answer.
async fn served_before_neighbour(bench: &Bench, operation: Operation) -> u64 {
    let watch = Arc::<Watch>::default();
    let (flooding, neighbour) = (bench.export(1), bench.export(2));
    let mut flood = Vec::new();
    for _ in 0..QUEUES {
        let client = Client::attach_with(&bench.worker, &flooding, |queue, pipes| {
            let again = pipes.iter().flatten().map(|pipe| pipe.try_clone().ok()).collect();
            Box::new(WatchedQueue { queue, watch: Arc::clone(&watch), again: Some(again) })
        });
        flood.push(client.await.unwrap());
    }
    let client = Client::attach_with(&bench.worker, &neighbour, |queue, _| {
        Box::new(WatchedQueue { queue, watch: Arc::clone(&watch), again: None })
    });
    let mut client = client.await.unwrap();
    for (number, queue) in (0..).zip(&mut flood) {
        for tag in 0..DEPTH {
            let place = (number * u64::from(DEPTH) + u64::from(tag)) * LARGE_SECTORS;
            queue.start(tag, operation, place % (1 << 15), LARGE_SECTORS, vec![1; LARGE_BYTES as usize]);
        }
    }
    for round in 0..ROUNDS {
        assert_eq!(client.run(operation, round * 8, 8, vec![2; 4096]).0, Ok(4096));
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
    most_between(&watch.events.lock().unwrap())
}

fn most_between(events: &[Event]) -> u64 {
    let (mut most, mut served, mut is_waiting) = (0, 0, false);
    for event in events {
        match event {
            Event::NeighbourSeen => (served, is_waiting) = (0, true),
            Event::FloodServed if is_waiting => served += LARGE_BYTES,
            Event::FloodServed => {}
            Event::NeighbourServed => (most, is_waiting) = (most.max(served), false),
        }
    }
    assert_eq!(events.iter().filter(|event| **event == Event::NeighbourSeen).count() as u64, ROUNDS);
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_beside_a_flood_of_reads_is_answered_within_the_turn_in_which_it_was_seen() {
    // Memory for the whole flood.
    let bench = Bench::sized(Engine::default(), Known::local(&[]), 160);
    let served = served_before_neighbour(&bench, Operation::Read).await;
    assert!(served <= TURN_COST, "{served} bytes of the flood came first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_beside_a_flood_of_writes_waits_for_a_few_turns_where_log_space_and_slots_are_short() {
    let bench = Bench::new();
    let served = served_before_neighbour(&bench, Operation::Write).await;
    // A segment of writes that were admitted before. Then the write is ready three times: when new, with log space, with a slot;
    // each time during a turn or after one.
    assert!(served <= SEGMENT_BYTES + 6 * TURN_COST, "{served} bytes of the flood came first");
}
