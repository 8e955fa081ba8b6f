//! News of a ring: seen without a system call.
//!
//! Owns no part of the ring. Does not own the wait ([`Ring::submit_and_wait`]), nor how long to look.

use io_uring::SubmissionQueue;

use super::Ring;

/// A view of a ring for any number of looks. A look is a load: each end of a view is a store to the cache line in which the kernel, on
/// another CPU, tells of news.
pub struct Lookout<'a> {
    queue: SubmissionQueue<'a>,
    /// Whether there was news at the begin.
    had_news: bool,
}

impl<C> Ring<C> {
    /// Whether completions have arrived since the last [`drain`](Self::drain), or wait for a submit to be worked on. Costs no system
    /// call.
    pub fn has_news(&mut self) -> bool {
        !self.seen.is_empty() || self.ring.submission().taskrun() || !self.ring.completion().is_empty()
    }

    /// Whether a [`lookout`](Self::lookout) learns of news: the kernel leaves every completion to the thread (Linux 6.1), and tells by a
    /// flag that there are some.
    pub fn can_be_watched(&self) -> bool {
        let params = self.ring.params();
        params.is_setup_single_issuer() && !params.is_setup_sqpoll() && !params.is_setup_iopoll()
    }

    /// A view that tells whether a wait would end at once. Take the view after a submit: the completions of prompt commands are there by
    /// then, and end no wait.
    pub fn lookout(&mut self) -> Lookout<'_> {
        let completions = self.ring.completion().len();
        let had_news = !self.seen.is_empty() || !self.refused.is_empty() || completions > self.prompt;
        let queue = self.ring.submission();
        // Entries which the kernel has not taken, and completions without room in the queue, are the wait's matter.
        let had_news = had_news || !queue.is_empty() || queue.cq_overflow() || queue.taskrun();
        Lookout { queue, had_news }
    }
}

impl Lookout<'_> {
    /// Whether a wait would have ended at once when the view was taken.
    pub fn had_news(&self) -> bool {
        self.had_news
    }

    /// Whether a wait would end at once. Costs no system call.
    pub fn has_news(&self) -> bool {
        self.had_news || self.queue.taskrun()
    }
}
