//! The socket file and the address.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::unistd::Group;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;

use super::{Host, Served, exchange, request};
use crate::api::{Access, AppState, Listeners, ServeError, Socket, serve};
use crate::observe::troubles::Part;

#[tokio::test]
async fn the_socket_is_for_its_owner_only_and_gone_at_the_end() {
    let served = Served::new().await;
    let socket = served.socket();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    served.stop.send(true).unwrap();
    served.task.await.unwrap();
    assert!(!socket.exists());
}

#[tokio::test]
async fn the_socket_of_a_group_is_for_its_members_as_well() {
    // Every user may give a file to a group of the user.
    let group = Group::from_gid(nix::unistd::getegid()).unwrap().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("sock");
    let host = Host::new();
    let state = AppState::of_router(&host.started().await);
    let troubles = Arc::clone(&state.stats.troubles);
    let listeners = Listeners::open(None, &socket, Some(&group.name), &troubles).await;
    let mode = || std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600, "a start does not wait for the database of groups");
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(serve(listeners, state, Access::default(), stopped));
    until(|| mode() == 0o660).await;
    assert_eq!(std::fs::metadata(&socket).unwrap().gid(), group.gid.as_raw());
    assert!(troubles.parts().is_empty());
    stop.send(true).unwrap();
    serving.await.unwrap();
}

#[tokio::test]
async fn a_group_that_is_not_there_leaves_the_socket_to_its_owner_and_is_a_trouble() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("sock");
    let host = Host::new();
    let state = AppState::of_router(&host.started().await);
    let troubles = Arc::clone(&state.stats.troubles);
    let listeners = Listeners::open(None, &socket, Some("no-such-group-here"), &troubles).await;
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(serve(listeners, state, Access::default(), stopped));
    until(|| troubles.parts() == [Part::Group]).await;
    assert!(troubles.sentences()[0].contains("groupadd"));
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let stream = UnixStream::connect(&socket).await.unwrap();
    assert_eq!(exchange(stream, &request("GET", "/v1/exports", "", "")).await.status, 200);
    stop.send(true).unwrap();
    serving.await.unwrap();
}

#[tokio::test]
async fn a_second_daemon_is_refused_and_a_stale_socket_replaced() {
    let served = Served::new().await;
    let socket = served.socket();
    assert!(matches!(Socket::bind(&socket).await, Err(ServeError::Running { .. })));
    assert_eq!(served.send("GET", "/healthz", "").await.status, 200, "the first is not disturbed");
    let stale = served.dir.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(Socket::bind(&stale).await.is_ok());
}

#[tokio::test]
async fn what_cannot_be_listened_on_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    assert!(matches!(Socket::bind(&file).await, Err(ServeError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    assert!(matches!(Socket::bind(&file.join("sock")).await, Err(ServeError::Socket { .. })));
}

/// Any user of the host may take the port. A daemon once ended for that, and its devices waited.
#[tokio::test]
async fn an_address_and_a_socket_that_are_taken_are_troubles_and_are_had_when_they_are_free() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, path) = (taken.local_addr().unwrap(), dir.path().join("sock"));
    std::fs::write(&path, "not a socket").unwrap();
    let host = Host::new();
    let state = AppState::of_router(&host.started().await);
    let troubles = Arc::clone(&state.stats.troubles);
    let listeners = Listeners::open(Some(address), &path, None, &troubles).await;
    assert_eq!(troubles.parts(), [Part::Tcp, Part::Socket]);
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(serve(listeners, state, Access::default(), stopped));
    std::fs::remove_file(&path).unwrap();
    until(|| troubles.parts() == [Part::Tcp]).await;
    let over_unix = UnixStream::connect(&path).await.unwrap();
    assert_eq!(exchange(over_unix, &request("GET", "/v1/exports", "", "")).await.status, 200);
    drop(taken);
    until(|| troubles.parts().is_empty()).await;
    let over_tcp = TcpStream::connect(address).await.unwrap();
    assert_eq!(exchange(over_tcp, &request("GET", "/healthz", "", "")).await.status, 200);
    stop.send(true).unwrap();
    serving.await.unwrap();
    assert!(!path.exists());
}

#[tokio::test]
async fn a_daemon_that_never_had_its_address_stops_as_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = Host::new();
    let state = AppState::of_router(&host.started().await);
    let socket = dir.path().join("sock");
    let listeners =
        Listeners::open(Some(taken.local_addr().unwrap()), &socket, None, &state.stats.troubles).await;
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(serve(listeners, state, Access::default(), stopped));
    stop.send(true).unwrap();
    serving.await.unwrap();
}

async fn until(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !holds() {
        assert!(Instant::now() < deadline, "it never comes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
