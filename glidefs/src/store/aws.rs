//! Credentials and settings for S3 that are not in environment variables, by the AWS SDK.
//!
//! Owns the order in which sources of credentials are asked, how long credentials are kept, and when the profile is read again. The
//! SDK owns each source: profiles with keys, roles, SSO and programs, web identities, and the roles of containers and instances.
//! Does not own keys in the environment, which come first. Invariants: one load is under way at a time, on a task of its own, so
//! that a request which gives up leaves no program behind and begins no second one; a request with valid credentials waits for a load
//! for a second at most.
//!
//! The SDK reads the variables of containers (`AWS_CONTAINER_…`), and all that a program of `credential_process` inherits, from the
//! process itself; all other variables are handed in.

mod profile;

use std::pin::pin;
use std::sync::{Arc, Mutex};
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
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use self::profile::{Profile, ProfileError, ProfileFiles, Stamps};
use super::error::BoxError;
use super::variables::{Variables, variable};
use crate::locks::MutexExt;

/// Region of requests for credentials when no region is configured.
const REGION_USUAL: &str = "us-east-1";
/// Session name for a web identity without a name of its own.
const SESSION_NAME: &str = "glidefs";
/// Credentials are renewed so long before they expire, or when half of the time is over.
const RENEW_BEFORE: Duration = Duration::from_mins(5);
/// Credentials without an expiry are loaded again after this time, as in the SDK.
const KEEP_MAX: Duration = Duration::from_mins(15);
/// Pause after a load that failed, while there are valid credentials.
const RENEW_PAUSE: Duration = Duration::from_mins(1);
/// Pause after a load that failed, while there are none: requests of this time share the failure.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Pause between two looks at the files of the profile.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// So long requests with valid credentials wait for a load: most loads are a look at files, which may have new keys.
const LOAD_WAIT_MAX: Duration = Duration::from_secs(1);
/// A load that takes longer is reported.
const LOAD_TIME_USUAL: Duration = Duration::from_mins(1);

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
        let state = State {
            stamps,
            gives_credentials,
            source,
            kept: None,
            look_at: Instant::now(),
            loading_since: None,
            failed: None,
        };
        let (state, loads_ended) = (Mutex::new(state), watch::Sender::new(0));
        let inner = Inner { files, variables: variables.clone(), state, loads_ended };
        let credentials = SdkCredentials(Arc::new(inner));
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
pub(super) struct SdkCredentials(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    files: ProfileFiles,
    variables: Variables,
    state: Mutex<State>,
    /// Number of loads that have ended.
    loads_ended: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    /// State of the files from which `source` was made.
    stamps: Stamps,
    gives_credentials: bool,
    source: SharedCredentialsProvider,
    kept: Option<Kept>,
    /// When the files are looked at again.
    look_at: Instant,
    /// When the load under way began.
    loading_since: Option<Instant>,
    failed: Option<FailedLoad>,
}

/// The failure of the last load.
#[derive(Clone, Debug)]
struct FailedLoad {
    error: Arc<CredentialsError>,
    /// No other load begins before.
    until: Instant,
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

impl State {
    fn valid(&self, now: SystemTime) -> Option<&Kept> {
        self.kept.as_ref().filter(|kept| kept.is_valid(now))
    }

    /// Whether the source is to be asked for credentials.
    fn is_renewal_due(&self, now: SystemTime, instant: Instant) -> bool {
        let rests = self.failed.as_ref().is_some_and(|failed| instant < failed.until);
        !rests && self.valid(now).is_none_or(|kept| now >= kept.due)
    }

    /// Whether a load has to begin now.
    fn is_load_due(&self, now: SystemTime, instant: Instant) -> bool {
        self.loading_since.is_none() && (instant >= self.look_at || self.is_renewal_due(now, instant))
    }
}

impl Inner {
    /// Looks at the files, and loads credentials if they are due. Ends whether or not anybody waits.
    async fn load(self: Arc<Self>) {
        let inner = Arc::clone(&self);
        // A look may block: a home directory may be on a network.
        let looked = tokio::task::spawn_blocking(move || inner.follow_files()).await;
        debug_assert!(looked.is_ok(), "a look at the files does not panic");
        let source = {
            let mut state = self.state.lock_whole();
            let instant = Instant::now();
            state.look_at = instant + LOOK_PAUSE;
            state.is_renewal_due(SystemTime::now(), instant).then(|| state.source.clone())
        };
        let loaded = match source {
            Some(source) => Some(provide(&source).await),
            None => None,
        };
        let mut state = self.state.lock_whole();
        state.loading_since = None;
        let now = SystemTime::now();
        match loaded {
            None => {}
            Some(Ok(loaded)) => {
                state.kept = Some(Kept::new(&loaded, now));
                state.failed = None;
            }
            Some(Err(error)) => {
                let pause = if state.valid(now).is_some() {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "credentials cannot be renewed; the old ones are used");
                    RENEW_PAUSE
                } else {
                    FAILURE_PAUSE
                };
                state.failed = Some(FailedLoad { error: Arc::new(error), until: Instant::now() + pause });
            }
        }
        drop(state);
        self.loads_ended.send_modify(|ended| *ended = ended.wrapping_add(1));
    }

