//! What the frames of a segment file are, as far as the simulation has to know.
//!
//! Owns the first bytes of each structure, and the places in a record header of what it says. Does not check anything: the format's
//! own code does.

use glidefs::units::ExportId;

use super::tally::Event;

/// What a frame of a segment file is, as its first bytes tell, or its place.
pub const STRUCTURES: [(&[u8], Event); 5] = [
    (b"GLIDESEG", Event::HeaderUnread),
    (b"GLIDETRL", Event::TrailerUnread),
    (b"GLIDEFTR", Event::FooterUnread),
    (b"GLIDEREC", Event::RecordUnread),
    (b"", Event::DataUnread),
];

/// The exports that `frame` names, if it is a record header.
pub fn exports_of(frame: &[u8]) -> Vec<ExportId> {
    if structure(frame) != Event::RecordUnread {
        return Vec::new();
    }
    let entries = usize::from(u16::from_le_bytes([frame[10], frame[11]]));
    let number = |entry: &[u8]| ExportId(u32::from_le_bytes([entry[20], entry[21], entry[22], entry[23]]));
    frame[48..].chunks_exact(28).take(entries).map(number).collect()
}

/// The entries of `frame`, if it is a record header, for a reader of the trace.
pub fn entries_of(frame: &[u8]) -> Vec<String> {
    if structure(frame) != Event::RecordUnread {
        return Vec::new();
    }
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let short = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let entries = frame[48..].chunks_exact(28).take(usize::from(u16::from_le_bytes([frame[10], frame[11]])));
    let text = |entry: &[u8]| {
        let kind = ["?", "data", "zero", "damaged", "doubt", "announced"][usize::from(entry[26]).min(5)];
        let (seq, start, count) = (number(&entry[..8]), number(&entry[8..16]), short(&entry[16..20]));
        format!("{kind} {seq} of {}: {count} sectors from {start}", short(&entry[20..24]))
    };
    entries.map(text).collect()
}

/// The event of reading `frame` when the disk does not.
pub fn structure(frame: &[u8]) -> Event {
    let found = STRUCTURES.iter().find(|(magic, _)| frame.starts_with(magic));
    found.map_or(Event::DataUnread, |(_, event)| *event)
}
