//! What must not leave the host: values that are known to be secret, and text that looks like a secret.
//!
//! Known are the token, and the variables of the environment and of the service's environment file whose name says so. Texts that look
//! so: a user in a URL, a bearer token, and a signature of S3.

use std::fs;
use std::path::Path;

use crate::config::Config;

/// The environment file of the service.
const ENVIRONMENT_FILE: &str = "/etc/default/glidefs";
/// Parts of names of variables whose values are secret.
const NAMES: [&str; 5] = ["SECRET", "TOKEN", "PASSWORD", "CREDENTIAL", "KEY"];
/// A shorter value is no secret, and would take words out of every text.
const BYTES_MIN: usize = 6;
/// In the place of a secret.
const REMOVED: &str = "[removed]";
/// What is in front of a secret of any value, which ends with white space, a quote, or `&`.
const MARKS: [&str; 5] =
    ["Bearer ", "X-Amz-Signature=", "X-Amz-Security-Token=", "X-Amz-Credential=", "Signature="];

/// Values to be removed from every text.
pub(super) struct Secrets {
    values: Vec<String>,
}

impl Secrets {
    pub fn of_values(values: impl IntoIterator<Item = String>) -> Self {
        let mut values: Vec<String> = values.into_iter().filter(|value| value.len() >= BYTES_MIN).collect();
        // A secret may be the beginning of another.
        values.sort_unstable_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self { values }
    }

    /// The secrets that this command can know: of its own environment, of the service's, and the tokens of `token_file` and of the
    /// configuration file at `config`.
    pub fn of_this_host(token_file: Option<&Path>, config: &Path) -> Self {
        let own = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let service = fs::read_to_string(ENVIRONMENT_FILE).unwrap_or_default();
        let named = own.chain(variables(&service)).filter(|(name, _)| is_secret(name));
        let configured = Config::load(config).ok().and_then(|config| config.api.token_file);
        let tokens = token_file.map(Path::to_owned).into_iter().chain(configured);
        let tokens = tokens.filter_map(|path| fs::read_to_string(path).ok());
        let tokens = tokens.filter_map(|text| Some(text.lines().next()?.trim().to_owned()));
        Self::of_values(named.map(|(_, value)| value).chain(tokens))
    }

    /// `text` without secrets.
    pub fn remove(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in &self.values {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), REMOVED);
            }
        }
        for mark in MARKS {
            text = without_marked(&text, mark);
        }
        without_users(&text)
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
    let name = name.to_ascii_uppercase();
    !name.ends_with("_FILE") && NAMES.iter().any(|part| name.contains(part))
}

/// `text` without what follows `mark`.
fn without_marked(text: &str, mark: &str) -> String {
    let mut parts = text.split(mark);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|sign: char| sign.is_whitespace() || "\"'&".contains(sign));
        clean.push_str(mark);
        clean.push_str(REMOVED);
        clean.push_str(&part[end.unwrap_or(part.len())..]);
    }
    clean
}

/// `text` without user and password of its URLs.
fn without_users(text: &str) -> String {
    let mut parts = text.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|sign: char| sign.is_whitespace() || "/\"'?#".contains(sign));
        let (authority, rest) = part.split_at(end.unwrap_or(part.len()));
        clean.push_str("://");
        match authority.rsplit_once('@') {
            Some((_, host)) => clean.extend([REMOVED, "@", host]),
            None => clean.push_str(authority),
        }
        clean.push_str(rest);
    }
    clean
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_looks_like_a_secret_is_removed() {
        let secrets = Secrets::of_values([]);
        for (text, wanted) in [
            ("Authorization: Bearer abc.def\nnext", "Authorization: Bearer [removed]\nnext"),
            ("url = \"https://me:pw@host:9000/a\"", "url = \"https://[removed]@host:9000/a\""),
            ("GET /k?X-Amz-Signature=00ff&a=b", "GET /k?X-Amz-Signature=[removed]&a=b"),
            ("s3://bucket/a@b and file:///x", "s3://bucket/a@b and file:///x"),
            ("nothing here", "nothing here"),
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
        let secrets = Secrets::of_this_host(None, &config);
        assert_eq!(secrets.remove("x 0123456789abcdef y"), "x [removed] y");
    }

    proptest! {
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
