//! How many connections there are at most, and which one leaves for a newer one.
//!
//! Owns the seats of a door (TCP, the socket, strangers at the socket). Does not own connections: a connection holds its seat,
//! says when a request begins and when its answer has gone out, and leaves when told to. Invariants: there are never more seats
//! taken than allowed; a connection is told to leave only while it has no request; the answer to a request that carried the token
//! is never cut off for a newer connection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// What is counted at a door.
#[derive(Debug, Default)]
pub struct DoorStats {
    /// Connections there are.
    pub connections: AtomicU64,
    /// Connections that were closed at once because all others had requests.
    pub refused: AtomicU64,
    /// Connections without a request, or slow to take an answer for which no token was needed, that were closed for a newer one.
    pub displaced: AtomicU64,
    /// Connections that could not be accepted.
    pub accept_errors: AtomicU64,
}

/// The seats of a door.
#[derive(Clone, Debug)]
pub(super) struct Seats(Arc<SeatsInner>);

#[derive(Debug)]
struct SeatsInner {
    max: usize,
    occupancy: Mutex<Occupancy>,
    /// Tells of each seat that was given back.
    freed: Notify,
    stats: Arc<DoorStats>,
}

#[derive(Debug, Default)]
struct Occupancy {
    taken: usize,
    /// The next number of `idle` and `answering`.
    next: u64,
    /// Connections without a request, those first that have been so for longest.
    idle: BTreeMap<u64, Arc<Occupant>>,
    /// Connections of strangers to which an answer is on its way, those first whose answer came first.
    answering: BTreeMap<u64, Arc<Occupant>>,
}

#[derive(Debug)]
struct Occupant {
    /// Its number in `idle` or `answering`, as long as it is in one of them.
    number: AtomicU64,
    /// Whether its last request came without the token that opens more.
    is_anonymous: AtomicBool,
    told_to_leave: AtomicBool,
    leave: Notify,
}

/// The seat of a connection. Given back when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    inner: Arc<SeatsInner>,
    occupant: Arc<Occupant>,
    /// Whether a request is being worked on.
    has_request: AtomicBool,
    /// Whether an answer is on its way out.
    has_answer: AtomicBool,
}

impl Seats {
    pub fn new(max: usize, stats: Arc<DoorStats>) -> Self {
        Self(Arc::new(SeatsInner { max, occupancy: Mutex::default(), freed: Notify::new(), stats }))
    }

    pub fn stats(&self) -> &DoorStats {
        &self.0.stats
    }

    /// A seat; when all are taken, that of the connection that has been without a request for longest, or else that of the stranger
    /// whose answer has been on its way for longest. `None` when there is neither. Called by one task.
    pub async fn take(&self) -> Option<Seat> {
        let inner = &self.0;
        loop {
            let freed = inner.freed.notified();
            {
                let mut occupancy = inner.lock();
                if occupancy.taken < inner.max {
                    occupancy.taken += 1;
                    inner.stats.connections.fetch_add(1, Ordering::Relaxed);
                    return Some(inner.seat(&mut occupancy));
                }
                let next = occupancy.idle.pop_first().or_else(|| occupancy.answering.pop_first());
                let Some((_, occupant)) = next else {
                    inner.stats.refused.fetch_add(1, Ordering::Relaxed);
                    return None;
                };
                occupant.told_to_leave.store(true, Ordering::Relaxed);
                occupant.leave.notify_one();
                inner.stats.displaced.fetch_add(1, Ordering::Relaxed);
            }
            // Whoever leaves makes inner.
            freed.await;
        }
    }

    /// Waits until all seats have been given back.
    pub async fn empty(&self) {
        loop {
            let freed = self.0.freed.notified();
            if self.0.lock().taken == 0 {
                return;
            }
            freed.await;
        }
    }
}

