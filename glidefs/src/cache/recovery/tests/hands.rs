//! A start on several threads finds and writes the same as a start on one.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::cache::log::format::KeptExtent;
use crate::cache::log::life::State;
use crate::cache::{CacheError, Recovered};

const SEGMENTS: u64 = 16;

/// One event of a history.
#[derive(Clone, Debug)]
enum Step {
    /// So many writes in a row, from this sector on, to export A or B.
    Fill(bool, u64, u64),
    Flush(bool),
    Keep,
    Restart,
}

/// A fault of one frame, found by the next start.
#[derive(Clone, Debug)]
struct Damage {
    kind: Kind,
    /// Only frames with a structure of the log are damaged, and not frames with data.
    of_structure: bool,
    at: Index,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Lose,
    Rot,
    WrongCopy,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any::<bool>(), 0..2000_u64, 1..14_u64).prop_map(|(of_a, start, count)| Step::Fill(of_a, start, count)),
        2 => any::<bool>().prop_map(Step::Flush),
        3 => Just(Step::Keep),
        1 => Just(Step::Restart)
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    let kind = prop::sample::select(vec![Kind::Lose, Kind::Rot, Kind::WrongCopy]);
    (kind, prop::bool::weighted(0.8), any::<Index>()).prop_map(|(kind, of_structure, at)| Damage {
        kind,
        of_structure,
        at,
    })
}

/// Lives through `steps` in `path`, and is killed.
fn live(path: &Path, steps: &[Step]) {
    let disk = Faulty::new(path);
    let mut driver = open(&disk);
    for (number, step) in (0_u8..).zip(steps) {
        let volume = |driver: &Driver, of_a| driver.cache.volume(if of_a { A } else { B });
        match *step {
            Step::Fill(of_a, start, count) => {
                let volume = volume(&driver, of_a);
                for piece in 0..count {
                    let at = range(start + piece * 128, 128);
                    driver.write(&volume, at, Some(&[number; 64 << 10])).unwrap();
                }
            }
            Step::Flush(of_a) => driver.flush(&volume(&driver, of_a)).unwrap(),
            Step::Keep => driver.keep(),
            Step::Restart => {
                driver.kill();
                driver = open(&disk);
            }
        }
    }
    driver.kill();
}

/// What a start finds and leaves behind.
#[derive(Debug, PartialEq)]
struct Outcome {
    opened: Result<Opened, String>,
    /// The files of the directory after the start; empty where two exports are in doubt, as the entries of doubt have no order.
    files: Vec<(String, Vec<u8>)>,
    slept: Duration,
}

#[derive(Debug, PartialEq)]
struct Opened {
    found: Recovered,
    content: Vec<Vec<KeptExtent>>,
    /// State, id, extents, appended and stable frames, poisoned and retired, of each segment.
    table: Vec<(State, u64, u32, u32, u32, bool, bool)>,
}

/// Starts on a copy of `path` with the faults that `damages` says.
fn start(path: &Path, damages: &[Damage], away: Duration, hands: usize) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    copy_tree(path, directory.path());
    let mut disk = Faulty::new(directory.path());
    disk.hands = hands;
    let numbers = 0..u32::try_from(SEGMENTS).unwrap();
    let frames_of = |number| (0..).zip(disk.frames(number)).map(move |(at, frame)| ((number, at), frame));
    let frames: Vec<((u32, u64), Vec<u8>)> = numbers.clone().flat_map(frames_of).collect();
    for Damage { kind, of_structure, at } in damages {
        let is_in = |frame: &[u8]| !*of_structure || frame.starts_with(b"GLIDE");
        let places: Vec<_> = frames.iter().filter(|(_, frame)| is_in(frame)).collect();
        if places.is_empty() {
            continue;
        }
        let place = places[at.index(places.len())].0;
        match kind {
            Kind::Lose => disk.lose(place.0, place.1),
            Kind::Rot => disk.rot(place),
            Kind::WrongCopy => _ = disk.faults.wrong_copies.lock().unwrap().insert(place),
        }
    }
    *disk.faults.away.lock().unwrap() = away;
    let opened = disk.open_with(SEGMENTS, Known::local(&[A, B]));
    let is_doubted = opened.as_ref().is_ok_and(|(_, found)| found.doubted > 1);
    let opened =
        opened.map_err(|error| error.to_string().replace(&disk.location(), "")).map(|(cache, found)| {
            let info = |number| {
                let info = cache.shared.table.get(number);
                let frames = (info.appended(), info.synced());
                let is_bad = (info.is_poisoned(), info.is_retired());
                (info.state(), info.segment_id(), info.extents(), frames.0, frames.1, is_bad.0, is_bad.1)
            };
            Opened {
                found: Recovered { seconds: 0.0, ..found },
                content: [A, B].map(|export| cache.volume(export).content()).to_vec(),
                table: numbers.map(info).collect(),
            }
        });
    let slept = disk.faults.slept();
    let files = if is_doubted { Vec::new() } else { files(directory.path()) };
    Outcome { opened, files, slept }
}

