//! The driver as a process: socket, signals, end.
//!
//! Owns the socket. Invariants: a socket on which another driver answers is left alone; only the user of the driver may connect; at the
//! end calls under way are finished.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use futures_util::stream;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server;

use super::proto::controller_server::ControllerServer;
use super::proto::identity_server::IdentityServer;
use super::proto::node_server::NodeServer;
use super::{Options, Service};
use crate::client::Client;

/// Why the driver cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("another driver answers on {path}: stop that one, or use another --endpoint")]
    InUse { path: PathBuf },
    /// The path of the socket is taken by something else than a socket.
    #[error("{path} is not a socket: remove it, or use another --endpoint")]
    NoSocket { path: PathBuf },
    #[error("cannot {action} {path}")]
    Socket {
        /// The step which was attempted.
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("signals cannot be received")]
    Signals(#[source] io::Error),
    #[error("the driver cannot serve")]
    Serve(#[from] tonic::transport::Error),
}

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn run(client: Client, options: Options) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    let listener = listen(&options.socket).await?;
    let service = Service::new(client, &options);
    let incoming = stream::unfold(listener, async |listener| {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    tracing::info!(
        socket = %options.socket.display(), node_id = options.node_id, shared_store = options.shared_store,
        "the CSI driver serves"
    );
    Server::builder()
        .add_service(IdentityServer::new(service.clone()))
        .add_service(ControllerServer::new(service.clone()))
        .add_service(NodeServer::new(service))
        .serve_with_incoming_shutdown(incoming, async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
        .await?;
    // A driver which is started meanwhile has removed the socket already.
    let _ = fs::remove_file(&options.socket);
    tracing::info!("the CSI driver has ended");
    Ok(())
}

/// Makes the socket, in the place of one which a driver left behind.
async fn listen(path: &Path) -> Result<UnixListener, ServeError> {
    let error = |action| move |source| ServeError::Socket { action, path: path.into(), source };
    match UnixStream::connect(path).await {
        Ok(_) => return Err(ServeError::InUse { path: path.into() }),
        Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
            let metadata = fs::symlink_metadata(path).map_err(error("look at"))?;
            if !std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type()) {
                return Err(ServeError::NoSocket { path: path.into() });
            }
            fs::remove_file(path).map_err(error("remove"))?;
        }
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(error("connect to")(source)),
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(error("make the folder of"))?;
    }
    let listener = UnixListener::bind(path).map_err(error("listen on"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(error("protect"))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/csi.sock");
        let listener = listen(&path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(listen(&path).await, Err(ServeError::InUse { .. })));
        drop(listener);
        listen(&path).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_in_the_place_of_the_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        fs::write(&path, "data").unwrap();
        assert!(matches!(listen(&path).await, Err(ServeError::NoSocket { .. } | ServeError::Socket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }
}
