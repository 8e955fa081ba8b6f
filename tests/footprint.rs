//! The memory of an export without a device is bounded, with and without a store.
//!
//! A counting allocator knows the bytes in use of the whole process; the tests take turns. The figures have a share of the catalog's
//! page cache in them, which is bounded for all exports together.

#![allow(clippy::unwrap_used, clippy::cast_possible_wrap, reason = "tests may")]

#[path = "../benches/support/population.rs"]
mod population;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use population::Place;

/// Most bytes of an export without a device: created, and loaded by a start.
const BYTES_MAX: i64 = 1024;
const EXPORTS: usize = 4000;

/// Bytes of the heap in use.
static IN_USE: AtomicI64 = AtomicI64::new(0);
static TURN: Mutex<()> = Mutex::new(());

struct Counting;

fn count(bytes: usize, sign: i64) {
    IN_USE.fetch_add(sign * i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches none of the allocator's memory.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller's promises are `System`'s own.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller's promises are `System`'s own.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: the caller's promises are `System`'s own.
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(bytes, 1);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    // SAFETY: the caller's promises are `System`'s own.
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns when tasks that have ended have given their memory back.
async fn settled() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Bytes in use more after `work` than before, for each of [`EXPORTS`].
async fn bytes_an_export(work: impl Future<Output = ()>) -> i64 {
    let before = IN_USE.load(Ordering::Relaxed);
    work.await;
    settled().await;
    (IN_USE.load(Ordering::Relaxed) - before) / EXPORTS as i64
}

/// Bytes of an export that was created, and of an export after the next start.
fn footprint(directory: &Path, place: Place) -> (i64, i64) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let router = population::router(directory, place, EXPORTS + 64, runtime.handle());
    let created = runtime.block_on(async {
        router.start().await;
        // Whatever is made with the first exports is there before the count.
        population::create(&router, 0..64, 16).await;
        bytes_an_export(population::create(&router, 64..EXPORTS + 64, 16)).await
    });
    drop((router, runtime));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let before = IN_USE.load(Ordering::Relaxed);
    let router = population::router(directory, place, EXPORTS + 64, runtime.handle());
    runtime.block_on(async {
        router.start().await;
        settled().await;
    });
    assert_eq!(router.list().len(), EXPORTS + 64, "the exports are loaded");
    let loaded = (IN_USE.load(Ordering::Relaxed) - before) / EXPORTS as i64;
    (created, loaded)
}

#[test]
fn an_export_without_a_device_and_without_a_store_is_small() {
    let directory = tempfile::tempdir().unwrap();
    let (created, loaded) = footprint(directory.path(), Place::Cache);
    println!("bytes an export without a store: {created} created, {loaded} loaded");
    assert!(created <= BYTES_MAX && loaded <= BYTES_MAX, "{created} created, {loaded} loaded");
}

#[test]
fn an_export_without_a_device_and_with_a_volume_in_the_store_is_small() {
    let directory = tempfile::tempdir().unwrap();
    let (created, loaded) = footprint(directory.path(), Place::Store);
    println!("bytes an export with a store: {created} created, {loaded} loaded");
    assert!(created <= BYTES_MAX && loaded <= BYTES_MAX, "{created} created, {loaded} loaded");
}
