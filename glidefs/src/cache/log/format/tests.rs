//! Properties of every structure in a segment: a decoder gives back the encoded structure, and refuses all other bytes.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use proptest::prelude::*;

use super::segment::SEGMENT_BYTES_MIN;
use super::*;
use crate::units::{ExportId, FRAME_SECTORS, REQUEST_BYTES_MAX, SectorRange, Seq};

const KEY: SegmentKey = SegmentKey { cache_id: *b"0123456789abcdef", segment_id: 77 };
const OTHER_CACHE: SegmentKey = SegmentKey { cache_id: *b"0123456789abcdeF", ..KEY };
const OTHER_SEGMENT: SegmentKey = SegmentKey { segment_id: 78, ..KEY };
const SEGMENT_BYTES: u64 = 64 << 20;

/// A write as the cache takes it: export, sequence number, range, and whether the write has data.
type Write = (ExportId, Seq, SectorRange, bool);

fn write() -> impl Strategy<Value = Write> {
    let data = (any::<u64>(), 1..=(REQUEST_BYTES_MAX / 512) as u64, Just(true));
    let zero = (any::<u64>(), 1..=u64::from(u32::MAX), Just(false));
    (any::<u32>(), 1..=u64::MAX, prop_oneof![3 => data, 1 => zero]).prop_map(
        |(export, seq, (start, count, data))| {
            let range = SectorRange::new(start.min(u64::MAX - count), count).unwrap();
            (ExportId(export), Seq(seq), range, data)
        },
    )
}

/// The entry and the CRCs added for the write; `None` when the record has no room.
fn push(builder: &mut RecordBuilder, (export, seq, range, data): Write) -> Option<(Entry, Vec<u32>)> {
    let first = builder.data_frames();
    let kind = if data { EntryKind::Data { first_frame: first } } else { EntryKind::Zero };
    let entry = Entry { export, seq, range, kind };
    let frames = u32::try_from(entry.data_frames()).unwrap();
    let crcs: Vec<u32> = (first..first + frames).map(|frame| frame.wrapping_mul(0x9E37_79B9)).collect();
    let fits = builder.fits_data(crcs.len());
    let pushed = builder.push(&entry, &crcs);
    assert_eq!(pushed, fits);
    pushed.then_some((entry, crcs))
}

/// A record with as many of `writes` as fit, at frame 9, with 4 stable frames.
fn record(writes: &[Write]) -> Frame {
    let mut builder = RecordBuilder::default();
    for write in writes {
        if push(&mut builder, *write).is_none() {
            break;
        }
    }
    *builder.finish(&KEY, 9, 4, &[])
}

fn footer(writes: &[Write]) -> (Vec<FooterRecord>, Vec<u8>, Trailer) {
    let (mut records, mut footer, mut position) = (Vec::new(), FooterBuilder::default(), 1);
    for write in writes {
        let mut builder = RecordBuilder::default();
        push(&mut builder, *write).unwrap();
        let Record { entries, crcs, .. } =
            decode_record(builder.finish(&KEY, position, 0, &[]), &KEY, position).unwrap();
        let len = footer.encoded_len_with(1, entries.len(), crcs.len());
        footer.add_record(position, &entries, &crcs);
        assert_eq!(footer.encoded_len(), len);
        let frames = 1 + u32::try_from(crcs.len()).unwrap();
        records.push(FooterRecord { position_frames: position, entries, crcs });
        position += frames;
    }
    let bytes = footer.encode(&KEY);
    assert_eq!(bytes.len(), footer.encoded_len());
    let trailer = Trailer::of(KEY, position, &bytes).unwrap();
    (records, bytes, trailer)
}

/// `frame` after `change`, with the checksum right again, as a forger or a bug could write the frame.
fn forged(frame: &Frame, change: impl FnOnce(&mut Frame)) -> Frame {
    let mut frame = *frame;
    change(&mut frame);
    put_crc(&mut frame);
    frame
}

