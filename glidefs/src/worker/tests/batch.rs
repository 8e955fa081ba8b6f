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
    /// The result of each commit under way.
    done: Mutex<VecDeque<Result<usize, i32>>>,
    /// Commits, and how the next ones end: after so many elements at most, or with an error.
    commits: Mutex<(usize, VecDeque<Result<usize, i32>>)>,
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
        let result = commits.1.pop_front().unwrap_or(Ok(elements.len()));
        let most = result.unwrap_or(0);
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
        self.kernel.done.lock().unwrap().push_back(result.map(|most| most.min(elements.len())));
        self.inner.shared.completed.notify_all();
        opcode::Nop::new().build()
    }

    fn done(&self, result: i32) -> Result<usize, i32> {
        assert_eq!(result, 0);
        self.kernel.done.lock().unwrap().pop_front().unwrap()
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

    fn copy_in(&self, tag: u16, start: usize, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.copy_in(tag, start, buffer)
    }

    fn copy_out(&self, tag: u16, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.copy_out(tag, parts)
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

    /// Begins a FLUSH with each tag, all at the same time.
    fn flush_with_all_tags(&mut self) {
        let tags: Vec<u8> = (0..DEPTH).flat_map(u16::to_ne_bytes).collect();
        for tag in 0..DEPTH {
            let request =
                Request { operation: Operation::Flush, range: SectorRange::new(0, 0).unwrap(), fua: false };
            self.shared.tags.lock().unwrap()[usize::from(tag)].request = Some(request);
        }
        self.batch.as_mut().unwrap().write_all(&tags).unwrap();
    }

    /// The number of tags answered, as soon as the number is `wanted`, or after half a minute. Each turn of the worker sees the results
    /// of the commits before.
    async fn answers(&self, worker: &Worker, wanted: usize) -> usize {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        let mut answered = 0;
        while answered < wanted && std::time::Instant::now() < deadline {
            worker.ping().await.unwrap();
            let patience = Duration::from_millis(1);
            answered += (0..DEPTH).filter(|&tag| self.result_within(tag, patience).is_some()).count();
        }
        answered
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
    client.flush_with_all_tags();
    for tag in 0..DEPTH {
        assert_eq!(client.finish(tag).0, Ok(0));
    }
    let commits = kernel.commits.lock().unwrap().0 - before;
    assert!(commits <= 2, "{commits} commits for {DEPTH} answers");
    client.detach().await;
}

#[tokio::test]
async fn an_answer_which_the_kernel_refuses_costs_no_other_answer() {
    let (bench, export, kernel, mut client) = one().await;
    client.run(Operation::Write, 0, 8, pattern(1, 4096)).0.unwrap();
    // The first commit takes one answer; the second and third take none, and so refuse the answers in front.
    kernel.commits.lock().unwrap().1.extend([Ok(1), Err(-libc::EBUSY), Err(-libc::EINVAL)]);
    client.flush_with_all_tags();
    let answered = client.answers(&bench.worker, usize::from(DEPTH) - 2).await;
    let refused = kernel.refused.lock().unwrap().clone();
    assert_eq!((answered, refused.len()), (usize::from(DEPTH) - 2, 2), "{refused:?}");
    client.detach().await;
    assert_eq!(export.io_totals().in_flight, 0);
}

#[tokio::test]
async fn answers_which_the_kernel_did_not_look_at_are_given_again() {
    let (bench, export, kernel, mut client) = one().await;
    client.run(Operation::Write, 0, 8, pattern(1, 4096)).0.unwrap();
    let ends = [Err(-libc::ENOMEM), Ok(2), Err(-libc::EAGAIN), Err(-libc::EINTR), Err(-libc::EFAULT)];
    kernel.commits.lock().unwrap().1.extend(ends);
    client.flush_with_all_tags();
    assert_eq!(client.answers(&bench.worker, usize::from(DEPTH)).await, usize::from(DEPTH));
    assert!(kernel.refused.lock().unwrap().is_empty() && kernel.commits.lock().unwrap().1.is_empty());
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
    assert!(kernel.refused.lock().unwrap().is_empty(), "no tag has a command of its own");
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
