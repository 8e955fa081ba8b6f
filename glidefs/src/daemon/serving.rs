//! The daemon while it serves: from the first request of the API to the signal to stop.
//!
//! Owns the order of stop, signals, and the messages to systemd. Does not own the API nor the exports.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::collecting::collect;
use super::error::DaemonError;
use super::figures::Parts;
use super::releasing::Releasing;
use super::signals::{SignalThread, Stops};
use super::upgrading::{Order, Upgrading, identity};
use crate::api::{self, Access, Listeners, Readiness, Token, TokenFile};
use crate::config::{Accepted, Config, OnStop};
use crate::handover::{Handed, Launch};
use crate::observe::troubles::{Part, Troubles};
use crate::router::Router;
use crate::worker::Worker;
use crate::worker::load::LOAD_INTERVAL;

/// Pause between attempts to bring exports to the store.
const BRING_PAUSE: Duration = Duration::from_mins(5);
/// How long operations on exports may take to end before an upgrade.
const OPERATIONS_PATIENCE: Duration = Duration::from_mins(1);
/// How long a signal that was taken may be on its way through the runtime.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(20);
/// How long a stop that removes the devices waits until all data is written back. TimeoutStopSec of systemd/glidefs.service is longer.
const DRAIN_PATIENCE: Duration = Duration::from_secs(30);
/// How long systemd's watchdog waits for the next program, which has no workers to answer for it while it recovers the log.
const UPGRADE_WATCHDOG: Duration = Duration::from_mins(30);
/// How long a worker may take to answer a ping before the watchdog is no longer fed.
const PING_PATIENCE: Duration = Duration::from_secs(10);

