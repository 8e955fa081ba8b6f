//! Large WRITEs whose data is taken in pieces because another export has requests.

use super::watched::{Watched, Watcher};
use super::*;
use crate::units::PIECE_BYTES;

const LARGE_BYTES: usize = 128 << 10;
const LARGE_SECTORS: u64 = LARGE_BYTES as u64 / 512;
const WRITER: ExportId = ExportId(1);
const NEIGHBOUR: ExportId = ExportId(2);

/// What the worker did, in the order in which the worker did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// So many bytes of the writer.
    Copied(usize),
    /// A request of the neighbour, in the middle of a WRITE.
    Sent,
    Answered(ExportId),
}

#[derive(Default)]
struct Watch {
    events: Mutex<Vec<Event>>,
    /// The neighbour's next request, sent when a piece of the writer has been copied.
    next: Mutex<Option<Next>>,
}

impl Watch {
    fn note(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    /// Sends the neighbour's next request unless one is under way.
    fn copied(&self, bytes: usize) {
        self.note(Event::Copied(bytes));
        let Some(next) = &*self.next.lock().unwrap() else { return };
        let mut tags = next.shared.tags.lock().unwrap();
        if tags[0].request.is_none() {
            let (request, data) = (Some(next.request), pattern(9, 4096));
            tags[0] = Tag { request, data, result: None };
            self.note(Event::Sent);
            (&next.pipe).write_all(&[1]).unwrap();
        }
    }
}

struct Next {
    request: Request,
    shared: Arc<SharedTags>,
    pipe: File,
}

impl Watcher for Arc<Watch> {
    fn answer(
        &mut self,
        queue: &mut PipeQueue,
        tag: u16,
        fixed: u32,
        result: Result<u32, &Failure>,
    ) -> squeue::Entry {
        self.note(Event::Answered(queue.export().id()));
        queue.answer(tag, fixed, result)
    }

    fn copy_in(&self, queue: &PipeQueue, tag: u16, start: usize, buffer: &mut [u8]) -> io::Result<()> {
        queue.copy_in(tag, start, buffer)?;
        if queue.export().id() == WRITER {
            self.copied(buffer.len());
        }
        Ok(())
    }
}

/// A writer and a neighbour on one worker.
struct Pair {
    bench: Bench,
    watch: Arc<Watch>,
    writer: Client,
    neighbour: Client,
}

impl Pair {
    async fn new(engine: Engine) -> Self {
        let bench = Bench::sized(engine, Known::local(&[]), 32);
        let watch = Arc::<Watch>::default();
        let mut clients = Vec::new();
        for id in [NEIGHBOUR, WRITER] {
            let (watch, export) = (Arc::clone(&watch), bench.export(id.0));
            let client = Client::attach_with(&bench.worker, &export, |queue, _| {
                Box::new(Watched { queue, watcher: watch })
            });
            clients.push(client.await.unwrap());
        }
        let (writer, neighbour) = (clients.remove(1), clients.remove(0));
        Self { bench, watch, writer, neighbour }
    }

    /// From now on the neighbour sends `operation` on 4 KiB each time a piece of the writer has been copied.
    fn send(&mut self, operation: Operation) {
        let range = SectorRange::new(0, 8).unwrap();
        let request = Request { operation, range, fua: false };
        let pipe = self.neighbour.pipes[0].as_ref().unwrap().try_clone().unwrap();
        let shared = Arc::clone(&self.neighbour.shared);
        *self.watch.next.lock().unwrap() = Some(Next { request, shared, pipe });
    }

    /// Both exports have a request, so that the worker knows of both; nothing is noted.
    fn meet(&mut self) {
        for client in [&mut self.writer, &mut self.neighbour] {
            assert_eq!(client.run(Operation::Write, 0, 8, pattern(9, 4096)).0, Ok(4096));
        }
        self.watch.events.lock().unwrap().clear();
    }

