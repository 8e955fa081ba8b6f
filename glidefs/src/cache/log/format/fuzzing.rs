//! Properties that must hold for any bytes at all; checked by the fuzzers in `fuzz/` and by the property tests. Not compiled into
//! the daemon.
//!
//! Random bytes never get past a checksum. So the bytes are also laid over a valid structure by exclusive or, and then everything
//! that a forger could know is put right: magic, version, segment, position and checksums. The property: a decoder either refuses
//! the bytes, or the encoder makes exactly the same bytes of the decoded structure. Each check answers whether the structure with
//! the bytes laid over was accepted.

use super::checkpoint::{
    CoveredSegment, ExtentReader, ExtentRows, Head, KeptExtent, PageChain, PageKind, Place, Row, decode_end,
    decode_rows, encode_end, encode_rows,
};
use super::{
    BODY_AT, CACHE_ID_AT, Entry, EntryKind, FooterBuilder, Frame, PAGE_SUMS, RecordBuilder, SEGMENT_ID_AT,
    SegmentHeader, SegmentKey, Trailer, VERSION_AT, check_sums, decode_footer, decode_record, encode_sums,
    field, footer, put, put_crc, put_preamble, record, segment, sum_in, sums,
};
use crate::units::{ExportId, FRAME_BYTES, SectorRange, Seq};

const KEY: SegmentKey = SegmentKey { cache_id: *b"0123456789abcdef", segment_id: 77 };
const POSITION_FRAMES: u32 = 9;
const FOOTER_FRAME: u32 = 10_000;
const SEGMENT_BYTES: u64 = 64 << 20;

/// Checks `bytes` as, and laid over, the header and the trailer of a segment.
pub fn check_segment_header(bytes: &[u8]) -> bool {
    let _ = SegmentHeader::decode(bytes);
    let _ = Trailer::decode(bytes, &KEY, SEGMENT_BYTES);
    let SegmentKey { cache_id, segment_id } = KEY;
    let sample = SegmentHeader { cache_id, segment_id, shard: 1, segment_bytes: SEGMENT_BYTES };
    let frame = forge(&sample.encode(), bytes, segment::HEADER_MAGIC, None);
    let header = SegmentHeader::decode(&frame);
    if let Ok(header) = header {
        assert_eq!(header.encode(), frame);
    }
    let sample =
        Trailer { key: KEY, footer_frame: FOOTER_FRAME, footer_bytes: 8192, footer_crc: 3, vital: false };
    let frame = forge(&sample.encode(), bytes, segment::TRAILER_MAGIC, Some(KEY));
    let trailer = Trailer::decode(&frame, &KEY, SEGMENT_BYTES);
    if let Ok(trailer) = trailer {
        assert_eq!(trailer.encode(), frame);
        assert!(trailer.footer_offset_bytes() + u64::from(trailer.footer_bytes) < SEGMENT_BYTES);
    }
    header.is_ok() && trailer.is_ok()
}

/// Checks `bytes` as, and laid over, a record header.
pub fn check_record(bytes: &[u8]) -> bool {
    let _ = decode_record(bytes, &KEY, POSITION_FRAMES);
    let mut frame = forge(&sample_record(), bytes, record::MAGIC, Some(KEY));
    put(&mut frame, BODY_AT, &POSITION_FRAMES.to_le_bytes());
    put_crc(&mut frame);
    let _ = decode_record(&frame, &KEY, POSITION_FRAMES);
    put(&mut frame, VERSION_AT, &record::VERSION_REPEATING.to_le_bytes());
    put_crc(&mut frame);
    let Ok(found) = decode_record(&frame, &KEY, POSITION_FRAMES) else { return false };
    let mut builder = RecordBuilder::default();
    let mut crcs = &found.crcs[..];
    for entry in &found.entries {
        let frames = usize::try_from(entry.data_frames()).unwrap_or(usize::MAX);
        let (of_entry, rest) = crcs.split_at(frames);
        crcs = rest;
        assert!(builder.push(entry, of_entry));
    }
    assert!(crcs.is_empty());
    let mut before = FooterBuilder::default();
    if let Some(found) = &found.before {
        before.add_record(found.position_frames, &found.entries, &found.crcs);
    }
    assert_eq!(*builder.finish(&KEY, POSITION_FRAMES, found.stable_frames, before.last_record()), frame);
    true
}

/// Checks `bytes` as, and laid over, a footer.
pub fn check_footer(bytes: &[u8]) -> bool {
    let frames_bytes = bytes.len().next_multiple_of(FRAME_BYTES).max(FRAME_BYTES);
    let mut footer = sample_footer();
    footer.resize(footer.len().max(frames_bytes), 0);
    for (to, from) in footer.iter_mut().zip(bytes) {
        *to ^= *from;
    }
    put_preamble(&mut footer, footer::MAGIC, &KEY);
    let Some(trailer) = Trailer::of(KEY, FOOTER_FRAME, &footer) else { return false };
    let _ = decode_footer(bytes, &trailer);
    let Ok(found) = decode_footer(&footer, &trailer) else { return false };
    let mut builder = FooterBuilder::default();
    let mut end = 1;
    for record in &found {
        assert!(record.position_frames >= end);
        end = record.position_frames + 1 + u32::try_from(record.crcs.len()).unwrap_or(u32::MAX);
        builder.add_record(record.position_frames, &record.entries, &record.crcs);
    }
    assert!(end <= FOOTER_FRAME);
    assert_eq!(builder.encode(&KEY), footer);
    true
}

