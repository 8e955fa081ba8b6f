//! The limit on connections: at most a number of them, and an older connection leaves for a newer one.
//!
//! Owns the seats of a door (TCP, the socket, strangers at the socket). Does not own connections: a connection holds a seat,
//! reports the begin of each request and the end of each answer, and leaves when told to. Invariants: never are more seats
//! taken than allowed; a connection is told to leave only while no request is under way; the answer to a request with the
//! token is never cut off for a newer connection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::locks::MutexExt;

/// The counters of a door.
#[derive(Debug, Default)]
pub struct DoorStats {
    /// Open connections at this moment, a gauge.
    pub connections: AtomicU64,
    /// Connections closed at once because all others had requests.
    pub refused: AtomicU64,
    /// Connections closed for a newer one: those without a request, and those slow to take an answer to a request without the
    /// token.
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
    /// Notified for each seat given back.
    freed: Notify,
    stats: Arc<DoorStats>,
}

#[derive(Debug, Default)]
struct Occupancy {
    taken: usize,
    /// The next number in `idle` and `answering`.
    next: u64,
    /// Connections without a request, the longest idle first.
    idle: BTreeMap<u64, Arc<Occupant>>,
    /// Connections to which the answer to a request without the token is being sent, the oldest answer first.
    answering: BTreeMap<u64, Arc<Occupant>>,
}

#[derive(Debug)]
struct Occupant {
    /// The number in `idle` or `answering`, while the connection is in one of the two.
    number: AtomicU64,
    /// Whether the last request came without the token.
    is_anonymous: AtomicBool,
    told_to_leave: AtomicBool,
    leave: Notify,
}

/// The seat of a connection, given back when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    inner: Arc<SeatsInner>,
    occupant: Arc<Occupant>,
    /// Whether a request is under way.
    has_request: AtomicBool,
    /// Whether an answer is being sent.
    has_answer: AtomicBool,
}

impl Seats {
    pub fn new(max: usize, stats: Arc<DoorStats>) -> Self {
        Self(Arc::new(SeatsInner { max, occupancy: Mutex::default(), freed: Notify::new(), stats }))
    }

    pub fn stats(&self) -> &DoorStats {
        &self.0.stats
    }

    /// Takes a seat. If all seats are taken, the connection that was idle for longest leaves. If no connection is idle, the
    /// connection with the oldest answer to a request without the token leaves. `None` if there is neither.
    /// Only one task calls this function.
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
            // The connection told to leave frees a seat.
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
        // Nothing can panic between two changes that belong together, so a poisoned lock holds whole data.
        self.occupancy.lock_whole()
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

    /// Takes `occupant` out of both lists. A number is never used twice, so at most one entry is removed.
    fn forget(&mut self, occupant: &Occupant) {
        let number = occupant.number.load(Ordering::Relaxed);
        self.idle.remove(&number);
        self.answering.remove(&number);
    }
}

impl Seat {
    /// Returns when the connection must leave.
    pub async fn leaves(&self) {
        self.occupant.leave.notified().await;
    }

    /// Begins a request. `None` if the connection was told to leave before.
    pub fn begin(self: &Arc<Self>) -> Option<RequestUnderWay> {
        let mut occupancy = self.inner.lock();
        if self.occupant.told_to_leave.load(Ordering::Relaxed) {
            return None;
        }
        occupancy.forget(&self.occupant);
        self.has_request.store(true, Ordering::Relaxed);
        Some(RequestUnderWay(Arc::clone(self)))
    }

    /// Whether an answer is being sent.
    pub fn is_sending(&self) -> bool {
        self.has_answer.load(Ordering::Relaxed)
    }

    /// Tells the seat: everything was sent.
    pub fn sent(&self) {
        if self.has_request.load(Ordering::Relaxed) || !self.has_answer.swap(false, Ordering::Relaxed) {
            return;
        }
        self.inner.lock().mark_idle(&self.occupant);
    }
}

/// The sender of a request, for the access rules to note whether the token came with the request.
#[derive(Clone, Debug)]
pub(super) struct Requester(Arc<Occupant>);

impl Requester {
    /// Notes whether the request came without the token.
    pub fn note_anonymous(&self, is_anonymous: bool) {
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

/// A request under way, until dropped.
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
        // The answer makes `first` the connection that was idle for the shorter time.
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
            request.requester().note_anonymous(true);
        }
        for (stranger, rest) in [(first, 1), (second, 0)] {
            let newer = seats.take();
            tokio::pin!(newer);
            assert!(newer.as_mut().now_or_never().is_none() && stranger.leaves().now_or_never().is_some());
            drop(stranger);
            let newer = Arc::new(newer.await.unwrap());
            // The request never ends, so the connection stays.
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
