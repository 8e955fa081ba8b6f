//! `/metrics` and `/v1/top` for many clients: scrapes share texts. A scrape is a request for either.
//!
//! Owns when figures are collected and written as text, and the number of texts. Does not own the content of a text
//! (`observe::metrics`, `daemon::top`). Invariants: the figures of a scrape are not older than the request, as long as fewer than
//! [`TEXTS_MAX`] texts of the same detail are being sent; texts of all exports are made one at a time, on a blocking thread, so
//! no asynchronous task waits; texts are made for at most a tenth of the time while a text takes up to 111 ms. The text of one
//! export is short, and made at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use crate::observe::metrics::ExportHistograms;
use crate::tasks;

/// Most texts of the same detail being sent at a time: a client that is slow to take a text keeps the text in memory.
const TEXTS_MAX: usize = 4;
/// The pause after a text is so many times as long as making the text took.
const PAUSE_FACTOR: u32 = 9;
/// Longest pause after a text.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Makes the text of an answer, or gives the reason of the failure. May take tens of milliseconds.
type Encode = dyn Fn(&Selection) -> Result<String, String> + Send + Sync;

/// The figures that a scrape asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub histograms: ExportHistograms,
    /// The name of the only export to show, if not all.
    pub export: Option<String>,
}

/// The texts of one path, which scrapes share.
pub struct SharedTexts {
    encode: Arc<Encode>,
    texts: Arc<Mutex<Texts>>,
    /// By [`ExportHistograms`]: each scrape that waits for a text has a clone.
    waiting: [Arc<()>; 3],
    stats: Arc<SharedTextStats>,
}

/// Counters of scrapes and texts.
#[derive(Debug, Default)]
pub struct SharedTextStats {
    /// Scrapes that clients asked for.
    pub scrapes: AtomicU64,
    /// Texts that were made for scrapes.
    pub encodings: AtomicU64,
    /// Memory of all texts, bytes (a gauge).
    pub text_bytes: AtomicU64,
}

/// The texts, locked by one scrape at a time, and while a text is made.
#[derive(Default)]
struct Texts {
    /// The next text must not be made before.
    next: Option<Instant>,
    /// By [`ExportHistograms`].
    details: [Detail; 3],
}

#[derive(Default)]
struct Detail {
    /// The text made last, and when it was begun; kept while a scrape waits.
    last: Option<(Instant, Result<Bytes, String>)>,
    /// Every text that is being sent, newest last.
    sent: Vec<Weak<Text>>,
}

/// A text, counted as memory until dropped.
struct Text {
    text: String,
    stats: Arc<SharedTextStats>,
}

impl Text {
    fn new(text: String, stats: Arc<SharedTextStats>) -> Self {
        stats.text_bytes.fetch_add(text.capacity() as u64, Ordering::Relaxed);
        Self { text, stats }
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        self.stats.text_bytes.fetch_sub(self.text.capacity() as u64, Ordering::Relaxed);
    }
}

struct SharedText(Arc<Text>);

impl AsRef<[u8]> for SharedText {
    fn as_ref(&self) -> &[u8] {
        self.0.text.as_bytes()
    }
}

impl SharedTexts {
    /// Texts that `encode` makes, for scrapes to share.
    pub fn new(
        encode: impl Fn(&Selection) -> Result<String, String> + Send + Sync + 'static,
        stats: Arc<SharedTextStats>,
    ) -> Self {
        Self { encode: Arc::new(encode), texts: Arc::default(), waiting: Default::default(), stats }
    }

    /// The figures of this moment, or of a later one, as text.
    pub async fn text(&self, selection: &Selection) -> Result<Bytes, String> {
        let detail = selection.histograms as usize;
        let waiting = Arc::clone(&self.waiting[detail]);
        let asked = Instant::now();
        self.stats.scrapes.fetch_add(1, Ordering::Release);
        if selection.export.is_some() {
            return (self.encode)(selection).map(Bytes::from);
        }
        let mut texts = Arc::clone(&self.texts).lock_owned().await;
        if texts.details[detail].last.as_ref().is_none_or(|(begun, _)| *begun <= asked) {
            texts = self.make(selection.histograms, texts).await?;
        }
        drop(waiting);
        let last = &mut texts.details[detail].last;
        // A scrape that comes from now on needs a later text.
        let is_last = Arc::strong_count(&self.waiting[detail]) == 1;
        let text = if is_last { last.take() } else { last.clone() };
        // There is one: it was kept for this scrape, which was waiting.
        text.map_or_else(|| Err("the text was dropped".into()), |(_, text)| text)
    }

