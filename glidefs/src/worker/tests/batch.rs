//! Queues whose requests and answers travel in batches: one pipe of tags stands for the kernel.
//!
//! Bytes in the pipe announce tags; closing the pipe takes the queue back. Answers are given when the command is made.

use std::collections::VecDeque;

use super::*;
use crate::worker::driver::BatchCommands;

const DEVICE: u32 = 7;

struct BatchQueue {
    inner: PipeQueue,
    pipe: File,
    kernel: Arc<Kernel>,
}

#[derive(Default)]
struct Kernel {
    /// The number of elements which each commit under way has done.
    done: Mutex<VecDeque<usize>>,
    /// Commits, and how many elements the next ones take, at most; each of these refuses the next element.
    commits: Mutex<(usize, VecDeque<usize>)>,
    refuses_to_prepare: AtomicBool,
    refused: Mutex<Vec<u16>>,
}

impl BatchCommands for BatchQueue {
    fn element(&self, tag: u16, result: Result<u32, &Failure>) -> u64 {
        u64::from(tag) << 32 | u64::from(result.unwrap_or(u32::MAX))
    }

    fn tag(&self, element: u64) -> u16 {
        u16::try_from(element >> 32).unwrap()
    }

    fn prepare(&self, _fixed: u32, elements: &[u64]) -> squeue::Entry {
        assert_eq!(elements, (0..u64::from(DEPTH)).map(|tag| tag << 32).collect::<Vec<_>>());
        if self.kernel.refuses_to_prepare.load(Ordering::Relaxed) {
            return opcode::Close::new(types::Fd(-1)).build();
        }
        opcode::Nop::new().build()
    }

    fn commit(&self, _fixed: u32, elements: &[u64]) -> squeue::Entry {
        assert!(!elements.is_empty() && elements.len() <= usize::from(DEPTH));
        let mut commits = self.kernel.commits.lock().unwrap();
        commits.0 += 1;
        let most = commits.1.pop_front().unwrap_or(usize::MAX);
        let mut tags = self.inner.shared.tags.lock().unwrap();
        for &element in elements.iter().take(most) {
            let shared = &mut tags[usize::from(self.tag(element))];
            assert!(shared.request.take().is_some(), "answered without a request");
            let result = match element as u32 {
                u32::MAX => Err("failed".to_owned()),
                bytes => Ok(bytes),
            };
            assert!(shared.result.replace(result).is_none(), "answered twice");
        }
        self.kernel.done.lock().unwrap().push_back(most.min(elements.len()));
        self.inner.shared.completed.notify_all();
        opcode::Nop::new().build()
    }

    fn done(&self, result: i32) -> Result<usize, i32> {
        assert_eq!(result, 0);
        Ok(self.kernel.done.lock().unwrap().pop_front().unwrap())
    }

    fn fetch(&self, _fixed: u32, group: u16) -> squeue::Entry {
        opcode::ReadMulti::new(types::Fd(self.pipe.as_raw_fd()), 0, group).build()
    }

    fn is_over(&self, result: i32) -> bool {
        assert!([0, -libc::ENOBUFS].contains(&result), "{result}");
        result == 0
    }
}

impl QueueDriver for BatchQueue {
    fn batch(&self) -> Option<&dyn BatchCommands> {
        Some(self)
    }

    fn export(&self) -> &Arc<Export> {
        self.inner.export()
    }

    fn ids(&self) -> (u32, u16) {
        self.inner.ids()
    }

    fn depth(&self) -> u16 {
        self.inner.depth()
    }

    fn char_device(&self) -> RawFd {
        self.inner.char_device()
    }

    fn arm(&mut self, tag: u16, _fixed: u32) -> squeue::Entry {
        panic!("tag {tag} has no command of its own");
    }

    fn answer(&mut self, tag: u16, _fixed: u32, _result: Result<u32, &Failure>) -> squeue::Entry {
        panic!("tag {tag} has no command of its own");
    }

    fn event(&self, tag: u16, result: i32) -> TagEvent {
        assert!(result < 0, "{result}");
        self.kernel.refused.lock().unwrap().push(tag);
        TagEvent::Gone
    }

    fn request(&self, tag: u16) -> Result<Request, Failure> {
        self.inner.request(tag)
    }

    fn copy_in(&self, tag: u16, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.copy_in(tag, buffer)
    }

    fn copy_out(&self, tag: u16, buffer: &[u8]) -> io::Result<()> {
        self.inner.copy_out(tag, buffer)
    }

