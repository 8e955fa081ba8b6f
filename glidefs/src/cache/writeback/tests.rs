//! The cache with a store, compared with a model of all writes: a READ never returns other data than was acknowledged, however
//! often the data was written back, forgotten, fetched, restarted or opened elsewhere.

mod budgets;
mod crowded;
mod damaged;
mod durable;
mod host;
mod notes;
mod restored;
mod unnoted;
mod waiting;

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use self::host::{Host, Model, Noted, memory, store};
use super::cut::{Cut, OnUnread};
use crate::cache::catalog::{CacheCatalog, Start};
use crate::cache::driver::{Driver, PATIENCE, bytes_of};
use crate::cache::faulty::{Faults, Faulty};
use crate::cache::log::disk::Clock;
use crate::cache::sync_hold::SyncHold;
use crate::cache::volume::cuts::CutState;
use crate::cache::volume::durability::Triggers;
use crate::cache::volume::fetch::Fill;
use crate::cache::volume::queue::WritebackQueue;
use crate::cache::{Cache, IoError, Known, MonotonicClock, OnFull, Options, SeqMarks, Volume};
use crate::properties::{Durability, OnUnreachable, Properties};
use crate::store::volume::Resume;
use crate::store::volume::{CutSource, VolumeStore, VolumeStoreOptions};
use crate::store::{
    Access, Backend, BlockCache, BlockCacheOptions, Operation, Store, StoreOptions, StoreUrl, WriterId,
};
use crate::units::{ExportId, SECTOR_BYTES, SectorRange, Seq};

const SEGMENT_BYTES: u64 = 1 << 20;
const EXPORT: ExportId = ExportId(7);
const SECTORS: u64 = 16 * 1024;

/// Holders of a volume with a cut under way: the cache, the test, the engine, and the task that carries the cut.
const HOLDERS_OF_A_CUT_VOLUME: usize = 4;

