//! The shipped alerts whose condition can be judged from one moment, for those who look at a daemon without Prometheus.
//!
//! Owns the conditions. Does not own the alerts: `docs/glidefs.rules.yml` does, and a test compares both. Invariant: every shipped
//! alert is either judged here, with the bound and the severity of its rule, or named as not judged, or both where a part is judged.

#![allow(clippy::cast_precision_loss, reason = "figures for people, not for arithmetic that must be exact")]

use crate::api::wire::Alert;

/// Most exports named in an alert.
const NAMED_MAX: usize = 10;

/// A condition of a shipped alert: a figure is above a bound.
#[derive(Clone, Copy, Debug)]
struct Rule {
    alert: &'static str,
    severity: &'static str,
    above: f64,
    /// What the figure says, and where to look next.
    message: &'static str,
}

/// Whatever the judged alerts ask of exports and host, at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct AlertFigures {
    pub failed: Culprits,
    pub lost: Culprits,
    pub damaged: Culprits,
    pub crowded: Culprits,
    pub many_packs: Culprits,
    pub old: Culprits,
    /// Bytes at risk over the size of the cache.
    pub risk_share: f64,
    /// Damaged, lost and doubted data of the cache: frames and exports.
    pub damaged_frames: u64,
    /// Segments that the disk failed.
    pub bad_segments: u64,
    pub is_catalog_failing: bool,
    pub is_store_away: bool,
    pub oldest_read_seconds: f64,
    /// Data of the cache that is not in the store, over the size of the cache.
    pub dirty_share: f64,
    /// Writes that wait for room in the cache.
    pub waiting_writes: u64,
    pub collection_overdue_seconds: f64,
}

/// The exports with a figure above a bound.
#[derive(Clone, Debug, Default)]
pub(super) struct Culprits {
    names: Vec<String>,
    count: u64,
}

impl Culprits {
    /// Notes the figure of an export, if the figure is above the bound of `rule`.
    fn note(&mut self, rule: &Rule, name: &str, figure: f64) {
        if figure <= rule.above {
            return;
        }
        self.count += 1;
        if self.names.len() < NAMED_MAX {
            self.names.push(name.to_owned());
        }
    }
}

const FAILED: Rule = Rule {
    alert: "GlidefsExportFailed",
    severity: "critical",
    above: 0.0,
    message: "exports are in state failed: `glidefs export show NAME` gives the reason",
};
const LOST: Rule = Rule {
    alert: "GlidefsExportLost",
    severity: "critical",
    above: 0.0,
    message: "exports stopped because their volume is not this host's any more: `glidefs export show NAME`",
};
const DAMAGED: Rule = Rule {
    alert: "GlidefsDamagedExport",
    severity: "critical",
    above: 0.0,
    message: "bytes were lost, and reads of them fail until they are written again or discarded: see *a damaged segment* in docs/operations.md",
};
const CROWDED: Rule = Rule {
    alert: "GlidefsMergingBehind",
    severity: "warning",
    above: 64.0,
    message: "writes are slowed, as packs are merged more slowly than the export writes: is the store fast enough?",
};
/// The same alert: one rule has both conditions.
const MANY_PACKS: Rule = Rule {
    above: 196_608.0,
    message: "writes are slowed, as the manifest lists too many packs: is the store fast enough?",
    ..CROWDED
};
const OLD: Rule = Rule {
    alert: "GlidefsSecondsAtRisk",
    severity: "warning",
    above: 600.0,
    message: "data has not reached the store for longer than ten minutes: is the store reachable?",
};
const RISK_SHARE: Rule = Rule {
    alert: "GlidefsBytesAtRisk",
    severity: "warning",
    above: 0.5,
    message: "more than half of the cache is data that is not in the store: sort by dirty to see whose, and look at the store",
};
const DAMAGED_FRAMES: Rule = Rule {
    alert: "GlidefsDamagedData",
    severity: "critical",
    above: 0.0,
    message: "data in the cache is damaged, and reads of it fail until it is written again: see *a damaged segment* in docs/operations.md",
};
const BAD_SEGMENTS: Rule = Rule {
    alert: "GlidefsCacheDiskFails",
    severity: "critical",
    above: 0.0,
    message: "the disk under the cache has failed to write, read or sync segments: replace the disk",
};
const CATALOG: Rule = Rule {
    alert: "GlidefsCatalogFails",
    severity: "critical",
    above: 0.0,
    message: "the catalog cannot be written, so operations on exports fail or wait: make room on the disk of cache.dir",
};
const STORE_AWAY: Rule = Rule {
    alert: "GlidefsStoreAway",
    severity: "critical",
    above: 0.0,
    message: "the store was not found at its place since the start, and nothing is written back or fetched: `glidefs status` says why",
};
const OLDEST_READ: Rule = Rule {
    alert: "GlidefsReadsWaitForStore",
    severity: "critical",
    above: 60.0,
    message: "reads wait for the store: is the store reachable?",
};
const DIRTY_SHARE: Rule = Rule {
    alert: "GlidefsCacheFillsUp",
    severity: "warning",
    above: 0.8,
    message: "the cache is nearly full of live data: is the store fast enough, or the cache too small?",
};
const WAITING_WRITES: Rule = Rule {
    alert: "GlidefsCacheFull",
    severity: "critical",
    above: 0.0,
    message: "writes wait because the cache is full: is the store reachable and fast enough, or the cache too small?",
};
const OVERDUE: Rule = Rule {
    alert: "GlidefsCollectionStuck",
    severity: "warning",
    above: 86_400.0,
    message: "the store could not be collected for a day, and grows: `glidefs gc --dry-run` says why",
};

