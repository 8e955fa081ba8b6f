//! Records that the shard writes in pieces, one or more a turn.

use super::*;
use crate::cache::faulty::Faulty;
use crate::units::{PIECE_BYTES, REQUEST_BYTES_MAX};

/// The pieces of a record with a WRITE of the largest size and a header, from a place just before the end of a piece of the file.
const PIECES: usize = REQUEST_BYTES_MAX / PIECE_BYTES + 1;

fn data(seed: u8) -> Vec<u8> {
    (0..REQUEST_BYTES_MAX).map(|at| seed ^ (at / 512) as u8).collect()
}

#[test]
fn a_record_in_pieces_is_acknowledged_with_the_last_piece_and_other_requests_go_on_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 8);
    assert!(bed.write(B, 0, &[7; 4096], false));
    bed.settle();
    bed.rig.shard.write_in_pieces(true);
    // The first record of A in the segment has one header more.
    assert!(bed.write(A, 0, &[1; 4096], false));
    bed.settle();

    assert!(bed.write(A, 0, &data(1), false));
    for _ in 1..PIECES {
        bed.rig.turn();
        assert!(bed.rig.shard.has_rest());
        assert_eq!(bed.completed(), []);
        let volume = bed.cache.volume(B);
        bed.rig.shard.read(&volume, range(0, 8), None, MemoryToken::reading(READ, 4096));
        assert_eq!(bed.completed(), [Ok(())], "a READ does not wait for the record");
    }
    // The next record waits for the rest.
    assert!(bed.write(B, 8, &[8; 4096], false));
    bed.rig.turn();
    assert!(!bed.rig.shard.has_rest());
    assert_eq!(bed.completed(), [Ok(()), Ok(())]);
    for reopened in [false, true] {
        if reopened {
            drop(bed);
            bed = open(&directory, 8);
        }
        assert!(bed.read(A, 0, 256).unwrap() == data(1), "reopened: {reopened}");
        assert_eq!(bed.read(B, 0, 16).unwrap(), [[7; 4096], [8; 4096]].concat());
    }
}

#[test]
fn a_segment_with_a_record_in_pieces_is_let_go_of_after_the_last_piece() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 16);
    bed.rig.shard.write_in_pieces(true);
    let mut sealed = 0;
    for round in 0..40 {
        for volume in [A, B] {
            assert!(bed.write(volume, 0, &data(round), false));
            bed.rig.turn();
        }
        let done = bed.settle();
        assert_eq!(done.len(), 2);
        assert!(done.iter().all(|completion| completion.result.is_ok()), "round {round}");
        while bed.keeper.step() {}
        sealed = sealed.max(bed.cache.stats().segments_sealed);
    }
    assert!(sealed > 0);
    for volume in [A, B] {
        assert!(bed.read(volume, 0, 256).unwrap() == data(39));
    }
}

#[test]
fn a_record_whose_second_piece_cannot_be_written_fails_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let (cache, recovered) = disk.open(Known::local(&[A, B])).unwrap();
    let stats = Arc::new(ShardStats::default());
    let rig = Rig::new(cache.shard(0, Arc::clone(&stats)));
    let mut keeper = cache.keeper();
    while keeper.step() {}
    let mut bed = Bed { cache, keeper, rig, stats, recovered };
    assert!(bed.write(A, 0, &[1; 4096], false));
    bed.settle();
    bed.rig.shard.write_in_pieces(true);
    assert!(bed.write(A, 0, &data(1), false));
    *disk.faults.writes_left.lock().unwrap() = Some(1);
    bed.rig.turn();
    assert!(bed.write(A, 8, &[2; 4096], false));
    assert_eq!(bed.completed(), []);
    bed.rig.shard.turn();
    assert_eq!(bed.completed()[..1], [Err(IoError::Write)]);
    *disk.faults.writes_left.lock().unwrap() = None;
    let later = bed.settle();
    assert!(!bed.rig.shard.has_rest());
    assert!(later.len() <= 1);
    assert_eq!(bed.read(A, 0, 8).unwrap(), [1; 4096]);
    assert!(bed.write(A, 16, &[3; 4096], false));
    assert_eq!(bed.settle_one(WRITE).result, Ok(()));
    assert_eq!(bed.read(A, 16, 8).unwrap(), [3; 4096]);
}
