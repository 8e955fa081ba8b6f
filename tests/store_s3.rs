//! The store against a real S3 server, which the test starts on loopback.
//!
//! Shows behaviour which memory and directories cannot have: conditional creation in a race over HTTP, ranges, listings of several
//! pages, deletions in bulk, the form of refusals, and volumes wanted by two writers. The server ends with the test, whose end closes
//! the server's standard input.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use glidefs::testing::store::format::{PackBuilder, PackOptions};
use glidefs::testing::store::gc::{GcOptions, collect};
use glidefs::testing::store::volume::{
    CutExtent, CutSource, StatePoint, VolumeError, VolumeStore, VolumeStoreOptions, VolumeWriter,
};
use glidefs::testing::store::{
    Access, Backend, BoxError, Bucket, Created, Entropy, Folder, Key, Operation, PackId, RetryPolicy, Store,
    StoreError, StoreName, StoreOptions, StoreUrl, SystemClock, SystemEntropy, TrialSize, Variables,
    VolumeId, WriterId,
};
use glidefs::testing::units::{SectorRange, Seq};

const SCRIPT: &str = "scripts/lib/s3-server";
const WRITE: Access = Access::ReadWrite;
const VOLUME: VolumeId = VolumeId([7; 16]);

/// A server, for all tests of this file.
struct Server {
    variables: Variables,
    bucket: String,
    /// The end of this process closes the pipe.
    _alive: Mutex<(Child, ChildStdin)>,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the repository");
    let mut child = Command::new(repository.join(SCRIPT))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{SCRIPT} cannot be started ({error}): chmod +x {SCRIPT}"));
    let alive = child.stdin.take().expect("it was piped");
    let mut lines = BufReader::new(child.stdout.take().expect("it was piped")).lines().map_while(Result::ok);
    let mut variables = Variables::new();
    loop {
        let line = lines.next().unwrap_or_else(|| {
            panic!("there is no S3 server to test with: run {SCRIPT} </dev/null and do what it says")
        });
        match line.split_once('=') {
            Some((name, value)) => variables.push((name.into(), value.into())),
            None => break,
        }
    }
    let bucket = get(&variables, "BUCKET").expect("the script prints it").to_owned();
    Server { variables, bucket, _alive: Mutex::new((child, alive)) }
});

fn get<'a>(variables: &'a Variables, name: &str) -> Option<&'a str> {
    variables.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}

fn set(variables: &mut Variables, name: &str, value: &str) {
    variables.retain(|(found, _)| found != name);
    variables.push((name.into(), value.into()));
}

/// A place in the bucket for one test alone.
fn place() -> StoreUrl {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("test/{}", NEXT.fetch_add(1, Ordering::Relaxed));
    StoreUrl::S3(Bucket { name: SERVER.bucket.clone(), prefix })
}

async fn open(url: &StoreUrl, variables: &Variables, access: Access) -> Result<Store, StoreError> {
    let retry = RetryPolicy { time_budget: Duration::from_mins(1), ..RetryPolicy::default() };
    let options = StoreOptions { retry, ..StoreOptions::default() };
    let backend = Backend::connect(url, variables, true)?;
    Ok(Store::open(backend, access, options).await?.0)
}

