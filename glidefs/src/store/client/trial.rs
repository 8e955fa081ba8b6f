//! A trial of a place: whether creations keep their condition, what reads, listings and deletions do, how long requests take, which time
//! the place has.
//!
//! Owns the objects of a trial, which have keys of no other kind and are removed at the end, also of a trial that fails. Does not own
//! the judgement (`doctor`). Invariant: no other object is touched, so a place that is no store yet, or is in use, may be tried.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use tokio::time::Instant;

use super::{Created, PLACE, Store};
use crate::observe::chain;
use crate::store::error::StoreError;
use crate::store::ids::PackId;
use crate::store::stats::Operation;

/// Creators of one object at once, and requests under way for a listing.
const AT_ONCE: u8 = 16;
/// Objects that creators race for. A server that breaks the condition in a race does so in most races.
const RACES: usize = 3;
/// Reads of an object; the median counts.
const READS: usize = 5;
/// Objects keep the time of their creation in whole seconds.
const TIME_STEP_MILLIS: i64 = 1000;
/// The beginning of all keys of trials.
pub(super) const PREFIX: &str = "glidefs-doctor-";

/// How much a trial does.
#[derive(Clone, Copy, Debug)]
pub struct TrialSize {
    /// Objects that a listing has to find.
    pub listed: u16,
    /// Length of the object whose transfer is measured, bytes; 0 for none.
    pub body_bytes: usize,
    /// How long the trial may take, without the removal of its objects.
    pub time_max: Duration,
}

impl TrialSize {
    /// A few small objects.
    pub const BRIEF: Self = Self { listed: 3, body_bytes: 0, time_max: Duration::from_mins(1) };
    /// Also a listing of more than one page, which are of a thousand keys, and an object as long as a pack.
    pub const WHOLE: Self = Self { listed: 1001, body_bytes: 16 << 20, time_max: Duration::from_mins(5) };
}

/// The behaviour of a place.
#[derive(Debug)]
pub struct Trial {
    /// Whether an object was replaced that was to be created only if absent.
    pub replaces: bool,
    /// Most creators of one object that were told of a success, of many at once. One, where creations keep their condition.
    pub winners: usize,
    /// Why a missing object is not said to be missing, if it is not.
    pub missing: Option<String>,
    /// Why a read of a part does not have just the bytes of that part.
    pub ranges: Option<String>,
    /// Why a listing does not have every object, in order.
    pub listing: Option<String>,
    /// Whether the place keeps the versions of objects that are removed.
    pub keeps_versions: bool,
    /// Time of a creation of a small object.
    pub put: Duration,
    /// Median time of a read of a small object.
    pub get: Duration,
    /// Time of a creation and of a read of an object of [`TrialSize::body_bytes`].
    pub transfer: Option<(Duration, Duration)>,
    /// By how much the clock of the place is ahead of the clock of this host for sure, milliseconds; negative behind.
    pub clock_ahead_millis: i64,
    /// Whether the objects of the trial could be removed.
    pub removed: Result<(), StoreError>,
}

impl Store {
    /// Tries the place with a few objects. The objects are removed again, also after [`TrialSize::time_max`].
    pub async fn try_out(&self, size: TrialSize) -> Result<Trial, StoreError> {
        let (mut keys, time_max) = (Vec::new(), size.time_max);
        let tried = tokio::time::timeout(time_max, self.tried(size, &mut keys)).await;
        let tried = tried.unwrap_or_else(|_| {
            let key = keys.last().cloned().unwrap_or_default();
            let source = "the trial of the store took too long".into();
            Err(StoreError::Unreachable {
                operation: Operation::Put,
                key,
                tries: 1,
                elapsed: time_max,
                source,
            })
        });
        let paths: Vec<Path> = keys.iter().map(|key| self.path(key).0).collect();
        let removed = self.delete_at(paths).await;
        tried.map(|trial| Trial { removed, ..trial })
    }

