//! A place that cannot be set up yet: the file system is not mounted, or the files with credentials cannot be read.
//!
//! Owns when the setup is tried. Does not own the setup (`backend`). Invariant: until the place is set up, every request fails as
//! if the place were away.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::OnceCell;

use super::backend::Backend;
use super::url::StoreUrl;
use super::variables::Variables;

/// A place that the first successful setup makes usable. Every request tries the setup until then.
#[derive(Clone, Debug)]
pub(super) struct Later {
    url: StoreUrl,
    variables: Variables,
    place: Arc<OnceCell<Arc<dyn ObjectStore>>>,
}

impl fmt::Display for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url)
    }
}

impl Later {
    pub fn new(url: &StoreUrl, variables: &Variables) -> Self {
        Self { url: url.clone(), variables: variables.clone(), place: Arc::default() }
    }

    async fn place(&self) -> Result<&Arc<dyn ObjectStore>> {
        let connect = || async {
            let (url, variables) = (self.url.clone(), self.variables.clone());
            let connected = tokio::task::spawn_blocking(move || Backend::connect(&url, &variables, false));
            let connected = connected.await.map_err(|error| away(&error))?;
            connected.map(|backend| backend.objects).map_err(|error| away(&error))
        };
        self.place.get_or_try_init(connect).await
    }
}

fn away(error: &(dyn std::error::Error + 'static)) -> Error {
    let reason = crate::observe::chain(error);
    Error::Generic { store: "a place that is not set up yet", source: Box::new(io::Error::other(reason)) }
}

#[async_trait]
impl ObjectStore for Later {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.place().await?.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.place().await?.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.place().await?.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.place().await?.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let deleted = async move { this.place().await.map(|place| place.delete_stream(locations)) };
        stream::once(deleted).try_flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        let listing = async move { this.place().await.map(|place| place.list(prefix.as_ref())) };
        stream::once(listing).try_flatten().boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix, offset) = (self.clone(), prefix.cloned(), offset.clone());
        let listing =
            async move { this.place().await.map(|place| place.list_with_offset(prefix.as_ref(), &offset)) };
        stream::once(listing).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.place().await?.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.place().await?.copy_opts(from, to, options).await
    }
}
