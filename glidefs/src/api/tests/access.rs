//! Access rules: which client gets which answers.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use serde_json::json;

use super::{Served, exchange, request};
use crate::api::connection::Patience;
use crate::api::{Access, TokenFile};

pub(super) const TOKEN: &str = "Authorization: Bearer 0123456789abcdef\r\n";
/// The paths served over TCP to everybody.
const OPEN: [&str; 4] = ["/healthz", "/readyz", "/metrics", "/openapi.json"];
/// Some of the requests refused over TCP without the token.
const CLOSED: [(&str, &str); 9] = [
    ("POST", "/openapi.json"),
    ("GET", "/v1/exports"),
    ("GET", "/v1/status"),
    ("GET", "/nowhere"),
    ("POST", "/v1/exports"),
    ("DELETE", "/v1/exports/a"),
    ("POST", "/metrics"),
    ("OPTIONS", "/healthz"),
    ("GET", "/metrics/"),
];

pub(super) async fn with_token() -> Served {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let access = Access { token: Some(TokenFile::new(&path, Arc::default())), ..Access::default() };
    // The daemon reads the file again a second later, so the file stays until the runtime of the test ends.
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(dir);
    });
    Served::with(access, Patience::default()).await
}

#[tokio::test]
async fn tcp_without_a_token_serves_health_metrics_and_the_description_and_nothing_else() {
    let served = Served::new().await;
    served.ready.set();
    for path in OPEN {
        assert_eq!(served.send_tcp("GET", path, "").await.status, 200, "{path}");
        assert_eq!(served.send_tcp("HEAD", path, "").await.status, 200, "{path}");
    }
    for (method, path) in CLOSED {
        let refusal = served.send_tcp(method, path, TOKEN).await.refusal();
        assert_eq!((refusal.0, refusal.1.as_str()), (403, "forbidden"), "{method} {path}");
        assert!(refusal.2.contains("Unix socket") && refusal.2.contains("token_file"), "{}", refusal.2);
    }
    assert_eq!(served.create("a", "1GiB").await.status, 201, "the socket takes everything");
    assert_eq!(served.send_tcp("DELETE", "/v1/exports/a", "").await.status, 403);
    assert_eq!(served.send("GET", "/v1/exports", "").await.json().as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn the_token_opens_all_of_the_api_over_tcp_and_the_socket_needs_none() {
    let served = with_token().await;
    for headers in
        ["", "Authorization: Bearer 0123456789abcdeX\r\n", "Authorization: Basic 0123456789abcdef\r\n"]
    {
        for (method, path) in CLOSED {
            let answer = served.send_tcp(method, path, headers).await;
            let refusal = answer.refusal();
            assert_eq!((refusal.0, refusal.1.as_str()), (401, "unauthorized"), "{method} {path} {headers}");
            assert!(refusal.2.contains("Unix socket"), "{}", refusal.2);
            assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
        }
        assert_eq!(served.send_tcp("GET", "/healthz", headers).await.status, 200);
        assert_eq!(served.send_tcp("GET", "/metrics", headers).await.status, 200);
    }
    assert_eq!(served.send_tcp("GET", "/v1/exports", TOKEN).await.json(), json!([]));
    assert_eq!(served.send("GET", "/v1/exports", "").await.status, 200);
}

#[tokio::test]
async fn a_name_that_is_not_this_host_is_refused_unless_the_token_comes_with_it() {
    let served = with_token().await;
    let to = |host: &str, path: &str, headers: &str| {
        request("GET", path, "", headers).replace("Host: localhost", &format!("Host: {host}"))
    };
    let send =
        async |text: String| exchange(tokio::net::TcpStream::connect(served.tcp).await.unwrap(), &text).await;
    for path in OPEN {
        let refusal = send(to("evil.example:9470", path, "")).await.refusal();
        assert_eq!((refusal.0, refusal.1.as_str()), (403, "wrong_host"), "{path}");
        assert!(refusal.2.contains("evil.example") && refusal.2.contains("[api] hosts"), "{}", refusal.2);
    }
    assert_eq!(send(to("127.0.0.1:9470", "/metrics", "")).await.status, 200);
    assert_eq!(send(to("storage.example", "/v1/exports", TOKEN)).await.status, 200);
    let access = Access { hosts: vec!["storage.example".into()], ..Access::default() };
    let served = Served::with(access, Patience::default()).await;
    let stream = tokio::net::TcpStream::connect(served.tcp).await.unwrap();
    assert_eq!(exchange(stream, &to("Storage.Example:9470", "/metrics", "")).await.status, 200);
}

#[tokio::test]
async fn a_web_page_can_change_nothing() {
    let served = with_token().await;
    let origin = format!("{TOKEN}Origin: http://evil.example\r\n");
    let refusal = served.send_tcp("DELETE", "/v1/exports/a", &origin).await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (403, "forbidden"));
    assert_eq!(served.send_tcp("GET", "/v1/exports", &origin).await.status, 200);
}

#[tokio::test]
async fn a_program_for_an_upgrade_is_named_over_the_socket_only() {
    let served = with_token().await;
    let body = json!({"binary": "/usr/bin/true"}).to_string();
    let over_tcp = tokio::net::TcpStream::connect(served.tcp).await.unwrap();
    let refusal = exchange(over_tcp, &request("POST", "/v1/upgrade", &body, TOKEN)).await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (403, "forbidden"));
    assert!(refusal.2.contains("Unix socket"), "{}", refusal.2);
    // These get as far as the daemon, which has no upgrades in this test.
    let refusal = served.send("POST", "/v1/upgrade", &body).await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (503, "not_ready"));
    let over_tcp = tokio::net::TcpStream::connect(served.tcp).await.unwrap();
    let refusal = exchange(over_tcp, &request("POST", "/v1/upgrade", "{}", TOKEN)).await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (503, "not_ready"));
    let refusal = served.send("POST", "/v1/upgrade", "{\"program\": \"/bin/sh\"}").await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (400, "bad_request"));
}
