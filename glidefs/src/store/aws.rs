//! Credentials and settings for S3 that are not in environment variables, by the AWS SDK.
//!
//! Owns the order in which sources of credentials are asked, how long credentials are kept, and when the profile is read again. The
//! SDK owns each source: profiles with keys, roles, SSO and programs, web identities, and the roles of containers and instances.
//! Does not own keys in the environment, which come first. Invariant: one load is under way at a time, and credentials that have
//! not expired are used when new ones cannot be had.
//!
//! The SDK reads the variables of containers (`AWS_CONTAINER_…`), and all that a program of `credential_process` inherits, from the
//! process itself; all other variables are handed in.

mod profile;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use aws_config::Region;
use aws_config::ecs::EcsCredentialsProvider;
use aws_config::imds;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::{StaticConfiguration, WebIdentityTokenCredentialsProvider};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use tokio::sync::Mutex;
use tokio::time::timeout;

use self::profile::{Profile, ProfileError, ProfileFiles, Stamps};
use super::error::BoxError;
use super::variables::{Variables, variable};

/// Region of requests for credentials when no region is configured.
const REGION_USUAL: &str = "us-east-1";
/// Session name for a web identity without a name of its own.
const SESSION_NAME: &str = "glidefs";
/// Credentials are renewed so long before they expire, or when half of the time is over.
const RENEW_BEFORE: Duration = Duration::from_mins(5);
/// Credentials without an expiry are loaded again after this time, as in the SDK.
const KEEP_MAX: Duration = Duration::from_mins(15);
/// Longest renewal of credentials that are still valid, as in the SDK.
const RENEW_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause after a renewal that failed.
const RENEW_PAUSE: Duration = Duration::from_mins(1);

/// Settings of the profile, and its credentials.
#[derive(Debug)]
pub(super) struct Settings {
    pub region: Option<String>,
    pub endpoint_url: Option<String>,
    /// Whether the profile leads to credentials.
    pub gives_credentials: bool,
    pub credentials: SdkCredentials,
}

impl Settings {
    /// Reads the profile that `variables` name. Sends no request.
    pub fn read(variables: &Variables) -> Result<Self, BoxError> {
        let files = ProfileFiles::of(variables);
        // A change after this is seen by the first request.
        let stamps = files.stamps();
        let profile = files.read()?;
        let (region, endpoint_url) = (profile.region.clone(), profile.endpoint_url.clone());
        let gives_credentials = profile.gives_credentials;
        let source = sources(&profile, variables)?;
        let state = Mutex::new(State { stamps, gives_credentials, source, kept: None });
        let credentials = SdkCredentials { files, variables: variables.clone(), state };
        Ok(Self { region, endpoint_url, gives_credentials, credentials })
    }
}

/// All sources of credentials, in the order in which they are asked.
fn sources(profile: &Profile, variables: &Variables) -> Result<SharedCredentialsProvider, BoxError> {
    let get = |name: &str| variable(variables, name);
    let region = get("AWS_REGION").or(get("AWS_DEFAULT_REGION")).or(profile.region.as_deref());
    let region = Region::new(region.unwrap_or(REGION_USUAL).to_owned());
    let config = ProviderConfig::without_region().with_region(Some(region));
    let of_profile = ProfileFileCredentialsProvider::builder()
        .configure(&config)
        .profile_files(profile.files.clone())
        .profile_name(&profile.name)
        .build();
    let mut chain = CredentialsProviderChain::first_try("Profile", of_profile);
    if let (Some(file), Some(role)) = (get("AWS_WEB_IDENTITY_TOKEN_FILE"), get("AWS_ROLE_ARN")) {
        let identity = StaticConfiguration {
            web_identity_token_file: file.into(),
            role_arn: role.into(),
            session_name: get("AWS_ROLE_SESSION_NAME").unwrap_or(SESSION_NAME).into(),
        };
        let builder = WebIdentityTokenCredentialsProvider::builder().configure(&config);
        chain = chain.or_else("WebIdentityToken", builder.static_configuration(identity).build());
    }
    let container = EcsCredentialsProvider::builder().configure(&config).build();
    let mut instance = imds::Client::builder().configure(&config);
    // The first is the name that `object_store` gives the variable.
    if let Some(endpoint) = get("AWS_METADATA_ENDPOINT").or(get("AWS_EC2_METADATA_SERVICE_ENDPOINT")) {
        instance = instance.endpoint(endpoint)?;
    }
    let instance =
        ImdsCredentialsProvider::builder().configure(&config).imds_client(instance.build()).build();
    let chain = chain.or_else("EcsContainer", container).or_else("Ec2InstanceMetadata", instance);
    Ok(SharedCredentialsProvider::new(chain))
}