fn each_flip(bytes: &[u8], mut decodes: impl FnMut(&[u8]) -> bool) {
    let mut bytes = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!decodes(&bytes), "bit {bit} flipped and nobody noticed");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(decodes(&bytes));
}

fn samples() -> Vec<Write> {
    let range = |start, count| SectorRange::new(start, count).unwrap();
    vec![
        (ExportId(1), Seq(10), range(3, 20), true),
        (ExportId(2), Seq(11), range(0, u64::from(u32::MAX)), false),
        (ExportId(1), Seq(12), range(u64::MAX - 8, 8), true),
    ]
}

fn header() -> SegmentHeader {
    SegmentHeader {
        cache_id: KEY.cache_id,
        segment_id: KEY.segment_id,
        shard: 3,
        segment_bytes: SEGMENT_BYTES,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn segment_header_and_trailer_come_back_as_they_were(
        cache_id: [u8; 16], segment_id: u64, shard: u32, frames in 5..=(u64::MAX >> 12),
        footer_frame in 1..1000u32, footer_frames in 1..1000u32, footer_crc: u32, vital: bool,
    ) {
        let header = SegmentHeader { cache_id, segment_id, shard, segment_bytes: frames << 12 };
        prop_assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
        let footer_bytes = footer_frames << 12;
        let trailer = Trailer { key: header.key(), footer_frame, footer_bytes, footer_crc, vital };
        let decoded = Trailer::decode(&trailer.encode(), &header.key(), SEGMENT_BYTES);
        prop_assert_eq!(decoded, Ok(trailer));
    }

    #[test]
    fn a_record_comes_back_as_it_was_built(
        batches in prop::collection::vec(
            (prop::collection::vec(write(), 1..200), 1..u32::MAX / 2, any::<u32>(), 1..144usize), 1..4
        )
    ) {
        // The same builder again and again: nothing of an earlier record may shine through.
        let mut builder = RecordBuilder::default();
        for (writes, position, stable, zeroed) in batches {
            let stable = stable % position;
            let range = SectorRange::new(0, 1).unwrap();
            let zeroed = vec![Entry { export: ExportId(1), seq: Seq(1), range, kind: EntryKind::Zero }; zeroed];
            let mut expected = Record {
                entries: Vec::new(),
                crcs: Vec::new(),
                stable_frames: stable,
                announces: true,
                before: None,
            };
            for write in writes {
                let Some((entry, crcs)) = push(&mut builder, write) else { break };
                expected.entries.push(entry);
                expected.crcs.extend(crcs);
            }
            prop_assert_eq!(builder.entries(), expected.entries.len());
            let mut footer = FooterBuilder::default();
            if position > 1 {
                footer.add_record(position - 1, &zeroed, &[]);
            }
            let before = footer.last_record();
            let room = FRAME_BYTES - 4 - 48 - 28 * expected.entries.len() - 4 * expected.crcs.len();
            if !before.is_empty() && before.len() <= room {
                let entries = zeroed.clone();
                expected.before = Some(FooterRecord { position_frames: position - 1, entries, crcs: Vec::new() });
            }
            let frame = *builder.finish(&KEY, position, stable, before);
            prop_assert_eq!(decode_record(&frame, &KEY, position), Ok(expected));
            builder.reset();
            prop_assert_eq!(builder.entries(), 0);
        }
    }

    #[test]
    fn a_footer_comes_back_as_it_was_built(writes in prop::collection::vec(write(), 0..300)) {
        let (records, bytes, trailer) = footer(&writes);
        prop_assert_eq!(decode_footer(&bytes, &trailer), Ok(records));
    }

    #[test]
    fn damage_behind_a_right_checksum_is_refused_or_is_what_the_encoder_makes(
        changes in prop::collection::vec((0..150usize, any::<u8>()), 1..4),
    ) {
        let mut bytes = [0; 150];
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        fuzzing::check_segment_header(&bytes);
        fuzzing::check_record(&bytes);
        fuzzing::check_footer(&bytes);
        fuzzing::check_sums_page(&bytes);
        fuzzing::check_checkpoint_page(&bytes);
    }

    #[test]
    fn any_bytes_are_refused_or_are_what_the_encoder_makes(
        bytes in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..300),
    ) {
        fuzzing::check_segment_header(&bytes);
        fuzzing::check_record(&bytes);
        fuzzing::check_footer(&bytes);
        fuzzing::check_sums_page(&bytes);
        fuzzing::check_checkpoint_page(&bytes);
    }
}

