//! The gain of group commit: FLUSHes a second of 64 exports that each write 4 KiB and send a FLUSH, against one export alone.
//!
//! Runs on a real directory (`GLIDEFS_BENCH_DIR`, by default under `target/`), with the cache's own code and a thread that does the
//! shard's syncs, as the ring does for a worker. Prints both rates and the ratio; goal: at least 20. Beside each rate, the time of
//! one `pwrite` of 4 KiB and one `fdatasync` on the same file system.
#![allow(clippy::expect_used, clippy::cast_precision_loss, reason = "a bench may end, and counts are small")]

mod support;

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use glidefs::testing::cache::{Admission, Cache, Directory, Known, MonotonicClock, Volume, Want};
use glidefs::testing::units::{ExportId, SectorRange};
use support::Ratios;
use support::data_path::rig::{Completion, Duty, MemoryToken, Rig, carry_out};

const WRITE_SECTORS: u64 = 8;

/// A client that writes 4 KiB, sends a FLUSH, and begins again.
struct FlushingClient {
    number: usize,
    flushing: bool,
}

/// FLUSHes a second of `clients` clients, each on an export of its own.
fn rate(clients: usize, run: Duration) -> f64 {
    let directory = tempfile::tempdir_in(support::directory()).expect("the bench directory can be written");
    let ids: Vec<_> = (1..=u32::try_from(clients).expect("few clients")).map(ExportId).collect();
    let options = support::cache_options(16);
    let disk = Arc::new(Directory::new(directory.path()));
    let (cache, _) = Cache::open(disk, Arc::new(MonotonicClock::default()), options, Known::local(&ids))
        .expect("the cache opens");
    let mut keeper = cache.keeper();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let keeper_stop = Arc::clone(&stop);
    let keeper_thread = std::thread::spawn(move || keeper.run(&keeper_stop));
    let volumes: Vec<Arc<Volume>> = ids.iter().map(|&id| cache.volume(id)).collect();
    let mut rig = Rig::new(cache.shard(0, Arc::default()));

    let (want, wants) = mpsc::channel::<Want<Vec<u8>>>();
    let (done, dones) = mpsc::channel();
    let syncer = std::thread::spawn(move || {
        for want in wants {
            if done.send(carry_out(want)).is_err() {
                break;
            }
        }
    });

    let mut idle: Vec<MemoryToken<FlushingClient>> = (0..clients)
        .map(|number| MemoryToken::writing(FlushingClient { number, flushing: false }, &[0x5a; 4096]))
        .collect();
    let (mut flushes, mut round) = (0_u64, 0_u64);
    let started = Instant::now();
    while started.elapsed() < run {
        for client in std::mem::take(&mut idle) {
            let volume = &volumes[client.name.number];
            if client.name.flushing {
                rig.shard.flush(volume, client);
                continue;
            }
            match rig.shard.admit(4096) {
                Admission::Accept(reservation) => {
                    let range =
                        SectorRange::new(round % 4096 * WRITE_SECTORS, WRITE_SECTORS).expect("a small range");
                    round += 1;
                    rig.shard.write(volume, range, false, reservation, client);
                }
                _ => idle.push(client),
            }
        }
        rig.turn();
        let waits = !rig.duties().is_empty();
        while !rig.duties().is_empty() {
            if let Duty::Wanted(wanted) = rig.take(0) {
                want.send(wanted).expect("the syncing thread lives");
            }
        }
        let mut advanced = false;
        for Completion { token: mut client, result } in rig.completed() {
            result.expect("the disk works");
            flushes += u64::from(client.name.flushing);
            client.name.flushing = !client.name.flushing;
            idle.push(client);
            advanced = true;
        }
        if !advanced || waits {
            let patience = if idle.is_empty() { Duration::from_secs(1) } else { Duration::ZERO };
            if let Ok(outcome) = dones.recv_timeout(patience) {
                outcome.report(&mut rig.shard);
            }
        }
    }
    let rate = flushes as f64 / started.elapsed().as_secs_f64();
    drop(want);
    let _ = syncer.join();
    stop.store(true, std::sync::atomic::Ordering::Release);
    let _ = keeper_thread.join();
    rate
}

/// Synced writes of 4 KiB a second, to a plain file.
fn floor(run: Duration) -> f64 {
    let directory = tempfile::tempdir_in(support::directory()).expect("the bench directory can be written");
    let file =
        std::fs::File::create(directory.path().join("plain")).expect("the bench directory can be written");
    file.write_all_at(&vec![0x5a; 64 << 20], 0).and_then(|()| file.sync_all()).expect("the disk works");
    let (mut syncs, started) = (0_u64, Instant::now());
    while started.elapsed() < run {
        file.write_all_at(&[0xa5; 4096], syncs % 16_384 * 4096).expect("the disk works");
        file.sync_data().expect("the disk works");
        syncs += 1;
    }
    syncs as f64 / started.elapsed().as_secs_f64()
}

fn main() {
    let mut ratios = Ratios::new("group_commit");
    let run = if support::is_short() { Duration::from_millis(100) } else { Duration::from_secs(5) };
    let plain = floor(run);
    let alone = rate(1, run);
    let together = rate(64, run);
    for (id, rate) in [("group_commit/1_export", alone), ("group_commit/64_exports", together)] {
        ratios.add(id, "pwrite 4 KiB and fdatasync", vec![(1e9 / rate, 1e9 / plain)]);
    }
    ratios.save();
    println!("one export:  {alone:>10.0} flushes/s");
    println!("64 exports:  {together:>10.0} flushes/s");
    println!("ratio:       {:>10.1}  (goal: at least 20)", together / alone);
}
