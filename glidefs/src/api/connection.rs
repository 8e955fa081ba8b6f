//! Connections: a bounded number over TCP and over the socket, and a time limit on everything a client can be slow with.
//!
//! Owns the doors (TCP and the socket), each with a connection limit of its own, and one connection:
//! HTTP/1.1, with time limits for the header of a request, which also limits how long a connection may rest, and for taking an answer. Does
//! not own listeners (`serve`), the time limit of a body (`body`) nor the answers. Invariants: every connection ends, whatever the client does
//! or leaves undone; at the limit a connection leaves for a newer one only while no request is under way, the longest resting first; an answer
//! to a request with the token is never cut off for a newer connection.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::UCred;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Sleep, sleep, timeout};

use crate::locks::MutexExt;
use crate::tasks;

/// Most bytes read ahead, and so the longest header of a request.
const READ_BYTES_MAX: usize = 32 * 1024;
/// How long a connection that is told to leave may take.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// From the last answer, or from the start of the connection, to the end of a request's header.
    pub header: Duration,
    /// To take an answer.
    pub answer: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { header: Duration::from_secs(10), answer: Duration::from_secs(30) }
    }
}

/// The counters of a door.
#[derive(Debug, Default)]
pub struct DoorStats {
    /// Open connections at this moment, a gauge.
    pub connections: AtomicU64,
    /// Connections closed at once because all others had requests.
    pub refused: AtomicU64,
    /// Connections closed for a newer one: those without a request, and those slow to take an answer to a request without the
    /// token.
    pub displaced: AtomicU64,
    /// Connections that could not be accepted.
    pub accept_errors: AtomicU64,
}

/// A stream between the daemon and a client.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Makes the kernel drop unsent data when the stream is closed.
    fn sever(&self) {}

    /// The user of this host at the other end, where the kernel tells.
    fn peer(&self) -> Option<UCred> {
        None
    }
}

impl Stream for TcpStream {
    fn sever(&self) {
        // If the kernel refuses, the kernel tries to send the rest for some minutes at most.
        let _ = self.set_zero_linger();
    }
}

/// Data sent on a Unix socket is in the client's buffer already: nothing can be dropped.
impl Stream for UnixStream {
    fn peer(&self) -> Option<UCred> {
        self.peer_cred().ok()
    }
}

/// A kind of clients, with the routes and the limit for their connections.
pub(super) struct Door {
    routes: axum::Router,
    patience: Patience,
    connections_max: u32,
    places: Arc<Semaphore>,
    /// Connections without a request.
    resting: Line,
    /// Connections that have not taken the answer to a request without the token.
    answering: Line,
    pub stats: Arc<DoorStats>,
}

/// Connections that may be told to leave: the one that joined first leaves first.
#[derive(Default)]
struct Line {
    waiting: AtomicUsize,
    leave: Notify,
}

/// The place of a connection in a line, until dropped. A connection that is told to leave and does not, passes that on to the next one.
struct InLine<'a> {
    line: &'a Line,
    told: Pin<Box<Notified<'a>>>,
}

