//! A store in memory that ends at a chosen request, with a clock that tests turn by hand: test support.
//!
//! Owns lasting faults; passing faults are in `faulty`. Does not exist in the daemon. Invariant: the age of objects follows the
//! clock, and after the end nothing changes.

mod requests;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chrono::DateTime;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectMeta, ObjectStore, PutOptions, PutPayload, Result};
use tokio::sync::Notify;

use super::clock::StoreClock;
use super::faulty::Seeded;
use super::ids::Entropy;
use super::transfer::moved;

use crate::locks::MutexExt;

/// A clock that stands still until a test turns the clock.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl Default for ManualClock {
    /// The first of January 2026.
    fn default() -> Self {
        Self(AtomicU64::new(1_767_225_600_000))
    }
}

impl ManualClock {
    /// Lets `by` pass on the clock.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), SeqCst);
    }
}

impl StoreClock for ManualClock {
    fn unix_millis(&self) -> u64 {
        self.0.load(SeqCst)
    }

    fn since_boot(&self) -> Duration {
        Duration::from_millis(self.unix_millis())
    }
}

/// Value of [`ScriptedStore::left`] for a store without an end.
const FOREVER: u64 = u64::MAX;

/// A store in memory, and the script of the faults to come.
#[derive(Debug)]
pub struct ScriptedStore {
    inner: Arc<InMemory>,
    clock: Arc<ManualClock>,
    created_millis: Arc<Mutex<HashMap<Path, u64>>>,
    /// Requests that still get an answer.
    left: AtomicU64,
    /// Requests after the last answer.
    beyond: AtomicU64,
    /// Whether the first request without an answer has an effect all the same.
    last_arrives: AtomicU64,
    /// How long a read takes, milliseconds. `next_read_millis` has other values for the next reads.
    read_millis: AtomicU64,
    /// Whether a creation replaces an existing object.
    replaces: AtomicBool,
    /// Listings do not show objects with this in their key.
    hidden: Mutex<Option<&'static str>>,
    /// The next listing of volumes does not show volumes with this in their key.
    young: Mutex<Option<String>>,
    /// Listings of folders with this text in the key never get an answer.
    stuck: Mutex<Option<String>>,
    /// Listings of folders with this text in the key are refused.
    refused: Mutex<Option<String>>,
    /// Reads of objects with this text in the key are answered as those of archived objects.
    archived: Mutex<Option<String>>,
    /// How many requests were made.
    requests: AtomicU64,
    /// How many objects listings have named.
    objects_listed: Arc<AtomicU64>,
    next_read_millis: Mutex<VecDeque<u64>>,
    /// The next creation of an object with this text in the key waits.
    pause: Mutex<Option<&'static str>>,
    /// Notified when a creation begins to wait.
    paused: Notify,
    /// Ends the wait of the creation.
    resumed: Notify,
    /// The line that creations pass, second by second.
    upload: Mutex<Upload>,
    /// How many of a thousand creations are on their way for longer than anybody waits.
    late_per_mille: AtomicU64,
    /// All creations of objects with this in their key are late.
    late_key: Mutex<Option<&'static str>>,
    /// The next creations of objects with this text in the key, so many, get an error that another try does not mend. The flag:
    /// whether these creations arrive.
    failing: Mutex<(&'static str, u32, bool)>,
    chance: Seeded,
    late: Mutex<Vec<(Path, PutPayload, PutOptions)>>,
}

impl fmt::Display for ScriptedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scripted store")
    }
}

/// A slow line, and what went over it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Upload {
    /// Bytes that the line takes a second, of all creations together; 0: any number.
    pub bytes_per_second: u64,
    /// A creation stands still after so many bytes.
    pub end: Option<u64>,
    /// Bytes sent so far.
    pub sent: u64,
    /// Creations on the way.
    pub count: u64,
}

/// The fate of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    NotAnswered,
    NotArriving,
}

impl ScriptedStore {
    /// A store without objects, whose objects age by `clock`.
    pub fn new(clock: Arc<ManualClock>) -> Arc<Self> {
        Self::over(Arc::default(), clock, Arc::default(), 0)
    }

    /// Another way to the same objects. Faults of requests on one way have no effect on the other.
    pub fn another_way(&self, seed: u64) -> Arc<Self> {
        Self::over(self.inner.clone(), self.clock.clone(), self.created_millis.clone(), seed)
    }

