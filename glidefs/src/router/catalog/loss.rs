//! How the catalog encodes why this host has lost an epoch of a volume.

use serde::{Deserialize, Serialize};

use super::encoding::{DecodeError, decode_json, encode_json};
use crate::store::volume::{Divergence, Fence, Loss, Taker};
use crate::units::Seq;

/// A loss in the catalog.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum LossRecord {
    Fenced {
        epoch: u64,
        writer: String,
    },
    Deleted,
    Diverged {
        number: u64,
        cut: u64,
        found_number: u64,
        found_cut: u64,
        found_unix_millis: u64,
        found_epoch: u64,
        found_writer: String,
    },
}

/// The bytes of a loss.
pub(super) fn encode_loss(loss: &Loss) -> Result<Vec<u8>, serde_json::Error> {
    encode_json(&match loss {
        // A daemon of before could not read a record with the host's name.
        Loss::Fenced(Taker { fence: Fence { epoch, writer }, host: _ }) => {
            LossRecord::Fenced { epoch: *epoch, writer: writer.to_string() }
        }
        Loss::Deleted => LossRecord::Deleted,
        Loss::Diverged(divergence) => {
            let Divergence { number, cut, found_number, found_cut, found_unix_millis, found } = **divergence;
            LossRecord::Diverged {
                number,
                cut: cut.0,
                found_number,
                found_cut: found_cut.0,
                found_unix_millis,
                found_epoch: found.epoch,
                found_writer: found.writer.to_string(),
            }
        }
    })
}

pub(super) fn decode_loss(bytes: &[u8]) -> Result<Loss, DecodeError> {
    Ok(match decode_json(bytes)? {
        LossRecord::Fenced { epoch, writer } => {
            Loss::Fenced(Taker { fence: Fence { epoch, writer: writer.parse()? }, host: None })
        }
        LossRecord::Deleted => Loss::Deleted,
        LossRecord::Diverged {
            number,
            cut,
            found_number,
            found_cut,
            found_unix_millis,
            found_epoch,
            found_writer,
        } => Loss::Diverged(Box::new(Divergence {
            number,
            cut: Seq(cut),
            found_number,
            found_cut: Seq(found_cut),
            found_unix_millis,
            found: Fence { epoch: found_epoch, writer: found_writer.parse()? },
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::WriterId;

    #[test]
    fn a_loss_reads_back_as_it_was_written() {
        let found = Fence { epoch: 3, writer: WriterId([9; 16]) };
        let divergence = Divergence {
            number: 7,
            cut: Seq(70),
            found_number: 12,
            found_cut: Seq(99),
            found_unix_millis: 1_700_000_000_000,
            found,
        };
        let taker = Taker { fence: found, host: None };
        for loss in [Loss::Fenced(taker), Loss::Deleted, Loss::Diverged(Box::new(divergence))] {
            let bytes = encode_loss(&loss).unwrap();
            assert_eq!(decode_loss(&bytes).unwrap(), loss);
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 4;
                assert!(decode_loss(&changed).is_err());
            }
        }
    }
}
