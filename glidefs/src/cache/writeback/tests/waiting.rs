//! READs that need data of a store that is away, refuses this host, or is damaged.

use tokio::sync::oneshot;

use super::*;
use crate::store::faulty::{Fault, Faults, FaultyStore, InMemory};

type Answer = oneshot::Receiver<Result<Fill, IoError>>;

/// A host without any data of the first eight MiB of the export, over a store with faults, and the faults. `keeps` gives the host
/// a block cache.
fn cold(seed: u64, keeps: bool) -> (Host, Arc<Faults>) {
    let objects = Arc::new(InMemory::new());
    let mut writer = Host::new(Backend::over(objects.clone(), true), 1, false);
    for at in 0..64 {
        // Random data: each piece is a block by itself.
        let data: Vec<u8> = (0..256).flat_map(|sector| bytes_of(at + 1, sector)).collect();
        writer.write(SectorRange::new(at * 256, 256).unwrap(), Some(&data)).unwrap();
    }
    writer.write_back().unwrap();
    let faults = Faults::new(seed);
    let faulty = FaultyStore::new(objects, Arc::clone(&faults));
    (Host::with_clean(Backend::over(Arc::new(faulty), true), 2, true, keeps), faults)
}

fn read_of(host: &mut Host, at: u64) -> Answer {
    host.volume().fetch(SectorRange::new(at * 256, 8).unwrap()).unwrap()
}

