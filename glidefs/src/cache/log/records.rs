//! All records of a segment to which nothing is appended: from the footer, or else from the record headers.
//!
//! Does not own the reading of footers (`scan`) and headers (`walk`). Invariant: nothing is written, and each record returned was
//! checked.

use std::io;

use super::disk::SegmentFile;
use super::format::{FooterRecord, Trailer};
use super::info::SegmentInfo;
use super::life::State;
use super::scan::{self, Identity, Unusable};
use super::table::SegmentTable;
use super::walk::{self, Span};

/// The records of a segment.
#[derive(Debug)]
pub(in crate::cache) struct Records {
    pub records: Vec<FooterRecord>,
    /// The trailer of a sealed segment with a whole footer.
    pub trailer: Option<Trailer>,
    /// No record is missing.
    pub whole: bool,
    /// Why the footer was not used, though there is a trailer.
    pub bad_footer: Option<Unusable>,
}

/// Reads the records of the segment `info`, whose file is `file`.
pub(in crate::cache) fn read_records(
    file: &dyn SegmentFile,
    table: &SegmentTable,
    info: &SegmentInfo,
) -> io::Result<Records> {
    let key = table.key(info.segment_id());
    let mut bad_footer = None;
    if info.state() == State::Sealed
        && let Ok(Some(Identity::Sealed { trailer, .. })) =
            scan::identify(file, table.cache_id(), table.segment_frames())
        && trailer.key == key
    {
        match scan::read_footer(file, &trailer) {
            Ok(records) => {
                return Ok(Records { records, trailer: Some(trailer), whole: true, bad_footer });
            }
            Err(error) => bad_footer = Some(error),
        }
    }
    let walked = walk::walk(file, &key, Span::To(info.appended()))?;
    let whole = walked.holes.is_empty();
    Ok(Records { records: walked.records, trailer: None, whole, bad_footer })
}
