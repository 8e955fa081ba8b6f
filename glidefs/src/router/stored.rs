//! What the catalog remembers of an export's counterpart in the store, and its encoding.
//!
//! Owns the bytes of a catalog value, laid out as those of `record`. Invariant: what decodes was written whole by a version
//! this code knows.

use serde::{Deserialize, Serialize};

use super::record::{DecodeError, decode_json, encode_json};
use crate::cache::SeqMarks;
use crate::store::volume::Resume;
use crate::units::Seq;

/// One export's counterpart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    /// Identity of the volume, 32 hex digits.
    volume: String,
    /// Identity of its writer, 32 hex digits.
    writer: String,
    /// How often the volume was taken over.
    epoch: u64,
    /// Number of the newest manifest.
    manifest: u64,
    /// Size that manifest says, sectors.
    size_sectors: u64,
    /// Last sequence number that is in the store.
    flushed: u64,
    /// Last sequence number that may not be read from the log.
    evicted: u64,
    /// Sectors that manifest lists as damaged. Left out when there are none: a glidefs that does not know of damage refuses the
    /// others.
    #[serde(default, skip_serializing_if = "is_zero")]
    damaged_sectors: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Stored {
    /// What to remember of `resume`, with nothing evicted.
    pub fn of(resume: &Resume) -> Self {
        Self {
            volume: resume.volume.to_string(),
            writer: resume.writer.to_string(),
            epoch: resume.epoch,
            manifest: resume.number,
            size_sectors: resume.size_sectors,
            flushed: resume.cut.0,
            evicted: 0,
            damaged_sectors: resume.damaged_sectors,
        }
    }

    /// The same after what `resume` says, as far as that is newer: a flush and a compaction may tell of theirs in any order. What
    /// is in the store stays there as long as the export has the same epoch.
    pub fn advanced(&self, resume: &Resume) -> Self {
        let new = Self::of(resume);
        let newer = if (new.epoch, new.manifest) < (self.epoch, self.manifest) { self } else { &new };
        let is_same = (&new.volume, new.epoch) == (&self.volume, self.epoch);
        let flushed = if is_same { self.flushed.max(new.flushed) } else { newer.flushed };
        Self { evicted: self.evicted, flushed, ..newer.clone() }
    }

    /// The same with everything up to `seq` evicted.
    pub fn evicted(&self, seq: Seq) -> Self {
        Self { evicted: self.evicted.max(seq.0), ..self.clone() }
    }

    /// How far the history has come.
    pub fn marks(&self) -> SeqMarks {
        SeqMarks { stored: Seq(self.flushed), evicted: Seq(self.evicted) }
    }

    /// What the store's side goes on from.
    pub fn resume(&self) -> Result<Resume, DecodeError> {
        Ok(Resume {
            volume: self.volume.parse()?,
            writer: self.writer.parse()?,
            epoch: self.epoch,
            number: self.manifest,
            size_sectors: self.size_sectors,
            cut: Seq(self.flushed),
            damaged_sectors: self.damaged_sectors,
            manifest: None,
        })
    }

    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        encode_json(self)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let stored: Self = decode_json(bytes)?;
        stored.resume().map(|_| stored)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::store::{VolumeId, WriterId};

    pub(in crate::router) fn resume(number: u64, cut: u64) -> Resume {
        Resume {
            volume: VolumeId([7; 16]),
            writer: WriterId([9; 16]),
            epoch: 3,
            number,
            size_sectors: 2048,
            cut: Seq(cut),
            damaged_sectors: 0,
            manifest: None,
        }
    }

    #[test]
    fn what_was_encoded_is_decoded_and_a_wrong_id_is_refused() {
        let stored = Stored::of(&resume(12, 99)).evicted(Seq(40));
        let decoded = Stored::decode(&stored.encode().unwrap()).unwrap();
        assert_eq!(decoded, stored);
        assert_eq!(decoded.resume().unwrap(), resume(12, 99));
        let whole = stored.encode().unwrap();
        assert!(!String::from_utf8_lossy(&whole).contains("damaged"), "older versions read it");
        let damaged = Resume { damaged_sectors: 8, ..resume(13, 100) };
        let decoded = Stored::decode(&stored.advanced(&damaged).encode().unwrap()).unwrap();
        assert_eq!(decoded.resume().unwrap(), damaged);
        let wrong = Stored { volume: "no".into(), ..stored };
        assert!(matches!(Stored::decode(&wrong.encode().unwrap()), Err(DecodeError::Id(_))));
    }

    #[test]
    fn what_was_evicted_is_never_forgotten() {
        let stored = Stored::of(&resume(1, 50)).evicted(Seq(40)).evicted(Seq(30)).advanced(&resume(2, 60));
        assert_eq!(stored.marks(), SeqMarks { stored: Seq(60), evicted: Seq(40) });
        assert_eq!(stored.advanced(&resume(1, 50)), stored, "what is older comes too late");
    }

    #[test]
    fn a_cut_that_is_told_of_after_the_compaction_behind_it_counts_as_flushed() {
        let stored = Stored::of(&resume(1, 50)).advanced(&resume(3, 50)).advanced(&resume(2, 60));
        assert_eq!((stored.manifest, stored.flushed), (3, 60));
        let elsewhere = Resume { epoch: 4, ..resume(4, 10) };
        assert_eq!(stored.advanced(&elsewhere).flushed, 10, "an epoch has its own numbers");
    }
}