    /// Ends the neighbour's requests, and returns what the worker did.
    async fn end(mut self) -> Vec<Event> {
        *self.watch.next.lock().unwrap() = None;
        self.bench.worker.ping().await.unwrap();
        for client in [&mut self.writer, &mut self.neighbour] {
            // Any request under way is answered before the next one of the tag is sent.
            let tag = 0;
            while client.shared.tags.lock().unwrap()[tag].request.is_some() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.writer.detach().await;
        self.neighbour.detach().await;
        std::mem::take(&mut *self.watch.events.lock().unwrap())
    }
}

/// For each request which the neighbour sent in the middle of a WRITE: the answers to the writer, and the bytes copied from the
/// writer, before the neighbour's answer; the fewest first.
fn before_the_neighbour(events: &[Event]) -> Vec<(usize, usize)> {
    let (mut all, mut waiting) = (Vec::new(), None);
    for event in events {
        match (event, &mut waiting) {
            (Event::Sent, _) => waiting = Some((0, 0)),
            (Event::Answered(NEIGHBOUR), _) => all.extend(waiting.take()),
            (Event::Answered(_), Some((answers, _))) => *answers += 1,
            (Event::Copied(bytes), Some((_, copied))) => *copied += bytes,
            (Event::Answered(_) | Event::Copied(_), None) => {}
        }
    }
    all.sort_unstable();
    all
}

async fn answered_within_a_piece(operation: Operation) {
    let mut pair = Pair::new(Engine::default()).await;
    pair.meet();
    pair.send(operation);
    for _ in 0..4 {
        for tag in 0..DEPTH {
            let start = u64::from(tag) * LARGE_SECTORS;
            pair.writer.start(tag, Operation::Write, start, LARGE_SECTORS, pattern(1, LARGE_BYTES));
        }
        for tag in 0..DEPTH {
            assert_eq!(pair.writer.finish(tag).0, Ok(LARGE_BYTES as u32));
        }
    }
    let waits = before_the_neighbour(&pair.end().await);
    assert!(waits.len() >= 4, "{waits:?}");
    // Most of the requests. A page that has left the page cache makes a READ wait for the disk, and the last piece of a WRITE is not
    // followed by a turn.
    let (answers, copied) = waits[waits.len() / 2];
    assert_eq!(answers, 0, "{waits:?}");
    assert!(copied <= PIECE_BYTES, "{waits:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_comes_between_two_pieces_of_a_write_is_answered_before_the_rest_of_the_write() {
    answered_within_a_piece(Operation::Read).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_comes_between_two_pieces_of_another_exports_write_is_answered_before_the_rest() {
    answered_within_a_piece(Operation::Write).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_in_pieces_is_read_back_whatever_the_length_and_the_engine() {
    for engine in usable_engines() {
        let mut pair = Pair::new(engine).await;
        pair.meet();
        pair.send(Operation::Write);
        for (seed, count) in (1..).zip([256, 255, 249, 129, 128, 127, 65, 64]) {
            let data = pattern(seed, count as usize * 512);
            let start = u64::from(seed) * LARGE_SECTORS + 3;
            assert_eq!(
                pair.writer.run(Operation::Write, start, count, data.clone()).0,
                Ok(count as u32 * 512)
            );
            let (result, read) = pair.writer.run(Operation::Read, start, count, Vec::new());
            assert_eq!((result, read == data), (Ok(count as u32 * 512), true), "{count} sectors");
        }
        let events = pair.end().await;
        assert!(events.contains(&Event::Copied(PIECE_BYTES)), "{events:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_of_one_export_are_served_in_the_order_in_which_they_came() {
    let mut pair = Pair::new(Engine::default()).await;
    pair.meet();
    pair.send(Operation::Read);
    for _ in 0..10 {
        // The small writes come while the large one is divided.
        pair.writer.start(0, Operation::Write, 0, LARGE_SECTORS, pattern(1, LARGE_BYTES));
        for tag in 1..DEPTH {
            pair.writer.start(tag, Operation::Write, u64::from(tag) * 8, 8, pattern(tag as u8, 4096));
        }
        for tag in 0..DEPTH {
            pair.writer.finish(tag).0.unwrap();
        }
        for tag in 1..DEPTH {
            let read = pair.writer.run(Operation::Read, u64::from(tag) * 8, 8, Vec::new()).1;
            assert!(read == pattern(tag as u8, 4096), "the large write overtook write {tag}");
        }
    }
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_data_of_an_export_that_is_alone_comes_in_one_piece() {
    let mut pair = Pair::new(Engine::default()).await;
    for round in 0..10 {
        let data = pattern(1, LARGE_BYTES);
        assert_eq!(
            pair.writer.run(Operation::Write, round * LARGE_SECTORS, LARGE_SECTORS, data).0,
            Ok(LARGE_BYTES as u32)
        );
    }
    let events = pair.end().await;
    let copied: Vec<_> = events.iter().filter(|event| matches!(event, Event::Copied(_))).collect();
    assert_eq!(copied, [&Event::Copied(LARGE_BYTES); 10]);
}
