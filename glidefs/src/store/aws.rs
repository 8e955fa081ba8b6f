//! The files in which AWS's tools keep credentials and settings.
//!
//! Owns which file, which profile, and what is read from it. Does not own what the environment says, which comes first.
//! Invariant: nobody is asked who they are with half of a profile: what is there and cannot be used is an error.
//!
//! Format: "Configuration and credential file settings in the AWS CLI", AWS Command Line Interface User Guide.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use configparser::ini::{Ini, IniDefault};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

use super::backend::Variables;

const DEFAULT_PROFILE: &str = "default";
/// Ways to credentials that other programs would have to be asked for.
const FOREIGN_WAYS: [&str; 6] = [
    "credential_process",
    "credential_source",
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
    #[error("{0} is not an INI file: {what}", path.display())]
    Format { path: PathBuf, what: String },
    #[error("there is no profile {profile:?}, which AWS_PROFILE names, in {}", list(looked_in))]
    Missing { profile: String, looked_in: Vec<PathBuf> },
    #[error("profile {profile:?} has one of aws_access_key_id and aws_secret_access_key and not the other")]
    Half { profile: String },
    #[error(
        "profile {profile:?} gets its credentials by {way}, which glidefs cannot do: set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, or have a program write them into the credentials file"
    )]
    Foreign { profile: String, way: &'static str },
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
}

/// A file that may have a profile.
#[derive(Clone, Debug)]
struct Place {
    path: PathBuf,
    /// Somebody has named the file: it has to be there.
    named: bool,
}

/// Where a profile is looked for.
#[derive(Clone, Debug)]
pub(super) struct Files {
    /// `None`: nobody has named it, and there is no home to have it.
    credentials: Option<Place>,
    config: Option<Place>,
    profile: String,
    /// Somebody has named the profile: it has to be there.
    named: bool,
}

/// What a profile says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    pub credential: Option<AwsCredential>,
    pub region: Option<String>,
    pub endpoint_url: Option<String>,
}

