//! What a buffer costs: an acquire and its release, beside the copy of 4 KiB that every request makes anyway.
//!
//! Owns the measured cases only. Not measured: making a pool, which a worker does once.

#![expect(clippy::expect_used, reason = "a case whose set-up fails measures nothing")]

use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use glidefs::buffer::{Acquire, Pool, Slot};
use glidefs::observe::io::WorkerStats;
use glidefs::units::{FRAME_BYTES, REQUEST_BYTES_MAX};

const SLOTS: usize = 256;
const CLASSES: [(&str, usize); 4] =
    [("4KiB", 4096), ("16KiB", 16_384), ("64KiB", 65_536), ("128KiB", REQUEST_BYTES_MAX)];

fn pool(slots: usize) -> Pool {
    Pool::new(slots, Arc::new(WorkerStats::default())).expect("memory for a pool")
}

fn acquire(pool: &Pool, len: usize) -> Slot {
    pool.try_acquire(len).expect("the pool has room")
}

fn poll(future: Acquire) -> Result<Slot, Acquire> {
    let mut future = future;
    match pin!(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(slot) => Ok(slot),
        Poll::Pending => Err(future),
    }
}

fn uncontended(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("acquire_and_release");
    for (name, len) in CLASSES {
        // The slot given back last is taken again.
        let idle = pool(SLOTS);
        group.bench_function(format!("{name}/same_again"), |bencher| {
            bencher.iter(|| drop(acquire(&idle, black_box(len))));
        });
        // In between somebody takes a slot of another class, so that blocks are merged and split.
        let other = if len == FRAME_BYTES { REQUEST_BYTES_MAX } else { FRAME_BYTES };
        group.bench_function(format!("{name}/in_turn_with_another_class"), |bencher| {
            bencher.iter(|| {
                drop(acquire(&idle, black_box(len)));
                drop(acquire(&idle, black_box(other)));
            });
        });
    }
    // A queue's worth of requests at once, released in the order of their arrival.
    let batch = pool(SLOTS);
    let mut slots = Vec::with_capacity(64);
    group.throughput(Throughput::Elements(64));
    group.bench_function("4KiB/batch_of_64", |bencher| {
        bencher.iter(|| {
            slots.extend((0..64).map(|_| acquire(&batch, black_box(4096))));
            slots.drain(..).for_each(drop);
        });
    });
    group.finish();
}

fn yardstick(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy");
    let pool = pool(1);
    let mut slot = acquire(&pool, FRAME_BYTES);
    let source = vec![1u8; FRAME_BYTES];
    group.throughput(Throughput::Bytes(FRAME_BYTES as u64));
    group.bench_function("4KiB", |bencher| {
        bencher.iter(|| black_box(&mut slot[..FRAME_BYTES]).copy_from_slice(black_box(&source)));
    });
    group.finish();
}

/// The pool is exhausted: each turn one slot is released, its waiter fetches it, and a newcomer joins the queue.
fn contended(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("release_grant_and_wait");
    for (name, len) in CLASSES {
        let pool = pool(1);
        let mut held: Vec<Slot> = std::iter::from_fn(|| pool.try_acquire(len)).collect();
        let mut queue: std::collections::VecDeque<Acquire> = std::collections::VecDeque::new();
        let join =
            || poll(pool.acquire(len).expect("a length that fits")).expect_err("the pool is exhausted");
        queue.extend((0..32).map(|_| join()));
        group.bench_function(format!("{name}/32_waiters"), |bencher| {
            bencher.iter(|| {
                drop(held.pop());
                let head = queue.pop_front().expect("32 wait");
                held.push(poll(head).expect("it was granted"));
                queue.push_back(join());
            });
        });
    }
    group.finish();
}

criterion_group!(benches, uncontended, yardstick, contended);
criterion_main!(benches);
