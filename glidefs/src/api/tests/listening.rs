//! The socket file and the address.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::Served;
use crate::api::connection::Patience;
use crate::api::{Access, Listeners, ServeError};

#[tokio::test]
async fn the_socket_is_for_its_owner_only_and_gone_at_the_end() {
    let served = Served::new().await;
    let socket = served.socket();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    served.stop.send(true).unwrap();
    served.task.await.unwrap().unwrap();
    assert!(!socket.exists());
}

#[tokio::test]
async fn the_socket_of_a_group_is_for_its_members_as_well() {
    // Every user may give a file to a group of the user.
    let group = nix::unistd::getegid().as_raw();
    let access = Access { group: Some(group), ..Access::default() };
    let served = Served::with(access, Patience::default()).await;
    let metadata = std::fs::metadata(served.socket()).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o777, metadata.gid()), (0o660, group));
    assert_eq!(served.send("GET", "/v1/exports", "").await.status, 200);
}

#[tokio::test]
async fn a_second_daemon_is_refused_and_a_stale_socket_replaced() {
    let served = Served::new().await;
    let socket = served.socket();
    assert!(matches!(Listeners::bind(None, &socket, None).await, Err(ServeError::Running { .. })));
    assert_eq!(served.send("GET", "/healthz", "").await.status, 200, "the first is not disturbed");
    let stale = served.dir.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(Listeners::bind(None, &stale, None).await.is_ok());
}

#[tokio::test]
async fn what_cannot_be_listened_on_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    assert!(matches!(Listeners::bind(None, &file, None).await, Err(ServeError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    let under_file = file.join("sock");
    assert!(matches!(Listeners::bind(None, &under_file, None).await, Err(ServeError::Socket { .. })));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = dir.path().join("sock");
    let error = Listeners::bind(Some(taken.local_addr().unwrap()), &socket, None).await.unwrap_err();
    assert!(matches!(error, ServeError::Address { .. }) && !Path::exists(&socket), "{error}");
}
