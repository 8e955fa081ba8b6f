//! Extents loaded by several threads are the extents loaded by one, which are those inserted one by one; and of several errors the
//! first in the file counts, whoever finds which.

use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::Index;

use super::extents::Loaded;
use super::*;
use crate::cache::log::format::{ExtentReader, ExtentRows, Kept, KeptExtent, encode_end};
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::table::SegmentTable;
use crate::cache::volume::Volume;
use crate::cache::volume::layers::SeqMarks;
use crate::cache::volume::ranks::Ranks;
use crate::units::{ExportId, SectorRange, Seq};

const CACHE: [u8; 16] = [5; 16];
/// Segments with content that a start takes. The next number is that of a segment which is gone, and the one after is not listed.
const COVERED: u32 = 3;
const GONE: u32 = COVERED;
const UNLISTED: u32 = COVERED + 1;
/// Exports of the catalog. The checkpoint has one more.
const EXPORTS: u32 = 3;

/// The extents of a page, of an export.
type Page = (u32, Vec<KeptExtent>);

/// The content of a sector: the write, the segment, and the place in the segment, or a kind without a place.
type Content = BTreeMap<(u32, u64), (u64, u32, Result<u32, Kept>)>;

/// Pages of a few extents for each of `exports`, the extents ascending and now and then overlapping.
fn pages() -> impl Strategy<Value = Vec<Page>> {
    let content =
        prop_oneof![4 => (0..5000_u32).prop_map(Kept::Data), 1 => Just(Kept::Zero), 1 => Just(Kept::Damaged)];
    let extent =
        (0..40_u64, prop_oneof![9 => Just(0), 1 => 1..60_u64], 1..30_u64, 0..=GONE, content, any::<u16>());
    let export = prop::collection::vec((extent, 1..9_usize), 0..150);
    prop::collection::vec(export, EXPORTS as usize + 1).prop_map(|exports| {
        let mut pages = Vec::new();
        let mut writes = 0;
        for (export, extents) in (1..).zip(exports) {
            let (mut end, mut start, mut left) = (0_u64, 0, 0);
            for ((gap, back, count, number, content, order), of_page) in extents {
                start = start.max((end + gap).saturating_sub(back));
                end = start + count;
                writes += 1;
                // Each write has a number of its own.
                let seq = Seq(u64::from(order) << 16 | writes);
                let extent =
                    KeptExtent { range: SectorRange::new(start, count).unwrap(), seq, number, content };
                if left == 0 {
                    left = of_page;
                    pages.push((export, Vec::new()));
                }
                left -= 1;
                pages.last_mut().unwrap().1.push(extent);
            }
        }
        pages
    })
}

/// The bytes of each page, and of a last one.
fn sealed(pages: &[Page]) -> Vec<Vec<u8>> {
    let mut chain = PageChain::new(CACHE);
    let mut bytes = Vec::new();
    for (export, extents) in pages {
        let mut rows = ExtentRows::new(ExportId(*export), Seq(9));
        assert!(extents.iter().all(|extent| rows.push(extent)));
        bytes.push(chain.seal(PageKind::Extents, rows.body()).unwrap());
    }
    let listed = pages.iter().map(|(_, extents)| extents.len() as u64).sum();
    bytes.push(chain.seal(PageKind::End, &encode_end(listed)).unwrap());
    bytes
}

fn reader(bytes: &[Vec<u8>]) -> Pages<'static> {
    Pages::new(Box::new(Cursor::new(bytes.concat())), PageChain::new(CACHE))
}

/// The outcome of loading pages: the extents of each volume, and extents and sectors, clean ones too, of each segment.
#[derive(Debug, PartialEq)]
struct Outcome {
    found: Loaded,
    volumes: Vec<(Seq, Vec<KeptExtent>)>,
    segments: Vec<(u32, u32, u64)>,
}

/// Loads `bytes`, up to the last page, with `hands` threads.
fn load(bytes: &[Vec<u8>], marks: &[SeqMarks], hands: usize) -> Result<Outcome, String> {
    let volume = |(export, marks): (u32, &SeqMarks)| {
        let id = ExportId(export);
        (id, Arc::new(Volume::at(id, *marks)))
    };
    let volumes: HashMap<ExportId, Arc<Volume>> = (1..).zip(marks).map(volume).collect();
    let table = SegmentTable::new(UNLISTED + 1, UNLISTED + 1, CACHE, 1 << 20);
    let mut ends = vec![End::NotListed; table.len()];
    ends[..=GONE as usize].fill(End::Gone);
    ends[..COVERED as usize].fill(End::Covered(6000));
    let (ranks, mut pages) = (Ranks::default(), reader(bytes));
    let loader = Loader { volumes: &volumes, ends: &ends, table: &table, ranks: &ranks, hands };
    let found = loader.load(&mut pages).map_err(|error| format!("{error:?}"))?;
    let (kind, _) = pages.next().map_err(|error| format!("{error:?}"))?;
    assert_eq!(kind, PageKind::End);
    let content = |(export, _): (u32, &SeqMarks)| {
        let volume = &volumes[&ExportId(export)];
        (volume.figures().last_seq, volume.slice(0, usize::MAX, |_| true).extents)
    };
    let counts =
        |(_, info): (u32, &SegmentInfo)| (info.extents(), info.dirty_extents(), info.dirty_sectors());
    Ok(Outcome {
        found,
        volumes: (1..).zip(marks).map(content).collect(),
        segments: table.iter().map(counts).collect(),
    })
}

