//! What an export promises: durability, how READs end without a store, limits and weight.
//!
//! Owns the values and their bounds. Does not own where the values are kept, nor who keeps the promises.

pub mod limits;

use std::time::Duration;

/// The loss that acknowledged FLUSHes survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Loss of power: the data is on the local disk.
    #[default]
    Local,
    /// Loss of the host: the data is in the store.
    Store,
    /// Loss of power. With the host at most the bound is lost, because writes are slowed, and wait, before more could be lost.
    Bounded(Bound),
}

/// How much data of an export may be at risk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Bytes of data.
    pub max_bytes: u64,
    /// Time since the oldest of the data was acknowledged.
    pub max_age: Duration,
}

impl Bound {
    /// Smallest bound of bytes: eight of the largest requests.
    pub const MAX_BYTES_MIN: u64 = 1 << 20;
    /// Smallest bound of time. Carrying a cut to the store takes some of the time.
    pub const MAX_AGE_MIN: Duration = Duration::from_secs(1);
}

/// Behaviour of a READ that needs the store while the store cannot be reached, or refuses this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnreachable {
    /// Wait.
    #[default]
    Wait,
    /// Fail after so long a wait.
    FailAfter(Duration),
}

impl OnUnreachable {
    /// Shortest time after which a READ may fail.
    pub const FAIL_AFTER_MIN: Duration = Duration::from_secs(1);
}