/// The alerts about changes over time, about a daemon that does not answer, or about figures of the process.
const NOT_JUDGED: [&str; 13] = [
    "GlidefsDown",
    "GlidefsRestarts",
    "GlidefsIoErrors",
    "GlidefsRequestsStuck",
    "GlidefsWritesDelayed",
    "GlidefsBuffersExhausted",
    "GlidefsSlowFlush",
    "GlidefsStoreRefuses",
    "GlidefsStoreErrors",
    "GlidefsIndexFull",
    "GlidefsLogShareUsed",
    "GlidefsApiOverrun",
    "GlidefsDescriptors",
];

/// The judged alerts that hold for changes over time as well.
const JUDGED_IN_PART: [&str; 2] = ["GlidefsCacheDiskFails", "GlidefsCacheFull"];

/// The names of the alerts that may hold although [`AlertFigures::alerts`] does not tell them.
pub(super) fn not_judged() -> Vec<String> {
    NOT_JUDGED.into_iter().chain(JUDGED_IN_PART).map(str::to_owned).collect()
}

/// The figures of one export that alerts ask for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExportAlertFigures {
    pub is_failed: bool,
    pub is_lost: bool,
    pub damaged_bytes: u64,
    pub fan_out: u64,
    pub packs: u64,
    pub at_risk_seconds: u64,
}

impl AlertFigures {
    /// Notes the figures of an export.
    pub fn note(&mut self, name: &str, export: &ExportAlertFigures) {
        for (culprits, rule, figure) in [
            (&mut self.failed, &FAILED, u64::from(export.is_failed)),
            (&mut self.lost, &LOST, u64::from(export.is_lost)),
            (&mut self.damaged, &DAMAGED, export.damaged_bytes),
            (&mut self.crowded, &CROWDED, export.fan_out),
            (&mut self.many_packs, &MANY_PACKS, export.packs),
            (&mut self.old, &OLD, export.at_risk_seconds),
        ] {
            culprits.note(rule, name, figure as f64);
        }
    }

