//! Requests that are sent again with an idempotency key.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};

use super::{Answer, Served, exchange, request};
use crate::api::body::BODY_BYTES_MAX;
use crate::api::connection::Patience;
use crate::api::idempotency::{Keyed, keyed};
use crate::api::{Access, AppState, routes};
use crate::cache::driver::PATIENCE;
use crate::router::tests::fake::{Fault, Host, catalog_refuses, drop_last};

impl Served {
    async fn send_keyed(&self, method: &str, path: &str, body: &str, key: &str) -> Answer {
        let stream = UnixStream::connect(self.socket()).await.unwrap();
        exchange(stream, &request(method, path, body, &format!("Idempotency-Key: {key}\r\n"))).await
    }

    async fn create_keyed(&self, name: &str, key: &str) -> Answer {
        let body = json!({"name": name, "size": "1GiB"}).to_string();
        self.send_keyed("POST", "/v1/exports", &body, key).await
    }

    /// Ends the daemon and starts the next one on the same host.
    async fn restarted(self) -> Self {
        let Self { host, router, stop, task, .. } = self;
        stop.send(true).unwrap();
        task.await.unwrap().unwrap();
        drop_last(router);
        let router = host.started().await;
        Self::of(host, router, |_| Ok(String::new()), Access::default(), Patience::default()).await
    }

    /// The attachments of devices since the last call.
    fn attachments(&self) -> usize {
        self.host.kernel.take_log().iter().filter(|call| call.starts_with("attach")).count()
    }
}

fn is_replayed(answer: &Answer) -> bool {
    answer.head.contains("\r\nidempotency-replayed: true")
}

#[tokio::test]
async fn a_request_sent_again_gets_the_first_answer_and_is_not_carried_out() {
    let served = Served::new().await;
    let first = served.create_keyed("vm-1", "k-1").await;
    assert_eq!(first.status, 201);
    assert!(!is_replayed(&first));
    served.attachments();
    assert_eq!(served.send("DELETE", "/v1/exports/vm-1", "").await.status, 200);
    for key in ["k-1", "\"k-1\""] {
        let again = served.create_keyed("vm-1", key).await;
        assert_eq!((again.status, &again.body), (201, &first.body), "{key}");
        assert!(
            is_replayed(&again) && again.head.contains("content-type: application/json"),
            "{}",
            again.head
        );
    }
    assert_eq!(served.send("GET", "/v1/exports", "").await.json(), json!([]));
    assert_eq!(served.create_keyed("vm-1", "k-2").await.status, 201, "another key is another request");
    let counts = [&served.stats.keys.executed, &served.stats.keys.replayed];
    assert_eq!(counts.map(|count| count.load(SeqCst)), [2, 2]);
}

#[tokio::test]
async fn a_deletion_sent_again_does_not_delete_the_export_made_since() {
    let served = Served::new().await;
    served.create("vm-1", "1GiB").await;
    let deleted = served.send_keyed("DELETE", "/v1/exports/vm-1", "", "gone").await;
    assert_eq!(deleted.json()["existed"], true);
    served.create("vm-1", "1GiB").await;
    let again = served.send_keyed("DELETE", "/v1/exports/vm-1", "", "gone").await;
    assert!(is_replayed(&again) && again.body == deleted.body);
    assert_eq!(served.send("GET", "/v1/exports/vm-1", "").await.status, 200);
}

#[tokio::test]
async fn a_client_that_goes_away_finds_its_answer_when_it_comes_back() {
    let served = Served::new().await;
    let kernel = &served.host.kernel;
    kernel.fault("attach", Fault::Pause);
    let body = json!({"name": "vm-1", "size": "1GiB"}).to_string();
    let mut stream = UnixStream::connect(served.socket()).await.unwrap();
    let text = request("POST", "/v1/exports", &body, "Idempotency-Key: k\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    kernel.paused.take(1).await;
    drop(stream);
    let in_use = served.create_keyed("vm-1", "k").await;
    assert_eq!((in_use.status, in_use.refusal().1.as_str()), (409, "idempotency_key_in_use"));
    assert!(in_use.head.contains("\r\nretry-after: 1"), "{}", in_use.head);
    kernel.resumed.0.add_permits(1);
    served.router.keys().idle().await;
    let found = served.create_keyed("vm-1", "k").await;
    assert_eq!((found.status, found.json()["state"].as_str()), (201, Some("serving")));
    assert!(is_replayed(&found));
    assert_eq!(served.attachments(), 1);
}

#[tokio::test]
async fn the_end_of_the_daemon_waits_for_a_request_whose_client_has_gone() {
    let served = Served::new().await;
    let kernel = std::sync::Arc::clone(&served.host.kernel);
    kernel.fault("attach", Fault::Pause);
    let body = json!({"name": "vm-1", "size": "1GiB"}).to_string();
    let mut stream = UnixStream::connect(served.socket()).await.unwrap();
    let text = request("POST", "/v1/exports", &body, "Idempotency-Key: k\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    kernel.paused.take(1).await;
    drop(stream);
    let goes_on = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        kernel.fault("attach", Fault::None);
        kernel.resumed.0.add_permits(1);
    });
    let served = served.restarted().await;
    goes_on.await.unwrap();
    let found = served.create_keyed("vm-1", "k").await;
    assert!(found.status == 201 && is_replayed(&found), "{}", found.body);
}

