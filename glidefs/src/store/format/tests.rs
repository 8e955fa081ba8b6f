//! Properties of every format: encoded structures decode, all other bytes are refused, and look-ups agree with a model.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "tests panic")]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::envelope::{begin, seal};
use super::fuzzing::{check_manifest, check_pack, check_records, forged, sample_manifest, sample_pack};
use super::index::Piece;
use super::limits::HASH_BYTES;
use super::verify::verify_pack;
use super::*;
use crate::properties::limits::{Limit, Limits, Settings};
use crate::properties::{Bound, Durability, OnUnreachable, Properties};
use crate::store::ids::{HostName, PackId, StoreName, VolumeId, WriterId};
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

mod refused;

/// An extent: gap to the last extent, sectors, and content (`None`: zeroes by command).
type Extent = (u64, u64, Option<Content>);

#[derive(Clone, Copy, Debug)]
enum Content {
    Zero,
    Same(u8),
    Random(u64),
}

fn extent() -> impl Strategy<Value = Extent> {
    let content = prop_oneof![
        1 => Just(None),
        1 => Just(Some(Content::Zero)),
        2 => any::<u8>().prop_map(|byte| Some(Content::Same(byte))),
        2 => any::<u64>().prop_map(|seed| Some(Content::Random(seed))),
    ];
    let gap = prop_oneof![2 => Just(0), 1 => 0..300_u64, 1 => 0..(1_u64 << 40)];
    (gap, prop_oneof![3 => 1..20_u64, 1 => 100..400_u64], content)
}

/// Properties, each usual or not.
fn properties() -> impl Strategy<Value = Properties> {
    let span = || (1000..=u64::MAX).prop_map(Duration::from_millis);
    let bound = (Bound::MAX_BYTES_MIN..=u64::MAX, span())
        .prop_map(|(max_bytes, max_age)| Durability::Bounded(Bound { max_bytes, max_age }));
    let durability = prop_oneof![Just(Durability::Local), Just(Durability::Store), bound];
    let on_unreachable = prop_oneof![Just(OnUnreachable::Wait), span().prop_map(OnUnreachable::FailAfter)];
    let rates = Limit::ALL.map(|limit| prop::option::of(limit.min()..=limit.max()));
    let burst = prop_oneof![Just(100), 10..=3_600_000_u64].prop_map(Duration::from_millis);
    let weight = prop_oneof![Just(100), 1..=1000_u16];
    (durability, on_unreachable, rates, burst, weight).prop_map(
        |(durability, on_unreachable, rates, burst, weight)| {
            let mut limits = Limits::unlimited(burst);
            Limit::ALL.into_iter().zip(rates).for_each(|(limit, rate)| limits.set_rate(limit, rate));
            Properties { durability, on_unreachable, settings: Settings { limits, weight } }
        },
    )
}

fn fill(content: Content, bytes: usize) -> Vec<u8> {
    match content {
        Content::Zero => vec![0; bytes],
        Content::Same(byte) => vec![byte; bytes],
        Content::Random(seed) => {
            let mut data = vec![0; bytes];
            blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut data);
            data
        }
    }
}

fn options() -> PackOptions {
    PackOptions {
        volume: VolumeId([1; 16]),
        pack: PackId([2; 16]),
        level: 0,
        first_seq: Seq(10),
        last_seq: Seq(20),
    }
}

fn builder() -> PackBuilder {
    PackBuilder::new(options()).unwrap()
}

/// The pack of `extents`, and the bytes of every sector in the pack.
fn pack(extents: &[Extent]) -> (EncodedPack, BTreeMap<u64, Vec<u8>>) {
    let (mut builder, mut model, mut at) = (builder(), BTreeMap::new(), 0);
    for &(gap, sectors, content) in extents {
        at += gap;
        let data = fill(content.unwrap_or(Content::Zero), (sectors * SECTOR_BYTES) as usize);
        for (index, sector) in data.chunks(SECTOR_BYTES as usize).enumerate() {
            model.insert(at + index as u64, sector.to_vec());
        }
        match content {
            None => builder.push_zero(SectorRange::new(at, sectors).unwrap()).unwrap(),
            Some(_) => builder.push_data(at, data.into()).unwrap(),
        }
        at += sectors;
    }
    (builder.finish().unwrap(), model)
}

