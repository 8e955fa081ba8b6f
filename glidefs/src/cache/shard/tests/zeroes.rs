//! The extents that a turn touches for zeroes, however a guest has cut a range into pieces.

use super::*;
use crate::cache::volume::appends::WriteKind;
use crate::cache::volume::hold::{self, EXTENTS_MAX};

/// Extents that a turn may touch: a decision searches each layer and looks at the content found, and the index is searched up to
/// three times before an extent changes.
const TURN_TOUCHES_MAX: usize = 2 * EXTENTS_MAX + 4 * EXTENTS_MAX;
/// The DISCARDs that fit in a turn of a worker.
const DISCARDS: usize = 64;
const PIECES: u64 = 2000;

/// A volume with that many cuts, and with zeroes in pieces of their own at each `stride`-th sector.
fn in_pieces(bed: &mut Bed, cuts: u64, stride: u64) -> Arc<Volume> {
    let volume = bed.cache.volume(A);
    for cut in 0..cuts {
        assert!(bed.write(A, (1 << 20) + cut * 8, &[1; 4096], false));
        bed.settle();
        volume.cut_once_more();
    }
    // Zeroes are not joined while a write is under way.
    let held = volume.next_seqs(1).unwrap();
    for piece in 0..PIECES {
        bed.zero(A, range(piece * stride, 1));
        if piece % 50 == 49 {
            bed.settle();
        }
    }
    volume.gave_back(held, 1, WriteKind::Data);
    assert!(volume.figures().extents >= PIECES);
    volume
}

/// Returns the extents touched in one turn by as many DISCARDs of the same range as fit.
fn discards_of_a_turn(bed: &mut Bed, range: SectorRange) -> usize {
    hold::take_all();
    for _ in 0..DISCARDS {
        bed.zero(A, range);
    }
    bed.rig.shard.turn();
    let touched = hold::take_all();
    let done = bed.settle();
    assert_eq!(done.len(), DISCARDS);
    assert!(done.iter().all(|completion| completion.result.is_ok()));
    touched
}

#[test]
fn discards_of_a_range_in_pieces_touch_a_bounded_number_of_extents_in_a_turn_and_join_the_pieces() {
    for (cuts, stride) in [(0, 1), (0, 2), (32, 1), (32, 2)] {
        let directory = tempfile::tempdir().unwrap();
        let mut bed = open(&directory, 16);
        let volume = in_pieces(&mut bed, cuts, stride);
        let whole = range(0, PIECES * stride);
        let touched = discards_of_a_turn(&mut bed, whole);
        assert!(touched <= TURN_TOUCHES_MAX, "{cuts} cuts, each {stride}. sector: {touched} extents");
        assert_eq!(volume.figures().extents, 1 + cuts, "the zeroes are one extent");
        let recorded = volume.figures().last_seq;
        let touched = discards_of_a_turn(&mut bed, whole);
        assert!(touched <= TURN_TOUCHES_MAX, "{cuts} cuts, each {stride}. sector: {touched} extents");
        if cuts == 0 {
            assert_eq!(volume.figures().last_seq, recorded, "zeroes again need no record");
        }
    }
}
