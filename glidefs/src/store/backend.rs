//! Access to the place that a store URL names.
//!
//! Owns the setup of each kind of store, and the environment variables for it. Does not own requests. Invariant: the libraries below do
//! not retry; the policy of `retry` is the only one.

mod testing;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path as FsPath, PathBuf};
use std::sync::{Arc, Mutex};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};
use tokio::sync::OnceCell;

use super::aws;
use super::error::{BoxError, StoreError};
use super::http::Connector;
use super::url::{Bucket, StoreUrl};
use crate::locks::MutexExt;

/// End of the names of S3's directory buckets, which list in no order. No other bucket of S3 may have such a name.
const DIRECTORY_BUCKET: &str = "--x-s3";

/// Names and values of environment variables. A store heeds `AWS_…`, `GOOGLE_…`, `AZURE_…` and `HOME`.
pub type Variables = Vec<(String, String)>;

/// The variables of this process.
pub fn process_variables() -> Variables {
    std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The value of the variable `name`; an empty value counts as none.
pub(super) fn variable<'a>(variables: &'a Variables, name: &str) -> Option<&'a str> {
    let found = variables.iter().find(|(found, value)| found == name && !value.is_empty());
    found.map(|(_, value)| value.as_str())
}

/// A place for a store, and how to reach the place.
#[derive(Clone, Debug)]
pub struct Backend {
    objects: OnceCell<Arc<dyn ObjectStore>>,
    /// How the place is set up by a request, unless it is already.
    setup: Option<(StoreUrl, Variables)>,
    /// Beginning of every key in the place.
    pub(super) prefix: Path,
    /// Whether listings ascend by key.
    pub(super) lists_in_order: bool,
    /// The URL, for messages.
    pub(super) location: String,
    /// The directory of a store in a file system.
    pub(super) directory: Option<Directory>,
}

/// A directory, and the identity the directory had when the store was found there.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// The number of the device is not kept, since many file systems get another one with each mount. `None`: the store was not
    /// found yet.
    inode: Arc<Mutex<Option<u64>>>,
}

impl Directory {
    fn new(path: &FsPath) -> Self {
        Self { path: path.into(), inode: Arc::default() }
    }

    fn found(path: &FsPath) -> io::Result<u64> {
        let found = fs::metadata(path)?;
        if found.is_dir() { Ok(found.ino()) } else { Err(io::ErrorKind::NotADirectory.into()) }
    }

    /// Makes the directory of a new store at `location`. A parent that is missing may be a file system that is not mounted.
    pub fn make(&self, location: &str) -> Result<(), StoreError> {
        match fs::create_dir(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(directory_error(location, error))
            }
            _ => Ok(()),
        }
    }

    /// From now on [`Self::check`] accepts only the directory that is there now, with the store inside.
    pub fn keep(&self) -> io::Result<()> {
        let found = Self::found(&self.path)?;
        *self.inode.lock_whole() = Some(found);
        Ok(())
    }

    /// Fails when the directory is missing or is another one: the file system was unmounted, or another one is mounted over the
    /// directory. `any`: accepts any directory, because the caller looks for the store.
    pub fn check(&self, any: bool) -> io::Result<()> {
        let found = Self::found(&self.path)?;
        if any || self.inode.lock_whole().is_none_or(|inode| inode == found) {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{} is not the directory in which the store was found: mount its file system again, or restart the daemon",
            self.path.display()
        )))
    }
}

impl Backend {
    /// The place that `url` names, with credentials from `variables`. Sends no request. For `file:` a missing directory is made
    /// if `make_directory` is set, and its parent is there.
    pub fn connect(url: &StoreUrl, variables: &Variables, make_directory: bool) -> Result<Self, StoreError> {
        let backend = Self::later(url, variables)?;
        if let Some(directory) = &backend.directory {
            if make_directory {
                directory.make(&backend.location)?;
            }
            directory.keep().map_err(|error| directory_error(&backend.location, error))?;
        }
        Ok(Self { objects: objects(url, variables)?.into(), setup: None, ..backend })
    }

    /// As [`Self::connect`], for a place that cannot be set up now, as its file system is not mounted yet, or the files with
    /// credentials cannot be read: every request tries the setup, and fails until one setup succeeds. No directory is made.
    pub fn later(url: &StoreUrl, variables: &Variables) -> Result<Self, StoreError> {
        let location = url.to_string();
        let (prefix, lists_in_order, directory) = match url {
            StoreUrl::Memory => ("", true, None),
            StoreUrl::File(path) => ("", false, Some(Directory::new(path))),
            StoreUrl::S3(bucket) => (&*bucket.prefix, !bucket.name.ends_with(DIRECTORY_BUCKET), None),
            StoreUrl::Gcs(bucket) | StoreUrl::Azure(bucket) => (&*bucket.prefix, true, None),
        };
        let prefix = Path::parse(prefix)
            .map_err(|error| setup(&location, "its prefix is no path", Some(Box::new(error))))?;
        let setup = Some((url.clone(), variables.clone()));
        Ok(Self { objects: OnceCell::new(), setup, prefix, lists_in_order, location, directory })
    }

