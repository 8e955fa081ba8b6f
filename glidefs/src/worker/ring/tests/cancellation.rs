//! Cancellation.

use std::sync::Arc;

use super::super::Op;
use super::*;

#[test]
fn a_read_that_would_wait_for_ever_can_be_cancelled() {
    let (pool, stats) = pool(1);
    let reactor = reactor(&pool);
    let (read, write) = pipe();
    let (id, pending) = reactor.start_with_id(Op::read(Arc::clone(&read), 0, vec![slot(&pool, BLOCK, 1)]));
    reactor.turn(Some(Duration::ZERO)).unwrap();
    reactor.cancel(id).unwrap();
    let (slot, result) = reactor.block_on(pending).unwrap();
    assert_eq!((errno(result), slot[0][0]), (libc::ECANCELED, 1));
    drop(slot);
    assert_eq!(stats.pool.live_bytes.get(), 0);
    // The id names nothing any more, also when another operation has the key.
    let again = reactor.start(Op::read(read, 0, vec![0; 1]));
    reactor.cancel(id).unwrap();
    reactor.turn(Some(Duration::ZERO)).unwrap();
    nix::unistd::write(&write, &[7]).unwrap();
    let (bytes, result) = reactor.block_on(again).unwrap();
    assert_eq!((result.unwrap(), bytes), (1, vec![7]));
}

#[test]
fn cancelling_a_whole_read_reports_what_had_arrived() {
    let reactor = reactor(&pool(1).0);
    let (read, write) = pipe();
    nix::unistd::write(&write, &[7; 3]).unwrap();
    let (id, pending) = reactor.start_with_id(Op::read(read, 0, vec![0; 9]).whole());
    for _ in 0..3 {
        reactor.turn(Some(Duration::from_millis(5))).unwrap();
    }
    reactor.cancel(id).unwrap();
    let (bytes, result) = reactor.block_on(pending).unwrap();
    assert_eq!((result.unwrap(), &bytes[..4]), (3, &[7, 7, 7, 0][..]));
}
