//! Pages of a checkpoint read back as written, and no damage goes unnoticed.

use proptest::prelude::*;

use super::*;
use crate::units::{ExportId, SectorRange, Seq};

const CACHE: [u8; 16] = [7; 16];

fn extent() -> impl Strategy<Value = KeptExtent> {
    let content = prop_oneof![
        4 => (0..=u32::MAX - 5000).prop_map(Kept::Data),
        1 => Just(Kept::Zero),
        1 => Just(Kept::Damaged)
    ];
    let start = prop_oneof![0..10_000_u64, any::<u64>().prop_map(|start| start / 2)];
    (start, 1..5000_u64, 1..=u64::MAX, any::<u32>(), content).prop_map(
        |(start, count, seq, number, content)| KeptExtent {
            range: SectorRange::new(start, count).unwrap(),
            seq: Seq(seq),
            number,
            content,
        },
    )
}

/// An extent with numbers near those of the extents beside, so that all numbers take a byte each.
fn near_extent() -> impl Strategy<Value = KeptExtent> {
    let content = prop_oneof![
        6 => (500..530_u32).prop_map(Kept::Data),
        1 => Just(Kept::Zero),
        1 => Just(Kept::Damaged)
    ];
    (0..900_u64, 1..60_u64, 1..30_u64, 0..4_u32, content).prop_map(|(start, count, seq, number, content)| {
        let range = SectorRange::new(start, count).unwrap();
        KeptExtent { range, seq: Seq(seq), number, content }
    })
}

fn extents() -> impl Strategy<Value = Vec<KeptExtent>> {
    let some = prop_oneof![
        prop::collection::vec(extent(), 0..60),
        prop::collection::vec(near_extent(), 0..60),
        prop::collection::vec(prop_oneof![extent(), near_extent()], 0..60)
    ];
    some.prop_map(|mut extents| {
        extents.sort_by_key(|extent| extent.range.start());
        extents
    })
}

fn rows(extents: &[KeptExtent]) -> ExtentRows {
    let mut rows = ExtentRows::new(ExportId(3), Seq(9));
    assert!(extents.iter().all(|extent| rows.push(extent)));
    rows
}

fn covered(number: u32) -> CoveredSegment {
    CoveredSegment {
        number,
        segment_id: u64::from(number) << 33,
        footer_frame: 5,
        footer_bytes: 4096,
        footer_crc: !number,
    }
}

/// A checkpoint of five pages.
fn pages() -> Vec<Vec<u8>> {
    let mut chain = PageChain::new(CACHE);
    let zero =
        KeptExtent { range: SectorRange::new(8, 8).unwrap(), seq: Seq(1), number: 4, content: Kept::Zero };
    let covered = encode_rows(&[covered(4), covered(6)]).next().unwrap();
    let others = encode_rows(&[Place { number: 5, segment_id: 12, end: 77 }]).next().unwrap();
    let head = Head { segment_bytes: 64 << 20, start: 3, proves_losses: true }.encode();
    [
        chain.seal(PageKind::Head, &head),
        chain.seal(PageKind::Covered, &covered),
        chain.seal(PageKind::Extents, rows(&[zero]).body()),
        chain.seal(PageKind::Others, &others),
        chain.seal(PageKind::End, &encode_end(1)),
    ]
    .map(Option::unwrap)
    .to_vec()
}

/// Whether each of `pages` is taken for the next page.
fn are_accepted(pages: &[Vec<u8>]) -> bool {
    let mut chain = PageChain::new(CACHE);
    pages.iter().all(|page| chain.open(page).is_ok())
}

proptest! {
    #[test]
    fn extents_read_back_as_they_were_written(expected in extents()) {
        let rows = rows(&expected);
        let reader = ExtentReader::new(rows.body()).unwrap();
        prop_assert_eq!((reader.export(), reader.last_seq()), (ExportId(3), Seq(9)));
        prop_assert_eq!(reader.collect::<Result<Vec<KeptExtent>, _>>(), Ok(expected));
    }

    #[test]
    fn bytes_are_refused_or_are_the_encoding_of_the_extents_read(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        super::super::fuzzing::check_checkpoint_page(&bytes);
    }

    #[test]
    fn a_changed_byte_anywhere_is_noticed(page in 0..5_usize, at in any::<prop::sample::Index>(), change in 1..=255_u8) {
        let mut pages = pages();
        let at = at.index(pages[page].len());
        pages[page][at] ^= change;
        prop_assert!(!are_accepted(&pages));
    }
}

