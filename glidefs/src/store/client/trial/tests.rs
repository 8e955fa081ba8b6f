//! Trials of places that keep the condition of a creation, and of places that break the condition.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tempfile::TempDir;

use super::*;
use crate::store::{Backend, StoreOptions, StoreUrl};

/// Longer than any trial here takes.
const TIME_MAX: Duration = Duration::from_mins(1);

/// How a place breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    /// Looks for the object, and creates the object a moment later.
    Races,
    Replaces,
    /// Refuses to remove any object.
    Keeps,
    /// Refuses to create any object.
    Refuses,
    /// Creates an object and does not answer.
    Hangs,
}

/// A place in memory that breaks a rule.
#[derive(Debug)]
struct Broken(Arc<InMemory>, Break);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken")
    }
}

fn denied(path: &str) -> Error {
    Error::PermissionDenied { path: path.into(), source: "denied".into() }
}

#[async_trait]
impl ObjectStore for Broken {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> Result<PutResult> {
        match self.1 {
            Break::Races => {
                if self.0.head(location).await.is_ok() {
                    return Err(Error::AlreadyExists { path: location.to_string(), source: "there".into() });
                }
                tokio::task::yield_now().await;
                opts.mode = PutMode::Overwrite;
            }
            Break::Replaces => opts.mode = PutMode::Overwrite,
            Break::Refuses => return Err(denied(location.as_ref())),
            Break::Keeps | Break::Hangs => {}
        }
        let created = self.0.put_opts(location, payload, opts).await;
        if self.1 == Break::Hangs {
            std::future::pending::<()>().await;
        }
        created
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(denied(location.as_ref()))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        match self.1 {
            Break::Keeps => stream::iter([Err(denied("glidefs-doctor"))]).boxed(),
            _ => self.0.delete_stream(locations),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(denied(from.as_ref()))
    }
}

fn broken(how: Break) -> (Store, Arc<InMemory>) {
    let memory = Arc::new(InMemory::new());
    let backend = Backend::over(Arc::new(Broken(Arc::clone(&memory), how)), true);
    (Store::over(backend, StoreOptions::default()), memory)
}

#[tokio::test]
async fn a_place_that_keeps_the_condition_has_one_winner_and_is_left_as_it_was() {
    let directory = TempDir::new().unwrap();
    let url = StoreUrl::File(directory.path().into());
    for url in [url, StoreUrl::Memory] {
        let backend = Backend::connect(&url, &Vec::new(), false).unwrap();
        let store = Store::over(backend, StoreOptions::default());
        let trial = store.try_out(TIME_MAX).await.unwrap();
        assert!(!trial.replaces);
        assert_eq!((trial.winners, trial.clock_ahead_millis), (1, 0));
        trial.removed.unwrap();
        assert_eq!(store.inner.backend.objects().await.unwrap().list(None).count().await, 0);
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_place_that_looks_first_and_creates_later_is_found_out_by_a_race_alone() {
    let (store, memory) = broken(Break::Races);
    let trial = store.try_out(TIME_MAX).await.unwrap();
    assert!(!trial.replaces, "one after the other the condition is kept");
    assert!(trial.winners > 1, "{trial:?}");
    assert_eq!(memory.list(None).count().await, 0);
}

#[tokio::test]
async fn a_place_that_replaces_objects_is_found_out() {
    let (store, _) = broken(Break::Replaces);
    assert!(store.try_out(TIME_MAX).await.unwrap().replaces);
}

#[tokio::test]
async fn credentials_that_may_not_create_or_remove_are_found_out() {
    let (store, _) = broken(Break::Refuses);
    assert!(matches!(store.try_out(TIME_MAX).await.unwrap_err(), StoreError::Refused { .. }));
    let (store, memory) = broken(Break::Keeps);
    assert!(matches!(store.try_out(TIME_MAX).await.unwrap().removed, Err(StoreError::Refused { .. })));
    assert!(memory.list(None).count().await > 0);
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_takes_too_long_is_ended_and_leaves_nothing() {
    let (store, memory) = broken(Break::Hangs);
    let error = store.try_out(Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert_eq!(memory.list(None).count().await, 0);
}

#[test]
fn a_clock_counts_as_wrong_only_beyond_the_second_that_nobody_knows() {
    let ahead = |created| ahead(created, 100_000, 100_400);
    assert_eq!([99_000, 100_000, 100_400].map(ahead), [0; 3]);
    assert_eq!([98_000, 160_400].map(ahead), [-1000, 60_000]);
}
