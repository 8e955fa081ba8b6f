//! A queue of pipes whose requests somebody watches.

use super::*;

/// What is done at a request, in the place of what the queue does by itself.
pub(super) trait Watcher: Send {
    fn answer(
        &mut self,
        queue: &mut PipeQueue,
        tag: u16,
        fixed: u32,
        result: Result<u32, &Failure>,
    ) -> squeue::Entry {
        queue.answer(tag, fixed, result)
    }

    fn request(&self, queue: &PipeQueue, tag: u16) -> Result<Request, Failure> {
        queue.request(tag)
    }

    fn copy_in(&self, queue: &PipeQueue, tag: u16, start: usize, buffer: &mut [u8]) -> io::Result<()> {
        queue.copy_in(tag, start, buffer)
    }

    fn copy_out(&self, queue: &PipeQueue, tag: u16, parts: &[IoSlice<'_>]) -> io::Result<()> {
        queue.copy_out(tag, parts)
    }
}

/// The client's ends of a queue's pipes, with which each request is sent again once answered.
pub(super) struct Flood(Vec<Option<File>>);

impl Flood {
    pub fn new(pipes: &[Option<File>]) -> Self {
        Self(pipes.iter().flatten().map(|pipe| pipe.try_clone().ok()).collect())
    }

    /// Answers a request, and sends the request again unless `is_over`.
    pub fn answer(
        &mut self,
        queue: &mut PipeQueue,
        (tag, fixed): (u16, u32),
        result: Result<u32, &Failure>,
        is_over: bool,
    ) -> squeue::Entry {
        let request = queue.request(tag).unwrap();
        let entry = queue.answer(tag, fixed, result);
        let pipe = &mut self.0[usize::from(tag)];
        if is_over {
            // The tag is gone when no end of the pipe is open.
            *pipe = None;
        }
        if let Some(pipe) = pipe {
            let mut tags = queue.shared.tags.lock().unwrap();
            let shared = &mut tags[usize::from(tag)];
            assert!(matches!(shared.result, Some(Ok(_))), "{:?}", shared.result);
            (shared.request, shared.result) = (Some(request), None);
            pipe.write_all(&[1]).unwrap();
        }
        entry
    }
}

/// A queue, and who watches the queue.
pub(super) struct Watched<W> {
    pub queue: PipeQueue,
    pub watcher: W,
}

impl<W: Watcher> QueueDriver for Watched<W> {
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
        self.watcher.answer(&mut self.queue, tag, fixed, result)
    }

    fn event(&self, tag: u16, result: i32) -> TagEvent {
        self.queue.event(tag, result)
    }

    fn request(&self, tag: u16) -> Result<Request, Failure> {
        self.watcher.request(&self.queue, tag)
    }

    fn copy_in(&self, tag: u16, start: usize, buffer: &mut [u8]) -> io::Result<()> {
        self.watcher.copy_in(&self.queue, tag, start, buffer)
    }

    fn copy_out(&self, tag: u16, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.watcher.copy_out(&self.queue, tag, parts)
    }

    fn stable_buffer(&self, tag: u16) -> Option<NonNull<[u8]>> {
        self.queue.stable_buffer(tag)
    }
}
