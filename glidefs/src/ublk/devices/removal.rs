//! Takes a device out of service: ends waits, stops the device, waits for the workers, deletes the device.
//!
//! Invariants: a device is deleted only after the workers have let go of all its queues, because any reference to the character
//! device blocks the deletion; only a device with the owner tag of its export is stopped or deleted, because the kernel gives the
//! number of a deleted device away.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{DeviceKey, RELEASE_POLL, UblkDevices};
use crate::locks::MutexExt;
use crate::router::devices::{DeviceError, DeviceId};
use crate::ublk::control;
use crate::units::ExportId;

/// Time for the programs which have a removed device open to notice the removal, before the device's number counts as taken.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

impl UblkDevices {
    /// Fails the waiting requests of a device. The kernel stops a device only when all its requests have ended.
    pub(super) async fn end_waits(&self, key: DeviceKey) {
        let hosted = {
            let hosted = self.hosted.lock_whole();
            hosted.get(&key).map(|hosted| (Arc::clone(&hosted.export), hosted.workers.clone()))
        };
        let Some((export, workers)) = hosted else { return };
        export.volume().end_waits();
        for worker in workers.into_iter().collect::<BTreeSet<_>>() {
            // A worker which has ended takes the process with it.
            let _ = self.workers[worker].end_waits().await;
        }
    }

    /// Stops device `id`, waits until no worker refers to the device, and deletes the device, if the device is that of `export`.
    pub(super) async fn remove(&self, export: ExportId, id: DeviceId) -> Result<(), DeviceError> {
        self.end_waits((export, id)).await;
        self.listed.lock_whole().remove(&id);
        let is_own = self.info((export, id)).await?.is_some();
        let existed = is_own && self.steps.on("STOP_DEV", id, move || control::stop(id)).await?;
        self.let_go((export, id)).await?;
        if !existed {
            return Ok(());
        }
        // The kernel gives the number of a stopped device away only after the deletion.
        self.names.forget(id);
        self.steps.on("DEL_DEV", id, move || control::delete(id)).await?;
        if !self.is_free(id).await {
            tracing::warn!(
                device_id = id.0,
                "the device is removed; the kernel keeps its number until the last program that has it open closes it"
            );
        }
        Ok(())
    }

    /// Returns when no worker refers to a device which has been stopped, or is gone.
    pub(super) async fn let_go(&self, key: DeviceKey) -> Result<(), DeviceError> {
        let patience = self.steps.limit();
        let gone = self.hosted.lock_whole().get(&key).map(|hosted| hosted.gone.clone()).unwrap_or_default();
        for gone in gone {
            // An error means that the worker has ended, and takes the process with it.
            let _ = tokio::time::timeout(patience, gone).await.map_err(|_| DeviceError::TimedOut {
                command: "letting go of the queues",
                path: key.1.path(),
                seconds: patience.as_secs(),
            })?;
        }
        let hosted = self.hosted.lock_whole().remove(&key);
        for worker in hosted.into_iter().flat_map(|hosted| hosted.workers) {
            self.placement.remove(worker);
        }
        Ok(())
    }

    /// Whether the number of a deleted device can be used again soon.
    async fn is_free(&self, id: DeviceId) -> bool {
        let deadline = tokio::time::Instant::now() + CLOSE_PATIENCE;
        loop {
            if self.steps.on("GET_DEV_INFO", id, move || Ok(!control::is_taken(id))).await.unwrap_or(false) {
                return true;
            }
            if tokio::time::Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(RELEASE_POLL).await;
        }
    }

    /// Removes the remains of a failed attach, and gives back its error, with the device if the device stays.
    pub(super) async fn undo(&self, (export, id): DeviceKey, error: DeviceError) -> DeviceError {
        let Err(again) = self.remove(export, id).await else { return error };
        tracing::warn!(
            device_id = id.0,
            error = &again as &dyn std::error::Error,
            "a device that could not be started could not be removed either"
        );
        DeviceError::Left { device: id, source: Box::new(error) }
    }
}
