//! The ublk devices of this host, asked one after the other, for a caller without a daemon.
//!
//! Owns the summary of an answer, and whose a device is. Does not own the commands (`control`). Blocks, for a minute a device whose
//! answer the kernel lost. Changes nothing.

use std::path::Path;

use super::control;
#[cfg(test)]
use super::driver::Server;
use super::driver::{Info, State};
use super::notes;
use crate::router::devices::{DeviceError, DeviceId};

/// The answers of the kernel about devices.
#[derive(Debug, Default)]
pub struct Survey {
    /// Devices in the order of their numbers.
    pub devices: Vec<Surveyed>,
    /// Errors about the devices that could not be asked.
    pub errors: Vec<DeviceError>,
}

/// A device, as the kernel knows the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surveyed {
    /// The number of the device.
    pub id: DeviceId,
    pub state: State,
    /// Whether the device is of the cache that was asked for.
    pub is_ours: bool,
}

/// The devices of this host. Those of the cache with `tag` are ours; without a tag, those of any glidefs.
///
/// # Errors
/// When the kernel does not list the devices.
pub fn survey(tag: Option<u32>) -> Result<Survey, DeviceError> {
    let mut ids = control::list()?;
    ids.sort_unstable_by_key(|id| id.0);
    let mut survey = Survey::default();
    for id in ids {
        match control::info(id) {
            Ok(Some(info)) => survey.devices.push(surveyed(id, info, tag, &notes::folder())),
            Ok(None) => {}
            Err(error) => survey.errors.push(error),
        }
    }
    Ok(survey)
}

fn surveyed(id: DeviceId, info: Info, tag: Option<u32>, folder: &Path) -> Surveyed {
    let is_ours = match tag {
        Some(tag) => info.owner_tag >> 32 == u64::from(tag),
        None => notes::is_ours(folder, id),
    };
    Surveyed { id, state: info.state, is_ours }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_device_is_known_by_the_tag_of_the_cache_and_without_a_tag_by_the_note_of_the_server() {
        let notes = tempfile::tempdir().unwrap();
        fs::write(notes.path().join("0007.json"), "{\"target\":{\"type\":\"glidefs\"}}").unwrap();
        fs::write(notes.path().join("0008.json"), "{\"target\":{\"type\":\"loop\"}}").unwrap();
        let is_ours = |id, owner_tag, tag| {
            let info =
                Info { state: State::Quiesced, owner_tag, server: Server::Ended, can_be_taken_back: true };
            surveyed(DeviceId(id), info, tag, notes.path()).is_ours
        };
        assert_eq!([7, 8, 9].map(|id| is_ours(id, 0, None)), [true, false, false]);
        assert!(is_ours(9, 5 << 32 | 3, Some(5)), "the note is gone");
        assert!(!is_ours(7, 6 << 32 | 3, Some(5)), "another daemon's");
    }
}
