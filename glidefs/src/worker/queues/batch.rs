//! Requests and answers in batches.
//!
//! ```text
//!  Preparing ─prepared─▶ Fetching ─taken back, or refused─▶ Ended
//!      └─────refused──────────────────────────────────────────▲
//! ```
//!
//! A command arms all tags once. Another one then delivers tags with requests, as often as there are some, until the kernel takes the
//! device back; when the ring has no buffer for a delivery the command ends, the requests wait in the kernel, and the command is sent
//! again. The answers of a turn gather here, and go to the kernel with one command.
//!
//! Owns which tags hold requests in the worker's hands, and the answers on their way. Does not own the encoding of the commands
//! ([`BatchCommands`]). Invariants: a tag is delivered only while the kernel has the tag; each answer is given once; an answer is
//! dropped only when the kernel has refused this very answer.

use std::io;

use crate::worker::driver::{BatchCommands, Failure, QueueDriver, TagEvent};
use crate::worker::ring::Ring;
use crate::worker::tag::TagId;

const BITS: usize = u64::BITS as usize;

/// Errors which are about a whole command with answers, and pass.
const PASSING: [i32; 4] = [-libc::ENOMEM, -libc::EAGAIN, -libc::EINTR, -libc::EFAULT];

/// The state of one queue.
pub(super) struct Batch {
    depth: u16,
    /// The ring's group of buffers.
    group: u16,
    state: State,
    /// A bit for each tag with a request in the worker's hands.
    held: Box<[u64]>,
    held_count: u16,
    answers: Vec<u64>,
    /// Commands with answers that have not completed.
    commits: usize,
    /// Whether the next command with answers is to end a wait of the ring: the last command had a part of the answers done or refused,
    /// and the next one gets further.
    is_awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The tags are being armed.
    Preparing,
    /// The fetching command is under way.
    Fetching,
    /// The kernel delivers nothing any more.
    Ended,
}

/// What a completed command leaves.
pub(super) struct Returned {
    pub elements: Vec<u64>,
    /// Whether answers must be given again, and none were gathered before.
    pub has_answers: bool,
}

impl Batch {
    /// A queue of so many tags, none of which is armed.
    pub fn new(depth: u16, group: u16) -> Self {
        Self {
            depth,
            group,
            state: State::Preparing,
            held: vec![0; usize::from(depth).div_ceil(BITS)].into(),
            held_count: 0,
            answers: Vec::new(),
            commits: 0,
            is_awaited: false,
        }
    }

    pub fn prepare<C>(
        &mut self,
        ring: &mut Ring<C>,
        driver: &dyn QueueDriver,
        queue_index: u32,
    ) -> io::Result<()> {
        let commands = commands(driver)?;
        let elements: Vec<u64> = (0..self.depth).map(|tag| commands.element(tag, Ok(0))).collect();
        let entry = commands.prepare(queue_index, &elements);
        // SAFETY: the entry points to the elements, as `BatchCommands` promises.
        let pushed = unsafe { ring.command_with(entry, token(queue_index), elements, false) };
        if pushed.is_err() {
            self.state = State::Ended;
        }
        pushed
    }

    /// Sends the command that delivers tags.
    fn fetch<C>(&self, ring: &mut Ring<C>, driver: &dyn QueueDriver, queue_index: u32) -> io::Result<()> {
        let entry = commands(driver)?.fetch(queue_index, self.group);
        // SAFETY: the entry points to no memory; the kernel delivers into buffers of the ring.
        unsafe { ring.command(entry, token(queue_index)) }
    }

    /// Whether delivered `tag` holds a request now. A tag which the kernel cannot deliver is no tag.
    pub fn delivered(&mut self, driver: &dyn QueueDriver, tag: u16) -> bool {
        let is_news = tag < self.depth && self.hold(tag);
        if !is_news {
            let (device_id, queue_id) = driver.ids();
            tracing::error!(device_id, queue_id, tag, "the kernel delivered a tag that it did not have");
        }
        is_news
    }

    /// Takes note of the end of the fetching command.
    pub fn fetch_ended<C>(
        &mut self,
        ring: &mut Ring<C>,
        driver: &dyn QueueDriver,
        queue_index: u32,
        result: i32,
    ) -> io::Result<()> {
        if !commands(driver)?.is_over(result) {
            return self.fetch(ring, driver, queue_index);
        }
        self.state = State::Ended;
        Ok(())
    }

