//! `/metrics` for many clients: scrapes share texts.
//!
//! Owns when figures are collected and written as text, and the number of texts. Does not own the content of a text
//! (`observe::metrics`). Invariants: the figures of a scrape are not older than the request, as long as fewer than
//! [`TEXTS_MAX`] texts are being sent; texts are made one at a time, on a blocking thread, so that no asynchronous task
//! waits; texts are made for at most a tenth of the time while a text takes up to 111 ms.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

/// Most texts being sent at a time: a client that is slow to take a text keeps the text in memory.
const TEXTS_MAX: usize = 4;
/// The pause after a text is so many times as long as making the text took.
const PAUSE_FACTOR: u32 = 9;
/// Longest pause after a text.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Makes the text of `/metrics`, or gives the reason of the failure. May take tens of milliseconds.
type Encode = dyn Fn() -> Result<String, String> + Send + Sync;

/// The scrapes of a daemon, and the texts they share.
pub struct Scrapes {
    encode: Arc<Encode>,
    texts: Arc<Mutex<Texts>>,
    /// Number of texts begun, or sent again in place of a new text.
    begun: Arc<AtomicU64>,
    /// Number of scrapes that wait for a text.
    waiting: Arc<AtomicUsize>,
    stats: Arc<ScrapeStats>,
}

/// Counters of scrapes.
#[derive(Debug, Default)]
pub struct ScrapeStats {
    /// Scrapes that clients asked for.
    pub scrapes: AtomicU64,
    /// Texts that were made for scrapes.
    pub encodings: AtomicU64,
}

/// The texts, locked by one scrape at a time.
#[derive(Default)]
struct Texts {
    /// The number of the text made last, counted from 1.
    number: u64,
    /// The text made last, kept while a scrape waits.
    last: Option<Result<SharedText, String>>,
    /// Every text that is being sent, newest last.
    sent: Vec<Weak<String>>,
    /// The next text must not be made before.
    next: Option<Instant>,
}

#[derive(Clone)]
struct SharedText(Arc<String>);

impl AsRef<[u8]> for SharedText {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Counts a scrape as waiting until dropped.
struct WaitingScrape(Arc<AtomicUsize>);

impl Drop for WaitingScrape {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Scrapes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scrapes").field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl Scrapes {
    /// Scrapes that get texts from `encode`.
    pub fn new(
        encode: impl Fn() -> Result<String, String> + Send + Sync + 'static,
        stats: Arc<ScrapeStats>,
    ) -> Self {
        Self {
            encode: Arc::new(encode),
            texts: Arc::default(),
            begun: Arc::default(),
            waiting: Arc::default(),
            stats,
        }
    }

    /// The figures of this moment, or of a later one, as text.
    pub async fn text(&self) -> Result<Bytes, String> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waiting = WaitingScrape(Arc::clone(&self.waiting));
        // Read behind the line above: a text that was dropped because no scrape waited has been begun by now.
        let begun = self.begun.load(Ordering::SeqCst);
        self.stats.scrapes.fetch_add(1, Ordering::Release);
        let mut texts = Arc::clone(&self.texts).lock_owned().await;
        if texts.number <= begun {
            if let Some(next) = texts.next {
                tokio::time::sleep_until(next).await;
            }
            texts = self.make(texts).await?;
        }
        let text = texts.last.clone();
        drop(waiting);
        if self.waiting.load(Ordering::SeqCst) == 0 {
            // No other scrape waits for this text.
            texts.last = None;
        }
        // There is always a text: a scrape drops the text only when no other scrape waits, and a later scrape needs a later
        // number.
        text.unwrap_or_else(|| Err("the text was dropped".into())).map(Bytes::from_owner)
    }

