//! Runs of every engine on files: blocks, failures, and permission to write.

use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use super::support::{ENGINES, MODES, SIZE, case, settings};
use crate::error::BenchError;
use crate::plan::{BLOCK_BYTES, Case, Mode, Settings};
use crate::run::{measure, run};
use crate::test_file::{TestFile, is_stamped};

fn content(file: &TestFile) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(SIZE).unwrap()];
    let plain =
        std::fs::File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file.file())))
            .unwrap();
    plain.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn every_engine_does_every_mode(direct: bool) {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let settings = Settings { direct, ..settings(dir.path()) };
    for name in ENGINES {
        for mode in MODES {
            let case = case(name, mode);
            let file = TestFile::prepare(&settings, &[case], |_, _| ()).unwrap();
            assert!(is_stamped(&content(&file), 0));
            if mode.writes() {
                // Nothing but the run can have put stamps there.
                let plain =
                    TestFile::prepare(&super::support::settings(dir.path()), &[case], |_, _| ()).unwrap();
                plain
                    .file()
                    .write_all_at(&content(&plain).iter().map(|_| 0).collect::<Vec<u8>>(), 0)
                    .unwrap();
                check_run(case, &plain, &Settings { direct: false, ..settings.clone() });
                let blocks: Vec<_> = content(&plain).chunks(BLOCK_BYTES).map(<[u8]>::to_vec).collect();
                let stamped = |at: usize| is_stamped(&blocks[at], (at * BLOCK_BYTES) as u64);
                assert!((0..blocks.len()).any(stamped), "{case}: nothing was written");
                let neither =
                    (0..blocks.len()).find(|&at| !stamped(at) && blocks[at].iter().any(|&byte| byte != 0));
                assert_eq!(neither, None, "{case}: a block holds what belongs elsewhere");
            }
            check_run(case, &file, &settings);
            assert!(is_stamped(&content(&file), 0), "{case}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "test files have no names");
}

fn check_run(case: Case, file: &TestFile, settings: &Settings) {
    let measure = |settings: &Settings| {
        run(case, file, settings).unwrap_or_else(|error| panic!("{case}: {}", crate::error::chain(&error)))
    };
    let mut run = measure(settings);
    for seconds in [1, 10] {
        // On a busy machine one operation may take longer than a short run lasts.
        if run.operations == 0 {
            run = measure(&Settings { duration: Duration::from_secs(seconds), ..settings.clone() });
        }
    }
    assert!(run.operations > 0, "{case}");
    assert_eq!(run.bytes, run.operations * case.load.block_bytes as u64, "{case}");
    let latency = run.latency_nanos;
    let rising = [latency.p50, latency.p95, latency.p99, latency.p999, latency.max];
    assert!(
        rising.is_sorted() && latency.p50 > 0 && latency.avg <= latency.max as f64,
        "{case}: {latency:?}"
    );
}

#[test]
fn every_engine_does_every_mode_through_the_page_cache() {
    every_engine_does_every_mode(false);
}

#[test]
fn every_engine_does_every_mode_past_the_page_cache() {
    every_engine_does_every_mode(true);
}

#[test]
fn a_block_that_holds_something_else_fails_the_run() {
    let dir = tempfile::tempdir().unwrap();
    // The failure ends the run.
    let settings = Settings { duration: Duration::from_hours(1), ..settings(dir.path()) };
    for name in ENGINES {
        let case = case(name, Mode::Read);
        let file = TestFile::prepare(&settings, &[case], |_, _| ()).unwrap();
        file.file().write_all_at(&[0; BLOCK_BYTES], BLOCK_BYTES as u64).unwrap();
        let error = run(case, &file, &settings).unwrap_err();
        assert!(matches!(error, BenchError::Corrupt { offset: 0 | 4096, .. }), "{name}: {error}");
    }
}

#[test]
fn a_failing_operation_ends_all_jobs_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { duration: Duration::from_hours(1), ..settings(dir.path()) };
    for name in ["pread", "ring"] {
        let case = case(name, Mode::Read);
        let file = TestFile::prepare(&settings, &[case], |_, _| ()).unwrap();
        file.file().set_len(SIZE / 2).unwrap();
        let error = run(case, &file, &settings).unwrap_err();
        assert!(matches!(error, BenchError::Short { .. }), "{name}: {error}");
    }
}

#[test]
fn polling_for_completions_works_or_says_that_it_cannot() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let case = case("ring+iopoll", Mode::Randread);
    let direct = Settings { direct: true, ..settings(dir.path()) };
    match measure(&[case], &direct, &|_, _, _| ()) {
        Ok(groups) => assert!(groups[0].runs[0].operations > 0),
        Err(error) => assert!(error.to_string().contains("leave out +iopoll"), "{error}"),
    }
    let refused = measure(&[case], &settings(dir.path()), &|_, _, _| ()).unwrap_err();
    assert!(refused.to_string().contains("--direct"), "{refused}");
}

fn named(path: PathBuf) -> Settings {
    Settings { file: Some(path.clone()), ..settings(path.parent().unwrap()) }
}

#[test]
fn a_file_that_was_there_is_written_only_with_leave() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    let precious = vec![7; usize::try_from(SIZE).unwrap()];
    std::fs::write(&path, &precious).unwrap();
    let settings = Settings { verify: false, ..named(path.clone()) };
    let measure = |mode, settings: &Settings| measure(&[case("pread", mode)], settings, &|_, _, _| ());
    let error = measure(Mode::Randwrite, &settings).unwrap_err();
    assert!(
        matches!(&error, BenchError::Exists { .. }) && error.to_string().contains("--overwrite"),
        "{error}"
    );
    assert!(measure(Mode::Randread, &settings).unwrap()[0].runs[0].operations > 0);
    let longer = Settings { size_bytes: 2 * SIZE, ..settings.clone() };
    assert!(matches!(measure(Mode::Read, &longer), Err(BenchError::TooShort { bytes: SIZE, .. })));
    assert_eq!(std::fs::read(&path).unwrap(), precious);

    measure(Mode::Randwrite, &Settings { overwrite: true, ..settings.clone() }).unwrap();
    assert!(is_stamped(&std::fs::read(&path).unwrap(), 0));
    // The run filled the file with stamps, so verifying works now.
    measure(Mode::Randread, &Settings { verify: true, ..settings }).unwrap();
}

#[test]
fn a_file_that_was_named_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new");
    let steps = RefCell::new(Vec::new());
    let note = |what: &str, done, total| steps.borrow_mut().push((what.to_owned(), done, total));
    measure(&[case("ring", Mode::Randwrite)], &named(path.clone()), &note).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE);
    let steps = steps.into_inner();
    assert_eq!(steps[0], ("filling the test file, MiB".into(), SIZE >> 20, SIZE >> 20));
    assert_eq!((steps[1].1, steps[1].2), (1, 1));
}

#[test]
fn a_file_system_without_direct_io_is_named_with_what_to_do() {
    // Every machine has a sysfs, and sysfs has no direct I/O.
    let settings = Settings { direct: true, size_bytes: 0, ..named("/sys/kernel/uevent_seqnum".into()) };
    let error = TestFile::prepare(&settings, &[case("pread", Mode::Read)], |_, _| ()).unwrap_err();
    assert!(error.to_string().contains("use --buffered"), "{error}");
}