/// Waits until the engine has begun to carry a cut of each of `volumes`. The test holds each volume once.
fn until_begun(volumes: &[Arc<Volume>]) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while volumes.iter().any(|volume| Arc::strong_count(volume) < HOLDERS_OF_A_CUT_VOLUME) {
        assert!(std::time::Instant::now() < deadline, "a cut is not begun");
        // A look now and then: the engine notifies nobody when a cut begins.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A cut once held a permit for uploads while waiting for writes without a segment. Eight such cuts kept every other cut from the
/// store, and only another cut could have made room for these writes.
#[test]
fn cuts_whose_writes_cannot_be_appended_keep_no_other_from_the_store() {
    let mut host = Host::new(memory(), 1, false);
    let daemon = host.daemon.as_ref().unwrap();
    let volumes: Vec<_> = (100..108).map(|id| daemon.driver.cache.volume(ExportId(id))).collect();
    for volume in &volumes {
        let name = format!("vm-{}", volume.id().0).parse().unwrap();
        let remote = host.runtime.block_on(host.volumes.create(&name, SECTORS)).unwrap();
        volume.link_to_store(remote, Arc::clone(&daemon.queue), SECTORS, SECTORS);
        // A write with a sequence number and without a segment.
        volume.next_seqs(1).unwrap();
        volume.cut_now();
        volume.ask_writeback();
    }
    until_begun(&volumes);
    let driver = &mut host.daemon.as_mut().unwrap().driver;
    let volume = driver.cache.volume(EXPORT);
    driver.write(&volume, SectorRange::new(0, 8).unwrap(), Some(&[1; 4096])).unwrap();
    let stored = host.runtime.block_on(async { tokio::time::timeout(PATIENCE, volume.written_back()).await });
    stored.expect("the cut waits for cuts that wait for writes").unwrap();
    for volume in &volumes {
        assert_eq!(volume.cut_state(), CutState::Landing);
    }
}

/// Every due cut once took a thread for blocking work, and waited there for syncs of the same few files. Thousands of cuts took
/// all threads, and no other work of the daemon got one.
#[test]
fn cuts_that_wait_for_a_sync_leave_threads_for_others() {
    const THREADS: usize = 16;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(THREADS)
        .enable_all()
        .build()
        .unwrap();
    let (store, stops) = store(&runtime, memory());
    let volumes = VolumeStore::new(store, VolumeStoreOptions::new(WriterId([1; 16])));
    let state = runtime.block_on(volumes.create(&"vm".parse().unwrap(), SECTORS)).unwrap().state();
    let mut host = Host::with(
        runtime,
        volumes,
        stops,
        HashMap::from([(EXPORT, Noted { resume: state, evicted: Seq(0) })]),
    );
    let daemon = host.daemon.as_mut().unwrap();
    let shared = Arc::clone(&daemon.driver.cache.shared);
    let mut cut = Vec::new();
    for id in 100..100 + 2 * THREADS as u64 {
        let volume = daemon.driver.cache.volume(ExportId(u32::try_from(id).unwrap()));
        let name = format!("vm-{id}").parse().unwrap();
        let remote = host.runtime.block_on(host.volumes.create(&name, SECTORS)).unwrap();
        host.catalog.add(volume.id(), remote.state());
        volume.link_to_store(remote, Arc::clone(&daemon.queue), SECTORS, SECTORS);
        cut.push(volume);
    }
    // The test holds every segment file, as a slow sync would.
    let busy: Vec<_> = (0..8).filter_map(|number| SyncHold::begin(&*shared, number)).collect();
    for volume in &cut {
        daemon.driver.write(volume, SectorRange::new(0, 8).unwrap(), Some(&[1; 4096])).unwrap();
        volume.cut_now();
        volume.ask_writeback();
    }
    until_begun(&cut);
    let other = host.runtime.spawn_blocking(|| 7);
    let answer = host.runtime.block_on(async { tokio::time::timeout(PATIENCE, other).await });
    drop(busy);
    assert_eq!(answer.expect("cuts that wait have every thread").unwrap(), 7);
    for volume in &cut {
        let stored =
            host.runtime.block_on(async { tokio::time::timeout(PATIENCE, volume.written_back()).await });
        stored.expect("a cut is not carried").unwrap();
    }
}

#[test]
fn a_cache_smaller_than_what_is_written_reads_back_everything_from_wherever_it_is() {
    let backend = memory();
    let mut host = Host::new(backend.clone(), 1, false);
    let mut model = Model::new(1);
    let mut evicted_bytes = 0;
    for step in 0..3000 {
        model.write(&mut host);
        match step % 10 {
            3 => host.flush().unwrap(),
            5 => {
                let range = model.range(256);
                model.check(&mut host, range);
            }
            _ => {}
        }
        if step % 700 == 699 {
            evicted_bytes += host.driver().cache.stats().evicted_bytes;
            host.restart();
        }
    }
    let stats = host.driver().cache.stats();
    assert!(evicted_bytes + stats.evicted_bytes > 0, "nothing left the cache: {stats:?}");
    model.check_all(&mut host);
    host.write_back().unwrap();
    assert_eq!(host.driver().cache.stats().dirty_bytes, 0);

    // The other host has no data but the store's.
    let mut other = Host::new(backend, 2, true);
    model.check_all(&mut other);
    model.write(&mut other);
    other.write_back().unwrap();
    model.check_all(&mut other);

    // The first host learns of the other with its next commit or merge, and keeps the data that is not in the store.
    let range = SectorRange::new(0, 8).unwrap();
    let written = host.write(range, Some(&[7; 4096]));
    assert!(matches!(written, Ok(()) | Err(IoError::Fenced)), "{written:?}");
    assert_eq!(host.write_back(), Err(IoError::Fenced));
    assert_eq!(host.read(range), Err(IoError::Fenced));
    assert_eq!(host.write(range, Some(&[8; 4096])), Err(IoError::Fenced));
    assert_eq!(host.flush(), Err(IoError::Fenced));
    assert_eq!(host.driver().cache.stats().dirty_bytes, if written.is_ok() { 4096 } else { 0 });
}

/// The record of a failed write may be on the disk all the same. When a later cut had gone past the write's number, recovery once
/// took the record for data in the store: the host read the write, the store never got the write, and the sectors went back when
/// the log forgot the data.
#[test]
fn a_write_that_failed_is_the_same_on_host_and_store_after_a_crash() {
    let backend = memory();
    let mut host = Host::new(backend.clone(), 1, false);
    let range = |start| SectorRange::new(start, 8).unwrap();
    host.write(range(0), Some(&[1; 4096])).unwrap();
    // The record gets to the disk, and no later write to the file does. So nothing on the disk ends the segment in front of the
    // record.
    host.faults.breaks.store(true, Ordering::SeqCst);
    assert_eq!(host.write(range(8), Some(&[2; 4096])), Err(IoError::Write));
    host.write(range(16), Some(&[3; 4096])).unwrap();
    host.write_back().unwrap();
    host.stop();
    host.faults.mend();
    host.start();
    let here = [0, 8, 16].map(|start| host.read(range(start)).unwrap());
    assert_eq!((here[0][0], here[2][0]), (1, 3));
    host.write_back().unwrap();
    let mut other = Host::new(backend, 2, true);
    let there = [0, 8, 16].map(|start| other.read(range(start)).unwrap());
    assert!(there == here, "a sector of {}, and of {}", here[1][0], there[1][0]);
}

/// A cut once read a removed volume as zeroes. A cut under way during a deletion brought the zeroes to the store, for an undelete
/// to bring back; the rescue of a lost export found nothing to store, and succeeded.
#[test]
fn what_was_removed_is_an_error_to_whoever_stores_it_and_not_zeroes() {
    let mut host = Host::new(memory(), 1, false);
    let driver = host.driver();
    let volume = driver.cache.volume(ExportId(100));
    let range = SectorRange::new(0, 8).unwrap();
    driver.write(&volume, range, Some(&[7; 4096])).unwrap();
    volume.cut_now();
    let shared = Arc::clone(&driver.cache.shared);
    let cut = Arc::new(Cut::new(shared, Arc::clone(&volume), volume.figures().last_seq, OnUnread::Fail));
    let cuts: [Arc<dyn CutSource>; 2] = [driver.cache.kept(&volume), cut];
    let mut bytes = vec![0; 4096];
    for cut in &cuts {
        cut.read(range, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
    }
    driver.cache.remove(ExportId(100));
    for cut in &cuts {
        let read = cut.read(range, &mut bytes).unwrap_err();
        assert!(read.to_string().contains("was removed"), "{read}");
    }
}

#[test]
fn a_volume_that_nobody_writes_to_asks_nothing_of_the_store() {
    let mut host = Host::new(memory(), 1, false);
    let mut model = Model::new(2);
    (0..20).for_each(|_| model.write(&mut host));
    host.write_back().unwrap();
    let all = |host: &Host| Operation::ALL.iter().map(|operation| requests(host, *operation)).sum::<u64>();
    model.check_all(&mut host);
    let before = all(&host);
    // In real time: a request that is not sent gives no notice, and timers of the engine and of the store's client do not heed the
    // test's clock.
    std::thread::sleep(Duration::from_millis(700));
    host.restart();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(all(&host), before, "an idle volume sent requests");
}

fn requests(host: &Host, operation: Operation) -> u64 {
    host.volumes.store().stats().of(operation).requests.get()
}

/// A new size unknown to the store once counted as data at risk. An export with a bound on data at risk then took no more writes,
/// although the store had all the data.
#[test]
fn a_new_size_that_the_store_did_not_know_puts_nothing_at_risk() {
    let mut host = Host::new(memory(), 1, false);
    let mut model = Model::new(4);
    (0..20).for_each(|_| model.write(&mut host));
    host.write_back().unwrap();
    host.size_sectors *= 2;
    host.restart();
    host.write_back().unwrap();
    host.clock.advance(Duration::from_millis(20));
    assert_eq!(host.volume().figures().at_risk_for, Duration::ZERO);
}

/// While the catalog could not be written, the same cut was once uploaded again and again. Only the note is to be tried again.
#[test]
fn what_the_store_has_is_not_uploaded_again_because_that_could_not_be_written_down() {
    let mut host = Host::new(memory(), 1, false);
    let range = SectorRange::new(0, 8).unwrap();
    host.catalog.fails.store(true, Ordering::Release);
    let before = requests(&host, Operation::Put);
    host.write(range, Some(&[7; 4096])).unwrap();
    host.volume().ask_writeback();
    let mut failures = host.catalog.failures.subscribe();
    let tried = async {
        tokio::time::timeout(PATIENCE, failures.wait_for(|failures| *failures >= 4)).await.map(drop)
    };
    host.runtime.block_on(tried).expect("the catalog is not tried again");
    host.catalog.fails.store(false, Ordering::Release);
    host.write_back().unwrap();
    assert_eq!(requests(&host, Operation::Put) - before, 2, "a pack and a manifest");
}

/// READs under way to the store once failed when the daemon stopped. A READ without an answer is left to the next daemon.
#[test]
fn a_read_that_waits_for_the_store_when_the_daemon_stops_is_left_to_the_next_one() {
    let backend = memory();
    let mut host = Host::new(backend.clone(), 1, false);
    let range = SectorRange::new(0, 8).unwrap();
    host.write(range, Some(&[7; 4096])).unwrap();
    host.write_back().unwrap();
    let mut other = Host::new(backend, 2, true);
    other.stops.send(true).unwrap();
    let answer = other.volume().fetch(range).unwrap();
    assert!(other.runtime.block_on(answer).is_err(), "an answer would be an I/O error");
}

#[test]
fn a_read_with_a_part_in_the_store_only_reads_and_verifies_the_other_parts_once() {
    let backend = memory();
    let mut host = Host::new(backend.clone(), 1, false);
    host.write(SectorRange::new(0, 16).unwrap(), Some(&[7; 8192])).unwrap();
    host.write_back().unwrap();
    let mut other = Host::new(backend, 2, true);
    other.write(SectorRange::new(0, 8).unwrap(), Some(&[8; 4096])).unwrap();
    let volume = other.volume();
    let before = other.faults.reads_now.load(Ordering::SeqCst);
    let read = other.driver().read(&volume, SectorRange::new(0, 16).unwrap());
    assert!(read == Ok([[8; 4096], [7; 4096]].concat()));
    assert_eq!(other.faults.reads_now.load(Ordering::SeqCst) - before, 1);
}

/// A FLUSH with durability `store` once waited for ever when some data could not be read on this host.
#[test]
fn who_waits_for_the_store_to_have_what_cannot_be_read_is_told() {
    let mut host = Host::new(memory(), 1, false);
    host.write_back_when_asked();
    host.volume().set_durability(Durability::Store);
    let (range, data) = (SectorRange::new(0, 8).unwrap(), [7; 4096]);
    host.write(range, Some(&data)).unwrap();
    let mut segments = std::fs::read_dir(host.directory.path().join("segments")).unwrap();
    let damaged = segments.any(|file| {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let found = bytes.chunks_exact(4096).position(|frame| frame == data);
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        found.is_some_and(|at| file.write_at(&[8], 4096 * at as u64).unwrap() == 1)
    });
    assert!(damaged);
    assert_eq!(host.flush(), Err(IoError::Unreadable));
    // The FLUSH before reported the loss, and the store has the damage.
    host.flush().unwrap();
    assert_eq!(host.volume().damaged_bytes(), Some(4096));
}
