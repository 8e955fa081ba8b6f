//! How a live device goes to other workers.
//!
//! ```text
//!  LIVE ─pause queues─▶ requests end ─QUIESCE_DEV─▶ queues leave ─▶ character device closed: QUIESCED ─as after a kill─▶ LIVE
//!    ◀─resume─ not soon ──┘ refused ──┘
//! ```
//!
//! Owns the order of the steps. Does not own the choice of the device (`placement::moves`), nor which operations of an export may
//! meet (`router`). Invariants: a device is moved by one caller at a time, who has the right to change the export; the kernel is
//! asked only when no request is in the hands of the workers, so nothing but the kernel can delay what follows; unless the kernel
//! has certainly refused, the only way is forward, and a device stuck on the way is quiesced or about to be, as after the death of a
//! daemon: [`Devices::recover`](crate::router::devices::Devices::recover) goes on from every step, in this daemon or in the next.
//!
//! What the driver does (Linux 6.16 to 7.3) with a device that has a command for each tag:
//!
//! - QUIESCE_DEV marks the device as canceling. From then on the driver parks each new request, and gives none to the server.
//!   There is no way back but the recovery of the device.
//! - The driver then walks over the tags once. A tag armed without a request comes back with `UBLK_IO_RES_ABORT`. A tag whose
//!   request is at the server, or on the way there, is left alone. The command does not wait for these requests. If a
//!   COMMIT_AND_FETCH arms such a tag later, nothing gives the tag back; one in the middle of the walk may even be completed
//!   while being issued. So our queues commit nothing from before the walk on (`worker/queues/pause.rs`).
//! - Later drivers repeat the walk until no request is at the server, for as long as the timeout of the command says, and answer
//!   EBUSY in the end. Our queues commit nothing, so the timeout is short, and EBUSY is no failure.
//! - When the character device is closed for good (descriptors, mappings, file table), the driver takes the requests which are at
//!   the server back (`UBLK_F_USER_RECOVERY_REISSUE`), and the device is QUIESCED. Before, START_USER_RECOVERY fails.
//! - QUIESCE_DEV on a device which is not live may walk over tags which the next server has armed. The steps of one device number
//!   never overlap (`steps`), so the command has ended before the next server begins.
//!
//! With a device that has batches the driver fails each request, instead of parking the request, from QUIESCE_DEV until the next server
//! has armed the tags. So such a device is never moved.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::activity::waits;
use super::{DeviceKey, Stay, UblkDevices};
use crate::export::Export;
use crate::locks::MutexExt;
use crate::router::devices::{DeviceError, DeviceId};
use crate::ublk::control;
use crate::ublk::driver::State;
use crate::ublk::placement::moves::{Candidate, Move, may_be_worth_it, next_move};
use crate::units::ExportId;
use crate::worker::{Worker, pause_idle};

/// Time for the queues to leave before the kernel is asked again to take the tags back.
const LEAVE_PATIENCE: Duration = Duration::from_secs(1);
/// Time for each step of a device on the way. The router tries again later (`router::moving`).
const STEP_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks whether a device is quiesced.
const QUIESCED_POLL: Duration = Duration::from_millis(1);

/// A device to be moved.
struct Choice {
    key: DeviceKey,
    export: Arc<Export>,
    /// The worker of each queue after the move.
    workers: Vec<usize>,
    gain: Move,
}

impl UblkDevices {
    /// Notes how busy the workers and the queues were since the last call. Call after the loads of the workers were sampled.
    pub fn sample(&self) {
        let busy: Vec<u64> = self.workers.iter().map(Worker::busy_percent).collect();
        let mut totals = vec![0_u64; busy.len()];
        let mut hosted = self.hosted.lock_whole();
        for device in hosted.values_mut() {
            for (queue_id, (&worker, queue)) in (0_u16..).zip(device.workers.iter().zip(&mut device.activity))
            {
                if let Some(stats) = device.export.known_queue_stats(queue_id) {
                    queue.look(&stats);
                }
                if let Some(total) = totals.get_mut(worker) {
                    *total = total.saturating_add(queue.recent);
                }
            }
            device.waits = waits(&device.export, &device.activity);
        }
        for device in hosted.values_mut() {
            for (&worker, queue) in device.workers.iter().zip(&mut device.activity) {
                let of_worker = busy.get(worker).zip(totals.get(worker));
                if let Some((&percent, &total)) = of_worker {
                    queue.share(percent, total);
                }
            }
        }
        drop(hosted);
        *self.busy.lock_whole() = busy;
    }

