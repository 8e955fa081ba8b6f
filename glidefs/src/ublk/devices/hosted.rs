//! A device which this process serves.
//!
//! Owns what is known of the device: the workers and the load of its queues, and whether the device stays where the device is. Does
//! not own the list of devices.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::activity::Activity;
use crate::export::Export;
use crate::ublk::control::Opened;
use crate::worker::QueueGone;

/// A device this process serves.
pub(super) struct Hosted {
    pub export: Arc<Export>,
    pub gone: Vec<QueueGone>,
    /// The worker of each queue.
    pub workers: Vec<usize>,
    /// The requests of each queue.
    pub activity: Vec<Activity>,
    /// Whether requests wait for something that may take long.
    pub waits: bool,
    pub stay: Stay,
    /// When the device was moved last.
    pub moved: Option<Instant>,
    /// Tells whether the kernel has quiesced the device after the time limit of QUIESCE_DEV.
    pub late: Option<oneshot::Receiver<bool>>,
}

/// Whether a device stays with its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// The kernel cannot take the device back from this server, or has refused to.
    Fixed,
    /// The device may be moved.
    Movable,
    /// The kernel has quiesced the device after the time limit of QUIESCE_DEV: the device must be moved.
    Overdue,
    /// The queues leave: the device is being moved, or could not be given to other workers.
    Leaving,
}

impl Hosted {
    pub fn new(export: Arc<Export>, opened: &Opened) -> Self {
        let activity = (0..opened.queues()).map(|queue_id| Activity::begin(&export.queue_stats(queue_id)));
        Self {
            activity: activity.collect(),
            export,
            gone: Vec::new(),
            workers: Vec::new(),
            waits: false,
            stay: if opened.can_be_moved() { Stay::Movable } else { Stay::Fixed },
            moved: None,
            late: None,
        }
    }

    /// Whether the kernel has quiesced the device although QUIESCE_DEV seemed to have failed.
    pub fn was_quiesced_late(&mut self) -> bool {
        match self.late.as_mut().map(oneshot::Receiver::try_recv) {
            None | Some(Err(oneshot::error::TryRecvError::Empty)) => {}
            Some(answer) => {
                self.late = None;
                if answer == Ok(true) {
                    self.stay = Stay::Overdue;
                }
            }
        }
        self.stay == Stay::Overdue
    }
}
