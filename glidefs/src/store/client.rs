//! Requests to a store: read, create, list, delete, by key.
//!
//! Owns what one request means, its retries and counts. Does not own what is inside objects; `objects` reads and creates
//! them whole. Invariant: an object is never replaced, and a creation that reports success was this caller's.
//!
//! One PUT carries an object, however long: `object_store` passes the condition "only if absent" with a single PUT, not
//! with an upload in parts, and a store takes up to 5 GiB in one, more than the longest pack.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryFutureExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::sync::watch;

use super::backend::{Backend, Directory};
use super::classify::{Verdict, classify};
use super::error::StoreError;
use super::format::FormatError;
use super::hedge::{self, Hedge};
use super::ids::{Entropy, SystemEntropy, VolumeId};
use super::key::{Folder, Key};
use super::outage::{Outage, ReadsWaiting};
use super::retry::{Failure, Passage, RetryPolicy, Tries, stopped, within};
use super::stats::{Operation, StoreStats};
use super::turns::Turns;

/// Most keys that one request deletes.
const DELETE_KEYS_MAX: usize = 1000;
/// Longest listing for which a try has the time, bytes: about as long as one of ten million objects.
const LISTING_BYTES_MAX: u64 = 4 << 30;
/// How often a creation is begun anew because the object that was in its way went away.
const CREATE_ROUNDS_MAX: usize = 4;

/// How often an object is read that may be ours.
const COMPARISONS_MAX: usize = 2;
/// GETs of readers that are under way at once. Each takes the memory of what it brings, up to 4 MiB.
const READS_AT_ONCE_MAX: usize = 64;
/// Time for all tries of a reader's request together, beside that of the first.
const READ_TIME_BUDGET: Duration = Duration::from_secs(5);

/// How a store is used.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// How requests are tried again.
    pub retry: RetryPolicy,
    /// Where random pauses and identities come from.
    pub entropy: Arc<dyn Entropy>,
    /// Where requests are counted.
    pub stats: Arc<StoreStats>,
    /// Ends all requests when it becomes true. `None`: nothing does.
    pub shutdown: Option<watch::Receiver<bool>>,
    /// Whether the place counts as away until [`Store::check`] has found that it is the store.
    pub checked_first: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            retry: RetryPolicy::default(),
            entropy: Arc::new(SystemEntropy),
            stats: Arc::default(),
            shutdown: None,
            checked_first: false,
        }
    }
}

/// What became of a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Created {
    /// The object is there, and was not before.
    Created,
    /// An object of that key was there. It was not changed.
    Existed,
}

/// An object, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Which object.
    pub key: Key,
    /// Its length, bytes.
    pub bytes: u64,
    /// When it was created by the clock of the store, milliseconds since 1970-01-01 UTC.
    pub created_unix_millis: u64,
}

/// What a folder holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Its objects, by ascending key.
    pub objects: Vec<ObjectInfo>,
    /// How many objects were there that are not glidefs's.
    pub foreign: u64,
}

/// A connection to a store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
    /// The volume whose readers it serves: their GETs take turns with those of other volumes.
    reader: Option<VolumeId>,
}

#[derive(Debug)]
struct Inner {
    backend: Backend,
    options: StoreOptions,
    turns: Arc<Turns>,
    hedge: Hedge,
    outage: Arc<Outage>,
    /// Whether the place is known to be the store.
    is_open: AtomicBool,
}

impl Store {
    /// A connection to `backend`, whatever it holds: see [`Self::open`] for one that makes sure, or call [`Self::check`].
    pub fn over(backend: Backend, options: StoreOptions) -> Self {
        let (turns, hedge, outage) = (Turns::new(READS_AT_ONCE_MAX), Hedge::default(), Arc::default());
        let is_open = AtomicBool::new(!options.checked_first);
        Self { inner: Arc::new(Inner { backend, options, turns, hedge, outage, is_open }), reader: None }
    }

    /// The same store for those who read `volume`: GETs take turns with those of other volumes, one that is late is asked a second
    /// time, and one that fails does so soon, because who reads waits for the store in other ways.
    #[must_use]
    pub fn for_readers(&self, volume: VolumeId) -> Self {
        Self { inner: Arc::clone(&self.inner), reader: Some(volume) }
    }

    /// Who waits for it.
    pub(super) fn outage(&self) -> &Arc<Outage> {
        &self.inner.outage
    }

    /// READs that need it.
    pub fn reads_waiting(&self) -> ReadsWaiting {
        self.inner.outage.figures()
    }

    /// Returns when the daemon stops.
    pub(super) async fn stopped(&self) {
        stopped(self.inner.options.shutdown.as_ref()).await;
    }

    /// Lets requests through: the place is the store.
    pub(super) fn open_up(&self) {
        self.inner.is_open.store(true, Ordering::Release);
    }

