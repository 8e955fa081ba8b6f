//! The driver of the container storage interface (CSI): volumes of Kubernetes and other orchestrators from exports of this host.
//!
//! ```text
//! kubelet, sidecars ── gRPC on a Unix socket ── identity, controller, node ── daemon ── HTTP API of the glidefs daemon
//!                                                                      └── file_system, mounts ── tools ── mkfs, mount, …
//! ```
//!
//! Owns the translation between the interface and the API, and the file systems on devices. Does not own exports, devices or snapshots
//! (the daemon does). Invariants: the driver remembers nothing, so the driver may be killed at any moment, and a repeated call does the
//! rest; only a format that was cut short is left to a person, and the error has the remedy. A call goes on when its caller goes away,
//! and no second call works on the same volume meanwhile. Only exports that the driver made are deleted, and none that is mounted. A
//! device is formatted only if blkid finds nothing on the device, and the daemon knows that nothing was ever written, or each byte was
//! read and is zero.

mod capabilities;
mod capacity;
mod controller;
mod daemon;
mod error;
mod file_system;
mod identity;
mod mounts;
mod names;
mod node;
mod operations;
mod paging;
mod parameters;
mod proto;
mod serve;
mod tools;
mod topology;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tonic::{Response, Status};

use self::daemon::Daemon;
use self::error::CsiError;
use self::operations::Operations;
pub(crate) use self::serve::{ServeError, run};
pub(crate) use self::topology::HostTopology;
use crate::client::Client;

/// The name by which orchestrators know the driver.
const DRIVER_NAME: &str = "csi.glidefs.io";
/// Most calls at once: more wait.
const CALLS_MAX: u32 = 1 << 16;

/// The settings of the driver.
#[derive(Debug)]
pub(crate) struct Options {
    /// The Unix socket to listen on.
    pub socket: PathBuf,
    /// This host.
    pub host: HostTopology,
    /// Whether each host has a controller of its own. Then ControllerExpandVolume and ControllerModifyVolume, which Kubernetes asks of
    /// one controller for all hosts, are not offered.
    pub node_deployment: bool,
}

/// The driver: the state of all calls.
#[derive(Debug)]
struct Driver {
    daemon: Daemon,
    host: HostTopology,
    operations: Operations,
    /// The calls under way, whether or not their callers wait: each has a permit.
    calls: Arc<Semaphore>,
    node_deployment: bool,
}

/// The answer to a call.
type Answer<T> = Result<Response<T>, Status>;

/// A service of the driver, as gRPC calls it.
#[derive(Clone, Debug)]
struct Service(Arc<Driver>);

impl Service {
    fn new(client: Client, host: HostTopology, node_deployment: bool) -> Self {
        Self(Arc::new(Driver {
            daemon: Daemon::new(client),
            host,
            operations: Operations::default(),
            calls: Arc::new(Semaphore::new(CALLS_MAX as usize)),
            node_deployment,
        }))
    }

    /// Carries out the call `name`. The work goes on when the caller goes away: half of a mount is worse than a mount which
    /// nobody waits for.
    async fn answer<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T, CsiError>> + Send + 'static,
    ) -> Answer<T> {
        let call = Arc::clone(&self.0.calls).acquire_owned().await;
        let done = tokio::spawn(async move {
            let _call = call;
            let done = work.await;
            if let Err(error) = &done {
                tracing::warn!(call = name, error = error as &dyn std::error::Error, "a call failed");
            }
            done
        });
        let done = done.await.unwrap_or(Err(CsiError::Broken));
        done.map(Response::new).map_err(Status::from)
    }
}

impl Driver {
    /// Waits until no call is under way.
    async fn ended(&self) {
        // An error would mean that the semaphore is closed, which nothing does.
        let _ = self.calls.acquire_many(CALLS_MAX).await;
    }
}

/// A service of the interface: the calls which a function of the driver answers, and those which are refused with a reason.
macro_rules! calls {
    ($service:ident, { $($call:ident($request:ty) -> $answer:ty = $work:ident;)* },
     refused { $($none:ident($none_request:ty) -> $none_answer:ty = $reason:literal;)* }) => {
        #[tonic::async_trait]
        impl $service for Service {
            $(async fn $call(&self, request: tonic::Request<$request>) -> Answer<$answer> {
                let driver = self.0.clone();
                self.answer(stringify!($call), async move { driver.$work(request.into_inner()).await }).await
            })*
            $(async fn $none(&self, _: tonic::Request<$none_request>) -> Answer<$none_answer> {
                Err(tonic::Status::unimplemented($reason))
            })*
        }
    };
}
use calls;

/// A required field, or `INVALID_ARGUMENT`.
fn required(field: &'static str, value: String) -> Result<String, CsiError> {
    if value.is_empty() { Err(CsiError::missing(field)) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn the_end_of_the_last_call_is_waited_for_also_when_its_caller_has_gone() {
        let host = HostTopology { node_id: "host-1".into(), shared_store: None };
        let service = Service::new(Client::of_socket(Path::new("/nonexistent/glidefs.sock")), host, false);
        service.0.ended().await;
        let (end, told) = oneshot::channel::<()>();
        let call = service.answer("probe", async move { told.await.map_err(|_| CsiError::Broken) });
        assert!(tokio::time::timeout(Duration::from_millis(10), call).await.is_err());
        let ended = service.0.ended();
        tokio::pin!(ended);
        assert!(futures_util::poll!(&mut ended).is_pending());
        end.send(()).unwrap();
        ended.await;
    }
}