    fn stable_buffer(&self, tag: u16) -> Option<NonNull<[u8]>> {
        self.inner.stable_buffer(tag)
    }
}

impl Client {
    async fn attach_batch(worker: &Worker, export: &Arc<Export>, kernel: &Arc<Kernel>) -> Self {
        let (read, write) = nix::unistd::pipe().unwrap();
        let (pipe, kernel) = (File::from(read), Arc::clone(kernel));
        let wrap = |inner, _: &[Option<File>]| -> Box<dyn QueueDriver + Send> {
            Box::new(BatchQueue { inner, pipe, kernel })
        };
        let client = Self::attach_with(worker, export, wrap).await.unwrap();
        Self { batch: Some(File::from(write)), ..client }
    }
}

async fn one() -> (Bench, Arc<Export>, Arc<Kernel>, Client) {
    let bench = Bench::new();
    let (export, kernel) = (bench.export(1), Arc::default());
    let client = Client::attach_batch(&bench.worker, &export, &kernel).await;
    (bench, export, kernel, client)
}

#[tokio::test]
async fn what_was_written_is_read_back_and_queues_of_both_kinds_share_a_worker() {
    let (bench, export, kernel, mut client) = one().await;
    let mut plain = Client::attach(&bench.worker, &bench.export(2)).await;
    for (seed, (start, count)) in (1..).zip([(0, 8), (3, 1), (5, 17), (100, 256)]) {
        let (data, other) = (pattern(seed, count as usize * 512), pattern(seed + 99, count as usize * 512));
        assert_eq!(client.run(Operation::Write, start, count, data.clone()).0, Ok(count as u32 * 512));
        assert_eq!(plain.run(Operation::Write, start, count, other.clone()).0, Ok(count as u32 * 512));
        assert!(client.run(Operation::Read, start, count, Vec::new()).1 == data);
        assert!(plain.run(Operation::Read, start, count, Vec::new()).1 == other);
    }
    assert!(client.run(Operation::Read, (16 << 20) / 512, 8, Vec::new()).0.is_err(), "outside");
    assert_eq!(client.run(Operation::Flush, 0, 0, Vec::new()).0, Ok(0));
    assert!(kernel.refused.lock().unwrap().is_empty());
    client.detach().await;
    plain.detach().await;
    assert_eq!((export.io_totals().in_flight, bench.worker.stats().queues.get()), (0, 0));
    assert_eq!(Arc::strong_count(&kernel), 1, "the driver is gone");
}

#[tokio::test]
async fn requests_that_come_together_are_answered_together() {
    let (_bench, _export, kernel, mut client) = one().await;
    client.run(Operation::Write, 0, 8, pattern(1, 4096)).0.unwrap();
    let before = kernel.commits.lock().unwrap().0;
    let tags: Vec<u8> = (0..DEPTH).flat_map(u16::to_ne_bytes).collect();
    for tag in 0..DEPTH {
        let request =
            Request { operation: Operation::Flush, range: SectorRange::new(0, 0).unwrap(), fua: false };
        client.shared.tags.lock().unwrap()[usize::from(tag)].request = Some(request);
    }
    client.batch.as_mut().unwrap().write_all(&tags).unwrap();
    for tag in 0..DEPTH {
        assert_eq!(client.finish(tag).0, Ok(0));
    }
    let commits = kernel.commits.lock().unwrap().0 - before;
    assert!(commits <= 2, "{commits} commits for {DEPTH} answers");
    client.detach().await;
}

#[tokio::test]
async fn an_answer_which_the_kernel_refuses_costs_no_other_answer() {
    let (_bench, export, kernel, mut client) = one().await;
    client.run(Operation::Write, 0, 8, pattern(1, 4096)).0.unwrap();
    // The first commit takes one answer and refuses the second; the next takes none and refuses the first.
    kernel.commits.lock().unwrap().1.extend([1, 0]);
    let tags: Vec<u8> = (0..DEPTH).flat_map(u16::to_ne_bytes).collect();
    for tag in 0..DEPTH {
        let request =
            Request { operation: Operation::Flush, range: SectorRange::new(0, 0).unwrap(), fua: false };
        client.shared.tags.lock().unwrap()[usize::from(tag)].request = Some(request);
    }
    client.batch.as_mut().unwrap().write_all(&tags).unwrap();
    let mut answered = 0;
    while answered + 2 < usize::from(DEPTH) {
        answered +=
            (0..DEPTH).filter(|&tag| client.result_within(tag, Duration::from_millis(1)).is_some()).count();
    }
    let refused = kernel.refused.lock().unwrap().clone();
    assert_eq!((answered, refused.len()), (usize::from(DEPTH) - refused.len(), 2), "{refused:?}");
    client.detach().await;
    assert_eq!(export.io_totals().in_flight, 0);
}

