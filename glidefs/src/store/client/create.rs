//! Creations of objects, if absent.
//!
//! Owns the question whether a creation without an answer was this caller's. Invariants: no creation replaces an object; an
//! object exists only if a request has found it.
//!
//! One PUT carries an object, however long: `object_store` passes the condition "only if absent" with a single PUT, not with an
//! upload in parts. A store takes up to 5 GiB in one PUT, more than the longest pack.

use std::error::Error;
use std::fmt::Display;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use object_store::{PutMode, PutOptions, PutPayload};
use tokio::time::Instant;

use super::{Created, Store, failure};
use crate::store::classify::{Verdict, classify};
use crate::store::error::StoreError;
use crate::store::key::Key;
use crate::store::retry::Tries;
use crate::store::stats::Operation;

/// How often an object that this caller may have created is read and compared.
const COMPARISONS_MAX: usize = 2;

impl Store {
    /// Creates an object of `parts` unless an object of the key is there.
    ///
    /// A try whose answer was lost may have created the object. So when a later try finds an object, that object is read and
    /// compared; equal bytes mean that this caller created the object. After an error with [`StoreError::is_transient`] the
    /// object may be there.
    pub async fn create(&self, key: &Key, parts: &[Bytes]) -> Result<Created, StoreError> {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let (created, tries) = self.try_put(key, parts).await?;
        if created == Created::Existed {
            let is_own = tries > 1
                && match self.insist(StoreError::is_missing, || self.holds(key, parts, bytes)).await {
                    // It was there when this creation was refused, and is deleted now.
                    Err(error) if error.is_missing() => false,
                    answer => answer?,
                };
            if !is_own {
                return Ok(Created::Existed);
            }
        }
        self.stats().of(Operation::Put).bytes.add(bytes);
        Ok(Created::Created)
    }

    /// The answer to a creation, and the number of tries. Stores also answer "exists" or "conflict" to a creation that they did
    /// not carry out for a passing reason, so an object counts as there only when it is found; otherwise the creation is tried
    /// again.
    pub(in crate::store) async fn try_put(
        &self,
        key: &impl Display,
        parts: &[Bytes],
    ) -> Result<(Created, u32), StoreError> {
        let (path, text) = self.path(key);
        let payload: PutPayload = parts.iter().cloned().collect();
        let (uplink, bytes) = (&self.inner.uplink, payload.content_length() as u64);
        let attempt = || async {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let begun = Instant::now();
            let answer = self.objects().await?.put_opts(&path, payload.clone(), options).await;
            uplink.ended(bytes, begun.elapsed(), answer.is_ok());
            match answer {
                Ok(_) => Ok(Created::Created),
                Err(error) if classify(&error) == Verdict::Exists => {
                    tracing::debug!(key = text, error = &error as &dyn Error, "a creation is refused");
                    Ok(Created::Existed)
                }
                Err(error) => Err(failure(Operation::Put, &text, error)),
            }
        };
        let (begun, count) = (Instant::now(), AtomicU32::new(0));
        let look = || async {
            let turns = self.uploader.map(|uploader| (uplink.turns(bytes), uploader, bytes));
            let tries = Tries { turns, ..self.tries(Operation::Put, &text) };
            let (created, more) = tries.run(attempt).await?;
            count.fetch_add(more, Relaxed);
            match created {
                Created::Created => Ok(created),
                // An empty object is there as well.
                Created::Existed => match self.find(key).await {
                    Ok(_) | Err(StoreError::Damaged { .. }) => Ok(created),
                    Err(error) => Err(error),
                },
            }
        };
        let created = self.insist(StoreError::is_missing, look).await;
        let tries = count.load(Relaxed);
        match created {
            Ok(created) => Ok((created, tries)),
            Err(StoreError::Missing { key }) => {
                let source = "the store refuses to create it, and does not have it: look at its log, at the policies of the \
                              bucket, and at proxies before the store";
                let (operation, source) = (Operation::Put, source.into());
                Err(StoreError::Unreachable { operation, key, tries, elapsed: begun.elapsed(), source })
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the object is exactly `parts`. An object that differs is read once more, since bytes also change on their way.
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
}

/// Whether `whole` is `parts`, one behind the other.
fn is_concat(whole: &[u8], parts: &[Bytes]) -> bool {
    let rest = parts.iter().try_fold(whole, |rest, part| rest.strip_prefix(&part[..]));
    rest.is_some_and(<[u8]>::is_empty)
}
