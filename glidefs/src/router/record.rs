//! What the catalog remembers of one export, and its encoding.
//!
//! Owns the bytes of a catalog value. Invariant: what decodes was written whole by a version this code knows.
//!
//! ```text
//!  0        1                5
//!  ┌────────┬────────────────┬──────────────────────────┐
//!  │version │ CRC-32C of the │ the record as JSON       │
//!  │ u8 = 1 │ JSON, u32 LE   │                          │
//!  └────────┴────────────────┴──────────────────────────┘
//! ```

use std::time::Duration;

use crc_fast::crc32_iscsi as crc32c;
use serde::{Deserialize, Serialize};

use super::devices::{DeviceId, DeviceOptions};
use crate::cache::{Bound, Durability, OnUnreachable};
use crate::units::ExportId;

/// Version of the encoding that this code writes; it reads no other.
const VERSION: u8 = 1;
/// Bytes before the JSON.
const HEADER_BYTES: usize = 5;

/// What the user wants of an export. Written before anything is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Desired {
    /// A device serves it.
    Attached,
    /// It has data and no device.
    Detached,
    /// Device and data are gone.
    Deleted,
}

/// The device an export has, had or is about to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceRecord {
    /// N of `/dev/ublkbN`; asked for again whenever the export is attached.
    pub number: u32,
    /// The boot of the kernel in which the device may exist; `None` when it certainly does not.
    pub boot_id: Option<String>,
    /// The size the kernel was last told, bytes.
    pub size_bytes: u64,
}

/// One export in the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// Identity in the cache.
    pub id: u32,
    /// Name, valid by the naming rule.
    pub name: String,
    /// Size in bytes, valid by the size rule.
    pub size_bytes: u64,
    /// Queues of its device.
    pub queues: u16,
    /// Requests in flight a queue, at most.
    pub queue_depth: u16,
    /// What the user wants.
    pub desired: Desired,
    /// Its device.
    pub device: DeviceRecord,
    /// When it was created, milliseconds since 1970-01-01 UTC.
    pub created_unix_millis: u64,
    /// Whether FLUSH waits for the store.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flush_waits_for_store: bool,
    /// How much may be lost with the host, where that is bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<BoundRecord>,
    /// After what time a READ fails that needs a store that is away, milliseconds. `None`: it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads_fail_after_millis: Option<u64>,
    /// The snapshot that the export goes back to before it may have a device again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolls_back_to: Option<String>,
    /// Whether the export may be released in the store, so that another host may have opened it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_be_released: bool,
}

/// How much an export may have that is not in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BoundRecord {
    /// Bytes.
    pub max_bytes: u64,
    /// Time since the oldest of it was acknowledged, milliseconds.
    pub max_age_millis: u64,
}

/// How the catalog has it: milliseconds; `None` is a READ that waits.
pub(super) fn reads_fail_after_millis(on_unreachable: OnUnreachable) -> Option<u64> {
    let OnUnreachable::FailAfter(limit) = on_unreachable else { return None };
    Some(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))
}

impl BoundRecord {
    /// The bound of a durability that has one.
    pub fn of(durability: Durability) -> Option<Self> {
        let Durability::Bounded(Bound { max_bytes, max_age }) = durability else { return None };
        Some(Self { max_bytes, max_age_millis: u64::try_from(max_age.as_millis()).unwrap_or(u64::MAX) })
    }
}

/// Why a catalog value could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the header has.
    #[error("it has {bytes} bytes, fewer than its header")]
    Short {
        /// How many it has.
        bytes: usize,
    },
    /// Written by another version.
    #[error("it has format version {found}, this glidefs reads version {VERSION}")]
    Version {
        /// The version it has.
        found: u8,
    },
    /// The bytes changed since they were written.
    #[error("its checksum does not match")]
    Checksum,
    /// The checksum holds, and the JSON has what this version does not know.
    #[error("it has what this glidefs does not know")]
    Json(#[from] serde_json::Error),
    /// An identity in it is none.
    #[error("it is not a record")]
    Id(#[from] crate::store::ids::IdError),
}

impl DecodeError {
    /// Whether a newer version wrote it: it is as it was written, and this version does not know all of it.
    pub fn is_newer(&self) -> bool {
        match self {
            Self::Version { found } => *found > VERSION,
            Self::Json(_) => true,
            _ => false,
        }
    }
}

/// The bytes of a catalog value.
pub(super) fn encode_json(value: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let json = serde_json::to_vec(value)?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + json.len());
    bytes.push(VERSION);
    bytes.extend_from_slice(&crc32c(&json).to_le_bytes());
    bytes.extend_from_slice(&json);
    Ok(bytes)
}

/// Reads what [`encode_json`] wrote.
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

impl Record {
    /// The record's bytes.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        encode_json(self)
    }

    /// Reads what [`Record::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode_json(bytes)
    }

    /// Identity in the cache.
    pub fn export_id(&self) -> ExportId {
        ExportId(self.id)
    }

    /// What a FLUSH survives.
    pub fn durability(&self) -> Durability {
        match self.bound {
            _ if self.flush_waits_for_store => Durability::Store,
            None => Durability::Local,
            Some(BoundRecord { max_bytes, max_age_millis }) => {
                Durability::Bounded(Bound { max_bytes, max_age: Duration::from_millis(max_age_millis) })
            }
        }
    }

    /// What a READ does while the store is away.
    pub fn on_unreachable(&self) -> OnUnreachable {
        let limit = self.reads_fail_after_millis.map(Duration::from_millis);
        limit.map_or(OnUnreachable::Wait, OnUnreachable::FailAfter)
    }

    /// The device's number.
    pub fn device_id(&self) -> DeviceId {
        DeviceId(self.device.number)
    }

    /// How the device is made.
    pub fn device_options(&self) -> DeviceOptions {
        DeviceOptions { queues: self.queues, queue_depth: self.queue_depth }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::router) fn record(id: u32, name: &str) -> Record {
        Record {
            id,
            name: name.into(),
            size_bytes: 1 << 30,
            queues: 1,
            queue_depth: 64,
            desired: Desired::Attached,
            device: DeviceRecord { number: id, boot_id: Some("boot".into()), size_bytes: 1 << 30 },
            flush_waits_for_store: false,
            bound: None,
            reads_fail_after_millis: None,
            rolls_back_to: None,
            may_be_released: false,
            created_unix_millis: 1_700_000_000_000,
        }
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let written = record(7, "vm-7");
        assert_eq!(Record::decode(&written.encode().unwrap()).unwrap(), written);
    }

    #[test]
    fn a_version_of_the_future_is_named() {
        let mut bytes = record(7, "vm-7").encode().unwrap();
        bytes[0] = 2;
        assert_eq!(
            Record::decode(&bytes).unwrap_err().to_string(),
            "it has format version 2, this glidefs reads version 1"
        );
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_always_noticed(at in any::<prop::sample::Index>(), flip in 1_u8..) {
            let mut bytes = record(7, "vm-7").encode().unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(Record::decode(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Record::decode(&bytes).is_err());
        }
    }
}
