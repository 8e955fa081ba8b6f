//! Property of any bytes, checked by the fuzzers in `fuzz/` and by the property tests: a decoder refuses the bytes, or the
//! encoder makes exactly these bytes of the decoded structure.
//!
//! Random bytes never pass a checksum. So the bytes are also laid over valid content by exclusive or, and checksums, magic and
//! version are put right again, as a forger could do. Does not exist in the daemon. Each check returns whether the overlaid
//! content was accepted.
//!
//! Of everything accepted, the numbers are compared with bounds that stand here as numbers, and not as the constants of the decoders: so a
//! change of a constant, which may let a forger take more memory or overflow a sum, fails here.

#![allow(clippy::arithmetic_side_effects, reason = "an overflow is found like any other fault")]

use std::time::Duration;

use bytes::Bytes;

use super::envelope::seal;
use super::limits::{FORMAT_VERSION, HASH_BYTES};
use super::manifest::{self, Manifest, Origin};
use super::pack::{HEADER_MAGIC, TRAILER_MAGIC};
use super::records::{CANDIDATES_MAGIC, NAME_MAGIC, SNAPSHOT_MAGIC};
use super::verify::{PackHeader, PackTrailer, TRAILER_CRC_AT, verify_pack};
use super::{
    Candidate, Candidates, Deletion, EncodedPack, Holder, Marker, NameRecord, PackBuilder, PackIndex,
    PackOptions, PackRef, Sections, Snapshot,
    index::{self, Codec},
};
use crate::checksum::crc32c;
use crate::properties::limits::{Limit, Limits, Settings};
use crate::properties::{Bound, Durability, OnUnreachable, Properties};
use crate::store::ids::{HostName, PackId, StoreName, VolumeId, WriterId};
use crate::store::key::Key;
use crate::units::{SectorRange, Seq};

const VOLUME: VolumeId = VolumeId(*b"a sample volume.");

/// `bytes` as, or over, the header, the trailer and the columns of the index of a pack, and as a pack.
pub fn check_pack(bytes: &[u8]) -> bool {
    let sample = sample_pack();
    let pack = sample.pack;
    let _ = verify_pack(&Bytes::copy_from_slice(bytes));
    let _ = PackIndex::decode(bytes, &pack);
    let _ = PackTrailer::decode(bytes, pack.total_bytes);
    let whole = sample.parts.concat();

    let mut header = over(&whole[..48], bytes, HEADER_MAGIC);
    if let Ok(found) = PackHeader::decode(&header) {
        assert_eq!(found.encode(), header);
    }
    header.truncate(bytes.len() % 48);
    assert!(PackHeader::decode(&header).is_err());

    let mut trailer = over(&whole[whole.len() - super::TRAILER_BYTES..], bytes, TRAILER_MAGIC);
    let crc = crc32c(&trailer[..TRAILER_CRC_AT]);
    trailer[TRAILER_CRC_AT..TRAILER_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    let accepted = PackTrailer::decode(&trailer, pack.total_bytes);
    if let Ok(found) = accepted {
        assert_bounds_of_pack(&found.pack);
        assert_eq!(found.encode(), trailer[..trailer.len() - HASH_BYTES]);
    }

    let Ok((_, sample)) = verify_pack(&whole.into()) else { unreachable!("the sample is a pack") };
    let mut columns = index::columns(sample.entries());
    columns.iter_mut().zip(bytes).for_each(|(to, from)| *to ^= *from);
    let Ok((entries, _)) = index::decode_columns(&columns, sample.entries().len()) else { return false };
    assert_eq!(index::columns(&entries), columns);
    assert!(entries.windows(2).all(|pair| {
        pair[0].range.end() <= pair[1].range.start() && pair[0].block().end == pair[1].block().start
    }));
    for entry in entries.iter().filter(|entry| entry.codec != Codec::Zero) {
        assert!((512..=65_536).contains(&entry.plain_bytes()) && (1..=65_536).contains(&entry.stored_bytes));
        assert!(entry.range.start() / 128 == (entry.range.end() - 1) / 128, "a block crosses 64 KiB");
    }
    accepted.is_ok()
}

/// `bytes` as, or over, a manifest.
pub fn check_manifest(bytes: &[u8]) -> bool {
    let _ = Manifest::decode(bytes);
    let whole = sample_manifest();
    let plain = Manifest { sections: Sections::default(), ..whole.clone() };
    let at = plain.body().len();
    let accepted =
        [(&plain, 0), (&whole, 0), (&whole, at)].map(|(sample, at)| check_manifest_over(sample, bytes, at));
    accepted.contains(&true)
}

/// `bytes` over the body of `sample` from byte `at` on.
fn check_manifest_over(sample: &Manifest, bytes: &[u8], at: usize) -> bool {
    let mut body = sample.body();
    body.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to ^= *from);
    let Ok(found) = Manifest::decode(&manifest::seal_body(sample.version(), &body)) else { return false };
    assert_eq!(found.body(), body);
    assert_bounds(&found);
    let again = found.encode();
    assert!(again.is_ok_and(|bytes| Manifest::decode(&bytes) == Ok(found)));
    true
}

