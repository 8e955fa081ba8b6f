//! The body of a trace: lines, for as long as the client takes them.
//!
//! Owns when a client gets lines, the names of exports in lines about the store, and the choice of one request in how many is traced, where the
//! client leaves the choice to the daemon. Invariants: lines are made only when the client has taken those before; one chunk has at most [`CHUNK_LINES_MAX`] lines.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream::{self, Stream};
use tokio::time::{Instant, sleep_until};

use super::hub::{ReaderSeat, TRACES_A_SECOND, one_in_for};
use super::lines;
use super::reader::{Counted, LOOK_BUSY, counts_of, look_at_workers};
use crate::api::off_thread::OffThread;
use crate::api::wire::{TraceCounts, TraceEnd, TraceLine};
use crate::observe::trace::{Clock, Kinds, StoreTrace};

/// Most lines that are made at once: of about a kilobyte each.
const CHUNK_LINES_MAX: usize = 256;
/// Time between two looks for traces.
const LOOK: Duration = Duration::from_millis(20);
/// Most chunks between the end and the last line: more traces than these hold do not wait.
const LAST_CHUNKS_MAX: u32 = 32;
/// Time between two choices of one request in so many, and between two lines of counts at least.
const COUNTS: Duration = Duration::from_secs(1);
/// Longest time without a line: a client that has gone without a word is noticed.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Shortest time between two looks for the names of volumes: a look goes over all exports.
const NAMES: Duration = Duration::from_secs(5);
/// The same for a client of one export, for whom a request without a name waits.
const NAMES_AWAITED: Duration = Duration::from_millis(500);
/// Most requests to the store that wait for the name of their export.
const UNNAMED_MAX: usize = 256;

/// The state of an answer.
struct Answer {
    seat: ReaderSeat,
    off_thread: OffThread,
    clock: Clock,
    end: Instant,
    look: Instant,
    /// When one request in so many is chosen anew.
    choice: Instant,
    /// The requests at the last choice: of the host, or of the only export.
    requests: u64,
    told: Option<(Instant, TraceCounts)>,
    /// The counts which are in the counters of the daemon.
    counted: Counted,
    names: HashMap<String, String>,
    names_next: Instant,
    /// Requests to the store which may be of the only export.
    unnamed: VecDeque<StoreTrace>,
    /// Requests to the store that did not wait for a name, as too many did.
    unnamed_dropped: u64,
    /// Why the trace ends, and the chunks since.
    ending: Option<(&'static str, u32)>,
    has_ended: bool,
}

/// The lines for a client, at most for `time`.
pub(super) fn lines(
    seat: ReaderSeat,
    off_thread: OffThread,
    time: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let now = Instant::now();
    let answer = Answer {
        requests: came_until_now(&seat),
        seat,
        off_thread,
        clock: Clock::now(),
        end: now + time,
        look: now,
        choice: now + COUNTS,
        told: None,
        counted: Counted::default(),
        names: HashMap::new(),
        names_next: now,
        unnamed: VecDeque::new(),
        unnamed_dropped: 0,
        ending: None,
        has_ended: false,
    };
    stream::unfold(answer, |mut answer| async move {
        let chunk = answer.chunk().await?;
        Some((Ok(chunk), answer))
    })
}

impl Answer {
    /// The next lines; `None` behind the last ones.
    async fn chunk(&mut self) -> Option<Bytes> {
        while !self.has_ended {
            if self.ending.is_none() {
                self.ending = self.wait().await.map(|reason| (reason, 0));
            }
            let (mut chunk, mut requests) = (Vec::new(), Vec::new());
            let is_more = self.gather(&mut requests).await;
            self.choose_one_in();
            // Counts come first: whoever leaves with one of these requests knows of the losses before.
            self.tell_counts(&mut chunk);
            chunk.append(&mut requests);
            if let Some((reason, chunks)) = &mut self.ending {
                *chunks += 1;
                if !is_more || *chunks >= LAST_CHUNKS_MAX {
                    let reason = (*reason).into();
                    self.has_ended = true;
                    line(&mut chunk, &TraceLine::Counts(self.counts()));
                    line(&mut chunk, &TraceLine::End(TraceEnd { reason }));
                }
            }
            if !chunk.is_empty() {
                return Some(chunk.into());
            }
        }
        None
    }

    /// Waits for the next look. Returns why the trace ends, if so.
    async fn wait(&mut self) -> Option<&'static str> {
        let look = self.look.min(self.end);
        let is_stopping = {
            let ending = self.seat.ending.wait_for(|is_ending| *is_ending);
            tokio::select! {
                biased;
                // An error is that of a daemon that stops.
                _ = ending => true,
                () = sleep_until(look) => false,
            }
        };
        let now = Instant::now();
        self.look = now + LOOK;
        if is_stopping {
            return Some("stopping");
        }
        (now >= self.end).then_some("time")
    }