impl SeatsInner {
    fn seat(self: &Arc<Self>, occupancy: &mut Occupancy) -> Seat {
        let occupant = Arc::new(Occupant {
            number: AtomicU64::new(u64::MAX),
            is_anonymous: AtomicBool::new(false),
            told_to_leave: AtomicBool::new(false),
            leave: Notify::new(),
        });
        occupancy.mark_idle(&occupant);
        Seat {
            inner: Arc::clone(self),
            occupant,
            has_request: AtomicBool::new(false),
            has_answer: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Occupancy> {
        // No statement between two changes that belong together can panic.
        self.occupancy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Occupancy {
    fn mark_idle(&mut self, occupant: &Arc<Occupant>) {
        let number = self.renumber(occupant);
        self.idle.insert(number, Arc::clone(occupant));
    }

    fn mark_answering(&mut self, occupant: &Arc<Occupant>) {
        let number = self.renumber(occupant);
        self.answering.insert(number, Arc::clone(occupant));
    }

    fn renumber(&mut self, occupant: &Occupant) -> u64 {
        self.forget(occupant);
        let number = self.next;
        self.next += 1;
        occupant.number.store(number, Ordering::Relaxed);
        number
    }

    /// Takes `occupant` out of both lists. Numbers are never given out twice.
    fn forget(&mut self, occupant: &Occupant) {
        let number = occupant.number.load(Ordering::Relaxed);
        self.idle.remove(&number);
        self.answering.remove(&number);
    }
}

impl Seat {
    /// Returns when the connection is to leave.
    pub async fn leaves(&self) {
        self.occupant.leave.notified().await;
    }

    /// A request has come. `None` when the connection has been told to leave.
    pub fn begin(self: &Arc<Self>) -> Option<RequestUnderWay> {
        let mut occupancy = self.inner.lock();
        if self.occupant.told_to_leave.load(Ordering::Relaxed) {
            return None;
        }
        occupancy.forget(&self.occupant);
        self.has_request.store(true, Ordering::Relaxed);
        Some(RequestUnderWay(Arc::clone(self)))
    }

    /// Whether an answer is on its way out.
    pub fn is_sending(&self) -> bool {
        self.has_answer.load(Ordering::Relaxed)
    }

    /// Everything that was to be sent has been.
    pub fn sent(&self) {
        if self.has_request.load(Ordering::Relaxed) || !self.has_answer.swap(false, Ordering::Relaxed) {
            return;
        }
        self.inner.lock().mark_idle(&self.occupant);
    }
}

/// Who sent a request, as the rules of the door find out.
#[derive(Clone, Debug)]
pub(super) struct Requester(Arc<Occupant>);

impl Requester {
    /// Notes whether the request came without the token that opens more.
    pub fn is_anonymous(&self, is_anonymous: bool) {
        self.0.is_anonymous.store(is_anonymous, Ordering::Relaxed);
    }
}

impl RequestUnderWay {
    pub fn requester(&self) -> Requester {
        Requester(Arc::clone(&self.0.occupant))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut occupancy = self.inner.lock();
        occupancy.forget(&self.occupant);
        occupancy.taken -= 1;
        drop(occupancy);
        self.inner.stats.connections.fetch_sub(1, Ordering::Relaxed);
        self.inner.freed.notify_waiters();
    }
}

/// A request that is being worked on.
#[derive(Debug)]
pub(super) struct RequestUnderWay(Arc<Seat>);

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        let seat = &self.0;
        seat.has_answer.store(true, Ordering::Relaxed);
        seat.has_request.store(false, Ordering::Relaxed);
        if seat.occupant.is_anonymous.load(Ordering::Relaxed) {
            seat.inner.lock().mark_answering(&seat.occupant);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn seats(max: usize) -> Seats {
        Seats::new(max, Arc::default())
    }

    async fn seat(seats: &Seats) -> Arc<Seat> {
        Arc::new(seats.take().await.unwrap())
    }

    #[tokio::test]
    async fn the_connection_that_rested_longest_leaves_for_a_newer_one() {
        let seats = seats(2);
        let (first, second) = (seat(&seats).await, seat(&seats).await);
        // An answer that went out makes the first the one that rests for the shorter time.
        drop(first.begin().unwrap());
        first.sent();
        let third = seats.take();
        tokio::pin!(third);
        assert!(third.as_mut().now_or_never().is_none(), "both seats are taken");
        assert!(first.leaves().now_or_never().is_none());
        assert!(second.leaves().now_or_never().is_some());
        assert!(second.begin().is_none(), "its request came too late");
        drop(second);
        assert!(third.await.is_some());
        assert_eq!(seats.stats().displaced.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_connection_with_a_request_or_an_answer_on_its_way_stays() {
        let seats = seats(1);
        let only = seat(&seats).await;
        let request = only.begin().unwrap();
        assert!(seats.take().await.is_none());
        only.sent();
        assert!(seats.take().await.is_none(), "something was sent, and the request goes on");
        drop(request);
        assert!(seats.take().await.is_none(), "the answer has not gone out");
        only.sent();
        assert!(seats.take().now_or_never().is_none() && only.leaves().now_or_never().is_some());
        drop(only);
        assert!(seats.take().await.is_some());
        assert_eq!(seats.stats().refused.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn a_stranger_who_does_not_take_an_answer_leaves_when_nobody_rests_and_others_stay() {
        let seats = seats(3);
        let (known, first, second) = (seat(&seats).await, seat(&seats).await, seat(&seats).await);
        drop(known.begin().unwrap());
        for stranger in [&first, &second] {
            let request = stranger.begin().unwrap();
            request.requester().is_anonymous(true);
        }
        for (stranger, rest) in [(first, 1), (second, 0)] {
            let newer = seats.take();
            tokio::pin!(newer);
            assert!(newer.as_mut().now_or_never().is_none() && stranger.leaves().now_or_never().is_some());
            drop(stranger);
            let newer = Arc::new(newer.await.unwrap());
            // It stays: its request goes on.
            std::mem::forget(newer.begin().unwrap());
            assert_eq!(seats.0.lock().answering.len(), rest);
        }
        assert!(seats.take().await.is_none() && known.leaves().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_request_that_follows_before_the_last_answer_went_out_keeps_the_seat() {
        let seats = seats(1);
        let only = seat(&seats).await;
        drop(only.begin().unwrap());
        let next = only.begin().unwrap();
        only.sent();
        assert!(seats.take().await.is_none());
        drop(next);
        only.sent();
        assert_eq!(seats.0.lock().idle.len(), 1);
    }

    #[tokio::test]
    async fn a_door_is_empty_when_every_seat_was_given_back() {
        let seats = seats(4);
        let (first, second) = (seat(&seats).await, seat(&seats).await);
        drop(first);
        assert!(seats.empty().now_or_never().is_none());
        drop(second);
        seats.empty().await;
        assert!(seats.0.lock().idle.is_empty());
    }
}
