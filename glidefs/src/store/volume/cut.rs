//! The interface through which the cache hands a cut over to be written back.
//!
//! Owns the interface only. Does not own when a cut is made. Invariant, kept by the implementation: when [`CutSource::settled`] has
//! ended well, everything a cut gives is stable on the local disk, so a crash cannot take back writes that the store has.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::store::error::BoxError;
use crate::units::{SectorRange, Seq};

/// A run of sectors in a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutExtent {
    /// Sectors of the run. Not empty, and inside the volume.
    pub range: SectorRange,
    /// Sequence number of the write that wrote the sectors.
    pub seq: Seq,
    /// The sectors are zero: by WRITE_ZEROES or by DISCARD.
    pub zero: bool,
}

/// A cut: the newest state, at one sequence number, of every range that changed since the last committed cut.
///
/// After a commit that failed, or a crash that lost the answer to a commit, the next cut has every range of the failed one, in
/// the newest state.
pub trait CutSource: Send + Sync {
    /// Sequence number of the cut: the cut has every write up to this number, and no later write.
    fn seq(&self) -> Seq;

    /// Changed ranges: ascending, without overlaps. A commit joins neighbours.
    fn extents(&self) -> &[CutExtent];

    /// Fills `buffer` with the content of `range`, which lies inside one extent of data. The source has verified the bytes,
    /// except for sectors that [`Self::damaged`] lists from then on: the bytes of such sectors mean nothing. Called on threads
    /// that may block; called again for the same range when a commit begins anew.
    fn read(&self, range: SectorRange, buffer: &mut [u8]) -> Result<(), BoxError>;

    /// Ends when a crash of this host cannot take the cut back any more. Asked for each try of a commit. Packs may be uploaded
    /// before: only a manifest tells the store of the cut.
    fn settled(&self) -> BoxFuture<'_, Result<(), BoxError>> {
        std::future::ready(Ok(())).boxed()
    }

    /// Damaged sectors, ascending: the content was lost on the local disk. A damaged sector may be inside an extent or outside;
    /// the store answers reads of a damaged sector with an error until a later cut has the sector. The list is complete when
    /// every extent was read.
    fn damaged(&self) -> Vec<SectorRange> {
        Vec::new()
    }

    /// Whether [`Self::damaged`] lists sectors that failed to be read this time, but that another try may be able to read.
    fn may_come_back(&self) -> bool {
        false
    }

    /// Whether one of the sectors that failed to be read can be read now. Called on a thread that may block, right before the
    /// sectors are listed as damaged for good.
    fn has_come_back(&self) -> bool {
        false
    }
}
