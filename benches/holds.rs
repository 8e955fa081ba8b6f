//! How long the lock of a volume is held at most, by each kind of work on a volume of ten million extents: requests of the volume
//! wait so long on a worker. The goal is a millisecond. `GLIDEFS_BENCH_EXTENTS` sets the number of extents. The clock is the CPU
//! time of the thread: other programs do not count.
#![allow(clippy::expect_used, reason = "a bench may end")]

mod support;

use std::time::Duration;

use glidefs::testing::cache::longest_holds;
use glidefs::testing::observe::tune_allocator;
use nix::time::{ClockId, clock_gettime};
use serde_json::json;

fn main() {
    // As the daemon does.
    tune_allocator();
    let extents = support::extents();
    let now =
        || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("threads have a clock"));
    // The allocator serves the first thread from memory of another kind than all other threads, such as workers.
    let holds =
        std::thread::spawn(move || longest_holds(extents, now)).join().expect("the bench does not panic");
    println!("{extents} extents\n{:<28} {:>10} {:>14}", "kind", "holds", "longest, µs");
    for hold in &holds {
        println!("{:<28} {:>10} {:>14.1}", hold.kind, hold.holds, hold.longest.as_secs_f64() * 1e6);
    }
    let rows: Vec<_> = holds
        .iter()
        .map(|hold| {
            json!({"case": hold.kind, "extents": extents, "holds": hold.holds, "longest_us": hold.longest.as_micros()})
        })
        .collect();
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(if support::is_short() {
        "bench-holds-short"
    } else {
        "bench-holds"
    });
    std::fs::create_dir_all(&folder).expect("the target directory can be written");
    let text = serde_json::to_string_pretty(&rows).expect("figures are JSON");
    std::fs::write(folder.join("holds.json"), text).expect("the target directory can be written");
}
