//! The ring owns the memory until the kernel is done, whoever else has lost interest.

use std::sync::Arc;

use super::super::Options;
use super::*;
use crate::worker::executor::Executor;

#[test]
fn a_slot_comes_back_to_the_pool_with_the_completion_and_not_before() {
    let (pool, stats) = pool(1);
    let reactor = reactor(&pool);
    let (read, write) = pipe();
    for polled in [false, true] {
        let mut large = slot(&pool, 1 << 17, 0);
        large.shorten(16);
        let mut pending = reactor.start(Op::read(Arc::clone(&read), 0, vec![large]));
        if polled {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(std::pin::Pin::new(&mut pending).poll(&mut context).is_pending());
        }
        drop(pending);
        for _ in 0..3 {
            reactor.turn(Some(Duration::from_millis(2))).unwrap();
            assert_eq!(stats.pool.live_bytes.get(), 1 << 17, "the kernel may still write to it");
            assert!(pool.try_acquire(1).is_none(), "it was the only slot");
        }
        nix::unistd::write(&write, &[1; 16]).unwrap();
        reactor.turn(Some(PATIENCE)).unwrap();
        assert_eq!(stats.pool.live_bytes.get(), 0);
        assert!(pool.try_acquire(1).is_some_and(|slot| slot[..16] == [1; 16]));
    }
}

#[test]
fn a_ring_that_is_dropped_leaves_the_memory_of_what_is_under_way_to_the_kernel() {
    let (pool, stats) = pool(2);
    let (read, _write) = pipe();
    let mut ring: Ring<()> = ring(&Options::default());
    ring.register_arena(&pool).unwrap();
    for _ in 0..3 {
        ring.start(Op::read(Arc::clone(&read), 0, vec![slot(&pool, BLOCK, 0)]), ());
    }
    ring.submit().unwrap();
    ring.start(Op::read(Arc::clone(&read), 0, vec![slot(&pool, BLOCK, 0)]), ());
    drop(ring);
    assert_eq!(stats.pool.live_bytes.get(), 4 * BLOCK as u64);
}

#[test]
fn the_arena_lives_as_long_as_the_ring_it_is_registered_with() {
    let (pool, stats) = pool(1);
    let weak_count = Arc::strong_count(&stats);
    let mut ring: Ring<()> = ring(&Options::default());
    ring.register_arena(&pool).unwrap();
    let slot = slot(&pool, BLOCK, 3);
    drop(pool);
    let file = file();
    ring.start(Op::writev_fixed(file, 0, vec![slot]), ());
    assert_eq!(wait(&mut ring, 1).remove(0).result.unwrap(), BLOCK);
    assert_eq!(Arc::strong_count(&stats), weak_count, "the arena holds the counters");
    drop(ring);
    assert_eq!(Arc::strong_count(&stats), 1);
}

#[test]
fn the_file_stays_open_until_the_operation_has_ended() {
    let (mut ring, (pool, _)): (Ring<()>, _) = (ring(&Options::default()), pool(1));
    let file = file();
    let watch = Arc::downgrade(&file);
    ring.start(Op::writev(file, 0, vec![slot(&pool, BLOCK, 1)]), ());
    assert!(watch.upgrade().is_some());
    assert_eq!(wait(&mut ring, 1).remove(0).result.unwrap(), BLOCK);
    assert!(watch.upgrade().is_none());
}

#[test]
fn tasks_of_the_executor_await_operations() {
    let (pool, stats) = pool(1);
    let reactor = reactor(&pool);
    let mut executor = Executor::<()>::new(Arc::new(|| ()));
    let file = file();
    for at in 0..100_u64 {
        let (reactor, pool, file) = (reactor.clone(), pool.clone(), Arc::clone(&file));
        executor.spawn(async move {
            // More tasks than the arena holds slots.
            let mut slot = pool.acquire(BLOCK, 1, 100).unwrap().await;
            slot.fill(at as u8);
            let write = Op::writev_fixed(file.clone(), at * BLOCK as u64, vec![slot]);
            let (memory, result) = reactor.start(write).await;
            assert_eq!(result.unwrap(), BLOCK);
            let slot = memory.slots().remove(0);
            let (memory, result) = reactor.start(Op::read(file, at * BLOCK as u64, vec![slot])).await;
            assert_eq!((result.unwrap(), &memory.slots()[0][..]), (BLOCK, &[at as u8; BLOCK][..]));
        });
    }
    let mut ended = 0;
    executor.run_ready(|()| ended += 1);
    while ended < 100 {
        reactor.turn(Some(PATIENCE)).unwrap();
        executor.run_ready(|()| ended += 1);
    }
    assert_eq!(stats.pool.live_bytes.get(), 0);
}