    /// Where the store is, if that is in a file system.
    pub(super) fn directory(&self) -> Option<&Directory> {
        self.inner.backend.directory.as_ref()
    }

    /// Where it is, for messages.
    pub fn location(&self) -> &str {
        &self.inner.backend.location
    }

    /// Where requests are counted.
    pub fn stats(&self) -> &StoreStats {
        &self.inner.options.stats
    }

    /// The same, to be kept.
    pub fn shared_stats(&self) -> Arc<StoreStats> {
        Arc::clone(&self.inner.options.stats)
    }

    /// Where random pauses and identities come from.
    pub fn entropy(&self) -> &dyn Entropy {
        &*self.inner.options.entropy
    }

    /// A whole object of at most `bytes_max`.
    pub async fn get(&self, key: &Key, bytes_max: u64) -> Result<Bytes, StoreError> {
        self.read(key, None, bytes_max).await
    }

    /// The bytes `range` of an object, all of them.
    pub async fn get_range(&self, key: &Key, range: Range<u64>) -> Result<Bytes, StoreError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let bytes = range.end - range.start;
        self.read(key, Some(range), bytes).await
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>, bytes_max: u64) -> Result<Bytes, StoreError> {
        let (path, text) = self.path(key);
        let tries = self.tries(Operation::Get, &text, bytes_max);
        let policy = self.inner.options.retry;
        let once = || async {
            let length = |found| {
                let source = FormatError::Length { found, needed: bytes_max };
                Failure::Final(StoreError::Damaged { key: text.clone(), source })
            };
            let options = GetOptions { range: range.clone().map(GetRange::Bounded), ..GetOptions::default() };
            let head =
                self.inner.backend.objects.get_opts(&path, options).map_err(|error| match classify(&error) {
                    Verdict::TooShort => length(0),
                    _ => failure(Operation::Get, &text, error),
                });
            // Only now is it known how long the body may take.
            let result = within(policy.try_time_max, head).await?;
            let found = result.range.end.saturating_sub(result.range.start);
            let fits = range.as_ref().map_or(found <= bytes_max, |range| result.range == *range);
            if !fits {
                return Err(length(found));
            }
            let body = result.bytes().map_err(|error| failure(Operation::Get, &text, error));
            let bytes = within(policy.try_time(found), body).await?;
            if bytes.len() as u64 != found {
                let cut = format!("the answer ended after {} of {found} bytes", bytes.len());
                return Err(Failure::Again(cut.into(), None));
            }
            Ok(bytes)
        };
        // Two requests may be in it, and everything that reads has it in its future.
        let (bytes, _) = tries.run(|| Box::pin(self.hedged(bytes_max, once))).await?;
        self.stats().of(Operation::Get).bytes.add(bytes.len() as u64);
        Ok(bytes)
    }

    /// One try of a GET of up to `bytes_max`, which `once` sends. A reader's may become two.
    async fn hedged<F>(&self, bytes_max: u64, once: impl Fn() -> F) -> Result<Bytes, Failure>
    where
        F: Future<Output = Result<Bytes, Failure>>,
    {
        let hedge = &self.inner.hedge;
        let watch = hedge.begin(self.inner.options.retry.try_time_max);
        let late = self.reader.and_then(|_| hedge.late_after(bytes_max));
        let second = || {
            // What a second answer takes in memory is bounded by the turns, as for the first.
            let turn = self.inner.turns.try_take(self.reader?)?;
            if !hedge.spend() {
                return None;
            }
            self.stats().hedges.add(1);
            self.stats().of(Operation::Get).requests.add(1);
            let second = once();
            Some(async move {
                let _turn = turn;
                second.await
            })
        };
        let (answer, second_won) = hedge::hedged(once(), late, second).await;
        match &answer {
            Ok(_) => {
                self.stats().hedges_won.add(u64::from(second_won));
                watch.answered(bytes_max);
                self.inner.outage.answered();
            }
            Err(Failure::Again(..)) => watch.failed(),
            Err(Failure::Final(_)) => {}
        }
        answer
    }

    /// Creates an object of `parts` unless one is there.
    ///
    /// A try whose answer was lost may have created it; then the object that the next try finds is read and compared, and
    /// is this caller's when it has the same bytes. After an error that [`StoreError::is_transient`], the object may be
    /// there: come back with [`Self::create_again`].
    pub async fn create(&self, key: &Key, parts: &[Bytes]) -> Result<Created, StoreError> {
        self.put(key, parts, false).await
    }

    /// As [`Self::create`], after an earlier call with the same bytes failed: an object with these bytes counts as created.
    pub async fn create_again(&self, key: &Key, parts: &[Bytes]) -> Result<Created, StoreError> {
        self.put(key, parts, true).await
    }

    /// What the store answers to the creation of an object that is there, as it is. An honest store answers
    /// [`Created::Existed`]; one that does not has replaced the object by its own bytes.
    pub(super) async fn create_what_exists(&self, key: &Key, bytes: &Bytes) -> Result<Created, StoreError> {
        Ok(self.try_put(key, std::slice::from_ref(bytes)).await?.0)
    }

    /// The answer to a creation, and after how many tries it came.
    async fn try_put(&self, key: &Key, parts: &[Bytes]) -> Result<(Created, u32), StoreError> {
        let (path, text) = self.path(key);
        let payload: PutPayload = parts.iter().cloned().collect();
        let tries = self.tries(Operation::Put, &text, payload.content_length() as u64);
        let attempt = || async {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            match self.inner.backend.objects.put_opts(&path, payload.clone(), options).await {
                Ok(_) => Ok(Created::Created),
                Err(error) if classify(&error) == Verdict::Exists => Ok(Created::Existed),
                Err(error) => Err(failure(Operation::Put, &text, error)),
            }
        };
        tries.run(attempt).await
    }

    async fn put(&self, key: &Key, parts: &[Bytes], mut in_doubt: bool) -> Result<Created, StoreError> {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        for _ in 0..CREATE_ROUNDS_MAX {
            let (created, count) = self.try_put(key, parts).await?;
            in_doubt |= count > 1;
            if created == Created::Existed {
                if !in_doubt {
                    return Ok(Created::Existed);
                }
                match self.holds(key, parts, bytes).await {
                    Ok(true) => {}
                    Ok(false) => return Ok(Created::Existed),
                    Err(error) if error.is_missing() => continue,
                    Err(error) => return Err(error),
                }
            }
            self.stats().of(Operation::Put).bytes.add(bytes);
            return Ok(Created::Created);
        }
        Ok(Created::Existed)
    }

    /// Whether the object is exactly `parts`. What differs is read once more: bytes also change on their way.
    async fn holds(&self, key: &Key, parts: &[Bytes], bytes: u64) -> Result<bool, StoreError> {
        if self.head(key).await?.bytes != bytes {
            return Ok(false);
        }
        for _ in 0..COMPARISONS_MAX {
            match self.get_range(key, 0..bytes).await {
                Ok(found) if is_concat(&found, parts) => return Ok(true),
                Ok(_) | Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Length and age of an object.
    pub async fn head(&self, key: &Key) -> Result<ObjectInfo, StoreError> {
        let (path, text) = self.path(key);
        let tries = self.tries(Operation::Head, &text, 0);
        let attempt = || async {
            let meta = self.inner.backend.objects.head(&path).await;
            meta.map_err(|error| failure(Operation::Head, &text, error))
        };
        let (meta, _) = tries.run(attempt).await?;
        Ok(info(key.clone(), &meta))
    }

    /// The objects of `folder` whose key is behind `after`.
    pub async fn list(&self, folder: Folder, after: Option<&Key>) -> Result<Listing, StoreError> {
        let (prefix, text) = self.path(&folder);
        let begin = after.map(|key| self.path(key).0);
        // What was listed before a try failed is kept, if the order of listings allows to go on behind it.
        let listed: Mutex<Vec<ObjectMeta>> = Mutex::default();
        let listed = || listed.lock().unwrap_or_else(PoisonError::into_inner);
        let attempt = || async {
            let objects = &self.inner.backend.objects;
            if !self.inner.backend.lists_in_order {
                listed().clear();
            }
            let after = listed().last().map(|meta| meta.location.clone()).or_else(|| begin.clone());
            let prefix = (!prefix.as_ref().is_empty()).then_some(&prefix);
            let mut stream = match &after {
                Some(after) => objects.list_with_offset(prefix, after),
                None => objects.list(prefix),
            };
            // Every page has the time of a request: there may be very many of them.
            let page_time_max = self.inner.options.retry.try_time(0);
            let next =
                async |stream: &mut BoxStream<'_, object_store::Result<ObjectMeta>>| Ok(stream.next().await);
            while let Some(meta) = within(page_time_max, next(&mut stream)).await? {
                listed().push(meta.map_err(|error| failure(Operation::List, &text, error))?);
            }
            Ok(())
        };
        self.tries(Operation::List, &text, LISTING_BYTES_MAX).run(attempt).await?;
        let found = std::mem::take(&mut *listed());
        let mut listing = Listing::default();
        for meta in found {
            match self.key_at(&meta.location) {
                Some(key) => listing.objects.push(info(key, &meta)),
                None => listing.foreign += 1,
            }
        }
        listing.objects.sort_by_cached_key(|object| object.key.to_string());
        Ok(listing)
    }

    /// The volumes of which there is anything.
    pub async fn volumes(&self) -> Result<Vec<VolumeId>, StoreError> {
        let (prefix, text) = self.path(&"volumes");
        let tries = self.tries(Operation::List, &text, 0);
        let attempt = || async {
            let found = self.inner.backend.objects.list_with_delimiter(Some(&prefix)).await;
            found.map_err(|error| failure(Operation::List, &text, error))
        };
        let (found, _) = tries.run(attempt).await?;
        let id = |path: &Path| path.filename().and_then(|name| name.parse().ok());
        let mut volumes: Vec<VolumeId> = found.common_prefixes.iter().filter_map(id).collect();
        volumes.sort_unstable();
        Ok(volumes)
    }

    /// Deletes objects. Those that are not there count as deleted. After an error any of them may be gone.
    pub async fn delete(&self, keys: &[Key]) -> Result<(), StoreError> {
        for keys in keys.chunks(DELETE_KEYS_MAX) {
            let paths: Vec<Path> = keys.iter().map(|key| self.path(key).0).collect();
            let text = match paths.as_slice() {
                [] => return Ok(()),
                [one] => one.to_string(),
                [first, ..] => format!("{first} and {} others", paths.len() - 1),
            };
            // Those that were deleted before a try failed are not tried again.
            let left = Mutex::new(paths);
            let attempt = || async {
                let paths = left.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let mut failing: HashSet<Path> = paths.iter().cloned().collect();
                let paths = futures_util::stream::iter(paths.into_iter().map(Ok)).boxed();
                let mut deleted = self.inner.backend.objects.delete_stream(paths);
                let mut failed = None;
                while let Some(answer) = deleted.next().await {
                    match answer {
                        Ok(path) => drop(failing.remove(&path)),
                        Err(error) if classify(&error) != Verdict::Missing => failed = Some(error),
                        Err(_) => {}
                    }
                }
                left.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| failing.contains(path));
                failed.map_or(Ok(()), |error| Err(failure(Operation::Delete, &text, error)))
            };
            self.tries(Operation::Delete, &text, 0).run(attempt).await?;
        }
        Ok(())
    }

    fn tries<'a>(&'a self, operation: Operation, key: &'a str, payload_bytes: u64) -> Tries<'a> {
        let StoreOptions { retry, entropy, stats, shutdown, .. } = &self.inner.options;
        let (mut policy, shutdown) = (*retry, shutdown.as_ref());
        let directory = self.inner.backend.directory.as_ref();
        let reader = self.reader.map(|volume| (&self.inner.turns, volume));
        if reader.is_some() {
            policy.time_budget = policy.time_budget.min(READ_TIME_BUDGET);
        }
        let is_open = self.inner.is_open.load(Ordering::Acquire);
        let passage = match (is_open, key == self.path(&Key::Marker).1) {
            (true, _) => Passage::Open,
            (false, true) => Passage::Looking,
            (false, false) => Passage::Closed(&self.inner.is_open),
        };
        Tries {
            policy,
            entropy: &**entropy,
            stats,
            shutdown,
            operation,
            key,
            payload_bytes,
            directory,
            reader,
            passage,
        }
    }

    /// Where a key or a folder is, for `object_store` and for people.
    fn path(&self, key: &impl std::fmt::Display) -> (Path, String) {
        let key = key.to_string();
        // Keys and prefixes consist of characters that paths leave as they are.
        let path: Path = self.inner.backend.prefix.parts().chain(Path::from(key).parts()).collect();
        let text = path.to_string();
        (path, if text.is_empty() { self.location().into() } else { text })
    }

    fn key_at(&self, path: &Path) -> Option<Key> {
        let prefix = self.inner.backend.prefix.as_ref();
        let rest = path.as_ref().strip_prefix(prefix)?;
        let rest = if prefix.is_empty() { rest } else { rest.strip_prefix('/')? };
        rest.parse().ok()
    }
}

/// Whether `whole` is `parts`, one behind the other.
fn is_concat(whole: &[u8], parts: &[Bytes]) -> bool {
    let rest = parts.iter().try_fold(whole, |rest, part| rest.strip_prefix(&part[..]));
    rest.is_some_and(<[u8]>::is_empty)
}

fn info(key: Key, meta: &ObjectMeta) -> ObjectInfo {
    let created_unix_millis = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
    ObjectInfo { key, bytes: meta.size, created_unix_millis }
}

/// What a failed try means for the request.
fn failure(operation: Operation, key: &str, error: object_store::Error) -> Failure {
    let key = key.to_owned();
    Failure::Final(match classify(&error) {
        Verdict::Again(after) => return Failure::Again(Box::new(error), after),
        Verdict::Missing => StoreError::Missing { key },
        Verdict::Refused(advice) => StoreError::Refused { operation, key, advice, source: Box::new(error) },
        Verdict::Exists | Verdict::TooShort | Verdict::Rejected => {
            StoreError::Rejected { operation, key, source: Box::new(error) }
        }
    })
}

#[cfg(test)]
mod tests;
