//! Places of a store for tests and benches.
//!
//! Owns nothing. The daemon connects to places by their URL.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;
use tokio::sync::OnceCell;

use super::Backend;

impl Backend {
    /// The same place with all requests passing through the store that `wrap` makes.
    #[must_use]
    pub fn through(self, wrap: impl FnOnce(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>) -> Self {
        Self { objects: OnceCell::new_with(self.objects.into_inner().map(wrap)), ..self }
    }

    /// A place in `objects`. `lists_in_order`: whether listings of `objects` ascend by key.
    pub fn over(objects: Arc<dyn ObjectStore>, lists_in_order: bool) -> Self {
        let location = objects.to_string();
        let (objects, prefix) = (objects.into(), Path::default());
        Self { objects, setup: None, prefix, lists_in_order, location, directory: None }
    }
}
