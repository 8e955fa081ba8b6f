//! Data lost by the cache disk before the store had the data: all other data goes on, and no older content takes the place of
//! lost data.

use super::*;
use crate::cache::Resource;
use crate::cache::volume::durability::Pace;
use crate::cache::volume::extent::{Backing, Extent};
use crate::cache::writeback::carry::UNREADABLE_CUTS_MAX;
use crate::properties::{Bound, Durability};
use crate::store::format::DAMAGED_RANGES_MAX;
use crate::store::volume::{CutExtent, CutSource};

const FRAMES: u8 = 8;
/// The lost frame.
const LOST: u8 = 3;

fn frame(number: u8) -> SectorRange {
    SectorRange::new(u64::from(number) * 8, 8).unwrap()
}

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(start, count).unwrap()
}

/// The content of frame `number` after write `generation`.
fn data(generation: u8, number: u8) -> [u8; 4096] {
    [16 * generation + number; 4096]
}

/// A host with the second generation of all frames in the cache. The store has the first generation.
fn written(backend: Backend) -> Host {
    let mut host = Host::new(backend, 1, false);
    host.write_back_when_asked();
    for generation in 1..=2 {
        (0..FRAMES).for_each(|number| host.write(frame(number), Some(&data(generation, number))).unwrap());
        if generation == 1 {
            host.write_back().unwrap();
        }
    }
    host
}

/// All frames have the second generation, except for the lost frame: reads of the lost frame fail.
fn judge(host: &mut Host) {
    for number in (0..FRAMES).filter(|number| *number != LOST) {
        assert_eq!(host.read(frame(number)).unwrap(), data(2, number), "frame {number}");
    }
    let sectors = frame(LOST);
    for sector in [sectors.start(), sectors.end() - 1] {
        let read = host.read(range(sector, 1));
        assert!(matches!(read, Err(IoError::Damaged | IoError::Corrupt | IoError::Read)), "{read:?}");
    }
    for sector in [sectors.start() - 1, sectors.end()] {
        host.read(range(sector, 1)).unwrap();
    }
}

/// One frame with a wrong checksum once kept all later data of the export from the store, for ever.
#[test]
fn a_lost_frame_keeps_nothing_else_from_the_store_and_fails_on_every_host_until_it_is_written() {
    for unreadable in [false, true] {
        let backend = memory();
        let mut host = written(backend.clone());
        let place = host.disk().find(|bytes| bytes == data(2, LOST)).unwrap();
        if unreadable {
            host.disk().lose(place.0, place.1);
            // The disk has had its time to come back: as many cuts failed before.
            let volume = host.volume();
            (0..UNREADABLE_CUTS_MAX).for_each(|_| volume.store_link().unwrap().set_unreadable(true));
        } else {
            host.disk().rot(place);
        }
        host.write_back().unwrap();
        judge(&mut host);
        let volume = host.volume();
        assert_eq!((volume.figures().dirty_bytes, volume.damaged_bytes()), (0, Some(4096)));
        // The same without the clean data in the cache.
        volume.forget_clean(&host.driver().cache.shared.table);
        judge(&mut host);
        assert_eq!(host.read(range(frame(LOST).start(), 1)), Err(IoError::Damaged));
        drop(volume);

        let mut other = Host::new(backend.clone(), 2, true);
        other.write_back_when_asked();
        judge(&mut other);
        // Half of the lost frame is written.
        let half = range(frame(LOST).start(), 4);
        other.write(half, Some(&[7; 2048])).unwrap();
        assert_eq!(other.read(half).unwrap(), [7; 2048]);
        let rest = range(half.end(), 4);
        assert_eq!(other.read(rest), Err(IoError::Damaged));
        other.write_back().unwrap();
        assert_eq!(other.volume().damaged_bytes(), Some(2048));
        other.write(rest, None).unwrap();
        other.write_back().unwrap();

        let mut last = Host::new(backend, 3, true);
        assert_eq!(last.read(frame(LOST)).unwrap(), [[7; 2048], [0; 2048]].concat());
        assert_eq!(last.read(frame(LOST - 1)).unwrap(), data(2, LOST - 1));
        assert_eq!(last.volume().damaged_bytes(), Some(0));
    }
}

