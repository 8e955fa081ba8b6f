//! A store that is opened in one step, for tests and benches.
//!
//! Owns nothing. The daemon makes a store, and checks the place later.

use super::backend::Backend;
use super::client::{Store, StoreOptions};
use super::error::StoreError;
use super::format::Marker;
use super::objects::Access;

impl Store {
    /// Opens the store at `backend`, or makes one there.
    pub async fn open(
        backend: Backend,
        access: Access,
        options: StoreOptions,
    ) -> Result<(Self, Marker), StoreError> {
        let store = Self::over(backend, options);
        let marker = store.check(access).await?;
        Ok((store, marker))
    }
}
