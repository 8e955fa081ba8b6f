//! Packs in use that are not in the store.
//!
//! Owns the look for such packs. Does not own which packs are in use.

use futures_util::{StreamExt, TryStreamExt, stream};

use super::in_use::{AT_ONCE, InUse, ListedVolume};
use crate::store::client::Store;
use crate::store::error::StoreError;
use crate::store::key::Key;

/// Number of missing packs named by a run.
const MISSING_MAX: usize = 100;

/// Packs that `in_use` has as content, and that are not in the store, up to [`MISSING_MAX`]; and how many packs were not looked for
/// then. `volumes`: an earlier listing.
pub(super) async fn missing(
    store: &Store,
    volumes: &[ListedVolume],
    in_use: &InUse,
) -> Result<(Vec<Key>, u64), StoreError> {
    let listed = volumes.iter().flat_map(|volume| &volume.packs).map(|pack| pack.id).collect();
    // The pack, or the volume of the pack, may be younger than the listing.
    let keys = in_use.not_among(&listed);
    let mut not_looked_for = keys.len() as u64;
    let looks = stream::iter(keys).map(|key| {
        let store = store.clone();
        async move {
            match store.head(&key).await {
                Ok(_) => Ok(None),
                Err(error) if error.is_missing() => Ok(Some(key)),
                Err(error) => Err(error),
            }
        }
    });
    let mut looks = looks.buffer_unordered(AT_ONCE);
    let mut missing = Vec::new();
    while missing.len() < MISSING_MAX
        && let Some(found) = looks.try_next().await?
    {
        not_looked_for = not_looked_for.saturating_sub(1);
        missing.extend(found);
    }
    Ok((missing, not_looked_for))
}
