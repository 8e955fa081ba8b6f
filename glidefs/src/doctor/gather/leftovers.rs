//! Facts of daemons: who listens on the socket, and which devices there are.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::is_root;
use super::patience::answer;
use crate::cache::{Cache, Directory};
use crate::config::Config;
use crate::doctor::leftovers::{LeftoverFacts, Socket};
use crate::observe::chain;
use crate::ublk::{Condition, Survey, Surveyed, survey};

/// How long the socket is waited for.
const SOCKET_PATIENCE: Duration = Duration::from_secs(5);
/// Longer than a device that goes to another worker has none.
const PAUSE: Duration = Duration::from_secs(2);
/// The question whether the daemon is ready.
const QUESTION: &[u8] = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// The facts of daemons of `config`, with the answer of the `socket`.
pub(super) async fn gather(config: &Config, socket: Socket) -> LeftoverFacts {
    let directory = config.cache.dir.clone();
    // A directory without an answer has a finding of its own.
    let tag = answer(move || Cache::tag_on(&Directory::new(directory))).await.unwrap_or(None);
    let mut devices = devices(tag).await;
    if let (Socket::Listens { .. }, Ok(first)) = (&socket, &devices)
        && first.devices.iter().any(|device| device.is_ours && device.condition != Condition::Served)
    {
        let first = first.devices.clone();
        tokio::time::sleep(PAUSE).await;
        devices = self::devices(tag).await.map(|second| in_both(&first, second));
    }
    LeftoverFacts { socket, socket_path: config.api.socket.clone(), devices, is_root: is_root() }
}

async fn devices(tag: Option<u32>) -> Result<Survey, String> {
    answer(move || survey(tag)).await?.map_err(|error| chain(&error))
}

/// The survey `second` without the devices that are not served, and were in another condition at `first`: a daemon works on these.
fn in_both(first: &[Surveyed], mut second: Survey) -> Survey {
    second.devices.retain(|device| device.condition == Condition::Served || first.contains(device));
    second
}

/// Asks on the socket at `path`.
pub(super) async fn socket(path: &Path) -> Socket {
    let connected = tokio::time::timeout(SOCKET_PATIENCE, UnixStream::connect(path)).await;
    let mut stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            return match error.kind() {
                io::ErrorKind::NotFound => Socket::Absent,
                io::ErrorKind::ConnectionRefused => Socket::Dead,
                _ => Socket::Unknown(error.to_string()),
            };
        }
        Err(_) => return Socket::Unknown("no connection is taken".into()),
    };
    let peer = stream.peer_cred().ok();
    let answered = tokio::time::timeout(SOCKET_PATIENCE, is_ready(&mut stream)).await;
    Socket::Listens {
        // A daemon in another process namespace has the id 0 here.
        process: peer.and_then(|peer| peer.pid().filter(|pid| *pid > 0)),
        is_ready: answered.ok().and_then(Result::ok),
    }
}

/// Whether the daemon says that it is ready.
async fn is_ready(stream: &mut UnixStream) -> io::Result<bool> {
    stream.write_all(QUESTION).await?;
    let mut status = [0; "HTTP/1.1 200".len()];
    stream.read_exact(&mut status).await?;
    Ok(status == *b"HTTP/1.1 200")
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;
    use crate::router::devices::DeviceId;

    /// Answers one connection with `answer`.
    async fn serve(listener: &UnixListener, answer: &[u8]) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut question = [0; QUESTION.len()];
        stream.read_exact(&mut question).await.unwrap();
        stream.write_all(answer).await.unwrap();
    }

    #[tokio::test]
    async fn a_daemon_that_is_ready_is_told_from_one_that_starts_and_from_a_dead_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert_eq!(socket(&path).await, Socket::Absent);
        let listener = UnixListener::bind(&path).unwrap();
        let process = i32::try_from(std::process::id()).ok();
        for (answer, is_ready) in [
            (&b"HTTP/1.1 200 OK\r\n\r\n"[..], Some(true)),
            (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", Some(false)),
            (b"", None),
        ] {
            let (found, ()) = tokio::join!(socket(&path), serve(&listener, answer));
            assert_eq!(found, Socket::Listens { process, is_ready });
        }
        drop(listener);
        assert_eq!(socket(&path).await, Socket::Dead);
    }

    #[test]
    fn a_device_on_which_a_daemon_works_is_not_in_the_same_condition_twice() {
        let device = |id, condition| Surveyed { id: DeviceId(id), condition, is_ours: true };
        let first =
            [device(1, Condition::Waiting), device(2, Condition::Stopped), device(3, Condition::Waiting)];
        let devices =
            vec![device(1, Condition::Served), device(2, Condition::Waiting), device(3, Condition::Waiting)];
        let both = in_both(&first, Survey { devices, errors: Vec::new() });
        assert_eq!(both.devices, [device(1, Condition::Served), device(3, Condition::Waiting)]);
    }
}