#[test]
fn every_changed_bit_and_every_missing_byte_is_noticed() {
    let pages = pages();
    for page in 0..pages.len() {
        for bit in 0..pages[page].len() * 8 {
            let mut changed = pages.clone();
            changed[page][bit / 8] ^= 1 << (bit % 8);
            assert!(!are_accepted(&changed), "page {page}, bit {bit}");
        }
        for len in 0..pages[page].len() {
            let mut shorter = pages.clone();
            shorter[page].truncate(len);
            assert!(!are_accepted(&shorter), "page {page}, {len} bytes");
        }
    }
}

#[test]
fn a_page_left_out_repeated_or_of_another_checkpoint_or_cache_is_refused() {
    let pages = pages();
    assert!(are_accepted(&pages));
    for page in 0..pages.len() - 1 {
        let mut missing = pages.clone();
        missing.remove(page);
        assert!(!are_accepted(&missing), "without page {page}");
        let mut twice = pages.clone();
        twice.insert(page, pages[page].clone());
        assert!(!are_accepted(&twice), "page {page} twice");
    }
    let mut other = PageChain::new(CACHE);
    other
        .seal(PageKind::Head, &Head { segment_bytes: 64 << 20, start: 4, proves_losses: true }.encode())
        .unwrap();
    let stranger = other.seal(PageKind::End, &encode_end(0)).unwrap();
    assert!(!are_accepted(&[pages[0].clone(), stranger]));
    assert!(PageChain::new([8; 16]).open(&pages[0]).is_err());
}

#[test]
fn a_page_is_never_longer_than_the_bound_whatever_the_extents() {
    let mut rows = ExtentRows::new(ExportId(1), Seq(1));
    let far = |number, start| KeptExtent {
        range: SectorRange::new(start, u64::from(u32::MAX)).unwrap(),
        seq: Seq(u64::MAX / 2 * u64::from(number % 2) + 1),
        number,
        content: Kept::Zero,
    };
    let mut pushed = 0_u32;
    while rows.has_room() {
        assert!(rows.push(&far(
            if pushed.is_multiple_of(2) { 0 } else { u32::MAX - pushed },
            u64::from(pushed) << 40
        )));
        pushed += 1;
    }
    assert!(!rows.push(&far(1, u64::MAX / 2)));
    let page = PageChain::new(CACHE).seal(PageKind::Extents, rows.body()).unwrap();
    assert!(page.len() <= CHECKPOINT_PAGE_BYTES && pushed > 1000);
    let many: Vec<CoveredSegment> = (0..10_000).map(covered).collect();
    let bodies: Vec<Vec<u8>> = encode_rows(&many).collect();
    assert!(bodies.iter().all(|body| body.len() <= CHECKPOINT_BODY_BYTES));
    let read: Vec<CoveredSegment> =
        bodies.iter().flat_map(|body| decode_rows::<CoveredSegment>(body).unwrap()).collect();
    assert_eq!(read, many);
}

#[test]
fn neighbours_of_one_writer_take_few_bytes() {
    let mut rows = ExtentRows::new(ExportId(1), Seq(1));
    for write in 0..1000_u32 {
        let range = SectorRange::new(u64::from(write) * 32, 32).unwrap();
        let content = Kept::Data(16 + write * 32 + write / 8 * 8);
        assert!(rows.push(&KeptExtent { range, seq: Seq(u64::from(write) + 1), number: 7, content }));
    }
    assert!(rows.body().len() <= 5 * 1000 + 40, "{} bytes", rows.body().len());
}

#[test]
fn a_head_of_the_version_before_proves_no_losses() {
    for proves_losses in [false, true] {
        let head = Head { segment_bytes: 64 << 20, start: 3, proves_losses };
        let body = head.encode();
        assert_eq!((body.len(), Head::decode(&body)), (12 + usize::from(proves_losses), Ok(head)));
    }
    assert!(Head::decode(&[2; 13]).is_err() && Head::decode(&[1; 14]).is_err());
}
