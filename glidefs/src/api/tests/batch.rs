//! Batches: many exports by one request.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::{Answer, Served};
use crate::api::Access;
use crate::api::batch::BATCHES_MAX;
use crate::api::connection::Patience;
use crate::api::wire::BATCH_EXPORTS_MAX;
use crate::router::tests::fake::{Fault, Host};

/// The lines of a chunked answer, by name of the export.
fn lines(answer: &Answer) -> BTreeMap<String, Value> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.head.contains("content-type: application/x-ndjson"), "{}", answer.head);
    // A chunk begins with a length in a line of its own, and ends with an empty line.
    let objects = answer.body.lines().filter(|line| line.starts_with('{'));
    let parsed = objects.map(|line| serde_json::from_str::<Value>(line).unwrap());
    parsed.map(|line| (line["name"].as_str().unwrap().to_owned(), line)).collect()
}

async fn batch(served: &Served, query: &str, request: Value) -> BTreeMap<String, Value> {
    lines(&served.send("POST", &format!("/v1/batch{query}"), &request.to_string()).await)
}

#[tokio::test]
async fn exports_are_created_attached_detached_and_deleted_together() {
    let served = Served::new().await;
    let names = ["a", "b", "c"];
    let requests = names.map(|name| json!({"name": name, "size": "1GiB", "detached": true}));
    let created = batch(&served, "", json!({ "create": requests })).await;
    assert_eq!(created.len(), 3);
    for name in names {
        assert_eq!(
            (&created[name]["existed"], &created[name]["export"]["state"]),
            (&json!(false), &json!("detached"))
        );
    }
    let again = batch(&served, "", json!({ "create": requests })).await;
    assert!(names.iter().all(|name| again[*name]["existed"] == true));
    for (operation, state) in [("attach", "serving"), ("detach", "detached")] {
        let done = batch(&served, "", json!({ operation: names })).await;
        assert!(names.iter().all(|name| done[*name]["export"]["state"] == state), "{done:?}");
    }
    let deleted = batch(&served, "", json!({ "delete": ["a", "b", "c", "none"] })).await;
    assert_eq!(deleted["none"], json!({"name": "none", "existed": false}));
    assert!(names.iter().all(|name| deleted[*name]["existed"] == true), "{deleted:?}");
    assert!(served.router.list().is_empty());
}

#[tokio::test]
async fn an_export_that_fails_is_named_and_stops_no_other() {
    let served = Served::new().await;
    served.create("taken", "1GiB").await;
    served.host.kernel.users.lock().unwrap().insert(0, "mounted on /mnt");
    let requests = [
        json!({"name": "a", "size": 512}),
        json!({"name": "../b", "size": 512}),
        json!({"name": "taken", "size": 512}),
        json!({"name": "c", "size": 511}),
    ];
    let created = batch(&served, "", json!({ "create": requests })).await;
    assert_eq!(created["a"]["export"]["state"], "serving");
    for (name, code) in [("../b", "bad_name"), ("taken", "exists_with_other_parameters"), ("c", "bad_size")] {
        assert_eq!(created[name]["error"]["code"], code, "{created:?}");
        assert!(created[name].get("export").is_none());
    }
    let detached = batch(&served, "", json!({ "detach": ["a", "taken", "none"] })).await;
    assert_eq!(detached["a"]["export"]["state"], "detached");
    assert_eq!(detached["taken"]["error"]["code"], "in_use");
    assert_eq!(detached["none"]["error"]["code"], "not_found");
    let forced = batch(&served, "?force=true", json!({ "detach": ["taken"] })).await;
    assert_eq!(forced["taken"]["export"]["state"], "detached");
}

#[tokio::test]
async fn the_operations_of_a_batch_run_at_once() {
    let served = Served::new().await;
    // No call of the kernel goes on before eight are under way.
    served.host.kernel.meeting.store(8, Ordering::SeqCst);
    let requests: Vec<_> = (0..8).map(|n| json!({"name": format!("e{n}"), "size": 512})).collect();
    let created = batch(&served, "", json!({ "create": requests })).await;
    assert!(created.values().all(|line| line["export"]["state"] == "serving"), "{created:?}");
}

