//! Cuts that reached the store while the catalog did not get the note: content lost here and in such a cut is not lost.

use super::*;
use crate::cache::volume::cuts::CutState;
use crate::cache::volume::extent::{Backing, Extent};
use crate::cache::writeback::carry::UNREADABLE_CUTS_MAX;
use crate::cache::writeback::cut::{Cut, OnUnread};
use crate::store::faulty::{Fault, FaultyStore, InMemory};

const FRAMES: u8 = 8;
/// The frame with lost content.
const LOST: u8 = 3;

pub(super) fn frame(number: u8) -> SectorRange {
    SectorRange::new(u64::from(number) * 8, 8).unwrap()
}

/// The content of frame `number` after write `generation`.
pub(super) fn data(generation: u8, number: u8) -> [u8; 4096] {
    [16 * generation + number; 4096]
}

/// Writes generation `generation` of all frames.
fn write(host: &mut Host, generation: u8) {
    (0..FRAMES).for_each(|number| host.write(frame(number), Some(&data(generation, number))).unwrap());
}

/// Brings all content to the store while the catalog takes no note.
pub(super) fn bring_without_a_note(host: &mut Host) {
    host.catalog.fails.store(true, Ordering::Release);
    let mut failures = host.catalog.failures.subscribe();
    host.volume().ask_writeback();
    let failed =
        async { tokio::time::timeout(PATIENCE, failures.wait_for(|failures| *failures > 0)).await.map(drop) };
    host.runtime.block_on(failed).expect("the cut is not noted");
}

/// A host that died with the first generation noted as written back and the second one in a cut which the store has and the
/// catalog does not. A write behind that cut is on this host alone.
pub(super) fn killed(backend: Backend, durability: Durability) -> Host {
    let mut host = Host::new(backend, 1, false);
    host.write_back_when_asked();
    host.volume().set_durability(durability);
    write(&mut host, 1);
    host.write_back().unwrap();
    write(&mut host, 2);
    if durability == Durability::Store {
        host.catalog.fails.store(true, Ordering::Release);
        host.flush().unwrap();
    } else {
        bring_without_a_note(&mut host);
    }
    host.write(frame(0), Some(&data(3, 0))).unwrap();
    host.stop();
    host.catalog.fails.store(false, Ordering::Release);
    host
}

/// Destroys the headers of the records with the second generation of the lost frame and of the frame behind: nothing else
/// describes the former.
pub(super) fn lose_a_record(host: &Host) {
    for number in [LOST, LOST + 1] {
        let (segment, at) = host.disk().find(|bytes| bytes == data(2, number)).unwrap();
        assert!(
            host.disk()
                .frames(segment)
                .nth(usize::try_from(at).unwrap() - 1)
                .unwrap()
                .starts_with(b"GLIDEREC")
        );
        host.disk().rot((segment, at - 1));
    }
}

/// All frames have their newest content.
pub(super) fn judge(host: &mut Host) {
    for number in 0..FRAMES {
        let expected = if number == 0 { data(3, 0) } else { data(2, number) };
        assert!(host.read(frame(number)) == Ok(expected.to_vec()), "frame {number}");
    }
}

/// What a start once took for lost, and listed as damaged in the store with the next cut, although the store had a good copy.
#[test]
fn a_record_lost_here_is_read_from_the_store_when_only_the_note_of_its_cut_is_missing() {
    for durability in [Durability::Store, Durability::Local] {
        let objects = Arc::new(InMemory::new());
        let mut host = killed(Backend::over(objects.clone(), true), durability);
        lose_a_record(&host);
        host.start();
        assert!(host.volume().figures().doubted);
        assert!(host.confirm().unwrap());
        judge(&mut host);
        assert_eq!(host.driver().cache.stats().doubted_exports, 0);
        host.write_back().unwrap();
        assert_eq!(host.volume().damaged_bytes(), Some(0));
        judge(&mut host);
        host.restart();
        judge(&mut host);
        let mut other = Host::new(Backend::over(objects, true), 2, true);
        judge(&mut other);
    }
}

/// Content that a start does not know to be lost, because a start reads no data: the cut finds out.
#[test]
fn a_frame_lost_here_is_read_from_the_store_when_only_the_note_of_its_cut_is_missing() {
    for unreadable in [false, true] {
        let objects = Arc::new(InMemory::new());
        let mut host = killed(Backend::over(objects.clone(), true), Durability::Store);
        let place = host.disk().find(|bytes| bytes == data(2, LOST)).unwrap();
        if unreadable {
            host.disk().lose(place.0, place.1);
        } else {
            host.disk().rot(place);
        }
        host.start();
        host.confirm().unwrap();
        host.write_back().unwrap();
        judge(&mut host);
        assert_eq!(host.volume().damaged_bytes(), Some(0), "unreadable: {unreadable}");
        host.restart();
        judge(&mut host);
        let mut other = Host::new(Backend::over(objects, true), 2, true);
        judge(&mut other);
    }
}

