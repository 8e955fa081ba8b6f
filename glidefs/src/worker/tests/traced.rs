//! Requests that are traced: every way of a request through the worker ends its trace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Bench, Client, pattern};
use crate::export::{Operation, Request};
use crate::observe::trace::{Ask, Kinds, Part, RequestTrace, Session};
use crate::units::SectorRange;
use crate::worker::traces::ROWS_MAX;

/// Number of the device of every client.
/// More requests than a worker's table has rows: a row that is not given back would be missed.
const REQUESTS: usize = 3 * ROWS_MAX as usize;

fn every_request() -> Arc<Session> {
    let ask = Ask { kinds: Kinds::Requests, export: None, slower_than: Duration::ZERO, one_in: 1 };
    Arc::new(Session::new(ask, 1))
}

/// The traces of all requests that were answered.
async fn traces(bench: &Bench, session: &Session) -> Vec<RequestTrace> {
    // A trace ends after the answer, within the turn.
    bench.worker.ping().await.unwrap();
    assert_eq!(session.sum(|side| &side.not_traced), 0, "every row came back");
    assert_eq!(session.sum(|side| &side.dropped), 0);
    std::iter::from_fn(|| session.workers()[0].ring.pop()).collect()
}

#[tokio::test]
async fn each_request_has_one_trace_whatever_its_way() {
    let bench = Bench::new();
    let mut client = Client::attach(&bench.worker, &bench.export(1)).await;
    let session = every_request();
    bench.worker.trace(&session);
    for round in 0..REQUESTS as u64 / 6 {
        client.run(Operation::Write, round * 8, 8, pattern(1, 4096)).0.unwrap();
        client.run(Operation::Write, round + 3, 256, pattern(2, 128 << 10)).0.unwrap();
        client.run(Operation::Read, round, 256, Vec::new()).0.unwrap();
        client.run(Operation::Discard, round, 3, Vec::new()).0.unwrap();
        client.run(Operation::Flush, 0, 0, Vec::new()).0.unwrap();
        let range = SectorRange::new(round, 8).unwrap();
        client.start_request(0, Request { operation: Operation::Write, range, fua: true }, pattern(3, 4096));
        client.finish(0).0.unwrap();
    }
    let traces = traces(&bench, &session).await;
    let mut of = HashMap::new();
    for trace in &traces {
        assert_eq!((trace.result, &*trace.export), ("ok", "export-1"));
        let total: Duration = trace.steps.iter().map(|(_, took)| took).sum();
        assert_eq!(trace.steps.total(), total);
        let has = |part| trace.steps.iter().any(|(entered, _)| entered == part);
        assert!(has(Part::Queue) && has(Part::Reply), "{trace:?}");
        assert_eq!(has(Part::Sync), trace.operation == "flush" || trace.fua, "{trace:?}");
        assert_eq!(has(Part::Log), trace.operation != "flush", "{trace:?}");
        assert_eq!(has(Part::Copy), ["read", "write"].contains(&trace.operation), "{trace:?}");
        *of.entry(trace.operation).or_insert(0) += 1;
    }
    let each = REQUESTS / 6;
    assert_eq!(of, HashMap::from([("write", 3 * each), ("read", each), ("discard", each), ("flush", each)]));

    bench.worker.untrace(&session);
    client.run(Operation::Write, 0, 8, pattern(1, 4096)).0.unwrap();
    bench.worker.ping().await.unwrap();
    assert_eq!(session.sum(|side| &side.requests), traces.len() as u64, "nobody reads any more");
    assert_eq!(Arc::strong_count(&session), 1, "the worker keeps nothing of the reader");
    client.detach().await;
}
