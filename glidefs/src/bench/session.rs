//! A whole measurement: the test file is prepared once, then every run is made in order.
//!
//! Owns the order of runs and the reports of progress. Each round visits all cases, so that a slow change of the machine meets
//! every case.

use super::compare::{Compared, Pair};
use super::error::BenchError;
use super::figures::CaseRuns;
use super::plan::{Case, Settings};
use super::run::run;
use super::test_file::TestFile;

#[derive(Clone, Copy, Debug)]
pub enum SessionEvent {
    /// The test file is being filled.
    Filling {
        done: u64,
        total: u64,
    },
    Running {
        case: Case,
        number: usize,
        of: usize,
    },
}

pub type Progress<'a> = &'a mut dyn FnMut(SessionEvent);

pub fn measure(
    cases: &[Case],
    settings: &Settings,
    progress: Progress<'_>,
) -> Result<Vec<CaseRuns>, BenchError> {
    settings.check(cases)?;
    let file =
        TestFile::prepare(settings, cases, |done, total| progress(SessionEvent::Filling { done, total }))?;
    let mut groups: Vec<CaseRuns> = cases.iter().map(|&case| CaseRuns { case, runs: Vec::new() }).collect();
    let of = cases.len() * settings.repeat;
    let mut number = 0;
    for _ in 0..settings.repeat {
        for group in &mut groups {
            number += 1;
            progress(SessionEvent::Running { case: group.case, number, of });
            group.runs.push(run(group.case, &file, settings)?);
        }
    }
    Ok(groups)
}

/// Compares the sides of `pairs`. With `lenient`, an operation that this machine cannot do is noted instead of failing the
/// comparison.
pub fn compare(
    pairs: &[Pair],
    settings: &Settings,
    lenient: bool,
    progress: Progress<'_>,
) -> Result<Vec<Compared>, BenchError> {
    let cases: Vec<Case> = pairs.iter().flat_map(|pair| [pair.before, pair.after]).collect();
    settings.check(&cases)?;
    let file =
        TestFile::prepare(settings, &cases, |done, total| progress(SessionEvent::Filling { done, total }))?;
    let of = cases.len() * settings.repeat;
    let mut number = 0;
    pairs
        .iter()
        .enumerate()
        .map(|(index, &pair)| {
            number = index * 2 * settings.repeat;
            Compared::run(pair, settings.repeat, lenient, |case| {
                number += 1;
                progress(SessionEvent::Running { case, number, of });
                run(case, &file, settings)
            })
        })
        .collect()
}
