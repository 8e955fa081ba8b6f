//! What the cache hands over to be stored: a cut.
//!
//! Owns the interface only. Does not own when a cut is made. Invariant, kept by who makes one: everything a cut gives is
//! stable where it comes from, so that no crash can take back what the store then has.

use crate::store::error::BoxError;
use crate::units::{SectorRange, Seq};

/// A run of sectors in a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutExtent {
    /// Which sectors. Not empty, and inside the volume.
    pub range: SectorRange,
    /// When they were written.
    pub seq: Seq,
    /// They are zero: written so by command, or discarded.
    pub zero: bool,
}

/// The newest state of every range that changed since the last cut that was committed, at one sequence number.
///
/// After a commit that failed, or whose answer was lost by a crash, the next cut has everything that one had, in its newest
/// state.
pub trait CutSource: Send + Sync {
    /// Everything up to here is in the cut, and nothing behind it.
    fn seq(&self) -> Seq;

    /// What changed: ascending, without overlaps. Neighbours are joined when they are stored.
    fn extents(&self) -> &[CutExtent];

    /// Fills `buffer` with `range`, which lies inside one extent that is data, from memory or disk. The source has verified the
    /// bytes, but for those of sectors that [`Self::damaged`] lists from then on. Called on threads that may block, again if a
    /// commit has to begin anew.
    fn read(&self, range: SectorRange, buffer: &mut [u8]) -> Result<(), BoxError>;

    /// Sectors whose content was lost where the sectors were written, ascending: in an extent or not, a read of one fails until a
    /// later cut has the sector. Complete when every extent was read.
    fn damaged(&self) -> Vec<SectorRange> {
        Vec::new()
    }

    /// Whether [`Self::damaged`] lists sectors that could not be read, and that another try may be able to read.
    fn may_come_back(&self) -> bool {
        false
    }

    /// Whether one of those sectors can be read by now. Called on a thread that may block, before they are stored as lost for good.
    fn has_come_back(&self) -> bool {
        false
    }
}
