//! Reaching the place that a store URL names.
//!
//! Owns how each kind of store is set up. Does not own requests. Invariant: the libraries below do not try again; this
//! folder's policy is the only one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path as FsPath, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};

use super::aws;
use super::classify::Connector;
use super::error::{BoxError, StoreError};
use super::later::Later;
use super::url::{Bucket, StoreUrl};

/// A place that can hold a store.
#[derive(Clone, Debug)]
pub struct Backend {
    pub(super) objects: Arc<dyn ObjectStore>,
    /// Beginning of every key.
    pub(super) prefix: Path,
    /// Whether listings ascend by key.
    pub(super) lists_in_order: bool,
    /// For messages.
    pub(super) location: String,
    /// Where it is, if that is in a file system.
    pub(super) directory: Option<Directory>,
}

/// A directory as it was when the store was found in it.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// The number of its device is not kept: many file systems get another one with each mount. `None`: the store was not found
    /// yet.
    inode: Arc<Mutex<Option<u64>>>,
}

impl Directory {
    fn new(path: &FsPath, inode: Option<u64>) -> Self {
        Self { path: path.into(), inode: Arc::new(Mutex::new(inode)) }
    }

    fn found(path: &FsPath) -> io::Result<u64> {
        let found = fs::metadata(path)?;
        if found.is_dir() { Ok(found.ino()) } else { Err(io::ErrorKind::NotADirectory.into()) }
    }

    fn inode(&self) -> MutexGuard<'_, Option<u64>> {
        self.inode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the directory has to be the one that is there now: the store is in it.
    pub fn keep(&self) -> io::Result<()> {
        let found = Self::found(&self.path)?;
        *self.inode() = Some(found);
        Ok(())
    }

    /// An error when another directory is in its place, or none: its file system was unmounted, or mounted over. `any`: whichever
    /// directory it is, the store is being looked for.
    pub fn check(&self, any: bool) -> io::Result<()> {
        let found = Self::found(&self.path)?;
        if any || self.inode().is_none_or(|inode| inode == found) {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{} is not the directory in which the store was found: mount its file system again, or restart the daemon",
            self.path.display()
        )))
    }
}

/// Environment variables, as far as they matter to a store: `AWS_…`, `GOOGLE_…`, `AZURE_…`, `HOME`.
pub type Variables = Vec<(String, String)>;

/// The variables of this process.
pub fn process_variables() -> Variables {
    std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

impl Backend {
    /// The place that `url` names, with credentials from `variables`. Sends no request. For `file:` the directory is made
    /// if it is missing and `make_directory` is set.
    pub fn connect(url: &StoreUrl, variables: &Variables, make_directory: bool) -> Result<Self, StoreError> {
        let location = url.to_string();
        let mut found = None;
        let (objects, prefix): (Arc<dyn ObjectStore>, &str) = match url {
            StoreUrl::Memory => (Arc::new(InMemory::new()), ""),
            StoreUrl::File(path) => {
                if make_directory {
                    fs::create_dir_all(path).map_err(|error| directory_error(&location, error))?;
                }
                let inode = Directory::found(path).map_err(|error| directory_error(&location, error))?;
                found = Some(Directory::new(path, Some(inode)));
                let directory = LocalFileSystem::new_with_prefix(path);
                let directory = directory
                    .map_err(|error| setup(&location, "it is not a directory", Some(Box::new(error))))?;
                // An object that was created survives a power cut, as it would in S3.
                (Arc::new(directory.with_fsync(true)), "")
            }
            StoreUrl::S3(bucket) => (s3(&location, bucket, variables)?, &bucket.prefix),
            StoreUrl::Gcs(bucket) => (gcs(&location, bucket, variables)?, &bucket.prefix),
            StoreUrl::Azure(bucket) => (azure(&location, bucket, variables)?, &bucket.prefix),
        };
        let prefix = Path::parse(prefix)
            .map_err(|error| setup(&location, "its prefix is no path", Some(Box::new(error))))?;
        let lists_in_order = !matches!(url, StoreUrl::File(_));
        Ok(Self { objects, prefix, lists_in_order, location, directory: found })
    }

    /// As [`Self::connect`], of a place that cannot be set up now: every request tries to, and fails until one can. A directory
    /// is not made.
    pub fn later(url: &StoreUrl, variables: &Variables) -> Result<Self, StoreError> {
        let location = url.to_string();
        let (prefix, directory) = match url {
            StoreUrl::Memory => ("", None),
            StoreUrl::File(path) => ("", Some(Directory::new(path, None))),
            StoreUrl::S3(bucket) | StoreUrl::Gcs(bucket) | StoreUrl::Azure(bucket) => (&*bucket.prefix, None),
        };
        let prefix = Path::parse(prefix)
            .map_err(|error| setup(&location, "its prefix is no path", Some(Box::new(error))))?;
        let lists_in_order = !matches!(url, StoreUrl::File(_));
        let objects = Arc::new(Later::new(url, variables));
        Ok(Self { objects, prefix, lists_in_order, location, directory })
    }

    /// `objects` as they are, for tests. `lists_in_order`: whether their listings ascend by key.
    pub fn over(objects: Arc<dyn ObjectStore>, lists_in_order: bool) -> Self {
        let location = objects.to_string();
        Self { objects, prefix: Path::default(), lists_in_order, location, directory: None }
    }
}

fn setup(location: &str, advice: impl Into<String>, source: Option<BoxError>) -> StoreError {
    StoreError::Setup { location: location.into(), advice: advice.into(), source }
}

fn directory_error(location: &str, error: io::Error) -> StoreError {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "the directory does not exist: create it, or correct store.url",
        io::ErrorKind::PermissionDenied => "run as the owner of the directory, or change its owner",
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "it is not a directory: correct store.url"
        }
        _ => "the directory cannot be opened or made",
    };
    setup(location, advice, Some(Box::new(error)))
}