    /// The objects of the place, set up now if that was not possible before.
    pub(super) async fn objects(&self) -> Result<&Arc<dyn ObjectStore>, BoxError> {
        let connect = || async {
            let (url, variables) = self.setup.clone().ok_or("the place cannot be set up")?;
            Ok(tokio::task::spawn_blocking(move || objects(&url, &variables)).await??)
        };
        self.objects.get_or_try_init(connect).await
    }
}

/// The objects of the place that `url` names. Sends no request.
fn objects(url: &StoreUrl, variables: &Variables) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let location = url.to_string();
    Ok(match url {
        StoreUrl::Memory => Arc::new(InMemory::new()),
        StoreUrl::File(path) => {
            let directory = LocalFileSystem::new_with_prefix(path)
                .map_err(|error| setup(&location, "it is not a directory", Some(Box::new(error))))?;
            // A created object survives a power cut, as in S3.
            Arc::new(directory.with_fsync(true))
        }
        StoreUrl::S3(bucket) => s3(&location, bucket, variables)?,
        StoreUrl::Gcs(bucket) => gcs(&location, bucket, variables)?,
        StoreUrl::Azure(bucket) => azure(&location, bucket, variables)?,
    })
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

/// Turns the retries of the library off.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

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
        // Many servers of this protocol, and many policies, know no deletion of many objects by one request.
        .with_config(AmazonS3ConfigKey::DisableBulkDelete, "true")
        .with_http_connector(Connector)
        .build()
        .map_err(|error| {
            setup(location, "check the AWS_ variables of the environment", Some(Box::new(error)))
        })?;
    Ok(Arc::new(store))
}

/// Adds the settings that the environment lacks: those of the profile, and the sources of credentials that the AWS SDK knows.
fn with_profile(
    mut builder: AmazonS3Builder,
    location: &str,
    variables: &Variables,
) -> Result<AmazonS3Builder, StoreError> {
    let (profile, credentials) = aws::read(variables).map_err(|error| {
        setup(location, "correct the files that hold AWS credentials and settings", Some(error))
    })?;
    let says = |key: AmazonS3ConfigKey| builder.get_config_value(&key).is_some();
    let has_region = says(AmazonS3ConfigKey::Region) || says(AmazonS3ConfigKey::DefaultRegion);
    let has_endpoint = says(AmazonS3ConfigKey::Endpoint);
    // A secret without a key is an error of the builder, unless the profile leads to credentials.
    let has_keys = says(AmazonS3ConfigKey::AccessKeyId)
        || says(AmazonS3ConfigKey::SecretAccessKey) && !profile.gives_credentials;
    if let Some(region) = profile.region.filter(|_| !has_region) {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = profile.endpoint_url.filter(|_| !has_endpoint) {
        builder = builder.with_endpoint(endpoint);
    }
    if !has_keys {
        builder = builder.with_credentials(Arc::new(credentials));
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::store::client::{Store, StoreOptions};
    use crate::store::key::Key;

    fn variables(endpoint: &str) -> Variables {
        let variables = [
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "region"),
            ("AWS_DISABLE_BULK_DELETE", "false"),
        ];
        variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    #[tokio::test]
    async fn a_server_needs_no_deletion_of_many_objects_by_one_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
                }
                let line = String::from_utf8_lossy(&request).lines().next().unwrap().to_owned();
                let status =
                    if line.starts_with("DELETE ") { "204 No Content" } else { "501 Not Implemented" };
                let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                // Noted before the client can go on.
                sender.send(line).unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let url = "s3://bucket/prefix".parse().unwrap();
        let backend = Backend::connect(&url, &variables(&endpoint), false).unwrap();
        let store = Store::over(backend, StoreOptions::default());
        let keys = ["one", "two", "three"].map(|name| Key::Name(name.parse().unwrap()));
        store.delete(&keys).await.unwrap();
        let mut deleted: Vec<_> = requests.try_iter().collect();
        deleted.sort();
        let line = |name| format!("DELETE /bucket/prefix/names/{name} HTTP/1.1");
        assert_eq!(deleted, ["one", "three", "two"].map(line));
    }

    #[test]
    fn directory_buckets_and_directories_do_not_list_in_order() {
        let in_order =
            |url: &str| Backend::later(&url.parse().unwrap(), &Variables::new()).unwrap().lists_in_order;
        assert!(in_order("s3://bucket/prefix") && in_order("s3://bucket--x-s3x/prefix"));
        assert!(!in_order("s3://bucket--usw2-az1--x-s3/prefix") && !in_order("file:///tmp"));
    }
}
