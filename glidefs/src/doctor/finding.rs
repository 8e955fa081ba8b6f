//! A finding: the result of one check, and all findings of a run.
//!
//! Owns the verdicts and their order. Does not own how findings are printed (`cli`). Invariant: a finding that is not ok says why the
//! matter counts, and the command or the step that mends it.

use serde::Serialize;

/// How serious a finding is, least serious first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Good to know; nothing has to be done.
    Note,
    /// The daemon runs, and something is slower, smaller or less safe than it could be.
    Warning,
    /// The daemon does not start, or data is in danger.
    Failure,
}

impl Verdict {
    /// The word in front of a finding.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failure => "failure",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check, as in the table of docs/operations.md.
    pub check: &'static str,
    /// How serious the finding is.
    pub verdict: Verdict,
    /// The facts, in a line.
    pub found: String,
    /// Why the matter counts; `None` only when all is well.
    pub why: Option<String>,
    /// The command or the step that mends the matter; `None` only when all is well.
    pub mend: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), why: None, mend: None }
    }

    pub fn note(
        check: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            check,
            verdict: Verdict::Note,
            found: found.into(),
            why: Some(why.into()),
            mend: Some(mend.into()),
        }
    }

    /// Something is worse than it could be.
    pub fn warning(
        check: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Warning, ..Self::note(check, found, why, mend) }
    }

    /// The daemon does not start, or data is in danger.
    pub fn failure(
        check: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Failure, ..Self::note(check, found, why, mend) }
    }

    /// The same, no more serious than `most`.
    #[must_use]
    pub fn at_most(mut self, most: Verdict) -> Self {
        self.verdict = self.verdict.min(most);
        self
    }
}

/// All findings of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// A finding for each check, in the order of the checks.
    pub findings: Vec<Finding>,
    pub worst: Verdict,
}

impl Report {
    pub fn new(findings: Vec<Finding>) -> Self {
        let worst = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok);
        Self { findings, worst }
    }

    /// The number of findings with `verdict`.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_verdict_of_a_report_is_the_most_serious_one() {
        let note = Finding::note("a", "found", "why", "mend");
        let worst = |findings: &[&Finding]| Report::new(findings.iter().copied().cloned().collect()).worst;
        let failure = Finding::failure("b", "found", "why", "mend");
        assert_eq!(worst(&[]), Verdict::Ok);
        assert_eq!(worst(&[&Finding::ok("c", "found"), &note]), Verdict::Note);
        assert_eq!(
            worst(&[&note, &failure, &Finding::warning("d", "found", "why", "mend")]),
            Verdict::Failure
        );
        assert_eq!(worst(&[&failure.at_most(Verdict::Note)]), Verdict::Note);
    }

    #[test]
    fn a_report_as_json_has_every_key_also_where_all_is_well() {
        let report = Report::new(vec![Finding::ok("a", "1"), Finding::warning("b", "2", "3", "4")]);
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"findings":[{"check":"a","verdict":"ok","found":"1","why":null,"mend":null},{"check":"b","verdict":"warning","found":"2","why":"3","mend":"4"}],"worst":"warning"}"#
        );
    }
}