/// No tries but ours. One of these requests may take long, but not for ever.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::from_mins(10), ..RetryConfig::default() }
}

/// Longest request as the HTTP client sees it; ours end before.
const REQUEST_TIME_MAX: &str = "3600 seconds";

fn s3(location: &str, bucket: &Bucket, variables: &Variables) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in variables.iter().filter(|(name, _)| name.starts_with("AWS_")) {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    builder = with_profile(builder, location, variables)?;
    let get = |key: &AmazonS3ConfigKey| builder.get_config_value(key);
    let plain = get(&AmazonS3ConfigKey::Endpoint).is_some_and(|endpoint| endpoint.starts_with("http://"));
    let allowed =
        get(&AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp)).is_some_and(|value| value == "true");
    if plain && !allowed {
        let advice = "the endpoint is not encrypted: use https://, or set AWS_ALLOW_HTTP=true";
        return Err(setup(location, advice, None));
    }
    let store = builder
        .with_bucket_name(&bucket.name)
        .with_retry(no_retries())
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIME_MAX)
        .with_http_connector(Connector)
        .build()
        .map_err(|error| {
            setup(location, "check the AWS_ variables of the environment", Some(Box::new(error)))
        })?;
    Ok(Arc::new(store))
}

/// Adds what the environment does not say and the files of AWS's tools do. Without either the metadata service is asked.
fn with_profile(
    mut builder: AmazonS3Builder,
    location: &str,
    variables: &Variables,
) -> Result<AmazonS3Builder, StoreError> {
    let files = aws::Files::of(variables);
    let profile = files.read().map_err(|error| {
        setup(location, "correct the files that hold AWS credentials and settings", Some(Box::new(error)))
    })?;
    let says = |key: AmazonS3ConfigKey| builder.get_config_value(&key).is_some();
    let (has_key, has_region, has_endpoint) = (
        says(AmazonS3ConfigKey::AccessKeyId),
        says(AmazonS3ConfigKey::Region) || says(AmazonS3ConfigKey::DefaultRegion),
        says(AmazonS3ConfigKey::Endpoint),
    );
    if let Some(region) = profile.region.filter(|_| !has_region) {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = profile.endpoint_url.filter(|_| !has_endpoint) {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(credential) = profile.credential.filter(|_| !has_key) {
        builder = builder.with_credentials(Arc::new(aws::FileCredentials::new(files, credential)));
    }
    Ok(builder)
}

#[cfg(feature = "gcs")]
fn gcs(location: &str, bucket: &Bucket, variables: &Variables) -> Result<Arc<dyn ObjectStore>, StoreError> {
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
    let mut builder = GoogleCloudStorageBuilder::new();
    for (name, value) in variables.iter().filter(|(name, _)| name.starts_with("GOOGLE_")) {
        if name == "GOOGLE_APPLICATION_CREDENTIALS" {
            builder = builder.with_application_credentials(value);
        } else if let Ok(key) = name.to_ascii_lowercase().parse::<GoogleConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    let store = builder
        .with_bucket_name(&bucket.name)
        .with_retry(no_retries())
        .with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIME_MAX)
        .with_http_connector(Connector)
        .build()
        .map_err(|error| {
            setup(location, "check the GOOGLE_ variables of the environment", Some(Box::new(error)))
        })?;
    Ok(Arc::new(store))
}

#[cfg(not(feature = "gcs"))]
fn gcs(location: &str, _: &Bucket, _: &Variables) -> Result<Arc<dyn ObjectStore>, StoreError> {
    Err(setup(
        location,
        "this glidefs was built without Google Cloud Storage: build it with --features gcs",
        None,
    ))
}

#[cfg(feature = "azure")]
fn azure(location: &str, bucket: &Bucket, variables: &Variables) -> Result<Arc<dyn ObjectStore>, StoreError> {
    use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
    let mut builder = MicrosoftAzureBuilder::new();
    for (name, value) in variables.iter().filter(|(name, _)| name.starts_with("AZURE_")) {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AzureConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    let store = builder
        .with_container_name(&bucket.name)
        .with_retry(no_retries())
        .with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIME_MAX)
        .with_http_connector(Connector)
        .build()
        .map_err(|error| {
            setup(location, "check the AZURE_ variables of the environment", Some(Box::new(error)))
        })?;
    Ok(Arc::new(store))
}

#[cfg(not(feature = "azure"))]
fn azure(location: &str, _: &Bucket, _: &Variables) -> Result<Arc<dyn ObjectStore>, StoreError> {
    Err(setup(location, "this glidefs was built without Azure: build it with --features azure", None))
}
