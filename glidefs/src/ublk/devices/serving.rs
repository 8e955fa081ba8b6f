//! Takes a device into service: makes and arms its queues on the workers, then starts the device.
//!
//! Does not own the choice of the worker for each queue (`placement`). Invariant: an armed queue belongs to a hosted device, also when a
//! later queue could not be armed, so the queue is let go of like every other.

use std::sync::Arc;

use futures_util::FutureExt;

use super::{DeviceKey, Hosted, UblkDevices};
use crate::export::Export;
use crate::locks::MutexExt;
use crate::router::devices::{DeviceError, DeviceId};
use crate::ublk::control::{self, Opened};
use crate::ublk::queue::UblkQueue;

impl UblkDevices {
    /// Arms every queue of `opened`, then starts the device.
    pub(super) async fn serve(&self, export: Arc<Export>, opened: Opened) -> Result<DeviceId, DeviceError> {
        let id = opened.id();
        export.volume().allow_waits();
        let mut hosted = Hosted { export: Arc::clone(&export), gone: Vec::new(), workers: Vec::new() };
        let armed = self.arm(&export, &opened, &mut hosted).await;
        // When a queue could not be armed, the queues armed before are let go of like those of a device in service.
        self.host((export.id(), id), hosted);
        armed?;
        self.steps.on("START_DEV", id, move || control::start(&opened)).await?;
        Ok(id)
    }

    /// Takes a device among those of this process. The queues of an entry which is replaced count no more.
    pub(super) fn host(&self, key: DeviceKey, hosted: Hosted) {
        let replaced = self.hosted.lock_whole().insert(key, hosted);
        for worker in replaced.into_iter().flat_map(|replaced| replaced.workers) {
            self.placement.remove(worker);
        }
    }

    async fn arm(
        &self,
        export: &Arc<Export>,
        opened: &Opened,
        hosted: &mut Hosted,
    ) -> Result<(), DeviceError> {
        let id = opened.id();
        let fail = |source| DeviceError::Kernel { command: "mapping the queues", path: id.path(), source };
        let char_device = Arc::new(opened.char_device().map_err(fail)?);
        let encoding = self.features.encoding();
        let queue = |queue_id| {
            let (export, char_device) = (Arc::clone(export), Arc::clone(&char_device));
            UblkQueue::new(export, id.0, queue_id, opened.depth(), encoding, char_device, opened.mode)
        };
        // All queues are made before the first is armed: the kernel gives the armed tags of a device that was taken over back
        // only when this process ends.
        let queues: Vec<_> = (0..opened.queues()).map(queue).collect::<Result<_, _>>().map_err(fail)?;
        for queue in queues {
            let busy: Vec<u64> = self.workers.iter().map(|worker| worker.load.busy_percent()).collect();
            let worker = self.placement.place(&hosted.workers, &busy);
            hosted.workers.push(worker);
            let gone = self.workers[worker]
                .attach(Box::new(queue))
                .await
                .map_err(|error| fail(std::io::Error::other(error)))?;
            hosted.gone.push(gone.shared());
        }
        Ok(())
    }
}
