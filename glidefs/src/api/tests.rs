//! The API as clients meet it: real sockets, a fake kernel behind.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{AppState, BODY_BYTES_MAX, Listeners, Readiness, ServeError, Token, openapi, serve, wire};
use crate::router::tests::fake::{Fault, Host};

/// An API that is served, and the host behind it.
struct Served {
    host: Host,
    dir: tempfile::TempDir,
    tcp: SocketAddr,
    ready: Readiness,
    stop: watch::Sender<bool>,
    task: JoinHandle<std::io::Result<()>>,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Code and message of a refusal.
    fn refusal(&self) -> (u16, String, String) {
        let error: wire::ErrorBody =
            serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}", self.body));
        (self.status, error.error.code, error.error.message)
    }
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Answer {
    // The server may refuse a large body before it has read all of it.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_ascii_lowercase(), body: body.into() }
}

fn request(method: &str, path: &str, body: &str, headers: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}

impl Served {
    async fn new(token: Option<&str>) -> Self {
        let host = Host::new();
        let router = host.started().await;
        let dir = tempfile::tempdir().unwrap();
        let listen = Some(([127, 0, 0, 1], 0).into());
        let listeners = Listeners::bind(listen, &dir.path().join("run/sock")).await.unwrap();
        let tcp = listeners.tcp_address().unwrap();
        let ready = Readiness::default();
        let state = AppState {
            router,
            metrics: Arc::new(|| "glidefs_up 1\n".into()),
            daemon: Arc::new(|| wire::DaemonStatus { bounce_mode: true, ..wire::DaemonStatus::default() }),
            ready: ready.clone(),
            started: Instant::now(),
        };
        let token = token.map(|token| {
            let path = dir.path().join("token");
            std::fs::write(&path, token).unwrap();
            Token::load(&path).unwrap()
        });
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve(listeners, state, token, stopped));
        Self { host, dir, tcp, ready, stop, task }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("run/sock")
    }

    async fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        let stream = UnixStream::connect(self.socket()).await.unwrap();
        exchange(stream, &request(method, path, body, "")).await
    }

    async fn send_tcp(&self, method: &str, path: &str, headers: &str) -> Answer {
        exchange(TcpStream::connect(self.tcp).await.unwrap(), &request(method, path, "", headers)).await
    }

    async fn create(&self, name: &str, size: &str) -> Answer {
        self.send("POST", "/v1/exports", &json!({"name": name, "size": size}).to_string()).await
    }
}