    /// Adds the traces that are there. Returns whether more may be there.
    async fn gather(&mut self, chunk: &mut Vec<u8>) -> bool {
        let mut left = CHUNK_LINES_MAX;
        let session = std::sync::Arc::clone(&self.seat.session);
        while left > 0
            && let Some(trace) = session.pop_store()
        {
            left -= 1;
            let export = match &trace.volume {
                Some(volume) => self.name_of(volume).await,
                None => None,
            };
            let is_named = export.is_some() || trace.volume.is_none();
            if session.ask().export.is_none() || session.ask().export == export {
                line(chunk, &TraceLine::Store(lines::store(trace, export, &self.clock)));
            } else if !is_named && self.unnamed.len() < UNNAMED_MAX {
                self.unnamed.push_back(trace);
            } else if !is_named {
                self.unnamed_dropped += 1;
            }
        }
        left -= self.name_unnamed(chunk, left).await;
        let look = look_at_workers(&session, left, |trace| {
            line(chunk, &TraceLine::Request(lines::request(&trace, &self.clock)));
        });
        left -= look.taken;
        if left == 0 {
            // More may be there.
            self.look = Instant::now();
        } else if look.is_busy {
            self.look = Instant::now() + LOOK_BUSY;
        }
        left == 0
    }

    /// Adds those of the requests without a name that are of the only export by now, and forgets the others. Returns their number, which
    /// is at most `left`.
    async fn name_unnamed(&mut self, chunk: &mut Vec<u8>, left: usize) -> usize {
        let mut shown = 0;
        if self.unnamed.is_empty() || Instant::now() < self.names_next {
            return shown;
        }
        self.ask_names().await;
        while shown < left
            && let Some(trace) = self.unnamed.pop_front()
        {
            let export = trace.volume.as_ref().and_then(|volume| self.names.get(volume).cloned());
            if export.is_some() && export == self.seat.session.ask().export {
                shown += 1;
                line(chunk, &TraceLine::Store(lines::store(trace, export, &self.clock)));
            }
        }
        shown
    }

    async fn ask_names(&mut self) {
        let is_awaited = self.seat.session.ask().export.is_some();
        self.names_next = Instant::now() + if is_awaited { NAMES_AWAITED } else { NAMES };
        let source = std::sync::Arc::clone(&self.seat.source);
        // Without an answer the daemon stops.
        let names = self.off_thread.run(move || source.volumes()).await;
        self.names = names.unwrap_or_default().into_iter().collect();
    }

    /// The name of the export with this volume, where known.
    async fn name_of(&mut self, volume: &str) -> Option<String> {
        if !self.names.contains_key(volume) && Instant::now() >= self.names_next {
            self.ask_names().await;
        }
        self.names.get(volume).cloned()
    }

    /// Follows the load with one request in so many, where the client has left the choice to the daemon.
    fn choose_one_in(&mut self) {
        let now = Instant::now();
        if now < self.choice {
            return;
        }
        let time = COUNTS.saturating_add(now.saturating_duration_since(self.choice));
        self.choice = now + COUNTS;
        let requests = came_until_now(&self.seat);
        let came = requests.wrapping_sub(std::mem::replace(&mut self.requests, requests));
        if self.seat.follows_load {
            self.seat.session.set_one_in(one_in_for(came, time, TRACES_A_SECOND));
        }
    }

    /// Adds a line of counts: the first, when counts have changed, and at times when nothing happens.
    fn tell_counts(&mut self, chunk: &mut Vec<u8>) {
        let (now, counts) = (Instant::now(), self.counts());
        self.counted.add(counts, &self.seat.stats);
        let is_due = match &self.told {
            None => true,
            Some((at, told)) if *told == counts => now.saturating_duration_since(*at) >= SILENCE_MAX,
            Some((_, told)) if losses(told) != losses(&counts) => true,
            Some((at, _)) => now.saturating_duration_since(*at) >= COUNTS,
        };
        if is_due {
            self.told = Some((now, counts));
            line(chunk, &TraceLine::Counts(counts));
        }
    }

    /// The counts of the session, and of the requests that did not wait for a name.
    fn counts(&self) -> TraceCounts {
        let counts = counts_of(&self.seat.session);
        TraceCounts { dropped: counts.dropped.saturating_add(self.unnamed_dropped), ..counts }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.counted.add(self.counts(), &self.seat.stats);
    }
}

/// The number of requests among which the client's are chosen.
fn came_until_now(seat: &ReaderSeat) -> u64 {
    let ask = seat.session.ask();
    if ask.export.is_some() && ask.kinds != Kinds::Store {
        seat.session.sum(|side| &side.requests)
    } else {
        seat.source.requests()
    }
}

fn losses(counts: &TraceCounts) -> (u64, u64) {
    (counts.not_traced, counts.dropped)
}

fn line(chunk: &mut Vec<u8>, line: &TraceLine) {
    // A plain struct always serialises.
    chunk.extend_from_slice(&serde_json::to_vec(line).unwrap_or_default());
    chunk.push(b'\n');
}
