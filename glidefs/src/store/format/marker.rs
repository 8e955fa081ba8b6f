//! The marker that makes a place a store: JSON, so that people who find the marker can read what the place is.
//!
//! Owns the text. Does not own the reaction to a marker of another format. Invariant: a marker that decodes has the format that
//! this glidefs reads.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::FormatError;
use super::limits::FORMAT_VERSION;

/// Longest marker that is decoded, bytes.
pub(in crate::store) const MARKER_BYTES_MAX: u64 = 64 * 1024;

/// The content of a marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Identity of the store, random.
    pub store_id: Uuid,
    /// Time of creation, RFC 3339.
    pub created: String,
}

#[derive(Serialize, Deserialize)]
struct Text {
    format: u16,
    store_id: String,
    created: String,
}

/// The fields of a marker of any format.
#[derive(Deserialize)]
struct AnyText {
    format: u16,
}

impl Marker {
    /// A marker for the store `store_id`, whose own marker is gone with the time of creation.
    pub fn restored(store_id: Uuid) -> Self {
        Self { store_id, created: "1970-01-01T00:00:00Z".into() }
    }

    /// The JSON text, with a line feed at the end.
    pub fn encode(&self) -> Vec<u8> {
        let text = Text {
            format: FORMAT_VERSION,
            store_id: self.store_id.to_string(),
            created: self.created.clone(),
        };
        let mut bytes =
            serde_json::to_vec(&text).unwrap_or_else(|error| unreachable!("text is JSON: {error}"));
        bytes.push(b'\n');
        bytes
    }

    /// Decodes a marker. Unknown fields are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        const OTHER: FormatError = FormatError::Malformed("not the marker of a glidefs store");
        if bytes.len() as u64 > MARKER_BYTES_MAX {
            return Err(FormatError::Length { found: bytes.len() as u64, needed: MARKER_BYTES_MAX });
        }
        let AnyText { format } = serde_json::from_slice(bytes).map_err(|_| OTHER)?;
        if format != FORMAT_VERSION {
            return Err(FormatError::Version { found: format });
        }
        let text: Text = serde_json::from_slice(bytes).map_err(|_| OTHER)?;
        let store_id = Uuid::try_parse(&text.store_id).map_err(|_| OTHER)?;
        Ok(Self { store_id, created: text.created })
    }
}