#[tokio::test]
async fn a_request_that_takes_too_long_without_its_client_gives_the_place_back_and_is_not_repeated() {
    let served = Served::new().await;
    let keys = served.router.keys();
    let mut state = Keyed::of(&AppState::of_router(&served.router));
    state.abandoned_max = Duration::from_millis(1);
    let app = axum::Router::new()
        .route("/endless", axum::routing::post(std::future::pending::<()>))
        .route_layer(axum::middleware::from_fn_with_state(state, keyed));
    let service = TowerToHyperService::new(app);
    let ask = || {
        let request = Request::post("/endless").header("Idempotency-Key", "k");
        service.call(request.body(Body::empty()).unwrap())
    };
    let client = tokio::spawn(ask());
    while keys.under_way() == 0 {
        tokio::task::yield_now().await;
    }
    client.abort();
    tokio::time::timeout(PATIENCE, keys.idle()).await.expect("the place is given back");
    assert_eq!(ask().await.unwrap().status(), 409);
}

#[tokio::test]
async fn an_answer_is_sent_again_after_a_restart() {
    let served = Served::new().await;
    let first = served.create_keyed("vm-1", "k").await;
    let served = served.restarted().await;
    served.host.kernel.take_log();
    let again = served.create_keyed("vm-1", "k").await;
    assert_eq!((again.status, &again.body, served.attachments()), (201, &first.body, 0));
    assert!(is_replayed(&again));
}

#[test]
fn after_a_kill_in_the_middle_the_outcome_is_unknown_and_nothing_is_carried_out() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let host: Host = first.block_on(async {
        let served = Served::new().await;
        served.host.kernel.fault("attach", Fault::Pause);
        let body = json!({"name": "vm-1", "size": "1GiB"}).to_string();
        let mut stream = UnixStream::connect(served.socket()).await.unwrap();
        let text = request("POST", "/v1/exports", &body, "Idempotency-Key: k\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        served.host.kernel.paused.take(1).await;
        served.host
    });
    // Ends every task where it is, and closes the catalog.
    drop(first);
    host.kernel.daemon_died();
    runtime().block_on(async {
        let router = host.started().await;
        let served =
            Served::of(host, router, |_| Ok(String::new()), Access::default(), Patience::default()).await;
        served.send("DELETE", "/v1/exports/vm-1", "").await;
        for _ in 0..2 {
            let refusal = served.create_keyed("vm-1", "k").await.refusal();
            assert_eq!((refusal.0, refusal.1.as_str()), (409, "idempotency_outcome_unknown"));
            assert!(
                refusal.2.contains("new key") && refusal.2.contains("state of the export"),
                "{}",
                refusal.2
            );
        }
        assert_eq!(served.send("GET", "/v1/exports", "").await.json(), json!([]));
    });
}

#[tokio::test]
async fn a_key_belongs_to_one_method_path_query_and_body() {
    let served = Served::new().await;
    served.create_keyed("vm-1", "k").await;
    served.send_keyed("DELETE", "/v1/exports/vm-2", "", "d").await;
    for (method, path, body, key) in [
        ("POST", "/v1/exports", r#"{"name": "vm-1", "size": "2GiB"}"#, "k"),
        ("POST", "/v1/exports/vm-1/detach", "", "k"),
        ("DELETE", "/v1/exports/vm-2?force=true", "", "d"),
        ("PATCH", "/v1/exports/vm-2", "", "d"),
    ] {
        let refusal = served.send_keyed(method, path, body, key).await.refusal();
        assert_eq!((refusal.0, refusal.1.as_str()), (422, "idempotency_key_reused"), "{method} {path}");
    }
    assert_eq!(served.send("GET", "/v1/exports/vm-1", "").await.json()["state"], "serving");
}

#[tokio::test]
async fn a_refusal_leaves_the_key_free_and_a_failure_an_unknown_outcome() {
    let served = Served::new().await;
    let body = r#"{"size": "2GiB"}"#;
    for _ in 0..2 {
        assert_eq!(served.send_keyed("POST", "/v1/exports/vm-1/resize", body, "r").await.status, 404);
    }
    served.create("vm-1", "1GiB").await;
    let done = served.send_keyed("POST", "/v1/exports/vm-1/resize", body, "r").await;
    assert!(done.status == 200 && !is_replayed(&done));
    served.host.kernel.fault("attach", Fault::Fail);
    assert_eq!(served.create_keyed("vm-2", "c").await.status, 500);
    served.host.kernel.fault("attach", Fault::None);
    let refusal = served.create_keyed("vm-2", "c").await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (409, "idempotency_outcome_unknown"));
    let done = served.create_keyed("vm-2", "d").await;
    assert!(matches!(done.status, 200 | 201) && !is_replayed(&done), "{}", done.body);
    assert!(is_replayed(&served.create_keyed("vm-2", "d").await));
    assert_eq!(served.send_keyed("POST", "/nowhere", "", "n").await.status, 404);
    assert_eq!(served.send_keyed("PATCH", "/v1/exports", "{}", "n").await.status, 405);
    assert_eq!(served.router.keys().count(), 3);
}