fn assert_bounds(manifest: &Manifest) {
    const NUMBER_MAX: u64 = 4_611_686_018_427_387_903;
    assert!((1..=NUMBER_MAX).contains(&manifest.number) && manifest.epoch <= NUMBER_MAX);
    assert!(manifest.origin.is_none_or(|origin| origin.manifest <= NUMBER_MAX));
    assert!(manifest.cut.0 <= NUMBER_MAX);
    assert!(manifest.size_sectors <= 18_014_398_509_481_984);
    assert_date(manifest.created_unix_millis);
    assert!((1..=128).contains(&manifest.name.as_str().len()));
    assert!(manifest.packs.len() <= 262_144);
    manifest.packs.iter().for_each(assert_bounds_of_pack);
    let Sections { holder, damaged, uploaded, properties, .. } = &manifest.sections;
    assert!(holder.as_ref().is_none_or(|holder| {
        let host = holder.host.as_str();
        (1..=255).contains(&host.len()) && !host.chars().any(char::is_control)
    }));
    assert!(damaged.len() <= 262_144 && damaged.iter().all(|range| range.end() <= manifest.size_sectors));
    assert!(uploaded.len() <= 262_144);
    assert!((1..=10_000).contains(&properties.settings.weight));
}

fn assert_bounds_of_pack(pack: &PackRef) {
    let entries = u64::from(pack.entries);
    assert!((1..=1_048_576).contains(&entries));
    assert!((3 * entries..=32 * entries).contains(&pack.index_plain_bytes.into()));
    // zstd adds an 256th, and some bytes to short bodies.
    let plain_bytes = u64::from(pack.index_plain_bytes);
    assert!(u64::from(pack.index_stored_bytes) <= plain_bytes + plain_bytes / 256 + 64 + 52);
    assert!(PackIndex::load_bytes(pack) <= 112 << 20, "memory to load an index");
    assert!(pack.data_bytes <= 65_536 * entries);
    assert!(pack.index_offset_bytes >= 48 && pack.index().end + 176 == pack.total_bytes);
    assert!(pack.total_bytes <= 4_294_967_296);
    assert!(pack.lowest_sector <= pack.highest_sector && pack.highest_sector < u64::MAX);
}

/// No date is behind the year 9999.
fn assert_date(unix_millis: u64) {
    assert!(unix_millis <= 253_402_300_799_999);
}