    /// Takes note of the end of a command with `elements`.
    pub fn returned<C>(
        &mut self,
        ring: &mut Ring<C>,
        driver: &dyn QueueDriver,
        queue_index: u32,
        (result, mut elements): (i32, Vec<u64>),
    ) -> io::Result<Returned> {
        let had_answers = !self.answers.is_empty();
        if self.state == State::Preparing {
            if result == 0 {
                self.state = State::Fetching;
                self.fetch(ring, driver, queue_index)?;
            } else {
                let (device_id, queue_id) = driver.ids();
                let error = &io::Error::from_raw_os_error(result.wrapping_neg()) as &dyn std::error::Error;
                tracing::error!(device_id, queue_id, error, "the kernel did not arm the tags of a queue");
                self.state = State::Ended;
            }
        } else {
            self.commits -= 1;
            self.answer_again(driver, result, &elements)?;
        }
        elements.clear();
        Ok(Returned { elements, has_answers: !had_answers && !self.answers.is_empty() })
    }

    /// Gathers those of `elements` anew which a command with this result has neither done nor refused. After the first elements are done
    /// the result does not say why the next one is not, so the next command asks again.
    fn answer_again(&mut self, driver: &dyn QueueDriver, result: i32, elements: &[u64]) -> io::Result<()> {
        let commands = commands(driver)?;
        let left = match (commands.done(result), elements) {
            (Ok(done), _) => elements.get(done..).unwrap_or_default(),
            (Err(error), [refused, left @ ..]) if !PASSING.contains(&error) => {
                let _: TagEvent = driver.event(commands.tag(*refused), error);
                left
            }
            (Err(_), _) => elements,
        };
        self.is_awaited |= !left.is_empty() && left.len() < elements.len();
        self.answers.extend_from_slice(left);
        Ok(())
    }

    /// Gathers the answer for the request of a tag. True for the first answer since the last commit.
    pub fn answer(&mut self, driver: &dyn QueueDriver, tag: u16, result: Result<u32, &Failure>) -> bool {
        let Some(commands) = driver.batch() else { return false };
        self.give_up(tag);
        self.answers.push(commands.element(tag, result));
        self.answers.len() == 1
    }

    /// Gives the gathered answers to the ring. `room` takes the next ones.
    pub fn commit<C>(
        &mut self,
        ring: &mut Ring<C>,
        driver: &dyn QueueDriver,
        queue_index: u32,
        room: Vec<u64>,
    ) -> io::Result<()> {
        let elements = std::mem::replace(&mut self.answers, room);
        let entry = commands(driver)?.commit(queue_index, &elements);
        self.commits += 1;
        let is_prompt = !std::mem::take(&mut self.is_awaited);
        // SAFETY: the entry points to the elements, as `BatchCommands` promises.
        unsafe { ring.command_with(entry, token(queue_index), elements, is_prompt) }
    }

    /// Notes that the request of a tag is in the worker's hands no more.
    pub fn give_up(&mut self, tag: u16) {
        let (word, bit) = place(tag);
        let was_held = self.held[word] & bit != 0;
        debug_assert!(was_held, "tag {tag} holds no request");
        self.held[word] &= !bit;
        self.held_count -= u16::from(was_held);
    }

    /// Whether nothing of the queue is under way any more.
    pub fn is_gone(&self) -> bool {
        self.state == State::Ended && self.held_count == 0 && self.commits == 0 && self.answers.is_empty()
    }

    /// Notes that a tag below the depth holds a request. False when the tag held one before.
    fn hold(&mut self, tag: u16) -> bool {
        let (word, bit) = place(tag);
        let is_free = self.held[word] & bit == 0;
        self.held[word] |= bit;
        self.held_count += u16::from(is_free);
        is_free
    }
}

fn place(tag: u16) -> (usize, u64) {
    (usize::from(tag) / BITS, 1 << (usize::from(tag) % BITS))
}

/// The token of a queue's commands.
fn token(queue_index: u32) -> u64 {
    TagId { queue_index, tag: 0 }.encode()
}

fn commands(driver: &dyn QueueDriver) -> io::Result<&dyn BatchCommands> {
    driver.batch().ok_or_else(|| io::Error::other("the queue has no commands for batches"))
}
