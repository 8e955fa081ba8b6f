//! A trial of a place: whether creations keep their condition, how long requests take, which time the place has.
//!
//! Owns the objects of a trial, which have keys of no other kind and are removed at the end, also of a trial that fails. Does not own
//! the judgement (`doctor`). Invariant: no other object is touched, so a place that is no store yet, or is in use, may be tried.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::future::join_all;
use object_store::path::Path;
use tokio::time::Instant;

use super::{Created, Store};
use crate::store::error::StoreError;
use crate::store::ids::PackId;
use crate::store::stats::Operation;

/// Creators of one object at once.
const RACERS: u8 = 16;
/// Objects that creators race for. A server that breaks the condition in a race does so in most races.
const RACES: usize = 3;
/// Reads of an object; the median counts.
const READS: usize = 5;
/// Objects keep the time of their creation in whole seconds.
const TIME_STEP_MILLIS: i64 = 1000;

/// The behaviour of a place.
#[derive(Debug)]
pub struct Trial {
    /// Whether an object was replaced that was to be created only if absent.
    pub replaces: bool,
    /// Most creators of one object that were told of a success, of many at once. One, where creations keep their condition.
    pub winners: usize,
    /// Time of a creation of a small object.
    pub put: Duration,
    /// Median time of a read of a small object.
    pub get: Duration,
    /// By how much the clock of the place is ahead of the clock of this host for sure, milliseconds; negative behind.
    pub clock_ahead_millis: i64,
    /// Whether the objects of the trial could be removed.
    pub removed: Result<(), StoreError>,
}

impl Store {
    /// Tries the place with a few objects, for no longer than `time_max`. The objects are removed again, also after that time.
    pub async fn try_out(&self, time_max: Duration) -> Result<Trial, StoreError> {
        let mut keys = Vec::new();
        let tried = tokio::time::timeout(time_max, self.tried(&mut keys)).await;
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
    async fn tried(&self, keys: &mut Vec<String>) -> Result<Trial, StoreError> {
        let mut new_key = || {
            // A key that no listing of glidefs takes for an object of a store.
            let key = format!("glidefs-doctor-{}.tmp", PackId::random(self.entropy()));
            keys.push(key.clone());
            key
        };
        let alone = new_key();
        let before = unix_millis();
        let begun = Instant::now();
        // The key is random, so the object is new.
        let (_created, _) = self.try_put(&alone, &[Bytes::from_static(b"first")]).await?;
        let put = begun.elapsed();
        let created_millis = self.created_millis(&alone).await?;
        let clock_ahead_millis = ahead(created_millis, before, unix_millis());
        let (second, _) = self.try_put(&alone, &[Bytes::from_static(b"second")]).await?;
        let mut reads = [Duration::ZERO; READS];
        for time in &mut reads {
            let begun = Instant::now();
            self.read(&alone, None, 64).await?;
            *time = begun.elapsed();
        }
        reads.sort_unstable();
        let mut winners = 0;
        for _ in 0..RACES {
            winners = winners.max(self.race(&new_key()).await?);
        }
        Ok(Trial {
            replaces: second == Created::Created,
            winners,
            put,
            get: reads[READS / 2],
            clock_ahead_millis,
            removed: Ok(()),
        })
    }

    /// The number of creators of one object, all at once, that the place told of a success.
    async fn race(&self, key: &str) -> Result<usize, StoreError> {
        let creations = (0..RACERS).map(|number| async move {
            let bytes = Bytes::from(vec![number; 16]);
            self.try_put(&key, &[bytes]).await
        });
        let mut winners = 0;
        for answer in join_all(creations).await {
            winners += usize::from(answer?.0 == Created::Created);
        }
        Ok(winners)
    }

    /// The time at which the place created an object, by the clock of the place.
    async fn created_millis(&self, key: &str) -> Result<i64, StoreError> {
        Ok(self.find(&key).await?.last_modified.timestamp_millis())
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