/// Serves the API, recovers the devices, and stops at a signal, or at the order to go on as another program, which is returned: devices are
/// still served then. No error once exports are recovered.
pub(super) async fn serve(
    config: &Config,
    parts: Parts,
    handed: Option<Handed>,
    launch: Launch,
    signals: SignalThread,
) -> Result<Option<Order>, DaemonError> {
    let mut stops =
        Stops::listen().map_err(|source| DaemonError::System { what: "waiting for signals", source })?;
    let troubles = Arc::clone(&parts.troubles);
    let listeners =
        Listeners::open(config.api.listen.0, &config.api.socket, config.api.group.as_deref(), &troubles)
            .await;
    let access = Access {
        token: config.api.token_file.as_deref().map(|path| TokenFile::new(path, troubles)),
        hosts: config.api.hosts.clone(),
        connections_max: config.api.connections_max,
    };
    let (parts, ready) = (Arc::new(parts), Readiness::default());
    let (stop, stopped) = watch::channel(false);
    let last = handed.as_ref().map(|handed| handed.upgrade.clone());
    let (upgrades, mut orders) =
        Upgrading::new(launch, identity(config), Arc::clone(&parts.router), ready.clone(), last);
    let state = parts.state(config, ready.clone(), Arc::clone(&upgrades));
    let releasing = Releasing::new(&parts.workers, Arc::clone(&state.stats.changes));
    let mut serving = tokio::spawn(api::serve(listeners, state, access, stopped));
    let watchdog = tokio::spawn(feed_watchdog(parts.workers.clone(), Arc::clone(&parts.troubles)));
    let sampling = tokio::spawn(sample_loads(parts.workers.clone()));
    let collecting = parts.store.clone().filter(|_| !config.store.gc_interval.0.is_zero()).map(|store| {
        tokio::spawn(collect(
            Arc::clone(&parts.router),
            Arc::clone(store.stats()),
            config.store.gc_interval.0,
            Arc::clone(&parts.collections),
        ))
    });

    let (begin, has_store) = (Arc::clone(&parts.router), parts.store.is_some());
    let (accepted, source) = (Accepted::of(&config.path), config.source.clone());
    let recovering = tokio::spawn(async move {
        let recovery = begin.start().await;
        tracing::info!(
            recovered = recovery.recovered,
            attached = recovery.attached,
            detached = recovery.detached,
            failed = recovery.failed,
            waiting = recovery.waiting,
            seconds = recovery.elapsed.as_secs_f64(),
            "every export has what it should have, or waits for the store"
        );
        if let Some(handed) = handed {
            handed.way_back.close();
            set_watchdog(sd_notify::watchdog_enabled());
        }
        ready.set();
        notify(&[NotifyState::Ready]);
        drop(tokio::task::spawn_blocking(move || accept(accepted, &source)));
        let reconcile = async {
            if has_store {
                reconcile_with_store(Arc::clone(&begin)).await;
            }
        };
        tokio::join!(reconcile, releasing.run());
    });
    let order = tokio::select! {
        () = stops.next() => None,
        order = orders.recv() => order,
    };
    drop(orders);
    recovering.abort();
    if order.is_some() {
        let monotonic = NotifyState::monotonic_usec_now().unwrap_or(NotifyState::MonotonicUsec(0));
        notify(&[NotifyState::Reloading, monotonic]);
        set_watchdog(sd_notify::watchdog_enabled().map(|_| UPGRADE_WATCHDOG));
        let ending = async {
            // An operation that is cut off is finished by the next program, as after a kill.
            if tokio::time::timeout(OPERATIONS_PATIENCE, parts.router.stop()).await.is_err() {
                tracing::warn!("some operations on exports did not end before the upgrade");
            }
            end_api(&stop, &mut serving).await;
        };
        if ends_before_a_stop(ending, &mut stops, signals).await {
            return Ok(order);
        }
    }
    notify(&[NotifyState::Stopping]);
    parts.router.stop().await;
    if config.control.on_stop == OnStop::Remove {
        let left = parts.router.remove_devices().await;
        if left > 0 {
            tracing::warn!(
                devices = left,
                "some devices could not be removed; they wait for the next daemon"
            );
        }
        if has_store {
            drain(&parts.router, DRAIN_PATIENCE).await;
        }
    }
    watchdog.abort();
    sampling.abort();
    if let Some(collecting) = collecting {
        collecting.abort();
    }
    end_api(&stop, &mut serving).await;
    Ok(None)
}

/// Whether `ending` ends before the daemon is told to stop. Later signals wait for the next program of this process.
async fn ends_before_a_stop(
    ending: impl Future<Output = ()>,
    stops: &mut Stops,
    signals: SignalThread,
) -> bool {
    tokio::select! {
        () = ending => {}
        () = stops.next() => return false,
    }
    signals.end();
    // A signal taken by the thread before its end.
    tokio::time::timeout(SIGNAL_PATIENCE, stops.next()).await.is_err()
}

/// Keeps the configuration with which this daemon serves for a start that refuses the file.
fn accept(accepted: Option<Accepted>, source: &str) {
    if let Some(Err(error)) = accepted.map(|accepted| accepted.keep(source)) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "a start with a broken configuration could not go on with that of today");
    }
}

/// Ends the API, unless it has ended.
async fn end_api(stop: &watch::Sender<bool>, serving: &mut JoinHandle<()>) {
    // A task whose result was taken is not asked again.
    if stop.send_replace(true) {
        return;
    }
    if let Err(error) = serving.await {
        tracing::warn!(error = %error, "the API's task failed");
    }
}

/// Refuses a group that does not exist and a token that cannot be read. The daemon starts without them.
pub(super) fn check_access(config: &Config) -> Result<(), DaemonError> {
    config.api.group.as_deref().map(api::group).transpose()?;
    config.api.token_file.as_deref().map(Token::load).transpose()?;
    Ok(())
}

