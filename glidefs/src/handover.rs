//! The upgrade of a running daemon: the messages and the processes of a hand-over.
//!
//! ```text
//!  old program ── start ──▶ successor                       reads and checks
//!      │ ◀────────────────────── hello ──────┤
//!      ├─────── marks, follow ─────────────▶ │                loads ahead
//!      │ ◀────── alive, alive, ready ────────┤                or failed, at any time
//!      ├─────── tenures, go ───────────────▶ │                waits for the locks
//!    execve                                  │
//!      ▼                                     │
//!   standby ◀────── alive, alive, serving ───┤                has taken over every device
//!     exit ── start ──▶ usher                │                is the child of the service manager from here on
//!                         ├───── yours ────▶ │                is the main process from here on
//!                        exit                ▼
//! ```
//!
//! The old program becomes the standby by `execve` of its own file: same process, and the kernel tears down threads, rings and
//! descriptors exactly as it does after a kill, so devices wait and locks are let go on the way of every other restart. A standby whose
//! successor fails starts the old program again, in the same process.
//!
//! Owns messages, processes and patience. Does not own what a daemon does between the messages (`daemon`). Invariants: before `go` a
//! successor takes no lock and no device, asks no store and leaves nothing behind, and the old program serves; after `go` one of the two serves in the end, or the process ends with an error
//! and the service manager starts another.
//!
//! | File | What it owns |
//! |---|---|
//! | `message` | the messages, a line of JSON each |
//! | `link` | sending and receiving with patience |
//! | `program` | which program may be the successor, and the arguments of this one |
//! | `candidate` | the old program until `go`: a successor that is started and gets ready |
//! | `standby` | the old program after `go` |
//! | `usher` | the main process while the successor loses its parent |
//! | `watch` | when a standby gives a successor up |
//! | `successor` | the new program |
//! | `notify` | what the service manager is told |

mod candidate;
mod link;
mod message;
mod notify;
mod program;
mod standby;
mod successor;
mod usher;
mod watch;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

pub use self::candidate::Candidate;
pub use self::message::{Formats, Identity, Mark, Tenure};
pub use self::program::Launch;
pub use self::standby::{Ended, Standby};
pub use self::successor::{Successor, SuccessorError};
pub use self::usher::usher;

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How a daemon comes to start.
#[derive(Debug)]
pub enum Start {
    /// By a user or a service manager.
    Alone,
    /// By a running daemon, which is to be succeeded.
    Successor(Successor),
    /// By the standby of the same program, whose successor has failed. With the exports that this program served before.
    Again(Upgrade, Vec<Tenure>),
}

/// An upgrade by hand-over that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// When the upgrade began, milliseconds since 1970-01-01 UTC.
    pub began_unix_millis: u64,
    /// The version of the program before.
    pub from: String,
    /// The version of the successor; `None` for a program that did not say.
    pub to: Option<String>,
    /// Why the program before serves on; `None` after success.
    pub failure: Option<String>,
}

/// The time now, milliseconds since 1970-01-01 UTC.
pub fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time of the clock that all processes of this boot share, nanoseconds.
fn monotonic_nanos() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    u64::try_from(time.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// The moment when [`monotonic_nanos`] was `nanos` in another process. A moment in the future is now.
fn moment(nanos: u64) -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_nanos(monotonic_nanos().saturating_sub(nanos))).unwrap_or(now)
}
