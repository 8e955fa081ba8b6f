//! Credentials and settings for S3 that are not in environment variables, by the AWS SDK.
//!
//! Owns the choice of the profile, the order in which sources of credentials are asked, and how long credentials are kept. The SDK owns
//! each source: profiles with keys, roles and programs, web identities, and the roles of containers and instances. Does not own keys
//! in the environment, which come first. Invariants: one load is under way at a time, on a task of its own, so that a request which gives
//! up leaves no program behind and begins no second one; a request with valid credentials waits for no load; a named file or profile that
//! cannot be used, and half of a key pair, are errors.
//!
//! The SDK reads the variables of containers (`AWS_CONTAINER_…`), and all that a program of `credential_process` inherits, from the
//! process itself; all other variables are handed in.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use aws_config::Region;
use aws_config::ecs::EcsCredentialsProvider;
use aws_config::imds;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::profile::{self, ProfileFileCredentialsProvider, ProfileFileLoadError};
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::{StaticConfiguration, WebIdentityTokenCredentialsProvider};
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::{Provider as Tls, rustls_provider::CryptoMode};
use aws_smithy_http_client::{Builder as HttpBuilder, Connector};
use aws_types::os_shim_internal::{Env, Fs};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use tokio::time::timeout;

use super::backend::{Variables, variable};
use super::error::BoxError;
use crate::locks::MutexExt;

/// Region of requests for credentials when no region is configured.
const REGION_USUAL: &str = "us-east-1";
/// Session name for a web identity without a name of its own.
const SESSION_NAME: &str = "glidefs";
/// Credentials are renewed so long before they expire, or when half of the time is over.
const RENEW_BEFORE: Duration = Duration::from_mins(5);
/// Credentials without an expiry are loaded again after this time, and all others after a renewal that failed: a file may have new keys.
const LOAD_PAUSE: Duration = Duration::from_mins(1);
/// A load that takes longer is reported.
const LOAD_TIME_USUAL: Duration = Duration::from_mins(1);
const KEY_ID: &str = "aws_access_key_id";
const SECRET_KEY: &str = "aws_secret_access_key";
/// Settings of a profile that lead to credentials.
const CREDENTIAL_SETTINGS: [&str; 5] =
    [KEY_ID, SECRET_KEY, "credential_process", "role_arn", "web_identity_token_file"];

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
enum ProfileError {
    #[error("{0} cannot be read", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("the files of profiles have another format")]
    Format { source: Option<ProfileFileLoadError> },
    #[error("there is no profile {profile:?}, which AWS_PROFILE names")]
    Missing { profile: String },
    #[error("profile {profile:?} has one of aws_access_key_id and aws_secret_access_key and not the other")]
    Half { profile: String },
    #[error(
        "profile {profile:?} signs in with SSO, which is not supported: make a profile with credential_process = aws configure \
         export-credentials --profile {profile} --format process, and name it in AWS_PROFILE"
    )]
    Sso { profile: String },
}

/// A profile as the files of AWS's tools describe it.
#[derive(Debug)]
pub(super) struct Profile {
    name: String,
    /// Both files, for the SDK. Other profiles of the files may be the source of a role.
    files: EnvConfigFiles,
    /// Whether the profile leads to credentials.
    pub gives_credentials: bool,
    pub region: Option<String>,
    pub endpoint_url: Option<String>,
}

impl Profile {
    /// Reads the files that `variables` name, or the usual ones. Blocks: a home directory may be on a network.
    fn read(variables: &Variables) -> Result<Self, ProfileError> {
        let text = |name: &str, file: &str| {
            let named = variable(variables, name);
            let in_home = || Some(Path::new(variable(variables, "HOME")?).join(".aws").join(file));
            let Some(path) = named.map(PathBuf::from).or_else(in_home) else { return Ok(String::new()) };
            match fs::read_to_string(&path) {
                // systemd hides the home of others from a service.
                Err(error)
                    if named.is_none()
                        && matches!(
                            error.kind(),
                            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                        ) =>
                {
                    Ok(String::new())
                }
                read => read.map_err(|source| ProfileError::File { path, source }),
            }
        };
        let files = EnvConfigFiles::builder()
            .with_contents(EnvConfigFileKind::Config, text("AWS_CONFIG_FILE", "config")?)
            .with_contents(
                EnvConfigFileKind::Credentials,
                text("AWS_SHARED_CREDENTIALS_FILE", "credentials")?,
            )
            .build();
        let named = variable(variables, "AWS_PROFILE");
        let name = named.unwrap_or("default").to_owned();
        // The SDK gets the texts, so the future never has to wait.
        let (no_files, no_variables) = (Fs::from_slice(&[]), Env::from_slice(&[]));
        let read = profile::load(&no_files, &no_variables, &files, Some(name.clone().into())).now_or_never();
        let profiles = read
            .ok_or(ProfileError::Format { source: None })?
            .map_err(|error| ProfileError::Format { source: Some(error) })?;
        if named.is_some() && profiles.get_profile(&name).is_none() {
            return Err(ProfileError::Missing { profile: name });
        }
        let get = |key: &str| profiles.get(key).filter(|value| !value.is_empty());
        if get(KEY_ID).is_some() != get(SECRET_KEY).is_some() {
            return Err(ProfileError::Half { profile: name });
        }
        let gives_credentials = CREDENTIAL_SETTINGS.into_iter().any(|key| get(key).is_some());
        let has_keys = variable(variables, "AWS_ACCESS_KEY_ID").is_some();
        if !gives_credentials && !has_keys && get("sso_session").or(get("sso_start_url")).is_some() {
            return Err(ProfileError::Sso { profile: name });
        }
        Ok(Self {
            gives_credentials,
            region: get("region").map(Into::into),
            endpoint_url: get("endpoint_url").map(Into::into),
            name,
            files,
        })
    }
}

