//! One connection: HTTP/1.1 on a stream, with a time limit on everything a client can be slow with.
//!
//! Owns two time limits of a connection (for the header of a request, which also limits how long a connection may be idle;
//! and for taking an answer) and the memory for both. Does not own the time limit of a body (`body`), the number of
//! connections (`seats`) nor the answers. Invariant: every connection ends, whatever the client does or leaves undone.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::Sleep;

use super::peer::PeerUser;
use super::seats::Seat;

/// Most bytes read ahead, and so the longest header of a request.
const READ_BYTES_MAX: usize = 32 * 1024;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// From the last answer, or from the start of the connection, to the end of a request's header.
    pub header: Duration,
    /// From the moment the client lets an answer wait until the client has taken the answer.
    pub answer: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { header: Duration::from_secs(10), answer: Duration::from_secs(30) }
    }
}

/// A stream whose unsent data can be dropped, and whose peer may be a known user.
pub(super) trait Sever {
    /// Makes the kernel drop unsent data when the stream is closed.
    fn sever(&self);

    /// The user of this host at the other end, where the kernel tells.
    fn peer(&self) -> Option<PeerUser> {
        None
    }
}

impl Sever for TcpStream {
    fn sever(&self) {
        // If the kernel refuses, the kernel tries to send the rest for some minutes at most.
        let _ = self.set_zero_linger();
    }
}

impl Sever for UnixStream {
    /// On a Unix socket, sent data is already in the client's buffer: nothing can be dropped.
    fn sever(&self) {}

    fn peer(&self) -> Option<PeerUser> {
        PeerUser::of(self)
    }
}

/// Answers the requests of `stream` with `routes` until the client is done, is too slow, or must leave for a newer
/// connection. When `stop` becomes true, the request under way is the last one.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Sever + Unpin>(
    stream: S,
    seat: Seat,
    routes: axum::Router,
    patience: Patience,
    mut stop: watch::Receiver<bool>,
) {
    let (seat, peer) = (Arc::new(seat), stream.peer());
    let stream = Paced { stream, seat: Arc::clone(&seat), patience: patience.answer, deadline: None };
    let routes = TowerToHyperService::new(routes);
    let answer = service_fn(|mut request: Request<Incoming>| {
        let begun = seat.begin().map(|begun| {
            request.extensions_mut().insert(begun.requester());
            if let Some(peer) = peer {
                request.extensions_mut().insert(peer);
            }
            (begun, routes.call(request.map(Body::new)))
        });
        async move {
            let Some((_begun, answer)) = begun else { return Ok::<_, Infallible>(leaving()) };
            answer.await
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience.header).max_buf_size(READ_BYTES_MAX);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), answer));
    let stopped = async {
        // An error means: the sender was dropped, and the daemon stops as well.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    tokio::select! {
        // Nobody is left who could be told how the connection ended.
        _ = connection.as_mut() => return,
        () = seat.leaves() => return,
        () = stopped => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        () = seat.leaves() => {}
    }
}

/// The answer to a request on a connection that was told to leave before. This answer is never sent.
fn leaving() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// A stream with a time limit for taking answers. Tells the seat when everything was sent.
struct Paced<S: Sever> {
    stream: S,
    seat: Arc<Seat>,
    patience: Duration,
    /// The client must have taken everything by then. Set while the client lets data wait.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S: Sever> Drop for Paced<S> {
    fn drop(&mut self) {
        // The client cannot get the whole answer any more. Without this the kernel would keep megabytes of the rest for each
        // client that was cut off while taking nothing.
        if self.seat.is_sending() {
            self.stream.sever();
        }
    }
}

impl<S: Sever> Paced<S> {
    /// Passes `result` on, or fails if the client has let data wait for too long.
    fn in_time<T>(&mut self, result: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            return result;
        }
        let patience = self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Sever + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Sever + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(result, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.in_time(result, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(result, Poll::Ready(Ok(()))) {
            self.deadline = None;
            self.seat.sent();
        }
        self.in_time(result, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(result, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::time::Instant;

    use super::super::seats::Seats;
    use super::*;

    impl Sever for DuplexStream {
        fn sever(&self) {}
    }

    /// Longer than the buffers of a pipe between client and server.
    const ANSWER_BYTES: usize = 1 << 20;
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// A server without sockets. With a paused clock, time passes only while client and server wait.
    struct Server {
        seats: Seats,
        stopping: watch::Sender<bool>,
    }

    impl Server {
        fn new() -> Self {
            Self { seats: Seats::new(8, Arc::default()), stopping: watch::channel(false).0 }
        }

        async fn connect(&self) -> DuplexStream {
            let (client, server) = tokio::io::duplex(256);
            let routes =
                axum::Router::new().route("/", axum::routing::get(async || "x".repeat(ANSWER_BYTES)));
            let seat = self.seats.take().await.unwrap();
            tokio::spawn(serve(server, seat, routes, Patience::default(), self.stopping.subscribe()));
            client
        }

        async fn ask(&self) -> String {
            let mut client = self.connect().await;
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_its_header_byte_by_byte_is_cut_off_and_hinders_nobody() {
        let server = Server::new();
        let mut slow = server.connect().await;
        let began = Instant::now();
        let mut sent = 0;
        while slow.write_all(b"G").await.is_ok() {
            sent += 1;
            tokio::time::sleep(Duration::from_millis(500)).await;
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
        server.seats.empty().await;
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
            tokio::time::sleep(Duration::from_millis(1)).await;
            got += slow.read(&mut buffer).await.unwrap();
        }
        drop(slow);
        server.seats.empty().await;
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
        server.seats.empty().await;
        drop(unused);
    }
}
