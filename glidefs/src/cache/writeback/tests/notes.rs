//! Notes on cuts and manifests: a note on a later manifest, and the notes of versions that took none.

use super::unnoted::{bring_without_a_note, data, frame};
use super::*;
use crate::cache::writeback::merging::{Stepped, step};

/// So many packs of the same sectors are merged.
const PACKS: u8 = 8;

/// A write of the cut failed, and the record of the write is on the disk. Only the dead daemon knew the write, so the record is no
/// part of what the store has, whoever else brings a manifest with the cut to the store.
#[test]
fn a_merge_between_a_cut_and_the_cuts_note_makes_no_failed_write_count_as_stored() {
    let backend = memory();
    let mut host = Host::new(backend.clone(), 1, false);
    host.write_back_when_asked();
    for generation in 1..PACKS {
        host.write(frame(0), Some(&data(generation, 0))).unwrap();
        host.write_back().unwrap();
    }
    host.write(frame(0), Some(&data(PACKS, 0))).unwrap();
    host.faults.breaks.store(true, Ordering::SeqCst);
    host.write(frame(0), Some(&data(PACKS + 1, 0))).unwrap_err();
    bring_without_a_note(&mut host);
    host.stop();
    host.faults.mend();
    host.catalog.fails.store(false, Ordering::Release);

    // The next daemon merges the packs, and dies before writing anything back.
    host.writes_back = false;
    host.start();
    host.confirm().unwrap();
    let (volume, shared) = (host.volume(), Arc::clone(&host.driver().cache.shared));
    assert!(volume.remote().unwrap().cut() > volume.figures().stored, "the cut is not noted");
    assert_eq!(host.runtime.block_on(step(&shared, &volume)), Stepped::Done);
    assert_eq!(volume.packs(), Some((1, 1)), "the packs were merged");
    drop((volume, shared));
    host.stop();

    host.writes_back = true;
    host.start();
    assert!(host.read(frame(0)) == Ok(data(PACKS + 1, 0).to_vec()));
    host.write_back().unwrap();
    let mut other = Host::new(backend, 2, true);
    assert!(other.read(frame(0)) == Ok(data(PACKS + 1, 0).to_vec()), "the store never got the write");
}

/// A cut with failed writes and no content was once noted nowhere, and counted as noted. So zeroes over a failed write were
/// acknowledged without a record, and the record of the failed write came back with the next start.
#[test]
fn zeroes_over_a_failed_write_stay_zeroes_after_a_cut_that_has_failed_writes_only() {
    let mut host = Host::new(memory(), 1, false);
    host.write_back_when_asked();
    host.faults.breaks.store(true, Ordering::SeqCst);
    host.write(frame(1), Some(&data(1, 1))).unwrap_err();
    host.write_back().unwrap();
    host.write(frame(1), None).unwrap();
    host.flush().unwrap();
    host.stop();
    host.faults.mend();
    host.start();
    assert!(host.read(frame(1)) == Ok(vec![0; 4096]), "the failed write is back");
}