/// The cleaner has found the loss, and an entry of the log stands for the lost frame.
#[test]
fn damage_noted_in_the_log_is_read_from_the_store_when_only_the_note_of_its_cut_is_missing() {
    let mut host = killed(memory(), Durability::Store);
    host.start();
    let (number, _) = host.disk().find(|bytes| bytes == data(2, LOST)).unwrap();
    let volume = host.volume();
    let shared = Arc::clone(&host.driver().cache.shared);
    let seq = Seq(u64::from(FRAMES + LOST + 1));
    volume.recovered(&shared.table, Extent { range: frame(LOST), seq, backing: Backing::Damaged { number } });
    drop((volume, shared));
    assert_eq!(host.read(frame(LOST)), Err(IoError::Damaged));
    host.confirm().unwrap();
    judge(&mut host);
    host.write_back().unwrap();
    assert_eq!(host.volume().damaged_bytes(), Some(0));
}

/// Without damage the content of the cut stays here, and readers need no store.
#[test]
fn a_cut_without_a_note_whose_content_is_whole_here_stays_here() {
    let mut host = killed(memory(), Durability::Store);
    host.start();
    let before = requests(&host, Operation::Get);
    host.confirm().unwrap();
    assert!(host.volume().figures().dirty_bytes >= u64::from(FRAMES) * 4096);
    judge(&mut host);
    host.write_back().unwrap();
    judge(&mut host);
    assert!(host.volume().figures().clean_bytes >= u64::from(FRAMES) * 4096);
    assert!(requests(&host, Operation::Get) <= before + 2, "manifests, and no data");
}

#[test]
fn content_lost_here_fails_while_the_store_is_away_and_is_there_when_the_store_is_back() {
    let faults = crate::store::faulty::Faults::new(1);
    let store = FaultyStore::new(Arc::new(InMemory::new()), Arc::clone(&faults));
    let mut host = killed(Backend::over(Arc::new(store), true), Durability::Store);
    lose_a_record(&host);
    faults.set(Fault::ServerError, 1000);
    host.start();
    let volume = host.volume();
    let patience = Duration::from_millis(50);
    assert!(!host.runtime.block_on(volume.confirm(patience)).unwrap());
    assert_eq!(host.read(frame(LOST)), Err(IoError::Damaged));
    assert_eq!(host.read(frame(0)), Ok(data(3, 0).to_vec()));
    host.write(frame(1), Some(&data(4, 1))).unwrap();
    faults.set(Fault::ServerError, 0);
    host.write_back().unwrap();
    assert_eq!(host.read(frame(1)), Ok(data(4, 1).to_vec()));
    host.write(frame(1), Some(&data(2, 1))).unwrap();
    judge(&mut host);
    assert_eq!(volume.damaged_bytes(), Some(0));
}

/// The manifest is that of another history, or another host: nothing of this host leaves.
#[test]
fn a_cut_of_another_history_leaves_all_content_here() {
    for copied in [false, true] {
        let objects = Arc::new(InMemory::new());
        let backend = || Backend::over(objects.clone(), true);
        let mut host = killed(backend(), Durability::Store);
        lose_a_record(&host);
        if copied {
            // The notes of another copy of this host's catalog end before the cut.
            let writer = host.catalog.entries.lock().unwrap()[&EXPORT].resume.writer;
            host.volumes = VolumeStore::new(host.volumes.store().clone(), VolumeStoreOptions::new(writer));
        } else {
            let mut other = Host::new(backend(), 2, true);
            other.write(frame(LOST), Some(&data(5, LOST))).unwrap();
            other.write_back().unwrap();
        }
        host.start();
        let before = host.volume().figures();
        host.confirm().unwrap_err();
        let lost = if copied { IoError::Diverged } else { IoError::Fenced };
        assert_eq!(host.write_back(), Err(lost));
        let after = host.volume().figures();
        assert_eq!((after.stored, after.dirty_bytes), (before.stored, before.dirty_bytes));
        assert!(host.catalog.entries.lock().unwrap()[&EXPORT].evicted <= before.stored);
    }
}

/// The cut went to the store without a frame that the disk did not read then. Later the disk reads the frame again: only this host
/// has the content, so the content does not leave, whatever else is lost here.
#[test]
fn content_that_the_store_lists_as_damaged_is_not_left_to_the_store() {
    let mut host = Host::new(memory(), 1, false);
    host.write_back_when_asked();
    write(&mut host, 1);
    host.write_back().unwrap();
    write(&mut host, 2);
    let place = host.disk().find(|bytes| bytes == data(2, LOST)).unwrap();
    host.disk().lose(place.0, place.1);
    let volume = host.volume();
    (0..UNREADABLE_CUTS_MAX).for_each(|_| volume.store_link().unwrap().set_unreadable(true));
    drop(volume);
    bring_without_a_note(&mut host);
    assert_eq!(host.volume().damaged_bytes(), Some(4096));
    // The next record says that the earlier records are stable.
    host.write(frame(0), Some(&data(3, 0))).unwrap();
    host.stop();
    host.catalog.fails.store(false, Ordering::Release);
    host.faults.frames.lock().unwrap().clear();
    let other = host.disk().find(|bytes| bytes == data(2, LOST + 1)).unwrap();
    host.disk().rot(other);
    host.start();
    host.confirm().unwrap();
    host.write_back().unwrap();
    assert_eq!(host.read(frame(LOST)), Ok(data(2, LOST).to_vec()));
    assert_eq!(host.volume().damaged_bytes(), Some(4096), "the other frame is lost");
}