async fn new_store() -> Store {
    open(&place(), &SERVER.variables, WRITE).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_sixteen_creators_of_a_manifest_exactly_one_wins() {
    let store = new_store().await;
    for number in 1..=10 {
        let racers: Vec<_> = (0..16_u8)
            .map(|racer| {
                let store = store.clone();
                let parts = [Bytes::from(vec![racer; 5000])];
                tokio::spawn(async move { store.create(&Key::Manifest(VOLUME, number), &parts).await })
            })
            .collect();
        let mut winners = Vec::new();
        for (racer, request) in (0..).zip(racers) {
            if request.await.unwrap().unwrap() == Created::Created {
                winners.push(racer);
            }
        }
        assert_eq!(winners.len(), 1, "manifest {number}: {winners:?}");
        let found = store.get(&Key::Manifest(VOLUME, number), 5000).await.unwrap();
        assert_eq!(found, vec![winners[0]; 5000]);
    }
}

#[tokio::test]
async fn credentials_region_and_endpoint_may_come_from_the_files_of_aws_tools() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".aws");
    std::fs::create_dir(&folder).unwrap();
    let of_server = |name: &str| get(&SERVER.variables, name).unwrap();
    let write = |secret: &str| {
        let key_id = of_server("AWS_ACCESS_KEY_ID");
        let text = format!("[test]\naws_access_key_id = {key_id}\naws_secret_access_key = {secret}\n");
        std::fs::write(folder.join("credentials"), text).unwrap();
    };
    let (region, endpoint) = (of_server("AWS_REGION"), of_server("AWS_ENDPOINT_URL"));
    let config = format!("[profile test]\nregion = {region}\nendpoint_url = {endpoint}\n");
    std::fs::write(folder.join("config"), config).unwrap();
    let mut variables = Variables::new();
    set(&mut variables, "HOME", home.path().to_str().unwrap());
    set(&mut variables, "AWS_PROFILE", "test");
    set(&mut variables, "AWS_ALLOW_HTTP", "true");

    write("wrong");
    let (url, options) = (place(), StoreOptions::default());
    let error = open(&url, &variables, WRITE).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    let backend = Backend::connect(&url, &variables, true).unwrap();
    write(of_server("AWS_SECRET_ACCESS_KEY"));
    // A store which was connected before takes the new credentials.
    Store::open(backend, WRITE, options).await.unwrap();
    open(&url, &variables, WRITE).await.unwrap();
}