/// Checks `bytes` as, and laid over, a page of sums.
pub fn check_sums_page(bytes: &[u8]) -> bool {
    const PAGE: u32 = 2;
    let _ = check_sums(bytes, &KEY, POSITION_FRAMES, PAGE);
    let sample = encode_sums(&KEY, POSITION_FRAMES, PAGE, &[1, 2, 3]);
    let frame = forge(&sample, bytes, sums::MAGIC, Some(KEY));
    if check_sums(&frame, &KEY, POSITION_FRAMES, PAGE).is_err() {
        return false;
    }
    let crcs: Vec<u32> =
        (PAGE * PAGE_SUMS..(PAGE + 1) * PAGE_SUMS).map(|number| sum_in(&frame, number)).collect();
    assert_eq!(encode_sums(&KEY, POSITION_FRAMES, PAGE, &crcs), frame);
    true
}

/// Checks `bytes` as a page of a checkpoint, and as the body of each kind of page.
pub fn check_checkpoint_page(bytes: &[u8]) -> bool {
    let _ = PageChain::new(KEY.cache_id).open(bytes);
    if let Ok(head) = Head::decode(bytes) {
        assert_eq!(head.encode(), bytes);
    }
    if let Ok(count) = decode_end(bytes) {
        assert_eq!(encode_end(count), bytes);
    }
    check_rows::<CoveredSegment>(bytes);
    check_rows::<Place>(bytes);
    let Ok(reader) = ExtentReader::new(bytes) else { return false };
    let mut rows = ExtentRows::new(reader.export(), reader.last_seq());
    let Ok(extents) = reader.collect::<Result<Vec<KeptExtent>, _>>() else { return false };
    // A body longer than a page is refused with the page.
    if extents.iter().all(|extent| rows.push(extent)) {
        assert_eq!(rows.body(), bytes);
        let page = PageChain::new(KEY.cache_id).seal(PageKind::Extents, bytes);
        assert!(
            page.is_some_and(
                |page| PageChain::new(KEY.cache_id).open(&page) == Ok((PageKind::Extents, bytes))
            )
        );
    }
    true
}

fn check_rows<R: Row>(bytes: &[u8]) {
    if let Ok(rows) = decode_rows::<R>(bytes) {
        let rows: Vec<R> = rows.collect();
        assert_eq!(encode_rows(&rows).collect::<Vec<_>>().concat(), bytes);
    }
}

/// Data, zeroes, and data again.
fn sample_record() -> Frame {
    let mut builder = RecordBuilder::default();
    let (Some(long), Some(short)) = (SectorRange::new(3, 20), SectorRange::new(100, 8)) else {
        unreachable!()
    };
    let data = |seq, range, first_frame| Entry {
        export: ExportId(1),
        seq: Seq(seq),
        range,
        kind: EntryKind::Data { first_frame },
    };
    assert!(builder.push(&data(1, long, 0), &[5, 6, 7]));
    assert!(builder.push(&Entry { export: ExportId(2), kind: EntryKind::Zero, ..data(1, long, 0) }, &[]));
    assert!(builder.push(&data(2, short, 3), &[8]));
    let mut before = FooterBuilder::default();
    let zeroed = Entry { export: ExportId(1), seq: Seq(1), range: long, kind: EntryKind::Zero };
    before.add_record(1, &[zeroed], &[]);
    *builder.finish(&KEY, POSITION_FRAMES, 4, before.last_record())
}

/// The sample record at two positions.
fn sample_footer() -> Vec<u8> {
    let mut builder = FooterBuilder::default();
    if let Ok(record) = decode_record(&sample_record(), &KEY, POSITION_FRAMES) {
        builder.add_record(1, &record.entries, &record.crcs);
        builder.add_record(POSITION_FRAMES, &record.entries, &record.crcs);
    }
    builder.encode(&KEY)
}

/// Lays `bytes` over the frame `sample`, except for the fields that every structure of this `magic` and segment shares.
fn forge(sample: &Frame, bytes: &[u8], magic: [u8; 8], key: Option<SegmentKey>) -> Frame {
    let mut frame = *sample;
    for (to, from) in frame.iter_mut().zip(bytes) {
        *to ^= *from;
    }
    let segment_id = u64::from_le_bytes(field(&frame, SEGMENT_ID_AT));
    let own = SegmentKey { cache_id: field(&frame, CACHE_ID_AT), segment_id };
    put_preamble(&mut frame, magic, &key.unwrap_or(own));
    put_crc(&mut frame);
    frame
}
