//! Bytes that no encoder makes: damage, other versions, contradictions, and claims that would take memory.

use super::*;
use crate::store::format::verify::PackTrailer;

/// Flips every bit of `bytes`, and cuts `bytes` to every shorter length.
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
    let reference = pack.pack;
    each_damage(&whole, |bytes| verify_pack(&Bytes::copy_from_slice(bytes)).is_ok());
    let index = &whole[reference.index().start as usize..reference.index().end as usize];
    each_damage(index, |bytes| PackIndex::decode(bytes, &reference).is_ok());
    // The BLAKE3 behind the trailer covers the whole pack.
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
    let index = &whole[a.pack.index().start as usize..a.pack.index().end as usize];
    let other = PackRef { index_stored_bytes: index.len() as u32, ..b.pack };
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
    assert!(error.is_other_version() && error.to_string().contains("run the glidefs that wrote it"));
    let marker = br#"{"format":2,"anything":["else"]}"#;
    assert_eq!(Marker::decode(marker), Err(FormatError::Version { found: 2 }));
    assert!(!FormatError::Checksum.is_other_version());
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
    assert!(error.is_other_version(), "{error}");
    // A glidefs that knows damaged sectors by this tag would ignore them.
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

/// Hashes need no key, so anybody who can write into the bucket can make such a manifest. A cut of 2^64 - 1 would overflow at the
/// next write.
#[test]
fn a_manifest_with_a_number_that_no_daemon_reaches_is_neither_written_nor_read() {
    let sample = sample_manifest();
    let origin = Origin { volume: VolumeId([8; 16]), manifest: u64::MAX };
    for manifest in [
        Manifest { cut: Seq(u64::MAX), ..sample.clone() },
        Manifest { cut: Seq(1 << 62), ..sample.clone() },
        Manifest { number: u64::MAX, ..sample.clone() },
        Manifest { epoch: u64::MAX, ..sample.clone() },
        Manifest { origin: Some(origin), ..sample.clone() },
        Manifest { size_sectors: (1 << 54) + 1, ..sample.clone() },
        Manifest { created_unix_millis: u64::MAX, ..sample.clone() },
    ] {
        assert!(matches!(manifest.encode(), Err(FormatError::Malformed(_))), "{manifest:?}");
        assert!(
            matches!(Manifest::decode(&forged(&manifest)), Err(FormatError::Malformed(_))),
            "{manifest:?}"
        );
    }
    let largest = Manifest { cut: Seq((1 << 62) - 1), size_sectors: 1 << 54, ..sample };
    assert_eq!(Manifest::decode(&largest.encode().unwrap()), Ok(largest));
}

#[test]
fn a_record_with_a_date_that_no_clock_shows_is_refused() {
    let record = |magic: [u8; 8], fields: &[&[u8]]| {
        let mut bytes = begin(magic);
        for field in fields {
            bytes.extend_from_slice(field);
        }
        seal(&mut bytes);
        bytes
    };
    let (id, late) = ([1; 16], u64::MAX.to_le_bytes());
    assert!(NameRecord::decode(&record(records::NAME_MAGIC, &[&id, &late])).is_err());
    let one = 1_u32.to_le_bytes();
    assert!(Candidates::decode(&record(records::CANDIDATES_MAGIC, &[&one, &id, &id, &late])).is_err());
    let manifest = sample_manifest().encode().unwrap();
    assert!(Snapshot::decode(&record(records::SNAPSHOT_MAGIC, &[&late, &[1, b's'], &manifest])).is_err());
    // A clock that far ahead keeps no record from being read.
    let name = NameRecord { volume: VolumeId(id), created_unix_millis: u64::MAX };
    assert!(NameRecord::decode(&name.encode()).is_ok());
}

/// A READ would fetch 4 GiB of index for one entry, if the description were believed.
#[test]
fn a_pack_whose_lengths_do_not_fit_its_entries_is_refused() {
    let pack = sample_pack().pack;
    let refused = |pack: PackRef| {
        let total_bytes = pack.index_offset_bytes + u64::from(pack.index_stored_bytes) + TRAILER_BYTES as u64;
        let manifest = Manifest { packs: vec![PackRef { total_bytes, ..pack }], ..sample_manifest() };
        Manifest::decode(&forged(&manifest)) == Err(FormatError::Malformed("description of a pack"))
    };
    assert!(!refused(pack));
    assert!(refused(PackRef { index_stored_bytes: 256 << 20, ..pack }));
    assert!(refused(PackRef { index_stored_bytes: u32::MAX - 1024, ..pack }));
    assert!(refused(PackRef { index_stored_bytes: pack.index_stored_bytes + 100, ..pack }));
    assert!(refused(PackRef { index_plain_bytes: 1 << 20, ..pack }));
    assert!(refused(PackRef { index_plain_bytes: 1, ..pack }));
    assert!(refused(PackRef { data_bytes: 1 << 63, ..pack }));
    assert!(refused(PackRef { data_bytes: 5 * BLOCK_BYTES_MAX as u64, ..pack }));
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
        ..sample_pack().pack
    };
    assert_eq!(PackIndex::decode(&index, &pack), Err(FormatError::Malformed("length of the index")));
    // The compressed bytes hold more than the stated length.
    let manifest = bomb(manifest::MAGIC, &[1000]);
    assert_eq!(Manifest::decode(&manifest), Err(FormatError::Malformed("compressed bytes")));
}