/// Reads `range` through `index`, as a reader would.
fn read(index: &PackIndex, whole: &Bytes, range: SectorRange) -> BTreeMap<u64, Vec<u8>> {
    let (mut found, mut at) = (BTreeMap::new(), range.start());
    for piece in index.lookup(range) {
        assert_eq!(piece.range.start(), at, "pieces follow each other");
        assert!(!piece.range.is_empty());
        at = piece.range.end();
        let sectors = piece.range.start()..piece.range.end();
        match piece.kind {
            PieceKind::Absent => {}
            PieceKind::Zero => found.extend(sectors.map(|sector| (sector, vec![0; 512]))),
            PieceKind::Data(entry) => {
                let block = entry.block();
                let stored = whole.slice(block.start as usize..block.end as usize);
                let plain = decode_block(entry, &stored).unwrap();
                assert_eq!(plain.len(), entry.plain_bytes());
                for sector in sectors {
                    let start = ((sector - entry.range.start()) * SECTOR_BYTES) as usize;
                    found.insert(sector, plain[start..start + 512].to_vec());
                }
            }
        }
    }
    assert_eq!(at, range.end().max(range.start()), "pieces cover the range");
    found
}

#[test]
fn a_whole_block_of_another_pack_stays_as_it_is_and_any_other_block_is_refused() {
    let bytes = BLOCK_BYTES_MAX;
    let mut first = builder();
    for (start, content, bytes) in
        [(128, Content::Same(3), bytes), (256, Content::Random(1), bytes), (384, Content::Same(5), bytes / 2)]
    {
        first.push_data(start, fill(content, bytes).into()).unwrap();
    }
    let first: Bytes = first.finish().unwrap().parts.concat().into();
    let index = verify_pack(&first).unwrap().1;
    let block = |entry: &IndexEntry| first.slice(entry.block().start as usize..entry.block().end as usize);
    let [compressed, plain, part] = index.entries() else { panic!("{index:?}") };
    assert_eq!((compressed.codec, plain.codec, part.codec), (Codec::Zstd, Codec::Stored, Codec::Zstd));
    let mut second = builder();
    second.push_data(100, fill(Content::Same(9), 28 * 512).into()).unwrap();
    for entry in [compressed, plain] {
        assert_eq!(decode_block(&entry.as_stored(), &block(entry)).unwrap(), block(entry));
        second.push_block(entry, block(entry)).unwrap();
    }
    assert_eq!(second.push_block(part, block(part)), Err(PushError::Unfit));
    assert_eq!(second.push_block(plain, block(plain)), Err(PushError::Order));
    second.push_data(384, fill(Content::Same(7), 512).into()).unwrap();
    let second: Bytes = second.finish().unwrap().parts.concat().into();
    let index = verify_pack(&second).unwrap().1;
    let found = read(&index, &second, SectorRange::new(128, 257).unwrap());
    let found: Vec<u8> = found.into_values().flatten().collect();
    let expected =
        [fill(Content::Same(3), bytes), fill(Content::Random(1), bytes), fill(Content::Same(7), 512)];
    assert!(found == expected.concat());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_pack_gives_back_every_sector(
        extents in prop::collection::vec(extent(), 1..12),
        from in any::<prop::sample::Index>(), before in 0..300_u64, sectors in 0..700_u64,
    ) {
        let (encoded, model) = pack(&extents);
        let whole = Bytes::from(encoded.parts.concat());
        let (trailer, index) = verify_pack(&whole).unwrap();
        let pack = trailer.pack;
        prop_assert_eq!(pack, encoded.pack);
        prop_assert_eq!(pack.total_bytes, whole.len() as u64);
        prop_assert_eq!(pack.lowest_sector, *model.keys().next().unwrap());
        prop_assert_eq!(pack.highest_sector, *model.keys().next_back().unwrap());
        prop_assert_eq!((trailer.first_seq, trailer.last_seq), (Seq(10), Seq(20)));
        let fetched = &whole[pack.index().start as usize..pack.index().end as usize];
        prop_assert_eq!(&PackIndex::decode(fetched, &pack).unwrap(), &index);

        let all = SectorRange::new(pack.lowest_sector, 0).unwrap().start();
        let start = model.keys().nth(from.index(model.len())).unwrap().saturating_sub(before).max(all / 2);
        let range = SectorRange::new(start, sectors).unwrap();
        let expected: BTreeMap<_, _> =
            model.range(start..start + sectors).map(|(sector, data)| (*sector, data.clone())).collect();
        prop_assert_eq!(read(&index, &whole, range), expected);
    }

    #[test]
    fn neighbours_share_blocks_that_do_not_cross_their_boundary(
        start in 0..200_u64, writes in prop::collection::vec(1..40_u64, 1..20),
    ) {
        let extents: Vec<Extent> = writes
            .iter()
            .enumerate()
            .map(|(index, sectors)| (if index == 0 { start } else { 0 }, *sectors, Some(Content::Random(index as u64))))
            .collect();
        let (encoded, _) = pack(&extents);
        let (_, index) = verify_pack(&encoded.parts.concat().into()).unwrap();
        let end = start + writes.iter().sum::<u64>();
        let blocks = (end - 1) / BLOCK_SECTORS_MAX - start / BLOCK_SECTORS_MAX + 1;
        prop_assert_eq!(index.entries().len() as u64, blocks);
    }

    #[test]
    fn a_manifest_comes_back_as_it_was(
        ids: [[u8; 16]; 3], number in 1..1_u64 << 62, epoch in 0..1_u64 << 62, size in 0..1_u64 << 54,
        cut in 0..=Seq::MAX.0, millis in 0..=limits::UNIX_MILLIS_MAX, before in 0..1_u64 << 62, generation: u32,
        name in "[a-z0-9][a-zA-Z0-9._-]{0,127}", fork: bool, count in 0..40_usize, level: u8,
        deleted in prop::option::of(prop_oneof![Just(Deletion::CanBeUndone), Just(Deletion::ForGood)]),
        host in prop::option::of("[^\\p{Cc}]{1,60}"), released: bool,
        damaged in prop::collection::vec((1..100_u64, 1..100_u64), 0..10),
        uploaded in prop::collection::vec(any::<[u8; 16]>(), 0..4), properties in properties(),
    ) {
        let holder = host.map(|host| Holder { host: HostName::nearest(&host), released });
        let mut end = 0;
        let damaged = damaged.into_iter().map(|(gap, sectors)| {
            let range = SectorRange::new(end + gap, sectors).unwrap();
            end = range.end();
            range
        });
        let uploaded = uploaded.into_iter().map(PackId).collect();
        let sections = Sections { holder, damaged: damaged.collect(), deleted, uploaded, properties };
        let sample = sample_manifest();
        let manifest = Manifest {
            volume: VolumeId(ids[0]),
            number,
            epoch,
            writer: WriterId(ids[1]),
            size_sectors: size.max(end),
            cut: Seq(cut),
            created_unix_millis: millis,
            generation,
            name: name.parse().unwrap(),
            origin: fork.then_some(Origin { volume: VolumeId(ids[2]), manifest: before }),
            packs: vec![PackRef { level, pack: PackId(ids[2]), ..sample.packs[0] }; count],
            sections,
        };
        let bytes = manifest.encode().unwrap();
        prop_assert_eq!(Manifest::decode(&bytes), Ok(manifest.clone()));
        let snapshot = Snapshot { name: "s".parse().unwrap(), created_unix_millis: millis, manifest };
        prop_assert_eq!(Snapshot::decode(&snapshot.encode().unwrap()), Ok(snapshot));
    }

    #[test]
    fn small_records_come_back_as_they_were(
        volume: [u8; 16], millis in 0..=limits::UNIX_MILLIS_MAX, store: u128,
    ) {
        let name = NameRecord { volume: VolumeId(volume), created_unix_millis: millis };
        prop_assert_eq!(NameRecord::decode(&name.encode()), Ok(name));
        let marker = Marker { store_id: uuid::Uuid::from_u128(store), created: "2026-01-31T00:00:00Z".into() };
        prop_assert_eq!(Marker::decode(&marker.encode()), Ok(marker));
    }

    #[test]
    fn bytes_are_refused_or_are_what_the_encoder_makes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check_pack(&bytes);
        check_manifest(&bytes);
        check_records(&bytes);
    }

    #[test]
    fn one_changed_byte_is_refused_or_is_what_the_encoder_makes(at in 0..600_usize, by in 1_u8..) {
        let mut bytes = vec![0; at];
        bytes.push(by);
        check_pack(&bytes);
        check_manifest(&bytes);
        check_records(&bytes);
    }
}

