//! Trials of places that keep the condition of a creation, and of places that break the condition.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tempfile::TempDir;

use super::*;
use crate::store::{Access, Backend, StoreOptions, StoreUrl};

const SIZE: TrialSize = TrialSize::BRIEF;

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
    /// Refuses to tell of a missing object.
    Denies,
    /// Refuses to list.
    ListsNothing,
    /// Leaves an object out of listings.
    ListsShort,
    /// Lists backwards.
    ListsBackwards,
    /// Begins parts of objects a byte later.
    Shifts,
    /// Keeps versions.
    Versions,
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
    Error::PermissionDenied { path: path.into(), source: "<Code>AccessDenied</Code>".into() }
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
            _ => {}
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
        if self.1 == Break::Shifts && options.range == Some(GetRange::Bounded(1..4)) {
            let found = self
                .0
                .get_opts(location, GetOptions { range: Some(GetRange::Bounded(2..5)), ..options })
                .await?;
            return Ok(GetResult { range: 1..4, ..found });
        }
        let mut found = self.0.get_opts(location, options).await;
        match (self.1, &mut found) {
            (Break::Denies, Err(Error::NotFound { path, .. })) => {
                return Err(denied(path));
            }
            (Break::Versions, Ok(found)) => found.meta.version = Some("3sL4kqtJlcpXroDTDmJ".into()),
            _ => {}
        }
        found
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
        let mut listed = self.0.list_with_delimiter(prefix).await?;
        match self.1 {
            Break::ListsNothing => return Err(denied("glidefs-doctor")),
            Break::ListsShort => listed.objects.retain(|meta| !meta.location.as_ref().contains("list0002")),
            Break::ListsBackwards => listed.objects.reverse(),
            _ => {}
        }
        Ok(listed)
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
        let trial = store.try_out(SIZE).await.unwrap();
        assert!(!trial.replaces);
        assert_eq!((trial.winners, trial.clock_ahead_millis, trial.keeps_versions), (1, 0, false));
        assert_eq!(trial.transfer, None);
        assert_eq!([&trial.missing, &trial.ranges, &trial.listing], [&None; 3]);
        trial.removed.unwrap();
        assert_eq!(store.inner.backend.objects().await.unwrap().list(None).count().await, 0);
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_place_that_looks_first_and_creates_later_is_found_out_by_a_race_alone() {
    let (store, memory) = broken(Break::Races);
    let trial = store.try_out(SIZE).await.unwrap();
    assert!(!trial.replaces, "one after the other the condition is kept");
    assert!(trial.winners > 1, "{trial:?}");
    assert_eq!(memory.list(None).count().await, 0);
}

#[tokio::test]
async fn no_store_is_made_at_a_place_that_keeps_no_condition_in_a_race() {
    let (store, memory) = broken(Break::Races);
    let made = store.check(Access::ReadWrite).await;
    assert!(matches!(made, Err(StoreError::Replaces { .. })), "{made:?}");
    assert_eq!(memory.list(None).count().await, 0);
}

#[tokio::test]
async fn a_place_that_replaces_objects_is_found_out() {
    let (store, _) = broken(Break::Replaces);
    assert!(store.try_out(SIZE).await.unwrap().replaces);
}

#[tokio::test]
async fn credentials_that_may_not_create_or_remove_are_found_out() {
    let (store, _) = broken(Break::Refuses);
    assert!(matches!(store.try_out(SIZE).await.unwrap_err(), StoreError::Refused { .. }));
    let (store, memory) = broken(Break::Keeps);
    assert!(matches!(store.try_out(SIZE).await.unwrap().removed, Err(StoreError::Refused { .. })));
    assert!(memory.list(None).count().await > 0);
}

#[tokio::test]
async fn missing_objects_listings_ranges_and_versions_are_each_found_out_alone() {
    for (how, says) in [
        (Break::Denies, [Some("s3:ListBucket"), None, None]),
        (Break::ListsNothing, [None, None, Some("s3:ListBucket")]),
        (Break::ListsShort, [None, None, Some("it had 2 of 3 objects")]),
        (Break::ListsBackwards, [None, None, Some("not in the order")]),
        (Break::Shifts, [None, Some("other bytes"), None]),
        (Break::Versions, [None; 3]),
    ] {
        let (store, memory) = broken(how);
        let trial = store.try_out(SIZE).await.unwrap();
        for (found, says) in [&trial.missing, &trial.ranges, &trial.listing].into_iter().zip(says) {
            let is_as_expected = match (found, says) {
                (Some(found), Some(says)) => found.contains(says),
                (found, says) => found.is_none() && says.is_none(),
            };
            assert!(is_as_expected, "{how:?}: {trial:?}");
        }
        assert_eq!(trial.keeps_versions, how == Break::Versions);
        assert_eq!(memory.list(None).count().await, 0);
    }
}

#[tokio::test]
async fn a_whole_trial_lists_more_than_a_page_and_moves_a_long_object() {
    let memory = Arc::new(InMemory::new());
    let backend = Backend::over(Arc::clone(&memory) as _, true);
    let trial = Store::over(backend, StoreOptions::default()).try_out(TrialSize::WHOLE).await.unwrap();
    assert!(trial.transfer.is_some() && trial.listing.is_none(), "{trial:?}");
    assert_eq!(memory.list(None).count().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_takes_too_long_is_ended_and_leaves_nothing() {
    let (store, memory) = broken(Break::Hangs);
    let error = store.try_out(TrialSize { time_max: Duration::from_secs(1), ..SIZE }).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert_eq!(memory.list(None).count().await, 0);
}

#[test]
fn a_clock_counts_as_wrong_only_beyond_the_second_that_nobody_knows() {
    let ahead = |created| ahead(created, 100_000, 100_400);
    assert_eq!([99_000, 100_000, 100_400].map(ahead), [0; 3]);
    assert_eq!([98_000, 160_400].map(ahead), [-1000, 60_000]);
}
