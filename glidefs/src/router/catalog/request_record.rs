//! A request with an idempotency key, as the catalog remembers the request.
//!
//! Owns the fields of a record. Does not own the bytes around the JSON (`encoding`), nor when a record is written (`router::keys`).
//! Invariant: a record that cannot be read stands for a request with an unknown outcome, never for no request.

use serde::{Deserialize, Serialize};

use super::encoding::{DecodeError, decode_json, encode_json};

/// The hash of an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey([u8; 32]);

impl RequestKey {
    /// The key of the text `text`.
    pub fn of(text: &str) -> Self {
        Self(*blake3::hash(text.as_bytes()).as_bytes())
    }

    pub(super) fn of_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The hash of everything that makes a request the same one as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(blake3::Hash);

impl Fingerprint {
    /// The fingerprint of a request with these parts. Each part is hashed with the length before, so no two lists of parts are alike.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(hasher.finalize())
    }
}

/// An answer to a request that was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptAnswer {
    /// The status of HTTP, a success.
    pub status: u16,
    /// Names and values of headers.
    pub headers: Vec<(String, String)>,
    /// The body; `None` for a body that was too large to be kept.
    pub body: Option<String>,
}

impl KeptAnswer {
    /// Bytes of the answer that depend on the request.
    pub fn bytes(&self) -> u64 {
        let headers = self.headers.iter().map(|(name, value)| name.len().saturating_add(value.len()));
        let all = headers.chain(self.body.as_ref().map(String::len));
        all.fold(0, |sum, bytes| sum.saturating_add(bytes as u64))
    }
}

/// How far a request is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::router) enum RequestState {
    /// The request was about to be carried out.
    Begun,
    /// The request was carried out, with this answer.
    Done(KeptAnswer),
    /// A start has found the request begun, or the record damaged.
    Unknown,
}

/// A request with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::router) struct RequestRecord {
    /// `None` for a request whose record was damaged.
    pub fingerprint: Option<Fingerprint>,
    /// When the request came into the state, or the first start of a later boot found it: milliseconds since the boot of the kernel.
    pub since_boot_millis: u64,
    /// The boot of that moment.
    pub boot_id: String,
    pub state: RequestState,
}

/// The JSON of a record.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordJson {
    /// The hash as 64 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    since_boot_millis: u64,
    boot_id: String,
    state: RequestState,
}

impl RequestRecord {
    /// The bytes of the record.
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        encode_json(&RecordJson {
            fingerprint: self.fingerprint.map(|fingerprint| fingerprint.0.to_hex().to_string()),
            since_boot_millis: self.since_boot_millis,
            boot_id: self.boot_id.clone(),
            state: self.state.clone(),
        })
    }

    /// Decodes bytes of [`Self::encode`], and checks the fingerprint.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let RecordJson { fingerprint, since_boot_millis, boot_id, state } = decode_json(bytes)?;
        let parse = |hex: String| blake3::Hash::from_hex(hex).map_err(|_| DecodeError::Fingerprint);
        let fingerprint = fingerprint.map(parse).transpose()?.map(Fingerprint);
        Ok(Self { fingerprint, since_boot_millis, boot_id, state })
    }
}

#[cfg(test)]
pub(in crate::router) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::router) fn done(body: &str) -> RequestRecord {
        RequestRecord {
            fingerprint: Some(Fingerprint::of(&[b"POST", b"/v1/exports"])),
            since_boot_millis: 5,
            boot_id: "boot".into(),
            state: RequestState::Done(KeptAnswer {
                status: 201,
                headers: vec![("content-type".into(), "application/json".into())],
                body: Some(body.into()),
            }),
        }
    }

    #[test]
    fn a_record_reads_back_as_it_was_written_in_every_state() {
        for state in [RequestState::Begun, RequestState::Unknown, done("{}").state] {
            for fingerprint in [None, Some(Fingerprint::of(&[]))] {
                let written = RequestRecord { fingerprint, state: state.clone(), ..done("") };
                assert_eq!(RequestRecord::decode(&written.encode().unwrap()).unwrap(), written);
            }
        }
    }

    #[test]
    fn parts_of_a_request_never_run_into_each_other() {
        let all: [&[&[u8]]; 5] = [&[b"ab", b"c"], &[b"a", b"bc"], &[b"abc"], &[b"abc", b""], &[]];
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert_ne!(Fingerprint::of(one), Fingerprint::of(other), "{one:?} {other:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_always_noticed(at in any::<prop::sample::Index>(), flip in 1_u8..) {
            let mut bytes = done("{\"name\":\"vm-1\"}").encode().unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(RequestRecord::decode(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(RequestRecord::decode(&bytes).is_err());
        }
    }
}
