//! What must not leave the host: values that are known to be secret, and text that looks like a secret.
//!
//! Known are the tokens, and what a name says to be secret among the variables of this command, of the daemon and of the service's
//! environment file, and in the credentials file which one of these names. Text looks like a secret behind such a name, behind `Bearer`,
//! and where a URL has a user.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cli::deadline::{self, Pending};
use crate::config::Config;

/// The environment file of the service.
const ENVIRONMENT_FILE: &str = "/etc/default/glidefs";
/// Parts of names of variables whose values are secret.
const NAMES: [&str; 6] = ["SECRET", "TOKEN", "PASSWORD", "PASSWD", "CREDENTIAL", "KEY"];
/// The same of names in text, where `key` stands for much.
const NAMES_IN_TEXT: [&str; 7] =
    ["SECRET", "TOKEN", "PASSWORD", "PASSWD", "CREDENTIAL", "SIGNATURE", "ACCESS_KEY"];
/// Ends of names of variables that name a file: the name is no secret.
const FILES: [&str; 2] = ["_FILE", "_PATH"];
/// A shorter value is no secret, and would take words out of every text.
const BYTES_MIN: usize = 6;
/// In the place of a secret.
const REMOVED: &str = "[removed]";

/// Values to be removed from every text.
pub(super) struct Secrets {
    values: Vec<String>,
    unread: Vec<PathBuf>,
}

/// Files that are read at the same time.
struct Reader {
    deadline: Instant,
    unread: Vec<PathBuf>,
}

impl Reader {
    fn begin(path: PathBuf) -> (PathBuf, Pending<String>) {
        let read = path.clone();
        let text = move || String::from_utf8_lossy(&fs::read(read).unwrap_or_default()).into_owned();
        (path, deadline::begin(text))
    }

    /// The text of a file; nothing for one that cannot be read, or not in time.
    fn end(&mut self, (path, text): (PathBuf, Pending<String>)) -> String {
        self.given(text.until(self.deadline), &path).unwrap_or_default()
    }

    fn given<T>(&mut self, answer: Option<T>, path: &Path) -> Option<T> {
        if answer.is_none() {
            self.unread.push(path.into());
        }
        answer
    }
}

impl Secrets {
    pub fn of_values(values: impl IntoIterator<Item = String>) -> Self {
        let mut values: Vec<String> = values.into_iter().filter(|value| value.len() >= BYTES_MIN).collect();
        // A secret may be the beginning of another.
        values.sort_unstable_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self { values, unread: Vec::new() }
    }

    /// The secrets that this command can know: of its own environment, of the service's and the daemon's, and the tokens of `token_file`
    /// and of the configuration file at `config`. Reads files, each for no longer than `patience`: those that gave no answer are in
    /// [`Self::unread`].
    pub fn of_this_host(
        token_file: Option<&Path>,
        config: &Path,
        daemon: Option<u32>,
        patience: Duration,
    ) -> Self {
        let mut reader = Reader { deadline: Instant::now() + patience, unread: Vec::new() };
        let own = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let path = config.to_owned();
        let configured = deadline::begin(move || Config::load(&path).ok());
        let service = Reader::begin(ENVIRONMENT_FILE.into());
        let started = daemon.map(|pid| Reader::begin(format!("/proc/{pid}/environ").into()));
        let token = token_file.map(|path| Reader::begin(path.into()));
        let service = reader.end(service);
        let started = started.map(|started| reader.end(started)).unwrap_or_default().replace('\0', "\n");
        let mut named: Vec<_> = own.chain(variables(&service)).chain(variables(&started)).collect();
        let mut tokens = vec![token.map(|token| reader.end(token)).unwrap_or_default()];
        let configured = reader.given(configured.until(reader.deadline), config).flatten();
        // Files that are named in files have a time of their own.
        reader.deadline = Instant::now() + patience;
        let files = named.iter().filter(|(name, _)| name.ends_with("CREDENTIALS_FILE"));
        let files: Vec<_> = files.map(|(_, path)| Reader::begin(path.into())).collect();
        let token = configured.and_then(|config| config.api.token_file).map(Reader::begin);
        for file in files {
            named.extend(variables(&reader.end(file)));
        }
        tokens.extend(token.map(|token| reader.end(token)));
        let tokens = tokens.iter().filter_map(|text| Some(text.lines().next()?.trim().to_owned()));
        let named = named.into_iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value);
        Self { unread: reader.unread, ..Self::of_values(named.chain(tokens)) }
    }

    /// The files that were not read in time, and may have secrets.
    pub fn unread(&self) -> &[PathBuf] {
        &self.unread
    }

    /// `text` without secrets.
    pub fn remove(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in &self.values {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), REMOVED);
            }
        }
        text.split_inclusive('\n').map(|line| without_users(&without_named(line))).collect()
    }
}

