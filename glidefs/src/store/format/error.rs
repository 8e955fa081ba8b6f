//! Why bytes of a store are refused.
//!
//! Owns the wording, and whether another glidefs could read the bytes.

use super::limits::FORMAT_VERSION;

/// Why bytes are not the expected structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Too few or too many bytes.
    #[error("{found} bytes where {needed} are needed")]
    Length {
        /// Length of the bytes.
        found: u64,
        /// Length that was expected, at least or at most.
        needed: u64,
    },
    /// The bytes are another structure, or none.
    #[error("the magic number of this structure is missing")]
    Magic,
    /// The bytes have changed since the encoder wrote them.
    #[error("checksum mismatch")]
    Checksum,
    /// Intact, but laid out as this glidefs does not know.
    #[error(
        "format version {found}, this glidefs reads version {FORMAT_VERSION}: run the glidefs that wrote it, or a newer one"
    )]
    Version {
        /// Version of the structure.
        found: u16,
    },
    /// Intact, with a section of an unknown kind.
    #[error(
        "a section of kind {tag}, which this glidefs does not know: run the glidefs that wrote it, or a newer one"
    )]
    Section {
        /// The unknown kind.
        tag: u16,
    },
    /// Intact, with a promise of the volume that is unknown, and so cannot be kept.
    #[error(
        "a property of kind {kind} with a value which this glidefs does not know, and so cannot keep: run the glidefs that wrote it, \
         or a newer one"
    )]
    Property {
        /// The unknown kind, or the kind with an unknown value.
        kind: u8,
    },
    /// Intact, but of another pack or volume than expected.
    #[error("it belongs to another {0}")]
    Elsewhere(&'static str),
    /// Intact, with contents that no glidefs writes.
    #[error("impossible contents: {0}")]
    Malformed(&'static str),
}

impl FormatError {
    /// Whether the bytes may be intact, and another glidefs could read them.
    pub fn is_other_version(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::Section { .. } | Self::Property { .. })
    }
}