    /// The alerts that hold, critical ones first.
    pub fn alerts(&self) -> Vec<Alert> {
        let of_exports = [
            (&FAILED, &self.failed),
            (&LOST, &self.lost),
            (&DAMAGED, &self.damaged),
            (&CROWDED, &self.crowded),
            (&MANY_PACKS, &self.many_packs),
            (&OLD, &self.old),
        ];
        let of_host = [
            (&DAMAGED_FRAMES, self.damaged_frames as f64),
            (&BAD_SEGMENTS, self.bad_segments as f64),
            (&CATALOG, f64::from(u8::from(self.is_catalog_failing))),
            (&STORE_AWAY, f64::from(u8::from(self.is_store_away))),
            (&OLDEST_READ, self.oldest_read_seconds),
            (&DIRTY_SHARE, self.dirty_share),
            (&WAITING_WRITES, self.waiting_writes as f64),
            (&RISK_SHARE, self.risk_share),
            (&OVERDUE, self.collection_overdue_seconds),
        ];
        let of_exports =
            of_exports.into_iter().filter(|(_, culprits)| culprits.count > 0).map(|(rule, culprits)| Alert {
                exports: culprits.names.clone(),
                exports_count: culprits.count,
                ..rule.alert()
            });
        let of_host =
            of_host.into_iter().filter(|(rule, figure)| *figure > rule.above).map(|(rule, _)| rule.alert());
        let mut alerts: Vec<Alert> = of_host.chain(of_exports).collect();
        alerts.sort_by_key(|alert| alert.severity != "critical");
        alerts
    }
}

