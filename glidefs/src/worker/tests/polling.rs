//! Workers which look at their rings before they sleep.

use std::num::NonZeroU8;

use super::*;
use crate::observe::io::WorkerStats;

const BLOCKS: u64 = 64;
/// Requests, at least: all blocks are written and read twice.
const REQUESTS_MIN: u64 = 4 * BLOCKS;
/// Requests, at most, where polls never find any.
const REQUESTS_MAX: u64 = 100 * REQUESTS_MIN;

/// How long the next request of an [`EagerQueue`] takes to come.
static PAUSE: types::Timespec = types::Timespec::new().nsec(20_000);

/// A queue whose next request comes a moment after the answer to the one before: WRITEs of all blocks, then READs, and so on until polls
/// have found some.
struct EagerQueue {
    export: Arc<Export>,
    device: File,
    stats: Arc<WorkerStats>,
    number: AtomicU64,
    /// How many answers there were without an error.
    answers: Arc<AtomicU64>,
}

impl EagerQueue {
    /// The block of the request, the round of WRITEs and READs, and whether the block is read.
    fn place(&self) -> (u64, u64, bool) {
        let number = self.number.load(Ordering::Relaxed) - 1;
        (number % BLOCKS, number / (2 * BLOCKS), number / BLOCKS % 2 == 1)
    }

    /// Other than that of any block in this round and the three before.
    fn content(&self) -> Vec<u8> {
        let (block, round, _) = self.place();
        pattern((round * BLOCKS + block) as u8, 4096)
    }
}

impl QueueDriver for EagerQueue {
    fn export(&self) -> &Arc<Export> {
        &self.export
    }

    fn ids(&self) -> (u32, u16) {
        (7, 0)
    }

    fn depth(&self) -> u16 {
        1
    }

    fn char_device(&self) -> RawFd {
        self.device.as_raw_fd()
    }

    fn arm(&mut self, _tag: u16, _fixed: u32) -> squeue::Entry {
        opcode::Timeout::new(&raw const PAUSE).build()
    }

    fn answer(&mut self, tag: u16, fixed: u32, result: Result<u32, &Failure>) -> squeue::Entry {
        self.answers.fetch_add(u64::from(result.is_ok_and(|bytes| bytes == 4096)), Ordering::Release);
        self.arm(tag, fixed)
    }

    fn event(&self, _tag: u16, result: i32) -> TagEvent {
        assert_eq!(result, -libc::ETIME);
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let is_enough = number >= REQUESTS_MIN && self.stats.polls_with_news.get() > 10;
        if is_enough || number >= REQUESTS_MAX { TagEvent::Gone } else { TagEvent::Request }
    }

    fn request(&self, _tag: u16) -> Result<Request, Failure> {
        let (block, _, is_read) = self.place();
        let operation = if is_read { Operation::Read } else { Operation::Write };
        Ok(Request { operation, range: SectorRange::new(block * 8, 8).unwrap(), fua: false })
    }

    fn copy_in(&self, _tag: u16, start: usize, buffer: &mut [u8]) -> io::Result<()> {
        buffer.copy_from_slice(&self.content()[start..start + buffer.len()]);
        Ok(())
    }

    fn copy_out(&self, _tag: u16, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let read: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        if read == self.content() { Ok(()) } else { Err(io::Error::other("other data")) }
    }

    fn stable_buffer(&self, _tag: u16) -> Option<NonNull<[u8]>> {
        None
    }
}

/// Ends the test where the worker has lost a request.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), future).await.expect("the worker is stuck")
}

fn polling() -> Bench {
    let options =
        WorkerOptions { polling_percent: NonZeroU8::new(100), ..worker_options(Engine::default(), SLOTS) };
    Bench::start(false, Known::local(&[]), &options, Bench::options())
}

#[tokio::test]
async fn requests_found_by_polling_are_served_once_and_right() {
    let bench = polling();
    let (stats, answers) = (Arc::clone(bench.worker.stats()), Arc::<AtomicU64>::default());
    let queue = EagerQueue {
        export: bench.export(1),
        device: File::open("/dev/null").unwrap(),
        stats: Arc::clone(&stats),
        number: AtomicU64::new(0),
        answers: Arc::clone(&answers),
    };
    let gone = bench.worker.attach(Box::new(queue)).await.unwrap();
    soon(gone).await.unwrap();
    assert!(stats.polls_with_news.get() > 10);
    assert!(stats.polls.get() >= stats.polls_with_news.get());
    assert!(stats.poll_nanos.get() > 0);
    assert_eq!(answers.load(Ordering::Acquire), stats.requests.get());
}

#[tokio::test]
async fn a_worker_that_may_poll_serves_sleeping_clients_answers_pings_and_lets_queues_go() {
    let bench = polling();
    let mut client = Client::attach(&bench.worker, &bench.export(1)).await;
    for round in 0..200 {
        let data = pattern(round, 4096);
        assert_eq!(client.run(Operation::Write, u64::from(round) * 8, 8, data.clone()).0, Ok(4096));
        assert!(client.run(Operation::Read, u64::from(round) * 8, 8, Vec::new()).1 == data, "round {round}");
        if round % 50 == 0 {
            assert_eq!(client.run(Operation::Flush, 0, 0, Vec::new()).0, Ok(0));
            soon(bench.worker.ping()).await.unwrap();
        }
    }
    soon(client.detach()).await;
}

#[tokio::test]
async fn a_worker_that_may_not_poll_never_does() {
    let bench = Bench::new();
    let mut client = Client::attach(&bench.worker, &bench.export(1)).await;
    for round in 0..50 {
        assert_eq!(client.run(Operation::Write, 0, 8, pattern(round, 4096)).0, Ok(4096));
    }
    soon(client.detach()).await;
    let stats = bench.worker.stats();
    assert_eq!((stats.polls.get(), stats.poll_nanos.get()), (0, 0));
}