/// The variables of an environment file of systemd.
fn variables(text: &str) -> impl Iterator<Item = (String, String)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    lines.filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        Some((name.trim().to_owned(), value.trim().trim_matches(['"', '\'']).to_owned()))
    })
}

/// Whether a variable of this name has a secret value. The path of a file with a secret is none.
fn is_secret(name: &str) -> bool {
    has_part(name, &NAMES)
}

fn has_part(name: &str, parts: &[&str]) -> bool {
    let name = name.to_ascii_uppercase();
    !FILES.iter().any(|end| name.ends_with(end)) && parts.iter().any(|part| name.contains(part))
}

/// `line` without what follows a name that says to be secret and `=` or `:`, and without what follows `Bearer`: up to white space, a
/// quote, `&` or `,`.
fn without_named(line: &str) -> String {
    let is_of_name = |sign: char| sign.is_ascii_alphanumeric() || "_-.".contains(sign);
    let (mut clean, mut rest) = (String::new(), line);
    while let Some(start) = rest.find(is_of_name) {
        let (before, from_name) = rest.split_at(start);
        let end = from_name.find(|sign| !is_of_name(sign)).unwrap_or(from_name.len());
        let (name, behind) = from_name.split_at(end);
        clean.extend([before, name]);
        rest = behind;
        let is_bearer = name.eq_ignore_ascii_case("bearer") && behind.starts_with(' ');
        let is_named = has_part(&name.replace('-', "_"), &NAMES_IN_TEXT) && is_assigned(behind);
        if is_bearer || is_named {
            let value = behind.find(|sign: char| !"=:\"' ".contains(sign)).unwrap_or(behind.len());
            let (between, from_value) = behind.split_at(value);
            let end = from_value.find(|sign: char| sign.is_whitespace() || "\"'&,".contains(sign));
            rest = &from_value[end.unwrap_or(from_value.len())..];
            clean.push_str(between);
            if from_value.len() > rest.len() {
                clean.push_str(REMOVED);
            }
        }
    }
    clean + rest
}

/// Whether a value follows, as in `NAME=value`, `name = "value"`, `"name": "value"` and `name: value`.
fn is_assigned(behind: &str) -> bool {
    behind.trim_start_matches(['"', '\'', ' ']).starts_with(['=', ':'])
}

