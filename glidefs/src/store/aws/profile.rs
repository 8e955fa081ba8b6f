//! The profile that AWS's tools would use.
//!
//! Owns which files are read, which profile of these files, and which faults of a profile are reported before a request is sent. The
//! AWS SDK parses the files. Does not own the environment variables with keys, which come first. Invariant: a named file or profile
//! that cannot be used, and half of a key pair, are errors.
//!
//! Format: "Configuration and credential file settings in the AWS CLI", AWS Command Line Interface User Guide.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use aws_config::profile::{self, ProfileFileLoadError};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_types::os_shim_internal::{Env, Fs};
use futures_util::FutureExt;

use crate::store::variables::{Variables, variable};

const DEFAULT_PROFILE: &str = "default";
const KEY_ID: &str = "aws_access_key_id";
const SECRET_KEY: &str = "aws_secret_access_key";
/// Settings of a profile that lead to credentials.
const CREDENTIAL_SETTINGS: [&str; 7] = [
    KEY_ID,
    SECRET_KEY,
    "credential_process",
    "role_arn",
    "sso_session",
    "sso_start_url",
    "web_identity_token_file",
];

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProfileError {
    #[error("{0} cannot be read", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is not a file of profiles", list(files))]
    Format { files: Vec<PathBuf>, source: Option<ProfileFileLoadError> },
    #[error("there is no profile {profile:?}, which AWS_PROFILE names, in {}", list(files))]
    Missing { profile: String, files: Vec<PathBuf> },
    #[error("profile {profile:?} has one of aws_access_key_id and aws_secret_access_key and not the other")]
    Half { profile: String },
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
}

/// A file that may have a profile.
#[derive(Clone, Debug)]
struct ProfileFile {
    path: PathBuf,
    /// Whether a variable names the file, which then has to exist.
    named: bool,
}

impl ProfileFile {
    /// The text of the file; empty when the file may be missing and cannot be found.
    fn read(&self) -> Result<String, ProfileError> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(text),
            // systemd hides the home of others from a service.
            Err(error)
                if !self.named
                    && matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                Ok(String::new())
            }
            Err(source) => Err(ProfileError::File { path: self.path.clone(), source }),
        }
    }
}

/// Where a profile is looked for.
#[derive(Clone, Debug)]
pub(super) struct ProfileFiles {
    /// `None`: no variable names the file, and there is no home directory.
    credentials: Option<ProfileFile>,
    config: Option<ProfileFile>,
    profile: String,
    /// Whether a variable names the profile, which then has to exist.
    named: bool,
}

/// A profile as both files describe it.
#[derive(Debug)]
pub(super) struct Profile {
    pub name: String,
    /// Both files, for the SDK. Other profiles of the files may be the source of a role.
    pub files: EnvConfigFiles,
    /// Whether the profile leads to credentials.
    pub gives_credentials: bool,
    pub region: Option<String>,
    pub endpoint_url: Option<String>,
}

/// Changes when one of the files changes.
pub(super) type Stamps = [Option<(SystemTime, u64, i64, i64)>; 2];

impl ProfileFiles {
    /// The files and the profile that `variables` name, or the usual ones.
    pub fn of(variables: &Variables) -> Self {
        let place = |name: &str, file: &str| {
            let named = variable(variables, name).map(|path| ProfileFile { path: path.into(), named: true });
            let in_home =
                |home: &str| ProfileFile { path: Path::new(home).join(".aws").join(file), named: false };
            named.or_else(|| variable(variables, "HOME").map(in_home))
        };
        let profile = variable(variables, "AWS_PROFILE");
        Self {
            credentials: place("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            config: place("AWS_CONFIG_FILE", "config"),
            profile: profile.unwrap_or(DEFAULT_PROFILE).into(),
            named: profile.is_some(),
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        let files = [&self.credentials, &self.config];
        files.into_iter().flatten().map(|file| file.path.clone()).collect()
    }

    /// Reads both files. A missing profile without a variable of its name has no settings.
    pub fn read(&self) -> Result<Profile, ProfileError> {
        let text = |file: &Option<ProfileFile>| file.as_ref().map_or(Ok(String::new()), ProfileFile::read);
        let files = EnvConfigFiles::builder()
            .with_contents(EnvConfigFileKind::Config, text(&self.config)?)
            .with_contents(EnvConfigFileKind::Credentials, text(&self.credentials)?)
            .build();
        // The SDK gets the texts, so the future never has to wait.
        let (no_files, no_variables) = (Fs::from_slice(&[]), Env::from_slice(&[]));
        let profile = self.profile.clone();
        let read =
            profile::load(&no_files, &no_variables, &files, Some(profile.clone().into())).now_or_never();
        let format = |source| ProfileError::Format { files: self.paths(), source };
        let profiles = read.ok_or_else(|| format(None))?.map_err(|error| format(Some(error)))?;
        if self.named && profiles.get_profile(&profile).is_none() {
            return Err(ProfileError::Missing { profile, files: self.paths() });
        }
        let get = |key: &str| profiles.get(key).filter(|value| !value.is_empty());
        if get(KEY_ID).is_some() != get(SECRET_KEY).is_some() {
            return Err(ProfileError::Half { profile });
        }
        Ok(Profile {
            gives_credentials: CREDENTIAL_SETTINGS.into_iter().any(|key| get(key).is_some()),
            region: get("region").map(Into::into),
            endpoint_url: get("endpoint_url").map(Into::into),
            name: profile,
            files,
        })
    }

    /// The present state of both files.
    pub fn stamps(&self) -> Stamps {
        [&self.credentials, &self.config].map(|file| {
            let found = fs::metadata(&file.as_ref()?.path).ok()?;
            // The change time also tells of changed permissions.
            Some((found.modified().ok()?, found.len(), found.ctime(), found.ctime_nsec()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CONFIG, CREDENTIALS, Home};
    use super::*;

    #[test]
    fn a_profile_is_what_both_files_say() {
        let home = Home::new(CREDENTIALS, CONFIG);
        let read = |profile| ProfileFiles::of(&home.variables(&[("AWS_PROFILE", profile)])).read();
        let default = ProfileFiles::of(&home.variables(&[])).read().unwrap();
        assert_eq!((default.region.as_deref(), default.endpoint_url), (Some("eu-central-1"), None));
        assert!(default.gives_credentials);
        let work = read("work").unwrap();
        assert_eq!(work.endpoint_url.as_deref(), Some("https://s3.example:9000"));
        assert_eq!(work.region.as_deref(), Some("us-east-2"));
        assert!(read("role").unwrap().gives_credentials && !read("bare").unwrap().gives_credentials);
        assert!(matches!(read("half"), Err(ProfileError::Half { .. })));
        assert!(matches!(read("nobody"), Err(ProfileError::Missing { .. })));
    }

    #[test]
    fn files_may_be_missing_unless_they_are_named() {
        let home = Home::empty();
        let read = |more: &[(&str, &str)]| ProfileFiles::of(&home.variables(more)).read();
        let found = read(&[]).unwrap();
        assert!(!found.gives_credentials && found.region.is_none());
        let named = read(&[("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials")]);
        assert!(matches!(named, Err(ProfileError::File { .. })), "{named:?}");
        assert!(!ProfileFiles::of(&Vec::new()).read().unwrap().gives_credentials);
        let broken = Home::new("[default\naws_access_key_id = 1\n", "");
        let broken = ProfileFiles::of(&broken.variables(&[])).read();
        assert!(matches!(broken, Err(ProfileError::Format { source: Some(_), .. })), "{broken:?}");
    }
}
