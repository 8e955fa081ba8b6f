//! Bytes on their way between this host and the store: when they moved last, and how many go up.
//!
//! Owns the limit on a try without progress, the pace of uploads, and how many bytes of packs go up at once. Does not own the requests, nor
//! which volume is next (`turns`). Invariants: a try is given up only when nothing has moved for its whole limit, however long it takes;
//! bodies together go no faster than the pace, but for one piece each.
//!
//! A body counts as moved when the connection takes it, so the last few MiB of an upload are in buffers of the kernel when the count ends.
//! On a slow line these take long, the more uploads share the line. So a try that sends has more patience while much is on its way, and
//! packs that took long let fewer of them go up at once.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpRequestBody};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::retry::Failure;
use super::turns::Turns;
use crate::locks::MutexExt;

/// Most bytes that a connection takes at once.
const PIECE_BYTES: usize = 64 << 10;
/// Longest pack of those that pass by the long ones, because a FLUSH may wait for them, and bytes of such packs on the way at once.
const SHORT_BYTES_MAX: u64 = 1 << 20;
const SHORT_WINDOW_BYTES: u64 = 16 << 20;
/// Bytes of longer packs on the way at once, at least and at most: two packs of a cut, and all that memory has room for.
const WINDOW_BYTES_MIN: u64 = 64 << 20;
const WINDOW_BYTES_MAX: u64 = 256 << 20;
/// The upload of a longer pack takes no longer than this, nor a second for each MiB, as long as the line is not full.
const UPLOAD_TIME_USUAL: Duration = Duration::from_secs(30);
/// The slowest line on which what is on the way leaves the buffers within the patience of its senders, and the most patience.
const BYTES_PER_SECOND_MIN: u64 = 256 << 10;
const PATIENCE_MAX: Duration = Duration::from_secs(100);

/// Hours of the day in UTC, written as `8-18`: from the beginning of the first to the beginning of the last, over midnight if that is
/// the smaller one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    from: u64,
    to: u64,
}

impl Hours {
    fn has(self, unix_seconds: u64) -> bool {
        let hour = unix_seconds / 3600 % 24;
        let (is_begun, is_over) = (hour >= self.from, hour >= self.to);
        if self.from < self.to { is_begun && !is_over } else { is_begun || !is_over }
    }
}

impl FromStr for Hours {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hour = |text: &str| text.trim().parse().ok().filter(|hour| *hour <= 24);
        let hours =
            text.split_once('-').and_then(|(from, to)| Some(Self { from: hour(from)?, to: hour(to)? }));
        hours
            .filter(|hours| hours.from != hours.to)
            .ok_or("use two different hours of the day, 0 to 24, such as 8-18")
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.from, self.to)
    }
}

/// Most bytes a second that all requests of the host send, and when.
#[derive(Clone, Copy, Debug, Default)]
pub struct UploadLimit {
    /// `None`: no limit.
    pub bytes_per_second: Option<u64>,
    /// The hours in which the limit holds. `None`: always.
    pub hours: Option<Hours>,
}

impl UploadLimit {
    fn at(&self, time: SystemTime) -> Option<u64> {
        let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.bytes_per_second.filter(|_| self.hours.is_none_or(|hours| hours.has(seconds)))
    }
}

/// The way up, for all requests of a store.
#[derive(Debug)]
pub(super) struct Uplink {
    limit: UploadLimit,
    /// When the bytes let through so far have gone, at the pace of the limit.
    free_at: Mutex<Option<Instant>>,
    short: Arc<Turns>,
    long: Arc<Turns>,
}

impl Uplink {
    pub fn new(limit: UploadLimit) -> Arc<Self> {
        let (short, long) = (Turns::new(SHORT_WINDOW_BYTES), Turns::new(WINDOW_BYTES_MAX));
        Arc::new(Self { limit, free_at: Mutex::default(), short, long })
    }

    /// The turns for which a pack of so many bytes waits.
    pub fn turns(&self, bytes: u64) -> &Arc<Turns> {
        if bytes <= SHORT_BYTES_MAX { &self.short } else { &self.long }
    }

    /// Records that the upload of a pack has ended after `took`. With equal steps up and down, as many packs are on the way as take the
    /// usual time.
    pub fn ended(&self, bytes: u64, took: Duration, is_created: bool) {
        if bytes > SHORT_BYTES_MAX {
            let is_fast = is_created && took <= UPLOAD_TIME_USUAL.max(Duration::from_secs(bytes >> 20));
            let step =
                |size: u64| if is_fast { size.saturating_add(bytes) } else { size.saturating_sub(bytes) };
            self.long.resize(|size| step(size).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX));
        }
    }

    /// How much longer than usual a request that sends something may seem to stand still.
    pub fn patience(&self) -> Duration {
        let bytes = self.short.taken().saturating_add(self.long.taken());
        Duration::from_secs(bytes / BYTES_PER_SECOND_MIN).min(PATIENCE_MAX)
    }

    /// When so many more bytes may go. `None`: now.
    fn pass(&self, bytes: usize) -> Option<Instant> {
        let rate = self.limit.at(SystemTime::now())?;
        let nanos = (bytes as u64).saturating_mul(1_000_000_000) / rate.max(1);
        let (mut free_at, now) = (self.free_at.lock_whole(), Instant::now());
        let at = free_at.map_or(now, |free_at| free_at.max(now));
        *free_at = Some(at + Duration::from_nanos(nanos));
        (at > now).then_some(at)
    }
}

tokio::task_local! {
    /// The try under way. The libraries between a try and its connection have no place for it in their calls.
    static CURRENT: Transfer;
}

/// What one try moves.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    uplink: Arc<Uplink>,
    moved: Arc<Mutex<Instant>>,
}

