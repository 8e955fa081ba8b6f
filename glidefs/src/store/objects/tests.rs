//! Whole objects, on stores that are new, foreign, damaged, or fail on purpose.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use proptest::prelude::*;

use super::*;
use crate::observe::logging::captured;
use crate::store::backend::Backend;
use crate::store::client::StoreOptions;
use crate::store::faulty::{Fault, Faults, FaultyStore, Seeded};
use crate::store::format::verify_pack;
use crate::store::format::{PackBuilder, PackOptions, PieceKind, Sections};
use crate::store::ids::{PackId, WriterId};
use crate::store::scripted::ScriptedStore;
use crate::units::{SECTOR_BYTES, SectorRange, Seq};

const WRITE: Access = Access::ReadWrite;
const VOLUME: VolumeId = VolumeId([5; 16]);

fn name(text: &str) -> StoreName {
    text.parse().unwrap()
}

async fn open(objects: &Arc<InMemory>, access: Access) -> Result<(Store, Marker), StoreError> {
    Store::open(Backend::over(objects.clone(), true), access, StoreOptions::default()).await
}

fn manifest(packs: Vec<PackRef>) -> Manifest {
    Manifest {
        volume: VOLUME,
        number: 1,
        epoch: 1,
        writer: WriterId([6; 16]),
        size_sectors: 1 << 20,
        cut: Seq(9),
        created_unix_millis: 1,
        generation: 0,
        name: name("vm"),
        origin: None,
        packs,
        sections: Sections::default(),
    }
}

/// A pack of `blocks` incompressible blocks and one compressible block.
fn pack(blocks: u8) -> (EncodedPack, Bytes) {
    let options = PackOptions {
        volume: VOLUME,
        pack: PackId([blocks; 16]),
        level: 0,
        first_seq: Seq(1),
        last_seq: Seq(9),
    };
    let mut builder = PackBuilder::new(options).unwrap();
    let mut data = vec![0; usize::from(blocks) * 65_536];
    blake3::Hasher::new().update(&[blocks]).finalize_xof().fill(&mut data);
    data.extend_from_slice(&[3; 4096]);
    let data = Bytes::from(data);
    builder.push_data(128, data.clone()).unwrap();
    builder.push_zero(SectorRange::new(1 << 19, 1 << 10).unwrap()).unwrap();
    (builder.finish().unwrap(), data)
}

