//! The life of an export, refusals by example, health and status.

use serde_json::{Value, json};

use super::Served;
use crate::api::body::BODY_BYTES_MAX;
use crate::api::connection::Patience;
use crate::api::{Access, Selection};
use crate::router::tests::fake::{Fault, catalog_fails};

#[tokio::test]
async fn a_store_that_is_not_found_fails_a_collection_of_garbage_and_not_an_export() {
    let served = Served::new().await;
    *served.host.storage.refuses.lock().unwrap() = true;
    let (status, _, message) = served.send("POST", "/v1/gc", "{}").await.refusal();
    assert_eq!(status, 503, "{message}");
    assert!(message.contains("log in") && !message.contains("export"), "{message}");
}

#[tokio::test]
async fn an_export_lives_from_create_to_delete() {
    let served = Served::new().await;
    let created = served.create("vm-1", "10GiB").await;
    assert_eq!(created.status, 201);
    let mut export = created.json();
    let moment = export.as_object_mut().unwrap().remove("created").unwrap();
    assert!(moment.as_str().unwrap().ends_with('Z'));
    assert_eq!(
        export,
        json!({
            "name": "vm-1", "id": 1, "size_bytes": 10_u64 << 30, "blank": true, "durability": "local", "on_unreachable": "wait", "device": "/dev/ublkb0",
            "path": "/dev/glidefs/vm-1", "state": "serving", "reason": null, "queues": 1, "queue_depth": 64, "weight": 100,
        })
    );
    assert_eq!(served.create("vm-1", "10GiB").await.status, 200);
    assert_eq!(served.send("GET", "/v1/exports", "").await.json()[0]["name"], "vm-1");
    assert_eq!(served.send("GET", "/v1/exports/vm-1", "").await.json()["state"], "serving");
    let grown = served.send("POST", "/v1/exports/vm-1/resize", r#"{"size": 21474836480}"#).await;
    assert_eq!(grown.json()["size_bytes"], 20_u64 << 30);
    let detached = served.send("POST", "/v1/exports/vm-1/detach", "").await.json();
    assert_eq!((&detached["state"], &detached["device"]), (&json!("detached"), &Value::Null));
    assert_eq!(detached.get("path"), None);
    assert_eq!(served.send("POST", "/v1/exports/vm-1/attach", "").await.json()["device"], "/dev/ublkb0");
    assert_eq!(
        served.send("DELETE", "/v1/exports/vm-1", "").await.json(),
        json!({"name": "vm-1", "existed": true})
    );
    assert_eq!(
        served.send("DELETE", "/v1/exports/vm-1", "").await.json(),
        json!({"name": "vm-1", "existed": false})
    );
    assert_eq!(served.send("GET", "/v1/exports", "").await.json(), json!([]));
}

#[tokio::test]
async fn a_request_that_is_sent_again_succeeds_with_the_same_result_and_another_one_is_a_conflict() {
    let served = Served::new().await;
    served.create("golden", "1MiB").await;
    for (path, body, first, other) in [
        ("/v1/exports", r#"{"name": "a", "size": "1GiB"}"#, 201, r#"{"name": "a", "size": "2GiB"}"#),
        ("/v1/exports/golden/fork", r#"{"name": "a", "queues": 1}"#, 200, r#"{"name": "a", "queues": 2}"#),
        ("/v1/exports/a/detach", "", 200, ""),
        ("/v1/exports/a/attach", "", 200, ""),
    ] {
        let answers = [served.send("POST", path, body).await, served.send("POST", path, body).await];
        assert_eq!(answers.each_ref().map(|answer| answer.status), [first, 200], "{path}");
        assert_eq!(answers[0].json(), answers[1].json(), "{path}");
        if !other.is_empty() {
            let (status, code, _) = served.send("POST", path, other).await.refusal();
            assert_eq!((status, code.as_str()), (409, "exists_with_other_parameters"), "{path}");
        }
    }
    for existed in [true, false] {
        let deleted = served.send("DELETE", "/v1/exports/a", "").await;
        assert_eq!((deleted.status, deleted.json()), (200, json!({"name": "a", "existed": existed})));
    }
}

#[tokio::test]
async fn limits_and_weight_are_set_at_creation_and_changed_while_the_export_is_served() {
    let served = Served::new().await;
    let create = json!({
        "name": "vm-1", "size": "1GiB", "weight": 200,
        "limits": {"read_iops": 5000, "write_bytes_per_second": "100MiB", "burst_milliseconds": 2000},
    });
    let created = served.send("POST", "/v1/exports", &create.to_string()).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let limits = json!({"read_iops": 5000, "write_bytes_per_second": 100 << 20, "burst_milliseconds": 2000});
    assert_eq!((&created.json()["limits"], &created.json()["weight"]), (&limits, &json!(200)));
    assert_eq!(served.send("POST", "/v1/exports", &create.to_string()).await.status, 200);
    let change = r#"{"limits": {"read_iops": null, "write_iops": 7}, "weight": 50}"#;
    for _ in 0..2 {
        let changed = served.send("PATCH", "/v1/exports/vm-1", change).await;
        assert_eq!(changed.status, 200, "{}", changed.body);
        let limits =
            json!({"write_iops": 7, "write_bytes_per_second": 100 << 20, "burst_milliseconds": 2000});
        assert_eq!((&changed.json()["limits"], &changed.json()["weight"]), (&limits, &json!(50)));
    }
    assert_eq!(served.send("PATCH", "/v1/exports/vm-1", "{}").await.json()["weight"], 50);
    let ended =
        json!({"limits": {"write_iops": null, "write_bytes_per_second": null, "burst_milliseconds": 100}});
    served.send("PATCH", "/v1/exports/vm-1", &ended.to_string()).await;
    let listed = served.send("GET", "/v1/exports", "").await.json();
    assert_eq!((&listed[0]["limits"], &listed[0]["weight"]), (&Value::Null, &json!(50)));
}

#[tokio::test]
async fn an_open_without_parameters_says_what_it_assumes_and_an_open_with_a_durability_does_not() {
    let served = Served::new().await;
    *served.host.storage.has_store.lock().unwrap() = true;
    let opened = served.send("POST", "/v1/exports/vm-1/open", "{}").await;
    assert_eq!(opened.status, 201, "{}", opened.body);
    assert!(opened.json()["assumed"].as_str().unwrap().contains("durability local"), "{}", opened.body);
    assert_eq!(served.send("GET", "/v1/exports/vm-1", "").await.json().get("assumed"), None);
    let opened = served.send("POST", "/v1/exports/vm-2/open", r#"{"durability": "local"}"#).await;
    assert_eq!((opened.status, opened.json().get("assumed")), (201, None));
}

#[tokio::test]
async fn a_refusal_has_a_code_and_names_the_mistake() {
    let served = Served::new().await;
    served.create("taken", "1GiB").await;
    let long = "x".repeat(300);
    for (method, path, body, status, code, says) in [
        ("POST", "/v1/exports", "not json", 400, "bad_request", "the body is not the JSON"),
        ("POST", "/v1/exports", "", 400, "bad_request", "the body is not the JSON"),
        ("POST", "/v1/exports", "[]", 400, "bad_request", "the body is not the JSON"),
        ("POST", "/v1/exports", r#"{"name": "a"}"#, 400, "bad_request", "missing field `size`"),
        (
            "POST",
            "/v1/exports",
            r#"{"name": "a", "size": 512, "sise": 1}"#,
            400,
            "bad_request",
            "unknown field `sise`",
        ),
        ("POST", "/v1/exports", r#"{"name": "a/b", "size": 512}"#, 400, "bad_name", "'/'"),
        ("POST", "/v1/exports", r#"{"name": "..", "size": 512}"#, 400, "bad_name", "begin with"),
        ("POST", "/v1/exports", r#"{"name": "a\u0000", "size": 512}"#, 400, "bad_name", "'\\0'"),
        (
            "POST",
            "/v1/exports",
            &json!({"name": long, "size": 512}).to_string(),
            400,
            "bad_name",
            "300 characters",
        ),
        ("POST", "/v1/exports", r#"{"name": "a", "size": 0}"#, 400, "bad_size", "size of 0"),
        ("POST", "/v1/exports", r#"{"name": "a", "size": 511}"#, 400, "bad_size", "multiple of 512"),
        ("POST", "/v1/exports", r#"{"name": "a", "size": -512}"#, 400, "bad_request", "number of bytes"),
        ("POST", "/v1/exports", r#"{"name": "a", "size": "1GB"}"#, 400, "bad_request", "is not a size"),
        (
            "POST",
            "/v1/exports",
            r#"{"name": "a", "size": 9223372036854775808}"#,
            400,
            "bad_size",
            "too large",
        ),
        (
            "POST",
            "/v1/exports",
            r#"{"name": "a", "size": 512, "queues": 0}"#,
            400,
            "bad_parameter",
            "1 to 128",
        ),
        (
            "POST",
            "/v1/exports",
            r#"{"name": "a", "size": 512, "queue_depth": 99999}"#,
            400,
            "bad_parameter",
            "1 to 4096",
        ),
        (
            "POST",
            "/v1/exports",
            r#"{"name": "taken", "size": 512}"#,
            409,
            "exists_with_other_parameters",
            "size",
        ),
        (
            "POST",
            "/v1/exports",
            r#"{"name": "taken", "size": "1GiB", "weight": 7}"#,
            409,
            "exists_with_other_parameters",
            "glidefs export set taken",
        ),
        ("PATCH", "/v1/exports/taken", r#"{"weight": 1001}"#, 400, "bad_parameter", "1 to 1000"),
        ("PATCH", "/v1/exports/taken", r#"{"weight": 70000}"#, 400, "bad_parameter", "1 to 1000"),
        (
            "PATCH",
            "/v1/exports/taken",
            r#"{"limits": {"write_iops": 0}}"#,
            400,
            "bad_parameter",
            "write_iops",
        ),
        (
            "PATCH",
            "/v1/exports/taken",
            r#"{"limits": {"read_bytes_per_second": "4KiB"}}"#,
            400,
            "bad_parameter",
            "131072",
        ),
        (
            "PATCH",
            "/v1/exports/taken",
            r#"{"limits": {"burst": 1}}"#,
            400,
            "bad_request",
            "unknown field `burst`",
        ),
        ("PATCH", "/v1/exports/nope", r#"{"weight": 7}"#, 404, "not_found", "glidefs export list"),
        ("POST", "/v1/exports/taken/resize", r#"{"size": 512}"#, 409, "cannot_shrink", "only growing"),
        ("POST", "/v1/exports/nope/attach", "", 404, "not_found", "glidefs export list"),
        ("GET", "/v1/exports/nope", "", 404, "not_found", "glidefs export list"),
        ("GET", "/v1/exports/a%2Fb", "", 400, "bad_name", "'/'"),
        ("DELETE", "/v1/exports/a%00b", "", 400, "bad_name", "'\\0'"),
        ("GET", "/v1/exports/%ff", "", 400, "bad_request", "UTF-8"),
        ("GET", "/nowhere", "", 404, "not_found", "/openapi.json"),
        ("PATCH", "/v1/exports", "", 405, "method_not_allowed", "/openapi.json"),
    ] {
        let refusal = served.send(method, path, body).await.refusal();
        assert_eq!((refusal.0, refusal.1.as_str()), (status, code), "{method} {path} {body}: {}", refusal.2);
        assert!(
            refusal.2.contains(says) && !refusal.2.contains('\n'),
            "{method} {path} {body}: {}",
            refusal.2
        );
    }
    assert_eq!(served.send("GET", "/v1/exports", "").await.json().as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_body_up_to_the_limit_is_read_and_one_beyond_is_refused() {
    let served = Served::new().await;
    let padded = |bytes: usize| {
        let request = r#"{"name": "a", "size": 512}"#;
        format!("{request}{}", " ".repeat(bytes - request.len()))
    };
    assert_eq!(served.send("POST", "/v1/exports", &padded(BODY_BYTES_MAX)).await.status, 201);
    let refusal = served.send("POST", "/v1/exports", &padded(BODY_BYTES_MAX + 1)).await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (413, "too_large"));
}

#[tokio::test]
async fn failures_of_the_kernel_come_with_their_cause() {
    let served = Served::new().await;
    *served.host.kernel.limit.lock().unwrap() = Some(0);
    let refusal = served.create("a", "1GiB").await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (503, "device_limit_reached"));
    assert!(refusal.2.contains("ublks_max"), "{}", refusal.2);
    *served.host.kernel.limit.lock().unwrap() = None;
    served.host.kernel.fault("attach", Fault::Fail);
    let refusal = served.create("a", "1GiB").await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (500, "device_failed"));
    let export = served.send("GET", "/v1/exports/a", "").await.json();
    assert_eq!(export["state"], "failed");
    assert!(export["reason"].as_str().unwrap().contains("Input/output error"), "{export}");
}

#[tokio::test]
async fn readiness_status_memory_and_metrics_are_answered() {
    let served = Served::new().await;
    served.create("a", "1GiB").await;
    served.create("b", "1GiB").await;
    served.send("POST", "/v1/exports/b/detach", "").await;
    let not_ready = served.send("GET", "/readyz", "").await.refusal();
    assert_eq!((not_ready.0, not_ready.1.as_str()), (503, "not_ready"));
    served.ready.set();
    assert_eq!(served.send("GET", "/readyz", "").await.status, 200);
    assert_eq!(served.send("GET", "/healthz", "").await.body, "ok\n");
    let status = served.send("GET", "/v1/status", "").await.json();
    assert_eq!(status["ready"], true);
    assert_eq!(status["bounce_mode"], true);
    assert_eq!(
        status["exports"],
        json!({"total": 2, "max": 16, "serving": 1, "detached": 1, "failed": 0, "changing": 0})
    );
    let memory = served.send("GET", "/v1/memory", "").await.json();
    assert_eq!(memory, json!({"resident_bytes": 7, "categories": []}));
    let metrics = served.send("GET", "/metrics", "").await;
    assert_eq!(metrics.body, "glidefs_up 1\n");
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{}", metrics.head);
}

#[tokio::test]
async fn a_scrape_may_ask_for_histograms_and_for_one_export() {
    let show = |selection: &Selection| Ok(format!("{:?} {:?}", selection.histograms, selection.export));
    let served = Served::showing(show, Access::default(), Patience::default()).await;
    served.create("vm-1", "1GiB").await;
    for (query, shows) in [
        ("", "None None"),
        ("?histograms=busy", "Busy None"),
        ("?histograms=all", "All None"),
        ("?export=vm-1", "All Some(\"vm-1\")"),
        ("?export=vm-1&histograms=none", "None Some(\"vm-1\")"),
    ] {
        assert_eq!(served.send("GET", &format!("/metrics{query}"), "").await.body, shows, "{query}");
    }
    for (query, status, says) in [
        ("?histograms=some", 400, "`some`"),
        ("?exports=vm-1", 400, "`exports`"),
        ("?export=vm-2", 404, "vm-2"),
    ] {
        let refusal = served.send("GET", &format!("/metrics{query}"), "").await.refusal();
        assert!(refusal.0 == status && refusal.2.contains(says), "{query}: {refusal:?}");
    }
}

#[tokio::test]
async fn a_daemon_whose_exports_wait_for_the_store_is_not_ready_until_none_does() {
    let served = Served::with_waiting("vm-1").await;
    let refusal = served.send("GET", "/readyz", "").await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (503, "not_ready"), "recovery comes first");
    served.ready.set();
    let refusal = served.send("GET", "/readyz", "").await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (503, "unconfirmed"));
    assert!(refusal.2.contains("1 exports wait for the store"), "{}", refusal.2);
    assert!(refusal.2.ends_with("; store: not_found for 7 s"), "{}", refusal.2);
    assert_eq!(served.send("GET", "/healthz", "").await.status, 200);
    let attached = served.send("POST", "/v1/exports/vm-1/attach?unconfirmed=true", "").await;
    assert_eq!(attached.json()["state"], "serving");
    let body = served.send("GET", "/readyz", "").await.body;
    assert_eq!(body, "ready\nstore: not_found for 7 s\n", "without URL and cause: it needs no token");
}

#[tokio::test]
async fn a_daemon_whose_catalog_cannot_be_written_is_not_ready_until_it_can() {
    let served = Served::with_waiting("vm-1").await;
    for ready in [false, true] {
        if ready {
            served.ready.set();
        }
        catalog_fails(&served.router);
        let refusal = served.send("GET", "/readyz", "").await.refusal();
        assert_eq!((refusal.0, refusal.1.as_str()), (503, "catalog_fails"), "whatever else there is");
        assert!(refusal.2.contains("No space left on device"), "{}", refusal.2);
        let status = served.send("GET", "/v1/status", "").await.json();
        assert!(status["catalog_fails"].as_str().unwrap().contains("No space left on device"), "{status}");
    }
    served.send("POST", "/v1/exports/vm-1/attach", "").await;
    // The creation writes the catalog, so the catalog can be written.
    assert_eq!(served.create("vm-2", "1GiB").await.status, 201);
    assert!(served.send("GET", "/readyz", "").await.body.starts_with("ready\n"));
    assert_eq!(served.send("GET", "/v1/status", "").await.json()["catalog_fails"], Value::Null);
}