/// Writes everything back within `patience`, because the host may be given up after the stop.
async fn drain(router: &Arc<Router>, patience: Duration) {
    match tokio::time::timeout(patience, router.drain()).await {
        Ok(drain) if drain.written_back == 0 && drain.failed.is_empty() => {}
        Ok(drain) => {
            for error in &drain.failed {
                tracing::warn!(
                    error = error as &dyn std::error::Error,
                    "an export is not in the store as a whole"
                );
            }
            tracing::info!(
                exports = drain.written_back,
                kept = drain.kept,
                "everything of these exports is in the store, and other hosts may open those that are not kept"
            );
        }
        Err(_) => tracing::warn!(
            seconds = patience.as_secs(),
            "the time to write back is over, and not everything is in the store; what is missing stays in cache.dir"
        ),
    }
}

/// Confirms as long as the daemon runs that exports are still this host's, and brings exports without a volume to the store.
/// Everything is tried again while the store is away.
async fn reconcile_with_store(router: Arc<Router>) {
    let bring = async {
        while router.bring_to_store().await > 0 {
            tokio::time::sleep(BRING_PAUSE).await;
        }
    };
    let confirm = async {
        loop {
            router.confirm().await;
            router.has_to_confirm().await;
        }
    };
    let ((), ()) = tokio::join!(confirm, bring);
}

/// Keeps the loads of the workers up to date, for the placement of queues.
async fn sample_loads(workers: Vec<Worker>) {
    loop {
        tokio::time::sleep(LOAD_INTERVAL).await;
        for worker in &workers {
            worker.load.sample();
        }
    }
}

/// Tells systemd that the daemon lives, as long as every worker answers, or waits in the kernel: a restart would wait for the same disk.
async fn feed_watchdog(workers: Vec<Worker>, troubles: Arc<Troubles>) {
    let interval = sd_notify::watchdog_enabled().unwrap_or(PING_PATIENCE * 3);
    let patience = PING_PATIENCE.min(interval / 3);
    loop {
        let pings = workers.iter().map(async |worker| {
            let answer = tokio::time::timeout(patience, worker.ping()).await;
            (matches!(answer, Ok(Ok(()))), worker)
        });
        let answers = futures_util::future::join_all(pings).await;
        let (waiting, silent): (Vec<_>, Vec<_>) = answers
            .into_iter()
            .filter(|(is_alive, _)| !is_alive)
            .map(|(_, worker)| worker.thread_name())
            .partition(|name| waits_in_kernel(name));
        let cause = waiting.first().map(|name| format!("{name} has waited in the kernel for {patience:?}"));
        troubles.set(Part::Disk, cause);
        if silent.is_empty() {
            notify(&[NotifyState::Watchdog]);
        } else {
            tracing::error!("a worker does not answer; the watchdog is not fed");
        }
        tokio::time::sleep(interval / 3).await;
    }
}

/// Whether the thread of this process with that name is in the state `D` of proc(5): it waits for a disk.
fn waits_in_kernel(name: &str) -> bool {
    let state = format!("({name}) D");
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok())
        .any(|stat| stat.contains(&state))
}

/// Sets the time after which systemd's watchdog ends the service, where there is one.
fn set_watchdog(time: Option<Duration>) {
    if let Some(micros) = time.and_then(|time| u32::try_from(time.as_micros()).ok()) {
        notify(&[NotifyState::WatchdogUsec(micros)]);
    }
}

/// Tells systemd. Without systemd nothing happens.
fn notify(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(error = %error, "systemd could not be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ServeError;

    #[test]
    fn a_group_or_a_token_that_is_not_there_is_refused_by_a_check() {
        let mut config = Config::default();
        assert!(super::super::check(&config).is_ok());
        config.api.group = Some("no-such-group-here".into());
        assert!(matches!(super::super::check(&config), Err(DaemonError::Serve(ServeError::NoGroup { .. }))));
        config.api.group = None;
        config.api.token_file = Some("/no/such/file".into());
        assert!(matches!(super::super::check(&config), Err(DaemonError::Token(_))));
    }
}
