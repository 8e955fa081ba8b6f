//! How much is done while the lock of a volume is held once.
//!
//! Owns the bound, and in tests the count of extents touched; the search of an index counts as an extent. Invariant: no call of a
//! volume that a running daemon makes touches more than about [`EXTENTS_MAX`] extents under one hold of the lock, whatever the size of
//! the volume: requests of the volume wait for the lock on a worker. Longer work goes on under another hold.

/// Most extents touched under one hold: at 100 ns each, 26 µs. A worker that waits for the lock keeps all its exports waiting.
pub(in crate::cache) const EXTENTS_MAX: usize = 256;

/// As [`EXTENTS_MAX`], where extents go from one layer into another: each costs a change of two indexes.
pub(in crate::cache) const MOVED_MAX: usize = EXTENTS_MAX / 2;

#[cfg(test)]
#[derive(Clone, Copy, Default)]
struct Touched {
    in_hold: usize,
    most: usize,
    all: usize,
}

#[cfg(test)]
thread_local! {
    static TOUCHED: std::cell::Cell<Touched> = std::cell::Cell::default();
}

#[inline]
pub(super) fn begin() {
    #[cfg(test)]
    TOUCHED.with(|touched| touched.set(Touched { in_hold: 0, ..touched.get() }));
}

#[inline]
pub(super) fn touch() {
    #[cfg(test)]
    TOUCHED.with(|touched| {
        let Touched { in_hold, most, all } = touched.get();
        touched.set(Touched { in_hold: in_hold + 1, most: most.max(in_hold + 1), all: all + 1 });
    });
}

/// The most extents touched under one hold by this thread since the last call.
#[cfg(test)]
pub(in crate::cache) fn take_most() -> usize {
    TOUCHED.take().most
}

/// The extents touched by this thread since the last call, under all holds together.
#[cfg(test)]
pub(in crate::cache) fn take_all() -> usize {
    TOUCHED.take().all
}