/// The cut ends with the number of a failed write, which the log does not have. A write of the next life, which does not ask the
/// store, is on this host alone: the write may not count as part of the cut in the life after.
#[test]
fn a_write_of_a_life_that_did_not_ask_the_store_is_in_no_earlier_cut() {
    let mut host = Host::new(memory(), 1, false);
    host.write_back_when_asked();
    write(&mut host, 1);
    host.write_back().unwrap();
    write(&mut host, 2);
    *host.faults.writes_left.lock().unwrap() = Some(0);
    host.write(frame(1), Some(&data(4, 1))).unwrap_err();
    *host.faults.writes_left.lock().unwrap() = None;
    let cut = host.volume().figures().last_seq;
    bring_without_a_note(&mut host);
    host.stop();
    host.catalog.fails.store(false, Ordering::Release);
    host.start();
    assert!(host.volume().figures().last_seq < cut, "the log lacks the failed write");
    host.write(frame(0), Some(&data(3, 0))).unwrap();
    host.flush().unwrap();
    host.stop();
    let place = host.disk().find(|bytes| bytes == data(2, LOST)).unwrap();
    host.disk().rot(place);
    host.start();
    host.confirm().unwrap();
    host.write_back().unwrap();
    assert_eq!(host.volume().damaged_bytes(), Some(0), "the store has the lost frame");
    judge(&mut host);
    host.restart();
    judge(&mut host);
}

/// Content may be found lost after the last look before a cut.
#[test]
fn a_cut_with_content_lost_since_the_last_look_has_no_use() {
    let mut host = killed(memory(), Durability::Store);
    host.writes_back = false;
    host.start();
    host.confirm().unwrap();
    let (number, _) = host.disk().find(|bytes| bytes == data(2, LOST)).unwrap();
    let (volume, shared) = (host.volume(), Arc::clone(&host.driver().cache.shared));
    let seq = Seq(u64::from(FRAMES + LOST + 1));
    let link = volume.store_link().unwrap();
    link.set_unnoted(link.cut_before(volume.figures().stored).unwrap());
    volume.recovered(&shared.table, Extent { range: frame(LOST), seq, backing: Backing::Damaged { number } });
    volume.cut_now();
    let CutState::Complete(cut) = volume.cut_state() else { panic!("no write is under way") };
    let cut = Cut::new(Arc::clone(&shared), Arc::clone(&volume), cut, OnUnread::Fail);
    assert!(cut.has_lost_stored());
}

/// Recovery finds zeroes of a write of the cut that failed, so the store has older data. A guest that zeroes the sectors again gets
/// zeroes also when the zeroes of the failed write are gone.
#[test]
fn zeroes_in_the_place_of_a_failed_writes_zeroes_outlive_what_is_left_to_the_store() {
    let mut host = killed(memory(), Durability::Store);
    host.start();
    let (number, _) = host.disk().find(|bytes| bytes == data(2, 1)).unwrap();
    let (volume, shared) = (host.volume(), Arc::clone(&host.driver().cache.shared));
    let seq = Seq(2 * u64::from(FRAMES));
    volume.recovered(&shared.table, Extent { range: frame(1), seq, backing: Backing::Zero { number } });
    drop((volume, shared));
    host.write(frame(1), None).unwrap();
    let place = host.disk().find(|bytes| bytes == data(2, LOST)).unwrap();
    host.disk().rot(place);
    host.confirm().unwrap();
    host.write_back().unwrap();
    assert_eq!(host.volume().damaged_bytes(), Some(0));
    assert_eq!(host.read(frame(LOST)), Ok(data(2, LOST).to_vec()), "the content was left to the store");
    assert_eq!(host.read(frame(1)), Ok(vec![0; 4096]));
    host.restart();
    assert_eq!(host.read(frame(1)), Ok(vec![0; 4096]));
}

#[test]
fn numbers_go_on_without_a_gap_once_the_store_has_said_that_the_log_has_all_numbers() {
    for asks in [false, true] {
        let mut host = killed(memory(), Durability::Store);
        host.start();
        let found = host.volume().figures().last_seq;
        if asks {
            host.confirm().unwrap();
        }
        host.write(frame(1), Some(&data(4, 1))).unwrap();
        assert_eq!(host.volume().figures().last_seq == Seq(found.0 + 1), asks);
    }
}