impl Line {
    fn join(&self) -> InLine<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        InLine { line: self, told: Box::pin(self.leave.notified()) }
    }

    /// Tells a connection to leave, if there is one.
    fn tell(&self) -> bool {
        let has_one = self.waiting.load(Ordering::Relaxed) > 0;
        if has_one {
            self.leave.notify_one();
        }
        has_one
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.line.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// No request is under way, and every answer was sent.
    #[default]
    Resting,
    /// A request is being carried out.
    Working,
    /// An answer is being sent.
    Answering,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Activity {
    phase: Phase,
    /// Number of requests so far.
    requests: u64,
    /// Whether the last request came without the token.
    is_anonymous: bool,
}

/// The sender of a request, for the access rules to note whether the token came with the request.
#[derive(Clone, Debug, Default)]
pub(super) struct Requester(Arc<Mutex<Activity>>);

impl Requester {
    /// Notes that the request came without the token.
    pub fn note_anonymous(&self) {
        self.0.lock_whole().is_anonymous = true;
    }

    fn begins(&self) {
        let mut activity = self.0.lock_whole();
        let requests = activity.requests.wrapping_add(1);
        *activity = Activity { phase: Phase::Working, requests, is_anonymous: false };
    }

    /// Enters the phase `to`, if the present one is `from`.
    fn go(&self, from: Phase, to: Phase) {
        let mut activity = self.0.lock_whole();
        if activity.phase == from {
            activity.phase = to;
        }
    }
}

impl Door {
    pub fn new(
        routes: axum::Router,
        connections_max: usize,
        patience: Patience,
        stats: Arc<DoorStats>,
    ) -> Arc<Self> {
        let connections_max = u32::try_from(connections_max.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let places = Arc::new(Semaphore::new(connections_max as usize));
        let (resting, answering) = (Line::default(), Line::default());
        Arc::new(Self { routes, patience, connections_max, places, resting, answering, stats })
    }

    /// Serves `stream` until the client is done, is too slow, or must leave for a newer connection. When `stop` becomes true, the request
    /// under way is the last one. Without a place, the stream is closed at once.
    pub async fn enter(self: &Arc<Self>, stream: impl Stream, stop: watch::Receiver<bool>) {
        let Some(place) = self.place().await else {
            self.stats.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let door = Arc::clone(self);
        self.stats.connections.fetch_add(1, Ordering::Relaxed);
        tasks::spawn(async move {
            door.serve(stream, stop).await;
            door.stats.connections.fetch_sub(1, Ordering::Relaxed);
            drop(place);
        });
    }

    /// A place for a connection. If there is none, a connection leaves: the one that rests longest, or if none does, the one with the
    /// oldest answer to a request without the token.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        let places = Arc::clone(&self.places);
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            return Some(place);
        }
        if !(self.resting.tell() || self.answering.tell()) {
            return None;
        }
        self.stats.displaced.fetch_add(1, Ordering::Relaxed);
        timeout(LEAVE_MAX, places.acquire_owned()).await.ok()?.ok()
    }

    /// Returns when there is no connection.
    pub async fn empty(&self) {
        // An error would mean that the semaphore is closed, which nobody does.
        let _ = self.places.acquire_many(self.connections_max).await;
    }

    async fn serve(&self, stream: impl Stream, mut stop: watch::Receiver<bool>) {
        let (requester, peer) = (Requester::default(), stream.peer());
        let routes = TowerToHyperService::new(self.routes.clone());
        let answer = service_fn(|mut request: Request<Incoming>| {
            requester.begins();
            request.extensions_mut().insert(requester.clone());
            if let Some(peer) = peer {
                request.extensions_mut().insert(peer);
            }
            let (requester, answer) = (requester.clone(), routes.call(request.map(Body::new)));
            async move {
                let answer = answer.await;
                requester.go(Phase::Working, Phase::Answering);
                answer
            }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.patience.header).max_buf_size(READ_BYTES_MAX);
        let watched = Watched { stream, requester: requester.clone() };
        let mut connection = http.serve_connection(TokioIo::new(watched), answer);
        let mut stopped = pin!(async {
            // An error means: the sender was dropped, and the daemon stops as well.
            let _ = stop.wait_for(|stop| *stop).await;
        });
        let (mut is_stopping, mut seen, mut in_line) = (false, None, None::<InLine<'_>>);
        let mut deadline: Option<Pin<Box<Sleep>>> = None;
        let is_cut = poll_fn(|context| {
            if !is_stopping && stopped.as_mut().poll(context).is_ready() {
                is_stopping = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            // Nobody is left who could be told how the connection ended.
            if Pin::new(&mut connection).poll(context).is_ready() {
                return Poll::Ready(false);
            }
            let activity = *requester.0.lock_whole();
            if seen.replace(activity) != Some(activity) {
                deadline =
                    (activity.phase == Phase::Answering).then(|| Box::pin(sleep(self.patience.answer)));
                in_line = None;
                in_line = match activity.phase {
                    Phase::Resting => Some(self.resting.join()),
                    Phase::Answering if activity.is_anonymous => Some(self.answering.join()),
                    _ => None,
                };
            }
            let is_late =
                deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready());
            let is_told = in_line.as_mut().is_some_and(|place| place.told.as_mut().poll(context).is_ready());
            if is_late || is_told { Poll::Ready(activity.phase == Phase::Answering) } else { Poll::Pending }
        })
        .await;
        if is_cut {
            // The client cannot get the whole answer any more. Without this the kernel would keep megabytes of the rest.
            connection.into_parts().io.into_inner().stream.sever();
        }
    }
}

/// A stream that notes when an answer was sent. Answers are whole when they begin, so a stream without unsent data has sent the answer.
struct Watched<S> {
    stream: S,
    requester: Requester,
}

impl<S: Stream> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: Stream> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(result, Poll::Ready(Ok(()))) {
            self.requester.go(Phase::Answering, Phase::Resting);
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::time::Instant;

    use super::*;

    impl Stream for DuplexStream {}

    /// Longer than the buffers of a pipe between client and server.
    const ANSWER_BYTES: usize = 1 << 20;
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// A server without sockets. With a paused clock, time passes only while client and server wait.
    struct Server {
        door: Arc<Door>,
        stopping: watch::Sender<bool>,
    }

    impl Server {
        fn new() -> Self {
            Self::with(8, Patience::default())
        }

        /// At `/` there is a long answer, at `/short` a short one, at `/stranger` a long one for a request without the token, and at
        /// `/never` none.
        fn with(connections_max: usize, patience: Patience) -> Self {
            let long = async |request: Request<Body>| {
                if request.uri().path() == "/stranger" {
                    request.extensions().get::<Requester>().unwrap().note_anonymous();
                }
                "x".repeat(ANSWER_BYTES)
            };
            let routes = axum::Router::new()
                .route("/", axum::routing::get(long))
                .route("/stranger", axum::routing::get(long))
                .route("/short", axum::routing::get(async || "short"))
                .route("/never", axum::routing::get(std::future::pending::<&'static str>));
            let door = Door::new(routes, connections_max, patience, Arc::default());
            Self { door, stopping: watch::channel(false).0 }
        }

        async fn connect(&self) -> DuplexStream {
            let (client, server) = tokio::io::duplex(256);
            self.door.enter(server, self.stopping.subscribe()).await;
            client
        }

        async fn connect_and_send(&self, path: &str) -> DuplexStream {
            let mut client = self.connect().await;
            client.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            // The server takes the request.
            sleep(Duration::from_millis(1)).await;
            client
        }

        async fn ask(&self) -> String {
            let mut client = self.connect().await;
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        }

        fn count(&self, counter: impl Fn(&DoorStats) -> &AtomicU64) -> u64 {
            counter(&self.door.stats).load(Ordering::Relaxed)
        }
    }

    /// Whether the server has closed the connection.
    fn is_closed(client: &mut DuplexStream) -> bool {
        client.read_u8().now_or_never().is_some_and(|read| read.is_err())
    }

    const PATIENT: Patience = Patience { header: Duration::from_hours(1), answer: Duration::from_hours(1) };

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_rests_longest_leaves_for_a_newer_one() {
        let server = Server::with(2, PATIENT);
        let mut first = server.connect_and_send("/short").await;
        let mut second = server.connect().await;
        let mut answer = [0; 256];
        assert!(first.read(&mut answer).await.unwrap() > 10);
        sleep(Duration::from_millis(1)).await;
        // The second answer makes `first` the connection that rests for the shorter time.
        first.write_all(b"GET /short HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        assert!(first.read(&mut answer).await.unwrap() > 10);
        sleep(Duration::from_millis(1)).await;
        let _third = server.connect().await;
        assert!(is_closed(&mut second) && !is_closed(&mut first));
        assert_eq!((server.count(|stats| &stats.displaced), server.count(|stats| &stats.refused)), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_request_or_an_answer_on_its_way_stays() {
        let server = Server::with(2, PATIENT);
        let mut asking = server.connect_and_send("/never").await;
        let mut taking = server.connect_and_send("/").await;
        assert!(is_closed(&mut server.connect().await));
        assert_eq!((server.count(|stats| &stats.displaced), server.count(|stats| &stats.refused)), (0, 1));
        let mut answer = vec![0; ANSWER_BYTES];
        taking.read_exact(&mut answer).await.unwrap();
        assert!(!is_closed(&mut asking));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_who_does_not_take_an_answer_leaves_when_nobody_rests() {
        let server = Server::with(3, PATIENT);
        let _known = server.connect_and_send("/").await;
        let _stranger = server.connect_and_send("/stranger").await;
        let mut resting = server.connect().await;
        sleep(Duration::from_millis(1)).await;
        let _newer = server.connect_and_send("/never").await;
        assert!(is_closed(&mut resting));
        let _newest = server.connect_and_send("/never").await;
        assert_eq!((server.count(|stats| &stats.displaced), server.count(|stats| &stats.refused)), (2, 0));
        assert!(is_closed(&mut server.connect().await), "the answer to the known client is not cut off");
        assert_eq!(server.count(|stats| &stats.connections), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_its_header_byte_by_byte_is_cut_off_and_hinders_nobody() {
        let server = Server::new();
        let mut slow = server.connect().await;
        let began = Instant::now();
        let mut sent = 0;
        while slow.write_all(b"G").await.is_ok() {
            sent += 1;
            sleep(Duration::from_millis(500)).await;
            assert!(server.ask().await.ends_with('x'), "others are served");
            assert!(sent < 100, "each byte came in time, the header as a whole did not");
        }
        assert!(began.elapsed() >= Patience::default().header);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_asks_for_nothing_is_closed_also_after_an_answer() {
        let server = Server::new();
        let mut unused = server.connect().await;
        let mut used = server.connect().await;
        used.write_all(REQUEST).await.unwrap();
        let mut left = Vec::new();
        used.read_to_end(&mut left).await.unwrap();
        assert!(left.len() > ANSWER_BYTES, "one answer, and the end");
        left.clear();
        unused.read_to_end(&mut left).await.unwrap();
        server.door.empty().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_take_its_answer_is_cut_off_and_a_slow_one_is_not() {
        let server = Server::new();
        let mut greedy = server.connect().await;
        greedy.write_all(REQUEST).await.unwrap();
        let mut slow = server.connect().await;
        slow.write_all(REQUEST).await.unwrap();
        let (mut buffer, mut got) = ([0; 64 * 1024], 0);
        while got < ANSWER_BYTES {
            // The pipe is short, so the server waits for this client nearly all the time.
            sleep(Duration::from_millis(1)).await;
            got += slow.read(&mut buffer).await.unwrap();
        }
        drop(slow);
        server.door.empty().await;
        let mut left = Vec::new();
        greedy.read_to_end(&mut left).await.unwrap();
        assert!(left.len() < ANSWER_BYTES, "the rest is not sent");
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_end_an_answer_under_way_is_finished_and_nothing_else_waited_for() {
        let server = Server::new();
        let unused = server.connect().await;
        let mut asking = server.connect().await;
        asking.write_all(REQUEST).await.unwrap();
        let mut answer = vec![0; 100];
        asking.read_exact(&mut answer).await.unwrap();
        server.stopping.send(true).unwrap();
        asking.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() > ANSWER_BYTES);
        server.door.empty().await;
        drop(unused);
    }
}