impl Files {
    /// The files and the profile that `variables` name, or the usual ones.
    pub fn of(variables: &Variables) -> Self {
        let get = |wanted: &str| {
            let found = variables.iter().find(|(name, value)| name == wanted && !value.is_empty());
            found.map(|(_, value)| value.as_str())
        };
        let place = |variable: &str, file: &str| {
            let home = || Some(Place { path: Path::new(get("HOME")?).join(".aws").join(file), named: false });
            get(variable).map(|path| Place { path: path.into(), named: true }).or_else(home)
        };
        let profile = get("AWS_PROFILE");
        Self {
            credentials: place("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            config: place("AWS_CONFIG_FILE", "config"),
            profile: profile.unwrap_or(DEFAULT_PROFILE).into(),
            named: profile.is_some(),
        }
    }

    fn places(&self) -> [Option<&Place>; 2] {
        [self.credentials.as_ref(), self.config.as_ref()]
    }

    /// Reads both files. What neither of them has is `None`.
    pub fn read(&self) -> Result<Profile, ProfileError> {
        let credentials = section(self.credentials.as_ref(), &self.profile)?;
        let in_config = match self.profile.as_str() {
            DEFAULT_PROFILE => DEFAULT_PROFILE.into(),
            named => format!("profile {named}"),
        };
        let config = section(self.config.as_ref(), &in_config)?;
        if self.named && credentials.is_none() && config.is_none() {
            return Err(ProfileError::Missing {
                profile: self.profile.clone(),
                looked_in: self.places().into_iter().flatten().map(|place| place.path.clone()).collect(),
            });
        }
        // Keys of one file belong together; those of the credentials file come first.
        let sections = [credentials.unwrap_or_default(), config.unwrap_or_default()];
        let get = |key: &str| sections.iter().find_map(|section| section.get(key)).cloned();
        let mut credential = None;
        for section in &sections {
            let found = (section.get("aws_access_key_id"), section.get("aws_secret_access_key"));
            credential = match found {
                (Some(key_id), Some(secret_key)) => Some(AwsCredential {
                    key_id: key_id.clone(),
                    secret_key: secret_key.clone(),
                    token: section.get("aws_session_token").cloned(),
                }),
                (None, None) => continue,
                _ => return Err(ProfileError::Half { profile: self.profile.clone() }),
            };
            break;
        }
        let foreign = FOREIGN_WAYS.into_iter().find(|way| get(way).is_some());
        if let (None, Some(way)) = (&credential, foreign) {
            return Err(ProfileError::Foreign { profile: self.profile.clone(), way });
        }
        Ok(Profile { credential, region: get("region"), endpoint_url: get("endpoint_url") })
    }

    /// Tells whether the files have changed.
    fn stamps(&self) -> Stamps {
        self.places().map(|place| {
            let found = fs::metadata(&place?.path).ok()?;
            // The time of change tells of permissions as well.
            Some((found.modified().ok()?, found.len(), found.ctime(), found.ctime_nsec()))
        })
    }
}

type Stamps = [Option<(SystemTime, u64, i64, i64)>; 2];

/// The section `name` of the file at `place`, without empty values; `None` when there is no such section, or no such file and
/// it may be missing.
fn section(place: Option<&Place>, name: &str) -> Result<Option<HashMap<String, String>>, ProfileError> {
    let Some(Place { path, named: must_exist }) = place else { return Ok(None) };
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        // The home of others is hidden from a service.
        Err(error)
            if !*must_exist
                && matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
        {
            return Ok(None);
        }
        Err(source) => return Err(ProfileError::File { path: path.clone(), source }),
    };
    let mut syntax = IniDefault::default();
    syntax.case_sensitive = true;
    syntax.delimiters = vec!['='];
    syntax.default_section = String::new();
    let mut ini = Ini::new_from_defaults(syntax);
    // A secret may hold what begins a comment.
    ini.set_inline_comment_symbols(Some(&[]));
    let mut sections = ini.read(text).map_err(|what| ProfileError::Format { path: path.clone(), what })?;
    let found = sections.remove(name);
    let entries = |section: HashMap<String, Option<String>>| {
        let full = section.into_iter().filter_map(|(key, value)| Some((key, value?)));
        full.filter(|(_, value)| !value.is_empty()).collect()
    };
    Ok(found.map(entries))
}

/// The credential of a profile, read again when a file has changed: some are short-lived, and a program writes new ones.
#[derive(Debug)]
pub(super) struct FileCredentials {
    files: Files,
    last: Mutex<(Stamps, Arc<AwsCredential>)>,
}

impl FileCredentials {
    /// Begins with `credential`, which was read from `files`.
    pub fn new(files: Files, credential: AwsCredential) -> Self {
        let last = Mutex::new((files.stamps(), Arc::new(credential)));
        Self { files, last }
    }
}

