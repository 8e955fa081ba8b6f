//! `glidefs doctor` and `glidefs store test`: the findings as lines, or as JSON.
//!
//! Does not own the checks (`doctor`).

use std::fmt::Write;

use crate::cli::block_on;
use crate::cli::error::CliError;
use crate::cli::print::answer;
use crate::doctor::{Report, Verdict};

/// Prints the report of a question about this host.
pub(in crate::cli) fn run(question: impl Future<Output = Report>, json: bool) -> Result<(), CliError> {
    let report = block_on(question)?;
    answer(json, &report, lines)?;
    outcome(&report)
}

/// The error that leads to the exit status of `report`.
fn outcome(report: &Report) -> Result<(), CliError> {
    if report.worst <= Verdict::Note {
        return Ok(());
    }
    let [failures, warnings] = [Verdict::Failure, Verdict::Warning].map(|verdict| report.count(verdict));
    Err(CliError::Found { failures, warnings })
}

/// A line for each finding, and two more for each one that is not ok.
fn lines(report: &Report) -> String {
    let width = report.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in &report.findings {
        let word = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Warning => "warning",
            Verdict::Failure => "failure",
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{word:<7}  {:<width$}  {}", finding.check, one_line(&finding.found));
        for (name, content) in [("why", &finding.why), ("mend", &finding.mend)] {
            if let Some(content) = content {
                let _ = writeln!(text, "    {name:<4}: {}", one_line(content));
            }
        }
    }
    text.trim_end().to_owned()
}

/// `text` without line breaks, which an error of a library may have.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Finding, examine};

    fn finding(check: &'static str, verdict: Verdict, found: &str) -> Finding {
        let advice = |text: &str| (verdict != Verdict::Ok).then(|| text.to_owned());
        Finding {
            check,
            verdict,
            found: found.into(),
            why: advice("a probe\nwaits"),
            mend: advice("install them"),
        }
    }

    #[test]
    fn a_finding_is_a_line_and_one_that_is_not_ok_has_two_more() {
        let report = Report::new(vec![
            finding("kernel", Verdict::Ok, "Linux 7.3.4"),
            finding("udev rules", Verdict::Warning, "missing"),
        ]);
        let expected = "ok       kernel      Linux 7.3.4\n\
                        warning  udev rules  missing\n    why : a probe waits\n    mend: install them";
        assert_eq!(lines(&report), expected);
    }

    #[tokio::test]
    async fn every_check_of_this_host_is_in_the_table_of_the_document_and_has_one_finding() {
        const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md"));
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("cache")).unwrap();
        std::fs::create_dir(at("store")).unwrap();
        let (cache, store, socket) = (at("cache"), at("store"), at("socket"));
        let text = format!(
            "[cache]\ndir = \"{}\"\n[store]\nurl = \"file://{}\"\n[api]\nsocket = \"{}\"\n",
            cache.display(),
            store.display(),
            socket.display()
        );
        std::fs::write(at("glidefs.toml"), text).unwrap();
        let report = examine(&at("glidefs.toml")).await;
        println!("{}", lines(&report));
        let mut checks: Vec<&str> = report.findings.iter().map(|finding| finding.check).collect();
        for check in &checks {
            assert!(DOCUMENT.contains(&format!("`{check}`")), "{check} is not in docs/operations.md");
        }
        let count = checks.len();
        checks.sort_unstable();
        checks.dedup();
        assert!(count == checks.len() && count > 25, "{checks:?}");
        assert_eq!(std::fs::read_dir(at("cache")).unwrap().count(), 0, "it left something");
        assert_eq!(std::fs::read_dir(at("store")).unwrap().count(), 0, "it left something");
    }

    #[test]
    fn notes_are_no_error_and_failures_weigh_more_than_warnings() {
        let outcome = |verdicts: &[Verdict]| {
            let findings = verdicts.iter().map(|verdict| finding("a", *verdict, "found"));
            outcome(&Report::new(findings.collect()))
        };
        assert!(outcome(&[Verdict::Note, Verdict::Ok]).is_ok());
        assert!(matches!(
            outcome(&[Verdict::Note, Verdict::Warning]),
            Err(CliError::Found { failures: 0, warnings: 1 })
        ));
        assert!(matches!(
            outcome(&[Verdict::Failure, Verdict::Warning]),
            Err(CliError::Found { failures: 1, warnings: 1 })
        ));
    }
}