    /// Makes the next text. The task goes on even if every scrape has gone: a second text must not be begun beside the first.
    async fn make(
        &self,
        histograms: ExportHistograms,
        mut texts: OwnedMutexGuard<Texts>,
    ) -> Result<OwnedMutexGuard<Texts>, String> {
        let (encode, stats) = (Arc::clone(&self.encode), Arc::clone(&self.stats));
        let waiting = Arc::clone(&self.waiting[histograms as usize]);
        let made = tasks::spawn(async move {
            let Texts { next, details } = &mut *texts;
            let Detail { last, sent } = &mut details[histograms as usize];
            if let Some(next) = *next {
                tokio::time::sleep_until(next).await;
            }
            let begun = Instant::now();
            sent.retain(|text| text.strong_count() > 0);
            let newest = sent.iter().rev().find_map(Weak::upgrade).filter(|_| sent.len() >= TEXTS_MAX);
            let text = if let Some(newest) = newest {
                Ok(newest)
            } else {
                stats.encodings.fetch_add(1, Ordering::Relaxed);
                let selection = Selection { histograms, export: None };
                let made = tokio::task::spawn_blocking(move || encode(&selection)).await;
                *next = Some(Instant::now() + begun.elapsed().saturating_mul(PAUSE_FACTOR).min(PAUSE_MAX));
                let made = made.unwrap_or_else(|error| Err(error.to_string()));
                let made = made.map(|text| Arc::new(Text::new(text, stats)));
                sent.extend(made.as_ref().map(Arc::downgrade));
                made
            };
            // Beside the scrapes that wait, `self` and this task have a clone.
            let is_wanted = Arc::strong_count(&waiting) > 2;
            *last = is_wanted.then(|| (begun, text.map(|text| Bytes::from_owner(SharedText(text)))));
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
    fn numbered() -> SharedTexts {
        let number = AtomicU64::new(0);
        SharedTexts::new(
            move |_| Ok((number.fetch_add(1, Ordering::Relaxed) + 1).to_string()),
            Arc::default(),
        )
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn scrapes_that_come_while_a_text_is_made_share_the_next_one() {
        let (begun, begins) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let channels = std::sync::Mutex::new((begun, released));
        let encode = move |_: &Selection| {
            let channels = channels.lock().unwrap();
            channels.0.send(()).unwrap();
            channels.1.recv().unwrap();
            Ok("text".into())
        };
        let stats = Arc::<SharedTextStats>::default();
        let scrapes = Arc::new(SharedTexts::new(encode, Arc::clone(&stats)));
        let scrape = || {
            let scrapes = Arc::clone(&scrapes);
            tokio::spawn(async move { scrapes.text(&Selection::default()).await.unwrap() })
        };
        let mut all = vec![scrape()];
        tokio::task::block_in_place(|| begins.recv()).unwrap();
        all.extend((1..100).map(|_| scrape()));
        while stats.scrapes.load(Ordering::Acquire) < 100 {
            tokio::task::yield_now().await;
        }
        release.send(()).unwrap();
        release.send(()).unwrap();
        // A third text is an error, and not waited for.
        drop(release);
        for text in all {
            assert_eq!(text.await.unwrap(), "text");
        }
        assert_eq!(stats.encodings.load(Ordering::Relaxed), 2);
        let texts = scrapes.texts.lock().await;
        assert!(texts.details.iter().all(|detail| detail.last.is_none()), "nobody waits, so nothing is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn a_scrape_sees_figures_that_are_not_older_than_its_request() {
        let scrapes = numbered();
        for number in 1..5 {
            assert_eq!(scrapes.text(&Selection::default()).await.unwrap(), number.to_string());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_do_not_take_their_text_do_not_gather_ever_more_of_them() {
        let scrapes = numbered();
        let mut held = Vec::new();
        for _ in 0..TEXTS_MAX + 3 {
            held.push(scrapes.text(&Selection::default()).await.unwrap());
        }
        assert_eq!(held.last().unwrap(), &TEXTS_MAX.to_string(), "the newest one was sent again");
        let held_bytes: usize = held[..TEXTS_MAX].iter().map(Bytes::len).sum();
        assert_eq!(scrapes.stats.text_bytes.load(Ordering::Relaxed), held_bytes as u64);
        held.clear();
        assert_eq!(scrapes.stats.text_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(scrapes.text(&Selection::default()).await.unwrap(), (TEXTS_MAX + 1).to_string());
    }

    #[tokio::test(start_paused = true)]
    async fn scrapes_of_another_detail_do_not_share_a_text_and_one_export_is_asked_for_by_name() {
        let scrapes = SharedTexts::new(|selection| Ok(format!("{selection:?}")), Arc::default());
        for histograms in [ExportHistograms::None, ExportHistograms::Busy, ExportHistograms::All] {
            for export in [None, Some("vm-1".to_owned())] {
                let selection = Selection { histograms, export };
                assert_eq!(scrapes.text(&selection).await.unwrap(), format!("{selection:?}"));
            }
        }
        assert_eq!(scrapes.stats.scrapes.load(Ordering::Relaxed), 6);
        assert_eq!(scrapes.stats.encodings.load(Ordering::Relaxed), 3, "the texts of all exports");
    }

    #[tokio::test]
    async fn a_text_that_cannot_be_made_fails_its_scrapes_and_not_the_next_one() {
        let fail = AtomicU64::new(1);
        let encode = move |_: &Selection| {
            if fail.swap(0, Ordering::Relaxed) == 1 { Err("no".into()) } else { Ok(String::new()) }
        };
        let scrapes = SharedTexts::new(encode, Arc::default());
        assert_eq!(scrapes.text(&Selection::default()).await.unwrap_err(), "no");
        assert!(scrapes.text(&Selection::default()).await.is_ok());
    }
}
