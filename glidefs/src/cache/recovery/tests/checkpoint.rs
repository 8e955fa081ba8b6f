//! A start from a checkpoint finds what a start from the segments finds.

mod layers;
mod lives;
mod missing;
mod spread;

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use self::spread::spread;
use super::*;
use crate::cache::log::format::{Kept, KeptExtent, PageChain, PageKind};
use crate::cache::volume::layers::SeqMarks;
use crate::cache::{Cache, CheckpointPace, Recovered};
use crate::units::Seq;

/// Sectors of an export with content.
const SECTORS: u64 = 3000;

/// One event of a history.
#[derive(Clone, Debug)]
enum Step {
    /// A write at this sector, of so many sectors, to export A or B.
    Write(bool, u64, u64),
    Zero(bool, u64, u64),
    Flush(bool),
    Keep,
    KeepOnce,
    /// A write of so many large ranges in a row, which fills segments.
    Fill(bool, u64),
    /// The daemon ends, in good order or not, and starts again.
    Restart {
        in_order: bool,
    },
    /// The store has some more of A.
    Store,
    /// Export B is deleted, with all data.
    Remove,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (any::<bool>(), 0..SECTORS - 256, 1..256_u64);
    prop_oneof![
        6 => place().prop_map(|(of_a, start, count)| Step::Write(of_a, start, count)),
        3 => place().prop_map(|(of_a, start, count)| Step::Zero(of_a, start, count)),
        2 => any::<bool>().prop_map(Step::Flush),
        2 => Just(Step::Keep),
        2 => Just(Step::KeepOnce),
        4 => (any::<bool>(), 1..12_u64).prop_map(|(of_a, count)| Step::Fill(of_a, count)),
        2 => any::<bool>().prop_map(|in_order| Step::Restart { in_order }),
        1 => Just(Step::Store),
        1 => Just(Step::Remove)
    ]
}

/// The newest content of each sector: the write, and the kind.
type Content = BTreeMap<u64, (u64, &'static str)>;

fn content(cache: &Cache, export: ExportId) -> Content {
    let (mut found, mut from) = (Content::new(), Some(0));
    let volume = cache.volume(export);
    while let Some(start) = from {
        let slice = volume.slice(start, 1 << 11, |_| true);
        for KeptExtent { range, seq, content, .. } in slice.extents {
            let kind = match content {
                Kept::Data(_) => "data",
                Kept::Zero => "zero",
                Kept::Damaged => "damaged",
            };
            for sector in range.start()..range.end() {
                let newest = found.entry(sector).or_insert((seq.0, kind));
                *newest = (seq.0, kind).max(*newest);
            }
        }
        from = slice.next;
    }
    found
}

fn copy(from: &Path, to: &Path, with_checkpoint: bool) {
    std::fs::create_dir_all(to.join("segments")).unwrap();
    for entry in std::fs::read_dir(from.join("segments")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join("segments").join(path.file_name().unwrap())).unwrap();
    }
    std::fs::copy(from.join("cache.meta"), to.join("cache.meta")).unwrap();
    if with_checkpoint && from.join("index.ckpt").exists() {
        std::fs::copy(from.join("index.ckpt"), to.join("index.ckpt")).unwrap();
    }
}

/// A cache directory, and what the catalog says of the exports.
struct History {
    directory: tempfile::TempDir,
    segments: u64,
    exports: Vec<(ExportId, SeqMarks)>,
}

impl History {
    fn open(&self, path: &Path) -> (Cache, Recovered) {
        Faulty::new(path).open_with(self.segments, self.known()).unwrap()
    }

    fn state_of(&self, cache: &Cache) -> State {
        // Pieces of one write may be one extent or several, and a start with a checkpoint may have less content that the store has as
        // well. But a segment is needed or not.
        let table = &cache.shared.table;
        let needs = (0..u32::try_from(self.segments).unwrap()).map(|number| table.get(number));
        State {
            content: self.exports.iter().map(|(export, _)| content(cache, *export)).collect(),
            needs: needs.map(|info| (info.dirty_extents() > 0, info.dirty_sectors())).collect(),
            last: self.exports.iter().map(|(export, _)| cache.volume(*export).figures().last_seq).collect(),
        }
    }

    fn known(&self) -> Known {
        Known { exports: self.exports.clone(), ..Known::local(&[]) }
    }

