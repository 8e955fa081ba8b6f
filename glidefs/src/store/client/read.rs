//! Reads of objects: whole, a range, or length and age.
//!
//! Owns the checks of lengths, and when a GET of a reader gets a second request. Does not own the check of the content.
//! Invariant: the bytes of an answer are all bytes that were asked for.

use std::fmt::Display;
use std::ops::Range;

use bytes::Bytes;
use object_store::{GetOptions, GetRange, ObjectMeta};

use super::{ObjectInfo, Store, failure, info};
use crate::store::classify::{Verdict, classify};
use crate::store::error::StoreError;
use crate::store::format::FormatError;
use crate::store::hedge;
use crate::store::key::Key;
use crate::store::retry::Failure;
use crate::store::stats::Operation;
use crate::store::transfer;

impl Store {
    /// A whole object of at most `bytes_max`.
    pub async fn get(&self, key: &Key, bytes_max: u64) -> Result<Bytes, StoreError> {
        self.read(key, None, bytes_max).await
    }

    /// All bytes of `range` of an object.
    pub async fn get_range(&self, key: &Key, range: Range<u64>) -> Result<Bytes, StoreError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let bytes = range.end - range.start;
        self.read(key, Some(range), bytes).await
    }

    pub(super) async fn read(
        &self,
        key: &impl Display,
        range: Option<Range<u64>>,
        bytes_max: u64,
    ) -> Result<Bytes, StoreError> {
        let (path, text) = self.path(key);
        let tries = self.tries(Operation::Get, &text);
        let once = || async {
            let options = GetOptions { range: range.clone().map(GetRange::Bounded), ..GetOptions::default() };
            let result = self.objects().await?.get_opts(&path, options).await;
            let result = result.map_err(|error| match classify(&error) {
                Verdict::TooShort => too_short(&text, 0, bytes_max),
                _ => failure(Operation::Get, &text, error),
            })?;
            transfer::moved();
            let found = result.range.end.saturating_sub(result.range.start);
            let fits = range.as_ref().map_or(found <= bytes_max, |range| result.range == *range);
            if !fits {
                return Err(too_short(&text, found, bytes_max));
            }
            let bytes = result.bytes().await.map_err(|error| failure(Operation::Get, &text, error))?;
            if bytes.len() as u64 != found {
                let cut = format!("the answer ended after {} of {found} bytes", bytes.len());
                return Err(Failure::Again(cut.into(), None));
            }
            Ok(bytes)
        };
        // The future may hold two requests, and every future of a reader contains this one: the box keeps these futures small.
        let (bytes, _) = tries.run(|| Box::pin(self.hedged(bytes_max, once))).await?;
        self.stats().of(Operation::Get).bytes.add(bytes.len() as u64);
        Ok(bytes)
    }

    /// One try of a GET of up to `bytes_max`. `once` sends a request. A reader's GET may become two requests.
    async fn hedged<F>(&self, bytes_max: u64, once: impl Fn() -> F) -> Result<Bytes, Failure>
    where
        F: Future<Output = Result<Bytes, Failure>>,
    {
        let hedge = &self.inner.hedge;
        let watch = hedge.begin(self.inner.options.retry.idle_time_max);
        let late = self.reader.and_then(|_| hedge.late_after(bytes_max));
        let second = || {
            // The turns bound the memory of second answers, as they do for first ones.
            let turn = self.inner.turns.try_take(self.reader?.volume, 1)?;
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

    /// Length and age of an object. Reads its first byte: a HEAD has an answer without a body, in which "missing" may also come from
    /// a proxy whose store is away.
    pub async fn head(&self, key: &Key) -> Result<ObjectInfo, StoreError> {
        Ok(info(key.clone(), &self.find(key).await?))
    }

    /// As [`Self::head`], for any key.
    pub(super) async fn find(&self, key: &impl Display) -> Result<ObjectMeta, StoreError> {
        let (path, text) = self.path(key);
        let attempt = || async {
            let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
            let found = self.objects().await?.get_opts(&path, options).await;
            let found = found.map_err(|error| match classify(&error) {
                Verdict::TooShort => too_short(&text, 0, 1),
                _ => failure(Operation::Head, &text, error),
            })?;
            let meta = found.meta.clone();
            // A connection with an unread body is not used again.
            found.bytes().await.map_err(|error| failure(Operation::Head, &text, error))?;
            Ok(meta)
        };
        let (meta, _) = self.tries(Operation::Head, &text).run(attempt).await?;
        Ok(meta)
    }
}

/// The failure of a read of `needed` bytes of an object that has only `found` there.
fn too_short(key: &str, found: u64, needed: u64) -> Failure {
    let source = FormatError::Length { found, needed };
    Failure::Final(StoreError::Damaged { key: key.into(), source })
}