#[tokio::test]
async fn a_batch_under_way_is_not_cut_off_for_a_newer_connection() {
    let hour = Duration::from_hours(1);
    let access = Access { connections_max: 2, ..Access::default() };
    let served = Served::with(access, Patience { header: hour, answer: hour }).await;
    let names = detached(&served, 2).await;
    served.host.kernel.fault("attach", Fault::Pause);
    let mut batch = attaching(&served, &names, 2).await;
    let mut head = [0; 12];
    batch.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let _resting = UnixStream::connect(served.socket()).await.unwrap();
    assert_eq!(served.send("GET", "/v1/exports", "").await.status, 200, "the connection that rests has left");
    served.host.kernel.resumed.0.add_permits(2);
    let mut lines = String::new();
    batch.read_to_string(&mut lines).await.unwrap();
    assert_eq!(lines.matches("\"serving\"").count(), 2, "{lines}");
    assert_eq!(served.stats.socket.displaced.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_end_of_a_batch_is_told() {
    let served = Served::new().await;
    let told = || tokio::time::timeout(Duration::from_mins(1), served.batch_ended.notified());
    served.send("POST", "/v1/batch", "{}").await;
    assert!(served.batch_ended.notified().now_or_never().is_none(), "a refused batch has not begun");
    batch(&served, "", json!({ "delete": ["a"] })).await;
    assert!(told().await.is_ok());
}

/// Sends a batch to attach `names`, and returns the connection once `begun` exports are being attached.
async fn attaching(served: &Served, names: &[String], begun: u32) -> UnixStream {
    let mut stream = UnixStream::connect(served.socket()).await.unwrap();
    let body = json!({ "attach": names }).to_string();
    stream.write_all(super::request("POST", "/v1/batch", &body, "").as_bytes()).await.unwrap();
    served.host.kernel.paused.take(begun).await;
    stream
}

async fn detached(served: &Served, count: usize) -> Vec<String> {
    let names: Vec<_> = (0..count).map(|n| format!("e{n}")).collect();
    let requests: Vec<_> =
        names.iter().map(|name| json!({"name": name, "size": 512, "detached": true})).collect();
    let created = batch(served, "", json!({ "create": requests })).await;
    assert!(created.values().all(|line| line["existed"] == false), "{created:?}");
    names
}

async fn until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..1_000_000 {
        if is_so() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the wait has no end");
}

#[tokio::test]
async fn operations_that_a_client_which_went_away_has_begun_are_finished_and_no_others_begin() {
    let mut host = Host::new();
    host.options.exports_max = 100;
    let router = host.started().await;
    let served =
        Served::of(host, router, |_| Ok(String::new()), Access::default(), Patience::default()).await;
    let names = detached(&served, 100).await;
    let kernel = &served.host.kernel;
    kernel.fault("attach", Fault::Pause);
    kernel.take_log();
    drop(attaching(&served, &names, 64).await);
    until(|| served.stats.socket.connections.load(Ordering::Relaxed) == 0).await;
    kernel.resumed.0.add_permits(100);
    let count = |state| served.router.list().iter().filter(|info| info.state.name() == state).count();
    until(|| count("serving") == 64).await;
    // The next request is answered behind all that has begun.
    assert_eq!(served.send("GET", "/v1/exports", "").await.status, 200);
    let begun = kernel.take_log().iter().filter(|call| call.starts_with("attach ")).count();
    assert_eq!((count("serving"), count("detached"), begun), (64, 36, 64));
}

#[tokio::test]
async fn more_batches_than_have_a_place_are_asked_to_come_again() {
    let served = Served::new().await;
    let names = detached(&served, BATCHES_MAX + 1).await;
    served.host.kernel.fault("attach", Fault::Pause);
    let mut batches = Vec::new();
    for name in &names[..BATCHES_MAX] {
        batches.push(attaching(&served, std::slice::from_ref(name), 1).await);
    }
    // Whoever sends a large body reads the refusal.
    let body = "x".repeat(4 << 20);
    let request = super::request("POST", "/v1/batch", &body, "");
    let refused = super::exchange(UnixStream::connect(served.socket()).await.unwrap(), &request).await;
    assert!(refused.head.contains("\r\nretry-after: 1"), "{}", refused.head);
    assert_eq!((refused.refusal().0, refused.refusal().1.as_str()), (503, "too_many_batches"));
    // A client that goes away gives the place back; so does the end of a batch.
    drop(batches.pop());
    until(|| served.stats.socket.connections.load(Ordering::Relaxed) < BATCHES_MAX as u64).await;
    batches.push(attaching(&served, &names[BATCHES_MAX..], 1).await);
    served.host.kernel.resumed.0.add_permits(1000);
    for mut stream in batches {
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    }
    until(|| served.router.list().iter().all(|info| info.state.name() == "serving")).await;
    assert_eq!(batch(&served, "", json!({ "detach": names })).await.len(), names.len());
}

#[tokio::test]
async fn a_parameter_that_an_operation_does_not_have_is_refused_by_name() {
    let served = Served::new().await;
    let names = detached(&served, 1).await;
    let create = json!({ "create": [{"name": "b", "size": 512}] });
    for (parameter, body) in [
        ("force", &create),
        ("unconfirmed", &create),
        ("force", &json!({ "attach": names })),
        ("unconfirmed", &json!({ "detach": names })),
        ("unconfirmed", &json!({ "delete": names })),
    ] {
        let path = format!("/v1/batch?{parameter}=true");
        let (status, _, message) = served.send("POST", &path, &body.to_string()).await.refusal();
        assert!(status == 400 && message.starts_with(parameter), "{body}: {message}");
    }
    assert_eq!(served.router.list().len(), 1);
    assert_eq!(batch(&served, "?force=false", create).await["b"]["existed"], false);
}

#[tokio::test]
async fn other_requests_go_on_while_a_batch_of_a_client_that_went_away_hangs() {
    let served = Served::new().await;
    let names: Vec<_> = (0..500).map(|n| format!("e{n}")).collect();
    served.create("e0", "1GiB").await;
    served.host.kernel.fault("detach", Fault::HangBefore);
    let body = json!({ "detach": names }).to_string();
    let mut stream = UnixStream::connect(served.socket()).await.unwrap();
    stream.write_all(super::request("POST", "/v1/batch", &body, "").as_bytes()).await.unwrap();
    served.host.kernel.hangs.notified().await;
    drop(stream);
    assert_eq!(served.send("GET", "/v1/exports/e0", "").await.json()["state"], "detaching");
    // Other requests go on, also a batch about other exports.
    let other = batch(&served, "", json!({ "create": [{"name": "other", "size": 512}] })).await;
    assert_eq!(other["other"]["existed"], false);
}

#[tokio::test]
async fn a_batch_that_is_too_long_or_makes_no_sense_is_refused_as_a_whole() {
    let served = Served::new().await;
    let refuse = async |body: Value| served.send("POST", "/v1/batch", &body.to_string()).await.refusal();
    let long = vec!["a"; BATCH_EXPORTS_MAX + 1];
    assert_eq!(refuse(json!({ "delete": long })).await.1, "too_large");
    for items in [BATCH_EXPORTS_MAX + 1, 350_000] {
        let minimal = vec![json!({"name": "", "size": 1}); items];
        let (_, code, message) = refuse(json!({ "create": minimal })).await;
        assert_eq!((code.as_str(), message.as_str()), ("too_large", "a batch has at most 20000 exports"));
    }
    let padded = "x".repeat(9 << 20);
    assert_eq!(refuse(json!({ "delete": [padded] })).await.1, "too_large");
    assert_eq!(refuse(json!({ "destroy": ["a"] })).await.1, "bad_request");
    assert_eq!(refuse(json!({ "create": [{"name": "a", "size": 512, "sise": 1}] })).await.1, "bad_request");
    assert!(served.router.list().is_empty());
}