#[tokio::test]
async fn tags_that_the_kernel_cannot_deliver_are_no_requests() {
    let (_bench, export, _kernel, mut client) = one().await;
    client.run(Operation::Write, 0, 8, pattern(1, 4096)).0.unwrap();
    for odd in [DEPTH, u16::MAX] {
        client.batch.as_mut().unwrap().write_all(&odd.to_ne_bytes()).unwrap();
    }
    assert_eq!(client.run(Operation::Read, 0, 8, Vec::new()).1, pattern(1, 4096));
    client.detach().await;
    assert_eq!(export.io_totals().in_flight, 0);
}

#[tokio::test]
async fn a_tag_delivered_twice_is_one_request() {
    let (bench, export, kernel, mut client) = one().await;
    client.run(Operation::Write, 0, 8, pattern(1, 4096)).0.unwrap();
    bench.worker.pause(DEVICE).await.unwrap();
    client.start(1, Operation::Read, 0, 8, Vec::new());
    client.batch.as_mut().unwrap().write_all(&1_u16.to_ne_bytes()).unwrap();
    bench.worker.ping().await.unwrap();
    bench.worker.resume(DEVICE);
    assert_eq!(client.finish(1), (Ok(4096), pattern(1, 4096)));
    client.detach().await;
    assert_eq!((export.io_totals().in_flight, Arc::strong_count(&kernel)), (0, 1));
}

#[tokio::test]
async fn a_queue_whose_tags_cannot_be_armed_is_let_go_of() {
    let bench = Bench::new();
    let (export, kernel) = (bench.export(1), Arc::<Kernel>::default());
    kernel.refuses_to_prepare.store(true, Ordering::Relaxed);
    let mut client = Client::attach_batch(&bench.worker, &export, &kernel).await;
    client.gone.take().unwrap().await.unwrap();
    assert_eq!((bench.worker.stats().queues.get(), Arc::strong_count(&export)), (0, 1));
}

#[tokio::test]
async fn a_paused_queue_that_goes_on_serves_what_came() {
    let (bench, export, _kernel, mut client) = one().await;
    client.run(Operation::Write, 0, 8, pattern(1, 4096)).0.unwrap();
    bench.worker.pause(DEVICE).await.unwrap();
    client.start(1, Operation::Write, 8, 8, pattern(2, 4096));
    bench.worker.ping().await.unwrap();
    assert!(client.result_within(1, Duration::from_millis(50)).is_none(), "a paused queue answers nothing");
    bench.worker.resume(DEVICE);
    assert_eq!(client.finish(1).0, Ok(4096));
    assert_eq!(client.run(Operation::Read, 8, 8, Vec::new()).1, pattern(2, 4096));
    client.detach().await;
    assert_eq!(export.io_totals().in_flight, 0);
}

#[tokio::test]
async fn a_queue_that_leaves_goes_when_the_kernel_has_taken_it_back_and_answers_nothing() {
    let (bench, export, kernel, mut client) = one().await;
    client.run(Operation::Write, 0, 8, pattern(1, 4096)).0.unwrap();
    bench.worker.pause(DEVICE).await.unwrap();
    client.start(0, Operation::Write, 0, 8, pattern(2, 4096));
    bench.worker.ping().await.unwrap();
    bench.worker.leave(DEVICE);
    client.start(2, Operation::Read, 0, 8, Vec::new());
    bench.worker.ping().await.unwrap();
    assert_eq!(bench.worker.stats().queues.get(), 1, "the kernel still delivers");
    client.batch = None;
    client.gone.take().unwrap().await.unwrap();
    for tag in [0, 2] {
        assert!(client.result_within(tag, Duration::ZERO).is_none(), "the next worker answers tag {tag}");
    }
    assert_eq!((export.io_totals().in_flight, Arc::strong_count(&kernel)), (0, 1));
    let mut client = Client::attach_batch(&bench.worker, &export, &kernel).await;
    assert_eq!(client.run(Operation::Read, 0, 8, Vec::new()).1, pattern(1, 4096));
    client.detach().await;
}