#[tokio::test]
async fn a_store_is_made_once_and_opened_again() {
    let url = place();
    let error = open(&url, &SERVER.variables, Access::ReadOnly).await.unwrap_err();
    assert!(matches!(error, StoreError::NotAStore { .. }), "{error}");
    let store = open(&url, &SERVER.variables, WRITE).await.unwrap();
    let marker = store.get(&Key::Marker, 1000).await.unwrap();
    for access in [WRITE, Access::ReadOnly] {
        let again = open(&url, &SERVER.variables, access).await.unwrap();
        assert_eq!(again.get(&Key::Marker, 1000).await.unwrap(), marker);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trial_finds_what_glidefs_needs_and_versions_where_the_bucket_keeps_them() {
    for (bucket, keeps_versions) in [("BUCKET", false), ("VERSIONED_BUCKET", true)] {
        let bucket = get(&SERVER.variables, bucket).unwrap().to_owned();
        let url = StoreUrl::S3(Bucket { name: bucket, prefix: "trial".into() });
        let mut objects = None;
        let backend = Backend::connect(&url, &SERVER.variables, true).unwrap().through(|place| {
            objects = Some(Arc::clone(&place));
            place
        });
        let store = Store::over(backend, StoreOptions::default());
        let trial = store.try_out(TrialSize::WHOLE).await.unwrap();
        assert!(!trial.replaces && trial.winners == 1 && trial.clock_ahead_millis == 0, "{trial:?}");
        assert_eq!(trial.keeps_versions, keeps_versions);
        assert!(trial.transfer.is_some());
        assert_eq!([&trial.missing, &trial.ranges, &trial.listing], [&None; 3]);
        trial.removed.unwrap();
        let left = objects.unwrap().list_with_delimiter(Some(&"trial".into())).await.unwrap();
        assert!(left.objects.is_empty() && left.common_prefixes.is_empty(), "{left:?}");
    }
}

#[tokio::test]
async fn a_range_is_had_whole_or_not_at_all() {
    let store = new_store().await;
    let key = Key::Manifest(VOLUME, 1);
    let _ = store.create(&key, &[Bytes::from_static(b"01234"), Bytes::from_static(b"56789")]).await.unwrap();
    assert_eq!(store.head(&key).await.unwrap().bytes, 10);
    assert_eq!(store.get(&key, 10).await.unwrap(), "0123456789");
    assert_eq!(store.get_range(&key, 3..7).await.unwrap(), "3456");
    assert_eq!(store.get_range(&key, 9..10).await.unwrap(), "9");
    for range in [8..11, 10..11, 50..60] {
        let error = store.get_range(&key, range.clone()).await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{range:?}: {error}");
    }
    assert!(store.get(&Key::Manifest(VOLUME, 2), 10).await.unwrap_err().is_missing());
    assert!(store.head(&Key::Manifest(VOLUME, 2)).await.unwrap_err().is_missing());
    assert_eq!(store.stats().of(Operation::Get).retries.get(), 0);
}

#[tokio::test]
async fn a_large_pack_goes_up_in_one_put_and_its_blocks_come_back() {
    let store = new_store().await;
    let options = PackOptions {
        volume: VOLUME,
        pack: PackId::random(&SystemEntropy),
        level: 0,
        first_seq: Seq(1),
        last_seq: Seq(2),
    };
    let mut builder = PackBuilder::new(options).unwrap();
    let data: Vec<u8> = (0..24 << 17).flat_map(|_| SystemEntropy.next_u64().to_le_bytes()).collect();
    let data = Bytes::from(data);
    builder.push_data(0, data.clone()).unwrap();
    let pack = builder.finish().unwrap();
    let reference = pack.pack;
    assert_eq!(store.create_pack(&pack).await.unwrap(), Created::Created);
    assert_eq!(store.create_pack(&pack).await.unwrap(), Created::Existed);
    assert_eq!(store.stats().of(Operation::Put).bytes.get() / (24 << 20), 1);
    let index = store.pack_index(&reference).await.unwrap();
    let blocks = store.blocks(&reference, &index.entries()[100..110]).await.unwrap();
    assert_eq!(blocks.concat(), data[100 << 16..110 << 16]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_and_deletions_go_past_a_thousand_keys() {
    let store = new_store().await;
    let keys: Vec<Key> = (1..=1050).map(|number| Key::Manifest(VOLUME, number)).collect();
    let creations = keys.iter().map(|key| {
        let store = store.clone();
        let key = key.clone();
        async move { store.create(&key, &[Bytes::from_static(b"x")]).await }
    });
    let created: Vec<_> = futures_util::stream::iter(creations).buffer_unordered(16).collect().await;
    assert!(created.into_iter().all(|created| created.unwrap() == Created::Created));
    let list = async |after: Option<&Key>| -> Vec<Key> {
        let listing = store.list(Folder::Manifests(VOLUME), after).await.unwrap();
        listing.into_iter().map(|object| object.key).collect()
    };
    assert_eq!(list(None).await, keys);
    assert_eq!(list(Some(&keys[999])).await, keys[1000..]);
    assert_eq!(store.newest_manifest(VOLUME, Some(1040)).await.unwrap(), Some(1050));
    assert_eq!(store.volumes().await.unwrap(), [VOLUME]);
    let mut gone = keys.clone();
    gone.push(Key::Manifest(VOLUME, 5000));
    store.delete(&gone).await.unwrap();
    assert_eq!(list(None).await, []);
    // Only the marker is left.
    assert_eq!(store.list(Folder::All, None).await.unwrap().len(), 1);
}

#[tokio::test]
async fn wrong_credentials_are_refused_at_once_with_what_to_do() {
    let url = place();
    for (name, value) in [("AWS_SECRET_ACCESS_KEY", "wrong"), ("AWS_ACCESS_KEY_ID", "AKIAAAAAAAAAAAAAAAAA")] {
        let mut variables = SERVER.variables.clone();
        set(&mut variables, name, value);
        let begun = Instant::now();
        let error = open(&url, &variables, WRITE).await.unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{name}: {error:?}");
        assert!(error.to_string().contains(name), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{name}: it was tried again");
    }
}

#[tokio::test]
async fn a_bucket_that_does_not_exist_is_named() {
    let url = StoreUrl::S3(Bucket { name: "no-such-bucket".into(), prefix: String::new() });
    let error = open(&url, &SERVER.variables, WRITE).await.unwrap_err();
    assert!(error.to_string().contains("create it, or correct store.url"), "{error:?}");
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_is_given_up_within_the_budget() {
    let mut variables = SERVER.variables.clone();
    // On port 9 nobody listens, or a service which discards.
    set(&mut variables, "AWS_ENDPOINT_URL", "http://127.0.0.1:9");
    let backend = Backend::connect(&place(), &variables, true).unwrap();
    let retry = RetryPolicy { time_budget: Duration::from_secs(10), ..RetryPolicy::default() };
    let options = StoreOptions { retry, ..StoreOptions::default() };
    let error = Store::open(backend, WRITE, options).await.unwrap_err();
    let StoreError::Unreachable { tries, .. } = &error else { panic!("{error:?}") };
    assert!(*tries > 1);
}

/// A cut: runs of sectors, each filled with one byte value.
struct Fill {
    seq: u64,
    extents: Vec<CutExtent>,
    byte: u8,
}

impl CutSource for Fill {
    fn seq(&self) -> Seq {
        Seq(self.seq)
    }

    fn extents(&self) -> &[CutExtent] {
        &self.extents
    }

    fn read(&self, _: SectorRange, buffer: &mut [u8]) -> Result<(), BoxError> {
        buffer.fill(self.byte);
        Ok(())
    }
}

fn fill(seq: u64, runs: &[(u64, u64)], byte: u8) -> Arc<Fill> {
    let extent =
        |&(start, count): &(u64, u64)| CutExtent { range: sectors(start, count), seq: Seq(seq), zero: false };
    Arc::new(Fill { seq, extents: runs.iter().map(extent).collect(), byte })
}

fn sectors(start: u64, count: u64) -> SectorRange {
    SectorRange::new(start, count).unwrap()
}

fn name(text: &str) -> StoreName {
    text.parse().unwrap()
}

async fn holds(volume: &VolumeWriter, start: u64, count: u64, byte: u8) {
    let range = sectors(start, count);
    let found = volume.read_waiting(range, &[range]).await.unwrap();
    assert_eq!(found, vec![byte; usize::try_from(count * 512).unwrap()], "sectors {start} and {count}");
}

const SIZE: u64 = 1 << 21;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_writers_of_a_volume_one_wins_each_number_and_nothing_is_mixed() {
    const ROUNDS: u64 = 100;
    let url = place();
    let mut daemons = Vec::new();
    for writer in 1..3 {
        let store = open(&url, &SERVER.variables, WRITE).await.unwrap();
        daemons.push(VolumeStore::new(store, VolumeStoreOptions::new(WriterId([writer; 16]))));
    }
    let mut holder = daemons[0].create(&name("vm"), SIZE).await.unwrap();
    let (mut won, mut byte) = (0, 0);
    let mut opening = Duration::from_millis(20);
    for round in 1..=ROUNDS {
        let tried = u8::try_from(round).unwrap();
        // A commit is one request, of which an opening sends four before the manifest: it begins at any time of the opening, or after it.
        let wait = opening * u32::from(tried % 10) / 6;
        let commit = tokio::spawn({
            let holder = holder.clone();
            async move {
                tokio::time::sleep(wait).await;
                holder.commit(fill(round, &[(0, 8), (2000, 8)], tried), SIZE).await
            }
        });
        let begun = Instant::now();
        let taker = daemons[usize::from(tried) % 2].take_over(&name("vm")).await.unwrap();
        opening = begun.elapsed();
        match commit.await.unwrap() {
            Ok(_) => {
                won += 1;
                byte = tried;
            }
            Err(VolumeError::Fenced(lost)) => assert_eq!(lost.fence, taker.writer()),
            Err(error) => panic!("round {round}: {error}"),
        }
        holds(&taker, 0, 8, byte).await;
        holds(&taker, 2000, 8, byte).await;
        let late = holder.commit(fill(round, &[(0, 8)], 255), SIZE).await;
        assert!(matches!(late, Err(VolumeError::Fenced(lost)) if lost.fence == taker.writer()));
        holder = taker;
    }
    let manifests = daemons[0].store().list(Folder::Manifests(holder.id()), None).await.unwrap();
    assert_eq!(manifests.len() as u64, 1 + ROUNDS + won);
    println!("{won} of {ROUNDS} commits came first");
    assert!(won > 0 && won < ROUNDS, "{won}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_lives_on_s3_from_its_creation_to_its_collection() {
    let store = new_store().await;
    let volumes = VolumeStore::new(store.clone(), VolumeStoreOptions::new(WriterId([1; 16])));
    let volume = volumes.create(&name("vm"), SIZE).await.unwrap();
    let requests = |operation| store.stats().of(operation).requests.get();
    // A server that is slow for a moment gets a GET twice.
    let reads = || requests(Operation::Get) - store.stats().hedges.get();
    for seq in 1..=8 {
        let before = (reads(), requests(Operation::Put), requests(Operation::List));
        let cut = fill(seq, &[(seq * 100, 50), (5000, 8)], u8::try_from(seq).unwrap());
        volume.commit(cut, SIZE).await.unwrap();
        let after = (reads(), requests(Operation::Put), requests(Operation::List));
        assert_eq!(after, (before.0, before.1 + 2, before.2));
    }
    volume.snapshot(&name("s")).await.unwrap();
    volume.compact().await.unwrap().unwrap();
    volume.commit(fill(9, &[(5000, 8)], 9), SIZE).await.unwrap();
    let point = StatePoint { volume: volume.id(), snapshot: None };
    let fork = volumes.fork(&point, &name("fork")).await.unwrap();
    fork.commit(fill(1, &[(5000, 4)], 77), SIZE).await.unwrap();
    volume.rollback(&name("s")).await.unwrap();
    for seq in 1..=8 {
        holds(&volume, u64::from(seq) * 100, 50, seq).await;
        holds(&fork, u64::from(seq) * 100, 50, seq).await;
    }
    holds(&volume, 5000, 8, 8).await;
    holds(&fork, 5004, 4, 9).await;
    let before = reads();
    holds(&fork, 5000, 4, 77).await;
    assert_eq!(reads(), before + 2, "the index and the block");
    holds(&fork, 5000, 4, 77).await;
    assert_eq!(reads(), before + 3, "the block");

    volume.delete().await.unwrap();
    let options = GcOptions { grace: Duration::ZERO, dry_run: false, alone: true };
    for _ in 0..4 {
        collect(&store, &SystemClock, &options).await.unwrap();
    }
    let reopened = volumes.take_over(&name("fork")).await.unwrap();
    holds(&reopened, 100, 50, 1).await;
    holds(&reopened, 5004, 4, 9).await;
    let deleted = StatePoint { volume: volume.id(), snapshot: None };
    let gone = volumes.fork(&deleted, &name("late")).await.unwrap_err();
    assert!(matches!(gone, VolumeError::Deleted { .. }), "{gone}");
    reopened.delete().await.unwrap();
    for _ in 0..4 {
        collect(&store, &SystemClock, &options).await.unwrap();
    }
    // The marker of the format is left, the observation of the last run, in two parts, and a grave for each volume.
    let left = store.list(Folder::All, None).await.unwrap();
    let is_observation = |key: &str| key.starts_with("gc/candidates-");
    let observations = left.iter().filter(|object| is_observation(&object.key.to_string())).count();
    assert_eq!((left.len(), observations), (5, 2), "{left:?}");
}
