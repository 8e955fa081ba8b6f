//! Devices whose server has ended, marked before the kernel comes to them.
//!
//! After the end of a server the kernel goes through the commands of each of the server's rings, one after the other. At each device
//! the kernel waits until no CPU can take the device for a served one any more: for a grace period of RCU, about 15 ms. Until the last
//! one the next server gets neither a device nor the lock of the cache, which the rings hold. QUIESCE_DEV begins with the same wait,
//! and many of these commands wait at the same time; a device that is marked costs the kernel no wait any more.
//!
//! Owns the choice of devices. Does not own the commands (`many`). Invariants: only a device of this cache is marked, of a server that
//! has ended; a device whose command may still come is not touched by this process, because the command would take the device from
//! this process as well.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::control;
use super::driver::{Info, Server, State};
use super::features::Features;
use super::many::{self, Encoding};
use crate::router::devices::DeviceId;

/// Marks the devices of the cache with `tag` that an ended server has left, as far as the kernel does so within `limit`. Blocks. Call
/// when no other process can serve the cache, and this one does not yet. Returns the devices which this process must not touch: the command
/// that marks the device may still come.
pub fn mark_abandoned(tag: u32, features: Features, limit: Duration) -> HashSet<DeviceId> {
    if !features.quiesce() {
        return HashSet::new();
    }
    let encoding = features.encoding();
    let marked = abandoned(tag, encoding, limit).and_then(|devices| {
        let late = many::quiesce(&devices, encoding, limit)?;
        tracing::debug!(devices = devices.len(), "devices of the server before are marked");
        Ok(late)
    });
    let late = marked.unwrap_or_else(|error| {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "the kernel lets the devices go of the daemon before one after the other");
        Vec::new()
    });
    for id in &late {
        tracing::error!(
            device_id = id.0,
            seconds = limit.as_secs(),
            "QUIESCE_DEV did not return in time: the device is left alone until the daemon is started again"
        );
    }
    late.into_iter().collect()
}

/// The devices that QUIESCE_DEV is sent for.
fn abandoned(tag: u32, encoding: Encoding, limit: Duration) -> io::Result<Vec<DeviceId>> {
    let devices = control::all(encoding, limit).map_err(io::Error::other)?;
    let answered = devices.into_iter().filter_map(|(id, info)| Some((id, info.ok()??)));
    let markable: Vec<_> = answered.filter(|(_, info)| is_markable(tag, *info)).collect();
    let servers: HashSet<Server> = markable.iter().map(|(_, info)| info.server).collect();
    let ended: HashSet<Server> = servers.into_iter().filter(|server| has_ended(*server)).collect();
    Ok(markable.into_iter().filter(|(_, info)| ended.contains(&info.server)).map(|(id, _)| id).collect())
}

/// Whether a device is a live one of the cache with `tag`, and QUIESCE_DEV harms no request of the device.
fn is_markable(tag: u32, info: Info) -> bool {
    info.owner_tag >> 32 == u64::from(tag) && info.state == State::Live && info.can_be_taken_back
}

/// Whether a server has certainly ended.
fn has_ended(server: Server) -> bool {
    match server {
        Server::Ended => true,
        // The number of this process is that of the program before after an upgrade, or of a server in another container.
        Server::Process(process) => process == std::process::id() || !is_running(process),
        Server::Unknown => false,
    }
}

/// Whether there is a process of this number that has not ended, as far as can be told; a process stays in the list until the parent takes
/// note of the end.
fn is_running(process: u32) -> bool {
    let Ok(number) = i32::try_from(process) else { return true };
    if kill(Pid::from_raw(number), None) == Err(Errno::ESRCH) {
        return false;
    }
    // A process that cannot be looked at, for whatever reason, runs.
    let Ok(stat) = fs::read_to_string(format!("/proc/{process}/stat")) else { return true };
    // "PID (name) state …": the name may hold anything.
    let state = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().next());
    !matches!(state, Some("Z" | "X"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const OURS: Info =
        Info { state: State::Live, owner_tag: 7 << 32 | 1, server: Server::Ended, can_be_taken_back: true };

    #[test]
    fn only_a_live_device_of_this_cache_whose_requests_outlive_it_is_marked() {
        assert!(is_markable(7, OURS));
        assert!(!is_markable(8, OURS), "another daemon's");
        assert!(!is_markable(7, Info { can_be_taken_back: false, ..OURS }), "requests would fail");
        for state in [State::Dead, State::Quiesced, State::Failing] {
            assert!(!is_markable(7, Info { state, ..OURS }), "{state:?}");
        }
    }

    #[test]
    fn a_server_that_lives_is_told_from_one_that_has_ended() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let server = Server::Process(child.id());
        assert!(!has_ended(server));
        drop(child.stdin.take());
        // Nobody takes note of the end yet.
        while is_running(child.id()) {
            std::thread::yield_now();
        }
        assert!(has_ended(server));
        child.wait().unwrap();
        assert!(has_ended(server));
        assert!(has_ended(Server::Process(std::process::id())), "this process serves nothing yet");
        assert!(has_ended(Server::Ended));
        assert!(!has_ended(Server::Unknown), "perhaps in another container");
    }
}