    /// Makes the next text. The task goes on even if every scrape has gone: a second text must not be begun beside the first.
    async fn make(&self, mut texts: OwnedMutexGuard<Texts>) -> Result<OwnedMutexGuard<Texts>, String> {
        let (encode, stats) = (Arc::clone(&self.encode), Arc::clone(&self.stats));
        let (begun, waiting) = (Arc::clone(&self.begun), Arc::clone(&self.waiting));
        let made = tokio::spawn(async move {
            texts.sent.retain(|text| text.strong_count() > 0);
            texts.number = begun.fetch_add(1, Ordering::SeqCst) + 1;
            let newest = texts.sent.iter().rev().find_map(Weak::upgrade);
            if let Some(newest) = newest.filter(|_| texts.sent.len() >= TEXTS_MAX) {
                texts.last = Some(Ok(SharedText(newest)));
                return texts;
            }
            stats.encodings.fetch_add(1, Ordering::Relaxed);
            let began = Instant::now();
            let made = tokio::task::spawn_blocking(move || encode()).await;
            let made = made.unwrap_or_else(|error| Err(error.to_string())).map(Arc::new);
            texts.next = Some(Instant::now() + began.elapsed().saturating_mul(PAUSE_FACTOR).min(PAUSE_MAX));
            if let Ok(text) = &made {
                texts.sent.push(Arc::downgrade(text));
            }
            texts.last = (waiting.load(Ordering::SeqCst) > 0).then(|| made.map(SharedText));
            texts
        });
        made.await.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Scrapes with numbers as texts: the first text is 1.
    fn numbered() -> Scrapes {
        let number = AtomicU64::new(0);
        Scrapes::new(move || Ok((number.fetch_add(1, Ordering::Relaxed) + 1).to_string()), Arc::default())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn scrapes_that_come_while_a_text_is_made_share_the_next_one() {
        let (begun, begins) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let channels = std::sync::Mutex::new((begun, released));
        let encode = move || {
            let channels = channels.lock().unwrap();
            channels.0.send(()).unwrap();
            channels.1.recv().unwrap();
            Ok("text".into())
        };
        let stats = Arc::<ScrapeStats>::default();
        let scrapes = Arc::new(Scrapes::new(encode, Arc::clone(&stats)));
        let scrape = || {
            let scrapes = Arc::clone(&scrapes);
            tokio::spawn(async move { scrapes.text().await.unwrap() })
        };
        let mut all = vec![scrape()];
        tokio::task::block_in_place(|| begins.recv()).unwrap();
        all.extend((1..100).map(|_| scrape()));
        while stats.scrapes.load(Ordering::Acquire) < 100 {
            tokio::task::yield_now().await;
        }
        release.send(()).unwrap();
        release.send(()).unwrap();
        for text in all {
            assert_eq!(text.await.unwrap(), "text");
        }
        assert_eq!(stats.encodings.load(Ordering::Relaxed), 2);
        assert!(scrapes.texts.lock().await.last.is_none(), "nobody waits, so nothing is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn a_scrape_sees_figures_that_are_not_older_than_its_request() {
        let scrapes = numbered();
        for number in 1..5 {
            assert_eq!(scrapes.text().await.unwrap(), number.to_string());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_do_not_take_their_text_do_not_gather_ever_more_of_them() {
        let scrapes = numbered();
        let mut held = Vec::new();
        for _ in 0..TEXTS_MAX + 3 {
            held.push(scrapes.text().await.unwrap());
        }
        assert_eq!(held.last().unwrap(), &TEXTS_MAX.to_string(), "the newest one was sent again");
        held.clear();
        assert_eq!(scrapes.text().await.unwrap(), (TEXTS_MAX + 1).to_string());
    }

    #[tokio::test]
    async fn a_text_that_cannot_be_made_fails_its_scrapes_and_not_the_next_one() {
        let fail = AtomicU64::new(1);
        let encode =
            move || if fail.swap(0, Ordering::Relaxed) == 1 { Err("no".into()) } else { Ok(String::new()) };
        let scrapes = Scrapes::new(encode, Arc::default());
        assert_eq!(scrapes.text().await.unwrap_err(), "no");
        assert!(scrapes.text().await.is_ok());
    }
}