impl Transfer {
    /// The transfer of the try that this task makes.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// The result of `answer`, or a failure when nothing has moved for `limit`, which may change meanwhile.
    pub async fn watch<T>(
        uplink: &Arc<Uplink>,
        limit: impl Fn() -> Duration,
        answer: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let transfer = Self { uplink: Arc::clone(uplink), moved: Arc::new(Mutex::new(Instant::now())) };
        let mut answer = pin!(CURRENT.scope(transfer.clone(), answer));
        loop {
            let limit = limit();
            let end = *transfer.moved.lock_whole() + limit;
            if let Ok(answer) = timeout_at(end, &mut answer).await {
                return answer;
            }
            if *transfer.moved.lock_whole() + limit <= end {
                let why = format!("no answer, and nothing moves, for {} s", limit.as_secs());
                return Err(Failure::Again(why.into(), None));
            }
        }
    }

    /// Records that something has moved, or goes on at `at`.
    fn moved_at(&self, at: Instant) {
        let mut moved = self.moved.lock_whole();
        *moved = at.max(*moved);
    }

    pub fn moved(&self) {
        self.moved_at(Instant::now());
    }
}

/// Records that something has moved for the try that this task makes.
pub(super) fn moved() {
    let _ = CURRENT.try_with(Transfer::moved);
}

/// The body of a request, which goes up piece by piece.
pub(super) struct Sending {
    body: HttpRequestBody,
    rest: Bytes,
    wait: Option<Pin<Box<Sleep>>>,
    transfer: Transfer,
}

impl Sending {
    pub fn new(body: HttpRequestBody, transfer: Transfer) -> Self {
        Self { body, rest: Bytes::new(), wait: None, transfer }
    }
}

impl Body for Sending {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let Self { body, rest, wait, transfer } = self.get_mut();
        while rest.is_empty() {
            match ready!(Pin::new(&mut *body).poll_frame(context)) {
                Some(Ok(frame)) => *rest = frame.into_data().unwrap_or_default(),
                end => return Poll::Ready(end),
            }
        }
        let bytes = rest.len().min(PIECE_BYTES);
        if wait.is_none() {
            *wait = transfer.uplink.pass(bytes).map(|at| {
                transfer.moved_at(at);
                Box::pin(sleep_until(at))
            });
        }
        if let Some(wait) = wait {
            ready!(wait.as_mut().poll(context));
        }
        *wait = None;
        transfer.moved();
        Poll::Ready(Some(Ok(Frame::data(rest.split_to(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.size_hint().lower();
        SizeHint::with_exact(body.saturating_add(self.rest.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use object_store::PutPayload;

    use super::*;

    const KIB: u64 = 1 << 10;

    fn limited(bytes_per_second: u64) -> Arc<Uplink> {
        Uplink::new(UploadLimit { bytes_per_second: Some(bytes_per_second), hours: None })
    }

    /// Sends `bytes`, and adds to `sent` what has gone.
    async fn send(bytes: usize, sent: Arc<Mutex<u64>>) -> Result<(), Failure> {
        let payload = PutPayload::from_iter([Bytes::new(), vec![7; bytes].into(), Bytes::new()]);
        let mut body = Sending::new(payload.into(), Transfer::current().unwrap());
        let mut left = bytes as u64;
        while let Some(frame) = body.frame().await {
            let piece = frame.unwrap().into_data().unwrap();
            assert!(!piece.is_empty() && piece.iter().all(|byte| *byte == 7));
            left -= piece.len() as u64;
            assert_eq!(body.size_hint().exact(), Some(left));
            *sent.lock_whole() += piece.len() as u64;
        }
        assert_eq!(left, 0);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_go_up_at_the_pace_of_the_limit_and_the_wait_for_it_is_no_standstill() {
        let (uplink, sent) = (limited(16 * KIB), Arc::default());
        let sends = || {
            let limit = || Duration::from_secs(1);
            Transfer::watch(&uplink, limit, send(640 << 10, Arc::clone(&sent)))
        };
        let mut both = pin!(futures_util::future::join(sends(), sends()));
        for seconds in (10..80).step_by(10) {
            assert!(tokio::time::timeout(Duration::from_secs(10), &mut both).await.is_err());
            let (sent, due) = (*sent.lock_whole(), seconds * 16 * KIB);
            assert!((due..=due + 64 * KIB).contains(&sent), "{sent} of {due} bytes after {seconds} s");
        }
        let (one, other) = both.await;
        assert!(one.is_ok() && other.is_ok());
        assert_eq!(*sent.lock_whole(), 1280 * KIB);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_a_body_goes_up_at_once() {
        let (uplink, sent) = (Uplink::new(UploadLimit::default()), Arc::default());
        let send = Transfer::watch(&uplink, || Duration::ZERO, send(8 << 20, Arc::clone(&sent)));
        assert!(futures_util::FutureExt::now_or_never(send).unwrap().is_ok());
    }

    #[test]
    fn a_limit_holds_in_its_hours_also_over_midnight() {
        for (text, hours) in
            [("8-18", (8..18).collect::<Vec<_>>()), ("22-2", vec![0, 1, 22, 23]), ("0-24", (0..24).collect())]
        {
            let parsed: Hours = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
            let limit = UploadLimit { bytes_per_second: Some(1), hours: Some(parsed) };
            let holds = |hour: &u64| {
                let time = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 20_000 + hour);
                limit.at(time) == Some(1)
            };
            assert_eq!((0..24).filter(holds).collect::<Vec<u64>>(), hours, "{text}");
        }
        for text in ["", "8", "8-8", "8-25", "-1-3", "a-b"] {
            assert!(text.parse::<Hours>().is_err(), "{text}");
        }
    }
}
