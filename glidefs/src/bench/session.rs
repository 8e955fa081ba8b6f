//! A whole measurement: the test file is prepared once, then every run is made in its order.
//!
//! Owns that order and the telling of progress. Rounds go over all cases in turn, so that what changes slowly on the machine
//! meets every case.

use super::compare::{Compared, Pair};
use super::error::BenchError;
use super::figures::Group;
use super::plan::{Case, Settings};
use super::run::run;
use super::target::TestFile;

/// What is going on.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The test file is being filled.
    Filling {
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// A run begins.
    Running {
        /// What is run.
        case: Case,
        /// Which run, from 1.
        number: usize,
        /// How many there are.
        of: usize,
    },
}

/// Told of each step.
pub type Progress<'a> = &'a mut dyn FnMut(Step);

/// Measures `cases`.
pub fn measure(
    cases: &[Case],
    settings: &Settings,
    progress: Progress<'_>,
) -> Result<Vec<Group>, BenchError> {
    settings.check(cases)?;
    let file = TestFile::prepare(settings, cases, |done, total| progress(Step::Filling { done, total }))?;
    let mut groups: Vec<Group> = cases.iter().map(|&case| Group { case, runs: Vec::new() }).collect();
    let of = cases.len() * settings.repeat;
    let mut number = 0;
    for _ in 0..settings.repeat {
        for group in &mut groups {
            number += 1;
            progress(Step::Running { case: group.case, number, of });
            group.runs.push(run(group.case, &file, settings)?);
        }
    }
    Ok(groups)
}

/// Compares the sides of `pairs`. With `lenient`, what this machine cannot do is noted instead of ending everything.
pub fn compare(
    pairs: &[Pair],
    settings: &Settings,
    lenient: bool,
    progress: Progress<'_>,
) -> Result<Vec<Compared>, BenchError> {
    let cases: Vec<Case> = pairs.iter().flat_map(|pair| [pair.before, pair.after]).collect();
    settings.check(&cases)?;
    let file = TestFile::prepare(settings, &cases, |done, total| progress(Step::Filling { done, total }))?;
    let of = cases.len() * settings.repeat;
    let mut number = 0;
    pairs
        .iter()
        .enumerate()
        .map(|(index, &pair)| {
            number = index * 2 * settings.repeat;
            Compared::run(pair, settings.repeat, lenient, |case| {
                number += 1;
                progress(Step::Running { case, number, of });
                run(case, &file, settings)
            })
        })
        .collect()
}