#[test]
fn a_frame_that_the_disk_reads_again_is_not_given_up() {
    let mut host = Host::new(memory(), 1, false);
    host.never_write_back();
    // One frame and a half.
    host.write(range(100, 12), Some(&[[1; 2048], [2; 2048], [3; 2048]].concat())).unwrap();
    let volume = host.volume();
    volume.cut_now();
    let shared = Arc::clone(&host.driver().cache.shared);
    let seq = volume.figures().last_seq;
    let cut = |on_unread| Cut::new(Arc::clone(&shared), Arc::clone(&volume), seq, on_unread);
    let place = host.disk().find(|bytes| bytes.starts_with(&[3; 2048])).unwrap();
    host.disk().lose(place.0, place.1);
    let (all, mut bytes) = (range(100, 12), vec![0; 6144]);
    let first = cut(OnUnread::Fail);
    first.read(all, &mut bytes).unwrap_err();
    assert!(!first.has_losses() && first.damaged().is_empty());
    let last = cut(OnUnread::GiveUp);
    last.read(all, &mut bytes).unwrap();
    assert_eq!(last.damaged(), [range(108, 4)]);
    assert!(last.may_come_back() && !last.has_come_back());
    assert_eq!(bytes[..4096], [[1; 2048], [2; 2048]].concat());
    host.faults.frames.lock().unwrap().clear();
    assert!(last.has_come_back());
    first.read(all, &mut bytes).unwrap();
    assert_eq!(bytes, [[1; 2048], [2; 2048], [3; 2048]].concat());
    assert!(!first.has_losses());
}

#[test]
fn a_copy_in_memory_that_went_wrong_costs_nothing() {
    let mut host = written(memory());
    let place = host.disk().find(|bytes| bytes == data(2, LOST)).unwrap();
    host.faults.wrong_copies.lock().unwrap().insert(place);
    assert_eq!(host.read(frame(LOST)), Err(IoError::Corrupt));
    let shared = Arc::clone(&host.driver().cache.shared);
    let info = shared.table.get(place.0);
    info.set_mapping(info.file().unwrap().map(shared.table.segment_bytes()).unwrap().map(Arc::new));
    host.write_back().unwrap();
    assert!(info.mapping().is_none(), "a mapped page would not leave memory");
    assert_eq!(host.read(frame(LOST)).unwrap(), data(2, LOST));
    let volume = host.volume();
    assert_eq!(volume.damaged_bytes(), Some(0));
    volume.forget_clean(&host.driver().cache.shared.table);
    assert_eq!(host.read(frame(LOST)).unwrap(), data(2, LOST));
}

/// Where the page cache had a wrong copy and the read from the disk itself failed, the frame once counted as damaged at once.
/// Such a disk has ten minutes to come back, as for every other unreadable frame.
#[test]
fn a_wrong_copy_in_memory_of_what_a_disk_that_is_away_has_is_no_loss() {
    let mut host = written(memory());
    host.never_write_back();
    let place = host.disk().find(|bytes| bytes == data(2, LOST)).unwrap();
    host.faults.wrong_copies.lock().unwrap().insert(place);
    host.faults.only_copies.store(true, Ordering::SeqCst);
    let volume = host.volume();
    volume.cut_now();
    let (shared, seq) = (Arc::clone(&host.driver().cache.shared), volume.figures().last_seq);
    let cut = Cut::new(shared, volume, seq, OnUnread::Fail);
    let mut bytes = [0; 4096];
    assert!(cut.read(frame(LOST), &mut bytes).is_err(), "lost for good: {:?}", cut.damaged());
    host.faults.only_copies.store(false, Ordering::SeqCst);
    cut.read(frame(LOST), &mut bytes).unwrap();
    assert!(bytes == data(2, LOST) && !cut.has_losses());
}

/// A cut of damage alone, in as many places as a manifest can list.
struct Sieve {
    seq: Seq,
}

/// A size with room for the damage of a [`Sieve`] behind the sectors that hosts write.
const SIEVE_SECTORS: u64 = SECTORS + 2 * DAMAGED_RANGES_MAX as u64;

impl CutSource for Sieve {
    fn seq(&self) -> Seq {
        self.seq
    }

    fn extents(&self) -> &[CutExtent] {
        &[]
    }

