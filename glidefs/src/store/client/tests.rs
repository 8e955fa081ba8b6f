//! Requests against memory, a directory, and a store that fails on purpose.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use tempfile::TempDir;
use tokio::time::Instant;

use super::*;
use crate::store::faulty::{Fault, Faults, FaultyStore, Seeded};
use crate::store::scripted::ScriptedStore;
use crate::store::{Access, Bucket, Folder, PackId, StoreUrl};

mod away;
mod readers;
mod uploads;

const VOLUME: VolumeId = VolumeId([7; 16]);

fn manifest(number: u64) -> Key {
    Key::Manifest(VOLUME, number)
}

fn one(bytes: &'static [u8]) -> [Bytes; 1] {
    [Bytes::from_static(bytes)]
}

/// A store in memory, and one in a directory.
fn stores() -> (Vec<Store>, TempDir) {
    let directory = TempDir::new().unwrap();
    let url = StoreUrl::File(directory.path().join("made"));
    let file = Backend::connect(&url, &Vec::new(), true).unwrap();
    let mut prefixed = Backend::over(Arc::new(InMemory::new()), true);
    prefixed.prefix = Path::parse("some/prefix").unwrap();
    let memory = Backend::connect(&StoreUrl::Memory, &Vec::new(), false).unwrap();
    let stores = [memory, prefixed, file].map(|backend| Store::over(backend, StoreOptions::default()));
    (stores.into(), directory)
}

/// A store in memory with faults at rate 0, the faults, and the store below without faults.
fn faulty(seed: u64) -> (Store, Arc<Faults>, Store) {
    let memory = Arc::new(InMemory::new());
    let faults = Faults::new(seed);
    let faulty = Arc::new(FaultyStore::new(memory.clone(), faults.clone()));
    let options = StoreOptions { entropy: Arc::new(Seeded::new(seed)), ..StoreOptions::default() };
    let behind = Store::over(Backend::over(memory, true), StoreOptions::default());
    (Store::over(Backend::over(faulty, true), options), faults, behind)
}

#[tokio::test]
async fn an_object_is_created_once_and_never_replaced() {
    let (stores, _directory) = stores();
    for store in stores {
        let parts = [Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b" two")];
        assert_eq!(store.create(&manifest(1), &parts).await.unwrap(), Created::Created);
        assert_eq!(store.create(&manifest(1), &one(b"other")).await.unwrap(), Created::Existed);
        assert_eq!(store.get(&manifest(1), 100).await.unwrap(), "one two");
        // Without a lost answer, the same bytes are another writer's.
        assert_eq!(store.create(&manifest(1), &parts).await.unwrap(), Created::Existed);
        let info = store.head(&manifest(1)).await.unwrap();
        assert_eq!((info.bytes, info.key), (7, manifest(1)));
        assert!(info.created_unix_millis > 1_600_000_000_000);
    }
}

#[tokio::test]
async fn what_is_not_there_is_missing_and_deleting_it_is_no_error() {
    let (stores, _directory) = stores();
    for store in stores {
        assert!(store.get(&manifest(1), 100).await.unwrap_err().is_missing());
        assert!(store.get_range(&manifest(1), 0..4).await.unwrap_err().is_missing());
        assert!(store.head(&manifest(1)).await.unwrap_err().is_missing());
        let _ = store.create(&manifest(2), &one(b"x")).await.unwrap();
        store.delete(&[manifest(1), manifest(2), manifest(3)]).await.unwrap();
        store.delete(&[]).await.unwrap();
        assert!(store.head(&manifest(2)).await.unwrap_err().is_missing());
        assert_eq!(store.list(Folder::All, None).await.unwrap(), []);
        assert_eq!(store.stats().of(Operation::Get).errors.get(), 0);
    }
}

