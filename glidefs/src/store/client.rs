//! The handle of a store: how requests are sent, by key.
//!
//! Owns what all requests share: options, counters, and the meaning of a failed try. `read`, `create` and `listing` send the
//! requests. Does not own the content of objects; `objects` reads and creates whole objects. Invariant: an object is never
//! replaced, and a creation that reports success was made by this caller.

mod create;
mod listing;
mod read;
mod trial;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

pub use self::trial::{Trial, TrialSize};
use super::backend::Backend;
use super::classify::{Verdict, classify, in_short, permission_for};
use super::error::StoreError;
use super::health::StoreState;
use super::hedge::Hedge;
use super::ids::{Entropy, StoreName, SystemEntropy, VolumeId};
use super::key::Key;
use super::outage::{Outage, ReadsWaiting};
use super::retry::{Failure, RetryPolicy, Tries};
use super::stats::{Operation, StoreStats};
use super::transfer::{Uplink, UploadLimit};
use super::turns::{Reader, Turns};
use crate::fair::WEIGHT_DEFAULT;
use crate::locks::LocksByKey;

/// The folder of all volumes.
const VOLUMES: &str = "volumes";
/// The folder of all folders.
const PLACE: &str = "";
/// GETs of readers that are under way at once. Each takes the memory of the answer, up to 4 MiB.
const READS_AT_ONCE_MAX: u64 = 64;
/// Time for all tries of a reader's request after the first.
const READ_TIME_BUDGET: Duration = Duration::from_secs(5);

/// How a store is used.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// How often, how fast and how long a request is tried.
    pub retry: RetryPolicy,
    /// Where random pauses and identities come from.
    pub entropy: Arc<dyn Entropy>,
    /// Where requests are counted and failures are shown.
    pub stats: Arc<StoreStats>,
    /// Ends all requests when the value becomes true. `None`: nothing ends requests.
    pub shutdown: Option<watch::Receiver<bool>>,
    /// Whether the place counts as away until [`Store::check`] has found the store there.
    pub checked_first: bool,
    /// Most bytes a second that requests send.
    pub upload_limit: UploadLimit,
    /// Most objects of a listing, about 70 bytes of memory each.
    pub listed_max: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            retry: RetryPolicy::default(),
            entropy: Arc::new(SystemEntropy),
            stats: Arc::default(),
            shutdown: None,
            checked_first: false,
            upload_limit: UploadLimit::default(),
            listed_max: listing::OBJECTS_MAX,
        }
    }
}

/// Result of a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Created {
    /// The object is there, and was not before.
    Created,
    /// An object of the same key was there, and was not changed.
    Existed,
}

/// Key, length and age of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Key of the object.
    pub key: Key,
    /// Length of the object, bytes.
    pub bytes: u64,
    /// Time of creation by the clock of the store, milliseconds since 1970-01-01 UTC.
    pub created_unix_millis: u64,
}

/// A connection to a store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) inner: Arc<Inner>,
    /// The volume whose readers send requests through this handle. Their GETs take turns with GETs of other volumes.
    pub(super) reader: Option<Reader>,
    /// The volume whose packs are created through this handle. Packs take turns with those of other volumes.
    uploader: Option<Reader>,
}

/// What all handles of a store share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) backend: Backend,
    pub(super) options: StoreOptions,
    turns: Arc<Turns>,
    pub(super) uplink: Arc<Uplink>,
    hedge: Hedge,
    /// The READs that wait for this store.
    pub(super) outage: Arc<Outage>,
    /// Whether the place is known to be the store.
    pub(super) is_open: AtomicBool,
    /// Who may remove a name at the moment.
    removals: LocksByKey<StoreName>,
}

impl Store {
    /// A connection to `backend`, whatever is there. [`Self::open`] also checks the place; [`Self::check`] does so later.
    pub fn over(backend: Backend, options: StoreOptions) -> Self {
        let (turns, hedge, outage) = (Turns::new(READS_AT_ONCE_MAX), Hedge::default(), Arc::default());
        let is_open = AtomicBool::new(!options.checked_first);
        let (uplink, removals) = (Uplink::new(options.upload_limit), LocksByKey::default());
        let inner = Inner { backend, options, turns, uplink, hedge, outage, is_open, removals };
        Self { inner: Arc::new(inner), reader: None, uploader: None }
    }

    /// The same store for readers of `volume`: GETs take turns by `weight` with GETs of other volumes, a late GET gets a
    /// second request, and a failing GET fails soon, because readers wait for the store in another way
    /// ([`Self::reads_waiting`]).
    #[must_use]
    pub fn for_readers(&self, volume: VolumeId, weight: u16) -> Self {
        Self { reader: Some(Reader { volume, weight }), ..self.clone() }
    }

    /// The same store for packs of `volume`, which take turns by `weight` with packs of other volumes.
    pub(super) fn for_packs(&self, volume: VolumeId, weight: u16) -> Self {
        Self { uploader: Some(Reader { volume, weight }), ..self.clone() }
    }

    /// Whose readers send requests through this handle: those of `volume`, unless the handle is for readers.
    pub(super) fn reader(&self, volume: VolumeId) -> Reader {
        self.reader.unwrap_or(Reader { volume, weight: WEIGHT_DEFAULT })
    }