    fn read(&self, _: SectorRange, _: &mut [u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Err("there is nothing to read".into())
    }

    fn damaged(&self) -> Vec<SectorRange> {
        (SECTORS..SIEVE_SECTORS).step_by(2).map(|at| range(at, 1)).collect()
    }
}

/// A cut with more damage than the store can note once counted as a cut that the disk did not read. After ten minutes of such
/// cuts, the next unreadable frame was given up at once, without ten minutes to come back.
#[test]
fn damage_in_too_many_places_fails_the_flush_and_leaves_the_disk_its_time_to_come_back() {
    let mut host = written(memory());
    let volume = host.volume();
    let remote = volume.remote().unwrap().clone();
    let sieve = Arc::new(Sieve { seq: remote.state().cut });
    let committed = host.runtime.block_on(remote.commit(sieve, SIEVE_SECTORS)).unwrap();
    volume.replaced(SIEVE_SECTORS, committed.crowd);
    let place = host.disk().find(|bytes| bytes == data(2, LOST)).unwrap();
    host.disk().rot(place);
    assert_eq!(host.write_back(), Err(IoError::Unreadable));
    let link = volume.store_link().unwrap();
    assert!(link.is_unreadable() && link.trouble().unwrap().contains("discard them"), "{:?}", link.trouble());
    assert_eq!(link.unreadable_in_a_row(), 0);
}

#[test]
fn a_cut_of_a_volume_in_doubt_has_what_is_newer_and_the_rest_is_damaged_and_can_be_gone_back_to() {
    let backend = memory();
    let mut host = written(backend.clone());
    let volume = host.volume();
    let shared = Arc::clone(&host.driver().cache.shared);
    let (segment, _) = host.disk().find(|bytes| bytes == data(2, 0)).unwrap();
    let doubt = Seq(volume.figures().last_seq.0 + 10);
    let backing = Backing::Doubt { number: segment };
    volume.recovered(&shared.table, Extent { range: range(1, 1), seq: doubt, backing });
    drop(volume);
    host.write(frame(LOST), Some(&data(3, LOST))).unwrap();
    let judge = |host: &mut Host| {
        assert_eq!(host.read(frame(LOST)).unwrap(), data(3, LOST));
        for number in (0..FRAMES).filter(|number| *number != LOST) {
            assert_eq!(host.read(frame(number)), Err(IoError::Damaged), "frame {number}");
        }
        assert_eq!(host.read(range(SECTORS - 1, 1)), Err(IoError::Damaged));
    };
    judge(&mut host);
    let seq = host.write_back().unwrap();
    judge(&mut host);
    assert_eq!(host.driver().cache.stats().doubted_exports, 0);
    assert_eq!(host.volume().damaged_bytes(), Some((SECTORS - 8) * SECTOR_BYTES));
    // No data that was in doubt comes back from the log.
    assert_eq!(host.catalog.entries.lock().unwrap()[&EXPORT].evicted, seq);
    drop(shared);
    host.restart();
    judge(&mut host);
    host.write(frame(0), Some(&data(4, 0))).unwrap();
    host.write_back().unwrap();
    assert_eq!(host.read(frame(0)).unwrap(), data(4, 0));

    let mut other = Host::new(backend, 2, true);
    assert_eq!(other.read(frame(0)).unwrap(), data(4, 0));
    assert_eq!(other.read(frame(1)), Err(IoError::Damaged));
    // The state that the store had before is there as a whole.
    let remote = other.volume().remote().unwrap().clone();
    let kept = format!("before-doubt-{}", doubt.0).parse().unwrap();
    other.runtime.block_on(remote.rollback(&kept)).unwrap();
    for number in 0..FRAMES {
        assert_eq!(other.read(frame(number)).unwrap(), data(1, number), "frame {number}");
    }
    assert_eq!(other.volume().damaged_bytes(), Some(0));
}

/// A doubt once reached to the end of the export, even when the end had moved since. New sectors failed although no lost record
/// can have had data for the new sectors, and the cut that ended the doubt noted the sectors as damaged.
#[test]
fn what_an_export_in_doubt_is_made_larger_by_is_not_in_doubt() {
    let mut host = written(memory());
    let volume = host.volume();
    let shared = Arc::clone(&host.driver().cache.shared);
    let (number, _) = host.disk().find(|bytes| bytes == data(2, 0)).unwrap();
    let doubt = Seq(volume.figures().last_seq.0 + 10);
    volume.recovered(
        &shared.table,
        Extent { range: range(1, 1), seq: doubt, backing: Backing::Doubt { number } },
    );
    // A cut made before the export grows heeds the size before.
    let early = Cut::new(Arc::clone(&shared), Arc::clone(&volume), doubt, OnUnread::Fail);
    volume.grow(SECTORS, 2 * SECTORS);
    volume.grow(2 * SECTORS, 3 * SECTORS);
    assert_eq!(early.damaged(), [range(0, SECTORS)]);
    drop((volume, shared));
    host.write(range(SECTORS + 8, 8), Some(&data(3, 1))).unwrap();
    let judge = |host: &mut Host| {
        assert_eq!(host.read(range(SECTORS - 1, 1)), Err(IoError::Damaged));
        assert_eq!(host.read(range(SECTORS - 1, 2)), Err(IoError::Damaged));
        assert_eq!(host.read(range(SECTORS, 8)).unwrap(), [0; 4096]);
        assert_eq!(host.read(range(SECTORS + 8, 8)).unwrap(), data(3, 1));
        assert_eq!(host.read(range(3 * SECTORS - 8, 8)).unwrap(), [0; 4096]);
    };
    judge(&mut host);
    host.write_back().unwrap();
    judge(&mut host);
    assert_eq!(host.volume().damaged_bytes(), Some(SECTORS * SECTOR_BYTES));
    // The answers from the store alone are the same.
    let volume = host.volume();
    volume.forget_clean(&host.driver().cache.shared.table);
    judge(&mut host);
}

/// The store learns of the end of a doubt before the catalog does. After a crash between the two notes the log still has data
/// from before the doubt, and recovery must use none of the data.
#[test]
fn an_end_of_a_doubt_that_was_not_written_down_leaves_nothing_of_the_log_in_use() {
    let table = crate::cache::log::table::SegmentTable::new(2, 2, [0; 16], 64);
    table.get(0).begin_use(1, 1);
    let volume = Volume::at(EXPORT, SeqMarks { stored: Seq(10), evicted: Seq(0) });
    let extent = |seq, backing| Extent { range: range(8, 8), seq: Seq(seq), backing };
    assert!(volume.recovered(&table, extent(5, Backing::Data { number: 0, sector: 16 })));
    assert!(volume.recovered(&table, extent(8, Backing::Doubt { number: 0 })));
    assert!(volume.has_ended_doubt() && !volume.is_doubted());
    assert_eq!(volume.forget_clean(&table), Seq(10));
    assert_eq!(volume.missing(range(8, 8)), [range(8, 8)]);
    assert!(!volume.has_ended_doubt());
    // The segment still has the entry of doubt, so that the next start does not find the same doubt anew.
    assert_eq!(table.get(0).extents(), 1);
}

/// A WRITE let go on while data was unreadable was once not promised, and the end of this WRITE took the promise of another one back:
/// then more data came at risk than allowed.
#[test]
fn a_write_let_go_on_while_data_is_unreadable_takes_no_promise_of_another_write_back() {
    let mut host = Host::new(memory(), 1, false);
    host.write_back_when_asked();
    let volume = host.volume();
    let bound = Bound { max_bytes: 8192, max_age: Duration::from_hours(1) };
    volume.set_durability(Durability::Bounded(bound));
    assert_eq!(volume.pace(4096, true).0, Pace::Go);
    let link = volume.store_link().unwrap();
    link.set_unreadable(true);
    assert_eq!(volume.pace(1 << 20, true).0, Pace::Go, "data can only be written again");
    volume.settled(1 << 20);
    link.set_unreadable(false);
    assert_eq!(volume.pace(8192, true).0, Pace::Wait, "4096 bytes are promised still");
    volume.settled(4096);
    assert_eq!(volume.pace(8192, true).0, Pace::Go);
}

#[test]
fn writes_on_the_way_while_a_bound_comes_or_goes_are_promised_by_none_or_settled_all_the_same() {
    let mut host = Host::new(memory(), 1, false);
    host.write_back_when_asked();
    let volume = host.volume();
    let bounded = Durability::Bounded(Bound { max_bytes: 8192, max_age: Duration::from_hours(1) });
    assert_eq!(volume.pace(8192, true), (Pace::Go, false), "without a bound nothing is promised");
    volume.set_durability(bounded);
    assert_eq!(volume.pace(8192, true), (Pace::Go, true));
    volume.set_durability(Durability::Local);
    assert_eq!(volume.pace(8192, true), (Pace::Go, false));
    volume.set_durability(bounded);
    assert_eq!(volume.pace(1, true), (Pace::Wait, false), "8192 bytes are promised still");
    volume.settled(8192);
    assert_eq!(volume.pace(8192, true), (Pace::Go, true));
}

#[test]
fn while_data_is_unreadable_the_index_may_become_twice_as_large() {
    let mut host = Host::new(memory(), 1, false);
    host.write_back_when_asked();
    host.write(range(0, 8), Some(&bytes_of(1, 0).repeat(8))).unwrap();
    let volume = host.volume();
    let bytes = volume.claim(Resource::Index).bytes;
    assert!(bytes > 0 && bytes == volume.usage(Resource::Index).bytes);
    volume.store_link().unwrap().set_unreadable(true);
    assert_eq!(volume.claim(Resource::Index).bytes, bytes / 2, "data can only be written again");
}