    /// The device to move next, unless the export of the device is one of `except`.
    pub(super) fn next_device(&self, except: &HashSet<ExportId>) -> Option<(Arc<Export>, DeviceId)> {
        let choice = self.choose(|(export, _)| !except.contains(&export))?;
        Some((choice.export, choice.key.1))
    }

    /// The best move of a device which `may_move`.
    fn choose(&self, may_move: impl Fn(DeviceKey) -> bool) -> Option<Choice> {
        let (queues, busy) = (self.placement.queues(), self.busy.lock_whole().clone());
        if !may_be_worth_it(&queues, &busy) {
            return None;
        }
        let (mut keys, mut candidates) = (Vec::new(), Vec::new());
        let hosted = self.hosted.lock_whole();
        for (&key, device) in hosted.iter().filter(|(key, _)| may_move(**key)) {
            let loads: Vec<u64> = device.activity.iter().map(|queue| queue.load).collect();
            let is_idle = loads.iter().all(|&load| load == 0);
            let requests = || is_idle.then(|| device.export.requests().begun());
            if device.stay != Stay::Movable || device.waits || self.rests.is_resting(key, requests) {
                continue;
            }
            keys.push(key);
            candidates.push(Candidate { workers: device.workers.clone(), loads });
        }
        let gain = next_move(&queues, &busy, &candidates)?;
        let key = *keys.get(gain.device)?;
        let mut workers = candidates.swap_remove(gain.device).workers;
        *workers.get_mut(gain.queue)? = gain.to;
        let export = Arc::clone(&hosted.get(&key)?.export);
        Some(Choice { key, export, workers, gain })
    }