    /// Follows a change of the files. Blocks.
    fn follow_files(&self) {
        let stamps = self.files.stamps();
        let gave_credentials = {
            let mut state = self.state.lock_whole();
            if state.stamps == stamps {
                return;
            }
            state.stamps = stamps;
            state.gives_credentials
        };
        // A file may be half written: the old credentials may do until the file changes again.
        let profile = match self.files.read() {
            Ok(profile) if profile.gives_credentials || !gave_credentials => profile,
            Ok(profile) => {
                tracing::warn!(profile = profile.name, "the profile has no credentials any more");
                return;
            }
            Err(error) => {
                if let ProfileError::File { .. } = error {
                    // The next look tries again: the failure may pass without a change of the file.
                    self.state.lock_whole().stamps = Stamps::default();
                }
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "credentials cannot be read again");
                return;
            }
        };
        match sources(&profile, &self.variables) {
            Ok(source) => {
                let mut state = self.state.lock_whole();
                state.source = source;
                state.failed = None;
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
        let mut ended = self.0.loads_ended.subscribe();
        loop {
            let patience_ends = {
                let mut state = self.0.state.lock_whole();
                let (now, instant) = (SystemTime::now(), Instant::now());
                if state.is_load_due(now, instant) {
                    state.loading_since = Some(instant);
                    tokio::spawn(Arc::clone(&self.0).load());
                }
                let patience_ends = state.loading_since.map(|since| since + LOAD_WAIT_MAX);
                match state.valid(now) {
                    // New keys may be about to come.
                    Some(_) if patience_ends.is_some_and(|end| instant < end) => patience_ends,
                    Some(kept) => return Ok(Arc::clone(&kept.credential)),
                    None => match &state.failed {
                        Some(failed) if state.loading_since.is_none() => return Err(failure(&failed.error)),
                        _ => None,
                    },
                }
            };
            // Never an error: `self` holds the sender.
            let ended = ended.changed();
            match patience_ends {
                Some(end) => drop(timeout_at(end, ended).await),
                // Without valid credentials the request waits as long as it may.
                None => drop(ended.await),
            }
        }
    }
}

/// Asks `source`, and reports when the answer takes long: a program that hangs keeps everybody waiting, and no other one is begun.
async fn provide(source: &SharedCredentialsProvider) -> Result<Credentials, CredentialsError> {
    let mut answer = pin!(source.provide_credentials());
    if let Ok(answer) = timeout(LOAD_TIME_USUAL, &mut answer).await {
        return answer;
    }
    tracing::warn!(
        "AWS credentials have been asked for a minute ago, and there is no answer: look at the program of credential_process, or at \
         the service that gives the role; end a program that hangs, and another one is begun"
    );
    answer.await
}

/// No source has credentials. The role of a virtual machine may come later.
#[derive(Debug, thiserror::Error)]
#[error(
    "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile or a file that leads to \
     credentials in AWS_PROFILE or AWS_SHARED_CREDENTIALS_FILE, or give this virtual machine a role"
)]
struct NoCredentials(#[source] Arc<CredentialsError>);

/// `error` as an error of a request. All but a wrong configuration may pass.
fn failure(error: &Arc<CredentialsError>) -> object_store::Error {
    let (store, source) = ("AWS credentials", Arc::clone(error));
    match **error {
        CredentialsError::InvalidConfiguration(_) => {
            object_store::Error::Unauthenticated { path: store.into(), source: Box::new(source) }
        }
        CredentialsError::CredentialsNotLoaded(_) => {
            object_store::Error::Generic { store, source: Box::new(NoCredentials(source)) }
        }
        _ => object_store::Error::Generic { store, source: Box::new(source) },
    }
}

#[cfg(test)]
mod tests;