#[tokio::test]
async fn an_export_lives_from_create_to_delete() {
    let served = Served::new(None).await;
    let created = served.create("vm-1", "10GiB").await;
    assert_eq!(created.status, 201);
    let mut export = created.json();
    let moment = export.as_object_mut().unwrap().remove("created").unwrap();
    assert!(moment.as_str().unwrap().ends_with('Z'));
    assert_eq!(
        export,
        json!({
            "name": "vm-1", "id": 1, "size_bytes": 10_u64 << 30, "durability": "local", "device": "/dev/ublkb0", "state": "serving",
            "reason": null, "queues": 1, "queue_depth": 64,
        })
    );
    assert_eq!(served.create("vm-1", "10GiB").await.status, 200);
    assert_eq!(served.send("GET", "/v1/exports", "").await.json()[0]["name"], "vm-1");
    assert_eq!(served.send("GET", "/v1/exports/vm-1", "").await.json()["state"], "serving");
    let grown = served.send("POST", "/v1/exports/vm-1/resize", r#"{"size": 21474836480}"#).await;
    assert_eq!(grown.json()["size_bytes"], 20_u64 << 30);
    let detached = served.send("POST", "/v1/exports/vm-1/detach", "").await.json();
    assert_eq!((&detached["state"], &detached["device"]), (&json!("detached"), &Value::Null));
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
async fn every_refusal_is_json_with_a_code_and_a_sentence() {
    let served = Served::new(None).await;
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
    let served = Served::new(None).await;
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
    let served = Served::new(None).await;
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
async fn the_daemon_tells_how_it_is() {
    let served = Served::new(None).await;
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
    let metrics = served.send("GET", "/metrics", "").await;
    assert_eq!(metrics.body, "glidefs_up 1\n");
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{}", metrics.head);
}

#[tokio::test]
async fn the_token_guards_tcp_and_not_the_unix_socket() {
    let served = Served::new(Some("0123456789abcdef")).await;
    for headers in
        ["", "Authorization: Bearer 0123456789abcdeX\r\n", "Authorization: Basic 0123456789abcdef\r\n"]
    {
        for path in ["/v1/exports", "/metrics", "/nowhere"] {
            let answer = served.send_tcp("GET", path, headers).await;
            assert_eq!(answer.refusal().1, "unauthorized", "{path} {headers}");
            assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
        }
    }
    let right = "Authorization: Bearer 0123456789abcdef\r\n";
    assert_eq!(served.send_tcp("GET", "/v1/exports", right).await.status, 200);
    assert_eq!(served.send_tcp("GET", "/healthz", "").await.status, 200);
    assert_eq!(served.send("GET", "/v1/exports", "").await.status, 200);
}

#[tokio::test]
async fn a_web_page_can_change_nothing() {
    let served = Served::new(None).await;
    let origin = "Origin: http://evil.example\r\n";
    let refusal = served.send_tcp("DELETE", "/v1/exports/a", origin).await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (403, "forbidden"));
    assert_eq!(served.send_tcp("GET", "/v1/exports", origin).await.status, 200);
}

#[tokio::test]
async fn the_description_lists_every_route_and_its_types() {
    let served = Served::new(None).await;
    let description = served.send("GET", "/openapi.json", "").await.json();
    assert_eq!(description, serde_json::to_value(openapi()).unwrap());
    let paths: Vec<_> = description["paths"].as_object().unwrap().keys().cloned().collect();
    for path in [
        "/v1/exports",
        "/v1/exports/{name}",
        "/v1/exports/{name}/attach",
        "/v1/exports/{name}/detach",
        "/v1/exports/{name}/resize",
        "/v1/status",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
    ] {
        assert!(paths.iter().any(|found| found == path), "{path} is missing in {paths:?}");
    }
    let schemas = description["components"]["schemas"].as_object().unwrap();
    for schema in ["CreateRequest", "ResizeRequest", "Export", "Status", "ErrorBody", "ErrorDetail", "Size"] {
        assert!(schemas.contains_key(schema), "{schema}");
    }
}

#[tokio::test]
async fn the_socket_is_for_its_owner_only_and_gone_at_the_end() {
    use std::os::unix::fs::PermissionsExt;
    let served = Served::new(None).await;
    let socket = served.socket();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    served.stop.send(true).unwrap();
    served.task.await.unwrap().unwrap();
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_second_daemon_is_refused_and_a_stale_socket_replaced() {
    let served = Served::new(None).await;
    let socket = served.socket();
    assert!(matches!(Listeners::bind(None, &socket).await, Err(ServeError::Running { .. })));
    assert_eq!(served.send("GET", "/healthz", "").await.status, 200, "the first is not disturbed");
    let stale = served.dir.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(Listeners::bind(None, &stale).await.is_ok());
}

#[tokio::test]
async fn what_cannot_be_listened_on_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    assert!(matches!(Listeners::bind(None, &file).await, Err(ServeError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    let under_file = file.join("sock");
    assert!(matches!(Listeners::bind(None, &under_file).await, Err(ServeError::Socket { .. })));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = dir.path().join("sock");
    let error = Listeners::bind(Some(taken.local_addr().unwrap()), &socket).await.unwrap_err();
    assert!(matches!(error, ServeError::Address { .. }) && !Path::exists(&socket), "{error}");
}