    /// Moves a device, if something is still to be gained. `Ok(false)` when the device stays where the device is, in service.
    ///
    /// # Errors
    /// When the device is not in service: the device is quiesced or about to be, and waits to be recovered.
    pub(super) async fn relocate_now(&self, key: DeviceKey) -> Result<bool, DeviceError> {
        let (id, begun) = (key.1, Instant::now());
        let Some(choice) = self.choose(|other| other == key) else { return Ok(false) };
        let from = self.workers_of(key);
        // A step that hangs would keep the queues paused, as QUIESCE_DEV would wait for the step.
        if !self.steps.is_idle(id) || !pause_idle(&from, &choice.export, id.0).await {
            self.rests.stayed(key);
            tracing::debug!(
                export = choice.export.name(),
                device_id = id.0,
                "a device is not moved to other workers: requests or a command are under way"
            );
            return Ok(false);
        }
        if let Err(error) = self.quiesce(id).await {
            for worker in &from {
                worker.resume(id.0);
            }
            self.set_stay(key, Stay::Fixed);
            self.moves_failed.fetch_add(1, Ordering::Relaxed);
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                export = choice.export.name(),
                device_id = id.0,
                error,
                "a device is not moved to other workers, and goes on where it is"
            );
            return Ok(false);
        }
        self.set_stay(key, Stay::Leaving);
        if let Err(error) = self.go_on(&choice).await {
            self.rests.failed(key);
            self.moves_failed.fetch_add(1, Ordering::Relaxed);
            return Err(error);
        }
        self.moves.fetch_add(1, Ordering::Relaxed);
        self.note_load(choice.gain);
        tracing::info!(
            export = choice.export.name(),
            device_id = id.0,
            workers = ?choice.workers,
            load_percent = choice.gain.load,
            pause_millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            "device moved to other workers"
        );
        Ok(true)
    }

    /// Takes a device which the kernel quiesces off the workers, and gives the device to the chosen ones.
    async fn go_on(&self, choice: &Choice) -> Result<(), DeviceError> {
        let (key, export) = (choice.key, Arc::clone(&choice.export));
        let requests = export.requests().begun();
        let activity = self.hosted.lock_whole().get(&key).map(|hosted| hosted.activity.clone());
        self.vacate(key).await?;
        self.take_back(export, key.1, Some(&choice.workers)).await?;
        self.rests.moved(key, requests);
        if let Some(hosted) = self.hosted.lock_whole().get_mut(&key) {
            hosted.activity = activity.unwrap_or_default();
        }
        Ok(())
    }

    fn set_stay(&self, key: DeviceKey, stay: Stay) {
        if let Some(hosted) = self.hosted.lock_whole().get_mut(&key) {
            hosted.stay = stay;
        }
    }

    /// Has the workers let go of a device which the kernel quiesces.
    pub(super) async fn vacate(&self, key: DeviceKey) -> Result<(), DeviceError> {
        for worker in self.workers_of(key) {
            worker.leave(key.1.0);
        }
        let deadline = Instant::now() + STEP_PATIENCE;
        loop {
            match self.let_go(key, LEAVE_PATIENCE).await {
                Err(DeviceError::TimedOut { .. }) if Instant::now() < deadline => {
                    // The walk may have been cut short, or was never begun. The device is live as long as a queue is there. There is
                    // no way back any more, also when the kernel refuses now.
                    if let Err(error) = self.quiesce(key.1).await {
                        let error = &error as &dyn std::error::Error;
                        tracing::debug!(device_id = key.1.0, error, "a device on the way is not quiesced");
                    }
                }
                done => return done,
            }
        }
    }

    /// Asks the kernel to take a device back from this server.
    ///
    /// # Errors
    /// When the kernel has certainly refused. A command that has not returned may still be carried out, and is no error.
    async fn quiesce(&self, id: DeviceId) -> Result<(), DeviceError> {
        let asked = self.steps.on("QUIESCE_DEV", id, move || Ok(control::quiesce(id))).await;
        asked.unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                device_id = id.0,
                error,
                "a device that goes to other workers may be quiesced, or not"
            );
            Ok(())
        })
    }

    /// Serves a device again which the workers have let go of, by the given workers or as the placement says.
    pub(super) async fn take_back(
        &self,
        export: Arc<Export>,
        id: DeviceId,
        workers: Option<&[usize]>,
    ) -> Result<(), DeviceError> {
        self.until_quiesced((export.id(), id)).await?;
        let tag = self.owner_tag(export.id());
        let opened =
            self.steps.on("START_USER_RECOVERY", id, move || control::start_recovery(id, tag)).await?;
        self.serve(export, opened, workers).await.map(drop)
    }

    /// Returns when the kernel has noticed that nobody serves the device any more.
    async fn until_quiesced(&self, key: DeviceKey) -> Result<(), DeviceError> {
        let deadline = Instant::now() + STEP_PATIENCE;
        loop {
            match self.info(key).await?.map(|info| info.state) {
                Some(State::Quiesced) => return Ok(()),
                Some(State::Live) if Instant::now() < deadline => tokio::time::sleep(QUIESCED_POLL).await,
                Some(State::Live) => {
                    return Err(DeviceError::TimedOut {
                        command: "letting go of the device",
                        path: key.1.path(),
                        seconds: STEP_PATIENCE.as_secs(),
                    });
                }
                _ => return Err(DeviceError::NotFound { path: key.1.path() }),
            }
        }
    }

    /// Each worker with a queue of the device.
    fn workers_of(&self, key: DeviceKey) -> Vec<Worker> {
        let hosted = self.hosted.lock_whole();
        let workers: BTreeSet<usize> =
            hosted.get(&key).into_iter().flat_map(|it| &it.workers).copied().collect();
        workers.into_iter().filter_map(|worker| self.workers.get(worker).cloned()).collect()
    }

    /// Takes note that a load has gone to another worker, until the next sample shows the load there.
    fn note_load(&self, Move { from, to, load, .. }: Move) {
        let mut busy = self.busy.lock_whole();
        if let Some(from) = busy.get_mut(from) {
            *from = from.saturating_sub(load);
        }
        if let Some(to) = busy.get_mut(to) {
            *to = to.saturating_add(load);
        }
    }

    /// Devices moved to other workers, and moves that failed, since the daemon started.
    pub fn moves(&self) -> (u64, u64) {
        (self.moves.load(Ordering::Relaxed), self.moves_failed.load(Ordering::Relaxed))
    }
}
