//! Each kind of operation reads the data which each kind wrote, and an operation which cannot be done says so.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::super::Options;
use super::*;

/// Writes with every kind, and reads the data of each write.
fn every_kind_reads_what_every_kind_wrote(directory: &Path, flags: i32) {
    let (pool, stats) = pool(4);
    let reactor = reactor(&pool);
    let file = file_in(directory, flags);
    assert!(reactor.with_ring(|ring| ring.has_writev_fixed().unwrap()), "registered buffers need Linux 6.15");
    reactor
        .block_on(async {
            let slots =
                |fills: [u8; 3]| fills.map(|fill| slot(&pool, BLOCK, fill)).into_iter().collect::<Vec<_>>();
            let at = BLOCK as u64;
            let (written, result) = reactor.start(Op::writev(file.clone(), 0, slots([1, 2, 3]))).await;
            assert_eq!((result.unwrap(), fills(&written.slots())), (3 * BLOCK, [1, 2, 3]));
            let (written, result) =
                reactor.start(Op::writev_fixed(file.clone(), 3 * at, slots([4, 5, 6]))).await;
            assert_eq!((result.unwrap(), fills(&written.slots())), (3 * BLOCK, [4, 5, 6]));
            reactor.start(Op::sync_data(file.clone())).await.1.unwrap();
            for block in 0..6_u8 {
                let read = Op::read(file.clone(), u64::from(block) * at, vec![slot(&pool, BLOCK, 0)]);
                let (found, result) = reactor.start(read).await;
                assert_eq!((result.unwrap(), &found.slots()[0][..]), (BLOCK, &[block + 1; BLOCK][..]));
            }
        })
        .unwrap();
    assert_eq!(stats.pool.live_bytes.get(), 0);
}

/// The byte with which each slot is filled.
fn fills(slots: &[Slot]) -> [u8; 3] {
    [0, 1, 2].map(|at| {
        let slot = &slots[at];
        assert!(slot.iter().all(|&byte| byte == slot[0]));
        slot[0]
    })
}

#[test]
fn every_kind_of_operation_round_trips_on_a_disk() {
    every_kind_reads_what_every_kind_wrote(&std::env::temp_dir(), 0);
}

#[test]
fn every_kind_of_operation_round_trips_past_the_page_cache() {
    every_kind_reads_what_every_kind_wrote(Path::new(env!("CARGO_MANIFEST_DIR")), libc::O_DIRECT);
}

#[test]
fn every_kind_of_operation_round_trips_in_memory() {
    every_kind_reads_what_every_kind_wrote(Path::new("/dev/shm"), 0);
}

#[test]
fn memory_round_trips_in_one_piece_and_in_several() {
    let (pool, _) = pool(3);
    let reactor = reactor(&pool);
    let file = file();
    reactor
        .block_on(async {
            let parts = vec![slot(&pool, BLOCK, 1), slot(&pool, 4 * BLOCK, 2), slot(&pool, BLOCK, 3)];
            let (parts, result) = reactor.start(Op::writev(file.clone(), 3, parts)).await;
            let parts = parts.slots();
            assert_eq!((result.unwrap(), parts.len()), (6 * BLOCK, 3));
            let (bytes, result) = reactor.start(Op::read(file.clone(), 3, vec![0; 6 * BLOCK])).await;
            let written: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
            assert!(result.unwrap() == 6 * BLOCK && bytes.heap() == written);
        })
        .unwrap();
}

#[test]
fn a_read_at_the_end_of_the_file_says_how_much_there_was() {
    let (pool, _) = pool(1);
    let reactor = reactor(&pool);
    let file = file();
    file.write_all_at(&[5; 1000], 0).unwrap();
    reactor
        .block_on(async {
            let read = |offset| reactor.start(Op::read(file.clone(), offset, vec![slot(&pool, BLOCK, 0)]));
            let (bytes, result) = read(0).await;
            let bytes = bytes.slots();
            assert_eq!(result.unwrap(), 1000);
            assert!(bytes[0][..1000] == [5; 1000] && bytes[0][1000..].iter().all(|&byte| byte == 0));
            drop(bytes);
            assert_eq!(read(990).await.1.unwrap(), 10);
            assert_eq!(read(1000).await.1.unwrap(), 0);
        })
        .unwrap();
}

#[test]
fn a_direct_read_that_ends_within_a_block_says_how_much_there_was() {
    let (pool, _) = pool(1);
    let reactor = reactor(&pool);
    let file = file_in(Path::new(env!("CARGO_MANIFEST_DIR")), libc::O_DIRECT);
    let end = reactor
        .block_on(reactor.start(Op::writev(
            file.clone(),
            0,
            vec![slot(&pool, BLOCK, 1), slot(&pool, BLOCK, 1)],
        )))
        .unwrap();
    end.1.unwrap();
    file.set_len(5000).unwrap();
    let read = Op::read(file, 0, vec![slot(&pool, 4 * BLOCK, 0)]);
    assert_eq!(reactor.block_on(reactor.start(read)).unwrap().1.unwrap(), 5000);
}