#[tokio::test]
async fn a_new_place_becomes_a_store_and_stays_the_same_one() {
    let objects = Arc::new(InMemory::new());
    let error = open(&objects, Access::ReadOnly).await.unwrap_err();
    assert!(matches!(error, StoreError::NotAStore { .. }), "{error}");
    let (store, marker) = open(&objects, WRITE).await.unwrap();
    assert!(marker.created.starts_with("20") && marker.created.ends_with('Z'), "{}", marker.created);
    assert_eq!(marker.store_id.get_version(), Some(uuid::Version::Random));
    for access in [Access::ReadOnly, WRITE] {
        assert_eq!(open(&objects, access).await.unwrap().1, marker);
    }
    assert_eq!(store.list(Folder::All, None).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn daemons_that_make_a_store_at_once_agree_which_it_is() {
    for seed in 0..20 {
        let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let faults = Faults::new(seed);
        faults.set_all(&Fault::PASSING, 100);
        let openers: Vec<_> = (0..8)
            .map(|opener| {
                let faulty = FaultyStore::new(memory.clone(), faults.clone());
                let options = StoreOptions {
                    entropy: Arc::new(Seeded::new(seed * 100 + opener)),
                    ..StoreOptions::default()
                };
                tokio::spawn(Store::open(Backend::over(Arc::new(faulty), true), WRITE, options))
            })
            .collect();
        let mut markers = Vec::new();
        for opener in openers {
            markers.push(opener.await.unwrap().unwrap().1);
        }
        assert!(markers.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_changes_on_its_way_is_never_taken_for_that_of_another_store() {
    let memory = Arc::new(InMemory::new());
    let (_, marker) = open(&memory, WRITE).await.unwrap();
    let (mut right, mut fired) = (0, 0);
    for seed in 0..200 {
        let faults = Faults::new(seed);
        faults.set_all(&[Fault::FlippedBit, Fault::Truncated], 100);
        let faulty = FaultyStore::new(Arc::clone(&memory) as _, Arc::clone(&faults));
        let store = Store::over(Backend::over(Arc::new(faulty), true), StoreOptions::default());
        for access in [Access::ReadOnly, WRITE, Access::Known(marker.store_id)] {
            match store.check(access).await {
                Ok(found) => {
                    assert_eq!(found, marker, "seed {seed}");
                    right += 1;
                }
                Err(error) => assert!(error.is_transient(), "seed {seed}: {error}"),
            }
        }
        fired += faults.fired(Fault::FlippedBit);
    }
    assert!(right > 500 && fired > 100, "{right} right, {fired} wrong bits");
}

#[tokio::test]
async fn a_place_with_the_marker_of_something_else_is_refused_and_left_alone() {
    for (text, says) in [
        (r#"{"format":2}"#, "format version 2"),
        (r#"{"name":"other"}"#, "not the marker"),
        ("", "not the marker"),
    ] {
        let objects = Arc::new(InMemory::new());
        let path = Path::from("glidefs.json");
        objects.put(&path, text.as_bytes().to_vec().into()).await.unwrap();
        let error = open(&objects, WRITE).await.unwrap_err();
        assert!(error.to_string().contains("nothing was changed"), "{error}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(says), "{source}");
        assert_eq!(objects.get(&path).await.unwrap().bytes().await.unwrap(), text);
    }
}

#[tokio::test]
async fn a_marker_that_cannot_be_used_means_to_a_host_with_exports_that_the_store_is_away() {
    let objects = Arc::new(InMemory::new());
    let (_, marker) = open(&objects, WRITE).await.unwrap();
    let path = Path::from("glidefs.json");
    let known = Access::Known(marker.store_id);
    let other = Marker { store_id: Uuid::nil(), ..marker.clone() }.encode();
    let store = Store::over(
        Backend::over(objects.clone(), true),
        StoreOptions { checked_first: true, ..StoreOptions::default() },
    );
    let newer = &b"{\"format\":9}"[..];
    for text in [None, Some(newer), Some(b"{\"for"), Some(b""), Some(&other)] {
        match text {
            None => objects.delete(&path).await.unwrap(),
            Some(text) => drop(objects.put(&path, text.to_vec().into()).await.unwrap()),
        }
        let error = store.check(known).await.unwrap_err();
        assert!(error.is_transient(), "{text:?}: {error}");
        let why = store.away().unwrap();
        assert!(
            why.contains(&error.to_string()) && store.stats().health.of_writeback() == Some(why),
            "{text:?}"
        );
        let found = objects.get(&path).await.ok();
        let found = match found {
            Some(found) => Some(found.bytes().await.unwrap()),
            None => None,
        };
        assert_eq!(found.as_deref(), text, "nothing is changed");
        // The line in the message restores the marker. The markers of another store and of a newer glidefs must stay.
        let says = error.to_string();
        let line = says.split_once('{').map(|(_, rest)| format!("{{{rest}"));
        assert_eq!(line.is_none(), text == Some(&other) || text == Some(newer), "{says}");
        assert_eq!(says.contains("newer glidefs"), text == Some(newer), "{says}");
        if let Some(line) = line {
            objects.put(&path, line.into_bytes().into()).await.unwrap();
            assert_eq!(open(&objects, known).await.unwrap().1.store_id, marker.store_id);
        }
    }
    objects.put(&path, marker.encode().into()).await.unwrap();
    store.check(known).await.unwrap();
    assert_eq!((store.away(), store.stats().health.of_writeback()), (None, None));
}

#[tokio::test]
async fn no_marker_is_made_where_there_are_volumes() {
    let objects = Arc::new(InMemory::new());
    let (store, marker) = open(&objects, WRITE).await.unwrap();
    let _: Created = store.create_manifest(&manifest(Vec::new())).await.unwrap();
    store.delete(&[Key::Marker]).await.unwrap();
    // As a daemon does, which sends nothing else before the place is known.
    let options = StoreOptions { checked_first: true, ..StoreOptions::default() };
    let fresh = Store::over(Backend::over(objects.clone(), true), options);
    for _ in 0..2 {
        let error = fresh.check(WRITE).await.unwrap_err();
        assert!(matches!(error, StoreError::Unmarked { .. }) && !error.is_transient(), "{error}");
        assert_eq!(store.list(Folder::All, None).await.unwrap().len(), 1, "nothing is changed");
    }
    let _: Created = store.create(&Key::Marker, &[marker.encode().into()]).await.unwrap();
    assert_eq!(fresh.check(WRITE).await.unwrap(), marker);
}

#[test]
fn a_store_is_made_in_a_place_of_its_own_only_and_the_log_says_so() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let made = |keys: &[&'static str]| {
        let (objects, mut made) = (Arc::new(InMemory::new()), None);
        let log = captured(|| {
            made = Some(runtime.block_on(async {
                for key in keys {
                    objects.put(&Path::from(*key), "theirs".into()).await.unwrap();
                }
                // As a daemon does, which sends nothing else before the place is known.
                let options = StoreOptions { checked_first: true, ..StoreOptions::default() };
                let store = Store::over(Backend::over(objects.clone(), true), options);
                let checked = store.check(WRITE).await;
                (checked, objects.head(&Path::from("glidefs.json")).await.is_ok())
            }));
        });
        let (checked, has_marker) = made.unwrap();
        assert_eq!(checked.is_ok(), has_marker, "{checked:?}");
        assert_eq!(log.contains("made a new store"), has_marker, "{log}");
        checked
    };
    let beside = ["lost+found/1", ".snapshot/monday", "glidefs-doctor-1-alone.tmp", "names/vm"];
    made(&[]).unwrap();
    made(&beside).unwrap();
    for foreign in ["report.pdf", "photos/2026/1.jpg"] {
        let error = made(&[beside[0], foreign]).unwrap_err();
        let found = foreign.split('/').next().unwrap();
        assert!(matches!(&error, StoreError::Occupied { found: says, .. } if says == found), "{error}");
        assert!(!error.is_transient(), "a start without exports ends");
    }
}

#[tokio::test]
async fn a_store_that_replaces_what_it_should_only_create_is_refused_with_the_reason() {
    let objects = ScriptedStore::new(Arc::default());
    let open = async |access| {
        Store::open(Backend::over(objects.clone(), true), access, StoreOptions::default()).await
    };
    let (_, marker) = open(WRITE).await.unwrap();
    let before = objects.get(&Path::from("glidefs.json")).await.unwrap().bytes().await.unwrap();
    open(Access::Known(marker.store_id)).await.unwrap();
    objects.ignore_conditions();
    for access in [WRITE, Access::Known(marker.store_id)] {
        let error = open(access).await.unwrap_err();
        assert!(matches!(error, StoreError::Replaces { .. }) && !error.is_transient(), "{error}");
        assert!(error.to_string().contains("If-None-Match"), "{error}");
    }
    assert_eq!(objects.get(&Path::from("glidefs.json")).await.unwrap().bytes().await.unwrap(), before);
    assert_eq!(open(Access::ReadOnly).await.unwrap().1, marker);
}

#[tokio::test]
async fn a_new_place_that_replaces_objects_does_not_become_a_store_in_use() {
    let objects = ScriptedStore::new(Arc::default());
    objects.ignore_conditions();
    let opened = Store::open(Backend::over(objects, true), WRITE, StoreOptions::default()).await;
    assert!(matches!(opened, Err(StoreError::Replaces { .. })), "{opened:?}");
}

#[tokio::test]
async fn objects_come_back_as_they_were_created() {
    let (store, _) = open(&Arc::new(InMemory::new()), WRITE).await.unwrap();
    let (encoded, data) = pack(2);
    let reference = encoded.pack;
    assert_eq!(store.create_pack(&encoded).await.unwrap(), Created::Created);
    let head = store.head(&Key::Pack(VOLUME, reference.pack)).await.unwrap();
    assert_eq!(head.bytes, reference.total_bytes);
    let index = store.pack_index(&reference).await.unwrap();
    let blocks = store.blocks(&reference, index.entries()).await.unwrap();
    assert_eq!(blocks.concat(), data);
    assert_eq!(store.blocks(&reference, &index.entries()[1..2]).await.unwrap()[0], data[65_536..131_072]);
    assert_eq!(store.blocks(&reference, &[]).await.unwrap(), Vec::<Bytes>::new());
    let swapped = [index.entries()[1], index.entries()[0]];
    assert!(store.blocks(&reference, &swapped).await.is_err());

    let manifest = manifest(vec![reference]);
    assert_eq!(store.create_manifest(&manifest).await.unwrap(), Created::Created);
    assert_eq!(store.create_manifest(&manifest).await.unwrap(), Created::Existed);
    assert_eq!(store.manifest(VOLUME, 1).await.unwrap(), manifest);
    assert!(store.manifest(VOLUME, 2).await.unwrap_err().is_missing());
    assert_eq!(store.newest_manifest(VOLUME, None).await.unwrap(), Some(1));
    assert_eq!(store.newest_manifest(VOLUME, Some(1)).await.unwrap(), None);

    let snapshot = Snapshot { name: name("s"), created_unix_millis: 3, manifest };
    assert_eq!(store.create_snapshot(&snapshot).await.unwrap(), Created::Created);
    assert_eq!(store.snapshot(VOLUME, &name("s")).await.unwrap(), snapshot);
    let record = NameRecord { volume: VOLUME, created_unix_millis: 4 };
    assert_eq!(store.name(&name("vm")).await.unwrap(), None);
    assert_eq!(store.create_name(&name("vm"), &record).await.unwrap(), Created::Created);
    assert_eq!(store.name(&name("vm")).await.unwrap(), Some(record));
}

/// Compiles only if the future is `Send`.
#[test]
fn requests_may_run_on_any_thread() {
    fn send<T: Send>(_: impl FnOnce(Store) -> T) {}
    send(|store| async move { store.manifest(VOLUME, 1).await });
    send(|store| async move { store.newest_manifest(VOLUME, None).await });
    send(|store| async move { store.pack_index(&pack(1).0.pack).await });
    send(|store| async move { store.blocks(&pack(1).0.pack, &[]).await });
    send(|store| async move { store.create_pack(&pack(1).0).await });
    send(|store| async move { store.snapshot(VOLUME, &name("s")).await });
    send(|store| async move {
        (store.list(Folder::All, None).await, store.volumes().await, store.delete(&[]).await)
    });
    send(|_| Store::open(Backend::over(Arc::new(InMemory::new()), true), WRITE, StoreOptions::default()));
}

#[tokio::test]
async fn an_object_in_the_place_of_another_is_damage() {
    let (store, _) = open(&Arc::new(InMemory::new()), WRITE).await.unwrap();
    let moved = manifest(Vec::new()).encode().unwrap();
    let other = VolumeId([9; 16]);
    for key in [Key::Manifest(other, 1), Key::Manifest(VOLUME, 2)] {
        let _ = store.create(&key, &[moved.clone().into()]).await.unwrap();
    }
    for (volume, number) in [(other, 1), (VOLUME, 2)] {
        let error = store.manifest(volume, number).await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
    assert_eq!(store.stats().damaged.get(), 4);
}

#[tokio::test]
async fn a_newer_object_is_named_as_that_and_not_as_damage() {
    let (store, _) = open(&Arc::new(InMemory::new()), WRITE).await.unwrap();
    let mut bytes = manifest(Vec::new()).encode().unwrap();
    bytes.truncate(bytes.len() - 32);
    bytes[8] = 9;
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    let _ = store.create(&Key::Manifest(VOLUME, 1), &[bytes.into()]).await.unwrap();
    let error = store.manifest(VOLUME, 1).await.unwrap_err();
    assert!(matches!(error, StoreError::OtherVersion { .. }), "{error}");
    assert_eq!(store.stats().damaged.get(), 0);
}

#[tokio::test]
async fn a_manifest_that_could_not_be_read_is_not_created() {
    let (store, _) = open(&Arc::new(InMemory::new()), WRITE).await.unwrap();
    let error = store.create_manifest(&Manifest { number: 0, ..manifest(Vec::new()) }).await.unwrap_err();
    assert!(matches!(error, StoreError::Unfit { .. }), "{error}");
    assert_eq!(store.newest_manifest(VOLUME, None).await.unwrap(), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_byte_changed_in_the_store_is_never_served(at in any::<prop::sample::Index>(), by in 1_u8..) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let objects = Arc::new(InMemory::new());
            let (store, _) = open(&objects, WRITE).await.unwrap();
            let (encoded, data) = pack(1);
            let reference = encoded.pack;
            let mut whole = encoded.parts.concat();
            let at = at.index(whole.len());
            whole[at] ^= by;
            let _ = store.create(&Key::Pack(VOLUME, reference.pack), &[whole.clone().into()]).await.unwrap();
            let intact = verify_pack(&encoded.parts.concat().into()).unwrap().1;
            prop_assert!(verify_pack(&whole.into()).is_err());
            if let Ok(index) = store.pack_index(&reference).await {
                prop_assert_eq!(&index, &intact);
            }
            match store.blocks(&reference, intact.entries()).await {
                Ok(blocks) => prop_assert_eq!(blocks.concat(), data),
                Err(StoreError::Damaged { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            Ok(())
        })?;
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_the_store_does_a_read_is_right_or_an_error() {
    let mut silent = Fault::ALL.to_vec();
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..40 {
        let memory = Arc::new(InMemory::new());
        let (behind, _) = open(&memory, WRITE).await.unwrap();
        let (encoded, data) = pack(2);
        let reference = encoded.pack;
        let _ = behind.create_pack(&encoded).await.unwrap();
        let _ = behind.create_manifest(&manifest(vec![reference])).await.unwrap();

        let faults = Faults::new(seed);
        faults.set_all(&Fault::ALL, 60);
        let faulty = FaultyStore::new(memory, faults.clone());
        let options = StoreOptions { entropy: Arc::new(Seeded::new(seed)), ..StoreOptions::default() };
        let store = Store::over(Backend::over(Arc::new(faulty), true), options);
        let read = async || -> Result<(), StoreError> {
            let found = store.manifest(VOLUME, 1).await?;
            assert_eq!(found, manifest(vec![reference]));
            let index = store.pack_index(&found.packs[0]).await?;
            let range = SectorRange::new(130, 250).unwrap();
            for piece in index.lookup(range) {
                let PieceKind::Data(entry) = piece.kind else { continue };
                let block = store.blocks(&reference, &[*entry]).await?.concat();
                let at = ((entry.range.start() - 128) * SECTOR_BYTES) as usize;
                assert_eq!(block, data[at..at + block.len()]);
            }
            // A request that changes the store, whose answer can be lost.
            let record = NameRecord { volume: VOLUME, created_unix_millis: seed };
            assert_eq!(store.create_name(&name("n"), &record).await?, Created::Created);
            store.delete(&[Key::Name(name("n"))]).await
        };
        for _ in 0..10 {
            match read().await {
                Ok(()) => right += 1,
                Err(StoreError::Damaged { .. } | StoreError::Missing { .. } | StoreError::Refused { .. }) => {
                    wrong += 1;
                    behind.delete(&[Key::Name(name("n"))]).await.unwrap();
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        silent.retain(|fault| faults.fired(*fault) == 0);
    }
    assert_eq!(silent, [], "these faults never fired");
    assert!(right > 100 && wrong > 10, "{right} right, {wrong} errors");
}

#[tokio::test]
async fn the_newest_of_very_many_manifests_is_found_without_listing_them_all() {
    let objects = ScriptedStore::new(Arc::default());
    let ordered = Store::over(Backend::over(objects.clone(), true), StoreOptions::default());
    let unordered = Store::over(Backend::over(objects.clone(), false), StoreOptions::default());
    // The first manifest stays, one has a fence, and others were freed.
    let numbers = || [1, 700].into_iter().chain(12_000..=18_500);
    for number in numbers() {
        let path = Path::from(Key::Manifest(VOLUME, number).to_string());
        objects.put(&path, "a manifest".into()).await.unwrap();
    }
    // Tools that show folders make such an object.
    let foreign = Path::parse(format!("volumes/{VOLUME}/manifests/00000000000000012000.note")).unwrap();
    objects.put(&foreign, "of others".into()).await.unwrap();
    assert_eq!(ordered.newest_manifest(VOLUME, None).await.unwrap(), Some(18_500));
    assert!(objects.objects_listed() <= 4_000, "{} objects listed", objects.objects_listed());
    for store in [&ordered, &unordered] {
        for after in [1, 699, 700, 11_999, 12_000, 17_500, 17_501, 18_499] {
            assert_eq!(store.newest_manifest(VOLUME, Some(after)).await.unwrap(), Some(18_500), "{after}");
        }
        for after in [18_500, u64::MAX] {
            assert_eq!(store.newest_manifest(VOLUME, Some(after)).await.unwrap(), None);
        }
    }
    // Any number of manifests, as of exactly one listing.
    for newest in (13_000..18_500).rev().step_by(499) {
        for number in newest + 1..=18_500 {
            let _ = objects.delete(&Path::from(Key::Manifest(VOLUME, number).to_string())).await;
        }
        assert_eq!(ordered.newest_manifest(VOLUME, None).await.unwrap(), Some(newest));
    }
}
