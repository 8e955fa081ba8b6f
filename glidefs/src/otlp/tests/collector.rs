//! A collector over TCP, as well behaved as a test wants.

use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How the collector treats a request.
#[derive(Clone)]
pub(super) enum Manner {
    /// Answers with this, where a body follows the head.
    Answers(Vec<u8>),
    /// Reads requests, and never answers.
    Hangs,
    /// Accepts connections, and never reads.
    Sleeps,
    /// Answers 200 with a body that never ends.
    Babbles,
}

impl Manner {
    pub fn status(line: &str) -> Self {
        Self::Answers(format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n").into_bytes())
    }
}

/// A request as it came.
pub(super) struct Request {
    pub head: String,
    pub body: ExportTraceServiceRequest,
}

impl Request {
    pub fn spans(&self) -> impl Iterator<Item = &Span> {
        self.body.resource_spans.iter().flat_map(|of| &of.scope_spans).flat_map(|of| &of.spans)
    }
}

pub(super) struct TestCollector {
    pub url: String,
    pub manner: Arc<Mutex<Manner>>,
    pub requests: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl TestCollector {
    pub async fn begin(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (manner, requests) = (Arc::new(Mutex::new(manner)), Arc::<Mutex<Vec<_>>>::default());
        let (of, into) = (Arc::clone(&manner), Arc::clone(&requests));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, Arc::clone(&of), Arc::clone(&into)));
            }
        });
        Self { url, manner, requests, task }
    }

    pub fn behave(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    /// All spans of all requests, in the order of their coming.
    pub fn spans(&self) -> Vec<Span> {
        self.requests.lock().unwrap().iter().flat_map(Request::spans).cloned().collect()
    }
}

impl Drop for TestCollector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, manner: Arc<Mutex<Manner>>, requests: Arc<Mutex<Vec<Request>>>) {
    let now = || manner.lock().unwrap().clone();
    if matches!(now(), Manner::Sleeps) {
        return std::future::pending().await;
    }
    while let Some((head, body)) = read(&mut stream).await {
        let body = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
        requests.lock().unwrap().push(Request { head, body });
        match now() {
            Manner::Answers(answer) => {
                if stream.write_all(&answer).await.is_err() {
                    return;
                }
            }
            Manner::Babbles => {
                let mut chunk = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
                while stream.write_all(&chunk).await.is_ok() {
                    chunk = [b"1000\r\n".as_slice(), &[0xff; 4096], b"\r\n"].concat();
                }
                return;
            }
            Manner::Hangs | Manner::Sleeps => std::future::pending().await,
        }
    }
}

/// The next request of a connection.
async fn read(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body))
}
