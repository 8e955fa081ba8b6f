//! Why the daemon could not start or had to end.

use std::io;

use crate::api::{ServeError, TokenError};
use crate::cache::CacheError;
use crate::router::CatalogError;
use crate::store::{BlockCacheError, StoreError};
use crate::worker::WorkerError;

/// Why the daemon could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The kernel cannot serve devices.
    #[error("this machine cannot serve block devices")]
    Devices(#[from] crate::router::DeviceError),
    /// The catalog could not be opened.
    #[error("the catalog of exports could not be opened")]
    Catalog(#[from] CatalogError),
    /// The cache could not be opened.
    #[error("the cache could not be opened")]
    Cache(#[from] CacheError),
    /// The file system of the cache takes no writes past the page cache.
    #[error(
        "cache.engine = \"direct\" does not work in {directory}, whose file system has no O_DIRECT: set \"buffered\""
    )]
    NoDirect {
        /// The directory of the cache.
        directory: String,
        #[source]
        source: io::Error,
    },
    /// The workers could not be started.
    #[error("the workers could not be started")]
    Workers(#[from] WorkerError),
    /// The store cannot be used.
    #[error("the store cannot be used")]
    Store(#[from] StoreError),
    /// Exports have data in a store that is not configured.
    #[error(
        "{exports} exports have data in a store, and [store] url is not set: set it to where their data is (nothing was changed)"
    )]
    NoStore { exports: usize },
    /// The block cache could not be opened.
    #[error("the block cache could not be opened: change clean_size in [cache]")]
    Clean(#[from] BlockCacheError),
    /// The API could not be served to all that should have it.
    #[error("the API could not be served")]
    Serve(#[from] ServeError),
    /// The token of the API could not be read.
    #[error("the token of the API could not be read")]
    Token(#[from] TokenError),
    /// The kernel starts neither the new program nor this one anew.
    #[error("the daemon has ended for an upgrade, and no program could be started in its place")]
    NotReplaced(#[source] io::Error),
    #[error("{what} failed")]
    System {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}
