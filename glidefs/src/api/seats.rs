//! How many connections there are at most, and which one leaves for a newer one.
//!
//! Owns the seats of a door (TCP, the socket, strangers at the socket). Does not own connections: a connection holds its seat,
//! says when a request begins and when its answer has gone out, and leaves when told to. Invariants: there are never more seats
//! taken than allowed; a connection is told to leave only while it has no request.

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
    /// Connections without a request that were closed for a newer one.
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
    /// The next number of `resting`.
    next: u64,
    /// Connections without a request, those first that have been so for longest.
    resting: BTreeMap<u64, Arc<Guest>>,
}

#[derive(Debug)]
struct Guest {
    /// Its number in `resting`, as long as it is there.
    number: AtomicU64,
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

    /// A seat; when all are taken, that of the connection that has been without a request for longest. `None` when all have
    /// requests. Called by one task.
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
                let Some((_, guest)) = state.resting.pop_first() else {
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
            number: AtomicU64::new(0),
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
        guest.number.store(self.next, Ordering::Relaxed);
        self.resting.insert(self.next, Arc::clone(guest));
        self.next += 1;
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
        if !self.has_request.load(Ordering::Relaxed) {
            state.resting.remove(&self.guest.number.load(Ordering::Relaxed));
        }
        self.has_request.store(true, Ordering::Relaxed);
        Some(Request(Arc::clone(self)))
    }

    /// Everything that was to be sent has been.
    pub fn sent(&self) {
        if self.has_request.load(Ordering::Relaxed) || !self.has_answer.swap(false, Ordering::Relaxed) {
            return;
        }
        self.room.lock().rest(&self.guest);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.room.lock();
        state.resting.remove(&self.guest.number.load(Ordering::Relaxed));
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
        self.0.has_answer.store(true, Ordering::Relaxed);
        self.0.has_request.store(false, Ordering::Relaxed);
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
