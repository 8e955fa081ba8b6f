//! The bytes of a value of the catalog.
//!
//! Owns version and checksum around the JSON. Does not own the JSON (`record`, `volume_record`, `loss`,
//! `request_record`). Invariant: a value
//! that decodes was written whole by a version known to this code.
//!
//! ```text
//!  0        1                5
//!  ┌────────┬────────────────┬──────────────────────────┐
//!  │version │ CRC-32C of the │ the value as JSON        │
//!  │ u8 = 1 │ JSON, u32 LE   │                          │
//!  └────────┴────────────────┴──────────────────────────┘
//! ```

use serde::{Deserialize, Serialize};

use crate::checksum::crc32c;

/// Version of the encoding. This code writes and reads no other.
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 5;

/// Why a value of the catalog could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the header has.
    #[error("it has {bytes} bytes, fewer than its header")]
    Short { bytes: usize },
    /// Another version of the encoding.
    #[error("it has format version {found}, this glidefs reads version {VERSION}")]
    Version {
        /// The version in the header.
        found: u8,
    },
    /// The bytes changed after they were written.
    #[error("its checksum does not match")]
    Checksum,
    /// The checksum matches, and the JSON has fields or values unknown to this version.
    #[error("it has what this glidefs does not know")]
    Json(#[from] serde_json::Error),
    /// The identity of a volume or a writer is malformed.
    #[error("it is not a record")]
    Id(#[from] crate::store::ids::IdError),
}

impl DecodeError {
    /// Whether a newer version wrote the value: the bytes are intact, and this version does not know all of the fields.
    pub fn is_newer(&self) -> bool {
        match self {
            Self::Version { found } => *found > VERSION,
            Self::Json(_) => true,
            _ => false,
        }
    }
}

/// The bytes of a value.
pub(super) fn encode_json(value: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let json = serde_json::to_vec(value)?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + json.len());
    bytes.push(VERSION);
    bytes.extend_from_slice(&crc32c(&json).to_le_bytes());
    bytes.extend_from_slice(&json);
    Ok(bytes)
}

pub(super) fn decode_json<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T, DecodeError> {
    let Some((&[version, a, b, c, d], json)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(DecodeError::Short { bytes: bytes.len() });
    };
    if version != VERSION {
        return Err(DecodeError::Version { found: version });
    }
    if crc32c(json) != u32::from_le_bytes([a, b, c, d]) {
        return Err(DecodeError::Checksum);
    }
    Ok(serde_json::from_slice(json)?)
}
