//! Whether an export with large requests has neighbours with small ones at the moment.
//!
//! Owns the memory of who sent small requests last. Invariant: an export that is alone on the worker, or only beside exports with large
//! requests, never finds company, so nothing is done for neighbours where nobody gains.

use std::time::{Duration, Instant};

use crate::units::ExportId;

/// How long a small request counts: longer than the pauses of a program that feels each wait. Tests do not depend on how long their
/// machine stands still.
const MEMORY: Duration = if cfg!(test) { Duration::from_hours(1) } else { Duration::from_millis(100) };

/// The two exports which sent small requests last, each with the time of the last one.
#[derive(Debug, Default)]
pub struct Company {
    last: Option<(ExportId, Instant)>,
    before: Option<(ExportId, Instant)>,
}

impl Company {
    /// Notes a small request of `export`, which came in the turn that began at `now`.
    #[inline]
    pub fn note(&mut self, export: ExportId, now: Instant) {
        if self.last.is_some_and(|(last, _)| last != export) {
            self.before = self.last;
        }
        self.last = Some((export, now));
    }

    /// Whether an export other than `export` sent a small request a short time before `now`.
    pub fn is_here(&self, export: ExportId, now: Instant) -> bool {
        let sent = [self.last, self.before];
        sent.into_iter().flatten().any(|(other, at)| other != export && now.duration_since(at) < MEMORY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ExportId = ExportId(1);
    const B: ExportId = ExportId(2);

    #[test]
    fn company_is_another_export_with_a_small_request_a_short_time_ago() {
        let mut company = Company::default();
        let now = Instant::now();
        assert!(!company.is_here(A, now));
        company.note(A, now);
        assert!(!company.is_here(A, now) && company.is_here(B, now));
        company.note(B, now);
        company.note(A, now + MEMORY / 2);
        company.note(A, now + MEMORY / 2);
        assert!(company.is_here(A, now + MEMORY / 2), "B was here before A");
        assert!(!company.is_here(A, now + MEMORY));
        assert!(company.is_here(B, now + MEMORY));
    }
}
