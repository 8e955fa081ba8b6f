//! The data path for `scripts/bench-callgrind`: 4 KiB writes and reads from admission to completion, through a shard, a pool and
//! real segment files; everything a request costs in user space but the ring and the device.
//!
//! `path CASE COUNT` warms up, then runs the case COUNT times inside a function that callgrind collects. Without callgrind the
//! program prints the time of a request, system calls included. `write-N` is N writes of 4 KiB a turn, `large-N` N writes of
//! 128 KiB a turn: the cost of smaller turns. `out-BYTES` is READs with the copy to a client, a file in memory; `mapped-BYTES` the same
//! from mapped segments.
//!
//! `path worker [--case PART] [--seconds S] [--rounds N] [--mapped MIB] [--poll] [DIRECTORY…]` measures the whole path instead: a worker
//! with its ring, fed by a client on another CPU. Cases are those whose name has PART; MIB bounds the mapped stretches of the log; with
//! `--poll` the client looks for answers instead of sleeping. The directories for the log are by default `/dev/shm` and that of benches.
//! `path held` measures what held writes cost a worker.
#![allow(clippy::expect_used, reason = "a bench may end")]

#[path = "support/held_writes.rs"]
mod held_writes;
mod support;
#[path = "support/whole_path.rs"]
mod whole_path;

use std::hint::black_box;
use std::time::Instant;

use glidefs::testing::buffer::Pool;
use support::data_path::DataPath;

const BLOCK_BYTES: usize = 4096;
const LARGE_BYTES: usize = 128 << 10;
/// Blocks to write, over and over: 16 MiB.
const BLOCKS: u64 = 4096;
/// Large blocks to write, over and over: as many bytes.
const LARGE_BLOCKS: u64 = 128;
/// Enough for the whole run, so that no segment is sealed or freed during a case.
const SEGMENTS: u64 = 8;
/// Scatters consecutive requests; prime to [`BLOCKS`].
const STRIDE: u64 = 1237;

/// Byte offset of write number `number`.
fn place(number: u64) -> u64 {
    number * STRIDE % BLOCKS * BLOCK_BYTES as u64
}

// The script selects functions by these names.
#[inline(never)]
fn collected_writes(path: &mut DataPath, count: u64, batch: u64) {
    let mut number = 0;
    while number < count {
        for _ in 0..batch {
            path.write(place(number), BLOCK_BYTES);
            number += 1;
        }
        path.turn();
    }
}

#[inline(never)]
fn collected_large_writes(path: &mut DataPath, count: u64, batch: u64) {
    let mut number = 0;
    while number < count {
        for _ in 0..batch {
            path.write(number % LARGE_BLOCKS * LARGE_BYTES as u64, LARGE_BYTES);
            number += 1;
        }
        path.turn();
    }
}

#[inline(never)]
fn collected_reads(path: &mut DataPath, count: u64) {
    for number in 0..count {
        path.read(place(number), BLOCK_BYTES);
        path.turn();
    }
}

/// Byte offset of READ number `number` of `bytes` bytes. All content was written in blocks, in another order.
fn place_of(number: u64, bytes: usize) -> u64 {
    let bytes = bytes as u64;
    number * STRIDE % (BLOCKS * BLOCK_BYTES as u64 / bytes) * bytes
}

#[inline(never)]
fn collected_reads_out(path: &mut DataPath, count: u64, bytes: usize) {
    for number in 0..count {
        path.read(place_of(number, bytes), bytes);
        path.turn();
    }
}

#[inline(never)]
fn collected_mapped_reads(path: &mut DataPath, count: u64, bytes: usize) {
    for number in 0..count {
        assert!(path.read_mapped(place_of(number, bytes), bytes), "what is read often is mapped");
        path.turn();
    }
}

#[inline(never)]
fn collected_flushes(path: &mut DataPath, count: u64) {
    for _ in 0..count {
        path.flush();
        path.turn();
    }
}

#[inline(never)]
fn collected_slots(pool: &Pool, count: u64) {
    for _ in 0..count {
        drop(black_box(pool.try_acquire(black_box(BLOCK_BYTES))));
    }
}

fn main() {
    // Cargo appends an option of its own.
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench").peekable();
    if words.next_if(|word| word == "worker").is_some() {
        return whole_path::run(words);
    }
    if words.next_if(|word| word == "held").is_some() {
        return held_writes::run();
    }
    let case = words.next().unwrap_or_else(|| "write-8".into());
    let count = words.next().map_or(BLOCKS, |word| word.parse().expect("a number of requests"));
    let directory = tempfile::tempdir_in(support::directory()).expect("the bench directory can be written");
    let mut path = DataPath::new(directory.path(), SEGMENTS);
    for number in 0..BLOCKS {
        path.write(place(number), BLOCK_BYTES);
        if number % 8 == 7 {
            path.turn();
        }
    }
    path.flush();
    path.settle();
    if case == "read-sealed" {
        // A start seals all segments. The first round brings the checksums to memory.
        drop(path);
        path = DataPath::new(directory.path(), SEGMENTS);
        for number in 0..BLOCKS {
            path.read(place(number), BLOCK_BYTES);
            path.turn();
        }
    }
    if case.starts_with("out-") || case.starts_with("mapped-") {
        let flags = nix::sys::memfd::MFdFlags::empty();
        path.copy_reads_to(nix::sys::memfd::memfd_create("client", flags).expect("memory").into());
    }
    if case.starts_with("mapped-") {
        // The keeper maps what is read.
        while !(0..BLOCKS).all(|number| path.read_mapped(place(number), BLOCK_BYTES)) {
            for number in 0..BLOCKS {
                path.read(place(number), BLOCK_BYTES);
                path.turn();
            }
        }
    }
    let start = Instant::now();
    let batch = |prefix: &str| {
        let batch: u64 = case.strip_prefix(prefix)?.parse().ok()?;
        (batch > 0).then_some(batch)
    };
    match case.as_str() {
        "read" | "read-sealed" => collected_reads(black_box(&mut path), count),
        "flush" => collected_flushes(black_box(&mut path), count),
        "slot" => collected_slots(black_box(path.pool()), count),
        _ if let Some(bytes) = batch("out-") => {
            collected_reads_out(black_box(&mut path), count, usize::try_from(bytes).expect("a length"));
        }
        _ if let Some(bytes) = batch("mapped-") => {
            collected_mapped_reads(black_box(&mut path), count, usize::try_from(bytes).expect("a length"));
        }
        _ => match (batch("write-"), batch("large-")) {
            (Some(batch), _) => collected_writes(black_box(&mut path), count, batch),
            (_, Some(batch)) => collected_large_writes(black_box(&mut path), count, batch),
            (None, None) => {
                eprintln!(
                    "no case {case:?}: use write-N, large-N, read, read-sealed, out-BYTES, mapped-BYTES, flush or slot"
                );
                std::process::exit(2);
            }
        },
    }
    let nanos = start.elapsed().as_nanos() / u128::from(count.max(1));
    println!("{case}: {count} requests, {nanos} ns each with system calls");
}
