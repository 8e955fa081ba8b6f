//! A rollback that is sent again, from the API down to the store.

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

/// Asks for a rollback, and leaves the answer unread.
async fn ask(socket: &Path, key: Option<&str>) -> UnixStream {
    let body = r#"{"snapshot": "before"}"#;
    let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let text = format!(
        "POST /v1/exports/vm/rollback HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{key}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// Asks for a rollback, and reads the answer.
async fn roll_back(socket: &Path, key: Option<&str>) -> String {
    let mut answer = String::new();
    ask(socket, key).await.read_to_string(&mut answer).await.unwrap();
    answer
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
    let serve = |host: &Host, stopped: &watch::Receiver<bool>| {
        let (state, stopped) = (AppState::of_router(&host.router()), stopped.clone());
        let listeners = world.runtime.block_on(Listeners::bind(None, &socket, None)).unwrap();
        world.runtime.spawn(api::serve(listeners, state, Access::default(), stopped))
    };
    let serving = serve(&host, &stopped);
    // The client goes away without its answer.
    let stream = world.runtime.block_on(ask(&socket, Some("job-7")));
    let deadline = Instant::now() + PATIENCE;
    while host.router().keys().count() == 0 {
        assert!(Instant::now() < deadline, "the request does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
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
    let serving = serve(&host, &stopped);
    let again = world.runtime.block_on(roll_back(&socket, Some("job-7")));
    assert!(again.contains("idempotency-replayed: true"), "{again}");
    assert!(holds(&mut host, 3));

    let without = world.runtime.block_on(roll_back(&socket, None));
    assert!(without.starts_with("HTTP/1.1 200"), "{without}");
    assert!(holds(&mut host, 1) && !holds(&mut host, 3), "the harm that the key kept away");
    stop.send(true).unwrap();
    world.runtime.block_on(serving).unwrap().unwrap();
}
