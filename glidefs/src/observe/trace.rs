//! Traces: where the time of single requests goes, for as long as somebody reads.
//!
//! Owns the vocabulary of a trace, and the way of finished traces from a worker to a reader. Does not own when a request enters a part
//! (`worker/traces`, `cache/shard`), nor readers (`api/trace`). Invariants: whoever makes a trace neither waits nor allocates for a reader:
//! a trace without room is dropped and counted; the memory of a reader is bounded, and made before the first trace.

mod clock;
mod request;
mod ring;
mod session;
mod store;

pub use self::clock::{Clock, nanos};
#[cfg(test)]
pub use self::request::PARTS;
pub use self::request::{Part, RequestTrace, Steps};
pub use self::session::{Ask, Kinds, Session, Source};
pub use self::store::{StoreTrace, StoreWatchers};
