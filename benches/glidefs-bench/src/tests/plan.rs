//! Engines, cases and settings; the offsets and stamps of a test file.

use std::path::Path;
use std::time::Duration;

use clap::{CommandFactory, Parser, ValueEnum};

use super::support::{ENGINES, MODES, SIZE, case, engine, load, settings};
use crate::args::BenchArgs;
use crate::plan::{BLOCK_BYTES, BenchEngine, Case, Mode, Settings, Workload, cases};
use crate::test_file::{Offsets, is_stamped, stamp};

#[test]
fn settings_that_measure_nothing_are_refused() {
    let good = settings(Path::new("."));
    let of = |load: Workload| [Case { engine: engine("ring"), load }];
    let load = load(Mode::Read);
    assert!(good.check(&of(load)).is_ok());
    for bad in [
        Workload { block_bytes: 512, ..load },
        Workload { block_bytes: 0, ..load },
        Workload { block_bytes: 1 << 18, ..load },
        Workload { numjobs: 0, ..load },
        Workload { iodepth: 0, ..load },
        Workload { iodepth: 5000, ..load },
        Workload { numjobs: 129, ..load },
    ] {
        assert!(good.check(&of(bad)).is_err(), "{bad:?}");
    }
    assert!(Settings { repeat: 0, ..good.clone() }.check(&of(load)).is_err());
    assert!(Settings { duration: Duration::ZERO, ..good }.check(&of(load)).is_err());
}

#[test]
fn engines_are_written_as_they_are_read() {
    for name in ENGINES.into_iter().chain(["ring-fixed+sqpoll+iopoll+shared", "threads:128"]) {
        assert_eq!(engine(name).to_string(), name);
    }
    for name in [
        "",
        "rings",
        "threads",
        "threads:0",
        "threads:x",
        "threads:5000",
        "ring+",
        "ring+fast",
        "pread+sqpoll",
    ] {
        let error = name.parse::<BenchEngine>().unwrap_err();
        assert!(error.contains("threads:N"), "{name}: {error}");
    }
    for mode in MODES {
        assert_eq!(Mode::from_str(&mode.to_string(), false), Ok(mode));
    }
}

#[test]
fn cases_differ_in_what_their_engine_has() {
    let engines = [engine("pread"), engine("threads:8"), engine("ring")];
    let cases = cases(&engines, &[Mode::Read], &[4096], &[1, 2], &[1, 16]);
    let shapes = |name: &str| -> Vec<(usize, usize)> {
        let own = cases.iter().filter(|case| case.engine == engine(name));
        own.map(|case| (case.load.numjobs, case.load.iodepth)).collect()
    };
    assert_eq!(shapes("pread"), [(1, 1), (2, 1)]);
    assert_eq!(shapes("threads:8"), [(8, 1)]);
    assert_eq!(shapes("ring"), [(1, 1), (1, 16), (2, 1), (2, 16)]);
}

#[test]
fn sequential_jobs_share_the_file_and_random_ones_reach_all_of_it() {
    let blocks = SIZE / 8192;
    let mut seen = vec![0; usize::try_from(blocks).unwrap()];
    for job in 0..2 {
        let mut offsets = Offsets::new(&case("ring", Mode::Read), job, SIZE);
        for _ in 0..blocks / 2 {
            seen[usize::try_from(offsets.next_offset() / 8192).unwrap()] += 1;
        }
    }
    assert!(seen.iter().all(|&times| times == 1));
    let mut offsets = Offsets::new(&case("ring", Mode::Randread), 0, SIZE);
    for _ in 0..blocks * 40 {
        let offset = offsets.next_offset();
        assert!(offset.is_multiple_of(8192) && offset + 8192 <= SIZE);
        seen[usize::try_from(offset / 8192).unwrap()] += 1;
    }
    assert!(seen.iter().all(|&times| times > 1));
}

#[test]
fn a_stamp_belongs_to_one_block() {
    let mut bytes = vec![0; 4 * BLOCK_BYTES];
    assert!(!is_stamped(&bytes, 0));
    stamp(&mut bytes, 8192);
    assert!(is_stamped(&bytes, 8192) && !is_stamped(&bytes, 0) && !is_stamped(&bytes, 4096));
    bytes[3 * BLOCK_BYTES] ^= 1;
    assert!(!is_stamped(&bytes, 8192) && is_stamped(&bytes[..3 * BLOCK_BYTES], 8192));
}

#[test]
fn what_is_typed_is_taken_or_refused_with_what_to_type() {
    BenchArgs::command().debug_assert();
    let parse = |line: &str| BenchArgs::try_parse_from(line.split(' '));
    for line in [
        "glidefs-bench file",
        "glidefs-bench file --engine pread,ring-fixed+sqpoll,threads:128 --mode read,randwrite --bs 4KiB,128KiB",
        "glidefs-bench file --numjobs 1,16 --iodepth 1,16 --direct",
        "glidefs-bench file --compare ring ring-fixed --repeat 6 --duration 1s --warmup 100ms",
        "glidefs-bench file --table fixed-buffers --json --dir /tmp",
        "glidefs-bench file --file /tmp/x --overwrite --size 1GiB --verify --plot x.svg",
    ] {
        assert!(parse(line).is_ok(), "{line}");
    }
    for (line, said) in [
        ("glidefs-bench file --engine rings", "threads:N"),
        ("glidefs-bench file --mode rw", "randwrite"),
        ("glidefs-bench file --bs 4K", "KiB"),
        ("glidefs-bench file --duration 10", "for example"),
        ("glidefs-bench file --table nothing", "fixed-vs-vectored"),
        ("glidefs-bench file --compare ring", "2 values"),
        ("glidefs-bench file --overwrite", "--file"),
        ("glidefs-bench file --direct --buffered", "cannot be used with"),
        ("glidefs-bench file --table polled --engine ring", "cannot be used with"),
    ] {
        let error = parse(line).unwrap_err().to_string();
        assert!(error.contains(said), "{line}: {error}");
    }
}