    /// The trial, which adds the keys of all objects to `keys`.
    async fn tried(&self, size: TrialSize, keys: &mut Vec<String>) -> Result<Trial, StoreError> {
        // A key that no listing of glidefs takes for an object of a store.
        let begin = format!("{PREFIX}{}", PackId::random(self.entropy()));
        let mut new_key = |name: &str| {
            let key = format!("{begin}-{name}.tmp");
            keys.push(key.clone());
            key
        };
        let alone = new_key("alone");
        let missing = match self.find(&alone).await {
            Err(error) if error.is_transient() => return Err(error),
            Err(error) if error.is_missing() => None,
            found => Some(
                found.map_or_else(|error| chain(&error), |_| "an object was there before it was made".into()),
            ),
        };
        let before = unix_millis();
        let begun = Instant::now();
        let (_created, _) = self.try_put(&alone, &[Bytes::from_static(b"first")]).await?;
        let put = begun.elapsed();
        let found = self.find(&alone).await?;
        let clock_ahead_millis = ahead(found.last_modified.timestamp_millis(), before, unix_millis());
        let (second, _) = self.try_put(&alone, &[Bytes::from_static(b"second")]).await?;
        let mut reads = [Duration::ZERO; READS];
        let mut whole = Bytes::new();
        for time in &mut reads {
            let begun = Instant::now();
            whole = self.read(&alone, None, 64).await?;
            *time = begun.elapsed();
        }
        reads.sort_unstable();
        let ranges = match self.read(&alone, Some(1..4), 3).await {
            Ok(part) => {
                (whole.get(1..4) != Some(&part[..])).then(|| "other bytes than those asked for".into())
            }
            Err(error) => Some(chain(&error)),
        };
        let mut winners = 0;
        for number in 0..RACES {
            winners = winners.max(self.race(&new_key(&format!("race{number}"))).await?);
        }
        let listed: Vec<String> =
            (0..size.listed).map(|number| new_key(&format!("list{number:04}"))).collect();
        let made =
            listed.iter().map(|key| async move { self.try_put(key, &[Bytes::from_static(b"x")]).await });
        stream::iter(made).buffer_unordered(AT_ONCE.into()).try_for_each(|_| async { Ok(()) }).await?;
        let listing = self.lacks(&listed).await;
        let transfer = match size.body_bytes {
            0 => None,
            bytes => Some(self.transfer(&new_key("long"), bytes).await?),
        };
        Ok(Trial {
            replaces: second == Created::Created,
            winners,
            missing,
            ranges,
            listing,
            keeps_versions: found.version.is_some_and(|version| version != "null"),
            put,
            get: reads[READS / 2],
            transfer,
            clock_ahead_millis,
            removed: Ok(()),
        })
    }

    /// What a listing lacks of `made`, whose keys ascend; `None` when nothing.
    async fn lacks(&self, made: &[String]) -> Option<String> {
        let listed = match self.top(PLACE).await {
            Ok(listed) => listed.objects,
            Err(error) => return Some(chain(&error)),
        };
        let mut found: Vec<Path> = listed.into_iter().map(|meta| meta.location).collect();
        let is_in_order = found.is_sorted() || !self.inner.backend.lists_in_order;
        found.sort_unstable();
        let had = made.iter().filter(|key| found.binary_search(&self.path(*key).0).is_ok()).count();
        if had < made.len() {
            return Some(format!("it had {had} of {} objects", made.len()));
        }
        (!is_in_order).then(|| "it was not in the order of the keys".into())
    }

    /// The times of a creation and of a read of an object of `bytes` that cannot be made shorter.
    async fn transfer(&self, key: &str, bytes: usize) -> Result<(Duration, Duration), StoreError> {
        let mut body = vec![0; bytes];
        blake3::Hasher::new().update(key.as_bytes()).finalize_xof().fill(&mut body);
        let begun = Instant::now();
        let (_created, _) = self.try_put(&key, &[body.into()]).await?;
        let put = begun.elapsed();
        let begun = Instant::now();
        self.read(&key, None, bytes as u64).await?;
        Ok((put, begun.elapsed()))
    }

    /// The number of creators of one object, all at once, that the place told of a success.
    async fn race(&self, key: &str) -> Result<usize, StoreError> {
        let creations = (0..AT_ONCE).map(|number| async move {
            let bytes = Bytes::from(vec![number; 16]);
            self.try_put(&key, &[bytes]).await
        });
        let mut winners = 0;
        for answer in join_all(creations).await {
            winners += usize::from(answer?.0 == Created::Created);
        }
        Ok(winners)
    }
}

fn unix_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// By how much `created` lies outside of the time from `before` to `after`.
fn ahead(created: i64, before: i64, after: i64) -> i64 {
    let earliest = before.saturating_sub(TIME_STEP_MILLIS);
    created.saturating_sub(after).max(0).saturating_add(created.saturating_sub(earliest).min(0))
}

#[cfg(test)]
mod tests;
