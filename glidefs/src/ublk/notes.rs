//! The notes about devices, a JSON file each, which libublk and its tools expect of a device's server.
//!
//! Owns where the notes are, and the note of a glidefs. Does not own which devices get one. Invariant: libublk is never told to open a
//! device without a whole note, as it complains on standard error then, which is the user's; a device that may be somebody else's gets
//! no note, as a note tells whose the device is.

use std::fs;
use std::path::{Path, PathBuf};

use libublk::ctrl::UblkCtrl;

use crate::router::devices::DeviceId;

/// Name of our devices' target type.
pub(super) const TARGET: &str = "glidefs";

/// The folder of the notes.
pub(super) fn folder() -> PathBuf {
    UblkCtrl::run_dir().into()
}

fn path(folder: &Path, id: DeviceId) -> PathBuf {
    folder.join(format!("{:04}.json", id.0))
}

/// Whether device `id` has a note that libublk can read.
pub(super) fn is_whole(folder: &Path, id: DeviceId) -> bool {
    let note = fs::read(path(folder, id)).unwrap_or_default();
    serde_json::from_slice::<serde_json::Value>(&note).is_ok()
}

/// Whether the note about device `id` is one of glidefs.
pub(super) fn is_ours(folder: &Path, id: DeviceId) -> bool {
    fs::read_to_string(path(folder, id)).unwrap_or_default().contains(&format!("\"{TARGET}\""))
}

/// Leaves the note about device `id`, which is of this host's glidefs. Deleting the device removes the note.
pub(super) fn leave(folder: &Path, id: DeviceId) {
    let (path, note) = (path(folder, id), format!("{{\"target\":{{\"type\":\"{TARGET}\"}}}}"));
    if let Err(error) = fs::create_dir_all(folder).and_then(|()| fs::write(&path, note)) {
        tracing::debug!(path = %path.display(), error = &error as &dyn std::error::Error, "the device's note was not written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_whole_when_it_was_left_and_not_when_it_is_missing_or_torn() {
        let folder = tempfile::tempdir().unwrap();
        let notes = folder.path().join("notes");
        assert!(!is_whole(&notes, DeviceId(7)));
        leave(&notes, DeviceId(7));
        assert!(is_whole(&notes, DeviceId(7)) && is_ours(&notes, DeviceId(7)));
        assert!(notes.join("0007.json").exists());
        for torn in ["", "{\"target\":{\"type\":\"gli"] {
            fs::write(notes.join("0007.json"), torn).unwrap();
            assert!(!is_whole(&notes, DeviceId(7)), "{torn:?}");
        }
        fs::write(notes.join("10008.json"), "{\"target\":{\"type\":\"loop\"}}").unwrap();
        assert!(is_whole(&notes, DeviceId(10_008)) && !is_ours(&notes, DeviceId(10_008)));
    }
}
