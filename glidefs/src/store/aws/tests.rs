//! Credentials of every kind of profile for which no network, or only the network of this host, is needed.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::fs;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// A home directory with the files of AWS's tools.
struct Home(tempfile::TempDir);

impl Home {
    fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn new(credentials: &str, config: &str) -> Self {
        let home = Self::empty();
        fs::create_dir(home.0.path().join(".aws")).unwrap();
        home.write("credentials", credentials);
        home.write("config", config);
        home
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.path().join(".aws").join(file), text).unwrap();
    }

    fn variables(&self, more: &[(&str, &str)]) -> Variables {
        let home = ("HOME", self.0.path().to_str().unwrap());
        let all = [home].into_iter().chain(more.iter().copied());
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn credentials(&self, profile: &str) -> SdkCredentials {
        read(&self.variables(&[("AWS_PROFILE", profile)])).unwrap().1
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
                      [profile bare]\nregion=us-east-2\n\
                      [profile role]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = default\n";

#[tokio::test]
async fn keys_of_a_profile_need_no_network() {
    let home = Home::new(CREDENTIALS, CONFIG);
    let default = read(&home.variables(&[])).unwrap().1;
    assert_eq!(*default.get_credential().await.unwrap(), credential("AK1", "a/b+c=#;d", None));
    let found = home.credentials("work").get_credential().await.unwrap();
    assert_eq!(*found, credential("AK2", "s2", Some("t2")));
    assert_eq!(*home.credentials("ci").get_credential().await.unwrap(), credential("AK3", "s3", None));
}

#[tokio::test]
async fn a_file_that_is_named_needs_no_home() {
    let home = Home::new(CREDENTIALS, CONFIG);
    let file = home.0.path().join(".aws/credentials").to_str().unwrap().to_owned();
    let named = vec![("AWS_SHARED_CREDENTIALS_FILE".into(), file)];
    let found = read(&named).unwrap().1;
    assert_eq!(*found.get_credential().await.unwrap(), credential("AK1", "a/b+c=#;d", None));
}

#[test]
fn a_profile_is_what_both_files_say() {
    let home = Home::new(CREDENTIALS, CONFIG);
    let read = |profile| Profile::read(&home.variables(&[("AWS_PROFILE", profile)]));
    let default = Profile::read(&home.variables(&[])).unwrap();
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
fn a_profile_with_sso_is_refused_with_what_to_use_instead() {
    let sso = "[profile p]\nsso_start_url = https://x.awsapps.com/start\nsso_region = us-east-2\n\
               sso_account_id = 1\nsso_role_name = x\n";
    let refused = read(&Home::new("", sso).variables(&[("AWS_PROFILE", "p")])).unwrap_err();
    assert!(refused.to_string().contains("credential_process"), "{refused}");
}

#[test]
fn files_may_be_missing_unless_they_are_named() {
    let home = Home::empty();
    let read = |more: &[(&str, &str)]| Profile::read(&home.variables(more));
    let found = read(&[]).unwrap();
    assert!(!found.gives_credentials && found.region.is_none());
    let named = read(&[("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials")]);
    assert!(matches!(named, Err(ProfileError::File { .. })), "{named:?}");
    assert!(!Profile::read(&Vec::new()).unwrap().gives_credentials);
    let broken = Home::new("[default\naws_access_key_id = 1\n", "");
    let broken = Profile::read(&broken.variables(&[]));
    assert!(matches!(broken, Err(ProfileError::Format { source: Some(_) })), "{broken:?}");
}

impl SdkCredentials {
    /// Waits for the load that a request begins when the credentials kept are due.
    async fn renew(&self) {
        self.0.state.lock_whole().kept.as_mut().unwrap().due = SystemTime::UNIX_EPOCH;
        self.get_credential().await.unwrap();
        let loading = self.0.state.lock_whole().loading.clone();
        drop(loading.unwrap().await);
    }
}

#[tokio::test]
async fn new_credentials_are_taken_and_broken_ones_are_not() {
    let home = Home::new(CREDENTIALS, CONFIG);
    let provider = home.credentials("work");
    assert_eq!(provider.get_credential().await.unwrap().key_id, "AK2");
    for broken in ["[work]\naws_access_key_id=A", "[work]\n"] {
        home.write("credentials", broken);
        provider.renew().await;
        assert_eq!(provider.get_credential().await.unwrap().key_id, "AK2");
    }
    home.write("credentials", "[work]\naws_access_key_id=AK22\naws_secret_access_key=s22\n");
    provider.renew().await;
    assert_eq!(*provider.get_credential().await.unwrap(), credential("AK22", "s22", None));
}

/// A home whose profile has `script` as its program.
fn with_program(script: &str) -> (Home, SdkCredentials) {
    let home = Home::new("", "");
    let path = home.0.path().join("program");
    fs::write(&path, script.replace("HOME", home.0.path().to_str().unwrap())).unwrap();
    home.write("config", &format!("[profile program]\ncredential_process = sh {}\n", path.display()));
    let provider = home.credentials("program");
    (home, provider)
}

impl Home {
    /// How often the program was begun.
    fn calls(&self) -> usize {
        fs::read_to_string(self.0.path().join("calls")).map_or(0, |calls| calls.lines().count())
    }
}

#[tokio::test]
async fn a_program_is_asked_once_while_its_credentials_are_valid_and_again_afterwards() {
    let (home, provider) = with_program("echo >> HOME/calls\ncat HOME/answer\n");
    let answer = r#"{"Version":1,"AccessKeyId":"AK5","SecretAccessKey":"s5","SessionToken":"t5","Expiration":"2100-01-01T00:00:00Z"}"#;
    fs::write(home.0.path().join("answer"), answer).unwrap();
    for _ in 0..3 {
        assert_eq!(*provider.get_credential().await.unwrap(), credential("AK5", "s5", Some("t5")));
    }
    assert_eq!(home.calls(), 1);
    // The program fails while the credentials are valid, and after they have expired.
    fs::remove_file(home.0.path().join("answer")).unwrap();
    provider.renew().await;
    for _ in 0..3 {
        assert_eq!(provider.get_credential().await.unwrap().key_id, "AK5");
    }
    assert_eq!(home.calls(), 2, "a renewal that failed is tried again after a pause");
    provider.0.state.lock_whole().kept.as_mut().unwrap().expiry = Some(SystemTime::UNIX_EPOCH);
    let error = provider.get_credential().await.unwrap_err();
    assert!(matches!(error, object_store::Error::Generic { .. }), "{error:?}");
}

/// A program once ran in the future of the request that asked. A request that gave up left the program behind, and the next request
/// began another one.
#[tokio::test]
async fn a_program_that_hangs_is_begun_once_and_keeps_no_request_with_valid_credentials_waiting() {
    let (home, provider) = with_program("echo >> HOME/calls\nexec sleep 20\n");
    let provider = Arc::new(provider);
    let ask = || {
        let provider = Arc::clone(&provider);
        async move { timeout(Duration::from_millis(50), provider.get_credential()).await.is_err() }
    };
    let all = (0..20).map(|_| tokio::spawn(ask()));
    for gave_up in futures_util::future::join_all(all).await {
        assert!(gave_up.unwrap());
    }
    assert!(ask().await);
    let deadline = std::time::Instant::now() + Duration::from_mins(1);
    while home.calls() == 0 {
        assert!(std::time::Instant::now() < deadline, "the program does not begin");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(home.calls(), 1);
    let valid = Credentials::new("AK7", "s7", None, None, "test");
    let kept = Kept { due: SystemTime::UNIX_EPOCH, ..Kept::new(&valid, SystemTime::now()) };
    provider.0.state.lock_whole().kept = Some(kept);
    assert_eq!(provider.get_credential().await.unwrap().key_id, "AK7");
}

#[tokio::test]
async fn a_failure_is_shared_by_the_requests_that_wait() {
    let (home, provider) = with_program("echo >> HOME/calls\nsleep 0.2\nexit 1\n");
    let asked = futures_util::future::join_all((0..100).map(|_| provider.get_credential())).await;
    assert!(asked.iter().all(Result::is_err));
    assert_eq!(home.calls(), 1);
    provider.get_credential().await.unwrap_err();
    assert_eq!(home.calls(), 2);
}

#[tokio::test]
async fn a_role_is_assumed_with_the_keys_of_its_source_profile() {
    const ANSWER: &str = "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult>\
        <Credentials><AccessKeyId>AK6</AccessKeyId><SecretAccessKey>s6</SecretAccessKey><SessionToken>t6</SessionToken>\
        <Expiration>2100-01-01T00:00:00Z</Expiration></Credentials><AssumedRoleUser><AssumedRoleId>a:b</AssumedRoleId>\
        <Arn>arn:aws:sts::1:assumed-role/x/b</Arn></AssumedRoleUser></AssumeRoleResult>\
        <ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></AssumeRoleResponse>";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !String::from_utf8_lossy(&request).contains("Action=AssumeRole") {
            assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
        }
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/xml\r\ncontent-length: {}\r\n\r\n", ANSWER.len());
        stream.write_all(&[head.as_bytes(), ANSWER.as_bytes()].concat()).await.unwrap();
        String::from_utf8(request).unwrap()
    });
    let config = CONFIG.to_owned()
        + &format!("services = here\n[services here]\nsts =\n  endpoint_url = http://127.0.0.1:{port}\n");
    let found = Home::new(CREDENTIALS, &config).credentials("role").get_credential().await.unwrap();
    assert_eq!(*found, credential("AK6", "s6", Some("t6")));
    let request = server.await.unwrap();
    assert!(request.contains("Credential=AK1/") && request.contains("role%2Fx"), "{request}");
}

#[test]
fn credentials_are_renewed_before_they_expire() {
    let now = SystemTime::now();
    let due_after = |minutes: Option<u64>| {
        let expiry = minutes.map(|minutes| now + Duration::from_mins(minutes));
        let loaded = Credentials::new("key", "secret", None, expiry, "test");
        Kept::new(&loaded, now).due.duration_since(now).unwrap()
    };
    assert_eq!(due_after(Some(60)), Duration::from_mins(55));
    assert_eq!(due_after(Some(6)), Duration::from_mins(3));
    assert_eq!(due_after(None), LOAD_PAUSE);
}
