//! Traces as clients meet them.

use super::*;
use crate::observe::trace::{TraceParts, TracedRequest};

fn push(served: &Served, export: &str, tag: u16, total_nanoseconds: u64) {
    served.traces.push(TracedRequest {
        export: export.into(),
        tag,
        operation: "flush".into(),
        total_nanoseconds,
        parts: TraceParts { sync: total_nanoseconds, ..TraceParts::default() },
        one_in: (tag > 0).then_some(17),
        ..TracedRequest::default()
    });
}

#[tokio::test]
async fn a_client_gets_the_requests_that_it_asks_for_and_goes_on_from_the_last_one() {
    let served = Served::new().await;
    served.router.create(create("vm-1", 1 << 20)).await.unwrap();
    for (tag, export, total) in [(0, "vm-1", 30_000_000), (1, "vm-2", 50), (2, "vm-1", 70)] {
        push(&served, export, tag, total);
    }
    let tags = |query: &'static str| {
        let served = &served;
        async move {
            let answer = served.send("GET", &format!("/v1/trace{query}"), "").await.json();
            let trace: wire::Trace = serde_json::from_value(answer).unwrap();
            assert_eq!((trace.last, trace.missed), (3, 0));
            trace.requests.iter().map(|request| request.tag).collect::<Vec<_>>()
        }
    };
    assert_eq!(tags("").await, [0, 1, 2]);
    assert_eq!(tags("?since=2").await, [2]);
    assert_eq!(tags("?since=3").await, [0_u16; 0]);
    assert_eq!(tags("?export=vm-1").await, [0, 2]);
    assert_eq!(tags("?slower_than_nanoseconds=70").await, [0, 2]);
    let answer = served.send("GET", "/v1/trace?since=1&export=vm-1", "").await.json();
    let request = &answer["requests"][0];
    assert_eq!((&request["sequence"], &request["one_in"]), (&json!(3), &json!(17)));
    assert_eq!(request["parts"], json!({"sync": 70}));
    assert_eq!(served.send("GET", "/v1/trace?export=none", "").await.refusal().1, "not_found");
    assert_eq!(served.send("GET", "/v1/trace?one_in=3", "").await.refusal().0, 400);
}