/// Waits until `fault` has fired `times` times in all.
fn until_fired(faults: &Faults, fault: Fault, times: u64) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while faults.fired(fault) < times {
        assert!(std::time::Instant::now() < deadline, "the store is not asked");
        // A look now and then: the store with faults counts, and notifies nobody.
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn end(host: &Host, answer: Answer) -> Result<Fill, IoError> {
    host.runtime.block_on(async { tokio::time::timeout(PATIENCE, answer).await.unwrap().unwrap() })
}

/// An outage of three minutes or an expired token once turned into I/O errors, after which file systems stay read-only.
#[test]
fn a_read_waits_while_the_store_refuses_this_host_and_goes_on_when_it_does_not() {
    let (mut host, faults) = cold(1, false);
    faults.set(Fault::Refused, 1000);
    let mut reads: Vec<Answer> = (0..32).map(|at| read_of(&mut host, at)).collect();
    // Each READ has asked, and some have asked again.
    until_fired(&faults, Fault::Refused, 34);
    assert!(reads.iter_mut().all(|read| read.try_recv().is_err()), "none has an answer");
    faults.set(Fault::Refused, 0);
    for (at, read) in (0..).zip(reads) {
        let fill = end(&host, read).unwrap();
        let range = SectorRange::new(at * 256, 8).unwrap();
        assert!(fill.part(range).unwrap().starts_with(&bytes_of(at + 1, 0)));
    }
}

#[test]
fn what_no_waiting_would_mend_is_an_error_at_once() {
    let (mut host, faults) = cold(2, false);
    faults.set(Fault::FlippedBit, 1000);
    let read = read_of(&mut host, 0);
    assert_eq!(end(&host, read), Err(IoError::Store));
}

#[test]
fn an_export_may_say_how_long_its_reads_wait() {
    let (mut host, faults) = cold(3, false);
    let on_unreachable = OnUnreachable::FailAfter(Duration::from_secs(4));
    host.volume().set_properties(&Properties { on_unreachable, ..Properties::default() }, false);
    faults.set(Fault::Refused, 1000);
    let read = read_of(&mut host, 0);
    assert_eq!(end(&host, read), Err(IoError::Store));
    assert!(faults.fired(Fault::Refused) >= 2, "the READ was tried again meanwhile");
}

#[test]
fn the_end_of_a_volume_ends_the_reads_that_wait_and_those_to_come() {
    let (mut host, faults) = cold(4, false);
    faults.set(Fault::Refused, 1000);
    let read = read_of(&mut host, 0);
    until_fired(&faults, Fault::Refused, 1);
    host.volume().store_link().unwrap().fence();
    assert_eq!(end(&host, read), Err(IoError::Fenced));
    let read = read_of(&mut host, 1);
    assert_eq!(end(&host, read), Err(IoError::Fenced));

    let (mut host, faults) = cold(4, false);
    faults.set(Fault::Refused, 1000);
    let (read, volume) = (read_of(&mut host, 0), host.volume());
    until_fired(&faults, Fault::Refused, 1);
    host.driver().cache.remove(EXPORT);
    assert_eq!(end(&host, read), Err(IoError::Removed(EXPORT)));
    assert!(volume.is_removed());
}

#[test]
fn a_read_that_waits_when_the_daemon_stops_is_left_to_the_next_one() {
    let (mut host, faults) = cold(5, false);
    faults.set(Fault::Refused, 1000);
    let read = read_of(&mut host, 0);
    until_fired(&faults, Fault::Refused, 1);
    host.stops.send(true).unwrap();
    assert!(host.runtime.block_on(read).is_err(), "an answer would be an I/O error");
}

/// Sixty-four READs waiting for a stalled store once held all fetches. Hits in the block cache and READs of other exports waited
/// behind these READs.
#[test]
fn a_read_that_needs_no_store_does_not_wait_behind_those_that_do() {
    let (mut host, faults) = cold(6, true);
    // All indexes and some blocks are in the block cache now.
    for at in 0..64 {
        let read = read_of(&mut host, at);
        end(&host, read).unwrap();
    }
    faults.set(Fault::Stall, 1000);
    let other_blocks = (0..128).map(|at| SectorRange::new(at % 64 * 256 + 128, 8).unwrap());
    let mut cold: Vec<Answer> = other_blocks.map(|range| host.volume().fetch(range).unwrap()).collect();
    until_fired(&faults, Fault::Stall, 40);
    let read = read_of(&mut host, 0);
    end(&host, read).unwrap();
    assert!(
        cold.iter_mut().all(|read| read.try_recv().is_err()),
        "the other READs wait for the stalled store"
    );
}

/// Each try of a cut once packed and uploaded the cut from the beginning. A large cut never got through a store with many
/// failures.
#[test]
fn a_backlog_drains_though_the_store_fails_every_third_request() {
    let objects = Arc::new(InMemory::new());
    let faults = Faults::new(7);
    let faulty = FaultyStore::new(objects.clone(), Arc::clone(&faults));
    let mut host = Host::new(Backend::over(Arc::new(faulty), true), 1, false);
    faults.set(Fault::ServerError, 333);
    let mut model = Model::new(7);
    for round in 0..8 {
        (0..30).for_each(|_| model.write(&mut host));
        if round % 2 == 0 {
            host.flush().unwrap();
        }
    }
    host.write_back().unwrap();
    assert_eq!(host.driver().cache.stats().dirty_bytes, 0);
    assert!(faults.fired(Fault::ServerError) > 0);
    let mut other = Host::new(Backend::over(objects, true), 2, true);
    model.check_all(&mut other);
}

#[test]
fn what_gathers_while_the_store_is_away_gets_there_in_several_cuts() {
    let objects = Arc::new(InMemory::new());
    let faults = Faults::new(9);
    let faulty = FaultyStore::new(objects.clone(), Arc::clone(&faults));
    let mut host = Host::new(Backend::over(Arc::new(faulty), true), 1, false);
    host.daemon.as_ref().unwrap().queue.set_cut_bytes_max(64 << 10);
    let range = |at: u64| SectorRange::new(at * 16, 16).unwrap();
    let data = |at: u64| vec![u8::try_from(at + 1).unwrap(); 8192];
    host.write(range(0), Some(&data(0))).unwrap();
    host.write_back().unwrap();
    faults.set(Fault::ServerError, 1000);
    for at in 0..64 {
        host.write(range(at), Some(&data(at + 100))).unwrap();
        if at == 0 {
            host.volume().cut_now();
        }
    }
    // The first cut has one write, each of the others has eight writes, and the last seven writes are in no cut.
    assert_eq!(host.volume().figures().cuts, 8);
    faults.set(Fault::ServerError, 0);
    host.write_back().unwrap();
    let figures = host.volume().figures();
    assert_eq!((figures.cuts, figures.dirty_bytes, figures.stored), (0, 0, figures.last_seq));
    let mut other = Host::new(Backend::over(objects, true), 2, true);
    for at in 0..64 {
        assert_eq!(other.read(range(at)).unwrap(), data(at + 100));
    }
}

/// A host behind a slow line to the store, the line's faults, the time that writes have waited for room, and the objects. The
/// clock of the line goes on while writes wait. With a time in `recovers`, the line is fast again from then on, as soon as a
/// write waits.
fn behind_a_line(recovers: Option<u64>) -> (Host, Arc<Faults>, Arc<AtomicU64>, Arc<InMemory>) {
    let (objects, faults, waited) = (Arc::new(InMemory::new()), Faults::new(8), Arc::<AtomicU64>::default());
    let faulty = FaultyStore::new(objects.clone(), Arc::clone(&faults));
    let mut host = Host::new(Backend::over(Arc::new(faulty), true), 1, false);
    host.driver().while_waiting({
        let (faults, waited) = (Arc::clone(&faults), Arc::clone(&waited));
        move || {
            let line = faults.line();
            let begun = line.now();
            line.advance_to_arrival();
            waited.fetch_add(line.now() - begun, Ordering::Relaxed);
            if recovers.is_some_and(|recovers| line.now() >= recovers) {
                line.recover();
            }
        }
    });
    (host, faults, waited, objects)
}

#[test]
fn a_writer_that_is_faster_than_the_store_waits_for_room_and_nothing_is_lost_when_the_store_recovers() {
    /// A time of the line's clock: the writer could write so many bytes in this time.
    const SLOW_FOR: u64 = 160 << 20;
    for recovers in [true, false] {
        let (mut host, faults, waited, objects) = behind_a_line(recovers.then_some(SLOW_FOR));
        let (mut model, line) = (Model::new(8), faults.line());
        line.slow_down(10);
        while line.is_slow() && (recovers || line.now() < SLOW_FOR) {
            let before = model.written_bytes;
            // The write is acknowledged.
            model.write(&mut host);
            line.advance(model.written_bytes - before);
            assert!(model.written_bytes < SLOW_FOR, "the writer waits for nothing");
        }
        let (now, waited, arrived) = (line.now(), waited.load(Ordering::Relaxed), line.arrived_bytes());
        assert_eq!(now, model.written_bytes + waited);
        assert!(waited > now / 2, "the writer waited for {waited} of {now}");
        assert!(arrived > 0 && arrived <= now / 10, "{arrived} bytes in the time of {now}");

        (0..30).for_each(|_| model.write(&mut host));
        host.volume().ask_writeback();
        let deadline = std::time::Instant::now() + PATIENCE;
        let is_stored = |host: &mut Host| {
            let figures = host.volume().figures();
            (figures.cuts, figures.dirty_bytes, figures.stored) == (0, 0, figures.last_seq)
        };
        while !is_stored(&mut host) {
            assert!(std::time::Instant::now() < deadline, "{:?}", host.driver().cache.stats());
            if !line.advance_to_arrival() {
                // The engine makes the next creation in real time, and notifies nobody.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(host.driver().cache.stats().dirty_bytes, 0);
        assert_eq!(line.is_slow(), !recovers, "the backlog drains whether or not the store recovers");
        let mut other = Host::new(Backend::over(objects, true), 2, true);
        model.check_all(&mut other);
    }
}
