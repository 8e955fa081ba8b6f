//! Creations of objects, if absent.
//!
//! Owns the question whether a creation without an answer was this caller's. Invariant: no creation replaces an object.
//!
//! One PUT carries an object, however long: `object_store` passes the condition "only if absent" with a single PUT, not with an
//! upload in parts. A store takes up to 5 GiB in one PUT, more than the longest pack.

use std::fmt::Display;

use bytes::Bytes;
use object_store::{PutMode, PutOptions, PutPayload};

use super::{Created, Store, failure};
use crate::store::classify::{Verdict, classify};
use crate::store::error::StoreError;
use crate::store::key::Key;
use crate::store::stats::Operation;

/// How often a creation begins anew because the object in the way was deleted meanwhile.
const CREATE_ROUNDS_MAX: usize = 4;
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
        let mut in_doubt = false;
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

    /// The plain answer of the store to the creation of an object that is there. A store that honours the condition answers
    /// [`Created::Existed`]; any other store has replaced the object by the same bytes.
    pub(in crate::store) async fn create_what_exists(
        &self,
        key: &Key,
        bytes: &Bytes,
    ) -> Result<Created, StoreError> {
        Ok(self.try_put(key, std::slice::from_ref(bytes)).await?.0)
    }

    /// The answer to a creation, and the number of tries.
    pub(super) async fn try_put(
        &self,
        key: &impl Display,
        parts: &[Bytes],
    ) -> Result<(Created, u32), StoreError> {
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
