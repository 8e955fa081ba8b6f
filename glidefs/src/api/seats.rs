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
pub(super) struct Seats(Arc<Room>);

#[derive(Debug)]
struct Room {
    max: usize,
    state: Mutex<State>,
    /// Tells of each seat that was given back.
    freed: Notify,
    stats: Arc<DoorStats>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// The next number of `resting` and `reading`.
    next: u64,
    /// Connections without a request, those first that have been so for longest.
    resting: BTreeMap<u64, Arc<Guest>>,
    /// Connections of strangers to which an answer is on its way, those first whose answer came first.
    reading: BTreeMap<u64, Arc<Guest>>,
}

#[derive(Debug)]
struct Guest {
    /// Its number in `resting` or `reading`, as long as it is in one of them.
    number: AtomicU64,
    /// Whether its last request came without the token that opens more.
    is_stranger: AtomicBool,
    told_to_leave: AtomicBool,
    leave: Notify,
}

/// The seat of a connection. Given back when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    room: Arc<Room>,
    guest: Arc<Guest>,
    /// Whether a request is being worked on.
    has_request: AtomicBool,
    /// Whether an answer is on its way out.
    has_answer: AtomicBool,
}

impl Seats {
    pub fn new(max: usize, stats: Arc<DoorStats>) -> Self {
        Self(Arc::new(Room { max, state: Mutex::default(), freed: Notify::new(), stats }))
    }

    pub fn stats(&self) -> &DoorStats {
        &self.0.stats
    }

    /// A seat; when all are taken, that of the connection that has been without a request for longest, or else that of the stranger
    /// whose answer has been on its way for longest. `None` when there is neither. Called by one task.
    pub async fn take(&self) -> Option<Seat> {
        let room = &self.0;
        loop {
            let freed = room.freed.notified();
            {
                let mut state = room.lock();
                if state.taken < room.max {
                    state.taken += 1;
                    room.stats.connections.fetch_add(1, Ordering::Relaxed);
                    return Some(room.seat(&mut state));
                }
                let next = state.resting.pop_first().or_else(|| state.reading.pop_first());
                let Some((_, guest)) = next else {
                    room.stats.refused.fetch_add(1, Ordering::Relaxed);
                    return None;
                };
                guest.told_to_leave.store(true, Ordering::Relaxed);
                guest.leave.notify_one();
                room.stats.displaced.fetch_add(1, Ordering::Relaxed);
            }
            // Whoever leaves makes room.
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

impl Room {
    fn seat(self: &Arc<Self>, state: &mut State) -> Seat {
        let guest = Arc::new(Guest {
            number: AtomicU64::new(u64::MAX),
            is_stranger: AtomicBool::new(false),
            told_to_leave: AtomicBool::new(false),
            leave: Notify::new(),
        });
        state.rest(&guest);
        Seat {
            room: Arc::clone(self),
            guest,
            has_request: AtomicBool::new(false),
            has_answer: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No statement between two changes that belong together can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn rest(&mut self, guest: &Arc<Guest>) {
        let number = self.renumber(guest);
        self.resting.insert(number, Arc::clone(guest));
    }

    fn read(&mut self, guest: &Arc<Guest>) {
        let number = self.renumber(guest);
        self.reading.insert(number, Arc::clone(guest));
    }

    fn renumber(&mut self, guest: &Guest) -> u64 {
        self.forget(guest);
        let number = self.next;
        self.next += 1;
        guest.number.store(number, Ordering::Relaxed);
        number
    }

    /// Takes `guest` out of both lists. Numbers are never given out twice.
    fn forget(&mut self, guest: &Guest) {
        let number = guest.number.load(Ordering::Relaxed);
        self.resting.remove(&number);
        self.reading.remove(&number);
    }
}

impl Seat {
    /// Returns when the connection is to leave.
    pub async fn leaves(&self) {
        self.guest.leave.notified().await;
    }

    /// A request has come. `None` when the connection has been told to leave.
    pub fn begin(self: &Arc<Self>) -> Option<Request> {
        let mut state = self.room.lock();
        if self.guest.told_to_leave.load(Ordering::Relaxed) {
            return None;
        }
        state.forget(&self.guest);
        self.has_request.store(true, Ordering::Relaxed);
        Some(Request(Arc::clone(self)))
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
        self.room.lock().rest(&self.guest);
    }
}

/// Who sent a request, as the rules of the door find out.
#[derive(Clone, Debug)]
pub(super) struct Sender(Arc<Guest>);

impl Sender {
    /// Notes whether the request came without the token that opens more.
    pub fn is_stranger(&self, is_stranger: bool) {
        self.0.is_stranger.store(is_stranger, Ordering::Relaxed);
    }
}

impl Request {
    pub fn sender(&self) -> Sender {
        Sender(Arc::clone(&self.0.guest))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.room.lock();
        state.forget(&self.guest);
        state.taken -= 1;
        drop(state);
        self.room.stats.connections.fetch_sub(1, Ordering::Relaxed);
        self.room.freed.notify_waiters();
    }
}

/// A request that is being worked on.
#[derive(Debug)]
pub(super) struct Request(Arc<Seat>);

impl Drop for Request {
    fn drop(&mut self) {
        let seat = &self.0;
        seat.has_answer.store(true, Ordering::Relaxed);
        seat.has_request.store(false, Ordering::Relaxed);
        if seat.guest.is_stranger.load(Ordering::Relaxed) {
            seat.room.lock().read(&seat.guest);
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
            request.sender().is_stranger(true);
        }
        for (stranger, rest) in [(first, 1), (second, 0)] {
            let newer = seats.take();
            tokio::pin!(newer);
            assert!(newer.as_mut().now_or_never().is_none() && stranger.leaves().now_or_never().is_some());
            drop(stranger);
            let newer = Arc::new(newer.await.unwrap());
            // It stays: its request goes on.
            std::mem::forget(newer.begin().unwrap());
            assert_eq!(seats.0.lock().reading.len(), rest);
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
        assert_eq!(seats.0.lock().resting.len(), 1);
    }

    #[tokio::test]
    async fn a_door_is_empty_when_every_seat_was_given_back() {
        let seats = seats(4);
        let (first, second) = (seat(&seats).await, seat(&seats).await);
        drop(first);
        assert!(seats.empty().now_or_never().is_none());
        drop(second);
        seats.empty().await;
        assert!(seats.0.lock().resting.is_empty());
    }
}
