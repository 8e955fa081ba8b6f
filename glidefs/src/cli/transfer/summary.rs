//! The summary at the end of an import or a dump.

use serde::Serialize;

use super::copy::Report;
use crate::cli::print::bytes;

/// The summary for `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub export: String,
    /// The name of the dumped snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Path of the export's device.
    pub device: String,
    pub file: String,
    pub size_bytes: u64,
    /// Bytes written and bytes left out.
    #[serde(flatten)]
    pub report: Report,
    pub seconds: f64,
    /// With --flush: the store has everything up to this write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flushed_sequence_number: Option<u64>,
}

impl Summary {
    /// The summary for people, after `head`.
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
