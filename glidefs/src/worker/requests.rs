//! A request in a worker's hands.
//!
//! Owns everything which travels with a request until the answer: the tag, the time of arrival, the buffer.
//! Invariant: an [`InFlight`] lives exactly as long as the tag holds the request, so the tag's stable buffer is valid.

use std::ptr::NonNull;
use std::time::Instant;

use super::tag::TagId;
use super::traces;
use crate::buffer::Slot;
use crate::cache::{Fill, Reservation, Token};
use crate::export::Operation;
use crate::observe::trace::Part;
use crate::units::SectorRange;

/// A request of a tag, without a buffer.
#[derive(Clone, Copy, Debug)]
pub struct TagRequest {
    pub tag: TagId,
    pub operation: Operation,
    /// Empty for FLUSH.
    pub range: SectorRange,
    /// The request is acknowledged only when its data survives a power cut (WRITE, DISCARD and WRITE_ZEROES).
    pub fua: bool,
    /// Sectors which the volume keeps for the request (`Volume::index_pace`).
    pub kept: Option<SectorRange>,
    /// The volume counts the data as promised (`Volume::pace`).
    pub promised: bool,
    /// Begin of the turn in which the request came.
    pub started: Instant,
}

impl TagRequest {
    /// Bytes of data in the request's buffer, at most those of the largest request: `Export::check` refused larger ones.
    pub fn data_bytes(&self) -> usize {
        match self.operation {
            Operation::Read | Operation::Write => {
                self.range.bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX)
            }
            Operation::Flush | Operation::Discard | Operation::WriteZeroes => 0,
        }
    }

    /// The request in flight, without a buffer.
    pub fn without_buffer(self) -> InFlight {
        InFlight { request: self, buffer: RequestBuffer::None }
    }
}

/// Everything that a request has gathered before a buffer is taken for it.
pub enum Errand {
    /// The log space held for a WRITE.
    Write(Reservation),
    /// The data fetched from the store for a READ; `None` where nothing was fetched.
    Read(Option<Fill>),
}

/// Memory of a request's data.
pub enum RequestBuffer {
    /// The request has no data, or the data was lent to the ring or is in the log.
    None,
    /// A slot of the worker's pool.
    Slot(Slot),
    /// The tag's own buffer (bounce mode).
    Stable(NonNull<[u8]>),
}

/// A request on which the cache works.
pub struct InFlight {
    pub request: TagRequest,
    pub buffer: RequestBuffer,
}

impl RequestBuffer {
    /// The bytes of the buffer; none where there is no buffer.
    pub fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::None => &mut [],
            Self::Slot(slot) => slot,
            // SAFETY: the driver keeps the tag's buffer until the driver is dropped, which is after every tag is gone, and a
            // tag with a request is not gone. The kernel touches the buffer only between the answer and the next request.
            Self::Stable(bytes) => unsafe { bytes.as_mut() },
        }
    }
}

impl Token for InFlight {
    type Part = Slot;

    fn buffer(&mut self) -> &mut [u8] {
        self.buffer.bytes()
    }

    fn is_lendable(&self) -> bool {
        matches!(self.buffer, RequestBuffer::Slot(_))
    }

    fn lend(&mut self, bytes: usize) -> Option<Slot> {
        match std::mem::replace(&mut self.buffer, RequestBuffer::None) {
            RequestBuffer::Slot(mut slot) => {
                slot.shorten(bytes);
                Some(slot)
            }
            // The ring must own the memory of an append, and a tag's own buffer belongs to the driver.
            other => {
                self.buffer = other;
                None
            }
        }
    }

    fn give_back(&mut self) {
        self.buffer = RequestBuffer::None;
    }

    #[inline]
    fn enters(&self, part: Part) {
        traces::enter(self.request.tag, part);
    }
}

const _: () = assert!(size_of::<TagRequest>() <= 72);
