//! Many clients, and slow clients.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::{Served, exchange, request};
use crate::api::connection::Patience;
use crate::api::{Access, Selection};
use crate::observe::counter::{Histogram, IO_SIZE_BOUNDS_BYTES};
use crate::observe::metrics::{self, Metric, Samples};

/// Descriptors needed by other tests at the same time.
const DESCRIPTORS_OF_OTHERS: u64 = 3000;

/// Reads until the server has closed the connection.
async fn closed(mut stream: impl tokio::io::AsyncRead + Unpin) -> Vec<u8> {
    let mut left = Vec::new();
    match stream.read_to_end(&mut left).await {
        Ok(_) => left,
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => left,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ten_thousand_connections_a_bounded_number_is_held_and_the_daemon_answers() {
    const CONNECTIONS: usize = 10_000;
    const HELD_MAX: u64 = 64;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let needed = CONNECTIONS as u64 + HELD_MAX + DESCRIPTORS_OF_OTHERS;
    assert!(hard >= needed, "the hard limit of open files is {hard}, this test needs {needed}: ulimit -Hn");
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(needed), hard).unwrap();
    let access = Access { connections_max: HELD_MAX as usize, ..Access::default() };
    // No client is cut off for being slow.
    let hour = Duration::from_hours(1);
    let served = Served::with(access, Patience { header: hour, answer: hour }).await;
    let mut connections = Vec::with_capacity(CONNECTIONS);
    for number in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(served.tcp).await.unwrap();
        if number % 2 == 0 {
            // A displaced connection does not take the request.
            let _ = stream.write_all(b"GET /hea").await;
        }
        connections.push(stream);
        assert!(served.stats.tcp.connections.load(Ordering::Relaxed) <= HELD_MAX);
        if number % 1000 == 0 {
            assert_eq!(
                served.send("GET", "/v1/exports", "").await.status,
                200,
                "the socket has seats of its own"
            );
        }
    }
    assert_eq!(served.send_tcp("GET", "/metrics", "").await.status, 200);
    assert_eq!(served.send("GET", "/v1/exports", "").await.status, 200);
    let stats = &served.stats.tcp;
    assert_eq!(stats.refused.load(Ordering::Relaxed), 0);
    assert!(stats.displaced.load(Ordering::Relaxed) >= CONNECTIONS as u64 - HELD_MAX);
    assert_eq!(stats.accept_errors.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn strangers_who_do_not_take_their_answers_do_not_keep_the_door_shut() {
    const HELD_MAX: usize = 8;
    let access = Access { connections_max: HELD_MAX, ..Access::default() };
    let hour = Duration::from_hours(1);
    // More than fits into the buffers of a connection.
    let served =
        Served::showing(|_| Ok("x".repeat(64 << 20)), access, Patience { header: hour, answer: hour });
    let served = served.await;
    let mut stalled = Vec::new();
    for _ in 0..HELD_MAX {
        let mut stream = TcpStream::connect(served.tcp).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        stalled.push(stream);
    }
    assert_eq!(served.send_tcp("GET", "/healthz", "").await.status, 200);
    assert_eq!(served.stats.tcp.refused.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn of_an_answer_that_was_cut_off_the_kernel_keeps_nothing() {
    let hour = Duration::from_hours(1);
    let at_once = Duration::from_millis(1);
    for (connections_max, answer, why) in [(1, hour, "a newer connection"), (8, at_once, "too slow")] {
        let access = Access { connections_max, ..Access::default() };
        let patience = Patience { header: hour, answer };
        let served = Served::showing(|_| Ok("x".repeat(64 << 20)), access, patience).await;
        let mut stalled = TcpStream::connect(served.tcp).await.unwrap();
        stalled.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        stalled.readable().await.unwrap();
        if answer == hour {
            assert_eq!(served.send_tcp("GET", "/healthz", "").await.status, 200);
        } else {
            while served.stats.tcp.connections.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        // A client that does not read never gets to an end of the stream behind the rest of the answer; a reset is seen at
        // once.
        let error = stalled.take_error().unwrap().map(|error| error.kind());
        assert_eq!(error, Some(io::ErrorKind::ConnectionReset), "{why}");
    }
}

#[tokio::test]
async fn a_stop_does_not_wait_for_connections_that_ask_for_nothing() {
    let hour = Duration::from_hours(1);
    let served = Served::with(Access::default(), Patience { header: hour, answer: hour }).await;
    let mut resting = TcpStream::connect(served.tcp).await.unwrap();
    resting.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    resting.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let unused = UnixStream::connect(served.socket()).await.unwrap();
    assert_eq!(served.send("GET", "/healthz", "").await.status, 200);
    served.stop.send(true).unwrap();
    served.task.await.unwrap();
    assert!(closed(unused).await.is_empty());
}

/// A gate that lets every waiting thread go on, once opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        drop(self.1.wait_while(self.0.lock().unwrap(), |open| !*open).unwrap());
    }
}

/// Adds the figures of `exports` exports.
fn figures(exports: u64, out: &mut Samples) {
    let sizes = Histogram::new(&IO_SIZE_BOUNDS_BYTES);
    for number in 0..exports {
        let name = format!("export-{number:05}");
        out.histogram(Metric::ReadIoSize, &[&name], &sizes);
        out.histogram(Metric::WriteIoSize, &[&name], &sizes);
        out.value(Metric::ExportDirty, &[&name], number);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_scrapes_at_a_time_of_five_thousand_exports_share_two_texts() {
    let (gate, encodings) = (Arc::<Gate>::default(), Arc::<AtomicU64>::default());
    let encode = {
        let (gate, encodings) = (Arc::clone(&gate), Arc::clone(&encodings));
        move |selection: &Selection| {
            encodings.fetch_add(1, Ordering::Relaxed);
            gate.wait();
            metrics::encode(selection.histograms, |out| figures(5000, out)).map_err(|error| error.to_string())
        }
    };
    // A slow machine takes long for a hundred answers.
    let hour = Duration::from_hours(1);
    let patience = Patience { header: hour, answer: hour };
    let served = Arc::new(Served::showing(encode, Access::default(), patience).await);
    let scrapes: Vec<_> = (0..100)
        .map(|_| {
            let served = Arc::clone(&served);
            tokio::spawn(async move {
                let stream = TcpStream::connect(served.tcp).await.unwrap();
                exchange(stream, &request("GET", "/metrics", "", "")).await
            })
        })
        .collect();
    while served.stats.scrapes.scrapes.load(Ordering::Relaxed) < 100 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    gate.open();
    for scrape in scrapes {
        let answer = scrape.await.unwrap();
        assert_eq!(answer.status, 200);
        let dirty = answer.body.lines().filter(|line| line.starts_with("glidefs_export_dirty_bytes{"));
        assert_eq!(dirty.count(), 5000);
    }
    assert_eq!(encodings.load(Ordering::Relaxed), 2, "the first, and one for all who came while it was made");
}
