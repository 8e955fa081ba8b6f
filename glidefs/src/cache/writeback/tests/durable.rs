//! FLUSHes that return when the store has everything.

use super::*;
use crate::store::faulty::{Fault, FaultyStore, InMemory};

#[test]
fn a_flush_that_is_to_survive_the_host_returns_when_the_store_has_everything() {
    let objects = Arc::new(InMemory::new());
    let mut host = Host::new(Backend::over(objects.clone(), true), 1, false);
    // So few packs need no merge, which would find the other host before the FLUSH does.
    host.write_back_when_asked();
    host.volume().set_durability(Durability::Store);
    let mut model = Model::new(3);
    for round in 0..5 {
        (0..10).for_each(|_| model.write(&mut host));
        host.flush().unwrap();
        let volume = host.volume();
        assert_eq!(volume.store_link().unwrap().committed(), volume.figures().last_seq, "in round {round}");
    }
    host.write_back().unwrap();
    assert_eq!(host.volume().figures().dirty_bytes, 0);
    let mut other = Host::new(Backend::over(objects, true), 2, true);
    model.check_all(&mut other);
    model.write(&mut host);
    assert_eq!(host.flush(), Err(IoError::Fenced), "the other host has the volume");
}

/// The note on the manifest, taken before, is enough for the next start to go on from the manifest.
#[test]
fn a_flush_does_not_wait_for_the_catalog_to_learn_that_the_store_has_the_cut() {
    let objects = Arc::new(InMemory::new());
    let mut host = Host::new(Backend::over(objects.clone(), true), 1, false);
    host.volume().set_durability(Durability::Store);
    let mut model = Model::new(4);
    host.catalog.fails.store(true, Ordering::Release);
    (0..10).for_each(|_| model.write(&mut host));
    host.flush().unwrap();
    let figures = host.volume().figures();
    assert!(figures.stored < figures.last_seq, "data counts as written back only when the catalog says so");
    host.restart();
    host.catalog.fails.store(false, Ordering::Release);
    host.volume().set_durability(Durability::Store);
    model.check_all(&mut host);
    (0..10).for_each(|_| model.write(&mut host));
    host.flush().unwrap();
    model.check_all(&mut host);
    let mut other = Host::new(Backend::over(objects, true), 2, true);
    model.check_all(&mut other);
}

/// FLUSHes behind one cut, while the cut before is still being noted, have a cut of their own afterwards.
#[test]
fn flushes_one_behind_the_other_each_bring_their_writes_to_the_store() {
    let objects = Arc::new(InMemory::new());
    let mut host = Host::new(Backend::over(objects.clone(), true), 1, false);
    host.write_back_when_asked();
    host.volume().set_durability(Durability::Store);
    let before = requests(&host, Operation::Put);
    for number in 0..50 {
        host.write(SectorRange::new(number * 8, 8).unwrap(), Some(&[7; 4096])).unwrap();
        host.flush().unwrap();
        host.flush().unwrap();
    }
    let puts = requests(&host, Operation::Put) - before;
    assert!((100..=150).contains(&puts), "{puts} creations: a pack and a manifest each, and merges");
}

/// No turn of a worker looks at these FLUSHes without being told, so each end of the wait has to tell.
#[test]
fn a_flush_that_waits_for_a_store_without_an_answer_ends_with_the_wait_of_the_export() {
    type End = fn(&Volume, &Cache);
    let ends: [(End, IoError); 3] = [
        (|volume, _| volume.store_link().unwrap().fence(), IoError::Fenced),
        (|volume, _| volume.end_waits(), IoError::Detached),
        (|volume, cache| cache.remove(volume.id()), IoError::Removed(EXPORT)),
    ];
    for (end, expected) in ends {
        let faults = crate::store::faulty::Faults::new(1);
        let store = FaultyStore::new(Arc::new(InMemory::new()), Arc::clone(&faults));
        let mut host = Host::new(Backend::over(Arc::new(store), true), 1, false);
        // Nobody but the FLUSH asks for the store.
        host.write_back_when_asked();
        let volume = host.volume();
        volume.set_durability(Durability::Store);
        faults.set(Fault::Stall, 1000);
        host.write(SectorRange::new(0, 8).unwrap(), Some(&[7; 4096])).unwrap();
        let cache = host.driver().cache.clone();
        let flushed = std::thread::scope(|scope| {
            scope.spawn(|| {
                let deadline = std::time::Instant::now() + PATIENCE;
                while faults.fired(Fault::Stall) == 0 {
                    assert!(std::time::Instant::now() < deadline, "the FLUSH does not ask for the store");
                    std::thread::yield_now();
                }
                end(&volume, &cache);
            });
            host.flush()
        });
        assert_eq!(flushed, Err(expected));
    }
}

/// A FLUSH on the way is of no durability any more that was ended, and a durability that was set counts for what comes next.
#[test]
fn a_flush_that_waits_for_the_store_ends_with_the_durability_and_waits_again_when_it_is_back() {
    let faults = crate::store::faulty::Faults::new(2);
    let store = FaultyStore::new(Arc::new(InMemory::new()), Arc::clone(&faults));
    let mut host = Host::new(Backend::over(Arc::new(store), true), 1, false);
    host.write_back_when_asked();
    let volume = host.volume();
    let range = SectorRange::new(0, 8).unwrap();
    host.write(range, Some(&[6; 4096])).unwrap();
    host.flush().unwrap();
    volume.set_durability(Durability::Store);
    faults.set(Fault::Stall, 1000);
    host.write(range, Some(&[7; 4096])).unwrap();
    let flushed = std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = std::time::Instant::now() + PATIENCE;
            while faults.fired(Fault::Stall) == 0 {
                assert!(std::time::Instant::now() < deadline, "the FLUSH does not ask for the store");
                std::thread::yield_now();
            }
            volume.set_durability(Durability::Local);
        });
        host.flush()
    });
    assert_eq!(flushed, Ok(()));
    assert!(volume.figures().stored < volume.figures().last_seq, "the store has taken nothing");
    volume.set_durability(Durability::Store);
    faults.set(Fault::Stall, 0);
    host.write(range, Some(&[8; 4096])).unwrap();
    host.flush().unwrap();
    assert_eq!(volume.store_link().unwrap().committed(), volume.figures().last_seq);
}

/// The pack may leave before, and the manifest is noted; but only a stable cut gets a manifest.
#[test]
fn nothing_is_flushed_to_the_store_that_the_disk_could_still_take_back() {
    let objects = Arc::new(InMemory::new());
    let mut host = Host::new(Backend::over(objects.clone(), true), 1, false);
    host.volume().set_durability(Durability::Store);
    let range = SectorRange::new(0, 8).unwrap();
    let committed = |host: &mut Host| host.volume().remote().unwrap().cut();
    let before = committed(&mut host);
    host.faults.syncs.store(true, Ordering::SeqCst);
    host.write(range, Some(&[7; 4096])).unwrap();
    assert_eq!(host.flush(), Err(IoError::Sync));
    assert_eq!(committed(&mut host), before);
    host.faults.syncs.store(false, Ordering::SeqCst);
    // In the turn of a request the shard lets go of the segment, and then the keeper writes the data once more.
    assert_eq!(host.read(range).unwrap(), [7; 4096]);
    host.driver().keep();
    let written = host.write_back().unwrap();
    assert_eq!(committed(&mut host), written);
    assert_eq!(host.read(range).unwrap(), [7; 4096]);
}