#[test]
fn what_the_properties_begin_with_is_accepted() {
    assert!(fuzzing::check_segment_header(&[]));
    assert!(fuzzing::check_record(&[]));
    assert!(fuzzing::check_footer(&[]));
    assert!(fuzzing::check_sums_page(&[]));
    assert!(fuzzing::check_checkpoint_page(&[0; 12]));
}

#[test]
fn every_single_bit_flip_is_noticed() {
    each_flip(&header().encode(), |bytes| SegmentHeader::decode(bytes).is_ok());
    each_flip(&record(&samples()), |bytes| decode_record(bytes, &KEY, 9).is_ok());
    let (_, bytes, trailer) = footer(&samples());
    each_flip(&bytes, |bytes| decode_footer(bytes, &trailer).is_ok());
    each_flip(&trailer.encode(), |bytes| Trailer::decode(bytes, &KEY, SEGMENT_BYTES).is_ok());
}

#[test]
fn bytes_of_another_length_are_refused() {
    let (_, bytes, trailer) = footer(&samples());
    let (header, record) = (header().encode(), record(&samples()));
    for len in (0..FRAME_BYTES).step_by(7) {
        let refused = Err(FormatError::Length { found: len, needed: FRAME_BYTES });
        assert_eq!(SegmentHeader::decode(&header[..len]).map(|_| ()), refused);
        assert_eq!(decode_record(&record[..len], &KEY, 9).map(|_| ()), refused);
        assert_eq!(Trailer::decode(&trailer.encode()[..len], &KEY, SEGMENT_BYTES).map(|_| ()), refused);
        assert_eq!(decode_footer(&bytes[..len], &trailer).map(|_| ()), refused);
    }
    let long = [&record[..], &[0]].concat();
    assert!(matches!(decode_record(&long, &KEY, 9), Err(FormatError::Length { .. })));
}

#[test]
fn a_structure_is_not_taken_for_another_kind() {
    let (_, footer_bytes, trailer) = footer(&samples());
    let frames = [header().encode(), record(&samples()), trailer.encode()];
    for (kind, frame) in frames.iter().enumerate() {
        assert_eq!(SegmentHeader::decode(frame).is_ok(), kind == 0);
        assert_eq!(decode_record(frame, &KEY, 9).is_ok(), kind == 1);
        assert_eq!(Trailer::decode(frame, &KEY, SEGMENT_BYTES).is_ok(), kind == 2);
        assert_eq!(decode_footer(frame, &Trailer::of(KEY, 99, frame).unwrap()), Err(FormatError::Magic));
    }
    assert_eq!(decode_record(&footer_bytes[..FRAME_BYTES], &KEY, 9), Err(FormatError::Magic));
    assert_eq!(decode_record(&[0; FRAME_BYTES], &KEY, 9), Err(FormatError::Magic));
}

#[test]
fn what_belongs_to_another_segment_cache_or_position_is_refused() {
    let (_, footer_bytes, trailer) = footer(&samples());
    for key in [OTHER_CACHE, OTHER_SEGMENT] {
        let refused = FormatError::OtherSegment { found: KEY.segment_id };
        assert_eq!(decode_record(&record(&samples()), &key, 9), Err(refused));
        assert_eq!(Trailer::decode(&trailer.encode(), &key, SEGMENT_BYTES), Err(refused));
        assert_eq!(decode_footer(&footer_bytes, &Trailer { key, ..trailer }), Err(refused));
    }
    let refused = FormatError::Position { found: 9, expected: 10 };
    assert_eq!(decode_record(&record(&samples()), &KEY, 10), Err(refused));
}