#[test]
fn the_fuzzers_reach_behind_the_checksums() {
    assert!(check_pack(&[]) && check_manifest(&[]) && check_records(&[]));
}

#[test]
fn extents_that_do_not_ascend_or_have_no_sectors_are_refused_and_change_nothing() {
    let range = |start, count| SectorRange::new(start, count).unwrap();
    let mut builder = builder();
    let data = |bytes| Bytes::from(vec![1_u8; bytes]);
    builder.push_data(8, data(4096)).unwrap();
    let bytes = builder.bytes();
    assert_eq!(builder.push_data(15, data(512)), Err(PushError::Order));
    assert_eq!(builder.push_zero(range(0, 1)), Err(PushError::Order));
    assert_eq!(builder.push_data(16, data(0)), Err(PushError::Unfit));
    assert_eq!(builder.push_data(16, data(513)), Err(PushError::Unfit));
    assert_eq!(builder.push_data(u64::MAX, data(512)), Err(PushError::Unfit));
    assert_eq!(builder.push_zero(range(16, 0)), Err(PushError::Unfit));
    assert_eq!(builder.bytes(), bytes);
    builder.push_data(16, data(512)).unwrap();
    let (_, index) = verify_pack(&builder.finish().unwrap().parts.concat().into()).unwrap();
    assert_eq!(index.entries().len(), 1);
}