fn copy_tree(from: &Path, to: &Path) {
    for (name, bytes) in files(from) {
        let path = to.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

/// The files of a cache directory, by name.
fn files(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for folder in ["", "segments"] {
        for entry in std::fs::read_dir(path.join(folder)).unwrap() {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
            if path.is_file() {
                let name = Path::new(folder).join(name).to_string_lossy().into_owned();
                found.push((name, std::fs::read(path).unwrap()));
            }
        }
    }
    found.sort_unstable();
    found
}

/// Compares starts with one thread and with several; returns the findings.
fn compare(path: &Path, damages: &[Damage], away: Duration) -> Result<Recovered, String> {
    let expected = start(path, damages, away, 1);
    for hands in [2, 4, 8] {
        let outcome = start(path, damages, away, hands);
        assert_eq!(outcome.opened, expected.opened, "{hands} hands");
        assert_eq!(outcome.slept, expected.slept, "{hands} hands");
        let names = |outcome: &Outcome| outcome.files.iter().map(|file| file.0.clone()).collect::<Vec<_>>();
        assert_eq!(names(&outcome), names(&expected));
        for (file, expected) in outcome.files.iter().zip(&expected.files) {
            assert!(file == expected, "{hands} hands left {} otherwise", file.0);
        }
    }
    expected.opened.map(|opened| opened.found)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn a_start_finds_and_writes_the_same_on_any_number_of_threads(
        steps in prop::collection::vec(step(), 5..60),
        damages in prop::collection::vec(damage(), 0..6),
        away_ms in prop::sample::select(vec![0_u64, 0, 0, 90, 1500]),
    ) {
        let directory = tempfile::tempdir().unwrap();
        live(directory.path(), &steps);
        let _ = compare(directory.path(), &damages, Duration::from_millis(away_ms));
    }
}

#[test]
fn a_disk_that_comes_back_is_waited_for_by_all_threads_together() {
    let directory = tempfile::tempdir().unwrap();
    killed(directory.path());
    for away in [10, 1990, 2000] {
        let found = compare(directory.path(), &[], Duration::from_millis(away)).unwrap();
        assert_eq!((found.unreadable, found.holes, found.doubted), (0, 0, 0), "{away} ms: {found:?}");
    }
}

#[test]
fn of_several_files_that_refuse_a_start_the_first_is_named_whoever_read_it() {
    let directory = tempfile::tempdir().unwrap();
    let disk = killed(directory.path());
    // Files with data that are too short.
    for number in [1, 2, 3] {
        let frames: Vec<_> = disk.frames(number).take(3).collect();
        disk.restore(number, &frames);
    }
    for hands in [1, 2, 8] {
        let mut disk = Faulty::new(directory.path());
        disk.hands = hands;
        match disk.open(Known::local(&[A, B])).map(|(_, found)| found) {
            Err(CacheError::Damaged { file, .. }) => {
                assert!(file.ends_with("00000001.seg"), "{hands}: {file}");
            }
            other => panic!("{hands}: {other:?}"),
        }
    }
}
