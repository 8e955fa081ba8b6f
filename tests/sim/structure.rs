//! The structures in frames of a segment file, as far as the simulation has to know.
//!
//! Owns the first bytes of each structure, and the places of fields in a record header. Does not check anything: the
//! format's own code does.

use glidefs::testing::units::ExportId;

use super::tally::Event;

/// The kinds of frames by first bytes, each with the event of a failed read.
pub const STRUCTURES: [(&[u8], Event); 5] = [
    (b"GLIDESEG", Event::HeaderUnread),
    (b"GLIDETRL", Event::TrailerUnread),
    (b"GLIDEFTR", Event::FooterUnread),
    (b"GLIDEREC", Event::RecordUnread),
    (b"", Event::DataUnread),
];

/// The entries of `frame`, as bytes; none for any frame but a record header.
fn entries(frame: &[u8]) -> impl Iterator<Item = &[u8]> {
    let count = if is_record(frame) { usize::from(u16::from_le_bytes([frame[10], frame[11]])) } else { 0 };
    frame[48..].chunks_exact(28).take(count)
}

fn export_of(entry: &[u8]) -> ExportId {
    ExportId(u32::from_le_bytes(entry[20..24].try_into().unwrap()))
}

/// The exports named by `frame`, for a record header.
pub fn exports_of(frame: &[u8]) -> Vec<ExportId> {
    entries(frame).map(export_of).collect()
}

/// The entries of `frame`, for a record header, as text for the trace.
pub fn entries_of(frame: &[u8]) -> Vec<String> {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let text = |entry: &[u8]| {
        let kind = ["?", "data", "zero", "damaged", "doubt", "announced"][usize::from(entry[26]).min(5)];
        let (seq, start) = (number(&entry[..8]), number(&entry[8..16]));
        let count = u32::from_le_bytes(entry[16..20].try_into().unwrap());
        format!("{kind} {seq} of {}: {count} sectors from {start}", export_of(entry))
    };
    entries(frame).map(text).collect()
}

/// Whether `frame` is a record header.
pub fn is_record(frame: &[u8]) -> bool {
    structure(frame) == Event::RecordUnread
}

/// The event of a failed read of `frame`.
pub fn structure(frame: &[u8]) -> Event {
    let found = STRUCTURES.iter().find(|(magic, _)| frame.starts_with(magic));
    found.map_or(Event::DataUnread, |(_, event)| *event)
}
