//! The small objects: records of names, snapshots, and candidates of garbage collection.
//!
//! Owns the encodings. Invariant: a record that decodes was written whole.

use super::cursor::put_unix_millis;
use super::envelope::{begin, open, seal};
use super::error::FormatError;
use super::manifest::{Manifest, put_name, take_name};
use crate::store::ids::{PackId, StoreName, VolumeId};

pub(super) const CANDIDATES_MAGIC: [u8; 8] = *b"GLIDEGCN";
pub(super) const NAME_MAGIC: [u8; 8] = *b"GLIDENAM";
pub(super) const SNAPSHOT_MAGIC: [u8; 8] = *b"GLIDESNP";

// Name record.                             Snapshot.
//
//    0     8    10   12       28        36     0     8    10   12        20
//   ┌─────┬─────┬────┬────────┬─────────┐     ┌─────┬─────┬────┬─────────┬──────┬──────────┐
//   │magic│vers.│ .. │ volume │ created │     │magic│vers.│ .. │ created │ name │ manifest │
//   └─────┴─────┴────┴────────┴─────────┘     └─────┴─────┴────┴─────────┴──────┴──────────┘
// each followed by its BLAKE3

/// The volume behind a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRecord {
    /// The volume with the name.
    pub volume: VolumeId,
    /// When the name was given, milliseconds since 1970-01-01 UTC.
    pub created_unix_millis: u64,
}

impl NameRecord {
    /// The encoded record.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(NAME_MAGIC);
        bytes.extend_from_slice(&self.volume.0);
        put_unix_millis(&mut bytes, self.created_unix_millis);
        seal(&mut bytes);
        bytes
    }

    /// Decodes a name record.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = open(bytes, NAME_MAGIC)?;
        let record = Self { volume: VolumeId(cursor.array()?), created_unix_millis: cursor.unix_millis()? };
        cursor.end().map(|()| record)
    }
}

/// A named state of a volume: one object, which by itself keeps the packs of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Name of the snapshot.
    pub name: StoreName,
    /// Time of creation, milliseconds since 1970-01-01 UTC.
    pub created_unix_millis: u64,
    /// The state of the volume.
    pub manifest: Manifest,
}

impl Snapshot {
    /// The snapshot as bytes.
    ///
    /// # Errors
    /// As [`Manifest::encode`].
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut bytes = begin(SNAPSHOT_MAGIC);
        put_unix_millis(&mut bytes, self.created_unix_millis);
        put_name(&mut bytes, &self.name);
        bytes.extend_from_slice(&self.manifest.encode()?);
        seal(&mut bytes);
        Ok(bytes)
    }

    /// Decodes a snapshot with the manifest inside.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = open(bytes, SNAPSHOT_MAGIC)?;
        let created_unix_millis = cursor.unix_millis()?;
        let name = take_name(&mut cursor)?;
        let manifest = Manifest::decode(cursor.rest())?;
        Ok(Self { name, created_unix_millis, manifest })
    }
}

/// Most candidates in one object.
pub const CANDIDATES_MAX: usize = 1 << 20;
const CANDIDATE_BYTES: usize = 40;

/// A pack that no object used in the last run of garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The volume for which the pack was written.
    pub volume: VolumeId,
    /// Identity of the pack.
    pub pack: PackId,
    /// Since when no run has seen a use of the pack, milliseconds since 1970-01-01 UTC. 0: since the creation of the object with
    /// this candidate.
    pub since_unix_millis: u64,
}

/// The unused packs that one run of garbage collection found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates(pub Vec<Candidate>);

impl Candidates {
    /// The candidates as bytes; those beyond [`CANDIDATES_MAX`] are left out.
    pub fn encode(&self) -> Vec<u8> {
        let candidates = &self.0[..self.0.len().min(CANDIDATES_MAX)];
        let mut bytes = begin(CANDIDATES_MAGIC);
        // CANDIDATES_MAX fits.
        bytes.extend_from_slice(&(candidates.len() as u32).to_le_bytes());
        for candidate in candidates {
            bytes.extend_from_slice(&candidate.volume.0);
            bytes.extend_from_slice(&candidate.pack.0);
            put_unix_millis(&mut bytes, candidate.since_unix_millis);
        }
        seal(&mut bytes);
        bytes
    }

    /// Decodes a list of candidates.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = open(bytes, CANDIDATES_MAGIC)?;
        let count = cursor.u32()? as usize;
        if count > CANDIDATES_MAX || count.checked_mul(CANDIDATE_BYTES) != Some(cursor.left()) {
            return Err(FormatError::Malformed("number of candidates"));
        }
        let candidate = |_| {
            let (volume, pack) = (VolumeId(cursor.array()?), PackId(cursor.array()?));
            Ok(Candidate { volume, pack, since_unix_millis: cursor.unix_millis()? })
        };
        (0..count).map(candidate).collect::<Result<_, _>>().map(Self)
    }
}
