//! The marker that makes a place a store: JSON, so that people who meet it know what it is.
//!
//! Owns its text. Does not own what is done about a marker of another format. Invariant: a marker that decodes is of the
//! format this glidefs reads.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::FormatError;
use super::limits::FORMAT_VERSION;

/// Longest marker that is read, bytes.
pub(in crate::store) const MARKER_BYTES_MAX: u64 = 64 * 1024;

/// What makes a place a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Identity of the store, random.
    pub store_id: Uuid,
    /// When it was made, RFC 3339.
    pub created: String,
}

#[derive(Serialize, Deserialize)]
struct Text {
    format: u16,
    store_id: String,
    created: String,
}

/// What a marker of every format has.
#[derive(Deserialize)]
struct AnyText {
    format: u16,
}

impl Marker {
    /// The marker as bytes.
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

    /// Reads a marker. Fields that it does not know are ignored.
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
