//! The driver as a process: socket, signals, end.
//!
//! Owns the socket. Invariants: the socket of another driver is left alone, also while that driver ends; only the user of the driver may
//! connect; at the end calls under way are finished, within a bound, whether or not their callers wait.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tonic::transport::Server;

use super::proto::controller_server::ControllerServer;
use super::proto::identity_server::IdentityServer;
use super::proto::node_server::NodeServer;
use super::tools::LONG;
use super::{Options, Service};
use crate::api::{self, Socket};
use crate::client::Client;

/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long calls under way may take at the end: more than a format may take. A longer check is cut short, and begun anew by the next
/// driver.
const END_MAX: Duration = LONG.saturating_add(Duration::from_mins(1));

/// Why the driver cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("another driver has {path}, or has not ended yet: stop that one, or use another --endpoint")]
    InUse { path: PathBuf },
    #[error(transparent)]
    Listen(#[from] api::ServeError),
    #[error("cannot {action} the lock file of {path}")]
    Lock {
        /// The step which was attempted.
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The address of the daemon is that of another host.
    #[error(
        "the driver mounts devices of this host, so the daemon has to be on this host: use --socket, or --api http://127.0.0.1:PORT"
    )]
    Remote,
    #[error("signals cannot be received")]
    Signals(#[source] io::Error),
    #[error("the driver cannot serve")]
    Serve(#[from] tonic::transport::Error),
}

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn run(client: Client, options: Options) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    if !client.is_local() {
        return Err(ServeError::Remote);
    }
    // The lock is held until the socket is gone.
    let (_lock, socket) = take(&options.socket).await?;
    let incoming = stream::unfold(socket, async |socket| {
        let accepted = socket.accept().await;
        if accepted.is_err() {
            // Without descriptors the next try fails at once as well.
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        Some((accepted, socket))
    });
    let Options { socket, host, node_deployment } = options;
    tracing::info!(
        socket = %socket.display(), node_id = host.node_id, shared_store = host.shared_store,
        "the CSI driver serves"
    );
    let service = Service::new(client, host, node_deployment);
    let driver = Arc::clone(&service.0);
    let (end, told) = oneshot::channel();
    let serving = Server::builder()
        .add_service(IdentityServer::new(service.clone()))
        .add_service(ControllerServer::new(service.clone()))
        .add_service(NodeServer::new(service))
        .serve_with_incoming_shutdown(incoming, async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("the CSI driver ends when its calls have ended");
            // Nobody waits when the server has failed.
            let _ = end.send(());
        });
    let ended = async {
        serving.await?;
        driver.ended().await;
        Ok(())
    };
    let late = async {
        match told.await {
            Ok(()) => tokio::time::sleep(END_MAX).await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = ended => ended.map_err(ServeError::Serve)?,
        () = late => tracing::warn!("calls have not ended in time, and are cut short"),
    }
    tracing::info!("the CSI driver has ended");
    Ok(())
}

/// Locks the socket's lock file for as long as the file lives, so that the next driver waits for the calls of this one, and makes
/// the socket, in the place of one which a driver left behind.
async fn take(path: &Path) -> Result<(File, Socket), ServeError> {
    let error = |action| move |source| ServeError::Lock { action, path: path.into(), source };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(error("make the folder of"))?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let mut options = OpenOptions::new();
    let opened = options.create(true).append(true).mode(0o600).open(PathBuf::from(name));
    let lock = opened.map_err(error("open"))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(ServeError::InUse { path: path.into() }),
        Err(TryLockError::Error(source)) => return Err(error("lock")(source)),
    }
    Ok((lock, Socket::bind(path).await?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/csi.sock");
        let (lock, listener) = take(&path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(take(&path).await, Err(ServeError::InUse { .. })));
        // A driver which was killed.
        drop((lock, listener));
        take(&path).await.unwrap();
    }

    #[tokio::test]
    async fn a_driver_that_ends_keeps_the_lock_until_its_last_call_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        let (lock, listener) = take(&path).await.unwrap();
        // No connection is taken any more, and calls are still under way.
        drop(listener);
        assert!(matches!(take(&path).await, Err(ServeError::InUse { .. })));
        drop(lock);
        let (_lock, _listener) = take(&path).await.unwrap();
        UnixStream::connect(&path).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_in_the_place_of_the_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        fs::write(&path, "data").unwrap();
        assert!(matches!(take(&path).await, Err(ServeError::Listen(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }
}
