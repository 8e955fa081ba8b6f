//! What is printed at the end of an import or a dump.

use serde::Serialize;

use super::copy::Report;
use crate::cli::print::bytes;

/// What was done, for `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    /// The export.
    pub export: String,
    /// The snapshot that was dumped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Path of the export's device.
    pub device: String,
    /// The file.
    pub file: String,
    /// Size of the export.
    pub size_bytes: u64,
    /// What was written and what was not.
    #[serde(flatten)]
    pub report: Report,
    /// Time it took.
    pub seconds: f64,
    /// With --flush: everything up to this write is in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flushed_sequence_number: Option<u64>,
}

impl Summary {
    /// For people: where it is, then what was done.
    pub fn text(&self, head: &str) -> String {
        let report = &self.report;
        let mut parts = vec![
            format!("{} copied", bytes(report.copied_bytes)),
            format!("{} skipped as zero", bytes(report.zero_bytes)),
            format!("{} equal", bytes(report.equal_bytes)),
        ];
        if report.zeroed_bytes > 0 {
            parts.push(format!("{} made zero", bytes(report.zeroed_bytes)));
        }
        let flushed = self
            .flushed_sequence_number
            .map(|number| format!("\neverything up to write {number} is in the store"));
        format!("{head}: {}, in {:.1} s{}", parts.join(", "), self.seconds, flushed.unwrap_or_default())
    }
}
