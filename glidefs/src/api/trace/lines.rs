//! The lines of a trace, from the traces of workers and store.

use crate::api::wire::{TraceParts, TraceStep, TracedRequest, TracedStoreRequest};
use crate::observe::trace::{Clock, Part, RequestTrace, StoreTrace, nanos};

pub(super) fn request(trace: &RequestTrace, clock: &Clock) -> TracedRequest {
    let of = |part| nanos(trace.steps.of(part));
    TracedRequest {
        unix_nanoseconds: clock.unix_nanos(trace.began),
        export: trace.export.as_ref().into(),
        device_id: trace.device_id,
        queue_id: trace.queue_id,
        tag: trace.tag,
        operation: trace.operation.into(),
        offset_bytes: trace.offset_bytes,
        length_bytes: trace.length_bytes,
        fua: trace.fua,
        result: trace.result.into(),
        total_nanoseconds: nanos(trace.steps.total()),
        unseen_max_nanoseconds: nanos(trace.unseen_max),
        parts: TraceParts {
            queue: of(Part::Queue),
            limit: of(Part::Limit),
            brake: of(Part::Brake),
            slot: of(Part::Slot),
            copy: of(Part::Copy),
            batch: of(Part::Batch),
            log: of(Part::Log),
            sync: of(Part::Sync),
            store: of(Part::Store),
            reply: of(Part::Reply),
            other: of(Part::Other),
        },
        steps: trace
            .steps
            .iter()
            .map(|(part, took)| TraceStep { part: part.name().into(), nanoseconds: nanos(took) })
            .collect(),
    }
}

pub(super) fn store(trace: StoreTrace, export: Option<String>, clock: &Clock) -> TracedStoreRequest {
    TracedStoreRequest {
        unix_nanoseconds: clock.unix_nanos(trace.began),
        operation: trace.operation.into(),
        key: trace.key,
        export,
        volume: trace.volume,
        is_read: trace.is_read,
        bytes: trace.bytes,
        tries: trace.tries,
        result: trace.result.into(),
        total_nanoseconds: nanos(trace.took),
        waited_nanoseconds: nanos(trace.waited),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::observe::trace::{PARTS, Steps};

    #[test]
    fn the_parts_and_the_steps_of_a_line_add_up_to_its_total_and_have_the_names_of_the_parts() {
        let began = Instant::now();
        let mut steps = Steps::begin(Part::Queue, began);
        for (number, part) in (1..).zip(PARTS.into_iter().chain([Part::Queue])) {
            steps.enter(part, began + Duration::from_nanos(number * number));
        }
        steps.close(began + Duration::from_micros(1));
        let trace = RequestTrace {
            export: Arc::from("vm-1"),
            device_id: 3,
            queue_id: 1,
            tag: 2,
            operation: "read",
            offset_bytes: 0,
            length_bytes: 4096,
            fua: false,
            began,
            unseen_max: Duration::ZERO,
            result: "ok",
            steps,
        };
        let line = request(&trace, &Clock::now());
        assert_eq!(line.total_nanoseconds, 1000);
        assert_eq!(line.parts.sum(), 1000);
        assert_eq!(line.steps.iter().map(|step| step.nanoseconds).sum::<u64>(), 1000);
        for (part, of_line) in PARTS.into_iter().zip(line.parts.each()) {
            assert_eq!((part.name(), nanos(trace.steps.of(part))), of_line);
            assert!(of_line.1 > 0, "{}", part.name());
        }
    }
}
