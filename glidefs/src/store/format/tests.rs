//! Properties of every format: what was encoded is decoded, nothing else is, and look-ups agree with a model.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::envelope::{begin, seal};
use super::fuzzing::{check_manifest, check_pack, check_records, sample_manifest, sample_pack};
use super::*;
use crate::store::ids::{HostName, PackId, StoreName, VolumeId, WriterId};
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

/// An extent: gap to the one before, sectors, and what they hold (`None`: zeroes by command).
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
        zstd_level: 1,
    }
}

fn builder() -> PackBuilder {
    PackBuilder::new(options()).unwrap()
}

/// The pack of `extents`, and the bytes of every sector in it.
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
        prop_assert_eq!(trailer, encoded.trailer);
        let pack = trailer.pack;
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
        ids: [[u8; 16]; 3], numbers: [u64; 5], number in 1..=u64::MAX, generation: u32,
        name in "[a-z0-9][a-zA-Z0-9._-]{0,127}", fork: bool, count in 0..40_usize, level: u8,
        deleted in prop::option::of(prop_oneof![Just(Deletion::CanBeUndone), Just(Deletion::ForGood)]),
        host in prop::option::of("[^\\p{Cc}]{1,60}"), released: bool,
        damaged in prop::collection::vec((1..100_u64, 1..100_u64), 0..10),
        uploaded in prop::collection::vec(any::<[u8; 16]>(), 0..4),
    ) {
        let holder = host.map(|host| Holder { host: HostName::nearest(&host), released });
        let mut end = 0;
        let damaged = damaged.into_iter().map(|(gap, sectors)| {
            let range = SectorRange::new(end + gap, sectors).unwrap();
            end = range.end();
            range
        });
        let uploaded = uploaded.into_iter().map(PackId).collect();
        let sections = Sections { holder, damaged: damaged.collect(), deleted, uploaded };
        let sample = sample_manifest();
        let manifest = Manifest {
            volume: VolumeId(ids[0]),
            number,
            epoch: numbers[0],
            writer: WriterId(ids[1]),
            size_sectors: numbers[1].max(end),
            cut: Seq(numbers[2]),
            created_unix_millis: numbers[3],
            generation,
            name: name.parse().unwrap(),
            origin: fork.then_some(Origin { volume: VolumeId(ids[2]), manifest: numbers[4] }),
            packs: vec![PackRef { level, pack: PackId(ids[2]), ..sample.packs[0] }; count],
            sections,
        };
        let bytes = manifest.encode().unwrap();
        prop_assert_eq!(Manifest::decode(&bytes), Ok(manifest.clone()));
        let snapshot = Snapshot { name: "s".parse().unwrap(), created_unix_millis: numbers[3], manifest };
        prop_assert_eq!(Snapshot::decode(&snapshot.encode().unwrap()), Ok(snapshot));
    }

    #[test]
    fn small_records_come_back_as_they_were(volume: [u8; 16], writer: [u8; 16], millis: u64, store: u128) {
        let name = NameRecord { volume: VolumeId(volume), created_unix_millis: millis };
        prop_assert_eq!(NameRecord::decode(&name.encode()), Ok(name));
        let tombstone = Tombstone { volume: name.volume, deleted_unix_millis: millis, writer: WriterId(writer) };
        prop_assert_eq!(Tombstone::decode(&tombstone.encode()), Ok(tombstone));
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

/// Every bit of `bytes` flipped, and every length it could be cut to.
fn each_damage(bytes: &[u8], decodes: impl Fn(&[u8]) -> bool) {
    assert!(decodes(bytes));
    let mut damaged = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(!decodes(&damaged), "bit {bit} flipped and nobody noticed");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
    for cut in 0..bytes.len() {
        assert!(!decodes(&bytes[..cut]), "cut to {cut} bytes and nobody noticed");
    }
    damaged.push(0);
    assert!(!decodes(&damaged), "a byte was added and nobody noticed");
}

#[test]
fn any_damage_to_any_object_is_noticed() {
    let pack = sample_pack();
    let whole = pack.parts.concat();
    let reference = pack.trailer.pack;
    each_damage(&whole, |bytes| verify_pack(&Bytes::copy_from_slice(bytes)).is_ok());
    let index = &whole[reference.index().start as usize..reference.index().end as usize];
    each_damage(index, |bytes| PackIndex::decode(bytes, &reference).is_ok());
    // The BLAKE3 behind the trailer is that of the whole pack.
    let trailer = &whole[whole.len() - TRAILER_BYTES..];
    for bit in 0..(TRAILER_BYTES - HASH_BYTES) * 8 {
        let mut damaged = trailer.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(PackTrailer::decode(&damaged, whole.len() as u64).is_err(), "bit {bit}");
    }
    assert!(PackTrailer::decode(trailer, whole.len() as u64 + 1).is_err());
    let (_, decoded) = verify_pack(&whole.clone().into()).unwrap();
    for entry in decoded.entries().iter().filter(|entry| entry.codec != Codec::Zero) {
        let block = &whole[entry.block().start as usize..entry.block().end as usize];
        each_damage(block, |bytes| decode_block(entry, &Bytes::copy_from_slice(bytes)).is_ok());
    }

    let compressed = decoded.entries().iter().find(|entry| entry.codec == Codec::Zstd).unwrap();
    let block =
        Bytes::from(whole.clone()).slice(compressed.block().start as usize..compressed.block().end as usize);
    let other = IndexEntry { plain_crc: !compressed.plain_crc, ..*compressed };
    assert_eq!(decode_block(&other, &block), Err(FormatError::Checksum));

    let manifest = sample_manifest();
    each_damage(&manifest.encode().unwrap(), |bytes| Manifest::decode(bytes).is_ok());
    let volume = manifest.volume;
    let snapshot = Snapshot { name: manifest.name.clone(), created_unix_millis: 5, manifest };
    each_damage(&snapshot.encode().unwrap(), |bytes| Snapshot::decode(bytes).is_ok());
    let name = NameRecord { volume, created_unix_millis: 5 };
    each_damage(&name.encode(), |bytes| NameRecord::decode(bytes).is_ok());
    let tombstone = Tombstone { volume, deleted_unix_millis: 5, writer: WriterId([4; 16]) };
    each_damage(&tombstone.encode(), |bytes| Tombstone::decode(bytes).is_ok());
    let candidate = Candidate { volume, pack: PackId([3; 16]), since_unix_millis: 7 };
    let candidates = Candidates(vec![candidate; 2]);
    assert_eq!(Candidates::decode(&candidates.encode()), Ok(candidates.clone()));
    each_damage(&candidates.encode(), |bytes| Candidates::decode(bytes).is_ok());
}

#[test]
fn an_index_of_another_pack_is_refused() {
    let (a, _) = pack(&[(8, 8, Some(Content::Same(1)))]);
    let (b, _) = pack(&[(8, 8, Some(Content::Same(2)))]);
    let whole = a.parts.concat();
    let index = &whole[a.trailer.pack.index().start as usize..a.trailer.pack.index().end as usize];
    let other = PackRef { index_stored_bytes: index.len() as u32, ..b.trailer.pack };
    assert_eq!(PackIndex::decode(index, &other), Err(FormatError::Elsewhere("pack")));
}

#[test]
fn a_newer_version_is_named_and_an_older_glidefs_says_what_to_do() {
    let mut bytes = sample_manifest().encode().unwrap();
    bytes.truncate(bytes.len() - HASH_BYTES);
    bytes[8..10].copy_from_slice(&3_u16.to_le_bytes());
    seal(&mut bytes);
    let error = Manifest::decode(&bytes).unwrap_err();
    assert_eq!(error, FormatError::Version { found: 3 });
    assert!(error.is_newer() && error.to_string().contains("run the glidefs that wrote it"));
    let marker = br#"{"format":2,"anything":["else"]}"#;
    assert_eq!(Marker::decode(marker), Err(FormatError::Version { found: 2 }));
    assert!(!FormatError::Checksum.is_newer());
}

#[test]
fn a_manifest_without_sections_is_one_of_version_1_that_ends_with_its_packs() {
    let plain = Manifest { sections: Sections::default(), ..sample_manifest() };
    let bytes = plain.encode().unwrap();
    assert_eq!(bytes[8..10], 1_u16.to_le_bytes());
    assert_eq!(plain.body().len(), 110 + "sample".len() + 101 * plain.packs.len());
    assert_eq!(sample_manifest().encode().unwrap()[8..10], 2_u16.to_le_bytes());
}

#[test]
fn a_section_of_an_unknown_kind_is_that_of_a_newer_glidefs_and_no_damage() {
    let mut body = sample_manifest().body();
    body.extend_from_slice(&[9, 0, 2, 0, 0, 0, 0xab, 0xcd]);
    let error = Manifest::decode(&manifest::seal_body(2, &body)).unwrap_err();
    assert_eq!(error, FormatError::Section { tag: 9 });
    assert!(error.is_newer() && error.is_other_version(), "{error}");
    // Whoever knows damaged sectors by this tag does not heed them.
    let mut body = Manifest { sections: Sections::default(), ..sample_manifest() }.body();
    body.extend_from_slice(&[2, 0, 16, 0, 0, 0]);
    body.extend_from_slice(&[8_u64.to_le_bytes(), 1_u64.to_le_bytes()].concat());
    let error = Manifest::decode(&manifest::seal_body(2, &body)).unwrap_err();
    assert_eq!(error, FormatError::Section { tag: 2 });
}

#[test]
fn sections_that_contradict_themselves_are_refused() {
    let plain = Manifest { sections: Sections::default(), ..sample_manifest() };
    let with = |sections: &[u8]| [&plain.body(), sections].concat();
    let holder = [1, 0, 3, 0, 0, 0, 1, 1, b'h'];
    let range = |start: u64, count: u64| [start.to_le_bytes(), count.to_le_bytes()].concat();
    let damaged = |ranges: &[u8]| [&[4, 0, ranges.len() as u8, 0, 0, 0], ranges].concat();
    let decodes = |version, sections: &[u8]| Manifest::decode(&manifest::seal_body(version, &with(sections)));
    assert!(decodes(2, &holder).is_ok() && decodes(2, &damaged(&range(8, 1))).is_ok());
    assert!(decodes(1, &holder).is_err() && decodes(2, &[]).is_err());
    for wrong in [
        [holder, holder].concat(),
        [damaged(&range(8, 1)), holder.to_vec()].concat(),
        vec![1, 0, 3, 0, 0, 0, 2, 1, b'h'],
        vec![1, 0, 3, 0, 0, 0, 1, 1, b'\n'],
        vec![1, 0, 2, 0, 0, 0, 1, 0],
        vec![1, 0, 4, 0, 0, 0, 1, 1, b'h', b'h'],
        vec![1, 0, 255, 0, 0, 0, 1, 1, b'h'],
        vec![1],
        damaged(&[]),
        damaged(&range(8, 0)),
        damaged(&range(8, u64::MAX)),
        damaged(&range(plain.size_sectors - 1, 2)),
        damaged(&range(8, 1)[..15]),
        damaged(&[range(8, 1), range(9, 1)].concat()),
        damaged(&[range(8, 1), range(4, 1)].concat()),
        [damaged(&range(8, 1)), vec![3, 0, 1, 0, 0, 0, 1]].concat(),
        vec![3, 0, 1, 0, 0, 0, 2],
        vec![3, 0, 0, 0, 0, 0],
        vec![5, 0, 0, 0, 0, 0],
        [&[5, 0, 15, 0, 0, 0][..], &[7; 15]].concat(),
        [&[5, 0, 17, 0, 0, 0][..], &[7; 17]].concat(),
    ] {
        assert!(matches!(decodes(2, &wrong), Err(error) if !error.is_other_version()), "{wrong:?}");
    }
}

#[test]
fn other_json_is_no_marker() {
    for text in [
        "",
        "{}",
        "[]",
        "{\"format\":1}",
        "{\"format\":1,\"store_id\":\"x\",\"created\":\"\"}",
        "{\"format\":70000}",
    ] {
        assert!(matches!(Marker::decode(text.as_bytes()), Err(FormatError::Malformed(_))), "{text}");
    }
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
    let pack = encoded.trailer.pack;
    assert_eq!(pack.entries, 8192);
    let bytes = pack.index_stored_bytes / pack.entries;
    // Four of them are a CRC, which nothing shrinks.
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
    // 32 of them are random.
    assert!(bytes.len() < 10_000 * 64, "{} bytes", bytes.len());
    assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
}

#[test]
fn a_manifest_that_could_not_be_read_is_not_written() {
    let sample = sample_manifest();
    let impossible = PackRef { total_bytes: 1, ..sample.packs[0] };
    for manifest in [
        Manifest { number: 0, ..sample.clone() },
        Manifest { packs: vec![impossible], ..sample.clone() },
        Manifest { packs: vec![sample.packs[0]; PACKS_MAX + 1], ..sample },
    ] {
        assert!(matches!(manifest.encode(), Err(FormatError::Malformed(_))));
    }
}

#[test]
fn a_small_object_that_claims_to_be_large_is_refused_before_memory_is_taken() {
    let bomb = |magic: [u8; 8], fields: &[u32]| {
        let mut bytes = begin(magic);
        bytes.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        bytes.extend_from_slice(&zstd::compress(&vec![0; 1 << 20]));
        seal(&mut bytes);
        bytes
    };
    let manifest = bomb(manifest::MAGIC, &[u32::MAX]);
    assert_eq!(Manifest::decode(&manifest), Err(FormatError::Malformed("length of a manifest")));
    let index = bomb(index::MAGIC, &[1 << 20, 1 << 30]);
    let hash: [u8; HASH_BYTES] = index[index.len() - HASH_BYTES..].try_into().unwrap();
    let pack = PackRef {
        index_stored_bytes: index.len() as u32,
        index_plain_bytes: 1 << 30,
        index_hash: PackRef::truncated(&hash),
        entries: 1 << 20,
        ..sample_pack().trailer.pack
    };
    assert_eq!(PackIndex::decode(&index, &pack), Err(FormatError::Malformed("length of the index")));
    // And one whose compressed bytes hold more than they say.
    let manifest = bomb(manifest::MAGIC, &[1000]);
    assert_eq!(Manifest::decode(&manifest), Err(FormatError::Malformed("compressed bytes")));
}

#[test]
fn a_name_of_another_alphabet_is_refused() {
    assert!("../x".parse::<StoreName>().is_err());
}