#[test]
fn a_write_of_which_a_part_is_taken_fails_with_the_cause() {
    let (pool, _) = pool(1);
    let reactor = reactor(&pool);
    let (read, write) = pipe();
    let room = nix::fcntl::fcntl(&write, nix::fcntl::FcntlArg::F_GETPIPE_SZ).unwrap();
    let room = usize::try_from(room).unwrap();
    let mut reader = File::from(read.try_clone().unwrap());
    let reader = std::thread::spawn(move || {
        reader.read_exact(&mut [0; 1]).unwrap();
        drop((reader, read));
    });
    let op = Op::writev(write, 0, vec![slot(&pool, 2 * room, 1)]);
    assert_eq!(errno(reactor.block_on(reactor.start(op)).unwrap().1), libc::EPIPE);
    reader.join().unwrap();
}

#[test]
fn a_read_goes_on_until_all_has_arrived() {
    let reactor = reactor(&pool(1).0);
    let (read, write) = pipe();
    let mut sender = File::from(write.try_clone().unwrap());
    drop(write);
    sender.write_all(&[1; 3]).unwrap();
    let sending = std::thread::spawn(move || {
        for part in [2, 3] {
            std::thread::sleep(Duration::from_millis(5));
            sender.write_all(&[part; 3]).unwrap();
        }
    });
    let op = Op::read(Arc::clone(&read), 0, vec![0; 9]);
    let (bytes, result) = reactor.block_on(reactor.start(op)).unwrap();
    assert_eq!((result.unwrap(), &bytes.heap()[..]), (9, &[1, 1, 1, 2, 2, 2, 3, 3, 3][..]));
    sending.join().unwrap();
    let end = reactor.block_on(reactor.start(Op::read(read, 0, vec![0; 9]))).unwrap();
    assert_eq!(end.1.unwrap(), 0, "everybody who could write is gone");
}

#[test]
fn errors_of_the_kernel_come_back_with_the_memory() {
    let (pool, stats) = pool(1);
    let reactor = reactor(&pool);
    let full = Arc::new(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let (read_only, write_only) = (Arc::new(File::open("/dev/zero").unwrap()), pipe().1);
    reactor
        .block_on(async {
            let slot_of = |fill| slot(&pool, BLOCK, fill);
            let (slot, result) = reactor.start(Op::read(write_only.clone(), 0, vec![slot_of(3)])).await;
            assert_eq!((errno(result), slot.slots()[0][0]), (libc::EBADF, 3));
            assert_eq!(errno(reactor.start(Op::sync_data(pipe().0)).await.1), libc::EINVAL);
            let write = Op::writev_fixed(read_only.clone(), 0, vec![slot_of(0)]);
            assert_eq!(errno(reactor.start(write).await.1), libc::EBADF);
            let write = Op::writev(full.clone(), 0, vec![slot_of(0)]);
            assert_eq!(errno(reactor.start(write).await.1), libc::ENOSPC);
        })
        .unwrap();
    assert_eq!(stats.pool.live_bytes.get(), 0);
}

#[test]
fn slots_of_another_arena_are_refused_for_fixed_operations_only() {
    let (mine, other) = (pool(1).0, pool(1).0);
    let reactor = reactor(&mine);
    let file = file();
    reactor
        .block_on(async {
            let slots = vec![slot(&mine, BLOCK, 1), slot(&other, BLOCK, 1)];
            let (slots, result) = reactor.start(Op::writev_fixed(file.clone(), 0, slots)).await;
            assert_eq!((slots.slots().len(), result.unwrap_err().kind()), (2, ErrorKind::InvalidInput));
            let (_, result) = reactor.start(Op::writev(file.clone(), 0, vec![slot(&other, BLOCK, 1)])).await;
            assert_eq!(result.unwrap(), BLOCK);
        })
        .unwrap();
    let mut without: Ring<()> = ring(&Options::default());
    without.start(Op::writev_fixed(file, 0, vec![slot(&mine, BLOCK, 1)]), ());
    assert_eq!(wait(&mut without, 1).remove(0).result.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_ring_registers_one_arena() {
    let (pool, _) = pool(1);
    let mut ring: Ring<()> = ring(&Options::default());
    assert!(!ring.has_arena());
    ring.register_arena(&pool).unwrap();
    assert!(ring.has_arena());
    assert_eq!(ring.register_arena(&pool).unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[test]
fn more_operations_than_the_queues_hold_all_complete() {
    let mut ring: Ring<usize> = ring(&Options { submissions: 4, completions: 8, ..Options::default() });
    let file = file();
    for at in 0..1000 {
        ring.start(Op::sync_data(file.clone()), at);
    }
    let mut done: Vec<_> = wait(&mut ring, 1000).into_iter().map(|done| done.context).collect();
    done.sort_unstable();
    assert_eq!(done, (0..1000).collect::<Vec<_>>());
    assert_eq!(ring.under_way(), 0);
}

#[test]
fn a_wait_with_a_deadline_returns_without_a_completion() {
    let mut ring: Ring<()> = ring(&Options::default());
    assert!(completed_by_now(&mut ring).is_empty());
}
