//! Chains, drains and cancellation: which operation runs before which, and which does not run at all.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::super::{Kind, Op, Options, SubmissionThread, Target};
use super::*;

#[test]
fn a_chain_runs_in_its_order() {
    let (pool, _) = pool(1);
    let reactor = reactor(&pool);
    let file = file();
    let mut chain = reactor.chain();
    let mut pending = Vec::new();
    for fill in 1..=20 {
        pending.push(chain.then(Op::write_fixed(file.clone(), 0, slot(&pool, BLOCK, fill))));
    }
    let synced = chain.then(Op::sync_data(file.clone()));
    let read = chain.then(Op::read(file, 0, vec![0; BLOCK]));
    chain.start();
    reactor
        .block_on(async {
            for write in pending {
                assert_eq!(write.await.1.unwrap(), BLOCK);
            }
            synced.await.1.unwrap();
            assert_eq!(read.await.0, [20; BLOCK], "the last write of the chain came last");
        })
        .unwrap();
}

#[test]
fn a_failing_link_breaks_the_chain_behind_it() {
    let reactor = reactor(&pool(1).0);
    let file = file();
    for first in [
        // Refused when carried out, refused when taken up, and cut short.
        Op::write(Target::Registered(9), 0, vec![1; 8]).erase(),
        Op::sync(Target::Nothing).erase(),
        Op::read(file.clone(), 0, vec![0; 8]).erase(),
    ] {
        let kind = first.kind;
        let mut chain = reactor.chain();
        let (first, write, sync) = (
            chain.then(first),
            chain.then(Op::write(file.clone(), 0, vec![1; 8])),
            chain.then(Op::sync(file.clone())),
        );
        chain.start();
        let apart = reactor.start(Op::nop());
        reactor
            .block_on(async {
                let result = first.await.1;
                match kind {
                    Kind::Read => assert_eq!(result.unwrap(), 0, "the file is empty"),
                    _ => assert_eq!(errno(result), libc::EBADF),
                }
                assert_eq!(errno(write.await.1), libc::ECANCELED);
                assert_eq!(errno(sync.await.1), libc::ECANCELED);
                apart.await.1.unwrap();
            })
            .unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
    }
}

#[test]
fn a_chain_that_cannot_be_queued_as_a_whole_fails_as_a_whole() {
    let file = file();
    let chain_of = |length| {
        (0..length).map(|_| (Op::write(file.clone(), 0, vec![1; 8]).erase(), ())).collect::<Vec<_>>()
    };
    let mut small: Ring<()> = ring(&Options { submissions: 4, ..Options::default() });
    let mut ids = Vec::new();
    small.start_chain(&mut chain_of(5), &mut ids);
    assert_eq!(ids.len(), 5);
    assert!(wait(&mut small, 5).iter().all(|done| done.result.is_err()));
    small.start(Op::nop(), ());
    small.start_chain(&mut chain_of(4), &mut ids);
    assert_eq!(wait(&mut small, 5).iter().filter(|done| done.result.is_ok()).count(), 5);

    // One operation of the chain makes no sense.
    file.set_len(0).unwrap();
    let mut chain = chain_of(2);
    chain.push((Op::write(file.clone(), 0, vec![1; 8]).window(8..9).erase(), ()));
    small.start_chain(&mut chain, &mut ids);
    assert!(wait(&mut small, 3).iter().all(|done| done.result.is_err()));

    let submission_thread = Some(SubmissionThread { idle: PATIENCE, cpu: None });
    let first: Ring<()> = ring(&Options { submission_thread, ..Options::default() });
    let workers_of = Some(first.workers().unwrap());
    let mut second: Ring<()> = ring(&Options { submission_thread, workers_of, ..Options::default() });
    second.start_chain(&mut chain_of(2), &mut ids);
    for done in wait(&mut second, 2) {
        assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    assert_eq!(file.metadata().unwrap().len(), 0);
}

#[test]
fn an_operation_after_all_waits_for_all_before_it() {
    let mut ring: Ring<&str> = ring(&Options::default());
    let (read, write) = pipe();
    ring.start(Op::read(read, 0, vec![0; 1]), "read");
    ring.start(Op::nop().after_all(), "after all");
    ring.start(Op::nop(), "later");
    assert!(completed_by_now(&mut ring).is_empty(), "the read has nothing to read yet");
    nix::unistd::write(&write, &[1]).unwrap();
    let order: Vec<_> = wait(&mut ring, 3).into_iter().map(|done| done.context).collect();
    assert_eq!(order, ["read", "after all", "later"]);
}

#[test]
fn a_read_that_would_wait_for_ever_can_be_cancelled() {
    let (pool, stats) = pool(1);
    let reactor = reactor(&pool);
    let (read, write) = pipe();
    let (id, pending) = reactor.start_with_id(Op::read_fixed(Arc::clone(&read), 0, slot(&pool, BLOCK, 1)));
    reactor.turn(Some(Duration::ZERO)).unwrap();
    reactor.cancel(id).unwrap();
    let (slot, result) = reactor.block_on(pending).unwrap();
    assert_eq!((errno(result), slot[0]), (libc::ECANCELED, 1));
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

#[test]
fn a_chain_of_writes_and_a_sync_leaves_the_file_as_written() {
    let mut ring: Ring<usize> = ring(&Options::default());
    let file = file();
    let mut chain: Vec<_> = (0..8)
        .map(|at| (Op::write(file.clone(), at as u64 * 100, vec![at as u8; 100]).erase(), at))
        .collect();
    chain.push((Op::sync(file.clone()).erase(), 8));
    ring.start_chain(&mut chain, &mut Vec::new());
    assert!(chain.is_empty());
    let done: Vec<_> =
        wait(&mut ring, 9).into_iter().map(|done| (done.context, done.result.unwrap())).collect();
    assert_eq!(done, (0..9).map(|at| (at, if at < 8 { 100 } else { 0 })).collect::<Vec<_>>());
    let mut bytes = vec![0; 800];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().enumerate().all(|(at, &byte)| usize::from(byte) == at / 100));
}
