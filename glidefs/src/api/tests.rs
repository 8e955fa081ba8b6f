//! The API as clients meet it: real sockets, with a fake kernel behind the router.

mod access;
mod clients;
mod description;
mod listening;
mod page;
mod paging;
mod routes;
mod trace;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::connection::Patience;
use super::serve::serve_with;
use super::{Access, ApiStats, AppState, Listeners, OffThread, Readiness, Selection, SharedTexts, wire};
use crate::observe::metrics::ExportHistograms;
use crate::observe::trace::TraceRing;
use crate::router::Router;
use crate::router::tests::fake::{Host, create, drop_last, store_is_away};

/// A running API, and the host behind the router.
struct Served {
    host: Host,
    router: Arc<Router>,
    dir: tempfile::TempDir,
    tcp: SocketAddr,
    ready: Readiness,
    stats: Arc<ApiStats>,
    traces: Arc<TraceRing>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// The figures of a daemon without any.
fn no_figures() -> String {
    serde_json::to_string(&wire::Top::default()).unwrap()
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
        let problem: wire::Problem =
            serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}", self.body));
        assert_eq!(problem.error, wire::ErrorDetail { code: problem.code.clone(), message: problem.detail });
        (self.status, problem.code, problem.error.message)
    }
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Answer {
    // The server may refuse a large body before the whole body was read.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let answer = Answer { status, head: head.to_ascii_lowercase(), body: body.into() };
    description::check(request, &answer);
    answer
}

fn request(method: &str, path: &str, body: &str, headers: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}

impl Served {
    async fn new() -> Self {
        Self::with(Access::default(), Patience::default()).await
    }

    async fn with(access: Access, patience: Patience) -> Self {
        Self::showing(|_| Ok("glidefs_up 1\n".into()), access, patience).await
    }

    /// The API of a daemon that started while the store was away, with an export that waits for the store.
    async fn with_waiting(name: &str) -> Self {
        let host = Host::new();
        let before = host.started().await;
        before.create(create(name, 1 << 20)).await.unwrap();
        drop_last(before);
        let router = host.router();
        store_is_away(&router);
        Self::of(host, router, |_| Ok(String::new()), Access::default(), Patience::default()).await
    }

    /// An API with the texts of `encode` as `/metrics`.
    async fn showing(
        encode: impl Fn(&Selection) -> Result<String, String> + Send + Sync + 'static,
        access: Access,
        patience: Patience,
    ) -> Self {
        let host = Host::new();
        let router = host.started().await;
        Self::of(host, router, encode, access, patience).await
    }

    /// An API of `router`, which belongs to `host`.
    async fn of(
        host: Host,
        router: Arc<Router>,
        encode: impl Fn(&Selection) -> Result<String, String> + Send + Sync + 'static,
        access: Access,
        patience: Patience,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listen = Some(([127, 0, 0, 1], 0).into());
        let stats = Arc::<ApiStats>::default();
        let listeners = Listeners::open(listen, &dir.path().join("run/sock"), None, &stats.troubles).await;
        let tcp = listeners.tcp.as_ref().unwrap().local_addr().unwrap();
        let ready = Readiness::default();
        let traces = Arc::<TraceRing>::default();
        let state = AppState {
            router: Arc::clone(&router),
            metrics: Arc::new(SharedTexts::new(encode, Arc::clone(&stats.scrapes))),
            export_histograms: ExportHistograms::None,
            stats: Arc::clone(&stats),
            daemon: Arc::new(|| wire::DaemonStatus { bounce_mode: true, ..wire::DaemonStatus::default() }),
            store: Arc::new(|| {
                let (url, state) = ("s3://secret".into(), wire::Condition::NotFound);
                Some(wire::StoreState { url, state, since_seconds: 7, error: Some("moved".into()) })
            }),
            top: Arc::new(SharedTexts::new(|_| Ok(no_figures()), Arc::clone(&stats.tops))),
            traces: Arc::clone(&traces),
            memory: Arc::new(|| Some(wire::Memory { resident_bytes: 7, ..wire::Memory::default() })),
            off_thread: OffThread::default(),
            upgrades: None,
            ready: ready.clone(),
            started: Instant::now(),
        };
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve_with(listeners, state, access, patience, stopped));
        Self { host, router, dir, tcp, ready, stats, traces, stop, task }
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
