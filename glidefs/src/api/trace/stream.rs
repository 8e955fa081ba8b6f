//! The body of a trace: lines, for as long as the client takes them.
//!
//! Owns when a client gets lines, the names of exports in lines about the store, and the rate where the client leaves the rate to the
//! daemon. Invariants: lines are made only when the client has taken those before; one chunk has at most [`CHUNK_LINES_MAX`] lines.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream::{self, Stream};
use tokio::time::{Instant, sleep_until};

use super::hub::{Reading, rate};
use super::lines::{self, Clock};
use crate::api::off_thread::OffThread;
use crate::api::wire::{TraceCounts, TraceEnd, TraceLine};

/// Most lines that are made at once: of about a kilobyte each.
const CHUNK_LINES_MAX: usize = 256;
/// Time between two looks for traces.
const LOOK: Duration = Duration::from_millis(20);
/// Time between two choices of the rate, and between two lines of counts at least.
const COUNTS: Duration = Duration::from_secs(1);
/// Longest time without a line: a client that has gone without a word is noticed.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Shortest time between two looks for the names of volumes: a look goes over all exports.
const NAMES: Duration = Duration::from_secs(5);

/// The state of an answer.
struct Answer {
    reading: Reading,
    off_thread: OffThread,
    clock: Clock,
    end: Instant,
    look: Instant,
    /// The next choice of the rate.
    choice: Instant,
    /// The requests of the host at the last choice.
    requests: u64,
    told: Option<(Instant, TraceCounts)>,
    /// The counts which are in the counters of the daemon.
    counted: TraceCounts,
    names: HashMap<String, String>,
    names_next: Instant,
    has_ended: bool,
}

/// The lines for a client, at most for `time`.
pub(super) fn lines(
    reading: Reading,
    off_thread: OffThread,
    time: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let now = Instant::now();
    let answer = Answer {
        requests: reading.source.requests(),
        reading,
        off_thread,
        clock: Clock::now(),
        end: now + time,
        look: now,
        choice: now + COUNTS,
        told: None,
        counted: TraceCounts::default(),
        names: HashMap::new(),
        names_next: now,
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
            let ending = self.wait().await;
            let mut chunk = Vec::new();
            self.gather(&mut chunk).await;
            self.choose_rate();
            if let Some(reason) = ending {
                self.has_ended = true;
                line(&mut chunk, &TraceLine::Counts(lines::counts(&self.reading.session)));
                line(&mut chunk, &TraceLine::End(TraceEnd { reason: reason.into() }));
            } else {
                self.tell_counts(&mut chunk);
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
            let ending = self.reading.ending.wait_for(|is_ending| *is_ending);
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

    /// Adds the traces that are there.
    async fn gather(&mut self, chunk: &mut Vec<u8>) {
        let mut left = CHUNK_LINES_MAX;
        let session = std::sync::Arc::clone(&self.reading.session);
        while left > 0
            && let Some(trace) = session.pop_store()
        {
            left -= 1;
            let export = match &trace.volume {
                Some(volume) => self.name_of(volume).await,
                None => None,
            };
            if session.ask().export.is_none() || session.ask().export == export {
                line(chunk, &TraceLine::Store(lines::store(trace, export, &self.clock)));
            }
        }
        // The workers take turns, so that the traces of a busy one keep no others back.
        let mut is_any = true;
        while is_any && left > 0 {
            is_any = false;
            for side in session.workers() {
                if left > 0
                    && let Some(trace) = side.ring.pop()
                {
                    (is_any, left) = (true, left - 1);
                    line(chunk, &TraceLine::Request(lines::request(&trace, &self.clock)));
                }
            }
        }
        if left == 0 {
            // More may be there.
            self.look = Instant::now();
        }
    }

    /// The name of the export with this volume, where known.
    async fn name_of(&mut self, volume: &str) -> Option<String> {
        if !self.names.contains_key(volume) && Instant::now() >= self.names_next {
            self.names_next = Instant::now() + NAMES;
            let source = std::sync::Arc::clone(&self.reading.source);
            // Without an answer the daemon stops.
            let names = self.off_thread.run(move || source.volumes()).await;
            self.names = names.unwrap_or_default().into_iter().collect();
        }
        self.names.get(volume).cloned()
    }

    /// Follows the load with the rate, where the client has left the rate to the daemon.
    fn choose_rate(&mut self) {
        let now = Instant::now();
        if now < self.choice {
            return;
        }
        let time = COUNTS.saturating_add(now.saturating_duration_since(self.choice));
        self.choice = now + COUNTS;
        let requests = self.reading.source.requests();
        let came = requests.wrapping_sub(std::mem::replace(&mut self.requests, requests));
        if self.reading.follows_load {
            self.reading.session.set_one_in(rate(came, time));
        }
    }

    /// Adds a line of counts: the first, when counts have changed, and at times when nothing happens.
    fn tell_counts(&mut self, chunk: &mut Vec<u8>) {
        let (now, counts) = (Instant::now(), lines::counts(&self.reading.session));
        self.count(counts);
        let is_due = match &self.told {
            None => true,
            Some((at, told)) if *told == counts => now.saturating_duration_since(*at) >= SILENCE_MAX,
            Some((at, _)) => now.saturating_duration_since(*at) >= COUNTS,
        };
        if is_due {
            self.told = Some((now, counts));
            line(chunk, &TraceLine::Counts(counts));
        }
    }

    /// Adds the news in `counts` to the counters of the daemon.
    fn count(&mut self, counts: TraceCounts) {
        let before = std::mem::replace(&mut self.counted, counts);
        let stats = &self.reading.stats;
        for (cell, now, before) in [
            (&stats.traces, counts.sampled, before.sampled),
            (&stats.not_traced, counts.not_traced, before.not_traced),
            (&stats.dropped, counts.dropped, before.dropped),
        ] {
            cell.fetch_add(now.saturating_sub(before), Ordering::Relaxed);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.count(lines::counts(&self.reading.session));
    }
}

fn line(chunk: &mut Vec<u8>, line: &TraceLine) {
    // A plain struct always serialises.
    chunk.extend_from_slice(&serde_json::to_vec(line).unwrap_or_default());
    chunk.push(b'\n');
}