/// `line` without users and passwords of its URLs. Either may have any sign, so all up to the last `@` of the word goes.
fn without_users(line: &str) -> String {
    let mut parts = line.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|sign: char| sign.is_whitespace() || "\"'".contains(sign));
        let (url, rest) = part.split_at(end.unwrap_or(part.len()));
        clean.push_str("://");
        match url.rsplit_once('@') {
            Some((_, host)) => clean.extend([REMOVED, "@", host]),
            None => clean.push_str(url),
        }
        clean.push_str(rest);
    }
    clean
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cli::deadline::PATIENCE;

    #[test]
    fn what_looks_like_a_secret_is_removed() {
        let secrets = Secrets::of_values([]);
        for (text, wanted) in [
            ("Authorization: Bearer abc.def\nnext", "Authorization: Bearer [removed]\nnext"),
            ("url = \"https://me:pw@host:9000/a\"", "url = \"https://[removed]@host:9000/a\""),
            ("http://AKIA:wJal/rXU@minio:9000 x", "http://[removed]@minio:9000 x"),
            ("GET /k?X-Amz-Signature=00ff&a=b", "GET /k?X-Amz-Signature=[removed]&a=b"),
            ("x-amz-security-token: F00/+\n", "x-amz-security-token: [removed]\n"),
            ("Credential=AKIA/2026, SignedHeaders=host", "Credential=[removed], SignedHeaders=host"),
            ("{\"secret\": \"abc\", \"b\": 1}", "{\"secret\": \"[removed]\", \"b\": 1}"),
            ("rd.iscsi.password=hush quiet", "rd.iscsi.password=[removed] quiet"),
            ("Environment=AWS_SECRET_ACCESS_KEY=\"wJ\"", "Environment=AWS_SECRET_ACCESS_KEY=\"[removed]\""),
            ("token_file = \"/etc/glidefs/token\"", "token_file = \"/etc/glidefs/token\""),
            ("s3://bucket/prefix and file:///x, key: value", "s3://bucket/prefix and file:///x, key: value"),
            ("ends with a secret=", "ends with a secret="),
            ("nothing here\n", "nothing here\n"),
        ] {
            assert_eq!(secrets.remove(text), wanted);
        }
    }

    #[test]
    fn variables_are_secret_by_their_names() {
        let text = "# AWS_SECRET_ACCESS_KEY=old\nAWS_SECRET_ACCESS_KEY=\"wJalrXUtn\"\nRUST_LOG=info\nA_TOKEN_FILE=/etc/token\n";
        let secret: Vec<_> = variables(text).filter(|(name, _)| is_secret(name)).collect();
        assert_eq!(secret, [("AWS_SECRET_ACCESS_KEY".to_owned(), "wJalrXUtn".to_owned())]);
    }

    #[test]
    fn the_token_of_the_configuration_is_a_secret() {
        let folder = tempfile::tempdir().unwrap();
        let (token, config) = (folder.path().join("token"), folder.path().join("glidefs.toml"));
        fs::write(&token, "0123456789abcdef\n").unwrap();
        fs::write(&config, format!("[api]\ntoken_file = \"{}\"\n", token.display())).unwrap();
        let secrets = Secrets::of_this_host(None, &config, None, PATIENCE);
        assert_eq!(secrets.remove("x 0123456789abcdef y"), "x [removed] y");
    }

    #[test]
    fn a_file_without_an_answer_hides_no_other_secret_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (silent, token) = (folder.path().join("silent"), folder.path().join("token"));
        nix::unistd::mkfifo(&silent, nix::sys::stat::Mode::S_IRUSR).unwrap();
        fs::write(&token, "0123456789abcdef\n").unwrap();
        // Both of the configuration's own, and the one that the configuration names.
        let secrets = Secrets::of_this_host(Some(&token), &silent, None, Duration::from_secs(5));
        assert_eq!(secrets.unread(), std::slice::from_ref(&silent));
        assert_eq!(secrets.remove("x 0123456789abcdef y"), "x [removed] y");
        let config = folder.path().join("glidefs.toml");
        fs::write(&config, format!("[api]\ntoken_file = \"{}\"\n", silent.display())).unwrap();
        let secrets = Secrets::of_this_host(Some(&token), &config, None, Duration::from_secs(5));
        assert_eq!(secrets.unread(), [silent]);
        assert_eq!(secrets.remove("x 0123456789abcdef y"), "x [removed] y");
    }

    #[test]
    fn keys_of_the_daemon_and_of_its_credentials_file_are_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials");
        fs::write(&file, "[default]\naws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = wJalrXUtn\n")
            .unwrap();
        let mut daemon = std::process::Command::new("sleep");
        let daemon =
            daemon.arg("60").env("AWS_SHARED_CREDENTIALS_FILE", &file).env("AWS_SESSION_TOKEN", "FwoGZXIvYX");
        let mut daemon = daemon.spawn().unwrap();
        // The kernel shows the environment a moment after the program has begun.
        let environ = format!("/proc/{}/environ", daemon.id());
        while fs::read(&environ).is_ok_and(|shown| shown.is_empty()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let secrets = Secrets::of_this_host(None, &folder.path().join("none"), Some(daemon.id()), PATIENCE);
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        assert_eq!(secrets.remove("AKIAEXAMPLE wJalrXUtn FwoGZXIvYX"), "[removed] [removed] [removed]");
    }

    proptest! {
        #[test]
        fn a_text_without_secrets_stays(text in "[a-z:= \"/\n]{0,60}") {
            let named = NAMES_IN_TEXT.iter().any(|name| text.to_ascii_uppercase().contains(name)) || text.contains("bearer");
            prop_assume!(!named);
            prop_assert_eq!(Secrets::of_values([]).remove(&text), text);
        }

        #[test]
        fn no_known_secret_is_left(
            values in prop::collection::vec("[a-z]{6,12}", 1..4),
            words in prop::collection::vec("[a-z ]{0,9}", 0..8),
        ) {
            let text = words.iter().zip(values.iter().cycle()).fold(String::new(), |text, (word, value)| text + word + value);
            let clean = Secrets::of_values(values.clone()).remove(&text);
            prop_assert!(values.iter().all(|value| !clean.contains(value.as_str())), "{clean}");
        }
    }
}
