//! The requests that `glidefs trace` shows, from a worker with a ring.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Bench, Client, pattern};
use crate::export::{Operation, Request};
use crate::observe::trace::{TraceParts, TracedRequest};
use crate::properties::limits::{Limit, Limits, Settings};
use crate::units::SectorRange;
use crate::worker::traces::{SLOW, nanos};

/// The requests of the ring, each with its parts checked.
async fn shown(bench: &Bench) -> Vec<TracedRequest> {
    // A request is shown within the turn that answers it.
    bench.worker.ping().await.unwrap();
    let requests = bench.worker.traces.after(0).requests;
    for request in &requests {
        assert_eq!((&*request.result, request.device_id), ("ok", 7));
        let TraceParts { queue, limit, brake, slot, copy, log, sync, store } = request.parts;
        let sum = queue + limit + brake + slot + copy + log + sync + store;
        assert_eq!(sum, request.total_nanoseconds, "{request:?}");
        assert!(request.one_in.is_some() || sum >= nanos(SLOW), "{request:?}");
    }
    requests
}

#[tokio::test]
async fn requests_of_each_kind_are_sampled_with_the_parts_of_their_way() {
    let bench = Bench::new();
    let mut client = Client::attach(&bench.worker, &bench.export(1)).await;
    let mut of = BTreeMap::new();
    let mut round = 0;
    while of.len() < 5 {
        round += 1;
        client.run(Operation::Write, round * 8, 8, pattern(1, 4096)).0.unwrap();
        client.run(Operation::Read, round, 256, Vec::new()).0.unwrap();
        client.run(Operation::Discard, round, 3, Vec::new()).0.unwrap();
        client.run(Operation::Flush, 0, 0, Vec::new()).0.unwrap();
        let range = SectorRange::new(round, 8).unwrap();
        client.start_request(0, Request { operation: Operation::Write, range, fua: true }, pattern(3, 4096));
        client.finish(0).0.unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
        for request in shown(&bench).await.into_iter().filter(|request| request.one_in.is_some()) {
            of.insert((request.operation.clone(), request.fua), request);
        }
    }
    for ((operation, fua), request) in of {
        let parts = &request.parts;
        assert_eq!(parts.sync > 0, operation == "flush" || fua, "{request:?}");
        assert_eq!(parts.log > 0, operation != "flush", "{request:?}");
        assert_eq!(parts.copy > 0, ["read", "write"].contains(&&*operation), "{request:?}");
        assert!(parts.store == 0 && &*request.export == "export-1", "{request:?}");
    }
    client.detach().await;
}

#[tokio::test]
async fn a_slow_request_is_shown_with_the_wait_that_made_it_slow() {
    let bench = Bench::new();
    let export = bench.export(1);
    let mut limits = Limits::unlimited(Limits::BURST_MIN);
    limits.set_rate(Limit::WriteBytes, Some(1));
    export.set_settings(&Settings { limits, ..Settings::default() });
    let mut client = Client::attach(&bench.worker, &export).await;
    // The first takes all that the limit allows at once, the others wait. One of them at most is a sample.
    for tag in 0..3 {
        client.start(tag, Operation::Write, u64::from(tag) * 8, 8, pattern(1, 4096));
    }
    assert_eq!(client.finish(0).0, Ok(4096));
    tokio::time::sleep(2 * SLOW).await;
    export.set_settings(&Settings::default());
    assert_eq!((client.finish(1).0, client.finish(2).0), (Ok(4096), Ok(4096)));
    let slow: Vec<_> = shown(&bench).await.into_iter().filter(|request| request.tag > 0).collect();
    assert_eq!(slow.len(), 2);
    for request in slow {
        assert!(request.parts.limit > request.total_nanoseconds / 2, "{request:?}");
    }
    client.detach().await;
}