    /// Opens copies of the directory, with the checkpoint and without, on one thread and on several, and compares the indexes. Returns
    /// the findings of the start with the checkpoint, and the state without.
    fn compare(&self) -> (Recovered, State) {
        let open = |with_checkpoint, hands| {
            let other = tempfile::tempdir().unwrap();
            copy(self.directory.path(), other.path(), with_checkpoint);
            // Several threads have pages enough to share.
            if hands > 1 {
                spread(&other.path().join("index.ckpt"));
            }
            let mut disk = Faulty::new(other.path());
            disk.hands = hands;
            let (cache, found) = disk.open_with(self.segments, self.known()).unwrap();
            (self.state_of(&cache), found)
        };
        let (expected, without) = open(false, 1);
        assert_eq!((without.covered, without.checkpoint_extents), (0, 0));
        let [found, _] = [1, 3].map(|hands| {
            let (state, found) = open(true, hands);
            state.check(&expected, &found);
            assert_eq!(found.checkpoints_refused, 0);
            found
        });
        (found, expected)
    }
}

/// The outcome of a start.
struct State {
    content: Vec<Content>,
    /// Of each segment, whether anything not in the store is there, and how much.
    needs: Vec<(bool, u64)>,
    last: Vec<Seq>,
}

impl State {
    /// Compares the state with the one `expected`, of a start that read all of the log.
    fn check(&self, expected: &Self, found: &Recovered) {
        assert_eq!(self.needs, expected.needs, "{found:?}: other segments are needed");
        assert!(self.content == expected.content, "{found:?}: another content");
        assert!(self.last >= expected.last, "{:?}, but {:?} were given out", self.last, expected.last);
    }
}

/// What happened in [`live`].
#[derive(Clone, Copy, Debug, Default)]
struct Lived {
    /// Segments that checkpoints covered.
    covered: u64,
    /// Starts that were compared.
    starts: u64,
}

/// Lives through `steps`.
fn live(steps: &[Step], pace: CheckpointPace) -> Lived {
    let mut history = History {
        directory: tempfile::tempdir().unwrap(),
        segments: 16,
        exports: [A, B].map(|export| (export, SeqMarks::default())).to_vec(),
    };
    let mut driver = Driver::new(history.open(history.directory.path()).0);
    driver.pace_checkpoints(pace);
    let (mut number, mut lived) = (0_u8, Lived::default());
    for step in steps.iter().chain([&Step::Restart { in_order: true }, &Step::Restart { in_order: false }]) {
        number = number.wrapping_add(1);
        let export = |of_a: bool| {
            let other = history.exports.last().map_or(A, |(export, _)| *export);
            if of_a { A } else { other }
        };
        match *step {
            Step::Write(of_a, start, count) => {
                let volume = driver.cache.volume(export(of_a));
                let data = vec![number; usize::try_from(count * 512).unwrap()];
                driver.write(&volume, range(start, count), Some(&data)).unwrap();
            }
            Step::Zero(of_a, start, count) => {
                let volume = driver.cache.volume(export(of_a));
                driver.write(&volume, range(start, count), None).unwrap();
            }
            Step::Fill(of_a, count) => {
                let volume = driver.cache.volume(export(of_a));
                for piece in 0..count {
                    let start = (u64::from(number) * 37 + piece * 256) % (SECTORS - 256);
                    driver.write(&volume, range(start, 256), Some(&vec![number; 128 << 10])).unwrap();
                }
            }
            Step::Flush(of_a) => driver.flush(&driver.cache.volume(export(of_a))).unwrap(),
            Step::Keep => driver.keep(),
            Step::KeepOnce => driver.keep_once(),
            Step::Store => {
                let last = driver.cache.volume(A).figures().last_seq;
                let marks = &mut history.exports[0].1;
                // The marks of a volume with a store which has all but the last few writes.
                let stored = Seq(last.0.saturating_sub(5)).max(marks.stored);
                *marks = SeqMarks { stored, evicted: marks.stored };
            }
            Step::Remove => {
                if history.exports.len() > 1 {
                    let (export, _) = history.exports.pop().unwrap();
                    driver.cache.remove(export);
                }
            }
            Step::Restart { in_order } => {
                if in_order {
                    driver.rest();
                }
                driver.kill();
                let (found, expected) = history.compare();
                lived.covered += found.covered;
                lived.starts += 1;
                let (cache, found) = history.open(history.directory.path());
                history.state_of(&cache).check(&expected, &found);
                driver = Driver::new(cache);
                driver.pace_checkpoints(pace);
            }
        }
    }
    driver.kill();
    lived
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn indexes_from_a_checkpoint_are_the_indexes_from_the_segments(
        steps in prop::collection::vec(step(), 5..90),
        (segments, slices) in (1..4_usize, 1..4_usize),
        extents in prop::sample::select(vec![2, 20, 2048]),
    ) {
        live(&steps, CheckpointPace { segments, slices, extents });
    }
}