    /// Held by whoever looks whether `name` still means a volume, and then removes the name. Of this process only.
    pub(super) fn name_removal(&self, name: &StoreName) -> Arc<tokio::sync::Mutex<()>> {
        self.inner.removals.of(name)
    }

    /// Number and age of the READs that need this store.
    pub fn reads_waiting(&self) -> ReadsWaiting {
        self.inner.outage.figures()
    }

    /// Returns when the daemon stops.
    pub(super) async fn stopped(&self) {
        if let Some(shutdown) = &self.inner.options.shutdown
            && shutdown.clone().wait_for(|stop| *stop).await.is_ok()
        {
            return;
        }
        // No sender is left, so nothing can stop the request.
        pending::<()>().await;
    }

    pub(super) fn is_open(&self) -> bool {
        self.inner.is_open.load(Ordering::Acquire)
    }

    /// Why the place was not found to be the store since the start: until it is, nothing is sent there.
    pub fn away(&self) -> Option<String> {
        // The first look may take minutes to end.
        if self.is_open() { None } else { self.state().error }
    }

    /// Whether the store takes and gives data; it may still refuse to delete.
    pub fn is_up(&self) -> bool {
        self.state().state != super::Condition::Unasked && self.stats().health.of_writeback().is_none()
    }

    /// What the store does, since when, and why not what it is asked.
    pub fn state(&self) -> StoreState {
        self.stats().health.state(self.location())
    }

    /// Location of the store, for messages.
    pub fn location(&self) -> &str {
        &self.inner.backend.location
    }

    /// Counters of requests.
    pub fn stats(&self) -> &Arc<StoreStats> {
        &self.inner.options.stats
    }

    /// Where random pauses and identities come from.
    pub fn entropy(&self) -> &dyn Entropy {
        &*self.inner.options.entropy
    }

    /// The result of `look`. While what must be there `is_missing`, `look` is called again, with pauses, for
    /// [`RetryPolicy::missing_time`]: stores, and proxies before them, also say so of objects that they have.
    pub async fn insist<T, E, F>(&self, is_missing: impl Fn(&E) -> bool, look: impl Fn() -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let StoreOptions { retry, entropy, .. } = &self.inner.options;
        let begun = Instant::now();
        let mut looks = 0;
        loop {
            match look().await {
                // However long a look takes, there is a second one.
                Err(error) if is_missing(&error) && (looks == 0 || begun.elapsed() < retry.missing_time) => {}
                answer => {
                    self.stats().taken_back.add(u64::from(looks > 0 && answer.is_ok()));
                    return answer;
                }
            }
            looks += 1;
            // When the daemon stops, the next look says so.
            let _ = timeout(retry.pause(looks, &**entropy), self.stopped()).await;
        }
    }

    /// Where requests are sent. A place that cannot be set up counts as away.
    async fn objects(&self) -> Result<&Arc<dyn ObjectStore>, Failure> {
        self.inner.backend.objects().await.map_err(|error| Failure::Again(error, None))
    }

    pub(super) fn tries<'a>(&'a self, operation: Operation, key: &'a str) -> Tries<'a> {
        let mut time_budget = self.inner.options.retry.time_budget;
        let turns = self.reader.map(|reader| (&self.inner.turns, reader, 1));
        if turns.is_some() {
            time_budget = time_budget.min(READ_TIME_BUDGET);
        }
        // No store is made where there are volumes, or something else.
        let is_look =
            key == self.path(&Key::Marker).1 || [VOLUMES, PLACE].iter().any(|of| key == self.path(of).1);
        Tries { store: self, operation, key, time_budget, turns, is_look }
    }

    /// Where a key or a folder is, for `object_store` and for people.
    fn path(&self, key: &impl std::fmt::Display) -> (Path, String) {
        let key = key.to_string();
        // Paths do not escape any character of keys and prefixes.
        let path: Path = self.inner.backend.prefix.parts().chain(Path::from(key).parts()).collect();
        let text = path.to_string();
        (path, if text.is_empty() { self.location().into() } else { text })
    }

    fn key_at(&self, path: &Path) -> Option<Key> {
        let prefix = self.inner.backend.prefix.as_ref();
        let rest = path.as_ref().strip_prefix(prefix)?;
        let rest = if prefix.is_empty() { rest } else { rest.strip_prefix('/')? };
        Key::parse(rest)
    }
}

fn info(key: Key, meta: &ObjectMeta) -> ObjectInfo {
    let created_unix_millis = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
    ObjectInfo { key, bytes: meta.size, created_unix_millis }
}

/// The meaning of a failed try for the request.
fn failure(operation: Operation, key: &str, error: object_store::Error) -> Failure {
    let (key, verdict, source) = (key.to_owned(), classify(&error), in_short(error));
    let advice = match verdict {
        Verdict::Refused(advice) => advice,
        _ => permission_for(operation),
    };
    Failure::Final(match verdict {
        Verdict::Again(after) => return Failure::Again(source, after),
        Verdict::Missing => StoreError::Missing { key },
        Verdict::Archived => StoreError::Archived { key, source },
        Verdict::Denied | Verdict::Refused(_) => StoreError::Refused { operation, key, advice, source },
        Verdict::Exists | Verdict::TooShort | Verdict::Rejected => {
            StoreError::Rejected { operation, key, source }
        }
    })
}

#[cfg(test)]
mod tests;