#[test]
fn a_pack_of_nothing_is_none() {
    assert!(builder().finish().is_none());
}

#[test]
fn zeroes_may_cover_a_whole_volume_and_neighbours_are_joined() {
    let range = |start, count| SectorRange::new(start, count).unwrap();
    let mut builder = builder();
    builder.push_zero(range(0, 100)).unwrap();
    builder.push_data(100, Bytes::from(vec![0; 8192])).unwrap();
    builder.push_zero(range(116, u64::MAX - 116)).unwrap();
    let (trailer, index) = verify_pack(&builder.finish().unwrap().parts.concat().into()).unwrap();
    assert_eq!(index.entries().iter().map(|entry| entry.range).collect::<Vec<_>>(), [range(0, u64::MAX)]);
    assert_eq!((trailer.pack.data_bytes, trailer.pack.highest_sector), (0, u64::MAX - 1));
    let pieces: Vec<_> = index.lookup(range(u64::MAX - 5, 3)).collect();
    assert_eq!(pieces, [Piece { range: range(u64::MAX - 5, 3), kind: PieceKind::Zero }]);
}

#[test]
fn whole_blocks_that_do_not_shrink_are_not_copied() {
    let data = Bytes::from(fill(Content::Random(1), 4 * BLOCK_BYTES_MAX));
    let mut builder = builder();
    builder.push_data(0, data.clone()).unwrap();
    let encoded = builder.finish().unwrap();
    let addresses: Vec<_> = encoded.parts.iter().map(|part| part.as_ptr()).collect();
    for block in 0..4 {
        assert!(addresses.contains(&data[block * BLOCK_BYTES_MAX..].as_ptr()), "block {block}");
    }
}

#[test]
fn an_index_takes_few_bytes_an_entry() {
    let extents: Vec<Extent> =
        (0..8192).map(|index| (8 + index * 37 % 125 * 8, 8, Some(Content::Random(index)))).collect();
    let (encoded, _) = pack(&extents);
    let pack = encoded.pack;
    assert_eq!(pack.entries, 8192);
    let bytes = pack.index_stored_bytes / pack.entries;
    // Four bytes of an entry are a CRC, which nothing shrinks.
    assert!(bytes <= 7, "{bytes} bytes an entry");
}

#[test]
fn ten_thousand_packs_fit_a_small_manifest() {
    let mut manifest = sample_manifest();
    let sample = manifest.packs[0];
    manifest.packs = (0..10_000_u64)
        .map(|index| {
            let random = blake3::hash(&index.to_le_bytes());
            let (id, hash) = random.as_bytes().split_at(16);
            let stored = 9_000 + index as u32 % 5_000;
            let offset = 8_000_000 + index * 7919 % 24_000_000;
            PackRef {
                pack: PackId(id.try_into().unwrap()),
                index_hash: hash.try_into().unwrap(),
                index_offset_bytes: offset,
                index_stored_bytes: stored,
                index_plain_bytes: stored + 9_000,
                total_bytes: offset + u64::from(stored) + TRAILER_BYTES as u64,
                entries: stored / 7,
                lowest_sector: index * 17 % 1_000_000,
                highest_sector: 2_000_000 + index * 31 % 100_000,
                data_bytes: offset * 2,
                ..sample
            }
        })
        .collect();
    let bytes = manifest.encode().unwrap();
    // 32 bytes of a description are random.
    assert!(bytes.len() < 10_000 * 64, "{} bytes", bytes.len());
    assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
}

#[test]
fn a_name_of_another_alphabet_is_refused() {
    assert!("../x".parse::<StoreName>().is_err());
}
