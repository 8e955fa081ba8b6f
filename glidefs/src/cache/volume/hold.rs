//! How much is done while the lock of a volume is held once.
//!
//! Owns the bound, and in tests the count of extents touched. Invariant: no call of a volume that a running daemon makes touches
//! more than about [`EXTENTS_MAX`] extents under one hold of the lock, whatever the size of the volume: requests of the volume
//! wait for the lock on a worker. Longer work goes on under another hold.

/// Most extents touched under one hold: at 100 ns each, a fifth of a millisecond.
pub(in crate::cache) const EXTENTS_MAX: usize = 2048;

#[cfg(test)]
thread_local! {
    static TOUCHED: std::cell::Cell<(usize, usize)> = const { std::cell::Cell::new((0, 0)) };
}

#[inline]
pub(super) fn begin() {
    #[cfg(test)]
    TOUCHED.with(|touched| touched.set((0, touched.get().1)));
}

#[inline]
pub(super) fn touch() {
    #[cfg(test)]
    TOUCHED.with(|touched| {
        let (now, most) = touched.get();
        touched.set((now + 1, most.max(now + 1)));
    });
}

/// The most extents touched under one hold by this thread since the last call.
#[cfg(test)]
pub(in crate::cache) fn take_most() -> usize {
    TOUCHED.with(|touched| touched.replace((0, 0)).1)
}
