//! Listings and deletions.
//!
//! Owns the progress of a listing or a deletion over several tries. Invariant: a listing ascends by key, and has every object
//! that was there all the time.

use std::sync::Mutex;

use futures_util::StreamExt;
use object_store::ListResult;
use object_store::path::Path;

use super::trial;
use super::{ObjectInfo, PLACE, Store, VOLUMES, failure, info};
use crate::locks::MutexExt;
use crate::store::classify::{Verdict, classify};
use crate::store::error::StoreError;
use crate::store::ids::VolumeId;
use crate::store::key::{Folder, Key};
use crate::store::retry::Failure;
use crate::store::stats::Operation;
use crate::store::transfer;

/// Most keys that are deleted within one time budget: 20 requests are under way at once.
const DELETE_KEYS_MAX: usize = 200;
/// Most objects of a listing: more than a store has that garbage collection looks after.
pub(super) const OBJECTS_MAX: usize = 1 << 24;
/// What may be in a place without a marker, which another daemon may be making: the folders of a store, whose volumes are looked for apart,
/// and that of a file system's check.
const OF_PLACE: [&str; 6] = [VOLUMES, "names", "deleted", "gone", "gc", "lost+found"];

impl Store {
    /// The objects of glidefs in `folder` with keys behind `after`, by ascending key.
    pub async fn list(&self, folder: Folder, after: Option<&Key>) -> Result<Vec<ObjectInfo>, StoreError> {
        self.list_first(folder, after, usize::MAX).await
    }

    /// As [`Self::list`], but only the first `count_max` objects; all of them where the store does not list in order.
    pub(in crate::store) async fn list_first(
        &self,
        folder: Folder,
        after: Option<&Key>,
        count_max: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let count_max = if self.inner.backend.lists_in_order { count_max } else { usize::MAX };
        let (prefix, text) = self.path(&folder);
        let begin = after.map(|key| self.path(key).0);
        // Objects that were listed before a try failed are kept, if the store lists in order: the next try goes on behind the last one.
        let listed: Mutex<(Vec<ObjectInfo>, Option<Path>)> = Mutex::default();
        let listed = || listed.lock_whole();
        let attempt = || async {
            let objects = self.objects().await?;
            if !self.inner.backend.lists_in_order {
                *listed() = Default::default();
            }
            let after = listed().1.clone().or_else(|| begin.clone());
            let prefix = (!prefix.as_ref().is_empty()).then_some(&prefix);
            let mut stream = match &after {
                Some(after) => objects.list_with_offset(prefix, after),
                None => objects.list(prefix),
            };
            while listed().0.len() < count_max
                && let Some(meta) = stream.next().await
            {
                transfer::moved();
                let meta = meta.map_err(|error| failure(Operation::List, &text, error))?;
                let (objects, last) = &mut *listed();
                match self.key_at(&meta.location) {
                    Some(_) if objects.len() >= self.inner.options.listed_max => {
                        return Err(Failure::Final(too_many(&text, objects.len())));
                    }
                    Some(key) => objects.push(info(key, &meta)),
                    None => {}
                }
                *last = Some(meta.location);
            }
            Ok(())
        };
        self.tries(Operation::List, &text).run(attempt).await?;
        let (mut objects, _) = std::mem::take(&mut *listed());
        objects.sort_by_cached_key(|object| object.key.to_string());
        Ok(objects)
    }

    /// The objects and folders directly in `folder`.
    pub(super) async fn top(&self, folder: &str) -> Result<ListResult, StoreError> {
        let (prefix, text) = self.path(&folder);
        let tries = self.tries(Operation::List, &text);
        let attempt = || async {
            let found = self.objects().await?.list_with_delimiter(Some(&prefix)).await;
            found.map_err(|error| failure(Operation::List, &text, error))
        };
        Ok(tries.run(attempt).await?.0)
    }

    /// Something in the place that is neither of a store nor of the file system, nor hidden.
    pub async fn foreign(&self) -> Result<Option<String>, StoreError> {
        let found = self.top(PLACE).await?;
        let objects = found.objects.iter().map(|object| &object.location);
        let mut names = objects.chain(&found.common_prefixes).filter_map(Path::filename);
        let is_foreign = |name: &&str| {
            !name.starts_with(trial::PREFIX)
                && !name.starts_with('.')
                && !OF_PLACE.contains(name)
                && Key::Marker.to_string() != **name
        };
        Ok(names.find(is_foreign).map(Into::into))
    }

    /// The volumes with at least one object.
    pub async fn volumes(&self) -> Result<Vec<VolumeId>, StoreError> {
        let found = self.top(VOLUMES).await?;
        let id = |path: &Path| path.filename().and_then(|name| name.parse().ok());
        let mut volumes: Vec<VolumeId> = found.common_prefixes.iter().filter_map(id).collect();
        volumes.sort_unstable();
        Ok(volumes)
    }

    /// Deletes objects. Missing objects count as deleted. After an error any of the objects may be gone.
    pub async fn delete(&self, keys: &[Key]) -> Result<(), StoreError> {
        self.delete_at(keys.iter().map(|key| self.path(key).0).collect()).await
    }

    /// As [`Self::delete`], for objects at `paths`.
    pub(super) async fn delete_at(&self, paths: Vec<Path>) -> Result<(), StoreError> {
        for paths in paths.chunks(DELETE_KEYS_MAX) {
            let text = match paths {
                [] => return Ok(()),
                [one] => one.to_string(),
                [first, ..] => format!("{first} and {} others", paths.len() - 1),
            };
            // Objects that were deleted before a try failed, or took too long, are not deleted again.
            let left = Mutex::new(paths.to_vec());
            let attempt = || async {
                let paths = left.lock_whole().clone();
                let paths = futures_util::stream::iter(paths.into_iter().map(Ok)).boxed();
                let mut deleted = self.objects().await?.delete_stream(paths);
                let mut failed = None;
                while let Some(answer) = deleted.next().await {
                    transfer::moved();
                    match answer {
                        Ok(path) => left.lock_whole().retain(|left| *left != path),
                        Err(error) if classify(&error) != Verdict::Missing => failed = Some(error),
                        Err(_) => {}
                    }
                }
                failed.map_or(Ok(()), |error| Err(failure(Operation::Delete, &text, error)))
            };
            self.tries(Operation::Delete, &text).run(attempt).await?;
        }
        Ok(())
    }
}

/// The error for a listing of `key` that goes on behind so many objects.
fn too_many(key: &str, objects: usize) -> StoreError {
    let source = format!(
        "it has more than {objects} objects, which no store of glidefs has: delete there what none of your hosts wrote, and nothing else"
    );
    StoreError::Rejected { operation: Operation::List, key: key.to_owned(), source: source.into() }
}
