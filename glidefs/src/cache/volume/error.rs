//! Why a request on a volume failed.
//!
//! Owns wording only. Mapping to errno is done once, at the device boundary. The details of a failed request (file, offset, error
//! of the kernel) are in the log line written where the request failed, so the error of a request is small.

use crate::units::ExportId;

/// Why a request failed. Small and `Copy`: one failed append fails every request in the append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// Bytes on the cache disk do not match the checksum made when the bytes were acknowledged.
    #[error("cached data does not match its checksum; the log names the segment file and the offset")]
    Corrupt,
    /// A cache disk, of this host or of an earlier one, lost the data for good.
    #[error("a cache disk lost this data; these sectors fail until they are written again or discarded")]
    Damaged,
    /// The cache disk failed to read.
    #[error("reading from the cache disk failed; the log names the segment file and the offset")]
    Read,
    /// The cache disk failed to take an append; nothing of this request was kept.
    #[error("writing to the cache disk failed; the log names the segment file and the offset")]
    Write,
    /// The cache disk failed to make data stable; data covered by this FLUSH may be lost at a power cut.
    #[error("the cache disk failed to make data stable; the log names the segment file")]
    Sync,
    /// The request is longer than the cache takes at once, or than the request's buffer.
    #[error("the request is longer than the cache takes at once")]
    TooLarge,
    /// The data that the request needs is in the store: fetch the data, and ask again.
    #[error("the data is in the store")]
    Remote,
    /// The index of the export has no memory for the request any more: ask again when the request may go on.
    #[error("the index of the export has no memory")]
    IndexFull,
    /// The store could not be read, or there is none.
    #[error("reading from the store failed; the log says why")]
    Store,
    /// Data not in the store was lost here, or cannot be read now, so the store does not get the data.
    #[error(
        "data that has to be written back was lost here, or cannot be read; the log names the segment file and the offset. What was \
         lost fails until it is written again or discarded; everything else is written back"
    )]
    Unreadable,
    /// The export has given out all sequence numbers. A forged or damaged manifest had a number near the last.
    #[error(
        "the export has no sequence number left for a write: the state in the store that it was opened from was forged or damaged. \
         Copy what can be read (glidefs export dump NAME FILE; glidefs import FILE --name NEW), and delete this export"
    )]
    NoSequenceNumber,
    /// Another writer has the volume now.
    #[error("another host has taken the export over; what this one had not written back stays in its cache")]
    Fenced,
    /// The export's device is being removed, and the request would have had to wait.
    #[error("the device of the export is being removed, and the request would have had to wait")]
    Detached,
    /// The store has another history of the volume.
    #[error(
        "the store and this host have two histories of the export: the cache directory or the store was restored or cloned; what \
         this host had not written back stays in its cache"
    )]
    Diverged,
    /// The export was removed while the request was under way.
    #[error("export {0} was removed")]
    Removed(ExportId),
}

impl IoError {
    /// A word for the error, in traces.
    pub fn word(self) -> &'static str {
        match self {
            Self::Corrupt => "corrupt",
            Self::Damaged => "damaged",
            Self::Read => "cache_read",
            Self::Write => "cache_write",
            Self::Sync => "cache_sync",
            Self::TooLarge => "too_large",
            Self::Remote => "remote",
            Self::IndexFull => "index_full",
            Self::Store => "store",
            Self::Unreadable => "unreadable",
            Self::NoSequenceNumber => "no_sequence_number",
            Self::Fenced => "fenced",
            Self::Detached => "detached",
            Self::Diverged => "diverged",
            Self::Removed(_) => "removed",
        }
    }
}