#[test]
fn another_version_is_named_and_a_damaged_version_number_is_damage() {
    let (_, footer_bytes, trailer) = footer(&samples());
    let newer = |frame: &Frame| forged(frame, |frame| put(frame, VERSION_AT, &7u16.to_le_bytes()));
    let refused = FormatError::Version { found: 7 };
    assert_eq!(SegmentHeader::decode(&newer(&header().encode())), Err(refused));
    assert_eq!(decode_record(&newer(&record(&samples())), &KEY, 9), Err(refused));
    assert_eq!(Trailer::decode(&newer(&trailer.encode()), &KEY, SEGMENT_BYTES), Err(refused));
    let mut newer_footer = footer_bytes;
    put(&mut newer_footer, VERSION_AT, &7u16.to_le_bytes());
    assert_eq!(decode_footer(&newer_footer, &trailer), Err(FormatError::Checksum));
    let trailer = Trailer::of(KEY, trailer.footer_frame, &newer_footer).unwrap();
    assert_eq!(decode_footer(&newer_footer, &trailer), Err(refused));
    let mut damaged = header().encode();
    damaged[VERSION_AT] ^= 4;
    assert_eq!(SegmentHeader::decode(&damaged), Err(FormatError::Checksum));
}

#[test]
fn counts_beyond_the_frame_are_refused() {
    let frame = record(&samples());
    for entries in [0, 1, 2, 4, 145, u16::MAX] {
        let frame = forged(&frame, |frame| put(frame, 10, &entries.to_le_bytes()));
        assert!(
            matches!(decode_record(&frame, &KEY, 9), Err(FormatError::Malformed(_))),
            "{entries} entries"
        );
    }
    for frames in [0, 3, 5, 1004, 1012, u32::MAX] {
        let frame = forged(&frame, |frame| put(frame, 12, &frames.to_le_bytes()));
        assert!(
            matches!(decode_record(&frame, &KEY, 9), Err(FormatError::Malformed(_))),
            "{frames} data frames"
        );
    }
    let (_, bytes, trailer) = footer(&samples());
    for at in [12, BODY_AT + 4, BODY_AT + 8] {
        for count in [0, 2, 1 << 20, u32::MAX] {
            let mut bytes = bytes.clone();
            put(&mut bytes, at, &count.to_le_bytes());
            let trailer = Trailer::of(KEY, trailer.footer_frame, &bytes).unwrap();
            let refused = matches!(decode_footer(&bytes, &trailer), Err(FormatError::Malformed(_)));
            assert!(refused, "{count} at byte {at}");
        }
    }
}

#[test]
fn a_record_that_calls_itself_stable_before_it_is_written_is_refused() {
    let frame = forged(&record(&samples()), |frame| put(frame, 44, &10u32.to_le_bytes()));
    assert!(matches!(decode_record(&frame, &KEY, 9), Err(FormatError::Malformed(_))));
}

#[test]
fn records_of_a_footer_neither_overlap_nor_reach_into_it() {
    let (records, ..) = footer(&samples());
    let build = |positions: [u32; 3]| {
        let mut builder = FooterBuilder::default();
        for (record, position) in records.iter().zip(positions) {
            builder.add_record(position, &record.entries, &record.crcs);
        }
        builder.encode(&KEY)
    };
    let decode = |bytes: &[u8], end| decode_footer(bytes, &Trailer::of(KEY, end, bytes).unwrap()).is_ok();
    // The samples take 1 + 3, 1 and 1 + 1 frames.
    assert!(decode(&build([1, 5, 6]), 8));
    assert!(!decode(&build([1, 5, 6]), 7));
    assert!(!decode(&build([0, 5, 6]), 8));
    assert!(!decode(&build([1, 4, 6]), 8));
    assert!(!decode(&build([2, 1, 6]), 8));
    assert!(!decode(&build([1, 5, u32::MAX]), u32::MAX));
}

