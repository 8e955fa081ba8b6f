//! The control plane with many exports: lists, creations and starts.
//!
//! `control [EXPORTS]` prints the figures of a daemon with EXPORTS exports without devices (20,000 when left out), without a store
//! and with a directory as the store. Every layer is the daemon's but the devices.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a bench prints, and may end")]
#![allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]

#[path = "support/population.rs"]
mod population;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use glidefs::testing::api::{
    Access, ApiStats, AppState, Listeners, OffThread, Readiness, SharedTexts, serve, wire,
};
use glidefs::testing::cli;
use glidefs::testing::observe::ExportHistograms;
use glidefs::testing::router::Router;
use population::Place;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;

/// Creations one after the other.
const ALONE: usize = 200;
const AT_ONCE: usize = 64;
const LISTS: usize = 15;

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Serves the API of `router` on a socket for as long as the sender lives.
async fn serve_api(directory: &Path, router: &Arc<Router>) -> watch::Sender<bool> {
    let socket = directory.join("sock");
    let stats = Arc::<ApiStats>::default();
    let listeners = Listeners::open(None, &socket, None, &stats.troubles).await;
    let state = AppState {
        router: Arc::clone(router),
        metrics: Arc::new(SharedTexts::new(|_| Ok(String::new()), Arc::clone(&stats.scrapes))),
        export_histograms: ExportHistograms::None,
        stats,
        daemon: Arc::new(wire::DaemonStatus::default),
        store: Arc::new(|| None),
        top: Arc::new(SharedTexts::new(|_| Ok(String::new()), Arc::default())),
        traces: Arc::default(),
        memory: Arc::new(|| None),
        off_thread: OffThread::default(),
        upgrades: None,
        ready: Readiness::default(),
        started: Instant::now(),
    };
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(serve(listeners, state, Access::default(), stopped));
    stop
}

/// The body of the answer to a GET of `path`.
async fn get(directory: &Path, path: &str) -> Vec<u8> {
    let mut stream = UnixStream::connect(directory.join("sock")).await.expect("the daemon listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the request is sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("the answer comes");
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    answer.split_off(head + 4)
}

async fn timed_gets(directory: &Path, path: &str) -> (Duration, Vec<u8>) {
    let (mut times, mut answer) = (Vec::new(), Vec::new());
    for _ in 0..LISTS {
        let begun = Instant::now();
        answer = get(directory, path).await;
        times.push(begun.elapsed());
    }
    (median(times), answer)
}

async fn measure(directory: &Path, router: Arc<Router>, exports: usize) {
    router.start().await;
    let alone = ALONE.min(exports / 2);
    let begun = Instant::now();
    population::create(&router, 0..alone, 1).await;
    let each = begun.elapsed().as_secs_f64() * 1e3 / alone as f64;
    println!("create, one at a time:          {each:9.3} ms each");
    let begun = Instant::now();
    population::create(&router, alone..exports, AT_ONCE).await;
    let each = begun.elapsed().as_secs_f64() * 1e3 / (exports - alone) as f64;
    println!("create, {AT_ONCE} at a time:           {each:9.3} ms each");

    let stop = serve_api(directory, &router).await;
    let begun = Instant::now();
    let listed = router.list().len();
    println!("list, router alone:             {:9.3} ms for {listed}", millis(begun.elapsed()));
    let (time, answer) = timed_gets(directory, "/v1/exports").await;
    println!("list, over the socket:          {:9.3} ms, {} bytes", millis(time), answer.len());
    let (time, _) = timed_gets(directory, "/v1/status").await;
    println!("status, over the socket:        {:9.3} ms", millis(time));
    let (time, _) = timed_gets(directory, "/v1/exports/export-7").await;
    println!("show, over the socket:          {:9.3} ms", millis(time));
    let begun = Instant::now();
    let table = cli::listing(&answer).expect("the list is understood");
    println!(
        "table of the command line:      {:9.3} ms, {} lines",
        millis(begun.elapsed()),
        table.lines().count()
    );
    drop(stop);
}

async fn start(router: Arc<Router>) {
    let begun = Instant::now();
    let report = router.start().await;
    println!(
        "start, the router's part:       {:9.3} ms, {} detached",
        millis(begun.elapsed()),
        report.detached
    );
    let begun = Instant::now();
    router.confirm().await;
    println!("confirmation by the store:      {:9.3} ms", millis(begun.elapsed()));
}

fn main() {
    // `cargo test --benches` only shows that the bench works.
    let mut exports = if std::env::args().all(|word| word != "--bench") { 100 } else { 20_000 };
    for argument in std::env::args().skip(1) {
        if let Ok(number) = argument.parse() {
            exports = number;
        }
    }
    for place in [Place::Cache, Place::Store] {
        let directory = tempfile::tempdir().expect("a directory");
        println!("{exports} exports, {place:?}");
        for phase in [0, 1] {
            // A runtime for each daemon: the end of the first one closes the catalog.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            let begun = Instant::now();
            let router = population::router(directory.path(), place, exports, runtime.handle());
            if phase == 0 {
                runtime.block_on(measure(directory.path(), router, exports));
            } else {
                println!("start, until the router is there: {:7.3} ms", millis(begun.elapsed()));
                runtime.block_on(start(router));
            }
        }
    }
}