/// Credentials from the sources of the SDK, kept until they are due. The profile is read again when one of its files has changed: a
/// program may write new keys.
#[derive(Debug)]
pub(super) struct SdkCredentials {
    files: ProfileFiles,
    variables: Variables,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// State of the files from which `source` was made.
    stamps: Stamps,
    gives_credentials: bool,
    source: SharedCredentialsProvider,
    kept: Option<Kept>,
}

/// Loaded credentials, and when to load again.
#[derive(Debug)]
struct Kept {
    credential: Arc<AwsCredential>,
    /// When the credentials are loaded again.
    due: SystemTime,
    /// `None`: never, as far as is known.
    expiry: Option<SystemTime>,
}

impl Kept {
    fn new(loaded: &Credentials, now: SystemTime) -> Self {
        let credential = Arc::new(AwsCredential {
            key_id: loaded.access_key_id().into(),
            secret_key: loaded.secret_access_key().into(),
            token: loaded.session_token().map(Into::into),
        });
        let expiry = loaded.expiry();
        let keep = expiry.map_or(KEEP_MAX, |expiry| {
            let left = expiry.duration_since(now).unwrap_or_default();
            left.saturating_sub(RENEW_BEFORE).max(left / 2)
        });
        Self { credential, due: now + keep, expiry }
    }

    fn is_valid(&self, now: SystemTime) -> bool {
        self.expiry.is_none_or(|expiry| now < expiry)
    }
}

impl SdkCredentials {
    /// Follows a change of the files.
    fn follow_files(&self, state: &mut State) {
        let stamps = self.files.stamps();
        if state.stamps == stamps {
            return;
        }
        state.stamps = stamps;
        // A file may be half written: the old credentials may do until the file changes again.
        let profile = match self.files.read() {
            Ok(profile) if profile.gives_credentials || !state.gives_credentials => profile,
            Ok(profile) => {
                tracing::warn!(profile = profile.name, "the profile has no credentials any more");
                return;
            }
            Err(error) => {
                if let ProfileError::File { .. } = error {
                    // The next request tries again: the failure may pass without a change of the file.
                    state.stamps = Stamps::default();
                }
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "credentials cannot be read again");
                return;
            }
        };
        match sources(&profile, &self.variables) {
            Ok(source) => {
                state.source = source;
                state.gives_credentials = profile.gives_credentials;
                if let Some(kept) = &mut state.kept {
                    kept.due = SystemTime::UNIX_EPOCH;
                }
            }
            Err(error) => {
                let error = &*error as &dyn std::error::Error;
                tracing::warn!(error, "credentials cannot be read again");
            }
        }
    }
}

#[async_trait]
impl CredentialProvider for SdkCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut state = self.state.lock().await;
        self.follow_files(&mut state);
        let now = SystemTime::now();
        let valid = state.kept.as_ref().filter(|kept| kept.is_valid(now));
        if let Some(kept) = valid.filter(|kept| now < kept.due) {
            return Ok(Arc::clone(&kept.credential));
        }
        // Without valid credentials the request waits as long as it may.
        let time_max = if valid.is_some() { RENEW_TIME_MAX } else { Duration::MAX };
        let loaded = timeout(time_max, state.source.provide_credentials()).await;
        let loaded = loaded.unwrap_or_else(|_| Err(CredentialsError::provider_timed_out(time_max)));
        match (loaded, &mut state.kept) {
            (Ok(loaded), kept) => Ok(Arc::clone(&kept.insert(Kept::new(&loaded, now)).credential)),
            (Err(error), Some(kept)) if kept.is_valid(now) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "credentials cannot be renewed; the old ones are used");
                kept.due = now + RENEW_PAUSE;
                Ok(Arc::clone(&kept.credential))
            }
            (Err(error), _) => Err(failure(error)),
        }
    }
}

/// No source has credentials. The role of a virtual machine may come later.
#[derive(Debug, thiserror::Error)]
#[error(
    "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile or a file that leads to \
     credentials in AWS_PROFILE or AWS_SHARED_CREDENTIALS_FILE, or give this virtual machine a role"
)]
struct NoCredentials(#[source] CredentialsError);

/// `error` as an error of a request. All but a wrong configuration may pass.
fn failure(error: CredentialsError) -> object_store::Error {
    let store = "AWS credentials";
    match error {
        CredentialsError::InvalidConfiguration(_) => {
            object_store::Error::Unauthenticated { path: store.into(), source: Box::new(error) }
        }
        CredentialsError::CredentialsNotLoaded(_) => {
            object_store::Error::Generic { store, source: Box::new(NoCredentials(error)) }
        }
        _ => object_store::Error::Generic { store, source: Box::new(error) },
    }
}

#[cfg(test)]
mod tests;