#[test]
fn a_start_after_an_orderly_stop_reads_no_footer() {
    let steps: Vec<Step> = (0..30).map(|_| Step::Fill(true, 9)).collect();
    let lived = live(&steps, CheckpointPace::default());
    assert!(lived.covered > 2 && lived.starts == 2, "{lived:?}");
}

/// A cache with sealed segments and a checkpoint of these.
fn covered_cache(path: &Path) -> Faulty {
    let disk = Faulty::new(path);
    let mut driver = open(&disk);
    (1..=80).for_each(|number| write(&mut driver, number));
    driver.rest();
    driver.kill();
    disk
}

#[test]
fn a_damaged_checkpoint_costs_nothing_but_time() {
    let directory = tempfile::tempdir().unwrap();
    let disk = covered_cache(directory.path());
    let path = directory.path().join("index.ckpt");
    let whole = std::fs::read(&path).unwrap();
    for damage in 0..40 {
        let mut bytes = whole.clone();
        let at = whole.len() * damage / 40;
        if damage % 2 == 0 {
            bytes[at] ^= 4;
        } else {
            bytes.truncate(at);
        }
        std::fs::write(&path, &bytes).unwrap();
        let (cache, found) = disk.open(Known::local(&[A, B])).unwrap();
        assert_eq!((found.covered, found.checkpoints_refused), (0, 1), "damage at {at}");
        let mut driver = Driver::new(cache);
        assert!((1..=80).all(|number| is_there(&mut driver, number)));
        driver.kill();
    }
}

#[test]
fn a_checkpoint_of_another_cache_is_not_used() {
    let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let disks = [&one, &other].map(|directory| covered_cache(directory.path()));
    std::fs::copy(one.path().join("index.ckpt"), other.path().join("index.ckpt")).unwrap();
    let (cache, found) = disks[1].open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.covered, found.checkpoints_refused), (0, 1));
    let mut driver = Driver::new(cache);
    assert!((1..=80).all(|number| is_there(&mut driver, number)));
    driver.kill();
}

#[test]
fn a_loss_in_the_log_is_judged_without_the_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let disk = covered_cache(directory.path());
    let path = directory.path().join("index.ckpt");
    let checkpoint = std::fs::read(&path).unwrap();
    let (_, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert!(found.covered >= 2 && found.checkpoints_refused == 0, "{found:?}");
    std::fs::write(&path, &checkpoint).unwrap();
    let (segment, frame) = structure(&disk, b"GLIDESEG", true);
    disk.lose(segment, frame);
    let (_, found) = disk.open(Known::local(&[A, B])).unwrap();
    assert_eq!((found.covered, found.checkpoints_refused), (0, 1));
}

/// The findings of the next start.
fn next_start(disk: &Faulty) -> Recovered {
    disk.open(Known::local(&[A, B])).unwrap().1
}

#[test]
fn a_segment_with_zeroes_on_their_way_into_an_index_is_not_covered() {
    let covered = [false, true].map(|pins| {
        let directory = tempfile::tempdir().unwrap();
        let disk = Faulty::new(directory.path());
        let mut driver = open(&disk);
        (1..=80).for_each(|number| write(&mut driver, number));
        let (sealed, _) = structure(&disk, b"GLIDEREC", true);
        let info = driver.cache.shared.table.get(sealed);
        if pins {
            info.pin();
        }
        (81..=160).for_each(|number| write(&mut driver, number));
        driver.rest();
        driver.kill();
        next_start(&disk).covered
    });
    assert_eq!(covered[0], covered[1] + 1);
}

/// The cleaner copies what is left of a segment, and the original is still there. Every start must find the copies, or the original
/// comes into use again.
#[test]
fn copies_of_the_cleaner_count_whether_the_originals_are_covered_or_not() {
    let history = History {
        directory: tempfile::tempdir().unwrap(),
        segments: 9,
        exports: vec![(A, SeqMarks::default())],
    };
    let mut driver = Driver::new(history.open(history.directory.path()).0);
    driver.pace_checkpoints(CheckpointPace { segments: 2, slices: 1, extents: 4 });
    let mut covered = 0;
    for number in 0..400_u64 {
        let start = if number % 28 < 3 { number * 64 } else { number % 25 * 64 };
        let volume = driver.cache.volume(A);
        let byte = u8::try_from(number % 251).unwrap();
        driver.write(&volume, range(start, 64), Some(&[byte; 32 << 10])).unwrap();
        driver.flush(&volume).unwrap();
        if number > 150 && number % 5 == 0 {
            covered += history.compare().0.covered;
        }
    }
    let stats = driver.cache.stats();
    assert!(stats.segments_cleaned > 0 && covered > 0, "{covered} covered, {stats:?}");
    driver.kill();
}