/// `sample_manifest` with these properties in the section's own bytes.
fn manifest_with(section: &[(u8, u64)]) -> Result<Properties, FormatError> {
    let mut sample = sample_manifest();
    sample.sections.properties = Properties::default();
    let mut body = sample.body();
    let bytes: Vec<u8> =
        section.iter().flat_map(|(kind, number)| [&[*kind][..], &number.to_le_bytes()].concat()).collect();
    body.extend_from_slice(&6_u16.to_le_bytes());
    body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    body.extend_from_slice(&bytes);
    let decoded = Manifest::decode(&manifest::seal_body(sample.version(), &body));
    decoded.map(|manifest| manifest.sections.properties)
}

#[test]
fn the_bytes_of_properties_are_those_of_the_documentation() {
    let durability = |section: &[(u8, u64)]| manifest_with(section).map(|properties| properties.durability);
    assert_eq!(durability(&[(1, 1)]), Ok(Durability::Store));
    let bound = Bound { max_bytes: 1 << 20, max_age: Duration::from_secs(1) };
    assert_eq!(durability(&[(1, 2), (2, 1 << 20), (3, 1000)]), Ok(Durability::Bounded(bound)));
    let all = [(4, 5000), (5, 1), (6, 2), (7, 1 << 17), (8, 1 << 18), (9, 10), (10, 7)];
    let found = manifest_with(&all).unwrap();
    assert_eq!(found.on_unreachable, OnUnreachable::FailAfter(Duration::from_secs(5)));
    let Settings { limits, weight } = found.settings;
    let rates = Limit::ALL.map(|limit| limits.rate(limit));
    assert_eq!((rates, weight), ([Some(1), Some(2), Some(1 << 17), Some(1 << 18)], 7));
    assert_eq!(limits.burst, Duration::from_millis(10));
}

#[test]
fn a_manifest_with_usual_properties_is_as_older_versions_made_it() {
    let mut manifest = sample_manifest();
    manifest.sections.properties = Properties::default();
    assert!(manifest.body().ends_with(&[12; 16]), "the last section is the one of uploaded packs");
    manifest.sections = Sections::default();
    assert_eq!(manifest.version(), 1, "no section, no newer version");
}

#[test]
fn a_property_of_a_newer_glidefs_is_refused_as_such_and_never_left_out() {
    for (section, kind) in [(&[(11, 1)][..], 11), (&[(1, 1), (200, 0)], 200), (&[(1, 3)], 1)] {
        let refused = manifest_with(section).unwrap_err();
        assert_eq!(refused, FormatError::Property { kind });
        assert!(refused.is_other_version());
        assert!(refused.to_string().contains("newer"), "{refused}");
    }
}

#[test]
fn properties_out_of_bounds_or_in_a_second_encoding_are_refused() {
    let wrong = Err(FormatError::Malformed("properties of a volume"));
    for section in [
        &[][..],
        &[(0, 1)],
        &[(6, 1), (5, 1)],
        &[(5, 1), (5, 1)],
        &[(1, 2)],
        &[(1, 1), (2, 1 << 20), (3, 1000)],
        &[(2, 1 << 20)],
        &[(1, 2), (2, (1 << 20) - 1), (3, 1000)],
        &[(1, 2), (2, 1 << 20), (3, 999)],
        &[(4, 999)],
        &[(5, 0)],
        &[(6, 10_000_001)],
        &[(7, (1 << 17) - 1)],
        &[(8, (64 << 30) + 1)],
        &[(9, 9)],
        &[(9, 3_600_001)],
        &[(9, u64::MAX)],
        &[(9, 100)],
        &[(10, 0)],
        &[(10, 100)],
        &[(10, 1001)],
        &[(10, u64::MAX)],
    ] {
        assert_eq!(manifest_with(section), wrong, "{section:?}");
    }
    let mut manifest = sample_manifest();
    manifest.sections.properties.settings.weight = 0;
    assert!(manifest.encode().is_err());
}
