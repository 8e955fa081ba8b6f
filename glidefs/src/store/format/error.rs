//! Why bytes of a store are refused.
//!
//! Owns the wording, and whether another glidefs could read the bytes.

use super::limits::FORMAT_VERSION;

/// Why bytes are not the structure they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Too few or too many bytes.
    #[error("{found} bytes where {needed} are needed")]
    Length {
        /// Bytes found.
        found: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// Something else, or nothing at all.
    #[error("the magic number of this structure is missing")]
    Magic,
    /// The bytes changed since they were written.
    #[error("checksum mismatch")]
    Checksum,
    /// Intact, but laid out as this glidefs does not know.
    #[error(
        "format version {found}, this glidefs reads version {FORMAT_VERSION}: run the glidefs that wrote it, or a newer one"
    )]
    Version {
        /// Version found.
        found: u16,
    },
    /// Intact, with a section that this glidefs does not know.
    #[error(
        "a section of kind {tag}, which this glidefs does not know: run the glidefs that wrote it, or a newer one"
    )]
    Section {
        /// Its kind.
        tag: u16,
    },
    /// Intact, but it belongs elsewhere.
    #[error("it belongs to another {0}")]
    Elsewhere(&'static str),
    /// Intact, but it says what no glidefs writes.
    #[error("impossible contents: {0}")]
    Malformed(&'static str),
}

impl FormatError {
    /// Whether the bytes may be intact, and a newer glidefs could read them.
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::Section { .. })
            || matches!(self, Self::Version { found } if *found > FORMAT_VERSION)
    }

    /// Whether the bytes may be intact, and another glidefs could read them.
    pub fn is_other_version(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::Section { .. })
    }
}