#[test]
fn a_checkpoint_is_used_once() {
    let directory = tempfile::tempdir().unwrap();
    let disk = covered_cache(directory.path());
    assert!(next_start(&disk).covered > 0);
    let found = next_start(&disk);
    assert_eq!((found.covered, found.checkpoints_refused), (0, 0));
}

#[test]
fn a_start_that_cannot_take_the_checkpoint_away_fails() {
    let directory = tempfile::tempdir().unwrap();
    let disk = covered_cache(directory.path());
    let path = directory.path().join("index.ckpt");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let error = disk.open(Known::local(&[A, B])).unwrap_err();
    assert!(error.to_string().contains("index.ckpt"), "{error}");
    std::fs::remove_dir(&path).unwrap();
    assert_eq!(next_start(&disk).covered, 0);
}

/// Somebody puts an older copy of the directory over the newer one, and the checkpoint of the newer one stays. Most of the content of
/// the older copy was replaced later, so the checkpoint does not list the content.
#[test]
fn a_checkpoint_is_not_used_for_an_older_copy_of_the_log() {
    const PLACES: u8 = 40;
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let (mut copies, mut content) = (Vec::new(), BTreeMap::new());
    let mut driver = open(&disk);
    for number in 1..=200_u8 {
        let place = number % PLACES;
        if number > PLACES && place.is_multiple_of(10) {
            continue;
        }
        let volume = driver.cache.volume(A);
        let at = range(u64::from(place) * 64, 64);
        driver.write(&volume, at, Some(&[number; 32 << 10])).unwrap();
        driver.flush(&volume).unwrap();
        drop(volume);
        driver.keep();
        content.insert(place, number);
        let copied = || {
            let other = tempfile::tempdir().unwrap();
            copy(directory.path(), other.path(), false);
            other
        };
        if number == PLACES - 1 {
            driver.rest();
            driver.kill();
            copies.push((content.clone(), copied()));
            driver = open(&disk);
        } else if number % 8 == 0 {
            copies.push((content.clone(), copied()));
        }
    }
    driver.rest();
    driver.kill();
    let mut refused = 0;
    for (content, other) in copies {
        std::fs::copy(directory.path().join("index.ckpt"), other.path().join("index.ckpt")).unwrap();
        let disk = Faulty::new(other.path());
        // Where the copy has no segment as new as one that is gone, the newest segments may be lost as well: somebody has to say.
        let opened = disk.open(Known::local(&[A, B])).or_else(|error| {
            assert!(error.to_string().contains("remove index.ckpt"), "{error}");
            refused += 1;
            std::fs::remove_file(other.path().join("index.ckpt")).unwrap();
            disk.open(Known::local(&[A, B]))
        });
        let (cache, found) = opened.unwrap();
        refused += found.checkpoints_refused;
        let mut driver = Driver::new(cache);
        let volume = driver.cache.volume(A);
        for (place, number) in content {
            let data = driver.read(&volume, range(u64::from(place) * 64, 64)).unwrap();
            assert!(data == [number; 32 << 10], "{number} at {place}: {found:?}");
        }
        drop(volume);
        driver.kill();
    }
    // The checkpoint may have been complete before the last copies were made.
    assert!(refused >= 15, "{refused}");
}

#[test]
fn half_a_checkpoint_of_a_killed_daemon_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let half = directory.path().join("index.ckpt.new");
    std::fs::write(&half, [1; 100]).unwrap();
    drop(open(&Faulty::new(directory.path())));
    assert!(!half.exists());
}

#[test]
fn no_checkpoint_is_written_to_a_disk_that_is_nearly_full() {
    for (free_bytes, is_written) in [(SEGMENT_BYTES, false), (3 * SEGMENT_BYTES, true)] {
        let directory = tempfile::tempdir().unwrap();
        let disk = Faulty::new(directory.path());
        *disk.faults.free_bytes.lock().unwrap() = Some(free_bytes);
        let mut driver = open(&disk);
        (1..=80).for_each(|number| write(&mut driver, number));
        driver.rest();
        driver.kill();
        assert_eq!(directory.path().join("index.ckpt").exists(), is_written, "{free_bytes} bytes are free");
    }
}

/// Each start finds an unreadable file without data again, and a checkpoint is used all the same.
#[test]
fn a_file_without_data_that_cannot_be_read_costs_no_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let disk = covered_cache(directory.path());
    let blank = 15;
    disk.restore(blank, &vec![vec![0; FRAME_BYTES]; usize::try_from(LAST + 1).unwrap()]);
    disk.faults.stay.store(true, Ordering::SeqCst);
    disk.lose(blank, 0);
    let found = next_start(&disk);
    assert!(found.unreadable > 0 && found.covered > 0, "{found:?}");
}