/// Reads the profile that `variables` name, and finds wrong settings before a request. Sends no request.
pub(super) fn read(variables: &Variables) -> Result<(Profile, SdkCredentials), BoxError> {
    let profile = Profile::read(variables)?;
    sources(&profile, variables, false)?;
    let (variables, state) = (variables.clone(), Mutex::default());
    let inner = Inner { variables, only_profile: profile.gives_credentials, state };
    Ok((profile, SdkCredentials(Arc::new(inner))))
}

/// The sources of credentials, in the order in which they are asked.
fn sources(
    profile: &Profile,
    variables: &Variables,
    only_profile: bool,
) -> Result<CredentialsProviderChain, BoxError> {
    let get = |name: &str| variable(variables, name);
    let region = get("AWS_REGION").or(get("AWS_DEFAULT_REGION")).or(profile.region.as_deref());
    let region = Region::new(region.unwrap_or(REGION_USUAL).to_owned());
    let http = HttpBuilder::new().build_with_connector_fn(|settings, components| {
        let mut connector = Connector::builder().proxy_config(ProxyConfig::from_env());
        connector.set_connector_settings(settings.cloned());
        if let Some(components) = components {
            connector.set_sleep_impl(components.sleep_impl());
        }
        connector.tls_provider(Tls::Rustls(CryptoMode::Ring)).build()
    });
    let config = ProviderConfig::without_region().with_region(Some(region)).with_http_client(http);
    let of_profile = ProfileFileCredentialsProvider::builder()
        .configure(&config)
        .profile_files(profile.files.clone())
        .profile_name(&profile.name)
        .build();
    let mut chain = CredentialsProviderChain::first_try("Profile", of_profile);
    if only_profile {
        return Ok(chain);
    }
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
    Ok(chain.or_else("EcsContainer", container).or_else("Ec2InstanceMetadata", instance))
}

/// Credentials from the sources of the SDK, kept until they are due. Each load reads the files of the profile again: a program may write
/// new keys.
#[derive(Debug)]
pub(super) struct SdkCredentials(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    variables: Variables,
    /// Whether the profile led to credentials at first: a file without keys may be half written, and then no other source counts.
    only_profile: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    kept: Option<Kept>,
    loading: Option<Load>,
}

/// A load under way, with one outcome for all that wait.
type Load = Shared<BoxFuture<'static, Result<Arc<AwsCredential>, Arc<CredentialsError>>>>;

/// Loaded credentials, and when to load again.
#[derive(Debug)]
struct Kept {
    credential: Arc<AwsCredential>,
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
        let keep = expiry.map_or(LOAD_PAUSE, |expiry| {
            let left = expiry.duration_since(now).unwrap_or_default();
            left.saturating_sub(RENEW_BEFORE).max(left / 2)
        });
        Self { credential, due: now + keep, expiry }
    }

    fn is_valid(&self, now: SystemTime) -> bool {
        self.expiry.is_none_or(|expiry| now < expiry)
    }
}

impl Inner {
    async fn load(self: Arc<Self>) -> Result<Arc<AwsCredential>, Arc<CredentialsError>> {
        let loaded = self.provide().await;
        let now = SystemTime::now();
        let mut state = self.state.lock_whole();
        state.loading = None;
        match loaded {
            Ok(loaded) => Ok(Arc::clone(&state.kept.insert(Kept::new(&loaded, now)).credential)),
            Err(error) => {
                if let Some(kept) = state.kept.as_mut().filter(|kept| kept.is_valid(now)) {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "credentials cannot be renewed; the old ones are used");
                    kept.due = now + LOAD_PAUSE;
                }
                Err(Arc::new(error))
            }
        }
    }

    /// Asks the sources, and reports when the answer takes long: a program that hangs keeps all waiting, and no other one is begun.
    async fn provide(self: &Arc<Self>) -> Result<Credentials, CredentialsError> {
        let inner = Arc::clone(self);
        let sources = tokio::task::spawn_blocking(move || {
            let profile = Profile::read(&inner.variables)?;
            sources(&profile, &inner.variables, inner.only_profile)
        });
        let sources = sources.await.map_err(CredentialsError::unhandled)?;
        let sources = sources.map_err(CredentialsError::provider_error)?;
        let mut answer = pin!(sources.provide_credentials());
        if let Ok(answer) = timeout(LOAD_TIME_USUAL, &mut answer).await {
            return answer;
        }
        tracing::warn!(
            "AWS credentials have been asked for a minute ago, and there is no answer: look at the program of credential_process, or \
             at the service that gives the role; end a program that hangs, and another one is begun"
        );
        answer.await
    }
}

#[async_trait]
impl CredentialProvider for SdkCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let loading = {
            let (mut state, now) = (self.0.state.lock_whole(), SystemTime::now());
            let valid = state.kept.as_ref().filter(|kept| kept.is_valid(now));
            let valid = valid.map(|kept| (Arc::clone(&kept.credential), now < kept.due));
            if let Some((credential, true)) = valid {
                return Ok(credential);
            }
            let loading = state.loading.get_or_insert_with(|| {
                let load = Arc::clone(&self.0).load().boxed().shared();
                // The task goes on when every request has given up.
                tokio::spawn(load.clone());
                load
            });
            if let Some((credential, _)) = valid {
                return Ok(credential);
            }
            loading.clone()
        };
        loading.await.map_err(|error| failure(&error))
    }
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
