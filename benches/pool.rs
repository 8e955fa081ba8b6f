//! The cost of a slot: an acquire and a release, beside the copy of 4 KiB that every request makes anyway.
//!
//! Owns the measured cases only. Not measured: making a pool, which a worker does once.

#![expect(clippy::expect_used, reason = "a case whose set-up fails measures nothing")]

mod support;

use std::collections::VecDeque;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use criterion::Criterion;
use glidefs::testing::buffer::{Acquire, Pool, Slot};
use glidefs::testing::observe::io::WorkerStats;
use glidefs::testing::units::{FRAME_BYTES, REQUEST_BYTES_MAX};
use support::{BenchGroup, Ratios};

const SLOTS: usize = 256;
const CLASSES: [(&str, usize); 4] =
    [("4KiB", 4096), ("16KiB", 16_384), ("64KiB", 65_536), ("128KiB", REQUEST_BYTES_MAX)];
const COPY: &str = "memcpy 4 KiB";

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

/// The floor: bytes copied into a slot, as `copy_in` does.
fn memcpy() -> impl FnMut() {
    let mut slot = acquire(&pool(1), FRAME_BYTES);
    let source = vec![1_u8; FRAME_BYTES];
    move || black_box(&mut slot[..FRAME_BYTES]).copy_from_slice(black_box(&source))
}

fn uncontended(group: &mut BenchGroup<'_>, ratios: &mut Ratios) {
    for (name, len) in CLASSES {
        // The slot released last is acquired again.
        let idle = pool(SLOTS);
        ratios.against(group, &format!("acquire_and_release/{name}/same_again"), COPY, memcpy(), || {
            drop(acquire(&idle, black_box(len)));
        });
        // Slots of two classes in turn, so that blocks are merged and split. Two acquires and two releases.
        let other = if len == FRAME_BYTES { REQUEST_BYTES_MAX } else { FRAME_BYTES };
        let id = format!("acquire_and_release/{name}/in_turn_with_another_class");
        ratios.against(group, &id, COPY, memcpy(), || {
            drop(acquire(&idle, black_box(len)));
            drop(acquire(&idle, black_box(other)));
        });
    }
    // As many requests at once as a queue has, released in order of arrival.
    let batch = pool(SLOTS);
    let mut slots = Vec::with_capacity(64);
    ratios.against(group, "acquire_and_release/4KiB/batch_of_64", COPY, memcpy(), || {
        slots.extend((0..64).map(|_| acquire(&batch, black_box(4096))));
        slots.drain(..).for_each(drop);
    });
}

/// The pool is exhausted: each turn one slot is released, the first waiter gets the slot, and a new waiter joins the queue.
fn contended(group: &mut BenchGroup<'_>, ratios: &mut Ratios) {
    for (name, len) in CLASSES {
        let pool = pool(1);
        let mut held: Vec<Slot> = std::iter::from_fn(|| pool.try_acquire(len)).collect();
        let mut queue: VecDeque<Acquire> = VecDeque::new();
        let join = || {
            poll(pool.acquire(len, 1, 100).expect("a length that fits")).expect_err("the pool is exhausted")
        };
        queue.extend((0..32).map(|_| join()));
        ratios.against(group, &format!("release_grant_and_wait/{name}/32_waiters"), COPY, memcpy(), || {
            drop(held.pop());
            let head = queue.pop_front().expect("32 wait");
            held.push(poll(head).expect("it was granted"));
            queue.push_back(join());
        });
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut ratios = Ratios::new("pool");
    let mut group = criterion.benchmark_group("pool");
    uncontended(&mut group, &mut ratios);
    contended(&mut group, &mut ratios);
    group.finish();
    ratios.save();
    criterion.final_summary();
}