    fn over(
        inner: Arc<InMemory>,
        clock: Arc<ManualClock>,
        created_millis: Arc<Mutex<HashMap<Path, u64>>>,
        seed: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner,
            clock,
            created_millis,
            upload: Mutex::default(),
            late_per_mille: AtomicU64::new(0),
            late_key: Mutex::default(),
            failing: Mutex::default(),
            chance: Seeded::new(seed),
            late: Mutex::default(),
            left: AtomicU64::new(FOREVER),
            beyond: AtomicU64::new(0),
            last_arrives: AtomicU64::new(0),
            read_millis: AtomicU64::new(0),
            replaces: AtomicBool::new(false),
            hidden: Mutex::default(),
            young: Mutex::default(),
            stuck: Mutex::default(),
            refused: Mutex::default(),
            archived: Mutex::default(),
            requests: AtomicU64::new(0),
            objects_listed: Arc::default(),
            next_read_millis: Mutex::default(),
            pause: Mutex::default(),
            paused: Notify::new(),
            resumed: Notify::new(),
        })
    }

    /// Lets a read take so long, by the clock of the runtime.
    pub fn read_for(&self, millis: u64) {
        self.read_millis.store(millis, SeqCst);
    }

    /// Changes the line that creations pass, and returns what is true of it then.
    pub fn upload(&self, change: impl FnOnce(&mut Upload)) -> Upload {
        let mut upload = lock(&self.upload);
        change(&mut upload);
        *upload
    }

    /// Lets `bytes` of a creation pass the line.
    async fn pass(&self, bytes: u64) {
        if self.upload(|_| {}).bytes_per_second == 0 {
            return;
        }
        self.upload(|upload| upload.count += 1);
        let _way = OnTheWay(self);
        let mut left = bytes;
        while left > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if self.upload(|_| {}).end.is_some_and(|end| bytes - left >= end) {
                std::future::pending::<()>().await;
            }
            let upload = self.upload(|_| {});
            let step = left.min(upload.bytes_per_second / upload.count);
            left -= step;
            self.upload(|upload| upload.sent += step);
            moved();
        }
    }

    /// Lets creations replace existing objects, like a server that ignores `If-None-Match`.
    pub fn ignore_conditions(&self) {
        self.replaces.store(true, SeqCst);
    }

    /// Lets listings leave out objects with `text` in the key, like a listing from before the creation of these objects.
    pub fn list_without(&self, text: Option<&'static str>) {
        *lock(&self.hidden) = text;
    }

    /// Lets the next listing of volumes leave out those with `text` in the key, as if these were created after the listing.
    pub fn list_volumes_once_without(&self, text: String) {
        *lock(&self.young) = Some(text);
    }

    /// Lets listings of folders with `text` in the key go without an answer.
    pub fn never_list(&self, text: Option<&str>) {
        *lock(&self.stuck) = text.map(Into::into);
    }

    /// Refuses listings of folders with `text` in the key.
    pub fn refuse_to_list(&self, text: Option<&str>) {
        *lock(&self.refused) = text.map(Into::into);
    }

    /// Moves objects with `text` in the key to an archive.
    pub fn archive(&self, text: String) {
        *lock(&self.archived) = Some(text);
    }

    /// How many requests were made so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(SeqCst)
    }

    /// How many objects listings have named so far.
    pub fn objects_listed(&self) -> u64 {
        self.objects_listed.load(SeqCst)
    }

    /// Lets the next reads take their time, one after the other.
    pub fn next_reads_for(&self, millis: &[u64]) {
        lock(&self.next_read_millis).extend(millis);
    }

    /// Lets the next creation of an object with `text` in the key wait, before the creation arrives, for [`Self::resume`].
    pub fn pause_before(&self, text: &'static str) {
        *lock(&self.pause) = Some(text);
    }

    /// Ends when a creation waits.
    pub async fn paused(&self) {
        self.paused.notified().await;
    }

    /// Ends the wait of [`Self::pause_before`].
    pub fn resume(&self) {
        self.resumed.notify_one();
    }

    /// Lets so many of a thousand creations arrive only with [`Self::arrive`], long after the connection was cut.
    pub fn delay_some(&self, per_mille: u64) {
        self.late_per_mille.store(per_mille, SeqCst);
    }

    /// As [`Self::delay_some`], for every creation of an object with `text` in the key; `None`: for no more creations.
    pub fn delay_every(&self, text: Option<&'static str>) {
        *lock(&self.late_key) = text;
    }

    /// Lets the next `times` creations of objects with `text` in the key get an error. `arrive`: whether these creations arrive.
    pub fn fail_creations(&self, text: &'static str, times: u32, arrive: bool) {
        *lock(&self.failing) = (text, times, arrive);
    }

    /// Whether the creation of `location` gets an error, and whether the creation arrives then.
    fn failure(&self, location: &Path) -> Option<bool> {
        let mut failing = lock(&self.failing);
        let (text, times, arrives) = *failing;
        let left = times.checked_sub(1).filter(|_| location.as_ref().contains(text))?;
        failing.1 = left;
        Some(arrives)
    }

    fn is_late(&self, location: &Path) -> bool {
        let rate = self.late_per_mille.load(SeqCst);
        let named = lock(&self.late_key).is_some_and(|text| location.as_ref().contains(text));
        named || rate > 0 && self.chance.next_u64() % 1000 < rate
    }

    /// Lets all creations on their way arrive. Returns how many of them have an effect now.
    pub async fn arrive(&self) -> usize {
        let late = std::mem::take(&mut *lock(&self.late));
        let mut arrived = 0;
        for (location, payload, opts) in late {
            if self.inner.put_opts(&location, payload, opts).await.is_ok() {
                lock(&self.created_millis).insert(location, self.clock.unix_millis());
                arrived += 1;
            }
        }
        arrived
    }

    /// The keys of all objects, ascending.
    pub async fn keys(&self) -> Vec<String> {
        let listed = self.inner.list(None).filter_map(|meta| std::future::ready(meta.ok()));
        let mut keys: Vec<String> = listed.map(|meta| meta.location.to_string()).collect().await;
        keys.sort_unstable();
        keys
    }

    /// Damages the last object with `text` in the key. Returns its key.
    ///
    /// # Panics
    /// Without such an object.
    pub async fn damage_last(&self, text: &str) -> String {
        let key = self.keys().await.into_iter().rfind(|key| key.contains(text)).unwrap();
        let (path, damaged) = (Path::from(key.as_str()), PutPayload::from_static(b"damaged"));
        self.inner.put_opts(&path, damaged, PutOptions::default()).await.unwrap();
        key
    }

    /// Copies all objects to `other`, except for objects with `without` in the key.
    ///
    /// # Errors
    /// None, as long as no object is deleted meanwhile.
    pub async fn copy_to(&self, other: &Self, without: &str) -> Result<()> {
        for key in self.keys().await.into_iter().filter(|key| !key.contains(without)) {
            let path = Path::from(key);
            let bytes = self.inner.get_opts(&path, GetOptions::default()).await?.bytes().await?;
            other.inner.put_opts(&path, bytes.into(), PutOptions::default()).await?;
            let created = lock(&self.created_millis).get(&path).copied();
            lock(&other.created_millis).extend(created.map(|millis| (path, millis)));
        }
        Ok(())
    }

    /// Answers `requests` more requests, and then no more. With `last_arrives` the next request has an effect, but no answer.
    pub fn end_after(&self, requests: u64, last_arrives: bool) {
        self.last_arrives.store(last_arrives.into(), SeqCst);
        self.beyond.store(0, SeqCst);
        self.left.store(requests, SeqCst);
    }

    /// Whether a request had no answer.
    pub fn has_ended(&self) -> bool {
        self.beyond.load(SeqCst) > 0
    }

    /// Answers all requests from now on. Returns whether a request had no answer.
    pub fn go_on(&self) -> bool {
        self.left.store(FOREVER, SeqCst);
        self.beyond.load(SeqCst) > 0
    }

    fn fate(&self) -> Fate {
        self.requests.fetch_add(1, SeqCst);
        let spend = |left: u64| if left == FOREVER { Some(left) } else { left.checked_sub(1) };
        if self.left.fetch_update(SeqCst, SeqCst, spend).is_ok() {
            return Fate::Answered;
        }
        let first = self.beyond.fetch_add(1, SeqCst) == 0;
        if first && self.last_arrives.load(SeqCst) == 1 { Fate::NotAnswered } else { Fate::NotArriving }
    }

    fn dated(&self, meta: ObjectMeta) -> ObjectMeta {
        date(&lock(&self.created_millis), meta)
    }

    fn listed(
        &self,
        prefix: Option<&Path>,
        listing: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let concerns = |text: &Mutex<Option<String>>| {
            let (prefix, text) = (prefix.map(AsRef::as_ref).unwrap_or_default(), lock(text));
            text.as_ref().is_some_and(|text| str::contains(prefix, text.as_str()))
        };
        match self.fate() {
            Fate::Answered if concerns(&self.stuck) => stream::pending().boxed(),
            Fate::Answered if concerns(&self.refused) => {
                let refused = Error::PermissionDenied { path: String::new(), source: "403".into() };
                stream::iter([Err(refused)]).boxed()
            }
            Fate::Answered => {
                let (created, hidden) = (self.created_millis.clone(), *lock(&self.hidden));
                let shown = move |meta: &Result<ObjectMeta>| match (meta, hidden) {
                    (Ok(meta), Some(hidden)) => !meta.location.as_ref().contains(hidden),
                    _ => true,
                };
                let listing = listing.filter(move |meta| std::future::ready(shown(meta)));
                let count = Arc::clone(&self.objects_listed);
                let counted = listing.inspect(move |_| {
                    count.fetch_add(1, SeqCst);
                });
                counted.map(move |meta| meta.map(|meta| date(&lock(&created), meta))).boxed()
            }
            _ => stream::iter([Err(ended())]).boxed(),
        }
    }
}

/// A creation on the line.
struct OnTheWay<'a>(&'a ScriptedStore);

impl Drop for OnTheWay<'_> {
    fn drop(&mut self) {
        self.0.upload(|upload| upload.count -= 1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock_whole()
}

fn date(created: &HashMap<Path, u64>, meta: ObjectMeta) -> ObjectMeta {
    let millis = created.get(&meta.location).and_then(|millis| i64::try_from(*millis).ok());
    let last_modified = millis.and_then(DateTime::from_timestamp_millis).unwrap_or(meta.last_modified);
    ObjectMeta { last_modified, ..meta }
}

/// An error after which no retry helps, so that no caller waits for one.
fn ended() -> Error {
    Error::NotSupported { source: "the store has ended".into() }
}