#[tokio::test]
async fn a_range_is_had_whole_or_not_at_all() {
    let (stores, _directory) = stores();
    for store in stores {
        let _ = store.create(&manifest(1), &one(b"0123456789")).await.unwrap();
        assert_eq!(store.get_range(&manifest(1), 2..5).await.unwrap(), "234");
        assert_eq!(store.get_range(&manifest(1), 5..5).await.unwrap(), "");
        assert_eq!(store.get(&manifest(1), 10).await.unwrap().len(), 10);
        for range in [8..11, 10..11, 50..60] {
            let error = store.get_range(&manifest(1), range.clone()).await.unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{range:?}: {error}");
        }
        let error = store.get(&manifest(1), 9).await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert_eq!(store.stats().of(Operation::Get).bytes.get(), 13);
        assert_eq!(store.stats().of(Operation::Get).retries.get(), 0);
    }
}

#[tokio::test]
async fn a_listing_too_long_for_memory_is_given_up_and_the_error_says_what_to_do() {
    let memory = Arc::new(InMemory::new());
    let options = StoreOptions { listed_max: 3, ..StoreOptions::default() };
    let store = Store::over(Backend::over(memory.clone(), true), options);
    for number in 1..=3 {
        let _ = store.create(&manifest(number), &one(b"x")).await.unwrap();
        // What is not of glidefs takes no memory.
        memory.put(&Path::from(format!("foreign-{number}")), "x".into()).await.unwrap();
    }
    let listing = store.list(Folder::All, None).await.unwrap();
    assert_eq!(listing.len(), 3);
    let _ = store.create(&manifest(4), &one(b"x")).await.unwrap();
    let error = store.list(Folder::Manifests(VOLUME), None).await.unwrap_err();
    let text = crate::observe::chain(&error);
    assert!(text.contains("more than 3 objects") && text.contains("delete there"), "{text}");
    assert_eq!(store.list(Folder::Manifests(VOLUME), Some(&manifest(1))).await.unwrap().len(), 3);
}

#[tokio::test]
async fn listings_ascend_and_leave_out_what_is_not_ours() {
    let (stores, _directory) = stores();
    for store in stores {
        let other = VolumeId([8; 16]);
        for number in [3, 1, 20, 100] {
            let _ = store.create(&manifest(number), &one(b"m")).await.unwrap();
        }
        let pack = Key::Pack(other, PackId([1; 16]));
        let name = Key::Name("vm-1".parse().unwrap());
        for key in [Key::Marker, pack.clone(), name.clone(), Key::Grave(VOLUME)] {
            let _ = store.create(&key, &one(b"object")).await.unwrap();
        }
        for foreign in ["README", "volumes/x/packs/y", "names/a/b"] {
            let (path, _) = store.path(&foreign);
            store.inner.backend.objects().await.unwrap().put(&path, "x".into()).await.unwrap();
        }
        let keys = async |folder, after: Option<Key>| {
            let listing = store.list(folder, after.as_ref()).await.unwrap();
            listing.into_iter().map(|object| object.key).collect::<Vec<_>>()
        };
        let all = [1, 3, 20, 100].map(manifest).to_vec();
        assert_eq!(keys(Folder::Manifests(VOLUME), None).await, all);
        assert_eq!(keys(Folder::Manifests(VOLUME), Some(manifest(3))).await, all[2..]);
        assert_eq!(keys(Folder::Manifests(VOLUME), Some(manifest(4))).await, all[2..]);
        assert_eq!(keys(Folder::Manifests(VOLUME), Some(manifest(100))).await, []);
        assert_eq!(keys(Folder::Packs(other), None).await, [pack]);
        assert_eq!(keys(Folder::Names, None).await, [name]);
        assert_eq!(keys(Folder::Snapshots(VOLUME), None).await, []);
        assert_eq!(keys(Folder::All, None).await.len(), 8);
        assert_eq!(store.volumes().await.unwrap(), [VOLUME, other]);
    }
}