/// Makes `extent` the content of its sectors, except sectors with newer content.
fn lay(content: &mut Content, export: u32, extent: &KeptExtent) {
    for (skipped, sector) in (0..).zip(extent.range.start()..extent.range.end()) {
        let place = match extent.content {
            Kept::Data(first) => Ok(first + skipped),
            kind => Err(kind),
        };
        let found = (extent.seq.0, extent.number, place);
        let newest = content.entry((export, sector)).or_insert(found);
        if newest.0 < found.0 {
            *newest = found;
        }
    }
}

/// The first error met by one who reads page after page of `bytes`.
fn first_error(bytes: &[Vec<u8>]) -> Result<(), Unusable> {
    let (mut pages, mut last) = (reader(bytes), 0);
    loop {
        let (kind, body) = pages.next()?;
        if kind == PageKind::End {
            return Ok(());
        }
        let extents = ExtentReader::new(body).map_err(Unusable::Damaged)?;
        let export = extents.export().0;
        if export < last {
            return Err(Unusable::Damaged(ORDER));
        }
        last = export;
        for kept in extents {
            if kept.map_err(Unusable::Damaged)?.number == UNLISTED && (1..=EXPORTS).contains(&export) {
                return Err(Unusable::Damaged(extents::UNLISTED));
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Fault {
    Changed(Index, u8),
    CutShort(Index),
    Unlisted,
    OutOfOrder,
}

fn fault() -> impl Strategy<Value = (Index, Fault)> {
    let fault = prop_oneof![
        3 => (any::<Index>(), 1..=255_u8).prop_map(|(at, change)| Fault::Changed(at, change)),
        1 => any::<Index>().prop_map(Fault::CutShort),
        2 => Just(Fault::Unlisted),
        2 => Just(Fault::OutOfOrder)
    ];
    (any::<Index>(), fault)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn any_number_of_threads_loads_what_inserting_one_by_one_makes(
        pages in pages(),
        marks in prop::collection::vec((0..1_u64 << 32, 0..1_u64 << 32), EXPORTS as usize)
    ) {
        // Half of the writes are in the store, and a few have left the log.
        let mark = |(stored, evicted)| SeqMarks { stored: Seq(stored), evicted: Seq(stored.min(evicted) / 8) };
        let marks: Vec<SeqMarks> = marks.into_iter().map(mark).collect();
        let bytes = sealed(&pages);
        let outcome = load(&bytes, &marks, 1).unwrap();
        for hands in [2, 3, 8] {
            prop_assert_eq!(&load(&bytes, &marks, hands).unwrap(), &outcome, "{} threads", hands);
        }
        let (mut expected, mut found) = (Content::new(), Content::new());
        for (export, extents) in &pages {
            let evicted = marks.get(*export as usize - 1).map(|marks| marks.evicted);
            let is_taken = |extent: &&KeptExtent| extent.number != GONE && evicted.is_some_and(|mark| extent.seq > mark);
            extents.iter().filter(is_taken).for_each(|extent| lay(&mut expected, *export, extent));
        }
        let mut counts = vec![0; UNLISTED as usize + 1];
        for (export, (_, extents)) in (1..).zip(&outcome.volumes) {
            for extent in extents {
                lay(&mut found, export, extent);
                counts[extent.number as usize] += 1;
            }
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!(outcome.segments.iter().map(|segment| segment.0).collect::<Vec<_>>(), counts);
        prop_assert_eq!(outcome.found.listed, pages.iter().map(|(_, extents)| extents.len() as u64).sum::<u64>());
    }

    #[test]
    fn the_first_fault_in_the_file_is_the_error_for_any_number_of_threads(
        mut pages in pages(),
        faults in prop::collection::vec(fault(), 1..4)
    ) {
        prop_assume!(!pages.is_empty());
        let count = pages.len();
        for (at, fault) in &faults {
            let (export, extents) = &mut pages[at.index(count)];
            match fault {
                Fault::Unlisted => extents.last_mut().unwrap().number = UNLISTED,
                Fault::OutOfOrder => *export = 0,
                Fault::Changed(..) | Fault::CutShort(_) => {}
            }
        }
        let mut bytes = sealed(&pages);
        for (at, fault) in &faults {
            let page = &mut bytes[at.index(count)];
            match fault {
                Fault::Changed(at, change) if !page.is_empty() => {
                    let at = at.index(page.len());
                    page[at] ^= change;
                }
                Fault::CutShort(at) => page.truncate(at.index(page.len() + 1)),
                _ => {}
            }
        }
        let expected = first_error(&bytes).map_err(|error| format!("{error:?}"));
        let marks = [SeqMarks::default(); EXPORTS as usize];
        for hands in [1, 2, 3, 8] {
            let loaded = load(&bytes, &marks, hands);
            prop_assert_eq!(loaded.map(|_| ()), expected.clone(), "{} threads", hands);
        }
    }
}

#[test]
fn a_changed_bit_in_any_page_is_found_by_any_number_of_threads() {
    let extent = |at: u64| KeptExtent {
        range: SectorRange::new(at * 8, 8).unwrap(),
        seq: Seq(at + 1),
        number: 0,
        content: Kept::Data(8),
    };
    let pages: Vec<Page> = (0..100).map(|page| (1, vec![extent(2 * page), extent(2 * page + 1)])).collect();
    let (whole, marks) = (sealed(&pages), [SeqMarks::default(); EXPORTS as usize]);
    for hands in [1, 2, 8] {
        assert_eq!(
            load(&whole, &marks, hands).unwrap().found,
            Loaded { listed: 200, loaded: 200, last_export: Some(ExportId(1)), ..Loaded::default() }
        );
        for page in 0..whole.len() {
            let mut bytes = whole.clone();
            let at = page % bytes[page].len();
            bytes[page][at] ^= 1 << (page % 8);
            assert!(load(&bytes, &marks, hands).is_err(), "page {page}, {hands} threads");
        }
    }
}
