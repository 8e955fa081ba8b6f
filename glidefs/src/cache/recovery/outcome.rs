//! How a reading of the log may end.
//!
//! Owns the vocabulary only.

/// The end of a try to read the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// A sync failed and the page cache dropped frames already read, of a segment not known to be stable; or a file can be read
    /// again. The indexes are worth nothing.
    ReadAgain,
    /// The checkpoint was used, and is damaged, or the log tells of losses: the indexes are worth nothing, and nothing was written.
    ReadWithoutCheckpoint,
}