/// `bytes` as, or over, a name record, candidates and a snapshot; as a marker, and as the text of a key.
pub fn check_records(bytes: &[u8]) -> bool {
    let _ = (NameRecord::decode(bytes), Snapshot::decode(bytes));
    let candidate = Candidate { volume: VOLUME, pack: PackId([2; 16]), since_unix_millis: 5 };
    let candidates = Candidates(vec![candidate; 1 + bytes.len() % 3]).encode();
    let candidates = sealed_over(&candidates, bytes, CANDIDATES_MAGIC);
    for candidates in [bytes, &candidates] {
        if let Ok(found) = Candidates::decode(candidates) {
            assert!(found.0.len() <= 1_048_576);
            found.0.iter().for_each(|candidate| assert_date(candidate.since_unix_millis));
            assert_eq!(found.encode(), candidates);
        }
    }
    if let Ok(marker) = Marker::decode(bytes) {
        assert_eq!(Marker::decode(&marker.encode()), Ok(marker));
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(key) = Key::parse(text)
    {
        assert_eq!(key.to_string(), text);
    }
    let name = NameRecord { volume: VOLUME, created_unix_millis: 1 };
    let name = sealed_over(&name.encode(), bytes, NAME_MAGIC);
    let found = NameRecord::decode(&name);
    assert_date(found.map_or(0, |found| found.created_unix_millis));
    assert!(found.is_err() || found.is_ok_and(|found| found.encode() == name));
    let manifest = sample_manifest();
    let snapshot = Snapshot { name: manifest.name.clone(), created_unix_millis: 1, manifest };
    let Ok(snapshot) = snapshot.encode() else { unreachable!("the sample can be encoded") };
    let snapshot = sealed_over(&snapshot, bytes, SNAPSHOT_MAGIC);
    let found = Snapshot::decode(&snapshot);
    if let Ok(found) = &found {
        assert_date(found.created_unix_millis);
        assert_bounds(&found.manifest);
        assert_eq!(found.encode(), Ok(snapshot));
    }
    found.is_ok()
}

/// A pack with a compressed block, an uncompressed block, and zeroes.
pub(super) fn sample_pack() -> EncodedPack {
    let options = PackOptions {
        volume: VOLUME,
        pack: PackId([9; 16]),
        level: 1,
        first_seq: Seq(3),
        last_seq: Seq(700),
    };
    let noise: Vec<u8> = blake3::hash(b"noise").as_bytes().repeat(16);
    let mut noise = blake3::Hasher::new_derive_key("glidefs sample noise").update(&noise).finalize_xof();
    let mut random = vec![0; 1024];
    noise.fill(&mut random);
    let Ok(mut builder) = PackBuilder::new(options) else { unreachable!("level 1 exists") };
    let Some(zeroes) = SectorRange::new(40, 4) else { unreachable!("a small range") };
    let pushed = [
        builder.push_data(8, Bytes::from(vec![7; 4096])),
        builder.push_zero(zeroes),
        builder.push_data(127, Bytes::from(random)),
    ];
    assert_eq!(pushed, [Ok(()); 3]);
    let Some(pack) = builder.finish() else { unreachable!("something was pushed") };
    pack
}

/// A manifest with two packs and every section.
pub fn sample_manifest() -> Manifest {
    let pack = sample_pack().pack;
    let Ok(name) = "sample".parse::<StoreName>() else { unreachable!("a name") };
    Manifest {
        volume: VOLUME,
        number: 12,
        epoch: 2,
        writer: WriterId([3; 16]),
        size_sectors: 1 << 21,
        cut: Seq(700),
        created_unix_millis: 1_700_000_000_000,
        generation: 4,
        name,
        origin: Some(Origin { volume: VolumeId([8; 16]), manifest: 5 }),
        packs: vec![pack, PackRef { pack: PackId([10; 16]), level: 2, ..pack }],
        sections: Sections {
            holder: Some(Holder { host: HostName::nearest("sample-host"), released: false }),
            damaged: [(8, 8), (4096, 1)]
                .into_iter()
                .filter_map(|(at, sectors)| SectorRange::new(at, sectors))
                .collect(),
            deleted: Some(Deletion::CanBeUndone),
            uploaded: vec![PackId([11; 16]), PackId([12; 16])],
            properties: sample_properties(),
        },
    }
}

/// Properties, none of which is usual.
fn sample_properties() -> Properties {
    let mut limits = Limits::unlimited(Duration::from_secs(2));
    for limit in Limit::ALL {
        limits.set_rate(limit, Some(limit.max()));
    }
    Properties {
        durability: Durability::Bounded(Bound { max_bytes: 64 << 20, max_age: Duration::from_secs(30) }),
        on_unreachable: OnUnreachable::FailAfter(Duration::from_secs(5)),
        settings: Settings { limits, weight: 7 },
    }
}

/// The bytes of `manifest`, whatever its numbers are: as anybody who can write into the bucket can make them, since hashes need no
/// key.
#[cfg(test)]
pub fn forged(manifest: &Manifest) -> Vec<u8> {
    manifest::seal_body(manifest.version(), &manifest.body())
}

/// `bytes` over `sample`, except for magic and version.
fn over(sample: &[u8], bytes: &[u8], magic: [u8; 8]) -> Vec<u8> {
    let mut forged = sample.to_vec();
    forged.iter_mut().zip(bytes).for_each(|(to, from)| *to ^= *from);
    forged[..8].copy_from_slice(&magic);
    forged[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    forged
}

/// As [`over`], with the BLAKE3 at the end put right.
fn sealed_over(sample: &[u8], bytes: &[u8], magic: [u8; 8]) -> Vec<u8> {
    let mut forged = over(sample, bytes, magic);
    forged.truncate(forged.len() - HASH_BYTES);
    seal(&mut forged);
    forged
}