impl Rule {
    fn alert(&self) -> Alert {
        Alert {
            name: self.alert.into(),
            severity: self.severity.into(),
            message: self.message.into(),
            ..Alert::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The judged alerts, with the part of the rule's expression that is judged.
    const RULES: [(Rule, &str); 15] = [
        (FAILED, "glidefs_router_exports{state=\"failed\"}[2m]) > 0"),
        (LOST, "glidefs_router_lost_exports) > 0"),
        (DAMAGED, "glidefs_export_damaged_bytes > 0"),
        (CROWDED, "(glidefs_export_fan_out_packs) > 64"),
        (MANY_PACKS, "(glidefs_export_packs) > 196608"),
        (OLD, "max by (instance) (glidefs_export_at_risk_seconds) > 600"),
        (RISK_SHARE, "> 0.5 * sum by (instance) (glidefs_cache_size_bytes)"),
        (
            DAMAGED_FRAMES,
            "glidefs_cache_corrupt_frames_total + glidefs_cache_lost_frames_total + glidefs_cache_doubted_exports > 0",
        ),
        (BAD_SEGMENTS, "(glidefs_cache_segments{state=~\"poisoned|quarantined\"}) > 0"),
        (CATALOG, "glidefs_router_catalog_failing > 0"),
        (STORE_AWAY, "glidefs_store_away > 0"),
        (OLDEST_READ, "glidefs_store_oldest_read_seconds > 60"),
        (DIRTY_SHARE, "glidefs_cache_dirty_bytes / glidefs_cache_size_bytes > 0.8"),
        (WAITING_WRITES, "sum by (instance) (glidefs_worker_log_line_writes) > 0"),
        (OVERDUE, "glidefs_store_gc_overdue_seconds > 86400"),
    ];

    #[test]
    fn every_shipped_alert_is_judged_by_its_own_rule_or_named_as_not_judged() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/glidefs.rules.yml");
        let text = std::fs::read_to_string(path).unwrap();
        let mut names = BTreeSet::new();
        for block in text.split("- alert: ").skip(1) {
            let name = block.lines().next().unwrap();
            names.insert(name);
            let rules: Vec<_> = RULES.iter().filter(|(rule, _)| rule.alert == name).collect();
            assert_ne!(rules.is_empty(), !NOT_JUDGED.contains(&name), "{name}");
            for (rule, clause) in rules {
                let says = rule.message.split_once(": ").is_some_and(|(_, next)| !next.contains(": "));
                assert!(says, "{name} does not say where to look next: {}", rule.message);
                // Expressions may be broken into lines.
                let block = block.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(block.contains(clause), "{name} has not {clause:?}: {block}");
                assert!(block.contains(&format!("severity: {}", rule.severity)), "{name}");
                let bound = clause.split("> ").last().unwrap().split(' ').next().unwrap();
                assert_eq!(bound.parse(), Ok(rule.above), "{name}");
            }
            let is_in_part = JUDGED_IN_PART.contains(&name);
            let has_changes = ["rate(", "increase("].iter().any(|change| block.contains(change));
            assert!(NOT_JUDGED.contains(&name) || is_in_part == has_changes, "{name}");
        }
        let known = RULES.iter().map(|(rule, _)| rule.alert).chain(NOT_JUDGED).collect();
        assert_eq!(names, known);
    }

    #[test]
    fn a_figure_at_the_bound_is_no_alert_and_one_above_is() {
        let mut figures =
            AlertFigures { dirty_share: 0.8, oldest_read_seconds: 60.0, ..AlertFigures::default() };
        figures.note(
            "a",
            &ExportAlertFigures { fan_out: 64, at_risk_seconds: 600, ..ExportAlertFigures::default() },
        );
        assert_eq!(figures.alerts(), []);
        figures.dirty_share = 0.81;
        figures
            .note("b", &ExportAlertFigures { is_failed: true, at_risk_seconds: 601, ..Default::default() });
        let alerts = figures.alerts();
        let named: Vec<_> =
            alerts.iter().map(|alert| (alert.name.as_str(), alert.exports.join(","))).collect();
        let expected =
            [("GlidefsExportFailed", "b"), ("GlidefsCacheFillsUp", ""), ("GlidefsSecondsAtRisk", "b")];
        assert_eq!(named, expected.map(|(name, export)| (name, export.to_owned())));
    }

    #[test]
    fn each_figure_above_its_bound_is_the_alert_of_its_name() {
        let none = AlertFigures::default;
        let of_export = |export: ExportAlertFigures| {
            let mut figures = none();
            figures.note("a", &export);
            figures
        };
        let quiet = ExportAlertFigures::default();
        for (figures, alert) in [
            (of_export(ExportAlertFigures { is_failed: true, ..quiet }), "GlidefsExportFailed"),
            (of_export(ExportAlertFigures { is_lost: true, ..quiet }), "GlidefsExportLost"),
            (of_export(ExportAlertFigures { damaged_bytes: 1, ..quiet }), "GlidefsDamagedExport"),
            (of_export(ExportAlertFigures { fan_out: 65, ..quiet }), "GlidefsMergingBehind"),
            (of_export(ExportAlertFigures { packs: 196_609, ..quiet }), "GlidefsMergingBehind"),
            (of_export(ExportAlertFigures { at_risk_seconds: 601, ..quiet }), "GlidefsSecondsAtRisk"),
            (AlertFigures { risk_share: 0.51, ..none() }, "GlidefsBytesAtRisk"),
            (AlertFigures { damaged_frames: 1, ..none() }, "GlidefsDamagedData"),
            (AlertFigures { bad_segments: 1, ..none() }, "GlidefsCacheDiskFails"),
            (AlertFigures { is_catalog_failing: true, ..none() }, "GlidefsCatalogFails"),
            (AlertFigures { is_store_away: true, ..none() }, "GlidefsStoreAway"),
            (AlertFigures { oldest_read_seconds: 61.0, ..none() }, "GlidefsReadsWaitForStore"),
            (AlertFigures { dirty_share: 0.81, ..none() }, "GlidefsCacheFillsUp"),
            (AlertFigures { waiting_writes: 1, ..none() }, "GlidefsCacheFull"),
            (AlertFigures { collection_overdue_seconds: 86_401.0, ..none() }, "GlidefsCollectionStuck"),
        ] {
            let names: Vec<_> = figures.alerts().into_iter().map(|alert| alert.name).collect();
            assert_eq!(names, [alert]);
        }
    }

    #[test]
    fn an_alert_about_many_exports_names_a_few_and_counts_all() {
        let mut figures = AlertFigures::default();
        for number in 0..100 {
            figures.note(
                &number.to_string(),
                &ExportAlertFigures { damaged_bytes: 1, ..ExportAlertFigures::default() },
            );
        }
        let alerts = figures.alerts();
        assert_eq!((alerts[0].exports.len(), alerts[0].exports_count), (NAMED_MAX, 100));
    }
}