#[tokio::test]
async fn a_daemon_that_stops_refuses_at_the_door_and_the_next_one_carries_the_request_out() {
    let served = Served::new().await;
    served.router.stop().await;
    let refusal = served.create_keyed("vm-1", "k").await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (503, "stopping"));
    let served = served.restarted().await;
    let done = served.create_keyed("vm-1", "k").await;
    assert!(done.status == 201 && !is_replayed(&done), "{}", done.body);
}

#[tokio::test]
async fn one_key_on_many_connections_at_once_is_carried_out_once() {
    let served = Served::new().await;
    let all = futures_util::future::join_all((0..30).map(|_| served.create_keyed("vm-1", "k"))).await;
    assert_eq!(served.attachments(), 1);
    assert_eq!(served.stats.keys.executed.load(SeqCst), 1);
    for answer in all {
        assert!(answer.status == 201 || answer.refusal().1 == "idempotency_key_in_use", "{}", answer.body);
    }
}

#[tokio::test]
async fn a_catalog_that_cannot_be_written_refuses_keys_before_anything_is_done() {
    let served = Served::new().await;
    catalog_refuses(&served.router, true);
    let refusal = served.create_keyed("vm-1", "k").await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (503, "catalog_fails"));
    assert_eq!(served.attachments(), 0);
    catalog_refuses(&served.router, false);
    assert_eq!(served.create_keyed("vm-1", "k").await.status, 201);
}

#[tokio::test]
async fn what_is_no_key_is_refused_and_reading_needs_none() {
    let served = Served::new().await;
    let long = "x".repeat(256);
    for key in ["", "a b", "\"", "ä", long.as_str(), "k\r\nIdempotency-Key: k"] {
        let refusal = served.create_keyed("vm-1", key).await.refusal();
        assert_eq!((refusal.0, refusal.1.as_str()), (400, "bad_idempotency_key"), "{key}: {}", refusal.2);
    }
    assert_eq!(served.send("GET", "/v1/exports", "").await.json(), json!([]));
    for key in ["a b", "k", "k"] {
        let read = served.send_keyed("GET", "/v1/exports", "", key).await;
        assert!(read.status == 200 && !is_replayed(&read));
    }
    assert_eq!(served.router.keys().count(), 0);
}

#[tokio::test]
async fn routes_that_cannot_keep_their_answer_say_so_and_do_nothing() {
    let served = Served::new().await;
    let body = json!({"create": [{"name": "vm-1", "size": "1GiB"}]}).to_string();
    for (path, says) in [
        ("/v1/batch?force=true", "each export"),
        ("/v1/upgrade", "glidefs status"),
        ("/v1/exports/vm-1/flush", "any number of times"),
        ("/v1/drain", "any number of times"),
        ("/v1/gc", "any number of times"),
    ] {
        let refusal = served.send_keyed("POST", path, &body, "k").await.refusal();
        assert_eq!((refusal.0, refusal.1.as_str()), (400, "no_idempotency_key"), "{path}");
        assert!(refusal.2.contains(says), "{}", refusal.2);
    }
    assert_eq!(served.send("GET", "/v1/exports", "").await.json(), json!([]));
}

#[tokio::test]
async fn a_body_too_large_is_refused_as_without_a_key() {
    let served = Served::new().await;
    let body = " ".repeat(BODY_BYTES_MAX + 1);
    let refusal = served.send_keyed("POST", "/v1/exports", &body, "k").await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (413, "too_large"));
    assert_eq!(served.router.keys().count(), 0);
}

#[tokio::test]
async fn a_client_without_the_token_learns_nothing_about_keys() {
    let served = Served::new().await;
    served.create_keyed("vm-1", "k").await;
    let body = json!({"name": "vm-1", "size": "1GiB"}).to_string();
    for headers in ["Idempotency-Key: k\r\n", "Idempotency-Key: k\r\nOrigin: http://evil.example\r\n"] {
        let stream = TcpStream::connect(served.tcp).await.unwrap();
        let refused = exchange(stream, &request("POST", "/v1/exports", &body, headers)).await;
        assert_eq!((refused.status, is_replayed(&refused)), (403, false));
    }
}

#[test]
fn the_description_has_the_header_where_a_key_is_taken_and_nowhere_else() {
    let description = serde_json::to_value(routes::description()).unwrap();
    let mut with = 0;
    for (path, item) in description["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let header: Vec<&Value> =
                parameters.iter().filter(|parameter| parameter["name"] == "Idempotency-Key").collect();
            let without = ["/v1/batch", "/v1/upgrade", "/v1/drain", "/v1/gc", "/v1/exports/{name}/flush"];
            let takes = method != "get" && !without.contains(&path.as_str());
            assert_eq!(header.len(), usize::from(takes), "{method} {path}");
            assert!(header.iter().all(|header| header["in"] == "header" && header["required"] == false));
            with += header.len();
        }
    }
    assert!(with > 10);
}
