//! Log lines of failed requests.

use std::sync::Arc;

use crate::cache::Volume;
use crate::export::{Export, Operation, RequestError};
use crate::observe::logging::captured;
use crate::units::ExportId;
use crate::worker::driver::Failure;
use crate::worker::queues::log_failure;

#[test]
fn an_export_whose_requests_fail_all_the_time_is_logged_once_and_hides_no_other() {
    let export =
        |id, name: &str| Export::new(ExportId(id), name.into(), 1 << 20, Arc::new(Volume::new(ExportId(id))));
    let (broken, other) = (export(1, "broken"), export(2, "other"));
    let fail = |export: &Export| {
        log_failure(export, (1, 0, 0), Some(Operation::Read), &Failure::Refused(RequestError::Empty));
    };
    let log = captured(|| {
        (0..1000).for_each(|_| fail(&broken));
        fail(&other);
    });
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].contains("broken") && lines[1].contains("other"), "{log}");
}
