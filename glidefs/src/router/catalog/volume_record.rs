//! The volume of one export in the store, as the catalog remembers the volume.
//!
//! Owns the fields of a record, and which of two states is newer. Does not own the bytes around the JSON (`encoding`).

use serde::{Deserialize, Serialize};

use super::encoding::{DecodeError, decode_json, encode_json};
use crate::cache::SeqMarks;
use crate::store::volume::Resume;
use crate::units::Seq;

/// The last known state of an export's volume in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VolumeRecord {
    /// Identity of the volume, 32 hex digits.
    volume: String,
    /// Identity of the writer, 32 hex digits.
    writer: String,
    epoch: u64,
    /// Number of the newest manifest.
    manifest: u64,
    /// Size of the export in the newest manifest, sectors.
    size_sectors: u64,
    /// Last sequence number in the store.
    #[serde(rename = "flushed")]
    written_back: u64,
    /// Last sequence number that must not be read from the log any more.
    evicted: u64,
    /// Sectors listed as damaged in the newest manifest. Left out when 0, so that a glidefs from before damage was recorded can
    /// read the record: such a version refuses unknown fields.
    #[serde(default, skip_serializing_if = "is_zero")]
    damaged_sectors: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl VolumeRecord {
    /// The record of a volume in state `resume`, with nothing evicted.
    pub fn of(resume: &Resume) -> Self {
        Self {
            volume: resume.volume.to_string(),
            writer: resume.writer.to_string(),
            epoch: resume.epoch,
            manifest: resume.number,
            size_sectors: resume.size_sectors,
            written_back: resume.cut.0,
            evicted: 0,
            damaged_sectors: resume.damaged_sectors,
        }
    }

    /// This record after the news of `resume`, as far as `resume` is newer: writeback and compaction report their manifests in
    /// any order. Within one epoch the sequence number in the store never goes back.
    pub fn advanced(&self, resume: &Resume) -> Self {
        let new = Self::of(resume);
        let newer = if (new.epoch, new.manifest) < (self.epoch, self.manifest) { self } else { &new };
        let is_same = (&new.volume, new.epoch) == (&self.volume, self.epoch);
        let written_back = if is_same { self.written_back.max(new.written_back) } else { newer.written_back };
        Self { evicted: self.evicted, written_back, ..newer.clone() }
    }

    /// This record with everything up to `seq` evicted.
    pub fn evicted(&self, seq: Seq) -> Self {
        Self { evicted: self.evicted.max(seq.0), ..self.clone() }
    }

    /// How far the export is written back and evicted.
    pub fn marks(&self) -> SeqMarks {
        SeqMarks { stored: Seq(self.written_back), evicted: Seq(self.evicted) }
    }

    /// The state for the volume's writer to go on from.
    pub fn resume(&self) -> Result<Resume, DecodeError> {
        Ok(Resume {
            volume: self.volume.parse()?,
            writer: self.writer.parse()?,
            epoch: self.epoch,
            number: self.manifest,
            size_sectors: self.size_sectors,
            cut: Seq(self.written_back),
            damaged_sectors: self.damaged_sectors,
            manifest: None,
        })
    }

    /// The bytes of the record.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        encode_json(self)
    }

    /// Decodes bytes of [`Self::encode`], and checks the identities.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let record: Self = decode_json(bytes)?;
        record.resume().map(|_| record)
    }
}

#[cfg(test)]
pub(in crate::router) mod tests {
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
        let record = VolumeRecord::of(&resume(12, 99)).evicted(Seq(40));
        let decoded = VolumeRecord::decode(&record.encode().unwrap()).unwrap();
        assert_eq!(decoded, record);
        assert_eq!(decoded.resume().unwrap(), resume(12, 99));
        let whole = record.encode().unwrap();
        assert!(!String::from_utf8_lossy(&whole).contains("damaged"), "older versions read it");
        let damaged = Resume { damaged_sectors: 8, ..resume(13, 100) };
        let decoded = VolumeRecord::decode(&record.advanced(&damaged).encode().unwrap()).unwrap();
        assert_eq!(decoded.resume().unwrap(), damaged);
        let wrong = VolumeRecord { volume: "no".into(), ..record };
        assert!(matches!(VolumeRecord::decode(&wrong.encode().unwrap()), Err(DecodeError::Id(_))));
    }

    #[test]
    fn what_was_evicted_is_never_forgotten() {
        let record =
            VolumeRecord::of(&resume(1, 50)).evicted(Seq(40)).evicted(Seq(30)).advanced(&resume(2, 60));
        assert_eq!(record.marks(), SeqMarks { stored: Seq(60), evicted: Seq(40) });
        assert_eq!(record.advanced(&resume(1, 50)), record, "what is older comes too late");
    }

    #[test]
    fn a_cut_that_is_reported_after_the_compaction_behind_it_counts_as_written_back() {
        let record = VolumeRecord::of(&resume(1, 50)).advanced(&resume(3, 50)).advanced(&resume(2, 60));
        assert_eq!((record.manifest, record.written_back), (3, 60));
        let elsewhere = Resume { epoch: 4, ..resume(4, 10) };
        assert_eq!(record.advanced(&elsewhere).written_back, 10, "an epoch has its own numbers");
    }
}