#[test]
fn a_trailer_names_only_a_footer_between_header_and_trailer() {
    let frames = 100;
    let decode = |footer_frame, footer_bytes| {
        let trailer = Trailer { key: KEY, footer_frame, footer_bytes, footer_crc: 0, vital: false };
        Trailer::decode(&trailer.encode(), &KEY, frames << 12).is_ok()
    };
    assert!(decode(98, 4096));
    assert!(decode(1, 98 << 12));
    assert!(!decode(99, 4096));
    assert!(!decode(0, 4096));
    assert!(!decode(1, 99 << 12));
    assert!(!decode(u32::MAX, !4095));
    assert!(!decode(1, 0));
    assert!(!decode(1, 4097));
    let trailer = Trailer { key: KEY, footer_frame: 1, footer_bytes: 4096, footer_crc: 0, vital: false };
    assert!(Trailer::decode(&trailer.encode(), &KEY, 0).is_err());
}

#[test]
fn a_segment_too_short_or_not_in_whole_frames_is_refused() {
    for segment_bytes in [0, 4096, SEGMENT_BYTES_MIN - 4096, SEGMENT_BYTES + 512, u64::MAX] {
        let header = SegmentHeader { segment_bytes, ..header() };
        assert_eq!(
            SegmentHeader::decode(&header.encode()),
            Err(FormatError::Malformed("a segment length that is too short or not in whole frames"))
        );
    }
}

#[test]
fn what_no_record_can_hold_is_not_added() {
    let mut builder = RecordBuilder::default();
    let mut is_added = |seq, count, kind, crcs: &[u32]| {
        let range = SectorRange::new(0, count).unwrap();
        builder.push(&Entry { export: ExportId(1), seq: Seq(seq), range, kind }, crcs)
    };
    for (seq, count) in [(0, 1), (1, 0), (1, 1 << 32)] {
        assert!(!is_added(seq, count, EntryKind::Zero, &[]), "{seq} {count}");
    }
    let data = EntryKind::Data { first_frame: 0 };
    for (count, crcs) in [(0, 0), (9, 1), (9, 3), (1005 * 8, 1005)] {
        assert!(!is_added(1, count, data, &vec![0; crcs]), "{count} {crcs}");
    }
    assert!(!is_added(1, 8, EntryKind::Zero, &[1]));
    assert!(!is_added(1, 8, EntryKind::Data { first_frame: 1 }, &[1]), "no data is before");
    assert_eq!(builder.entries(), 0);
}

#[test]
fn the_stated_limits_of_a_record_are_reached_and_not_exceeded() {
    let mut builder = RecordBuilder::default();
    let entry = |sectors, kind| Entry {
        export: ExportId(1),
        seq: Seq(1),
        range: SectorRange::new(0, sectors).unwrap(),
        kind,
    };
    let zeroes = entry(1, EntryKind::Zero);
    for _ in 0..RECORD_ENTRIES_MAX {
        assert!(builder.push(&zeroes, &[]));
    }
    assert!(!builder.fits_data(0) && !builder.push(&zeroes, &[]));
    builder.reset();
    // The frames of one entry.
    let crcs = vec![9; 1004];
    assert!(builder.fits_data(1004) && !builder.fits_data(1005));
    assert!(builder.push(&entry(1004 * FRAME_SECTORS, EntryKind::Data { first_frame: 0 }), &crcs));
    assert!(!builder.push(&entry(8, EntryKind::Data { first_frame: 1004 }), &[1]));
    let frame = *builder.finish(&KEY, 1, 1, &[]);
    assert_eq!(decode_record(&frame, &KEY, 1).unwrap().crcs, crcs);
}

#[test]
fn frame_crc_is_crc_32c() {
    assert_eq!(frame_crc(b"123456789"), 0xE306_9283);
    assert_eq!(frame_crc(&[0; 32]), 0x8A91_36AA);
}