#[async_trait]
impl CredentialProvider for FileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = self.files.stamps();
        if last.0 != stamps {
            last.0 = stamps;
            match self.files.read() {
                Ok(Profile { credential: Some(credential), .. }) => last.1 = Arc::new(credential),
                // It may be being written: the old one may do until the file changes again.
                Ok(_) => {
                    tracing::warn!(profile = self.files.profile, "the profile has no credentials any more");
                }
                Err(error) => {
                    if let ProfileError::File { .. } = error {
                        // It may be only for now.
                        last.0 = Stamps::default();
                    }
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "credentials cannot be read again");
                }
            }
        }
        Ok(Arc::clone(&last.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Home(tempfile::TempDir);

    impl Home {
        fn new(credentials: &str, config: &str) -> Self {
            let home = Self(tempfile::tempdir().unwrap());
            fs::create_dir(home.0.path().join(".aws")).unwrap();
            home.write("credentials", credentials);
            home.write("config", config);
            home
        }

        fn write(&self, file: &str, text: &str) {
            fs::write(self.0.path().join(".aws").join(file), text).unwrap();
        }

        fn files(&self, more: &[(&str, &str)]) -> Files {
            let mut variables = vec![("HOME".to_owned(), self.0.path().to_str().unwrap().to_owned())];
            variables.extend(more.iter().map(|(name, value)| ((*name).into(), (*value).into())));
            Files::of(&variables)
        }
    }

    fn credential(key_id: &str, secret_key: &str, token: Option<&str>) -> AwsCredential {
        AwsCredential { key_id: key_id.into(), secret_key: secret_key.into(), token: token.map(Into::into) }
    }

    const CREDENTIALS: &str = "# mine\n[default]\naws_access_key_id = AK1\naws_secret_access_key=a/b+c=#;d\n\n\
                               [work]\naws_access_key_id=AK2\naws_secret_access_key=s2\naws_session_token=t2\n";
    const CONFIG: &str = "[default]\nregion = eu-central-1\ns3 =\n  max_concurrent_requests = 20\n\
                          [profile work]\nregion=us-east-2\nendpoint_url = https://s3.example:9000\n\
                          [profile ci]\naws_access_key_id=AK3\naws_secret_access_key=s3\n\
                          [profile half]\naws_access_key_id=AK4\n\
                          [profile role]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = default\n";

    #[test]
    fn a_profile_is_what_both_files_say() {
        let home = Home::new(CREDENTIALS, CONFIG);
        let read = |profile| home.files(&[("AWS_PROFILE", profile)]).read();
        let default = home.files(&[]).read().unwrap();
        assert_eq!(default.credential, Some(credential("AK1", "a/b+c=#;d", None)));
        assert_eq!((default.region.as_deref(), default.endpoint_url), (Some("eu-central-1"), None));
        let work = read("work").unwrap();
        assert_eq!(work.credential, Some(credential("AK2", "s2", Some("t2"))));
        assert_eq!(work.endpoint_url.as_deref(), Some("https://s3.example:9000"));
        assert_eq!(read("ci").unwrap().credential, Some(credential("AK3", "s3", None)));
        assert!(matches!(read("half"), Err(ProfileError::Half { .. })));
        assert!(matches!(read("role"), Err(ProfileError::Foreign { way: "role_arn", .. })));
        assert!(matches!(read("nobody"), Err(ProfileError::Missing { .. })));
    }

    #[test]
    fn files_may_be_missing_unless_they_are_named() {
        let home = Home(tempfile::tempdir().unwrap());
        assert_eq!(home.files(&[]).read().unwrap(), Profile::default());
        let named = home.files(&[("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials")]).read();
        assert!(matches!(named, Err(ProfileError::File { .. })), "{named:?}");
        assert_eq!(Files::of(&Vec::new()).read().unwrap(), Profile::default());
        let broken = Home::new("[default\naws_access_key_id = 1\n", "");
        assert!(matches!(broken.files(&[]).read(), Err(ProfileError::Format { .. })));
    }

    #[test]
    fn a_file_that_is_named_needs_no_home() {
        let home = Home::new(CREDENTIALS, CONFIG);
        let file = home.0.path().join(".aws/credentials").to_str().unwrap().to_owned();
        let found = Files::of(&vec![("AWS_SHARED_CREDENTIALS_FILE".into(), file)]).read().unwrap();
        assert_eq!(found.credential, Some(credential("AK1", "a/b+c=#;d", None)));
    }

    #[tokio::test]
    async fn new_credentials_are_taken_and_broken_ones_are_not() {
        let home = Home::new(CREDENTIALS, CONFIG);
        let files = home.files(&[("AWS_PROFILE", "work")]);
        let found = files.read().unwrap().credential.unwrap();
        let provider = FileCredentials::new(files, found);
        assert_eq!(provider.get_credential().await.unwrap().key_id, "AK2");
        home.write("credentials", "[work]\naws_access_key_id=A");
        assert_eq!(provider.get_credential().await.unwrap().key_id, "AK2");
        home.write("credentials", "[work]\naws_access_key_id=AK22\naws_secret_access_key=s22\n");
        assert_eq!(*provider.get_credential().await.unwrap(), credential("AK22", "s22", None));
    }
}