#[tokio::test]
async fn stores_with_different_prefixes_do_not_meet() {
    let memory = Arc::new(InMemory::new());
    let store = |prefix: &str| {
        let mut backend = Backend::over(memory.clone(), true);
        backend.prefix = Path::parse(prefix).unwrap();
        Store::over(backend, StoreOptions::default())
    };
    let (a, ab, sub) = (store("a"), store("ab"), store("a/b"));
    let _ = a.create(&Key::Marker, &one(b"a")).await.unwrap();
    assert!(ab.get(&Key::Marker, 9).await.unwrap_err().is_missing());
    let _ = sub.create(&Key::Marker, &one(b"sub")).await.unwrap();
    assert_eq!(ab.list(Folder::All, None).await.unwrap(), []);
    let listing = a.list(Folder::All, None).await.unwrap();
    assert_eq!(listing.len(), 1);
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_named_with_what_to_do() {
    let directory = TempDir::new().unwrap();
    let missing = StoreUrl::File(directory.path().join("missing"));
    let error = Backend::connect(&missing, &Vec::new(), false).unwrap_err().to_string();
    assert!(error.contains("create it"), "{error}");
    let file = directory.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    for make in [false, true] {
        let backend = Backend::connect(&StoreUrl::File(file.clone()), &Vec::new(), make);
        let error = backend.unwrap_err().to_string();
        assert!(error.contains("not a directory"), "{error}");
    }
}

#[test]
fn a_bucket_that_cannot_be_reached_as_configured_is_refused_at_once() {
    let bucket = Bucket { name: "bucket".into(), prefix: String::new() };
    let endpoint = ("AWS_ENDPOINT_URL".to_owned(), "http://127.0.0.1:1".to_owned());
    let error = Backend::connect(&StoreUrl::S3(bucket.clone()), &vec![endpoint], false).unwrap_err();
    assert!(error.to_string().contains("AWS_ALLOW_HTTP=true"), "{error}");
    for (url, feature, built) in [
        (StoreUrl::Gcs(bucket.clone()), "gcs", cfg!(feature = "gcs")),
        (StoreUrl::Azure(bucket), "azure", cfg!(feature = "azure")),
    ] {
        if !built {
            let error = Backend::connect(&url, &Vec::new(), false).unwrap_err().to_string();
            assert!(error.contains(&format!("--features {feature}")), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stays_away_is_given_up_within_the_budget() {
    for fault in [Fault::ServerError, Fault::SlowDown, Fault::Cut, Fault::Stall] {
        let (store, faults, _) = faulty(1);
        faults.set(fault, 1000);
        let begun = Instant::now();
        let error = store.head(&manifest(1)).await.unwrap_err();
        let StoreError::Unreachable { tries, elapsed, .. } = &error else { panic!("{fault:?}: {error}") };
        assert!(error.is_transient());
        assert!(*tries > 5 && *elapsed <= begun.elapsed(), "{fault:?}: {tries} tries");
        let policy = RetryPolicy::default();
        assert!(begun.elapsed() <= policy.time_budget + LAST, "{fault:?}: {:?}", begun.elapsed());
        let stats = store.stats().of(Operation::Head);
        assert_eq!(u64::from(*tries), stats.requests.get());
        assert_eq!((stats.retries.get(), stats.errors.get()), (stats.requests.get() - 1, 1));
    }
}

/// A last try may take a second longer than the budget.
const LAST: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn stopping_ends_requests_and_pauses_at_once() {
    for fault in [Fault::Stall, Fault::ServerError] {
        let (store, faults, _) = faulty(1);
        faults.set(fault, 1000);
        let (stop, shutdown) = watch::channel(false);
        let options = StoreOptions { shutdown: Some(shutdown), ..store.inner.options.clone() };
        let store = Store::over(store.inner.backend.clone(), options);
        let begun = Instant::now();
        let request = tokio::spawn(async move { store.get(&manifest(1), 9).await });
        tokio::time::sleep(Duration::from_millis(5)).await;
        stop.send(true).unwrap();
        let error = request.await.unwrap().unwrap_err();
        assert!(matches!(error, StoreError::ShuttingDown { .. }), "{error}");
        assert_eq!(begun.elapsed(), Duration::from_millis(5));
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_and_are_random() {
    let policy = RetryPolicy::default();
    let pauses = |seed| {
        let entropy = Seeded::new(seed);
        (1..40).map(|tries| policy.pause(tries, &entropy)).collect::<Vec<_>>()
    };
    assert_ne!(pauses(1), pauses(2));
    for pauses in (0..50).map(pauses) {
        assert!(pauses[0] <= policy.pause_first_max && pauses[1] <= policy.pause_first_max * 2);
        assert!(pauses.iter().all(|pause| *pause <= policy.pause_max));
        assert!(pauses[20..].iter().any(|pause| *pause > policy.pause_max / 4));
    }
}

/// Creates `parts` while the answer to the first try is lost.
async fn create_with_lost_answer(
    store: &Store,
    faults: &Faults,
    parts: [Bytes; 1],
    meanwhile: impl AsyncFnOnce(),
) -> Created {
    faults.set(Fault::LostResponse, 1000);
    let request = tokio::spawn({
        let store = store.clone();
        async move { store.create(&manifest(1), &parts).await }
    });
    while faults.fired(Fault::LostResponse) == 0 {
        tokio::task::yield_now().await;
    }
    faults.set(Fault::LostResponse, 0);
    meanwhile().await;
    request.await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_creation_whose_answer_was_lost_is_known_to_be_ours() {
    let (store, faults, _) = faulty(3);
    let created = create_with_lost_answer(&store, &faults, one(b"mine"), async || {}).await;
    assert_eq!(created, Created::Created);
    assert_eq!(store.stats().of(Operation::Put).requests.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn after_a_lost_answer_the_object_of_another_is_not_ours() {
    let (store, faults, behind) = faulty(3);
    let created = create_with_lost_answer(&store, &faults, one(b"mine"), async || {
        behind.delete(&[manifest(1)]).await.unwrap();
        let _ = behind.create(&manifest(1), &one(b"them")).await.unwrap();
    });
    assert_eq!(created.await, Created::Existed);
    assert_eq!(behind.get(&manifest(1), 9).await.unwrap(), "them");
}

#[tokio::test(start_paused = true)]
async fn a_creation_is_tried_again_while_the_object_in_its_way_is_not_found() {
    let (store, faults, behind) = faulty(3);
    assert_eq!(behind.create(&manifest(1), &one(b"them")).await.unwrap(), Created::Created);
    faults.set(Fault::Missing, 1000);
    let creator = store.clone();
    let creation = tokio::spawn(async move { creator.create(&manifest(1), &one(b"mine")).await });
    while store.stats().of(Operation::Put).requests.get() < 3 {
        assert!(!creation.is_finished(), "the store says that it exists, and no request has found it");
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    behind.delete(&[manifest(1)]).await.unwrap();
    faults.set(Fault::Missing, 0);
    assert_eq!(creation.await.unwrap().unwrap(), Created::Created);
    assert_eq!(behind.get(&manifest(1), 9).await.unwrap(), "mine");
    assert_eq!(store.stats().taken_back.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_many_creators_behind_faults_exactly_one_wins() {
    let mut silent = Fault::PASSING.to_vec();
    for seed in 0..30 {
        let (store, faults, behind) = faulty(seed);
        faults.set_all(&Fault::PASSING, 150);
        let racers: Vec<_> = (0..16_u8)
            .map(|racer| {
                let store = store.clone();
                tokio::spawn(async move { store.create(&manifest(1), &[vec![racer; 100].into()]).await })
            })
            .collect();
        let mut winners = Vec::new();
        for (racer, request) in racers.into_iter().enumerate() {
            if request.await.unwrap().unwrap() == Created::Created {
                winners.push(racer as u8);
            }
        }
        assert_eq!(winners.len(), 1, "seed {seed}: {winners:?}");
        assert_eq!(behind.get(&manifest(1), 100).await.unwrap(), vec![winners[0]; 100]);
        silent.retain(|fault| faults.fired(*fault) == 0);
    }
    assert_eq!(silent, [], "these faults never fired");
}

#[tokio::test(start_paused = true)]
async fn faults_that_pass_are_not_seen_by_callers() {
    let mut silent = Fault::PASSING.to_vec();
    for seed in 0..20 {
        let (store, faults, _) = faulty(seed);
        faults.set_all(&Fault::PASSING, 60);
        let random = Seeded::new(seed + 1000);
        let mut model: BTreeMap<u64, Bytes> = BTreeMap::new();
        for step in 0..150 {
            let number = random.next_u64() % 12;
            let key = manifest(number);
            match random.next_u64() % 6 {
                0 | 1 => {
                    let bytes = Bytes::from(format!("{step}").repeat(1 + step % 7));
                    let expected =
                        if model.contains_key(&number) { Created::Existed } else { Created::Created };
                    assert_eq!(store.create(&key, std::slice::from_ref(&bytes)).await.unwrap(), expected);
                    model.entry(number).or_insert(bytes);
                }
                2 => {
                    store.delete(std::slice::from_ref(&key)).await.unwrap();
                    model.remove(&number);
                }
                3 => {
                    let listing = store.list(Folder::Manifests(VOLUME), Some(&key)).await.unwrap();
                    let found: Vec<_> = listing.into_iter().map(|object| object.key).collect();
                    let expected: Vec<_> =
                        model.range(number + 1..).map(|(number, _)| manifest(*number)).collect();
                    assert_eq!(found, expected);
                }
                _ => {
                    let found = match store.get(&key, 1000).await {
                        Ok(bytes) => Some(bytes),
                        Err(error) if error.is_missing() => None,
                        Err(error) => panic!("seed {seed}, step {step}: {error}"),
                    };
                    assert_eq!(found.as_ref(), model.get(&number));
                }
            }
        }
        silent.retain(|fault| faults.fired(*fault) == 0);
    }
    assert_eq!(silent, [], "these faults never fired");
}

#[tokio::test(start_paused = true)]
async fn a_listing_may_take_longer_than_any_other_request_as_long_as_it_goes_on() {
    let (store, faults, behind) = faulty(5);
    for number in 1..=100 {
        let _ = behind.create(&manifest(number), &one(b"m")).await.unwrap();
    }
    faults.set(Fault::Delay, 1000);
    let begun = Instant::now();
    let listing = store.list(Folder::Manifests(VOLUME), None).await.unwrap();
    assert_eq!(listing.len(), 100);
    assert!(begun.elapsed() > 2 * RetryPolicy::default().idle_time_max);
}

#[test]
fn a_denied_read_may_be_one_of_a_missing_object_and_a_denied_write_is_none() {
    let denied = |operation| {
        let source = "<Code>AccessDenied</Code><RequestId>7F</RequestId>".into();
        let error = object_store::Error::PermissionDenied { path: String::new(), source };
        match failure(operation, "key", error) {
            Failure::Final(error) => crate::observe::chain(&error),
            Failure::Again(..) => panic!("it is asked again"),
        }
    };
    for operation in [Operation::Get, Operation::Head] {
        let text = denied(operation);
        assert!(text.contains("s3:ListBucket") && text.contains("missing object"), "{text}");
        assert!(text.ends_with(": 403 AccessDenied (request 7F)"), "{text}");
    }
    for operation in [Operation::Put, Operation::List, Operation::Delete] {
        assert!(!denied(operation).contains("missing object"));
    }
}
