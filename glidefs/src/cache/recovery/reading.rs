//! Reading and checking segment files, on any thread.
//!
//! Does not own the meaning of the findings (`identify`, `segments`), or their order. Invariants: nothing is written, and no state of
//! the recovery is changed except the patience that all reads share; so files may be read in any order, and ahead of their turn.

use std::io;
use std::sync::Arc;

use super::patience::Patience;
use crate::cache::log::disk::{Disk, SegmentFile};
use crate::cache::log::format::{FooterRecord, Frame, SegmentKey, Trailer};
use crate::cache::log::scan::{self, Identity, Unusable};
use crate::cache::log::walk::{self, Span, Walk};

/// The way to the segment files.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub disk: &'a dyn Disk,
    pub patience: &'a Patience<'a>,
    pub cache_id: [u8; 16],
    /// Number of frames of a segment.
    pub frames: u32,
}

/// The operation that failed, and the error of the disk.
pub(super) type Failed = (&'static str, io::Error);

/// The answer of a segment file to the question which segment the file holds.
pub(super) enum Answer {
    /// The file is shorter than a segment; the first frame.
    Short(io::Result<Box<Frame>>),
    /// The segment as the two ends of the file tell.
    Ends(Identity),
    /// Where the ends tell nothing: the id of the newest segment with a record in the file, and whether all of the file can be read.
    Records { newest: Option<u64>, whole: bool },
}

/// The records of a segment.
pub(super) enum Contents {
    /// As the footer lists the records.
    Footer(Vec<FooterRecord>),
    /// As a walk found the records; with the reason why the footer of a sealed segment is not used.
    Walked { bad_footer: Option<Unusable>, walk: io::Result<Walk> },
}

impl Reader<'_> {
    /// Opens segment file number `number`, and reads which segment the file holds.
    pub fn ask(&self, number: u32) -> Result<(Arc<dyn SegmentFile>, Answer), Failed> {
        let file = self.disk.open_segment(number, 0).map_err(|error| ("opening", error))?;
        let patient = self.patience.with(&*file);
        let answer = match scan::identify(&patient, self.cache_id, self.frames) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Ok(Answer::Short(scan::read_frame(&*file, 0)))
            }
            Ok(None) => scan::newest_segment(&patient, self.cache_id, self.frames)
                .map(|(newest, whole)| Answer::Records { newest, whole }),
            Ok(Some(identity)) => Ok(Answer::Ends(identity)),
            Err(error) => Err(error),
        };
        Ok((file, answer.map_err(|error| ("reading", error))?))
    }

    /// Reads the records of segment `key` in `file`: the footer of `trailer`, or, without a footer that can be used, all of `span`.
    pub fn read(
        &self,
        file: &dyn SegmentFile,
        key: &SegmentKey,
        trailer: Option<&Trailer>,
        span: Span,
    ) -> Contents {
        let file = self.patience.with(file);
        let bad_footer = match trailer.map(|trailer| scan::read_footer(&file, trailer)) {
            Some(Ok(records)) => return Contents::Footer(records),
            Some(Err(error)) => Some(error),
            None => None,
        };
        Contents::Walked { bad_footer, walk: walk::walk(&file, key, span) }
    }
}
