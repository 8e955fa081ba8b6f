//! Requests to a [`ScriptedStore`].
//!
//! Owns the effect of each fault on each request. Does not own the script. Invariant: after the end no request changes an object.

use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::{Fate, ScriptedStore, ended, lock};
use crate::store::clock::StoreClock;
use crate::store::faulty::cut;

#[async_trait]
impl ObjectStore for ScriptedStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> Result<PutResult> {
        if self.replaces.load(SeqCst) {
            opts.mode = PutMode::Overwrite;
        }
        // A manifest that is made again differs in the time of creation.
        self.clock.advance(Duration::from_millis(1));
        let fate = self.fate();
        let failure = self.failure(location);
        if fate == Fate::NotArriving || failure == Some(false) {
            return Err(ended());
        }
        if fate == Fate::Answered && failure.is_none() && self.is_late(location) {
            lock(&self.late).push((location.clone(), payload, opts));
            return Err(cut());
        }
        let pauses = lock(&self.pause).take_if(|text| location.as_ref().contains(*text)).is_some();
        if pauses {
            self.paused.notify_one();
            self.resumed.notified().await;
        }
        self.pass(payload.content_length() as u64).await;
        let result = self.inner.put_opts(location, payload, opts).await?;
        lock(&self.created_millis).insert(location.clone(), self.clock.unix_millis());
        if fate == Fate::Answered && failure.is_none() { Ok(result) } else { Err(ended()) }
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(ended())
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if self.fate() != Fate::Answered {
            return Err(ended());
        }
        if lock(&self.archived).as_ref().is_some_and(|text| location.as_ref().contains(text)) {
            let source = "<Code>InvalidObjectState</Code>".into();
            return Err(Error::PermissionDenied { path: location.to_string(), source });
        }
        let next = lock(&self.next_read_millis).pop_front();
        let millis = next.unwrap_or_else(|| self.read_millis.load(SeqCst));
        if millis > 0 {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
        let result = self.inner.get_opts(location, options).await?;
        Ok(GetResult { meta: self.dated(result.meta.clone()), ..result })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if self.fate() != Fate::Answered {
            return Err(ended());
        }
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        match self.fate() {
            Fate::Answered => self.inner.delete_stream(locations),
            Fate::NotArriving => stream::iter([Err(ended())]).boxed(),
            Fate::NotAnswered => {
                let deleted = self.inner.delete_stream(locations).collect::<Vec<_>>();
                deleted.map(|_| stream::iter([Err(ended())])).flatten_stream().boxed()
            }
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(prefix, self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(prefix, self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        if self.fate() != Fate::Answered {
            return Err(ended());
        }
        let mut found = self.inner.list_with_delimiter(prefix).await?;
        if let Some(young) = lock(&self.young).take() {
            found.common_prefixes.retain(|prefix| !prefix.as_ref().contains(&young));
        }
        Ok(found)
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(ended())
    }
}
