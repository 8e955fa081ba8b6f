//! Requests that are sent again with an idempotency key, from the API down to the store.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::host::{Host, World, name, request};
use crate::api::{self, Access, AppState, Listeners};
use crate::cache::driver::{PATIENCE, bytes_of};
use crate::router::{CreateExport, ExportSize, InitialContent};
use crate::units::{SECTOR_BYTES, SectorRange};

const SECTORS: u64 = 256;

fn content(number: u64) -> (SectorRange, Vec<u8>) {
    let range = SectorRange::new(8 * number, 8).unwrap();
    (range, (range.start()..range.end()).flat_map(|sector| bytes_of(number, sector)).collect())
}

fn write(host: &mut Host, number: u64) {
    let (volume, (range, data)) = (host.volume("vm"), content(number));
    host.driver().write(&volume, range, Some(&data)).unwrap();
}

fn holds(host: &mut Host, number: u64) -> bool {
    let (volume, (range, data)) = (host.volume("vm"), content(number));
    host.driver().read(&volume, range).unwrap() == data
}

/// Sends the request `what`, its method and path, and leaves the answer unread.
async fn send(socket: &Path, what: &str, body: &str, key: Option<&str>) -> UnixStream {
    let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let text = format!(
        "{what} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{key}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

async fn answer(mut stream: UnixStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Asks for a rollback, and leaves the answer unread.
async fn ask(socket: &Path, key: Option<&str>) -> UnixStream {
    send(socket, "POST /v1/exports/vm/rollback", r#"{"snapshot": "before"}"#, key).await
}

/// Asks for a rollback, and reads the answer.
async fn roll_back(socket: &Path, key: Option<&str>) -> String {
    answer(ask(socket, key).await).await
}

/// Serves the API of a host at `socket`, until `stopped`.
fn serve(
    world: &World,
    host: &Host,
    socket: &Path,
    stopped: &watch::Receiver<bool>,
) -> tokio::task::JoinHandle<std::io::Result<()>> {
    let (state, stopped) = (AppState::of_router(&host.router()), stopped.clone());
    let listeners = world.runtime.block_on(Listeners::bind(None, socket, None)).unwrap();
    world.runtime.spawn(api::serve(listeners, state, Access::default(), stopped))
}

/// Waits until `holds`.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn data_written_after_a_rollback_survives_the_same_request_sent_again() {
    let world = World::new(11, 0);
    let mut host = Host::new(&world);
    let size = ExportSize::new(SECTORS * SECTOR_BYTES).unwrap();
    let blank = request("vm", InitialContent::Blank(size));
    world.runtime.block_on(host.router().create(CreateExport { detached: true, ..blank })).unwrap();
    write(&mut host, 1);
    world.runtime.block_on(host.router().snapshot("vm", &name("before"))).unwrap();
    write(&mut host, 2);

    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("sock");
    let (stop, stopped) = watch::channel(false);
    let serving = serve(&world, &host, &socket, &stopped);
    // The client goes away without its answer.
    let stream = world.runtime.block_on(ask(&socket, Some("job-7")));
    wait_until("the request begins", || host.router().keys().count() > 0);
    drop(stream);
    world.runtime.block_on(host.router().keys().idle());
    assert!(holds(&mut host, 1) && !holds(&mut host, 2), "the rollback was carried out");

    write(&mut host, 3);
    let again = world.runtime.block_on(roll_back(&socket, Some("job-7")));
    assert!(again.starts_with("HTTP/1.1 200") && again.contains("idempotency-replayed: true"), "{again}");
    assert!(holds(&mut host, 1) && holds(&mut host, 3), "what was written since is there");

    // The next daemon knows the key as well.
    stop.send(true).unwrap();
    world.runtime.block_on(serving).unwrap().unwrap();
    host.restart(&world);
    let (stop, stopped) = watch::channel(false);
    let serving = serve(&world, &host, &socket, &stopped);
    let again = world.runtime.block_on(roll_back(&socket, Some("job-7")));
    assert!(again.contains("idempotency-replayed: true"), "{again}");
    assert!(holds(&mut host, 3));

    let without = world.runtime.block_on(roll_back(&socket, None));
    assert!(without.starts_with("HTTP/1.1 200"), "{without}");
    assert!(holds(&mut host, 1) && !holds(&mut host, 3), "the harm that the key kept away");
    stop.send(true).unwrap();
    world.runtime.block_on(serving).unwrap().unwrap();
}

#[test]
fn a_deletion_that_the_end_of_the_daemon_cuts_off_is_not_carried_out_again_under_its_key() {
    let world = World::new(12, 0);
    let mut host = Host::new(&world);
    let size = ExportSize::new(SECTORS * SECTOR_BYTES).unwrap();
    let blank = CreateExport { detached: true, ..request("vm", InitialContent::Blank(size)) };
    world.runtime.block_on(host.router().create(blank.clone())).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("sock");
    let (stop, stopped) = watch::channel(false);
    let serving = serve(&world, &host, &socket, &stopped);
    world.store_goes_away();
    let stream = world.runtime.block_on(send(&socket, "DELETE /v1/exports/vm", "", Some("job-8")));
    wait_until("the deletion begins", || {
        host.router().show("vm").map_or(true, |info| info.state.name() == "deleting")
    });
    world.runtime.block_on(host.router().stop());
    let cut_off = world.runtime.block_on(answer(stream));
    assert!(cut_off.starts_with("HTTP/1.1 503"), "{cut_off}");
    stop.send(true).unwrap();
    world.runtime.block_on(serving).unwrap().unwrap();

    // The next daemon finishes the deletion, and somebody makes another export of the name.
    world.store_comes_back();
    host.restart(&world);
    wait_until("the deletion ends", || host.router().show("vm").is_err());
    world.runtime.block_on(host.router().create(blank)).unwrap();
    let (stop, stopped) = watch::channel(false);
    let serving = serve(&world, &host, &socket, &stopped);
    let again = world
        .runtime
        .block_on(async { answer(send(&socket, "DELETE /v1/exports/vm", "", Some("job-8")).await).await });
    assert!(again.starts_with("HTTP/1.1 409") && again.contains("idempotency_outcome_unknown"), "{again}");
    assert!(host.router().show("vm").is_ok(), "the new export is there");
    stop.send(true).unwrap();
    world.runtime.block_on(serving).unwrap().unwrap();
}
