//! Many histories, each from a seed, and the demand that every possible event happened in some history.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use super::{Run, Tally};
use crate::store::faulty::Fault;

/// Histories of one run, by default.
const HISTORIES: u64 = 24;
/// Most histories that are added until every event has happened.
const HISTORIES_EXTRA: u64 = 48;
const STEPS: u64 = 200;
/// Histories at a time. Each one waits for its store most of the time.
const THREADS: usize = 12;

/// The events that have to happen in a run.
const EVENTS: [&str; 41] = [
    "writes",
    "writes behind several cuts",
    "writes that failed",
    "FLUSHes",
    "FLUSHes that failed",
    "FLUSHes that waited for the store",
    "writebacks",
    "looks at the store",
    "reads of blank exports",
    "snapshots",
    "forks",
    "rollbacks",
    "take-overs",
    "fenced",
    "deletions",
    "detachments",
    "packs removed",
    "bytes evicted",
    "kills",
    "upgrades",
    "power cuts",
    "sectors lost with power",
    "crashes while opening",
    "crashes amid requests",
    "hosts lost at a request",
    "creations that arrived late",
    "spells of a failing disk",
    "manifests that failed",
    "failures of the disk",
    "READs that failed with the disk",
    "outages of the store",
    "starts without the store",
    "requests of the store that failed",
    "hosts lost with all they had",
    "backups",
    "backups put back",
    "exports that went on from a backup",
    "exports of a backup that were refused",
    "clones of a host",
    "exports that went on at one of two clones",
    "histories",
];

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs the history of `seed`, and judges both images once more at the end.
fn history(seed: u64) -> Tally {
    history_of(Run::new(seed))
}

fn history_of(mut run: Run) -> Tally {
    for _ in 0..STEPS {
        run.step();
    }
    let silent = [&Fault::PASSING[..], &[Fault::Truncated, Fault::FlippedBit]].concat();
    for fault in silent {
        run.add(name_of(fault), run.world.faults.fired(fault));
        run.add("requests of the store that failed", run.world.faults.fired(fault));
    }
    run.world.calm();
    for name in run.twins.keys().cloned().collect::<Vec<_>>() {
        run.check(&name);
        run.write_back(&name);
        run.look_at_store(&name);
        run.open_elsewhere(&name);
    }
    for host in 0..run.hosts.len() {
        let evicted = run.hosts[host].driver().cache.stats().evicted_bytes;
        run.add("bytes evicted", evicted);
    }
    run.count("histories");
    run.tally
}

fn name_of(fault: Fault) -> &'static str {
    match fault {
        Fault::Delay => "store: late answers",
        Fault::Stall => "store: no answers",
        Fault::ServerError => "store: status 500",
        Fault::SlowDown => "store: status 503",
        Fault::Cut => "store: cut connections",
        Fault::LostResponse => "store: lost answers",
        Fault::Conflict => "store: a creation refused for nothing",
        Fault::Truncated => "store: half an object",
        Fault::FlippedBit => "store: a wrong bit",
        Fault::Missing => "store: an object that seems not to be",
        Fault::Refused => "store: status 403",
    }
}

/// A disk whose syncs do nothing loses data. A model that does not notice this loss proves nothing by passing.
#[test]
fn a_disk_that_answers_syncs_without_doing_them_is_found_out_behind_a_store_as_well() {
    let caught = (0..20).any(|seed| {
        let run = Run::new(seed);
        for host in &run.hosts {
            host.machine().syncs_lie = true;
        }
        catch_unwind(AssertUnwindSafe(|| history_of(run))).is_err()
    });
    assert!(caught, "writes before a FLUSH were lost and nobody noticed");
}

fn missing(tally: &Tally) -> Vec<&'static str> {
    let faults = Fault::PASSING.into_iter().chain([Fault::Truncated, Fault::FlippedBit]).map(name_of);
    faults.chain(EVENTS).filter(|event| tally.get(event).is_none_or(|times| *times == 0)).collect()
}

#[test]
fn host_and_store_hold_what_they_may_in_every_history_of_crashes_and_faults() {
    if let Some(seed) = number("GLIDEFS_HISTORY_SEED") {
        println!("{:#?}", history(seed));
        return;
    }
    let wanted = number("GLIDEFS_HISTORIES").unwrap_or(HISTORIES);
    let begun = Instant::now();
    let (next, tally, failed) = (AtomicU64::new(0), Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let is_extra = seed >= wanted;
                    if seed >= wanted + HISTORIES_EXTRA
                        || is_extra && missing(&tally.lock().unwrap()).is_empty()
                    {
                        return;
                    }
                    match catch_unwind(AssertUnwindSafe(|| history(seed))) {
                        Ok(counts) => {
                            let mut tally = tally.lock().unwrap();
                            for (what, times) in counts {
                                *tally.entry(what).or_default() += times;
                            }
                        }
                        Err(_) => {
                            println!("seed {seed} failed: rerun it with GLIDEFS_HISTORY_SEED={seed}");
                            failed.lock().unwrap().push(seed);
                        }
                    }
                }
            });
        }
    });
    let (tally, failed) = (tally.into_inner().unwrap(), failed.into_inner().unwrap());
    for (what, times) in &tally {
        println!("{times:>12} {what}");
    }
    println!(
        "histories: {} passed, {} failed, {} s",
        tally.get("histories").unwrap_or(&0),
        failed.len(),
        begun.elapsed().as_secs()
    );
    assert!(failed.is_empty(), "rerun each of these seeds with GLIDEFS_HISTORY_SEED: {failed:?}");
    assert_eq!(missing(&tally), Vec::<&str>::new(), "these never happened");
}
