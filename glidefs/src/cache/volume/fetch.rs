//! Fetching from the store the data missing here for a READ, on the control threads.
//!
//! Owns how long a READ waits for the store, and the events that end the wait. Does not own the probes of a store which is away
//! (`store::outage`). Invariants: a READ fails only for a reason that no waiting would mend, or because the export limits the
//! wait; a READ that waits for a store which cannot be reached holds no turn, no place and no memory for blocks; when the daemon
//! stops there is no answer.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use crate::cache::volume::error::IoError;
use crate::cache::volume::gate::Gate;
use crate::observe::repeat::Repeat;
use crate::properties::OnUnreachable;
use crate::store;
use crate::store::volume::{Loss, VolumeError};
use crate::units::{ExportId, SECTOR_BYTES, SectorRange};

/// Bytes fetched from the store for a READ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fill {
    range: SectorRange,
    bytes: Bytes,
    /// The parts of the range which the store alone had at the time of the question. The sectors between were newer here, and may
    /// have left for the store after these bytes were read there.
    missing: Vec<SectorRange>,
}

impl Fill {
    /// The bytes of `range`, good for the `missing` parts of the range; `None` when `bytes` has another length than the range.
    pub fn new(range: SectorRange, bytes: Bytes, missing: Vec<SectorRange>) -> Option<Self> {
        (range.bytes() == Some(bytes.len() as u64)).then_some(Self { range, bytes, missing })
    }

    /// The bytes of `range`, if all of the bytes are good.
    pub(in crate::cache) fn part(&self, range: SectorRange) -> Option<&[u8]> {
        let within = |good: &SectorRange| good.start() <= range.start() && range.end() <= good.end();
        self.missing.iter().find(|good| within(good))?;
        let skipped = range.start().checked_sub(self.range.start())?.checked_mul(SECTOR_BYTES)?;
        let start = usize::try_from(skipped).ok()?;
        let len = usize::try_from(range.bytes()?).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }
}

/// Longest future of a fetch, bytes: each tag of each device may have one.
const FETCH_BYTES_MAX: usize = 1200;

pub(in crate::cache) struct Fetch {
    pub remote: store::volume::VolumeWriter,
    pub export: ExportId,
    /// The range to fetch, which begins and ends with sectors of `missing`.
    pub range: SectorRange,
    pub missing: Vec<SectorRange>,
    pub on_unreachable: OnUnreachable,
    /// The gate of the volume: ends the fetch, and is told when the volume turns out to belong to another writer.
    pub gate: Arc<Gate>,
    pub repeat: Arc<Repeat>,
}

impl Fetch {
    /// Fetches, and sends the answer to `sender`. Ends without an answer when the receiver is gone, or the daemon stops.
    pub fn run(
        mut self,
        mut sender: oneshot::Sender<Result<Fill, IoError>>,
    ) -> impl Future<Output = ()> + Send {
        // No async function: the future of one has room for each argument twice.
        let run = async move {
            if let Some(answer) = self.answer(&mut sender).await {
                // A request which is gone needs no answer.
                let _ = sender.send(answer);
            }
        };
        debug_assert!(size_of_val(&run) <= FETCH_BYTES_MAX, "a fetch takes {} bytes", size_of_val(&run));
        run
    }

    async fn answer(
        &mut self,
        sender: &mut oneshot::Sender<Result<Fill, IoError>>,
    ) -> Option<Result<Fill, IoError>> {
        let limit = match self.on_unreachable {
            OnUnreachable::Wait => None,
            OnUnreachable::FailAfter(limit) => Some(Box::pin(sleep(limit))),
        };
        let read = tokio::select! {
            biased;
            () = sender.closed() => return None,
            () = self.remote.stopped() => return None,
            reason = self.gate.closed() => return Some(Err(reason)),
            () = after(limit) => {
                self.log("reading from the store took longer than the export allows", None);
                return Some(Err(IoError::Store));
            }
            read = self.remote.read_waiting(self.range, &self.missing) => read,
        };
        Some(match read {
            Ok(bytes) => {
                Fill::new(self.range, bytes, std::mem::take(&mut self.missing)).ok_or(IoError::Store)
            }
            // Nobody is told: the kernel asks the next daemon again.
            Err(error) if error.is_stopping() => return None,
            Err(error @ VolumeError::Damaged { .. }) => {
                self.log("data was lost before the store had it", Some(&error));
                Err(IoError::Damaged)
            }
            Err(error) => {
                self.log("reading from the store failed", Some(&error));
                if error.is_fatal() {
                    self.gate.lose(why_lost(&self.remote));
                }
                Err(if error.is_fatal() { why_lost(&self.remote) } else { IoError::Store })
            }
        })
    }

    fn log(&self, message: &str, error: Option<&VolumeError>) {
        let Some(suppressed) = self.repeat.pass() else { return };
        tracing::error!(
            export = self.export.0,
            first_sector = self.range.start(),
            sectors = self.range.count(),
            suppressed,
            error = error.map(|error| error as &dyn std::error::Error),
            "{message}"
        );
    }
}

/// Returns at `limit`; never without a limit.
async fn after(limit: Option<Pin<Box<Sleep>>>) {
    match limit {
        Some(limit) => limit.await,
        None => std::future::pending().await,
    }
}

/// Why no data is served of a volume lost to another writer or another history.
pub(in crate::cache) fn why_lost(remote: &store::volume::VolumeWriter) -> IoError {
    match remote.loss() {
        Some(Loss::Diverged(_)) => IoError::Diverged,
        _ => IoError::Fenced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_gives_what_it_has_and_nothing_else() {
        let range = |start, count| SectorRange::new(start, count).unwrap();
        let bytes: Vec<u8> = (0..4u8).flat_map(|sector| [sector; 512]).collect();
        assert_eq!(Fill::new(range(10, 3), Bytes::from(bytes.clone()), vec![range(10, 3)]), None);
        let fill = Fill::new(range(10, 4), Bytes::from(bytes.clone()), vec![range(10, 4)]).unwrap();
        assert_eq!(fill.part(range(12, 2)).unwrap()[0], 2);
        assert_eq!(fill.part(range(10, 4)).map(<[u8]>::len), Some(2048));
        let holed = Fill::new(range(10, 4), Bytes::from(bytes), vec![range(10, 1), range(12, 2)]).unwrap();
        assert_eq!(holed.part(range(10, 1)).unwrap()[0], 0);
        assert_eq!(holed.part(range(13, 1)).unwrap()[0], 3);
        assert_eq!(holed.part(range(11, 1)), None, "it was newer here");
        assert_eq!(holed.part(range(10, 4)), None);
        assert_eq!(fill.part(range(9, 1)), None);
        assert_eq!(fill.part(range(13, 2)), None);
    }
}
